//! Messages of four bits, and their containers.

use std::fmt;

/// Number of packets that the source sends.
pub const PACKETS: u8 = 3;

/// Feedback of a host or a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Answer {
    /// Everything up to and including the position has arrived.
    Ack,
    /// The position is missing.
    Nak,
    /// The position was refused temporarily.
    Rnr,
    /// The position was refused and the connection has ended.
    Fatal,
}

const ANSWERS: [Answer; 4] = [Answer::Ack, Answer::Nak, Answer::Rnr, Answer::Fatal];

/// A message on a link. Positions count from the first packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Message {
    /// The packet at a position.
    Data(u8),
    /// An acknowledge packet and the position of its PSN.
    Feedback(Answer, u8),
}

impl Message {
    /// Number of packets that it acknowledges.
    pub fn acknowledges(self) -> u8 {
        match self {
            Self::Data(_) => 0,
            Self::Feedback(Answer::Ack, at) => at + 1,
            Self::Feedback(_, at) => at,
        }
    }

    /// A code of four bits that is not 0.
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

/// The messages on one link, in order: at most sixteen, the oldest in the lowest four bits.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Queue(u64);

impl Queue {
    /// Returns true if the link has no message.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The oldest message.
    pub fn head(self) -> Option<Message> {
        (self.0 != 0).then(|| Message::from_code(self.0 & 0xF))
    }

    /// Removes the oldest message.
    pub fn pop(&mut self) {
        self.0 >>= 4;
    }

    /// Adds a message. Returns false if the queue is full, which no run may reach.
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

    /// All messages, oldest first.
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
    /// Adds a message.
    pub fn insert(&mut self, message: Message) {
        self.0 |= 1 << message.code();
    }

    /// All messages of the set.
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
    fn codes_are_decoded_as_encoded() {
        assert!((1..16).all(|code| Message::from_code(code).code() == code));
    }

    #[test]
    fn a_queue_keeps_messages_in_order() {
        let mut queue = Queue::default();
        assert!(queue.is_empty() && queue.head().is_none());
        assert!(all().all(|message| queue.push(message)));
        assert!(queue.push(Message::Data(0)) && !queue.push(Message::Data(0)));
        queue.pop();
        assert!(queue.messages().eq(all().skip(1).chain([Message::Data(0)])));
    }

    #[test]
    fn a_set_keeps_each_message_once() {
        let mut set = MessageSet::default();
        for message in all().chain(all()) {
            set.insert(message);
        }
        assert!(set.messages().eq(all()));
    }
}
