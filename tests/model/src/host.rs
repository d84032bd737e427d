//! Hosts as Linux rxe behaves, by position instead of PSN, without bytes and clocks.
//!
//! Both are as small as they can be, so that states stay few: the requester sends all that it may at once (a network that
//! delays at will makes up for a slower one), and its timers are actions of the model.

use crate::message::{Answer, Message, PACKETS};
use std::ops::Range;

/// The requester of the source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Requester {
    /// The oldest packet that is not acknowledged.
    pub unacked: u8,
    /// A NAK was followed and no ACK has come since: rxe ignores further NAKs.
    retrying: bool,
    /// It waits for the time of an RNR NAK.
    pub waiting: bool,
    /// A NAK has ended its connection.
    pub failed: bool,
}

impl Requester {
    /// Whether all is acknowledged.
    pub fn is_done(&self) -> bool {
        self.unacked == PACKETS
    }

    /// Whether its retransmission timer runs.
    pub fn may_time_out(&self) -> bool {
        !self.is_done() && !self.waiting && !self.failed
    }

    /// The retransmission timer, or that of the RNR NAK, has run out: what it sends again.
    pub fn go_back(&mut self) -> Range<u8> {
        self.retrying = false;
        self.waiting = false;
        self.unacked..PACKETS
    }

    /// Takes feedback; what it sends again.
    pub fn answer(&mut self, answer: Answer, at: u8) -> Range<u8> {
        // What is acknowledged already is ignored, but any other ACK is believed, whether the packet was sent or not.
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
                    return at..PACKETS;
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
        0..0
    }
}

/// The responder of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Responder {
    /// It has all packets below.
    pub expected: u8,
    /// One NAK per gap.
    nak_sent: bool,
    /// The packet that finds no receive posted when it first comes.
    not_ready: Option<u8>,
    /// The packet that ends the connection.
    refuses: Option<u8>,
    failed: bool,
}

impl Responder {
    /// A responder that has nothing yet.
    pub fn new(not_ready: Option<u8>, refuses: Option<u8>) -> Self {
        Self {
            expected: 0,
            nak_sent: false,
            not_ready,
            refuses,
            failed: false,
        }
    }

    /// Whether a packet would change nothing.
    pub fn ignores(&self, at: u8) -> bool {
        self.failed || at > self.expected && self.nak_sent
    }

    /// Takes a packet; what it says.
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
