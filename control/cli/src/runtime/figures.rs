//! Figures from two readings of a switch's workers.

use castnet_console::api;
use castnet_console::output::named;
use castnet_console::units::count;
use castnet_wire::{CounterSet, names};
use castnet_worker::{Clocks, WorkerCounters, copy_clocks, copy_worker_counters};
use serde::Serialize;

use crate::port::PortNames;

/// Ranges of batch sizes, first and last.
pub(super) const BATCHES: [(usize, usize); 6] = [(1, 1), (2, 4), (5, 8), (9, 16), (17, 31), (32, 32)];
/// A ring that was filled to this share will lose frames soon.
const FULL: f64 = 0.75;
/// A worker that was idle for a smaller share is overloaded.
const BUSY: f64 = 0.05;

/// What the workers did between two readings.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Runtime {
    pub(super) uptime_s: f64,
    /// Seconds between the readings.
    pub(super) seconds: f64,
    pub(super) since_start: bool,
    pub(super) workers: Vec<WorkerRow>,
    pub(super) rings: Vec<RingRow>,
    pub(super) hints: Vec<String>,
}

/// What a worker did in that time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct WorkerRow {
    pub(super) worker: u32,
    pub(super) core: Option<u32>,
    pub(super) idle_share: f64,
    #[serde(flatten, serialize_with = "named")]
    pub(super) counters: WorkerCounters,
    pub(super) frames_per_s: f64,
    pub(super) batches: u64,
    pub(super) batch_mean: Option<f64>,
    pub(super) batch_sizes: Vec<BatchSize>,
    /// All clocks, for each frame of ports and of other workers.
    pub(super) clocks_per_frame: Option<f64>,
    pub(super) ns_per_frame: Option<f64>,
    /// A sample of where they were spent.
    pub(super) parts: Option<Parts>,
    pub(super) clock_hz: u64,
    pub(super) buffers: u64,
    pub(super) buffers_free: u64,
    pub(super) bodies_free: u64,
    pub(super) exhausted: u64,
    pub(super) groups: u32,
    pub(super) group_memory_bytes: u64,
    pub(super) generation: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct BatchSize {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) batches: u64,
}

/// Clocks per frame of the parts of a worker's polls.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Parts {
    pub(super) frames: u64,
    pub(super) receive: f64,
    pub(super) hand_over: f64,
    pub(super) engine: f64,
    pub(super) send: f64,
    pub(super) other: f64,
}

names! {
    /// Where a ring comes from.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
    #[serde(rename_all = "lowercase")]
    pub(super) enum Kind {
        /// A port.
        Port => "port",
        /// Another worker.
        Worker => "worker",
    }
}

/// How full a ring was in that time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct RingRow {
    pub(super) worker: u32,
    pub(super) kind: Kind,
    /// Port name, or worker number.
    pub(super) from: String,
    pub(super) size: u64,
    pub(super) samples: u64,
    pub(super) used_mean: Option<f64>,
    /// To a sixteenth of the size, unless it is the most since the start.
    pub(super) used_max: Option<u64>,
}

/// `None` for nothing to divide by.
fn per(sum: f64, by: u64) -> Option<f64> {
    (by > 0).then(|| sum / by as f64)
}

impl Runtime {
    /// From `before` to `now`. Since the start without a reading before, or if the switch has restarted since then.
    pub(super) fn new(
        before: Option<&api::RuntimeStats>,
        now: &api::RuntimeStats,
        ports: &PortNames,
    ) -> Self {
        let before = before.filter(|b| b.uptime_ns < now.uptime_ns);
        let uptime_s = now.uptime_ns as f64 / 1e9;
        let seconds = (now.uptime_ns - before.map_or(0, |b| b.uptime_ns)) as f64 / 1e9;
        let (mut workers, mut rings) = (Vec::new(), Vec::new());
        for worker in &now.workers {
            let nothing = api::WorkerStats::default();
            let earlier = before.and_then(|b| b.workers.iter().find(|w| w.worker == worker.worker));
            let earlier = earlier.unwrap_or(&nothing);
            workers.push(WorkerRow::new(earlier, worker));
            for ring in &worker.rings {
                let before = earlier.rings.iter().find(|r| r.from == ring.from);
                rings.extend(RingRow::new(worker.worker, before, ring, ports));
            }
        }
        let hints = hints(&workers, &rings);
        Self {
            uptime_s,
            seconds,
            since_start: before.is_none(),
            workers,
            rings,
            hints,
        }
    }
}

