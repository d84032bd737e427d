//! Asking for memory before it is needed.

/// Asks the processor for memory, and does not wait: an instruction that safe code does not have, so whoever runs a machine brings
/// it along.
pub trait Prefetch {
    /// Asks for all cache lines of `value`.
    fn prefetch<T: ?Sized>(&self, value: &T);
}
