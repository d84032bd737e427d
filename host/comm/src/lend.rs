//! The `unsafe` part of CommLib: borrowed memory that the RNIC uses while a collective runs.
//!
//! A driver and its RNIC take memory that is lent for `'static`. An RNIC gets it as a [`castnet_rnic::Lent`], which it can
//! neither clone nor access after it has returned it. A driver takes it back before it forgets a task, and aborts the
//! process if the RNIC does not return it.
#![allow(unsafe_code)]

use castnet_wire::control::Operation;

use crate::buffers::{Buffers, LentBytes};
use crate::element::Element;
use crate::error::CommError;
use crate::group::Group;
use crate::machine::Collective;

/// Aborts the process when it is dropped: memory that is in use would be freed.
struct AbortOnDrop;

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        std::process::abort();
    }
}

/// Calls `with` with memory that seems to be lent without end. If `with` panics, the process aborts.
///
/// # Safety
/// When `with` returns, nothing may have the memory any more.
pub unsafe fn lend<T: Element, R>(buffers: Buffers<'_, T>, with: impl FnOnce(LentBytes) -> R) -> R {
    let guard = AbortOnDrop;
    // SAFETY: the borrow lasts until this function returns, and by the caller's promise nothing uses the memory after that.
    // Unwinding aborts.
    let memory = unsafe {
        match buffers {
            Buffers::InPlace(all) => LentBytes::in_place(extend_mut(all)),
            Buffers::Apart(from, to) => LentBytes::apart(extend(from), extend_mut(to)),
            Buffers::From(from) => LentBytes::apart(extend(from), &mut []),
        }
    };
    let result = with(memory);
    std::mem::forget(guard);
    result
}

/// # Safety
/// The memory must stay borrowed until the result is not used any more.
unsafe fn extend<T: Element>(slice: &[T]) -> &'static [u8] {
    let bytes: &[u8] = bytemuck::cast_slice(slice);
    // SAFETY: pointer and length of a slice that stays borrowed, by the caller's promise.
    unsafe { std::slice::from_raw_parts(bytes.as_ptr(), bytes.len()) }
}

/// # Safety
/// As for [`extend`], and no other reference to the memory may be used meanwhile.
unsafe fn extend_mut<T: Element>(slice: &mut [T]) -> &'static mut [u8] {
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(slice);
    // SAFETY: pointer and length of a slice that stays borrowed exclusively, by the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr(), bytes.len()) }
}

impl Group {
    /// Runs a collective over borrowed memory to its end.
    pub(crate) fn blocking<T: Element>(
        &mut self,
        collective: Collective,
        operation: Operation,
        buffers: Buffers<'_, T>,
    ) -> Result<(), CommError> {
        let run = |memory| {
            let mut running = self.begin_lent(collective, operation, T::DATA_TYPE, memory)?;
            let result = self.run(&mut running).map(drop);
            if self.driver.as_ref().is_some_and(|d| d.has(running.task)) {
                self.abandon(running.task);
            }
            result
        };
        // SAFETY: a task that did not start has dropped the memory. The driver has forgotten any other one, and has taken the
        // memory back from the RNIC: it has returned its result, or the task was abandoned.
        unsafe { lend(buffers, run) }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    const CHILD: &str = "CASTNET_PANICS_WHILE_MEMORY_IS_LENT";

    #[test]
    fn a_panic_while_memory_is_lent_aborts_the_process() {
        if std::env::var_os(CHILD).is_some() {
            // SAFETY: nothing keeps the memory.
            unsafe { lend::<u8, ()>(Buffers::InPlace(&mut [0; 4]), |_| panic!("as a driver could")) };
        }
        let mut child = Command::new(std::env::current_exe().expect("a path"));
        let test = "lend::tests::a_panic_while_memory_is_lent_aborts_the_process";
        let out = child.args(["--exact", test]).env(CHILD, "1").output();
        assert_eq!(out.expect("ended").status.signal(), Some(6), "SIGABRT");
    }
}