impl WorkerRow {
    fn new(before: &api::WorkerStats, now: &api::WorkerStats) -> Self {
        let grown = |of: fn(&api::WorkerStats) -> u64| of(now).saturating_sub(of(before));
        let elapsed = grown(|w| w.elapsed_ns);
        let idle = grown(|w| w.idle_ns).min(elapsed);
        let all = |stats: &api::WorkerStats| copy_worker_counters!(stats => WorkerCounters);
        let counters = all(now).since(&all(before));
        let frames = counters.frames;
        let ns_per_frame = per((elapsed - idle) as f64, frames + counters.taken_over);
        let sizes: Vec<u64> = now
            .batch_sizes
            .iter()
            .enumerate()
            .map(|(i, n)| n.saturating_sub(before.batch_sizes.get(i).copied().unwrap_or(0)))
            .collect();
        let batches = sizes.iter().sum();
        let batch_sizes = BATCHES.map(|(from, to)| BatchSize {
            from,
            to,
            batches: sizes.iter().skip(from).take(to - from + 1).sum(),
        });
        let buffers = now.buffers.unwrap_or_default();
        Self {
            worker: now.worker,
            core: now.core,
            idle_share: per(idle as f64, elapsed).unwrap_or(0.0),
            counters,
            frames_per_s: per(frames as f64 * 1e9, elapsed).unwrap_or(0.0),
            batches,
            batch_mean: per(frames as f64, batches),
            batch_sizes: batch_sizes.into(),
            clocks_per_frame: ns_per_frame.map(|ns| ns * now.clock_hz as f64 / 1e9),
            ns_per_frame,
            parts: Parts::new(
                &before.clocks.unwrap_or_default(),
                &now.clocks.unwrap_or_default(),
            ),
            clock_hz: now.clock_hz,
            buffers: buffers.buffers,
            buffers_free: buffers.buffers_free,
            bodies_free: buffers.bodies_free,
            exhausted: buffers
                .exhausted
                .saturating_sub(before.buffers.map_or(0, |b| b.exhausted)),
            groups: now.groups,
            group_memory_bytes: now.group_memory_bytes,
            generation: now.generation,
        }
    }
}

impl Parts {
    fn new(before: &api::ClockStats, now: &api::ClockStats) -> Option<Self> {
        let all = |stats: &api::ClockStats| copy_clocks!(stats => Clocks);
        let clocks = all(now).since(&all(before));
        let each = |part: u64| per(part as f64, clocks.frames);
        let named = clocks.receive + clocks.hand_over + clocks.engine + clocks.send;
        Some(Self {
            frames: clocks.frames,
            receive: each(clocks.receive)?,
            hand_over: each(clocks.hand_over)?,
            engine: each(clocks.engine)?,
            send: each(clocks.send)?,
            other: each(clocks.all.saturating_sub(named))?,
        })
    }
}

impl RingRow {
    fn new(
        worker: u32,
        before: Option<&api::RingStats>,
        now: &api::RingStats,
        ports: &PortNames,
    ) -> Option<Self> {
        let (kind, from) = match now.from? {
            api::ring_stats::From::Port(port) => (Kind::Port, ports.name(port)),
            api::ring_stats::From::Worker(worker) => (Kind::Worker, worker.to_string()),
        };
        let nothing = api::RingStats::default();
        let before = before.unwrap_or(&nothing);
        let samples = now.samples.saturating_sub(before.samples);
        let used = now.used_sum.saturating_sub(before.used_sum);
        Some(Self {
            worker,
            kind,
            from,
            size: now.size,
            samples,
            used_mean: per(used as f64, samples),
            used_max: used_max(before, now),
        })
    }
}

