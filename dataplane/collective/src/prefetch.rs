//! Prefetching of memory.

/// Prefetches memory. The instruction is not available in safe code, so the caller of a machine passes an implementation.
pub trait Prefetch {
    /// Prefetches all cache lines of `value`.
    fn prefetch<T: ?Sized>(&self, value: &T);
}
