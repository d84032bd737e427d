//! Rates, limits of rates, and the token bucket that meters frames by them. Time is an argument, and all arithmetic is exact.

use core::fmt;
use core::str::FromStr;

use crate::Nanos;

/// Units of level in a [`TokenBucket`] per byte: with units of 10^-9 bits, a rate in bits per second adds its number per nanosecond.
const UNITS_PER_BYTE: u64 = 8_000_000_000;

/// A number of bits per second: 1 kb/s to 1 Tb/s. As text a number with a decimal unit: `10G`, `400M`, `1500k`, `2.5Gb/s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BitRate(u64);

impl BitRate {
    /// The smallest rate, in bits per second.
    pub const MIN: u64 = 1_000;
    /// The largest rate, in bits per second.
    pub const MAX: u64 = 1_000_000_000_000;

    /// `None` outside of the bounds.
    pub const fn new(bits_per_second: u64) -> Option<Self> {
        match bits_per_second {
            Self::MIN..=Self::MAX => Some(Self(bits_per_second)),
            _ => None,
        }
    }

    /// Bits per second.
    pub const fn bits_per_second(self) -> u64 {
        self.0
    }
}

/// Error: the text is no rate. Displays what a rate is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no rate: give bits per second from 1k to 1T, such as 10G, 2.5G or 400M")]
pub struct NotARate;

impl FromStr for BitRate {
    type Err = NotARate;

    fn from_str(text: &str) -> Result<Self, NotARate> {
        let text = text.trim();
        let text = text.strip_suffix("b/s").unwrap_or(text);
        let end = text.trim_end_matches(|c: char| c.is_ascii_alphabetic()).len();
        let (number, unit) = text.split_at(end);
        let exponent: u32 = match unit {
            "" => 0,
            "k" | "K" => 3,
            "M" => 6,
            "G" => 9,
            "T" => 12,
            _ => return Err(NotARate),
        };
        let (whole, fraction) = number
            .trim_end()
            .split_once('.')
            .unwrap_or((number.trim_end(), "0"));
        let digits = |text: &str| {
            let all = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            all.then(|| text.parse::<u64>().ok()).flatten()
        };
        let scale = |n: u64, exponent: u32| n.checked_mul(10_u64.checked_pow(exponent)?);
        let parts = digits(whole).zip(digits(fraction));
        let sum = parts.and_then(|(whole, part)| {
            // A fraction of more digits than the unit has is no whole number of bits, but for zeros.
            let part = match exponent.checked_sub(fraction.len() as u32) {
                Some(exponent) => scale(part, exponent)?,
                None => (part == 0).then_some(0)?,
            };
            scale(whole, exponent)?.checked_add(part)
        });
        sum.and_then(Self::new).ok_or(NotARate)
    }
}

/// In the largest unit in which it is a whole number, so that it reads back: `10G`, `2500M`.
impl fmt::Display for BitRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [
            (1_000_000_000_000, "T"),
            (1_000_000_000, "G"),
            (1_000_000, "M"),
            (1_000, "k"),
        ];
        let unit = units.into_iter().find(|(scale, _)| self.0.is_multiple_of(*scale));
        let (scale, name) = unit.unwrap_or((1, ""));
        write!(f, "{}{name}", self.0 / scale)
    }
}

/// The limit of a sender: a rate of frames, and the most bytes that it may send at once. Frames count from the destination MAC address to
/// the ICRC, without FCS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RateLimit {
    /// The rate over a long time.
    pub rate: BitRate,
    /// Bytes beyond the rate in any period: 1 to [`RateLimit::BURST_MAX`].
    pub burst_bytes: u64,
}

impl RateLimit {
    /// The largest burst, 1 GiB.
    pub const BURST_MAX: u64 = 1 << 30;
    /// The least default of a burst: more than the 129 packets of 1 KiB that a QP of Linux rxe has in flight.
    const BURST_DEFAULT_MIN: u64 = 256 << 10;
    /// The default of a burst is what the rate gives in this time. A switch reads its clock once per batch of frames, and may be
    /// suspended for milliseconds if it shares a core; frames that wait meanwhile arrive at one time.
    const BURST_DEFAULT_MS: u64 = 4;

    /// A limit with the default burst: 4 ms of the rate, and at least 256 KiB.
    pub const fn of(rate: BitRate) -> Self {
        let burst = rate.0 / 8 * Self::BURST_DEFAULT_MS / 1000;
        let burst_bytes = if burst > Self::BURST_DEFAULT_MIN {
            burst
        } else {
            Self::BURST_DEFAULT_MIN
        };
        Self { rate, burst_bytes }
    }

