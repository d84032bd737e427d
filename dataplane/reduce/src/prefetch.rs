//! Prefetching of memory: the unsafe call of one instruction, which has no effect that the program can observe.
#![allow(unsafe_code)]

const LINE: usize = 64;

/// Prefetches all cache lines of `value`, without waiting for them.
#[inline(always)]
pub fn prefetch<T: ?Sized>(value: &T) {
    let bytes = size_of_val(value);
    let start = core::ptr::from_ref(value).cast::<u8>();
    let ahead = start.addr() % LINE;
    for at in (0..ahead + bytes).step_by(LINE) {
        let line = start.wrapping_add(at);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch never faults, for any address, and every x86-64 processor has the instruction.
        unsafe {
            use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(line.cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = line;
    }
}
