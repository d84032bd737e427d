//! The safeguard of a source: its goodput, compared with what is expected (Cepheus, V.D).

use std::cell::Cell;
use std::fmt;
use std::io::{self, BufRead, Read};
use std::time::{Duration, Instant};

use castnet_rnic::Traffic;
use castnet_rnic::stream::{OpenStream, StreamHeader};

use crate::error::MemberError;

/// Slices of [`Safeguard::after`]. Each of them must be slow.
const SLICES: u32 = 8;

/// When a source gives its group up, see [`crate::Member::send_guarded`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Safeguard {
    /// Least share of the expected goodput, 0 to 1.
    pub share: f64,
    /// How long the goodput must be lower. The time in which the source of the bytes had none to send does not count.
    pub after: Duration,
    /// Expected goodput in bits per second. `None`: the best of this transfer over an eighth of `after`. Then only what loses packets is
    /// slow, or what delivers nothing.
    pub expected: Option<f64>,
}

impl Default for Safeguard {
    /// Half of the best goodput, for 10 seconds. By then the controller has put out a member that is dead (its lease is 5 seconds), and
    /// planned the group around a link that is down.
    fn default() -> Self {
        Self {
            share: 0.5,
            after: Duration::from_secs(10),
            expected: None,
        }
    }
}

/// A goodput that was too low for too long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slowness {
    /// Bits per second that all receivers have acknowledged, in the last eighth of `after`.
    pub goodput: f64,
    /// Bits per second.
    pub expected: f64,
    /// How long it was too low.
    pub after: Duration,
}

impl fmt::Display for Slowness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            goodput,
            expected,
            after,
        } = self;
        if *goodput == 0.0 {
            return write!(f, "nothing was acknowledged for {after:?}");
        }
        let (goodput, expected) = (goodput / 1e6, expected / 1e6);
        write!(
            f,
            "the goodput was too low for {after:?}: {goodput:.2} Mb/s, expected {expected:.2} Mb/s"
        )
    }
}

/// Measures the goodput of a transfer.
pub(crate) struct Watch {
    guard: Safeguard,
    /// Time, bytes and counters at the begin of this slice.
    at: (Duration, u64, Traffic),
    /// Bits per second of the best slice.
    best: f64,
    /// Slow slices without a pause.
    slow: u32,
}

fn grew(before: Option<u64>, now: Option<u64>) -> Option<bool> {
    Some(now? > before?)
}

impl Watch {
    pub(crate) fn new(guard: Safeguard, traffic: Traffic) -> Self {
        Self {
            guard,
            at: (Duration::ZERO, 0, traffic),
            best: 0.0,
            slow: 0,
        }
    }

    /// `now`: time since the begin in which there was something to send. `traffic` is called once in each slice. A slow slice counts only
    /// if the network is the reason: a receiver that has no room is as slow from host to host.
    pub(crate) fn look(
        &mut self,
        now: Duration,
        acknowledged: u64,
        traffic: impl FnOnce() -> Traffic,
    ) -> Option<Slowness> {
        let (since, before, counted) = self.at;
        let time = now.saturating_sub(since);
        if time < self.guard.after / SLICES || time.is_zero() {
            return None;
        }
        let traffic = traffic();
        self.at = (now, acknowledged, traffic);
        let goodput = acknowledged.saturating_sub(before) as f64 * 8.0 / time.as_secs_f64();
        self.best = self.best.max(goodput);
        let expected = self.guard.expected.unwrap_or(self.best);
        let is_stalled = goodput == 0.0;
        let waits = grew(counted.rnr_naks_received, traffic.rnr_naks_received) == Some(true);
        // A slow receiver is probed.
        let lost = |traffic: &Traffic| traffic.retransmissions.map(|n| n.saturating_sub(traffic.probes));
        let repeats = grew(lost(&counted), lost(&traffic)) != Some(false);
        let is_network = is_stalled || repeats || self.guard.expected.is_some();
        if (is_stalled || goodput < self.guard.share * expected) && is_network && !waits {
            self.slow += 1;
        } else {
            self.slow = 0;
        }
        (self.slow >= SLICES).then_some(Slowness {
            goodput,
            expected,
            after: self.guard.after,
        })
    }
}

/// A source of bytes, and the time that it took.
pub(crate) struct Timed<'a> {
    pub(crate) inner: &'a mut dyn BufRead,
    pub(crate) spent: &'a Cell<Duration>,
}

impl Read for Timed<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let from = self.fill_buf()?;
        let length = from.len().min(out.len());
        out[..length].copy_from_slice(&from[..length]);
        self.consume(length);
        Ok(length)
    }
}

