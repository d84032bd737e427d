//! The course of a transfer between a group and its hosts, as the source decides it. Pure: no I/O, time is an argument.
//!
//! Each step is an [`Order`], which all hosts have before it is carried out. After each time in the group, the source does not know what each
//! receiver has: all report their positions, and the stream goes on from the lowest. [`fresh`] is what a receiver takes of a chunk. So no
//! byte is lost, and none is delivered twice.

use std::time::Duration;

/// Longest time from host to host before the group is tried again.
const WAIT_MAX: Duration = Duration::from_secs(600);
/// Longest time between two reports of the receivers: that they cannot write, too. Also while the bytes of the source are late: all wait for
/// the next step for a while, and then give up.
const KEEP_ALIVE: Duration = Duration::from_millis(250);

/// What follows in the source of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    Bytes,
    /// There are none now, as in a pipe to which nobody writes.
    Late,
    End,
}

/// A step of all hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// All report how many bytes of the stream they have.
    Positions,
    /// These bytes follow from host to host.
    Chunk { offset: u64, bytes: u64 },
    /// The same, from a receiver that keeps them: the source does not have them any more.
    Kept { rank: u16, offset: u64, bytes: u64 },
    /// All join the group; the stream goes on there.
    Group { offset: u64 },
    /// The stream has so many bytes. Its SHA-256 follows.
    End { bytes: u64 },
}

impl Order {
    pub(super) const WORDS: usize = 3;

    pub(super) fn to_words(self) -> [u64; Self::WORDS] {
        match self {
            Self::Positions => [0, 0, 0],
            Self::Chunk { offset, bytes } => [1, offset, bytes],
            Self::Group { offset } => [2, offset, 0],
            Self::End { bytes } => [3, bytes, 0],
            Self::Kept { rank, offset, bytes } => [4 | u64::from(rank) << 8, offset, bytes],
        }
    }

    /// `None`: it is none of this version.
    pub(super) fn from_words(words: [u64; Self::WORDS]) -> Option<Self> {
        match words {
            [0, 0, 0] => Some(Self::Positions),
            [1, offset, bytes] => Some(Self::Chunk { offset, bytes }),
            [2, offset, 0] => Some(Self::Group { offset }),
            [3, bytes, 0] => Some(Self::End { bytes }),
            // The source is rank 0.
            [kind, offset, bytes] if kind & 0xFF == 4 && kind != 4 => Some(Self::Kept {
                rank: u16::try_from(kind >> 8).ok()?,
                offset,
                bytes,
            }),
            _ => None,
        }
    }
}

/// What a receiver that has `position` bytes takes of a chunk. `None`: bytes between are missing.
pub(super) fn fresh(position: u64, offset: u64, chunk: &[u8]) -> Option<&[u8]> {
    let known = position.checked_sub(offset)?;
    let known = usize::try_from(known).unwrap_or(usize::MAX).min(chunk.len());
    Some(&chunk[known..])
}

/// The positions of the receivers contradict what the source has sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "rank {rank} has {position} bytes of the stream, and the source can go on from {from} to {to}; no receiver keeps those before"
)]
pub struct Unfit {
    /// The receiver.
    pub rank: usize,
    /// Bytes that it has.
    pub position: u64,
    /// First byte that the source has.
    pub from: u64,
    /// Bytes that the source has taken.
    pub to: u64,
}

/// The next step, before its bytes are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Positions,
    Chunk,
    /// A chunk from a receiver that keeps it, at most up to a byte.
    Kept {
        rank: u16,
        to: u64,
    },
    Group,
    End,
    /// None: the bytes are late.
    Wait,
    /// All report their positions again, and nothing follows from that: they learn that the source is there, and it that they are, and can write.
    KeepAlive,
}

/// What a host has of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) bytes: u64,
    /// Whether it can read them.
    pub(super) keeps: bool,
}

/// When a group is tried again.
#[derive(Debug)]
pub struct Retry {
    /// First time from host to host before that; `None`: it is not.
    first: Option<Duration>,
    wait: Duration,
    /// When the group is tried again, or since when it is.
    at: Duration,
}

impl Retry {
    /// `first`: time from host to host before the group is tried again. `None`: it is not.
    pub fn new(now: Duration, first: Option<Duration>) -> Self {
        let wait = first.unwrap_or_default();
        Self {
            first,
            wait,
            at: now.saturating_add(wait),
        }
    }

    /// Whether the group is to be tried now.
    pub fn is_due(&self, now: Duration) -> bool {
        self.first.is_some() && now >= self.at
    }

    /// The group is tried.
    pub fn handle_group(&mut self, now: Duration) {
        self.at = now;
    }

