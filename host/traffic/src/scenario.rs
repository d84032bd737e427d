//! Traffic scenarios, as an operator writes them.

use std::fmt;
use std::str::FromStr;

use castnet_wire::{Pmtu, names};
use serde::Serialize;

/// The text is not a valid part of a scenario.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadScenario(String);

fn bad<T>(text: impl Into<String>) -> Result<T, BadScenario> {
    Err(BadScenario(text.into()))
}

names! {
    /// Traffic patterns.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Pattern {
        /// Data of one source to many receivers, which acknowledge each message.
        Multicast => "multicast",
        /// ACKs: every receiver acknowledges every PSN. One data frame covers a whole window of PSNs, so that data costs
        /// almost nothing.
        Ack => "ack",
        /// Windows of data that half of the receivers refuse in the middle, with bursts of NAKs; retransmitted from there.
        Nak => "nak",
        /// CNPs of all receivers in sequence.
        Cnp => "cnp",
        /// Contributions of all ranks to one AllReduce after another, and results to all ranks.
        Aggregate => "aggregate",
    }
}

impl Pattern {
    /// Returns true if it runs on collective groups.
    pub const fn is_collective(self) -> bool {
        matches!(self, Self::Aggregate)
    }
}

impl FromStr for Pattern {
    type Err = BadScenario;

    fn from_str(text: &str) -> Result<Self, BadScenario> {
        match Self::ALL.iter().find(|p| p.name() == text) {
            Some(pattern) => Ok(*pattern),
            None => bad(format!(
                "'{text}' is no pattern: multicast, ack, nak, cnp, aggregate, or mix"
            )),
        }
    }
}

/// A pattern's share of a mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Share {
    /// The pattern.
    pub pattern: Pattern,
    /// Weight, relative to the weights of all shares.
    pub weight: u32,
}

/// One pattern, or a mix: `ack`, `mix`, `mix:multicast=4,ack=8,cnp=1`.
///
/// Each pattern gets its share of the frames that a host makes, where all have frames to send, and of a configured
/// rate. Answers that a pattern needs (the ACKs of multicast data) are sent in addition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Workload(Vec<Share>);

impl Workload {
    /// The shares: at least one, each with a weight, no pattern twice.
    pub fn shares(&self) -> &[Share] {
        &self.0
    }

    /// Returns true if there are several shares.
    pub fn is_mix(&self) -> bool {
        self.0.len() > 1
    }

    /// Returns true if a share runs on collective groups.
    pub fn has_collectives(&self) -> bool {
        self.0.iter().any(|s| s.pattern.is_collective())
    }

    /// Returns true if a share runs on multicast groups.
    pub fn has_multicast(&self) -> bool {
        self.0.iter().any(|s| !s.pattern.is_collective())
    }

    /// Name: that of the pattern, or `mix`.
    pub fn name(&self) -> &'static str {
        match self.0.as_slice() {
            [one] => one.pattern.name(),
            _ => "mix",
        }
    }
}

impl From<Pattern> for Workload {
    fn from(pattern: Pattern) -> Self {
        Self(vec![Share { pattern, weight: 1 }])
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_mix() {
            return f.pad(self.name());
        }
        let parts: Vec<_> = self
            .0
            .iter()
            .map(|s| format!("{}={}", s.pattern, s.weight))
            .collect();
        write!(f, "mix:{}", parts.join(","))
    }
}

/// The shares of `mix` without a list.
const MIX: [(Pattern, u32); 5] = [
    (Pattern::Multicast, 8),
    (Pattern::Ack, 8),
    (Pattern::Nak, 1),
    (Pattern::Cnp, 1),
    (Pattern::Aggregate, 4),
];

impl FromStr for Workload {
    type Err = BadScenario;

    fn from_str(text: &str) -> Result<Self, BadScenario> {
        if text == "mix" {
            return Ok(Self(
                MIX.map(|(pattern, weight)| Share { pattern, weight }).to_vec(),
            ));
        }
        let Some(list) = text.strip_prefix("mix:") else {
            return text.parse::<Pattern>().map(Self::from);
        };
        let mut shares: Vec<Share> = Vec::new();
        for part in list.split(',') {
            let (name, weight) = part.split_once('=').unwrap_or((part, "1"));
            let pattern: Pattern = name.trim().parse()?;
            let weight = match weight.trim().parse() {
                Ok(weight @ 1..=10_000) => weight,
                _ => return bad(format!("'{part}': a weight is a number from 1 to 10000")),
            };
            if shares.iter().any(|s| s.pattern == pattern) {
                return bad(format!("'{name}' is in the mix twice"));
            }
            shares.push(Share { pattern, weight });
        }
        Ok(Self(shares))
    }
}

