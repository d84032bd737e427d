//! A rank. Everything that it sends in a collective fits its window.

use super::connection::Connection;
use super::message::{Content, Message};
use castnet_wire::{Control, Psn, Syndrome, Verdict};
use std::ops::Range;

/// The role of a rank in the collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Number of the rank.
    pub rank: u16,
    /// Data packets that it sends, after its control message.
    pub sends: u8,
    /// Data packets that it receives, after the control result.
    pub receives: u8,
    /// Contributions to a packet of the data that it receives.
    pub content: Content,
    /// PSN of the first packet that it sends.
    pub sq_psn: Psn,
    /// PSN of the first packet that it expects.
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
    /// True if it has started.
    pub started: bool,
    /// Its connection.
    pub connection: Connection,
    /// True if the control result reported a conflict. Nothing follows it.
    pub conflict: bool,
}

/// Effect of a message on a rank.
pub struct Reaction {
    /// Feedback of the rank.
    pub answer: Option<Message>,
    /// Packets that it retransmits.
    pub retransmits: Range<u8>,
    /// True if the message is invalid.
    pub invalid: bool,
    /// True if the received bytes are wrong (C1).
    pub wrong: bool,
}

impl Reaction {
    const NOTHING: Self = Self {
        answer: None,
        retransmits: 0..0,
        invalid: false,
        wrong: false,
    };
}

impl Host {
    /// Returns true if it has received everything, and knows that its own packets have arrived.
    pub fn is_done(&self, part: &Part) -> bool {
        let received = if self.conflict { 1 } else { part.packets_in() };
        // After a conflict the ACK does not matter: the QP is given up.
        let acknowledged = if self.conflict { 0 } else { part.packets_out() };
        self.connection.expected >= received && self.connection.unacked >= acknowledged
    }

    /// Returns true if its retransmission timer runs. After a conflict its QP is given up.
    pub fn may_time_out(&self, part: &Part) -> bool {
        self.started && !self.conflict && self.connection.unacked < part.packets_out()
    }

    /// Handles expiry of the retransmission timer. Returns the packets that it retransmits.
    pub fn go_back(&mut self, part: &Part) -> Range<u8> {
        self.connection.go_back(part.packets_out())
    }

    /// Handles a message.
    pub fn take(&mut self, part: &Part, message: &Message) -> Reaction {
        match *message {
            Message::Feedback { psn, syndrome } => self.feedback(part, psn, syndrome),
            Message::Control { psn, control } => {
                let at = psn.diff(part.rq_psn);
                let mut reaction = self.packet(part, at, true);
                if self.connection.expected == 1 && at == 0 {
                    self.conflict = control.verdict != Verdict::Agreed;
                }
                reaction.invalid |= at != 0;
                reaction
            }
            Message::Data { psn, ask, content } => {
                let at = psn.diff(part.rq_psn);
                let is_next = at == i32::from(self.connection.expected);
                let mut reaction = self.packet(part, at, ask);
                reaction.invalid |= at == 0 || self.conflict;
                reaction.wrong = is_next && content != part.content.to_packet(at as u8);
                reaction
            }
        }
    }

    fn packet(&mut self, part: &Part, at: i32, ask: bool) -> Reaction {
        let answer = self.connection.receive(at, ask);
        Reaction {
            answer: answer.map(|(at, syndrome)| Message::Feedback {
                psn: part.rq_psn.add(at.max(0)),
                syndrome,
            }),
            invalid: at < 0 || at >= i32::from(part.packets_in()),
            ..Reaction::NOTHING
        }
    }

    fn feedback(&mut self, part: &Part, psn: Psn, syndrome: Syndrome) -> Reaction {
        // It was asked before it has called: an RNIC ignores answers to what it never sent.
        if !self.started {
            return Reaction::NOTHING;
        }
        let at = psn.diff(part.sq_psn);
        Reaction {
            retransmits: self.connection.feedback(at, syndrome, part.packets_out()),
            invalid: at >= i32::from(part.packets_out()),
            ..Reaction::NOTHING
        }
    }

    /// The packet with an index, as it is sent.
    pub fn outgoing(part: &Part, index: u8, control: Control) -> Message {
        let psn = part.sq_psn.add(i32::from(index));
        match index {
            0 => Message::Control { psn, control },
            _ => Message::Data {
                psn,
                ask: index + 1 == part.packets_out(),
                content: Content::only(part.rank, index),
            },
        }
    }
}
