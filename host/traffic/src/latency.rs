//! Latency of data, from a timestamp in its payload.

use hdrhistogram::Histogram;
use serde::Serialize;

/// Nanoseconds from making a frame to receiving the batch with its copy, over ports, rings and the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Latency {
    /// Number of samples.
    pub samples: u64,
    /// Median.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// Maximum.
    pub max_ns: u64,
}

/// A histogram with two significant digits, up to ten seconds.
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
