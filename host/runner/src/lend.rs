//! The `unsafe` part of a runner: memory of other threads that communicators use while a call runs.
//!
//! Communicators take memory that is lent for `'static` ([`LentBytes`]). They keep it in the entry of the call alone, and
//! drop that entry before they return the end of the call. The runner ends the ticket of a call only then, or after it has
//! dropped its communicators. So memory that outlives its ticket is lent for long enough.
#![allow(unsafe_code)]

use std::mem::ManuallyDrop;
use std::sync::Arc;

use castnet_comm::{Buffers, Element, LentBytes, OwnedBuffers};

use crate::ticket::{CallResult, Ticket};

/// Lends borrowed memory to a call, and waits for its end.
pub(crate) fn lend<T: Element>(
    buffers: Buffers<'_, T>,
    submit: impl FnOnce(LentBytes, &Arc<Ticket>),
) -> CallResult {
    let call = |memory| {
        Ticket::with_own(|ticket| {
            submit(memory, ticket);
            ticket.wait()
        })
    };
    // SAFETY: it returns after the end of the ticket.
    unsafe { castnet_comm::lend(buffers, call) }
}

/// A vector whose elements are lent to a call.
#[derive(Debug)]
struct LentVec<T> {
    start: *mut T,
    length: usize,
    capacity: usize,
}

impl<T: Element> LentVec<T> {
    fn new(vec: Vec<T>) -> Self {
        let mut vec = ManuallyDrop::new(vec);
        Self {
            start: vec.as_mut_ptr(),
            length: vec.len(),
            capacity: vec.capacity(),
        }
    }

    /// # Safety
    /// The bytes must not be used after [`LentVec::take`], and there must be no other reference to them.
    unsafe fn bytes_mut(&mut self) -> &'static mut [u8] {
        // SAFETY: the elements of a vector that is not freed before `take`; they are plain data without padding.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast::<u8>(), self.length * size_of::<T>()) }
    }

    /// # Safety
    /// It must be called once, after the last use of the bytes.
    unsafe fn take(&mut self) -> Vec<T> {
        // SAFETY: the parts of a vector that nothing else owns.
        unsafe { Vec::from_raw_parts(self.start, self.length, self.capacity) }
    }
}

/// Vectors that are lent to a call until its ticket has ended.
#[derive(Debug)]
pub(crate) struct LentBuffers<T: Element> {
    ticket: Arc<Ticket>,
    from: Option<LentVec<T>>,
    to: LentVec<T>,
}

// SAFETY: it owns vectors of elements, which can be sent, and gives access to them only by value.
unsafe impl<T: Element> Send for LentBuffers<T> {}
// SAFETY: a shared reference gives access to the ticket only.
unsafe impl<T: Element> Sync for LentBuffers<T> {}

impl<T: Element> LentBuffers<T> {
    pub(crate) fn new(buffers: OwnedBuffers<T>, submit: impl FnOnce(LentBytes, &Arc<Ticket>)) -> Self {
        let (from, to) = match buffers {
            OwnedBuffers::InPlace(all) => (None, all),
            OwnedBuffers::Apart(from, to) => (Some(from), to),
        };
        let mut lent = Self {
            ticket: Arc::default(),
            from: from.map(LentVec::new),
            to: LentVec::new(to),
        };
        // SAFETY: the vectors are taken back in `drop` and `into_output`, after the end of the ticket.
        let memory = unsafe {
            let to = lent.to.bytes_mut();
            match &mut lent.from {
                None => LentBytes::in_place(to),
                Some(from) => LentBytes::apart(from.bytes_mut(), to),
            }
        };
        submit(memory, &lent.ticket);
        lent
    }

    pub(crate) fn ticket(&self) -> &Ticket {
        &self.ticket
    }

    /// The output, or the whole buffer in place. Waits for the end of the call.
    pub(crate) fn into_output(self) -> Vec<T> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `take_back` is called once, because `this` is not dropped.
        let output = unsafe { this.take_back() };
        // SAFETY: `this` is not used any more, and is not dropped.
        drop(unsafe { std::ptr::read(&raw const this.ticket) });
        output
    }

    /// # Safety
    /// It must be called once.
    unsafe fn take_back(&mut self) -> Vec<T> {
        drop(self.ticket.wait_end());
        // SAFETY: the call has ended, so nothing uses the bytes any more.
        unsafe {
            if let Some(from) = &mut self.from {
                drop(from.take());
            }
            self.to.take()
        }
    }
}

impl<T: Element> Drop for LentBuffers<T> {
    /// Waits for the end of the call: its memory is in use until then.
    fn drop(&mut self) {
        // SAFETY: `drop` is called once, and not after `into_output`.
        drop(unsafe { self.take_back() });
    }
}