impl BufRead for Timed<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        let start = Instant::now();
        let filled = self.inner.fill_buf();
        self.spent.set(self.spent.get() + start.elapsed());
        filled
    }

    fn consume(&mut self, length: usize) {
        self.inner.consume(length);
    }
}

/// A stream that was not sent whole: what is needed to go on with it in another way.
#[derive(Debug)]
pub struct Unsent {
    /// Why.
    pub error: MemberError,
    /// The stream, with all bytes that were taken from the source.
    pub stream: OpenStream,
    /// The last of these bytes. All receivers have those before. Each may have some of these.
    pub unacknowledged: Vec<u8>,
}

impl Unsent {
    /// Nothing was taken from the source.
    pub(crate) fn before(error: MemberError, header: &StreamHeader) -> Box<Self> {
        Box::new(Self {
            error,
            stream: OpenStream::new(header.clone()),
            unacknowledged: Vec::new(),
        })
    }

    /// Whether the network is the reason, and the receivers may be reached in another way.
    pub fn is_slow(&self) -> bool {
        self.error.is_slow()
    }
}

impl From<Box<Unsent>> for MemberError {
    fn from(unsent: Box<Unsent>) -> Self {
        unsent.error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUARD: Safeguard = Safeguard {
        share: 0.5,
        after: Duration::from_millis(800),
        expected: None,
    };

    /// Slices of 100 ms: kilobytes acknowledged, packets repeated and RNR NAKs in each. Returns in which slice it became slow.
    fn slow_in(guard: Safeguard, slices: &[(u64, u64, u64)]) -> Option<usize> {
        let mut traffic = Traffic {
            retransmissions: Some(0),
            rnr_naks_received: Some(0),
            ..Traffic::default()
        };
        let (mut watch, mut now, mut bytes) = (Watch::new(guard, traffic), Duration::ZERO, 0);
        slices.iter().position(|&(kilobytes, repeats, waits)| {
            assert!(watch.look(now, bytes, || panic!("read")).is_none());
            now += Duration::from_millis(100);
            bytes += kilobytes * 1000;
            traffic.retransmissions = traffic.retransmissions.map(|n| n + repeats);
            traffic.rnr_naks_received = traffic.rnr_naks_received.map(|n| n + waits);
            watch.look(now, bytes, || traffic).is_some()
        })
    }

    #[test]
    fn a_goodput_below_its_share_for_the_whole_time_is_slow() {
        let (well, low) = ((100, 0, 0), (49, 3, 0));
        assert_eq!(
            slow_in(GUARD, &[[well; 3], [(51, 3, 0); 3]].concat().repeat(9)),
            None
        );
        assert_eq!(slow_in(GUARD, &[vec![well], vec![low; 8]].concat()), Some(8));
        // One slice that is well begins the time anew.
        let pause = [vec![well], vec![low; 7], vec![well], vec![low; 8]].concat();
        assert_eq!(slow_in(GUARD, &pause), Some(16));
    }

    #[test]
    fn what_delivers_nothing_is_slow_from_the_begin_and_without_repetition() {
        assert_eq!(slow_in(GUARD, &[(0, 0, 0); 9]), Some(7));
    }

    #[test]
    fn what_loses_nothing_is_slow_only_if_more_was_expected() {
        let slices = [vec![(100, 0, 0)], vec![(20, 0, 0); 20]].concat();
        assert_eq!(slow_in(GUARD, &slices), None);
        let expected = Some(8e6);
        assert_eq!(slow_in(Safeguard { expected, ..GUARD }, &slices), Some(8));
    }

    #[test]
    fn a_receiver_without_room_is_not_the_network() {
        let expected = Some(8e6);
        for guard in [GUARD, Safeguard { expected, ..GUARD }] {
            let slices = [vec![(100, 0, 0)], vec![(1, 9, 1); 20], vec![(0, 9, 1); 20]].concat();
            assert_eq!(slow_in(guard, &slices), None);
        }
    }

    #[test]
    fn a_device_that_counts_nothing_may_have_lost_packets() {
        let none = Traffic::default();
        let mut watch = Watch::new(GUARD, none);
        let slice = |n: u32| Duration::from_millis(100) * n;
        assert!(watch.look(slice(1), 100_000, || none).is_none());
        let slow: Vec<_> = (2..10)
            .filter_map(|n| watch.look(slice(n), 100_000 + u64::from(n), || none))
            .collect();
        assert_eq!(slow.len(), 1);
        assert_eq!(slow[0].expected, 8e6);
    }
}
