//! What travels: packets with the set of those who contributed in the place of their payload.

use castnet_wire::{Control, Psn, Syndrome};

/// Who is in a payload, and how often: two bits for each of four ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Content(u8);

impl Content {
    /// Nobody.
    pub const NOBODY: Self = Self(0);

    /// One contribution of `rank`.
    pub fn only(rank: u16) -> Self {
        Self(1 << (2 * (rank & 3)))
    }

    /// Both together; three of one rank stand for any more.
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
    /// A control message; it always asks for an ACK.
    Control {
        /// Its PSN.
        psn: Psn,
        /// What it says.
        control: Control,
    },
    /// A data packet.
    Data {
        /// Its PSN.
        psn: Psn,
        /// Its AckReq bit.
        ask: bool,
        /// Who is in it.
        content: Content,
    },
    /// An acknowledge packet.
    Feedback {
        /// Its PSN.
        psn: Psn,
        /// What it says.
        syndrome: Syndrome,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_is_in_twice_is_seen() {
        let (a, b) = (Content::only(0), Content::only(3));
        assert_eq!(a.plus(b), b.plus(a));
        assert_ne!(a.plus(a), a);
        assert_ne!(a.plus(a).plus(b), a.plus(b));
        assert_eq!(Content::NOBODY.plus(b), b);
        assert_eq!(a.plus(a).plus(a).plus(a), a.plus(a).plus(a));
    }
}
