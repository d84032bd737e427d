//! Messages. Instead of a payload, a packet carries the set of its contributions.

use castnet_wire::{Control, Psn, Syndrome};

/// Contributions to a payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Content {
    /// Two bits for each of four ranks count its contributions.
    ranks: u8,
    /// Bit set of the packets that they belong to.
    packets: u8,
}

impl Content {
    /// No contribution.
    pub const NONE: Self = Self { ranks: 0, packets: 0 };

    /// One contribution of `rank` to the packet with this index.
    pub fn only(rank: u16, packet: u8) -> Self {
        Self {
            ranks: 1 << (2 * (rank & 3)),
            packets: 1 << packet,
        }
    }

    /// The same contributors to another packet.
    pub fn to_packet(self, packet: u8) -> Self {
        Self {
            packets: 1 << packet,
            ..self
        }
    }

    /// Sum of both. Three contributions of one rank stand for any higher number.
    pub fn plus(self, other: Self) -> Self {
        let ranks = (0..4).fold(0, |sum, rank| {
            let count = |content: Self| content.ranks >> (2 * rank) & 3;
            sum | (count(self) + count(other)).min(3) << (2 * rank)
        });
        Self {
            ranks,
            packets: self.packets | other.packets,
        }
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
        /// Contributions.
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

impl Message {
    /// Returns true if it is a NAK.
    pub fn is_nak(&self) -> bool {
        matches!(self, Self::Feedback { syndrome, .. } if *syndrome != Syndrome::Ack)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_contributions_are_visible() {
        let (a, b) = (Content::only(0, 1), Content::only(3, 1));
        assert_eq!(a.plus(b), b.plus(a));
        assert_ne!(a.plus(a), a);
        assert_ne!(a.plus(a).plus(b), a.plus(b));
        assert_ne!(a.plus(b), Content::only(0, 2).plus(b));
        assert_eq!(Content::NONE.plus(b), b);
        assert_eq!(a.plus(a).plus(a).plus(a), a.plus(a).plus(a));
    }
}
