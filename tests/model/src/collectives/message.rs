//! Messages. Instead of a payload, a packet carries the set of its contributors.

use castnet_wire::{Control, Psn, Syndrome};

/// Contributors to a payload: two bits for each of four ranks count its contributions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Content(u8);

impl Content {
    /// No contributor.
    pub const NONE: Self = Self(0);

    /// One contribution of `rank`.
    pub fn only(rank: u16) -> Self {
        Self(1 << (2 * (rank & 3)))
    }

    /// Sum of both. Three contributions of one rank stand for any higher number.
    pub fn plus(self, other: Self) -> Self {
        (0..4).fold(Self(0), |sum, rank| {
            let count = |content: Self| content.0 >> (2 * rank) & 3;
            Self(sum.0 | (count(self) + count(other)).min(3) << (2 * rank))
        })
    }
}

/// A frame on a link. PSNs are those of the link: `u` and `d` at hosts, `g` between switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    /// A control message. It always requests an ACK.
    Control {
        /// PSN.
        psn: Psn,
        /// Content.
        control: Control,
    },
    /// A data packet.
    Data {
        /// PSN.
        psn: Psn,
        /// AckReq bit.
        ask: bool,
        /// Contributors.
        content: Content,
    },
    /// An acknowledge packet.
    Feedback {
        /// PSN.
        psn: Psn,
        /// Syndrome.
        syndrome: Syndrome,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_contributions_are_visible() {
        let (a, b) = (Content::only(0), Content::only(3));
        assert_eq!(a.plus(b), b.plus(a));
        assert_ne!(a.plus(a), a);
        assert_ne!(a.plus(a).plus(b), a.plus(b));
        assert_eq!(Content::NONE.plus(b), b);
        assert_eq!(a.plus(a).plus(a).plus(a), a.plus(a).plus(a));
    }
}
