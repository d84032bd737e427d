//! Congestion control of a QP: DCQCN (Zhu et al., SIGCOMM 2015, section 3), in integers.
//!
//! The receiver of data is the notification point ([`Notifier`]): a packet with a congestion mark (ECN: CE) causes a congestion
//! notification packet (CNP), at most one per interval. The sender is the reaction point ([`Reaction`]): a CNP lowers its rate.
//!
//! With PEEL's guard timer (section 4), the receiver notifies of each marked packet, and the sender reacts at most once per
//! [`ReactionConfig::guard`]: for a multicast sender that gets the CNPs of many receivers.

use castnet_wire::{BitRate, Nanos, Pmtu, RateLimit, TokenBucket};

use crate::error::OutOfRange;
use crate::pace::Pace;

/// Parameters of a reaction point. The defaults are those of the DCQCN paper, sections 3.3 and 5.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReactionConfig {
    /// The rate of the link. A QP without congestion is not limited.
    pub rate_max: BitRate,
    /// The rate is never lower. At most `rate_max`. The paper gives none; 10 Mb/s.
    pub rate_min: BitRate,
    /// The most bytes sent at once while the rate is limited. It must hold a full packet with 128 bytes of headers.
    pub burst_bytes: u64,
    /// The least time between two reactions. Zero: each CNP is reacted to, as receivers limit them. PEEL's guard timer is 50 us.
    pub guard: Nanos,
    /// g, the weight of new information in alpha, is 2^-`gain_shift`: 1 to 16. The paper's is 8 (1/256).
    pub gain_shift: u8,
    /// K: alpha falls once per this time without a CNP. 55 us.
    pub alpha_interval: Nanos,
    /// T: the rate rises once per this time without a CNP. 55 us.
    pub increase_interval: Nanos,
    /// B: the rate rises also once per so many bytes sent. 10 MB.
    pub increase_bytes: u64,
    /// F: rises of either kind to the former rate, before the target rate rises. 5.
    pub recovery_steps: u16,
    /// R_AI: rise of the target rate in additive increase. 40 Mb/s.
    pub additive: BitRate,
    /// R_HAI: rise of the target rate in hyper increase, times the steps beyond F. The paper gives none; 400 Mb/s, as the defaults of
    /// RNICs have ten times R_AI.
    pub hyper: BitRate,
}

impl ReactionConfig {
    /// PEEL's guard timer (section 4): one reaction per 50 us.
    pub const GUARD: Nanos = Nanos::from_micros(50);
    /// Bytes of an increase step, at least: more than any frame.
    const INCREASE_BYTES_MIN: u64 = 1 << 16;

    /// The parameters of the paper for a link of this rate.
    pub const fn new(rate_max: BitRate) -> Self {
        const fn rate(bits_per_second: u64, most: BitRate) -> BitRate {
            match BitRate::new(bits_per_second) {
                Some(rate) if bits_per_second < most.bits_per_second() => rate,
                _ => most,
            }
        }
        Self {
            rate_max,
            rate_min: rate(10_000_000, rate_max),
            burst_bytes: 16 << 10,
            guard: Nanos::ZERO,
            gain_shift: 8,
            alpha_interval: Nanos::from_micros(55),
            increase_interval: Nanos::from_micros(55),
            increase_bytes: 10_000_000,
            recovery_steps: 5,
            additive: rate(40_000_000, rate_max),
            hyper: rate(400_000_000, rate_max),
        }
    }

    pub(crate) fn check(&self, pmtu: Pmtu) -> Result<(), OutOfRange> {
        let (min, max) = (self.rate_min.bits_per_second(), self.rate_max.bits_per_second());
        OutOfRange::check("reaction.rate_min", min, BitRate::MIN, max)?;
        let least = Pace::burst_min(pmtu);
        OutOfRange::check(
            "reaction.burst_bytes",
            self.burst_bytes,
            least,
            RateLimit::BURST_MAX,
        )?;
        OutOfRange::check("reaction.gain_shift", self.gain_shift, 1, 16)?;
        let second = Nanos::from_secs(1).0;
        OutOfRange::check("reaction.guard", self.guard.0, 0, second)?;
        OutOfRange::check("reaction.alpha_interval", self.alpha_interval.0, 1000, second)?;
        OutOfRange::check(
            "reaction.increase_interval",
            self.increase_interval.0,
            1000,
            second,
        )?;
        let least = Self::INCREASE_BYTES_MIN;
        OutOfRange::check("reaction.increase_bytes", self.increase_bytes, least, u64::MAX)
    }
}