    /// The group was left, or could not be had. The next try is after twice the time, if this one did not last as long as that before it.
    pub fn handle_left(&mut self, now: Duration) {
        let lasted = now.saturating_sub(self.at);
        self.wait = match self.first {
            Some(first) if lasted >= self.wait => first,
            _ => (self.wait * 2).min(WAIT_MAX.max(self.wait)),
        };
        self.at = now.saturating_add(self.wait);
    }
}

/// The course of a transfer that is between hosts, or tries its group again.
#[derive(Debug)]
pub struct Course {
    retry: Retry,
    /// All receivers have the bytes below. `None`: they must report.
    position: Option<u64>,
    /// The receiver that keeps what the source does not have any more, and the first byte that the source has.
    keeper: Option<(u16, u64)>,
    /// Most bytes that a receiver had when all reported.
    most: u64,
    /// Bytes sent from host to host since then.
    sent: u64,
    /// When all have reported their positions.
    reported: Duration,
}

impl Course {
    /// `retry`: as of [`Retry::new`].
    pub fn new(now: Duration, retry: Option<Duration>) -> Self {
        Self {
            retry: Retry::new(now, retry),
            position: None,
            keeper: None,
            most: 0,
            sent: 0,
            reported: now,
        }
    }

    /// `rest`: what the source has from the position on.
    pub(super) fn next(&self, now: Duration, rest: Rest) -> Next {
        let Some(position) = self.position else {
            return Next::Positions;
        };
        let kept = self.keeper.filter(|(_, to)| position < *to);
        match (kept, rest) {
            (None, Rest::End) => Next::End,
            (None, _) if self.may_try(position) && self.retry.is_due(now) => Next::Group,
            _ if now.saturating_sub(self.reported) >= KEEP_ALIVE => Next::KeepAlive,
            (Some((rank, to)), _) => Next::Kept { rank, to },
            (None, Rest::Bytes) => Next::Chunk,
            (None, Rest::Late) => Next::Wait,
        }
    }

    /// In the group, all begin at the same byte. Something is sent between two tries, so that the stream ends.
    fn may_try(&self, position: u64) -> bool {
        self.sent > 0 && position >= self.most
    }

    /// The receivers have reported; the source can repeat the bytes from `from` on, and has taken those below `to`. Receivers that the tree
    /// of the group did not reach may have fewer. Returns the byte that the stream goes on with.
    ///
    /// # Errors
    /// A receiver has more bytes, or fewer and no other one keeps those between.
    pub(super) fn handle_positions(
        &mut self,
        (from, to): (u64, u64),
        receivers: &[Position],
    ) -> Result<u64, Unfit> {
        let keepers = (1..)
            .zip(receivers)
            .filter(|(_, p)| p.keeps && (from..=to).contains(&p.bytes));
        self.keeper = keepers.map(|(rank, _)| (rank, from)).next();
        let least = if self.keeper.is_some() { 0 } else { from };
        for (rank, &Position { bytes: position, .. }) in (1..).zip(receivers) {
            if !(least..=to).contains(&position) {
                return Err(Unfit {
                    rank,
                    position,
                    from,
                    to,
                });
            }
        }
        let least = receivers.iter().map(|p| p.bytes).min().unwrap_or(to);
        self.most = receivers.iter().map(|p| p.bytes).max().unwrap_or(to);
        (self.position, self.sent) = (Some(least), 0);
        Ok(least)
    }

    /// The byte that the stream goes on with, once all have reported.
    pub(super) fn position(&self) -> u64 {
        self.position.unwrap_or_default()
    }

    /// All have reported their positions.
    pub(super) fn handle_reported(&mut self, now: Duration) {
        self.reported = now;
    }

    /// A chunk was sent.
    pub(super) fn handle_sent(&mut self, bytes: u64) {
        self.position = self.position.map(|position| position + bytes);
        self.sent += bytes;
    }

    /// The group is tried.
    pub(super) fn handle_group(&mut self, now: Duration) {
        self.retry.handle_group(now);
        self.position = None;
    }