fn used_max(before: &api::RingStats, now: &api::RingStats) -> Option<u64> {
    if now.used_max > before.used_max {
        return Some(now.used_max);
    }
    let sixteenths = now.levels.len().saturating_sub(1).max(1) as u64;
    let grew = |(i, n): (usize, &u64)| *n > before.levels.get(i).copied().unwrap_or(0);
    let level = now.levels.iter().enumerate().rposition(grew)? as u64;
    Some((now.size * level / sixteenths).min(now.used_max))
}

fn hints(workers: &[WorkerRow], rings: &[RingRow]) -> Vec<String> {
    let mut hints = Vec::new();
    for worker in workers {
        let name = format!("Worker {}", worker.worker);
        let fullest = rings
            .iter()
            .filter(|ring| ring.worker == worker.worker)
            .map(|ring| (ring, ring.used_max.unwrap_or(0) as f64 / ring.size.max(1) as f64))
            .max_by(|(_, a), (_, b)| a.total_cmp(b));
        if let Some((ring, share)) = fullest.filter(|(_, share)| *share >= FULL) {
            let ring = format!(
                "its ring from {} {} was {:.0} % full",
                ring.kind.name(),
                ring.from,
                share * 100.0
            );
            hints.push(if worker.idle_share < BUSY {
                format!(
                    "{name} is overloaded: {ring}, and it is never idle. Move groups to other workers (castnet group move), \
                     add workers (--worker core=N), or give the port more queues (queues=N)."
                )
            } else {
                format!(
                    "{name} was held up: {ring}, although it had idle time. For bursts, give the port a larger ring (rx=FRAMES); \
                     if other threads use the core, give the worker a core of its own (castnet doctor --for speed)."
                )
            });
        }
        if worker.counters.hand_over_drops > 0 {
            let frames = count(worker.counters.hand_over_drops);
            hints.push(format!(
                "{name} dropped {frames} frames of groups of other workers, which were too slow to receive them: see which of them \
                 is never idle."
            ));
        }
        if worker.exhausted > 0 {
            let times = count(worker.exhausted);
            hints.push(format!(
                "{name} had no free buffer {times} times: frames wait or are lost. Buffers are held for receivers that do not \
                 acknowledge, by delayed ports and by too large rings."
            ));
        }
    }
    hints
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(samples: u64, used_sum: u64, used_max: u64, level: usize, times: u64) -> api::RingStats {
        let mut levels = vec![0; 17];
        levels[level] = times;
        api::RingStats {
            from: Some(api::ring_stats::From::Port(0)),
            size: 1024,
            samples,
            used_sum,
            used_max,
            levels,
        }
    }

    fn reading(uptime_ns: u64, frames: u64, idle_ns: u64, rings: Vec<api::RingStats>) -> api::RuntimeStats {
        let mut batch_sizes = vec![0; 33];
        batch_sizes[32] = frames / 32;
        batch_sizes[1] = frames % 32;
        let clocks = api::ClockStats {
            polls: frames / 256,
            frames: frames / 8,
            receive: frames,
            hand_over: 0,
            engine: frames * 10,
            send: frames * 3,
            all: frames * 15,
        };
        let worker = api::WorkerStats {
            worker: 0,
            core: Some(2),
            frames,
            elapsed_ns: uptime_ns,
            idle_ns,
            batch_sizes,
            clock_hz: 2_000_000_000,
            clocks: Some(clocks),
            rings,
            ..Default::default()
        };
        api::RuntimeStats {
            workers: vec![worker],
            uptime_ns,
        }
    }

    fn close(value: Option<f64>, to: f64) -> bool {
        value.is_some_and(|v| (v - to).abs() < 1e-6)
    }

    #[test]
    fn figures_are_differences_of_two_readings() {
        let before = reading(1_000_000_000, 64_000, 900_000_000, vec![ring(10, 100, 40, 1, 10)]);
        let now = reading(
            2_000_000_000,
            1_064_000,
            1_800_000_000,
            vec![ring(20, 2_100, 512, 8, 10)],
        );
        let runtime = Runtime::new(Some(&before), &now, &PortNames::of(&["h1"]));
        assert!(!runtime.since_start && runtime.seconds == 1.0 && runtime.hints.is_empty());
        let worker = &runtime.workers[0];
        assert_eq!((worker.counters.frames, worker.core), (1_000_000, Some(2)));
        assert!((worker.idle_share - 0.9).abs() < 1e-9 && worker.frames_per_s == 1e6);
        // 0.1 s of work for a million frames.
        assert!(close(worker.ns_per_frame, 100.0) && close(worker.clocks_per_frame, 200.0));
        let parts = worker.parts.as_ref().expect("measured");
        assert_eq!((parts.receive, parts.engine, parts.send), (8.0, 80.0, 24.0));
        assert_eq!((parts.hand_over, parts.other, parts.frames), (0.0, 8.0, 125_000));
        let sizes: Vec<_> = worker.batch_sizes.iter().map(|b| b.batches).collect();
        assert_eq!(sizes, [0, 0, 0, 0, 0, 31_250]);
        assert!(close(worker.batch_mean, 32.0));
        let ring = &runtime.rings[0];
        assert_eq!((ring.from.as_str(), ring.size, ring.samples), ("h1", 1024, 10));
        assert!(close(ring.used_mean, 200.0));
        assert_eq!(ring.used_max, Some(512));
    }

    #[test]
    fn the_most_of_an_interval_is_known_to_a_sixteenth() {
        let names = PortNames::of(&["h1"]);
        let max = |before: api::RingStats, now: api::RingStats| {
            let (before, now) = (reading(1, 0, 0, vec![before]), reading(2, 0, 0, vec![now]));
            Runtime::new(Some(&before), &now, &names).rings[0].used_max
        };
        assert_eq!(max(ring(1, 0, 1000, 16, 1), ring(1, 0, 1000, 16, 1)), None);
        let mut later = ring(3, 0, 1000, 16, 1);
        later.levels[4] = 2;
        assert_eq!(max(ring(1, 0, 1000, 16, 1), later), Some(256));
        assert_eq!(max(ring(1, 0, 1000, 16, 1), ring(2, 0, 1000, 16, 2)), Some(1000));
    }

    #[test]
    fn without_frames_there_are_no_figures_per_frame() {
        let runtime = Runtime::new(None, &reading(5, 0, 5, vec![]), &PortNames::default());
        let worker = &runtime.workers[0];
        assert!(runtime.since_start && worker.parts.is_none() && worker.batch_mean.is_none());
        assert_eq!((worker.clocks_per_frame, worker.idle_share), (None, 1.0));
        let json = serde_json::to_value(&runtime).expect("JSON");
        assert!(json["workers"][0]["clocks_per_frame"].is_null() && json["hints"] == serde_json::json!([]));
    }

    #[test]
    fn a_switch_that_was_started_anew_is_read_since_its_start() {
        let old = reading(9_000_000_000, 500, 0, vec![]);
        let new = reading(1_000_000_000, 40, 0, vec![]);
        let runtime = Runtime::new(Some(&old), &new, &PortNames::default());
        assert!(runtime.since_start && runtime.workers[0].counters.frames == 40);
    }

    #[test]
    fn what_stands_out_is_said() {
        let names = PortNames::of(&["h1"]);
        let full = |idle: u64| {
            let now = reading(1_000_000_000, 64, idle, vec![ring(1, 1000, 1000, 16, 1)]);
            Runtime::new(None, &now, &names).hints
        };
        assert!(full(0)[0].contains("overloaded") && full(0)[0].contains("port h1 was 98 % full"));
        assert!(full(500_000_000)[0].contains("held up"));
        let mut now = reading(1_000_000_000, 64, 0, vec![]);
        now.workers[0].hand_over_drops = 7;
        now.workers[0].buffers = Some(api::BufferStats {
            exhausted: 3,
            ..Default::default()
        });
        let hints = Runtime::new(None, &now, &names).hints;
        assert!(
            hints[0].contains("dropped 7") && hints[1].contains("3 times"),
            "{hints:?}"
        );
    }
}