/// Payload sizes in a repeating sequence: `1024`, or with weights `64:7,1024:4,4096:1`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Sizes(Vec<(usize, u32)>);

impl Sizes {
    /// Longest payload: the largest path MTU of RoCE.
    pub const MAX: usize = 4096;
    const WEIGHTS_MAX: u32 = 4096;

    /// Sizes and weights.
    pub fn parts(&self) -> &[(usize, u32)] {
        &self.0
    }

    /// Largest size.
    pub fn largest(&self) -> usize {
        self.0.iter().map(|(size, _)| *size).max().unwrap_or_default()
    }

    /// Smallest path MTU that carries all sizes.
    pub fn pmtu(&self) -> Pmtu {
        let fits = |p: &Pmtu| p.bytes() >= self.largest();
        Pmtu::ALL.into_iter().find(fits).unwrap_or(Pmtu::B4096)
    }

    /// One period of the sequence, with each size spread as evenly as the weights allow.
    pub(crate) fn sequence(&self) -> Vec<usize> {
        let total: u32 = self.0.iter().map(|(_, weight)| weight).sum();
        let mut credits = vec![0_i64; self.0.len()];
        let mut sequence = Vec::with_capacity(total as usize);
        for _ in 0..total {
            let (mut chosen, mut most) = (0, i64::MIN);
            for (i, (credit, (_, weight))) in credits.iter_mut().zip(&self.0).enumerate() {
                *credit += i64::from(*weight);
                if *credit > most {
                    (chosen, most) = (i, *credit);
                }
            }
            if let Some(credit) = credits.get_mut(chosen) {
                *credit -= i64::from(total);
            }
            sequence.push(chosen);
        }
        sequence
    }
}

impl From<usize> for Sizes {
    fn from(size: usize) -> Self {
        Self(vec![(size.min(Self::MAX), 1)])
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [(size, _)] = self.0.as_slice() {
            return size.fmt(f);
        }
        let parts: Vec<_> = self
            .0
            .iter()
            .map(|(size, weight)| format!("{size}:{weight}"))
            .collect();
        f.pad(&parts.join(","))
    }
}

impl FromStr for Sizes {
    type Err = BadScenario;

    fn from_str(text: &str) -> Result<Self, BadScenario> {
        let mut sizes = Vec::new();
        for part in text.split(',') {
            let (size, weight) = part.split_once(':').unwrap_or((part, "1"));
            match (size.trim().parse::<usize>(), weight.trim().parse::<u32>()) {
                (Ok(size @ 0..=Self::MAX), Ok(weight @ 1..)) => sizes.push((size, weight)),
                _ => {
                    return bad(format!(
                        "'{part}' is no payload: bytes from 0 to 4096, with a weight after a colon, such as 64:7,1024:4"
                    ));
                }
            }
        }
        let total = sizes
            .iter()
            .try_fold(0_u32, |sum, (_, weight)| sum.checked_add(*weight));
        match total {
            Some(total) if total <= Self::WEIGHTS_MAX => Ok(Self(sizes)),
            _ => bad(format!(
                "the weights together are more than {}",
                Self::WEIGHTS_MAX
            )),
        }
    }
}

/// Rate: `flat`, frames per second (`2M`, `500k`) or bits of frames per second (`10Gbps`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Rate {
    /// As fast as possible.
    #[default]
    Flat,
    /// Frames per second of all hosts together.
    Frames(f64),
    /// Bits per second of whole frames, without FCS, preamble and gap, of all hosts together.
    Bits(f64),
}

impl FromStr for Rate {
    type Err = BadScenario;

    fn from_str(text: &str) -> Result<Self, BadScenario> {
        let lower = text.trim().to_ascii_lowercase();
        if lower == "flat" {
            return Ok(Self::Flat);
        }
        let (number, bits) = ["bps", "b/s", "bit/s"]
            .iter()
            .find_map(|unit| lower.strip_suffix(unit))
            .map_or((lower.trim_end_matches("fps"), false), |number| (number, true));
        let (number, scale) = match number.trim().char_indices().last() {
            Some((at, 'k')) => (&number.trim()[..at], 1e3),
            Some((at, 'm')) => (&number.trim()[..at], 1e6),
            Some((at, 'g')) => (&number.trim()[..at], 1e9),
            _ => (number.trim(), 1.0),
        };
        match number.trim().parse::<f64>().map(|n| n * scale) {
            Ok(rate) if (1.0..=1e13).contains(&rate) => Ok(if bits {
                Self::Bits(rate)
            } else {
                Self::Frames(rate)
            }),
            _ => bad(format!(
                "'{text}' is no rate: flat, frames per second (500k, 2M) or bits per second (10Gbps)"
            )),
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flat => f.write_str("flat"),
            Self::Frames(rate) => write!(f, "{rate} frames/s"),
            Self::Bits(rate) => write!(f, "{rate} b/s"),
        }
    }
}