    /// What a sender keeps to, so that a meter with this limit drops none of its frames: its clock may be faster by 1/256, and its frames
    /// may come closer together on the way, by three quarters of the burst. A full packet always fits.
    pub const fn for_sender(self) -> Self {
        const FRAME_MAX: u64 = 4096 + 128;
        let rate = match BitRate::new(self.rate.0 - self.rate.0 / 256) {
            Some(rate) => rate,
            None => self.rate,
        };
        let (quarter, most) = (self.burst_bytes / 4, self.burst_bytes);
        let burst_bytes = match (quarter < FRAME_MAX, most < FRAME_MAX) {
            (false, _) => quarter,
            (true, false) => FRAME_MAX,
            (true, true) => most,
        };
        Self { rate, burst_bytes }
    }

    /// The part of one lane of a group, which may be metered by another worker than the others: an equal share, rounded down.
    pub const fn per_lane(self, lanes: u8) -> Self {
        let lanes = if lanes == 0 { 1 } else { lanes as u64 };
        let rate = match BitRate::new(self.rate.0 / lanes) {
            Some(rate) => rate,
            None => BitRate(BitRate::MIN),
        };
        Self {
            rate,
            burst_bytes: self.burst_bytes / lanes,
        }
    }
}

/// `10G, burst 5000000 bytes`.
impl fmt::Display for RateLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, burst {} bytes", self.rate, self.burst_bytes)
    }
}

/// A token bucket: in any period, the frames that it [accepts](TokenBucket::take) have at most the burst and what the rate gives in that
/// time. No rate, burst or pause overflows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenBucket {
    /// Units per nanosecond.
    rate: u64,
    capacity: u64,
    /// The time after which an empty bucket is full.
    fill: Nanos,
    level: u64,
    /// The time of `level`.
    at: Nanos,
}

impl TokenBucket {
    /// A full bucket. A burst beyond [`RateLimit::BURST_MAX`] is that.
    pub const fn new(limit: RateLimit) -> Self {
        let burst = if limit.burst_bytes < RateLimit::BURST_MAX {
            limit.burst_bytes
        } else {
            RateLimit::BURST_MAX
        };
        let (rate, capacity) = (limit.rate.0, burst * UNITS_PER_BYTE);
        Self {
            rate,
            capacity,
            fill: Nanos(capacity.div_ceil(rate)),
            level: capacity,
            at: Nanos::ZERO,
        }
    }

    /// Adds what the rate has given since the last call. An earlier time adds nothing.
    #[inline]
    pub fn refill(&mut self, now: Nanos) {
        let passed = now.since(self.at);
        // Without the bound the product could overflow. With it, it exceeds the capacity by less than one rate.
        self.level = match passed >= self.fill {
            true => self.capacity,
            false => self.capacity.min(self.level + passed.0 * self.rate),
        };
        self.at = self.at.max(now);
    }

    /// Changes the rate. What was given before stays.
    pub fn set_rate(&mut self, now: Nanos, rate: BitRate) {
        self.refill(now);
        self.rate = rate.0;
        self.fill = Nanos(self.capacity.div_ceil(rate.0));
    }

    /// Bytes that can be taken while the bucket stays half full or fuller.
    #[inline]
    pub const fn bytes_above_half(&self) -> u64 {
        self.level.saturating_sub(self.capacity / 2) / UNITS_PER_BYTE
    }

    /// Takes a frame of `bytes` bytes, if there are as many. False: nothing has changed.
    #[inline]
    pub const fn take(&mut self, bytes: u64) -> bool {
        let left = self.level.checked_sub(bytes.saturating_mul(UNITS_PER_BYTE));
        if let Some(left) = left {
            self.level = left;
        }
        left.is_some()
    }

    /// True below half: senders should slow down.
    #[inline]
    pub const fn is_low(&self) -> bool {
        self.level < self.capacity / 2
    }

