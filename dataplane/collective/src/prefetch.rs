/// Prefetches memory. Safe code has no such instruction, so the caller of a machine passes an implementation.
pub trait Prefetch {
    /// Prefetches all cache lines of `value`.
    fn prefetch<T: ?Sized>(&self, value: &T);
}