names! {
    /// Part of the received frames to check: the ICRC and, for results, the sum.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Check {
        /// No frame.
        None => "none",
        /// Every 64th frame.
        #[default]
        Sample => "sample",
        /// Every frame. The sink then needs more time per frame than the switch.
        All => "all",
    }
}

impl Check {
    #[inline]
    pub(crate) fn wants(self, number: u64) -> bool {
        match self {
            Self::None => false,
            Self::Sample => number & 63 == 0,
            Self::All => true,
        }
    }
}

impl FromStr for Check {
    type Err = BadScenario;

    fn from_str(text: &str) -> Result<Self, BadScenario> {
        match Self::ALL.iter().find(|c| c.name() == text) {
            Some(check) => Ok(*check),
            None => bad(format!("'{text}' is neither none, sample nor all")),
        }
    }
}

/// The traffic to generate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Scenario {
    /// Patterns and their weights.
    pub workload: Workload,
    /// Payload sizes of data. Contributions fill the path MTU that carries the largest.
    pub sizes: Sizes,
    /// Number of groups of each pattern.
    pub groups: usize,
    /// Receivers of each multicast group, ranks of each collective group.
    pub receivers: usize,
    /// Data frames per acknowledgement; at least 1.
    pub message: u32,
    /// Most data frames, or PSNs to be acknowledged, of one group in flight; at least 2.
    pub window: u32,
    /// NAKs per burst.
    pub burst: u32,
    /// Rate of the traffic.
    pub rate: Rate,
    /// Most frames of the pattern, of all hosts together. Contributions are rounded up to equal numbers of all ranks.
    pub frames: Option<u64>,
    /// Part of the frames to check.
    pub check: Check,
}

impl Scenario {
    /// One group with eight members, 1024 bytes, at full rate.
    pub fn new(workload: Workload) -> Self {
        Self {
            workload,
            sizes: Sizes::from(1024),
            groups: 1,
            receivers: 8,
            message: 32,
            window: 256,
            burst: 32,
            rate: Rate::Flat,
            frames: None,
            check: Check::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn scenario_texts_are_parsed() {
        let mix: Workload = "mix:multicast=4,ack".parse().expect("a mix");
        assert_eq!(mix.to_string(), "mix:multicast=4,ack=1");
        assert!(mix.is_mix() && !mix.has_collectives());
        assert_eq!("ack".parse::<Workload>().expect("a pattern").to_string(), "ack");
        assert_eq!("2M".parse(), Ok(Rate::Frames(2e6)));
        assert_eq!("500kfps".parse(), Ok(Rate::Frames(5e5)));
        assert_eq!("10Gbps".parse(), Ok(Rate::Bits(1e10)));
        assert_eq!("1.5Gb/s".parse(), Ok(Rate::Bits(1.5e9)));
        assert_eq!("flat".parse(), Ok(Rate::Flat));
        let imix: Sizes = "64:7,1024:4,4096:1".parse().expect("sizes");
        assert_eq!(
            (imix.largest(), imix.pmtu(), imix.to_string().as_str()),
            (4096, Pmtu::B4096, "64:7,1024:4,4096:1")
        );
        assert_eq!(Sizes::from(64).pmtu(), Pmtu::B256);
        for wrong in ["", "mix:", "mix:ack=0", "mix:ack,ack", "unicast"] {
            assert!(wrong.parse::<Workload>().is_err(), "{wrong}");
        }
        for wrong in ["", "4097", "64:0", "64;7", "64:5000"] {
            assert!(wrong.parse::<Sizes>().is_err(), "{wrong}");
        }
        for wrong in ["", "0", "fast", "-1", "1e99", "10Tbps"] {
            assert!(wrong.parse::<Rate>().is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn a_sequence_spreads_each_size_by_its_weight(
            weights in proptest::collection::vec(1_u32..20, 1..6)
        ) {
            let sizes = Sizes(weights.iter().map(|w| (64, *w)).collect());
            let sequence = sizes.sequence();
            let total: u32 = weights.iter().sum();
            for (i, weight) in weights.iter().enumerate() {
                prop_assert_eq!(sequence.iter().filter(|t| **t == i).count() as u32, *weight);
                // Every prefix deviates from the share by at most one frame per size.
                for upto in 1..=sequence.len() {
                    let had = sequence[..upto].iter().filter(|t| **t == i).count() as f64;
                    let fair = upto as f64 * f64::from(*weight) / f64::from(total);
                    prop_assert!((had - fair).abs() <= weights.len() as f64);
                }
            }
        }
    }
}
