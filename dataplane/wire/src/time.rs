//! Time as an argument: nanoseconds on a monotonic clock. The caller defines the origin.

use core::fmt;
use core::ops::{Add, AddAssign, Sub};

/// A point on a monotonic clock, or a span between two of them, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The origin of the clock.
    pub const ZERO: Self = Self(0);
    /// Later than any point that is reached.
    pub const MAX: Self = Self(u64::MAX);

    /// A span of whole microseconds.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros * 1_000)
    }

    /// A span of whole milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis * 1_000_000)
    }

    /// A span of whole seconds.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs * 1_000_000_000)
    }

    /// The span from `earlier` to `self`; zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }

    /// The span in seconds.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

impl Add for Nanos {
    type Output = Self;
    fn add(self, span: Self) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl AddAssign for Nanos {
    fn add_assign(&mut self, span: Self) {
        *self = *self + span;
    }
}

impl Sub for Nanos {
    type Output = Self;
    fn sub(self, earlier: Self) -> Self {
        self.since(earlier)
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            n if n < 10_000 => write!(f, "{n} ns"),
            n if n < 10_000_000 => write!(f, "{} us", n / 1_000),
            n if n < 10_000_000_000 => write!(f, "{} ms", n / 1_000_000),
            n => write!(f, "{:.1} s", n as f64 / 1e9),
        }
    }
}
