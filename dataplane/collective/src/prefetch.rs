//! Asking for memory before it is needed.

/// Asks the processor for memory, and does not wait. Safe code does not have this instruction, so the caller of a machine passes it
/// in.
pub trait Prefetch {
    /// Asks for all cache lines of `value`.
    fn prefetch<T: ?Sized>(&self, value: &T);
}