/// alpha is a fraction of this.
const ONE: u32 = 1 << 20;
/// Steps of a timer that one call makes up for. The others stay due. After so many steps alpha and the rate hardly change.
const STEPS_MAX: u32 = 4096;

/// The reaction point of a sender: R_C, R_T and alpha of the paper.
#[derive(Clone, Debug)]
pub struct Reaction {
    config: ReactionConfig,
    bucket: TokenBucket,
    /// R_C in bits per second.
    current: u64,
    /// R_T in bits per second, at least R_C.
    target: u64,
    /// The estimate of congestion, in parts of [`ONE`].
    alpha: u32,
    alpha_at: Nanos,
    increase_at: Nanos,
    /// Steps since the last reaction, by time (T) and by bytes (BC).
    time_steps: u16,
    byte_steps: u16,
    /// Bytes since the last of `byte_steps`.
    bytes: u64,
    guarded_until: Nanos,
}

impl Reaction {
    /// A sender without congestion, at the rate of the link.
    pub fn new(config: ReactionConfig) -> Self {
        let limit = RateLimit {
            rate: config.rate_max,
            burst_bytes: config.burst_bytes,
        };
        let rate = config.rate_max.bits_per_second();
        Self {
            config,
            bucket: TokenBucket::new(limit),
            current: rate,
            target: rate,
            alpha: ONE,
            alpha_at: Nanos::MAX,
            increase_at: Nanos::MAX,
            time_steps: 0,
            byte_steps: 0,
            bytes: 0,
            guarded_until: Nanos::ZERO,
        }
    }

    /// R_C.
    pub fn rate(&self) -> BitRate {
        BitRate::new(self.current).unwrap_or(self.config.rate_max)
    }

    /// The bucket that requests keep to; `None` at the full rate.
    pub(crate) fn bucket(&self) -> Option<&TokenBucket> {
        (self.current < self.config.rate_max.bits_per_second()).then_some(&self.bucket)
    }

    /// When the rate rises next.
    pub(crate) fn next_increase(&self) -> Nanos {
        self.increase_at
    }

    /// Lowers the rate. False: the guard timer runs, and nothing has changed.
    pub fn handle_cnp(&mut self, now: Nanos) -> bool {
        if now < self.guarded_until {
            return false;
        }
        self.advance(now);
        self.guarded_until = now + self.config.guard;
        self.target = self.current;
        let cut = u128::from(self.current) * u128::from(self.alpha) / u128::from(2 * ONE);
        let least = self.config.rate_min.bits_per_second();
        self.set_rate(now, (self.current - cut as u64).max(least));
        self.alpha += (ONE - self.alpha) >> self.config.gain_shift;
        (self.alpha_at, self.increase_at) = (
            now + self.config.alpha_interval,
            now + self.config.increase_interval,
        );
        (self.time_steps, self.byte_steps, self.bytes) = (0, 0, 0);
        true
    }

    /// Makes the steps that are due by time, and refills the bucket.
    pub fn advance(&mut self, now: Nanos) {
        for _ in 0..STEPS_MAX {
            if self.alpha_at > now || self.alpha == 0 {
                break;
            }
            self.alpha -= self.alpha.div_ceil(1 << self.config.gain_shift);
            self.alpha_at += self.config.alpha_interval;
        }
        for _ in 0..STEPS_MAX {
            if self.increase_at > now || self.bucket().is_none() {
                break;
            }
            let at = self.increase_at;
            self.increase(at);
            self.time_steps = self.time_steps.saturating_add(1);
            self.increase_at = at + self.config.increase_interval;
        }
        self.bucket.refill(now);
    }

    /// A request was sent as a frame of so many bytes, which the bucket had.
    pub(crate) fn sent(&mut self, now: Nanos, bytes: u64) {
        if self.bucket().is_none() {
            return;
        }
        let taken = self.bucket.take(bytes);
        debug_assert!(taken, "the bucket had as many bytes");
        self.count(now, bytes);
    }

    /// Counts bytes of a sender that keeps to [`Reaction::rate`] by itself: the rate rises by bytes too.
    pub fn count(&mut self, now: Nanos, bytes: u64) {
        if self.bucket().is_none() {
            return;
        }
        self.bytes += bytes;
        if self.bytes >= self.config.increase_bytes {
            self.bytes -= self.config.increase_bytes;
            self.increase(now);
            self.byte_steps = self.byte_steps.saturating_add(1);
        }
    }

