//! Messages of one byte, and their containers.

use std::fmt;

/// Number of packets that the source sends, unless a run says otherwise.
pub const PACKETS: u8 = 3;
/// Most packets of a run.
pub const PACKETS_MAX: u8 = 4;

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
    /// The packet at a position, and whether it requests an ACK.
    Data(u8, bool),
    /// An acknowledge packet and the position of its PSN.
    Feedback(Answer, u8),
    /// A switch lacks the packet at a position.
    Resend(u8),
    /// A congestion notification.
    Cnp,
    /// A packet on the link towards a host that may send, too: its position there and in the group, and whether it
    /// requests an ACK.
    Bridged(u8, u8, bool),
    /// A request to send or a grant (true), the position of the next packet, and the epoch.
    Source(bool, u8, u8),
}

/// The codes of feedback start at 1. Those of requests and data follow.
const RESEND: u8 = 1 + 4 * PACKETS_MAX;
const DATA: u8 = RESEND + PACKETS_MAX;
const CNP: u8 = DATA + 2 * PACKETS_MAX;
const BRIDGED: u8 = CNP + 1;
const SOURCE: u8 = BRIDGED + 2 * PACKETS_MAX * PACKETS_MAX;
#[cfg(test)]
const CODES: u8 = SOURCE + 2 * (PACKETS_MAX + 1) * Message::EPOCHS;

impl Message {
    /// Epochs of grants; no run may reach this number.
    pub const EPOCHS: u8 = 8;

    /// Number of packets that it acknowledges.
    pub fn acknowledges(self) -> u8 {
        match self {
            Self::Data(..) | Self::Resend(_) | Self::Cnp | Self::Bridged(..) | Self::Source(..) => 0,
            Self::Feedback(Answer::Ack, at) => at + 1,
            Self::Feedback(_, at) => at,
        }
    }

    /// A code that is not 0.
    pub fn code(self) -> u8 {
        match self {
            Self::Feedback(answer, at) => 1 + answer as u8 * PACKETS_MAX + at,
            Self::Resend(at) => RESEND + at,
            Self::Data(at, asks) => DATA + 2 * at + u8::from(asks),
            Self::Cnp => CNP,
            Self::Bridged(at, of_group, asks) => BRIDGED + 2 * (at * PACKETS_MAX + of_group) + u8::from(asks),
            Self::Source(grant, next, epoch) => SOURCE + 2 * (next * Self::EPOCHS + epoch) + u8::from(grant),
        }
    }

    /// The message of a code.
    pub fn from_code(code: u8) -> Self {
        match code {
            SOURCE.. => {
                let (rest, grant) = ((code - SOURCE) / 2, (code - SOURCE) % 2);
                Self::Source(grant == 1, rest / Self::EPOCHS, rest % Self::EPOCHS)
            }
            BRIDGED.. => {
                let (rest, asks) = ((code - BRIDGED) / 2, (code - BRIDGED) % 2);
                Self::Bridged(rest / PACKETS_MAX, rest % PACKETS_MAX, asks == 1)
            }
            CNP.. => Self::Cnp,
            DATA.. => Self::Data((code - DATA) / 2, !(code - DATA).is_multiple_of(2)),
            RESEND.. => Self::Resend(code - RESEND),
            _ => Self::Feedback(
                ANSWERS[usize::from((code - 1) / PACKETS_MAX)],
                (code - 1) % PACKETS_MAX,
            ),
        }
    }
}

/// The messages on one link, in order: at most sixteen, the oldest in the lowest byte.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Queue(u128);

impl Queue {
    /// Returns true if the link has no message.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The oldest message.
    pub fn head(self) -> Option<Message> {
        (self.0 != 0).then(|| Message::from_code(self.0 as u8))
    }

    /// Removes the oldest message.
    pub fn pop(&mut self) {
        self.0 >>= 8;
    }

    /// Adds a message. Returns false if the queue is full, which no run may reach.
    #[must_use]
    pub fn push(&mut self, message: Message) -> bool {
        let shift = (u128::BITS - self.0.leading_zeros()).next_multiple_of(8);
        if shift == u128::BITS {
            return false;
        }
        self.0 |= u128::from(message.code()) << shift;
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

/// A set of feedback and requests for packets.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct MessageSet(u32);

impl MessageSet {
    /// Adds a message.
    pub fn insert(&mut self, message: Message) {
        self.0 |= 1 << message.code();
    }

    /// All messages of the set.
    pub fn messages(self) -> impl Iterator<Item = Message> {
        // Feedback and requests.
        (1..DATA)
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
        (1..CODES).map(Message::from_code)
    }

    #[test]
    fn codes_are_decoded_as_encoded() {
        assert!((1..CODES).all(|code| Message::from_code(code).code() == code));
    }

    #[test]
    fn a_queue_keeps_messages_in_order() {
        let mut queue = Queue::default();
        assert!(queue.is_empty() && queue.head().is_none());
        assert!(all().take(16).all(|message| queue.push(message)));
        assert!(!queue.push(Message::Resend(0)));
        queue.pop();
        assert!(queue.push(Message::Data(0, true)));
        let pushed = all().take(16).skip(1);
        assert!(queue.messages().eq(pushed.chain([Message::Data(0, true)])));
    }

    #[test]
    fn a_set_keeps_each_message_once() {
        let mut set = MessageSet::default();
        let kept = || (1..DATA).map(Message::from_code);
        for message in kept().chain(kept()) {
            set.insert(message);
        }
        assert!(set.messages().eq(kept()));
    }
}
