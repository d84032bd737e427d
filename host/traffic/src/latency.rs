//! How long data took, from a time in its payload.

use hdrhistogram::Histogram;
use serde::Serialize;

/// From a frame's making to the batch in which its copy came, in nanoseconds. Ports, rings and the switch are in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Latency {
    /// Frames whose time was read.
    pub samples: u64,
    /// Half took no longer.
    pub p50_ns: u64,
    /// 99 of 100 took no longer.
    pub p99_ns: u64,
    /// 999 of 1000 took no longer.
    pub p999_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

/// Times, to two digits, up to ten seconds.
#[derive(Clone, Debug)]
pub(crate) struct Times(Histogram<u64>);

impl Times {
    pub(crate) fn new() -> Option<Self> {
        Histogram::new_with_bounds(1, 10_000_000_000, 2).ok().map(Self)
    }

    pub(crate) fn record(&mut self, ns: u64) {
        self.0.saturating_record(ns);
    }

    pub(crate) fn add(&mut self, other: &Self) {
        // Both have the same bounds.
        let _ = self.0.add(&other.0);
    }

    pub(crate) fn summary(&self) -> Option<Latency> {
        (!self.0.is_empty()).then(|| Latency {
            samples: self.0.len(),
            p50_ns: self.0.value_at_quantile(0.5),
            p99_ns: self.0.value_at_quantile(0.99),
            p999_ns: self.0.value_at_quantile(0.999),
            max_ns: self.0.max(),
        })
    }
}