    /// One step of fast recovery, additive or hyper increase (the paper's figure 7).
    fn increase(&mut self, now: Nanos) {
        let (most, least) = (
            self.time_steps.max(self.byte_steps),
            self.time_steps.min(self.byte_steps),
        );
        let beyond = least.saturating_sub(self.config.recovery_steps);
        let rise = if most < self.config.recovery_steps {
            0
        } else if beyond > 0 {
            u64::from(beyond) * self.config.hyper.bits_per_second()
        } else {
            self.config.additive.bits_per_second()
        };
        self.target = (self.target + rise).min(self.config.rate_max.bits_per_second());
        // Rounded up, so that the target is reached.
        self.set_rate(now, self.target - (self.target - self.current) / 2);
    }

    fn set_rate(&mut self, now: Nanos, bits_per_second: u64) {
        self.current = bits_per_second;
        self.bucket.set_rate(now, self.rate());
    }
}

/// The notification point of a QP.
#[derive(Clone, Debug)]
pub(crate) struct Notifier {
    interval: Nanos,
    quiet_until: Nanos,
    /// CNPs to send.
    due: u16,
}

impl Notifier {
    /// CNPs that wait, at most. More say nothing more.
    const DUE_MAX: u16 = 64;

    pub(crate) fn new(interval: Nanos) -> Self {
        Self {
            interval,
            quiet_until: Nanos::ZERO,
            due: 0,
        }
    }

    /// A marked packet has arrived.
    pub(crate) fn mark(&mut self, now: Nanos) {
        if now >= self.quiet_until && self.due < Self::DUE_MAX {
            self.quiet_until = now + self.interval;
            self.due += 1;
        }
    }

    pub(crate) fn is_due(&self) -> bool {
        self.due > 0
    }

