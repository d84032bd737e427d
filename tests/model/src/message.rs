//! Messages of four bits, and what carries them.

use std::fmt;

/// Packets that the source sends.
pub const PACKETS: u8 = 3;

/// What a host, or a switch, says back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Answer {
    /// All up to and with the position is there.
    Ack,
    /// The position is missing.
    Nak,
    /// The position was refused for now.
    Rnr,
    /// The position was refused, and the connection has ended.
    Fatal,
}

const ANSWERS: [Answer; 4] = [Answer::Ack, Answer::Nak, Answer::Rnr, Answer::Fatal];

/// What travels on a link. Positions count from the first packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Message {
    /// The packet at a position.
    Data(u8),
    /// An acknowledge packet and the position that its PSN names.
    Feedback(Answer, u8),
}

impl Message {
    /// How many packets it acknowledges.
    pub fn acknowledges(self) -> u8 {
        match self {
            Self::Data(_) => 0,
            Self::Feedback(Answer::Ack, at) => at + 1,
            Self::Feedback(_, at) => at,
        }
    }

    /// In four bits, none of which is 0.
    fn code(self) -> u64 {
        let (kind, at) = match self {
            Self::Data(at) => (0, at),
            Self::Feedback(answer, at) => (1 + answer as u8, at),
        };
        u64::from(1 + kind * PACKETS + at)
    }

    fn from_code(code: u64) -> Self {
        let code = code as u8 - 1;
        let at = code % PACKETS;
        match code / PACKETS {
            0 => Self::Data(at),
            kind => Self::Feedback(ANSWERS[kind as usize - 1], at),
        }
    }
}

/// The messages on one link in one direction, in order: sixteen at most, the oldest in the lowest four bits.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Queue(u64);

impl Queue {
    /// Whether no message is on the way.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The oldest.
    pub fn head(self) -> Option<Message> {
        (self.0 != 0).then(|| Message::from_code(self.0 & 0xF))
    }

    /// Takes the oldest away.
    pub fn pop(&mut self) {
        self.0 >>= 4;
    }

    /// Sends a message; `false` where the queue is full, which no run may reach.
    #[must_use]
    pub fn push(&mut self, message: Message) -> bool {
        let bits = 64 - self.0.leading_zeros().min(64);
        let shift = bits.div_ceil(4) * 4;
        if shift == 64 {
            return false;
        }
        self.0 |= message.code() << shift;
        true
    }

    /// All of them, the oldest first.
    pub fn messages(mut self) -> impl Iterator<Item = Message> {
        std::iter::from_fn(move || {
            let head = self.head();
            self.pop();
            head
        })
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.messages()).finish()
    }
}

/// A set of messages.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct MessageSet(u16);

impl MessageSet {
    /// Puts one in.
    pub fn insert(&mut self, message: Message) {
        self.0 |= 1 << message.code();
    }

    /// All of them.
    pub fn messages(self) -> impl Iterator<Item = Message> {
        (1..16)
            .filter(move |code| self.0 >> code & 1 != 0)
            .map(Message::from_code)
    }
}

impl fmt::Debug for MessageSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.messages()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> impl Iterator<Item = Message> {
        (1..16).map(Message::from_code)
    }

    #[test]
    fn codes_go_there_and_back() {
        assert!((1..16).all(|code| Message::from_code(code).code() == code));
    }

    #[test]
    fn a_queue_is_a_queue() {
        let mut queue = Queue::default();
        assert!(queue.is_empty() && queue.head().is_none());
        assert!(all().all(|message| queue.push(message)));
        assert!(queue.push(Message::Data(0)) && !queue.push(Message::Data(0)));
        queue.pop();
        assert!(queue.messages().eq(all().skip(1).chain([Message::Data(0)])));
    }

    #[test]
    fn a_set_is_a_set() {
        let mut set = MessageSet::default();
        for message in all().chain(all()) {
            set.insert(message);
        }
        assert!(set.messages().eq(all()));
    }
}
