//! [`Lent`]: memory of another owner.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

/// Bytes that their owner has lent for local sends and receives. It cannot be cloned, and its bytes can be reached
/// only through it. So code that has given it back cannot use the bytes any more.
pub struct Lent(Slice);

enum Slice {
    Shared(&'static [u8]),
    Counted(Arc<[u8]>),
    Exclusive(&'static mut [u8]),
    Owned(Vec<u8>),
}

impl Lent {
    /// For sends.
    pub const fn shared(bytes: &'static [u8]) -> Self {
        Self(Slice::Shared(bytes))
    }

    /// For sends, of memory that is freed with its last owner.
    pub fn counted(bytes: Arc<[u8]>) -> Self {
        Self(Slice::Counted(bytes))
    }

    /// For sends and receives, of memory that is freed with this value.
    pub fn owned(bytes: Vec<u8>) -> Self {
        Self(Slice::Owned(bytes))
    }

    /// For sends and receives.
    pub const fn exclusive(bytes: &'static mut [u8]) -> Self {
        Self(Slice::Exclusive(bytes))
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        match &self.0 {
            Slice::Shared(bytes) => bytes,
            Slice::Counted(bytes) => bytes,
            Slice::Exclusive(bytes) => bytes,
            Slice::Owned(bytes) => bytes,
        }
    }

    /// The bytes; `None` if they are for sends only.
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        match &mut self.0 {
            Slice::Shared(_) | Slice::Counted(_) => None,
            Slice::Exclusive(bytes) => Some(bytes),
            Slice::Owned(bytes) => Some(bytes),
        }
    }

    /// True if receives may write to the bytes.
    pub const fn is_exclusive(&self) -> bool {
        matches!(self.0, Slice::Exclusive(_) | Slice::Owned(_))
    }
}

impl Default for Lent {
    /// No bytes.
    fn default() -> Self {
        Self::exclusive(&mut [])
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_exclusive() {
            "exclusive"
        } else {
            "shared"
        };
        write!(f, "Lent({} bytes, {kind})", self.bytes().len())
    }
}