    /// The stream has left the group, or the group could not be had.
    pub(super) fn handle_left(&mut self, now: Duration) {
        self.retry.handle_left(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn orders_are_read_as_they_were_written() {
        for order in [
            Order::Positions,
            Order::Chunk {
                offset: 7,
                bytes: 4 << 20,
            },
            Order::Kept {
                rank: 1023,
                offset: 9,
                bytes: 1,
            },
            Order::Group { offset: u64::MAX },
            Order::End { bytes: 9 },
        ] {
            assert_eq!(Order::from_words(order.to_words()), Some(order));
        }
        for wrong in [[4, 0, 0], [0, 1, 0], [2, 5, 1], [3, 5, 1], [u64::MAX; 3]] {
            assert_eq!(Order::from_words(wrong), None);
        }
    }

    fn at(bytes: u64) -> Position {
        let keeps = false;
        Position { bytes, keeps }
    }

    #[test]
    fn the_group_is_tried_after_twice_the_time_if_it_fails_at_once() {
        let seconds = Duration::from_secs;
        let mut course = Course::new(seconds(0), Some(seconds(30)));
        let report = |course: &mut Course| {
            course
                .handle_positions((0, 9), &[at(0), at(9)])
                .expect("positions");
        };
        let (mut now, mut tries) = (seconds(0), Vec::new());
        report(&mut course);
        // Not before something was sent, and all have the same.
        course.handle_reported(seconds(100));
        assert_eq!(course.next(seconds(100), Rest::Bytes), Next::Chunk);
        course.handle_sent(8);
        assert_eq!(course.next(seconds(100), Rest::Bytes), Next::Chunk);
        while tries.len() < 8 {
            course.handle_sent(1);
            if course.next(now, Rest::Bytes) == Next::Group {
                tries.push(now.as_secs());
                course.handle_group(now);
                course.handle_left(now);
                assert_eq!(course.next(now, Rest::Bytes), Next::Positions);
                report(&mut course);
                course.handle_sent(9);
            }
            now += seconds(1);
        }
        assert_eq!(tries, [30, 90, 210, 450, 930, 1530, 2130, 2730]);
        // A try that lasts begins the times anew.
        course.handle_group(now);
        course.handle_left(now + seconds(600));
        report(&mut course);
        course.handle_sent(9);
        course.handle_reported(now + seconds(629));
        assert_eq!(course.next(now + seconds(629), Rest::Bytes), Next::Chunk);
        assert_eq!(course.next(now + seconds(630), Rest::Bytes), Next::Group);
        assert_eq!(course.next(now + seconds(630), Rest::End), Next::End);
        let mut never = Course::new(seconds(0), None);
        report(&mut never);
        never.handle_sent(9);
        never.handle_reported(Duration::MAX);
        assert_eq!(never.next(Duration::MAX, Rest::Bytes), Next::Chunk);
    }

    /// Nobody writes into a pipe for a while, and all would give up; or a receiver cannot write any more, and nobody learned it before the end.
    #[test]
    fn receivers_report_while_bytes_are_late_and_while_they_come() {
        let ms = Duration::from_millis;
        for (rest, otherwise) in [(Rest::Late, Next::Wait), (Rest::Bytes, Next::Chunk)] {
            let mut course = Course::new(ms(0), Some(ms(60_000)));
            // First of all, late or not.
            assert_eq!(course.next(ms(0), rest), Next::Positions);
            course.handle_positions((0, 0), &[at(0)]).expect("positions");
            let mut reports = Vec::new();
            for now in (0..1000).step_by(50) {
                match course.next(ms(now), rest) {
                    Next::KeepAlive => {
                        reports.push(now);
                        course.handle_reported(ms(now));
                    }
                    next => assert_eq!(next, otherwise),
                }
            }
            assert_eq!(reports, [250, 500, 750]);
            course.handle_sent(9);
            // The group is tried with or without bytes.
            assert_eq!(course.next(ms(60_000), rest), Next::Group);
            assert_eq!(course.next(ms(1000), Rest::End), Next::End);
        }
        // Also while a receiver gives the others what the source does not have.
        let mut course = Course::new(ms(0), None);
        let keeper = Position {
            bytes: 9,
            keeps: true,
        };
        course
            .handle_positions((5, 9), &[at(0), keeper])
            .expect("positions");
        assert_eq!(course.next(ms(249), Rest::Bytes), Next::Kept { rank: 2, to: 5 });
        assert_eq!(course.next(ms(250), Rest::Bytes), Next::KeepAlive);
    }

    /// A source and its receivers, with a group that delivers what it likes of what it must.
    struct Hosts<'d> {
        data: &'d [u8],
        /// Bytes that all have acknowledged, and bytes that were taken from the source.
        kept: (u64, u64),
        receivers: Vec<Vec<u8>>,
        /// Which of them the tree does not reach, in each try others.
        outside: Vec<bool>,
    }

    impl Hosts<'_> {
        /// The group takes bytes from `offset` on, and stops. What is acknowledged has arrived at all (M1) but those outside of the tree.
        fn group(&mut self, offset: u64, draws: &mut impl FnMut(u64) -> u64) {
            let taken = offset + draws(self.data.len() as u64 - offset + 1);
            let acknowledged = offset + draws(taken - offset + 1);
            for (receiver, is_outside) in self.receivers.iter_mut().zip(&self.outside) {
                assert_eq!(receiver.len() as u64, offset, "all begin at the same byte");
                let least = if *is_outside { offset } else { acknowledged };
                let has = least + draws(taken - least + 1);
                receiver.extend_from_slice(&self.data[offset as usize..has as usize]);
            }
            self.kept = (acknowledged, taken);
        }

        fn deliver(&mut self, offset: u64, chunk: &[u8]) {
            for receiver in &mut self.receivers {
                let fresh = fresh(receiver.len() as u64, offset, chunk).expect("no gap");
                receiver.extend_from_slice(fresh);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        /// The group fails at any byte, with any difference between receivers, any number of times; a receiver dies at any step.
        #[test]
        fn every_receiver_gets_each_byte_once_whatever_the_group_does(
            receivers in 1usize..6, co_works in any::<bool>(), length in 0usize..3000, chunk in 1u64..700, retry in proptest::option::of(0u64..20),
            died_at in proptest::option::of(0usize..40), rng in Just(()).prop_perturb(|(), rng| rng),
        ) {
            let data: Vec<u8> = (0..length).map(|i| (i * 7 + i / 251) as u8).collect();
            let mut rng = rng;
            let mut draw = |below: u64| rng.random_range(0..below);
            let mut hosts = Hosts { data: &data, kept: (0, 0), receivers: vec![Vec::new(); receivers], outside: vec![false; receivers] };
            let choose = |hosts: &mut Hosts<'_>, draw: &mut dyn FnMut(u64) -> u64| {
                // One is in the tree.
                let inside = draw(receivers as u64) as usize;
                hosts.outside = (0..receivers).map(|at| co_works && at != inside && draw(2) == 0).collect();
            };
            choose(&mut hosts, &mut draw);
            let mut now = Duration::ZERO;
            let mut course = Course::new(now, retry.map(Duration::from_secs));
            hosts.group(0, &mut draw);
            let mut position = hosts.kept.1;
            let mut ended = false;
            for step in 0.. {
                prop_assert!(step < 10_000, "no progress");
                now += Duration::from_secs(draw(5));
                // Each step needs all hosts: without one, it fails at all others.
                if died_at == Some(step) {
                    break;
                }
                let rest = match position == length as u64 {
                    true => Rest::End,
                    false if draw(4) == 0 => Rest::Late,
                    false => Rest::Bytes,
                };
                if course.next(now, rest) == Next::KeepAlive {
                    course.handle_reported(now);
                }
                match course.next(now, rest) {
                    Next::Positions => {
                        let all: Vec<_> = hosts.receivers.iter().map(|r| Position { bytes: r.len() as u64, keeps: co_works }).collect();
                        position = course.handle_positions(hosts.kept, &all).unwrap();
                    }
                    Next::Chunk => {
                        let end = (position + chunk).min(length as u64);
                        hosts.deliver(position, &data[position as usize..end as usize]);
                        course.handle_sent(end - position);
                        position = end;
                        hosts.kept = (end, end.max(hosts.kept.1));
                    }
                    Next::Kept { rank, to } => {
                        let end = (position + chunk).min(to);
                        let keeper = &hosts.receivers[usize::from(rank) - 1];
                        prop_assert!(keeper.len() as u64 >= end, "it does not have it");
                        let bytes = keeper[position as usize..end as usize].to_vec();
                        hosts.deliver(position, &bytes);
                        course.handle_sent(end - position);
                        position = end;
                    }
                    Next::Group => {
                        choose(&mut hosts, &mut draw);
                        course.handle_group(now);
                        hosts.group(position, &mut draw);
                        position = hosts.kept.1;
                        now += Duration::from_secs(draw(90));
                        course.handle_left(now);
                    }
                    Next::Wait => prop_assert_eq!(rest, Rest::Late),
                    Next::KeepAlive => unreachable!("all have reported"),
                    Next::End => {
                        ended = true;
                        break;
                    }
                }
            }
            prop_assert_eq!(ended, died_at.is_none() || ended);
            for receiver in &hosts.receivers {
                prop_assert!(data.starts_with(receiver));
                prop_assert!(!ended || receiver.len() == length);
            }
        }

        #[test]
        fn a_receiver_that_cannot_be_is_named(from in 0u64..100, more in 0u64..100, position in 0u64..300) {
            let mut course = Course::new(Duration::ZERO, None);
            let to = from + more;
            let known = course.handle_positions((from, to), &[at(to), at(position)]);
            let fits = (from..=to).contains(&position);
            prop_assert_eq!(known, if fits { Ok(position) } else { Err(Unfit { rank: 2, position, from, to }) });
        }
    }
}
