//! An rxe-like rank: a requester that believes any ACK and goes back to the oldest packet, a responder that says NAK once
//! per gap. All that it sends in a collective fits its window.

use super::message::{Content, Message};
use castnet_wire::{Control, NakCode, Psn, Syndrome, Verdict};
use std::ops::Range;

/// What a rank does in the collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Which rank it is.
    pub rank: u16,
    /// Data packets that it sends, after its control message.
    pub sends: u8,
    /// Data packets that it receives, after the control message of all.
    pub receives: u8,
    /// The contributors to what it receives.
    pub content: Content,
    /// The PSN of the first packet that it sends.
    pub sq_psn: Psn,
    /// The PSN of the first packet that it expects.
    pub rq_psn: Psn,
}

impl Part {
    /// Packets that it sends.
    pub fn packets_out(&self) -> u8 {
        1 + self.sends
    }

    /// Packets that it receives.
    pub fn packets_in(&self) -> u8 {
        1 + self.receives
    }
}

/// A rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Host {
    /// Whether it has begun.
    pub started: bool,
    /// All packets below are acknowledged to it.
    pub unacked: u8,
    /// It has gone back, and has seen no progress since: a second NAK is not heard.
    retrying: bool,
    /// It has all packets below.
    pub expected: u8,
    /// One NAK per gap.
    nak_sent: bool,
    /// The control message of all said that ranks disagree: nothing follows it.
    pub conflict: bool,
}

/// What a message did to a rank.
pub struct Reaction {
    /// What it says.
    pub answer: Option<Message>,
    /// What it sends again.
    pub again: Range<u8>,
    /// Whether what it heard cannot be.
    pub nonsense: bool,
    /// Whether the bytes it took are not what they should be (C1).
    pub wrong: bool,
}

impl Reaction {
    const NOTHING: Self = Self {
        answer: None,
        again: 0..0,
        nonsense: false,
        wrong: false,
    };
}

impl Host {
    /// Whether it has all and knows that all others have what it sent.
    pub fn is_done(&self, part: &Part) -> bool {
        let received = if self.conflict { 1 } else { part.packets_in() };
        // Whether the ACK comes too is of no matter then: the QP is given up.
        let acknowledged = if self.conflict { 0 } else { part.packets_out() };
        self.expected >= received && self.unacked >= acknowledged
    }

    /// Whether its retransmission timer runs. After a conflict its QP is given up.
    pub fn may_time_out(&self, part: &Part) -> bool {
        self.started && !self.conflict && self.unacked < part.packets_out()
    }

    /// The retransmission timer has run out: what it sends again.
    pub fn go_back(&mut self, part: &Part) -> Range<u8> {
        self.retrying = false;
        self.unacked..part.packets_out()
    }

    /// Takes a message.
    pub fn take(&mut self, part: &Part, message: &Message) -> Reaction {
        match *message {
            Message::Feedback { psn, syndrome } => self.feedback(part, psn, syndrome),
            Message::Control { psn, control } => {
                let at = psn.diff(part.rq_psn);
                let mut reaction = self.packet(part, at, true);
                if self.expected == 1 && at == 0 {
                    self.conflict = control.verdict != Verdict::Agreed;
                }
                reaction.nonsense |= at != 0;
                reaction
            }
            Message::Data { psn, ask, content } => {
                let at = psn.diff(part.rq_psn);
                let is_next = at == i32::from(self.expected);
                let mut reaction = self.packet(part, at, ask);
                reaction.nonsense |= at == 0 || self.conflict;
                reaction.wrong = is_next && content != part.content;
                reaction
            }
        }
    }

    fn packet(&mut self, part: &Part, at: i32, ask: bool) -> Reaction {
        let mut reaction = Reaction::NOTHING;
        let expected = i32::from(self.expected);
        reaction.nonsense = at < 0 || at >= i32::from(part.packets_in());
        let say = |at: i32, syndrome| Message::Feedback {
            psn: part.rq_psn.add(at.max(0)),
            syndrome,
        };
        reaction.answer = if at < expected {
            Some(say(expected - 1, Syndrome::Ack))
        } else if at > expected {
            let first = !std::mem::replace(&mut self.nak_sent, true);
            first.then(|| say(expected, Syndrome::Nak(NakCode::PsnSequenceError)))
        } else {
            self.nak_sent = false;
            self.expected += 1;
            ask.then(|| say(at, Syndrome::Ack))
        };
        reaction
    }

    fn feedback(&mut self, part: &Part, psn: Psn, syndrome: Syndrome) -> Reaction {
        let mut reaction = Reaction::NOTHING;
        let at = psn.diff(part.sq_psn);
        if at < i32::from(self.unacked) {
            return reaction;
        }
        reaction.nonsense = at >= i32::from(part.packets_out());
        let at = at as u8;
        if syndrome == Syndrome::Ack {
            self.unacked = at + 1;
            self.retrying = false;
        } else {
            self.unacked = at;
            if !self.retrying {
                self.retrying = true;
                reaction.again = at..part.packets_out();
            }
        }
        reaction
    }

    /// The packet of an index, as it goes out.
    pub fn outgoing(part: &Part, index: u8, control: Control) -> Message {
        let psn = part.sq_psn.add(i32::from(index));
        match index {
            0 => Message::Control { psn, control },
            _ => Message::Data {
                psn,
                ask: index + 1 == part.packets_out(),
                content: Content::only(part.rank),
            },
        }
    }
}
