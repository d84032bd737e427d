//! What is to be sent, as an operator says it.

use std::fmt;
use std::str::FromStr;

use castnet_wire::Pmtu;
use serde::Serialize;

/// A text that says no traffic.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadScenario(String);

fn bad<T>(text: impl Into<String>) -> Result<T, BadScenario> {
    Err(BadScenario(text.into()))
}

/// What traffic is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// Data of one source to many receivers, which acknowledge each message.
    Multicast,
    /// ACKs: every receiver acknowledges every PSN by itself. One data frame opens a whole window of PSNs, so that the data costs
    /// next to nothing.
    Ack,
    /// Windows of data that half of the receivers refuse in the middle, by bursts of NAKs, and the source sends again from there.
    Nak,
    /// CNPs of all receivers, one after the other.
    Cnp,
    /// Contributions of all ranks to one AllReduce after the other, and results to all of them.
    Aggregate,
}

impl Pattern {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Multicast, Self::Ack, Self::Nak, Self::Cnp, Self::Aggregate];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Multicast => "multicast",
            Self::Ack => "ack",
            Self::Nak => "nak",
            Self::Cnp => "cnp",
            Self::Aggregate => "aggregate",
        }
    }

    /// Whether it runs on collective groups.
    pub const fn is_collective(self) -> bool {
        matches!(self, Self::Aggregate)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Pattern {
    type Err = BadScenario;

    fn from_str(text: &str) -> Result<Self, BadScenario> {
        match Self::ALL.into_iter().find(|p| p.name() == text) {
            Some(pattern) => Ok(pattern),
            None => bad(format!(
                "'{text}' is no pattern: multicast, ack, nak, cnp, aggregate, or mix"
            )),
        }
    }
}

/// A pattern's share of a mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Share {
    /// What.
    pub pattern: Pattern,
    /// Of so many parts among those of all.
    pub weight: u32,
}

/// One pattern, or a mix: `ack`, `mix`, `mix:multicast=4,ack=8,cnp=1`.
///
/// Of what a host makes, each pattern has its share, wherever all could send; where a rate is set, each pattern has its share of that.
/// The answers that a pattern needs beside (the ACKs of multicast data) come on top.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Workload(Vec<Share>);

impl Workload {
    /// The parts: at least one, each with a weight, none twice.
    pub fn shares(&self) -> &[Share] {
        &self.0
    }

    /// Whether there are several.
    pub fn is_mix(&self) -> bool {
        self.0.len() > 1
    }

    /// Whether any part runs on collective groups.
    pub fn has_collectives(&self) -> bool {
        self.0.iter().any(|s| s.pattern.is_collective())
    }

    /// Whether any part runs on multicast groups.
    pub fn has_multicast(&self) -> bool {
        self.0.iter().any(|s| !s.pattern.is_collective())
    }

    /// Its name: a pattern's, or `mix`.
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

/// What `mix` alone means.
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

/// Payload sizes in turn: `1024`, or with weights `64:7,1024:4,4096:1`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Sizes(Vec<(usize, u32)>);

impl Sizes {
    /// The longest payload: the largest path MTU of RoCE.
    pub const MAX: usize = 4096;
    /// Weights together.
    const TURNS_MAX: u32 = 4096;

    /// Sizes and weights.
    pub fn parts(&self) -> &[(usize, u32)] {
        &self.0
    }

    /// The largest.
    pub fn largest(&self) -> usize {
        self.0.iter().map(|(size, _)| *size).max().unwrap_or_default()
    }

    /// The path MTU that carries all of them.
    pub fn pmtu(&self) -> Pmtu {
        let fits = |p: &Pmtu| p.bytes() >= self.largest();
        Pmtu::ALL.into_iter().find(fits).unwrap_or(Pmtu::B4096)
    }

    /// One turn: which size follows which, spread as evenly as weights allow.
    pub(crate) fn turn(&self) -> Vec<usize> {
        let total: u32 = self.0.iter().map(|(_, weight)| weight).sum();
        let mut credits = vec![0_i64; self.0.len()];
        let mut turn = Vec::with_capacity(total as usize);
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
            turn.push(chosen);
        }
        turn
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
            Some(total) if total <= Self::TURNS_MAX => Ok(Self(sizes)),
            _ => bad(format!("the weights together are more than {}", Self::TURNS_MAX)),
        }
    }
}

/// How fast: `flat`, frames per second (`2M`, `500k`) or bits of frames per second (`10Gbps`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Rate {
    /// As fast as it goes.
    #[default]
    Flat,
    /// Frames per second, all hosts together.
    Frames(f64),
    /// Bits per second of whole frames, without FCS, preamble and gap; all hosts together.
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

/// Of how many frames that come the ICRC, and of results the sum, is looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Check {
    /// Of none.
    None,
    /// Of every 64th.
    #[default]
    Sample,
    /// Of all: costs the sink more than the switch needs.
    All,
}

impl Check {
    /// Whether the frame with this number is looked at.
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
        match text {
            "none" => Ok(Self::None),
            "sample" => Ok(Self::Sample),
            "all" => Ok(Self::All),
            _ => bad(format!("'{text}' is neither none, sample nor all")),
        }
    }
}

/// What is to be sent.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Scenario {
    /// Which patterns.
    pub workload: Workload,
    /// Payload sizes of data. Contributions have the path MTU that carries the largest.
    pub sizes: Sizes,
    /// Groups of each pattern.
    pub groups: usize,
    /// Receivers of each multicast group, ranks of each collective group.
    pub receivers: usize,
    /// Data frames from one acknowledgement to the next; at least 1.
    pub message: u32,
    /// Data frames, or PSNs to be acknowledged, that one group may have under way; at least 2.
    pub window: u32,
    /// NAKs of one burst.
    pub burst: u32,
    /// How fast.
    pub rate: Rate,
    /// The end, after so many frames of the pattern, all hosts together; contributions are rounded up to as many of each rank.
    pub frames: Option<u64>,
    /// What is looked at.
    pub check: Check,
}

impl Scenario {
    /// Of one group with eight members, 1024 bytes, flat out.
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
    fn words_of_operators_are_read() {
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
        fn a_turn_has_each_size_as_often_as_its_weight_says_and_spread_out(
            weights in proptest::collection::vec(1_u32..20, 1..6)
        ) {
            let sizes = Sizes(weights.iter().map(|w| (64, *w)).collect());
            let turn = sizes.turn();
            let total: u32 = weights.iter().sum();
            for (i, weight) in weights.iter().enumerate() {
                prop_assert_eq!(turn.iter().filter(|t| **t == i).count() as u32, *weight);
                // Up to any place, it is never further than one frame per size from its share.
                for upto in 1..=turn.len() {
                    let had = turn[..upto].iter().filter(|t| **t == i).count() as f64;
                    let fair = upto as f64 * f64::from(*weight) / f64::from(total);
                    prop_assert!((had - fair).abs() <= weights.len() as f64);
                }
            }
        }
    }
}
