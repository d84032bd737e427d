//! Small go-back-N hosts, by position: as rxe behaves, without bytes and clocks.

use castnet_wire::{NakCode, RnrTimer, Syndrome};
use std::collections::BTreeSet;

/// A requester with `total` packets to send.
#[derive(Clone, Debug)]
pub struct Source {
    pub total: i64,
    /// The oldest packet not acknowledged.
    pub unacked: i64,
    next: i64,
    /// One past the furthest packet ever sent.
    pub sent: i64,
    /// A NAK was followed and no ACK has come since: rxe ignores further ones.
    retrying: bool,
    /// Packets sent, repeated ones included.
    pub sends: usize,
    /// A sequence NAK makes it repeat one packet, as the software RNIC does in groups with repair.
    pub selective: bool,
    repeat: Option<i64>,
    repeated: Option<i64>,
}

impl Source {
    pub const WINDOW: i64 = 128;

    pub fn new(total: i64) -> Self {
        Self {
            total,
            unacked: 0,
            next: 0,
            sent: 0,
            retrying: false,
            sends: 0,
            selective: false,
            repeat: None,
            repeated: None,
        }
    }

    /// The next packet, if the window allows.
    pub fn send(&mut self) -> Option<i64> {
        if let Some(at) = self.repeat.take().filter(|at| *at >= self.unacked) {
            self.sends += 1;
            self.repeated = Some(at);
            return Some(at);
        }
        if self.next >= self.total || self.next >= self.unacked + Self::WINDOW {
            return None;
        }
        self.next += 1;
        self.sends += 1;
        self.sent = self.sent.max(self.next);
        Some(self.next - 1)
    }

    pub fn time_out(&mut self) {
        self.next = self.unacked;
        (self.repeat, self.repeated) = (None, None);
        self.retrying = false;
    }

    pub fn feedback(&mut self, at: i64, syndrome: Syndrome) {
        match syndrome {
            Syndrome::Ack if at >= self.unacked => {
                self.unacked = at + 1;
                self.next = self.next.max(at + 1);
                self.retrying = false;
            }
            Syndrome::Nak(NakCode::PsnSequenceError)
                if self.selective
                    && at >= self.unacked
                    && at < self.next
                    && self.repeated != Some(at - 1) =>
            {
                self.unacked = at;
                self.repeat = Some(at);
            }
            Syndrome::Nak(NakCode::PsnSequenceError) if !self.retrying && at >= self.unacked => {
                self.unacked = at;
                self.next = at;
                self.retrying = true;
            }
            Syndrome::RnrNak(_) if at >= self.unacked => {
                self.unacked = at;
                self.next = at;
            }
            _ => {}
        }
    }
}

/// A responder that takes packets in order.
#[derive(Clone, Debug, Default)]
pub struct Receiver {
    /// It has all packets below.
    pub expected: i64,
    nak_sent: bool,
    /// Packets for which no receive will be posted when they first come.
    pub not_ready: BTreeSet<i64>,
    /// It ends its connection with a NAK of this packet.
    pub breaks_at: Option<i64>,
    /// It has, and is silent.
    pub broken: bool,
}

impl Receiver {
    /// A QP that is connected again has sent no NAK.
    pub fn reset(&mut self) {
        self.nak_sent = false;
    }

    pub fn data(&mut self, at: i64, ack_request: bool) -> Option<(i64, Syndrome)> {
        if self.broken {
            return None;
        }
        if at < self.expected {
            return Some((self.expected - 1, Syndrome::Ack));
        }
        if self.breaks_at == Some(at) && at == self.expected {
            self.broken = true;
            return Some((at, Syndrome::Nak(NakCode::RemoteAccessError)));
        }
        if at > self.expected {
            let first = !core::mem::replace(&mut self.nak_sent, true);
            return first.then_some((self.expected, Syndrome::Nak(NakCode::PsnSequenceError)));
        }
        self.nak_sent = false;
        if self.not_ready.remove(&at) {
            return Some((at, Syndrome::RnrNak(RnrTimer::new(at as u8))));
        }
        self.expected += 1;
        ack_request.then_some((at, Syndrome::Ack))
    }
}
