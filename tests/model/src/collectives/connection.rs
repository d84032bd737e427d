//! One end of an RC connection that behaves like rxe: the requester accepts any ACK and goes back to the oldest packet, the responder
//! sends one NAK per gap.

use castnet_wire::{NakCode, Syndrome};
use std::ops::Range;

/// One end of a connection. Packets are numbered from 0 in each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Connection {
    /// All sent packets below this index are acknowledged.
    pub unacked: u8,
    /// True if it went back and has seen no progress since: further NAKs are ignored.
    retrying: bool,
    /// It has received all packets below this index.
    pub expected: u8,
    /// True if the current gap was reported by a NAK.
    nak_sent: bool,
}

impl Connection {
    /// Receives the packet with an index. Returns the index and the syndrome of its answer.
    pub fn receive(&mut self, at: i32, ask: bool) -> Option<(i32, Syndrome)> {
        let expected = i32::from(self.expected);
        if at < expected {
            Some((expected - 1, Syndrome::Ack))
        } else if at > expected {
            let first = !std::mem::replace(&mut self.nak_sent, true);
            first.then_some((expected, Syndrome::Nak(NakCode::PsnSequenceError)))
        } else {
            self.nak_sent = false;
            self.expected += 1;
            ask.then_some((at, Syndrome::Ack))
        }
    }

    /// Handles feedback for an index, after so many sent packets. Returns the packets that it retransmits.
    pub fn feedback(&mut self, at: i32, syndrome: Syndrome, sent: u8) -> Range<u8> {
        if at < i32::from(self.unacked) {
            return 0..0;
        }
        let at = at as u8;
        if syndrome == Syndrome::Ack {
            self.unacked = at + 1;
            self.retrying = false;
            return 0..0;
        }
        self.unacked = at;
        // It goes back after each RNR NAK.
        let is_rnr = matches!(syndrome, Syndrome::RnrNak(_));
        match !is_rnr && std::mem::replace(&mut self.retrying, true) {
            true => 0..0,
            false => at..sent,
        }
    }

    /// Handles expiry of the retransmission timer. Returns the packets that it retransmits.
    pub fn go_back(&mut self, sent: u8) -> Range<u8> {
        self.retrying = false;
        self.unacked..sent
    }
}
