//! Hosts that behave like Linux rxe. They use positions instead of PSNs, and have no bytes and clocks.
//!
//! Both are as small as possible to limit the number of states. The requester sends everything it may at once: a
//! slower one is equal to a delay in the network. Its timers are actions of the model.

use crate::message::{Answer, Message};
use std::ops::Range;

/// The requester of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Requester {
    /// Number of packets that it sends in all.
    total: u8,
    /// Most packets that are not acknowledged.
    window: u8,
    /// Position of the next packet to send.
    next: u8,
    /// Position of the oldest packet that is not acknowledged.
    pub unacked: u8,
    /// True if a NAK was handled and no ACK has arrived since: rxe ignores further NAKs.
    retrying: bool,
    /// True while it waits for the time of an RNR NAK.
    pub waiting: bool,
    /// True if a NAK has ended its connection.
    pub failed: bool,
}

impl Requester {
    /// A requester that has sent nothing.
    pub fn new(total: u8, window: u8) -> Self {
        Self {
            total,
            window,
            next: 0,
            unacked: 0,
            retrying: false,
            waiting: false,
            failed: false,
        }
    }

    /// Returns true if it has sent something.
    pub fn has_sent(&self) -> bool {
        self.next > 0
    }

    /// Returns true if everything is acknowledged.
    pub fn is_done(&self) -> bool {
        self.unacked == self.total
    }

    /// Returns true if its retransmission timer runs.
    pub fn may_time_out(&self) -> bool {
        !self.is_done() && !self.waiting && !self.failed
    }

    /// Handles expiry of the retransmission timer or the RNR timer. Returns the packets that it retransmits.
    pub fn go_back(&mut self) -> Range<u8> {
        self.retrying = false;
        self.waiting = false;
        self.next = self.unacked;
        self.send()
    }

    /// Returns the packets that it may send now.
    pub fn send(&mut self) -> Range<u8> {
        let first = self.next.max(self.unacked);
        if !self.waiting && !self.failed {
            self.next = first.max(self.total.min(self.unacked + self.window));
        }
        first..self.next.max(first)
    }

    /// Handles feedback. Returns the packets that it sends.
    pub fn answer(&mut self, answer: Answer, at: u8) -> Range<u8> {
        // An ACK of acknowledged packets is ignored. Any other ACK is accepted, even for packets that were not sent.
        if self.failed || at < self.unacked {
            return 0..0;
        }
        match answer {
            Answer::Ack => {
                self.unacked = at + 1;
                self.retrying = false;
                self.waiting &= !self.is_done();
            }
            Answer::Nak => {
                self.unacked = at;
                if !self.retrying && !self.waiting {
                    self.retrying = true;
                    self.next = at;
                }
            }
            Answer::Rnr => {
                self.unacked = at;
                self.waiting = true;
            }
            Answer::Fatal => {
                self.unacked = at;
                self.failed = true;
                self.waiting = false;
            }
        }
        self.send()
    }
}

/// The responder of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Responder {
    /// It has all packets below this position.
    pub expected: u8,
    /// True if the current gap was reported by a NAK.
    nak_sent: bool,
    /// The packet that finds no posted receive when it first arrives.
    not_ready: Option<u8>,
    /// The packet that ends the connection.
    refuses: Option<u8>,
    failed: bool,
}

impl Responder {
    /// A responder that has received nothing.
    pub fn new(not_ready: Option<u8>, refuses: Option<u8>) -> Self {
        Self {
            expected: 0,
            nak_sent: false,
            not_ready,
            refuses,
            failed: false,
        }
    }

    /// Returns true if the packet would change nothing.
    pub fn ignores(&self, at: u8) -> bool {
        self.failed || at > self.expected && self.nak_sent
    }

    /// Handles a packet. Returns the feedback.
    pub fn data(&mut self, at: u8, ack_request: bool) -> Option<Message> {
        if self.failed {
            return None;
        }
        if at < self.expected {
            return Some(Message::Feedback(Answer::Ack, self.expected - 1));
        }
        if at > self.expected {
            let first = !std::mem::replace(&mut self.nak_sent, true);
            return first.then_some(Message::Feedback(Answer::Nak, self.expected));
        }
        self.nak_sent = false;
        if self.refuses == Some(at) {
            self.failed = true;
            return Some(Message::Feedback(Answer::Fatal, at));
        }
        if self.not_ready == Some(at) {
            self.not_ready = None;
            return Some(Message::Feedback(Answer::Rnr, at));
        }
        self.expected += 1;
        ack_request.then_some(Message::Feedback(Answer::Ack, at))
    }
}