    /// When `bytes` bytes can be taken, if nothing else is taken before. More than the burst can be taken when the bucket is full.
    pub const fn ready_at(&self, bytes: u64) -> Nanos {
        let need = bytes.saturating_mul(UNITS_PER_BYTE);
        let need = if need < self.capacity { need } else { self.capacity };
        Nanos(
            self.at
                .0
                .saturating_add(need.saturating_sub(self.level).div_ceil(self.rate)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::string::ToString;
    use std::vec::Vec;

    fn limit(rate: u64, burst_bytes: u64) -> RateLimit {
        let rate = BitRate::new(rate).unwrap();
        RateLimit { rate, burst_bytes }
    }

    #[test]
    fn rates_have_units_and_read_back() {
        for (text, bits, shown) in [
            ("10G", 10_000_000_000, "10G"),
            ("2.5G", 2_500_000_000, "2500M"),
            ("400M", 400_000_000, "400M"),
            ("400 Mb/s", 400_000_000, "400M"),
            ("1500", 1500, "1500"),
            ("1.50k", 1500, "1500"),
            ("1T", BitRate::MAX, "1T"),
            ("1k", BitRate::MIN, "1k"),
        ] {
            let rate: BitRate = text.parse().unwrap();
            assert_eq!((rate.bits_per_second(), rate.to_string().as_str()), (bits, shown));
        }
        let bad = [
            "",
            "G",
            ".5G",
            "1.",
            "10g",
            "1.0001k",
            "999",
            "1.1T",
            "-1G",
            "1e9",
            "10 Gib",
            "1,5G",
            "0x10",
            "99999999999999999999T",
        ];
        for bad in bad {
            assert_eq!(bad.parse::<BitRate>(), Err(NotARate), "{bad}");
        }
    }

    #[test]
    fn a_default_burst_covers_a_short_pause_of_the_switch() {
        let burst = |rate| RateLimit::of(BitRate::new(rate).unwrap()).burst_bytes;
        assert_eq!(burst(BitRate::MIN), 256 << 10);
        assert_eq!(burst(10_000_000_000), 5_000_000);
        assert!(burst(BitRate::MAX) <= RateLimit::BURST_MAX);
    }

    /// The definition, in wide integers: no period that ends now may have more than the burst and its time times the rate.
    struct Wide {
        limit: RateLimit,
        /// Time and bytes of each accepted frame.
        accepted: Vec<(u128, u128)>,
    }

    impl Wide {
        /// Bytes that may follow now, times 8 * 10^9.
        fn room(&self, now: u128) -> i128 {
            let (rate, burst) = (u128::from(self.limit.rate.0), u128::from(self.limit.burst_bytes));
            let units = u128::from(UNITS_PER_BYTE);
            let (mut sum, full) = (0, units * burst);
            let rooms = self.accepted.iter().rev().map(|(at, bytes)| {
                sum += bytes * units;
                (full + (now - at) * rate) as i128 - sum as i128
            });
            rooms.min().unwrap_or(full as i128).min(full as i128)
        }
    }

    proptest! {
        #[test]
        fn a_bucket_accepts_what_its_definition_allows(
            rate in prop_oneof![1_000..20_000_u64, 1_000_000..1_000_000_000_000_u64, Just(BitRate::MAX)],
            burst in prop_oneof![1..20_000_u64, Just(RateLimit::BURST_MAX)],
            frames in prop::collection::vec(
                (
                    prop_oneof![4 => 0..3_u64, 4 => 0..100_000_u64, 2 => 0..20_000_000_000_u64, 1 => 0..1_u64 << 61],
                    prop_oneof![4 => 1..9_000_u64, 1 => 1_u64..RateLimit::BURST_MAX + 2],
                ),
                1..60,
            ),
        ) {
            let limit = limit(rate, burst);
            let (mut bucket, mut wide) = (TokenBucket::new(limit), Wide { limit, accepted: Vec::new() });
            let mut now = 0_u64;
            for (pause, bytes) in frames {
                now = now.saturating_add(pause);
                bucket.refill(Nanos(now));
                let room = wide.room(now.into());
                let half = i128::from(burst * UNITS_PER_BYTE / 2);
                prop_assert_eq!(bucket.is_low(), room < half);
                prop_assert_eq!(i128::from(bucket.bytes_above_half()), (room - half).max(0) / i128::from(UNITS_PER_BYTE));
                let need = i128::from(bytes) * i128::from(UNITS_PER_BYTE);
                let at = bucket.ready_at(bytes);
                let accepted = bucket.take(bytes);
                prop_assert_eq!(accepted, need <= room);
                prop_assert_eq!(accepted || bytes > burst && at == Nanos(now), at == Nanos(now));
                if accepted {
                    wide.accepted.push((now.into(), bytes.into()));
                } else if bytes <= burst && at < Nanos::MAX {
                    // The time is the first one.
                    let (mut early, mut late) = (bucket, bucket);
                    early.refill(Nanos(at.0 - 1));
                    late.refill(at);
                    prop_assert!(!early.take(bytes) && late.take(bytes));
                }
            }
        }
    }

    #[test]
    fn a_clock_that_goes_back_gives_nothing() {
        let mut bucket = TokenBucket::new(limit(1_000_000_000, 1_000));
        bucket.refill(Nanos(1_000));
        assert!(bucket.take(1_000) && !bucket.take(1));
        bucket.refill(Nanos(0));
        bucket.refill(Nanos(1_000));
        assert!(!bucket.take(1));
        bucket.refill(Nanos(1_008));
        assert!(bucket.take(1) && !bucket.take(1));
    }
}
