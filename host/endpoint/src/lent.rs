//! [`Lent`]: memory of another owner.

use core::fmt;

/// Bytes that their owner has lent for local sends and receives. It cannot be cloned, and its bytes can be reached
/// only through it. So code that has given it back cannot use the bytes any more.
pub struct Lent(Slice);

enum Slice {
    Shared(&'static [u8]),
    Exclusive(&'static mut [u8]),
}

impl Lent {
    /// For sends.
    pub const fn shared(bytes: &'static [u8]) -> Self {
        Self(Slice::Shared(bytes))
    }

    /// For sends and receives.
    pub const fn exclusive(bytes: &'static mut [u8]) -> Self {
        Self(Slice::Exclusive(bytes))
    }

    /// The bytes.
    pub const fn bytes(&self) -> &[u8] {
        match &self.0 {
            Slice::Shared(bytes) => bytes,
            Slice::Exclusive(bytes) => bytes,
        }
    }

    /// The bytes; `None` if they are for sends only.
    pub const fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        match &mut self.0 {
            Slice::Shared(_) => None,
            Slice::Exclusive(bytes) => Some(bytes),
        }
    }

    /// True if receives may write to the bytes.
    pub const fn is_exclusive(&self) -> bool {
        matches!(self.0, Slice::Exclusive(_))
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
