//! Samples of several measurements that alternate, so that a slow period affects all alike.

use std::time::Duration;

/// Samples per figure. The lowest counts: other load only adds time. A sample is shorter than a time slice, so that
/// some are undisturbed.
pub const SAMPLES: usize = 200;

/// Nanoseconds per item of several measurements.
pub fn take<const N: usize>(mut measurements: [&mut dyn FnMut() -> (Duration, u64); N]) -> Vec<[f64; N]> {
    let mut each = || {
        measurements.each_mut().map(|take| {
            let (time, items) = take();
            time.as_nanos() as f64 / items as f64
        })
    };
    (0..SAMPLES).map(|_| each()).collect()
}

pub fn lowest_of<const N: usize>(samples: &[[f64; N]]) -> [f64; N] {
    std::array::from_fn(|i| samples.iter().map(|take| take[i]).fold(f64::MAX, f64::min))
}

/// Samples measurements, and returns the lowest of each.
pub fn lowest<const N: usize>(measurements: [&mut dyn FnMut() -> (Duration, u64); N]) -> [f64; N] {
    lowest_of(&take(measurements))
}

/// Median of a figure over all samples: right for a ratio, whose sides were sampled in the same period.
pub fn median<const N: usize>(samples: &[[f64; N]], figure: impl Fn(&[f64; N]) -> f64) -> f64 {
    let mut all: Vec<f64> = samples.iter().map(figure).collect();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}