    /// True if a CNP must be sent; it counts as sent.
    pub(crate) fn take(&mut self) -> bool {
        let is_due = self.is_due();
        self.due -= u16::from(is_due);
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    const LINE: u64 = 10_000_000_000;

    fn rate(bits_per_second: u64) -> BitRate {
        BitRate::new(bits_per_second).expect("a rate")
    }

    fn reaction() -> Reaction {
        Reaction::new(ReactionConfig::new(rate(LINE)))
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Cnp,
        Send(u64),
        Wait(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            2 => Just(Step::Cnp),
            3 => (64..1_000_000_u64).prop_map(Step::Send),
            4 => (0..200_000_u64).prop_map(Step::Wait),
            1 => (0..20_000_000_u64).prop_map(Step::Wait),
        ]
    }

    /// The slow twin: the equations of the paper, with fractions, step by step.
    struct Twin {
        current: f64,
        target: f64,
        alpha: f64,
        /// The times of the next steps.
        alpha_at: u64,
        increase_at: u64,
        bytes: f64,
        steps: [u64; 2],
        started: bool,
    }

    impl Twin {
        fn new() -> Self {
            let line = LINE as f64;
            Self {
                current: line,
                target: line,
                alpha: 1.0,
                alpha_at: 0,
                increase_at: 0,
                bytes: 0.0,
                steps: [0; 2],
                started: false,
            }
        }

        fn cnp(&mut self, now: u64) {
            self.target = self.current;
            self.current = (self.current * (1.0 - self.alpha / 2.0)).max(10e6);
            self.alpha = self.alpha * (1.0 - 1.0 / 256.0) + 1.0 / 256.0;
            (self.alpha_at, self.increase_at) = (now + 55_000, now + 55_000);
            (self.bytes, self.steps, self.started) = (0.0, [0; 2], true);
        }

        fn wait(&mut self, now: u64) {
            while self.started && self.alpha_at <= now {
                self.alpha *= 1.0 - 1.0 / 256.0;
                self.alpha_at += 55_000;
            }
            while self.started && self.increase_at <= now {
                self.increase(0);
                self.increase_at += 55_000;
            }
        }

        fn send(&mut self, bytes: u64) {
            if self.current >= LINE as f64 {
                return;
            }
            self.bytes += bytes as f64;
            if self.bytes >= 1e7 {
                self.bytes -= 1e7;
                self.increase(1);
            }
        }

        fn increase(&mut self, kind: usize) {
            let [time, bytes] = self.steps;
            if time.max(bytes) >= 5 {
                let beyond = time.min(bytes).saturating_sub(5) as f64;
                self.target += if beyond > 0.0 { beyond * 400e6 } else { 40e6 };
                self.target = self.target.min(LINE as f64);
            }
            self.current = (self.current + self.target) / 2.0;
            self.steps[kind] += 1;
        }
    }

    proptest! {
        /// For random CNPs, frames and pauses, the rate is that of the paper's equations and within its bounds, and it does not matter how
        /// often the steps by time are made up for.
        #[test]
        fn the_rate_is_that_of_the_equations(steps in prop::collection::vec(step(), 1..200)) {
            let (mut lazy, mut often, mut twin, mut now) = (reaction(), reaction(), Twin::new(), Nanos(1));
            for step in steps {
                match step {
                    Step::Cnp => {
                        prop_assert!(lazy.handle_cnp(now) && often.handle_cnp(now));
                        twin.wait(now.0);
                        twin.cnp(now.0);
                    }
                    Step::Send(bytes) => {
                        for r in [&mut lazy, &mut often] {
                            r.advance(now);
                            // The bucket is not what is tested here.
                            r.bucket = TokenBucket::new(RateLimit { rate: r.rate(), burst_bytes: 1 << 20 });
                            r.sent(now, bytes);
                        }
                        twin.wait(now.0);
                        twin.send(bytes);
                    }
                    Step::Wait(nanos) => {
                        for _ in 0..nanos / 30_000 {
                            now += Nanos(30_000);
                            often.advance(now);
                        }
                        now += Nanos(nanos % 30_000);
                    }
                }
                let (least, most) = (lazy.config.rate_min, lazy.config.rate_max);
                prop_assert!((least..=most).contains(&lazy.rate()) && lazy.current <= lazy.target);
                prop_assert!(lazy.alpha <= ONE);
            }
            lazy.advance(now);
            often.advance(now);
            twin.wait(now.0);
            prop_assert_eq!((lazy.current, lazy.target), (often.current, often.target));
            // Rounding adds up: alpha has 20 bits, and falls to zero where the equations only come near.
            let error = (lazy.current as f64 - twin.current).abs() / LINE as f64;
            prop_assert!(error < 2e-3, "{} instead of {}", lazy.current, twin.current);
        }

        /// After any CNPs, a QP that gets no more of them is at its full rate again, whether it sends or not.
        #[test]
        fn the_full_rate_is_reached_without_cnps(cnps in 1..2000_u64, gap in 0..60_000_u64, sends: bool) {
            let (mut r, mut now) = (reaction(), Nanos(5));
            for _ in 0..cnps {
                now += Nanos(gap);
                r.handle_cnp(now);
            }
            let mut rates = Vec::new();
            // From 10 Mb/s by 40 Mb/s per 55 us, and a few more steps.
            for _ in 0..LINE / 40_000_000 + 60 {
                now += Nanos(55_000);
                r.advance(now);
                rates.push(r.current);
                if sends && r.bucket.take(1024) {
                    r.bytes += 1024;
                }
            }
            prop_assert!(rates.is_sorted());
            prop_assert!(r.bucket().is_none(), "{}", r.current);
            prop_assert_eq!(r.rate(), r.config.rate_max);
        }
    }

    /// A long pause is made up for in bounded parts, and ends at the full rate.
    #[test]
    fn a_long_pause_is_made_up_for_in_parts() {
        let mut config = ReactionConfig::new(rate(BitRate::MAX));
        (config.additive, config.increase_interval) = (rate(10_000_000), Nanos(1000));
        let mut r = Reaction::new(config);
        (0..5000).for_each(|i| assert!(r.handle_cnp(Nanos(i))));
        assert_eq!(r.rate(), config.rate_min);
        let (now, mut calls) = (Nanos::from_secs(1), 0);
        while r.bucket().is_some() {
            r.advance(now);
            calls += 1;
        }
        assert_eq!(calls, 25);
        // Bytes alone bring it back as well, by hyper increase once both kinds of steps are beyond F.
        let mut r = reaction();
        (0..50).for_each(|_| _ = r.handle_cnp(Nanos(1)));
        (r.time_steps, r.byte_steps) = (9, 9);
        r.increase(Nanos(2));
        assert_eq!(r.target, r.current + (r.target - r.current));
        assert!(r.target >= 4 * 400_000_000);
    }

    #[test]
    fn cnps_that_wait_are_bounded() {
        let mut n = Notifier::new(Nanos::ZERO);
        (0..100_000).for_each(|_| n.mark(Nanos(7)));
        assert_eq!(
            (0..1000).filter(|_| n.take()).count(),
            usize::from(Notifier::DUE_MAX)
        );
        n.mark(Nanos(7));
        assert!(n.is_due());
    }
}
