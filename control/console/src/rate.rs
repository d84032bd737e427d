//! The rate limit of a group: its flags, and how it is shown.

use std::str::FromStr;

use castnet_proto::convert::rate_limit_to_proto;
use castnet_rules::{BitRate, RateLimit};
use clap::Args;

use crate::api;
use crate::units::{Size, Span, bit_rate, bytes};

/// `--rate` and `--burst`. Here and in others, ids are the fields that flags fill: refusals name these ([`Flags`](crate::flags::Flags)).
#[derive(Clone, Debug, Default, Args)]
pub struct RateArgs {
    /// Most that the source, or each rank, sends to the group: bits per second of frames, such as 10G or 400M, all lanes together.
    /// The switch next to it drops the rest [default: no limit, or that of the tenant]
    #[arg(id = "rate_limit", long = "rate", value_name = "RATE")]
    rate: Option<BitRate>,
    /// How much it may send at once: bytes, or a time at this rate [default: 4ms, and at least 256KiB]
    #[arg(
        id = "rate_limit.burst_bytes",
        long = "burst",
        value_name = "BYTES|TIME",
        requires = "rate_limit"
    )]
    burst: Option<Burst>,
}

#[derive(Clone, Copy, Debug)]
enum Burst {
    Bytes(Size),
    Time(Span),
}

impl FromStr for Burst {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let size = text.parse().map(Self::Bytes);
        let burst = size.or_else(|_| text.parse().map(Self::Time));
        burst.map_err(|_| format!("'{text}' is no burst: write bytes or a time, such as 256KiB or 4ms"))
    }
}

impl RateArgs {
    /// What the flags say; `None` without `--rate`.
    pub fn limit(&self) -> Option<RateLimit> {
        let limit = RateLimit::of(self.rate?);
        let burst_bytes = match self.burst {
            None => limit.burst_bytes,
            Some(Burst::Bytes(size)) => size.0,
            Some(Burst::Time(span)) => {
                let bits = u128::from(limit.rate.bits_per_second()) * span.0.as_nanos() / 1_000_000_000;
                u64::try_from(bits / 8).unwrap_or(u64::MAX)
            }
        };
        Some(RateLimit { burst_bytes, ..limit })
    }

    /// The same as a message of the API.
    pub fn message(&self) -> Option<api::RateLimit> {
        // In messages 0 is the default: 1 byte is refused as too short.
        let limit = self.limit().map(|limit| RateLimit {
            burst_bytes: limit.burst_bytes.max(1),
            ..limit
        });
        limit.map(rate_limit_to_proto)
    }
}

/// For people.
pub fn text(limit: Option<api::RateLimit>) -> String {
    limit.map_or_else(
        || "none".to_owned(),
        |limit| {
            let (rate, burst) = (bit_rate(limit.bits_per_second as f64), bytes(limit.burst_bytes));
            format!("{rate} for each sender, in bursts of at most {burst}")
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_a_size_or_a_time() {
        let limit = |rate: &str, burst: Option<&str>| {
            let args = RateArgs {
                rate: Some(rate.parse().unwrap()),
                burst: burst.map(|burst| burst.parse().unwrap()),
            };
            args.limit().unwrap()
        };
        assert_eq!(limit("10G", Some("2ms")).burst_bytes, 2_500_000);
        assert_eq!(limit("10G", Some("1MiB")).burst_bytes, 1 << 20);
        assert_eq!(limit("10G", Some("9000")).burst_bytes, 9000);
        assert_eq!(limit("10G", None), RateLimit::of("10G".parse().unwrap()));
        assert_eq!(limit("1T", Some("100000h")).burst_bytes, u64::MAX);
        for bad in ["", "4 parsecs", "-1ms", "fast"] {
            assert!(bad.parse::<Burst>().is_err(), "{bad}");
        }
        let shown = text(Some(rate_limit_to_proto(limit("2.5G", Some("64KiB")))));
        assert_eq!(shown, "2.50 Gb/s for each sender, in bursts of at most 64 KiB");
    }
}
