//! Results of a bench, for people and machines.

use std::collections::BTreeMap;

use castnet_console::api;
use castnet_console::columns;
use castnet_console::drops;
use castnet_console::exit::{Failure, Outcome};
use castnet_console::output::{Done, Output, Page, Report};
use castnet_console::units::{count, span};
use castnet_traffic::drive::Played;
use castnet_traffic::{Counts, FlowCounts, FlowReport, HostReport, Latency, Rate, Scenario};
use castnet_wire::{CounterSet, Drops, names};
use serde::Serialize;

use super::measure::{Course, SwitchNow};

/// A worker with a smaller share of idle time has limited the rate.
const BUSY: f64 = 0.05;

#[derive(Debug, Serialize)]
pub(super) struct BenchReport {
    /// Where switch and hosts were.
    pub(super) setting: String,
    pub(super) runs: Vec<RunReport>,
    /// Why there are no further runs.
    #[serde(skip)]
    failure: Option<Failure>,
}

names! {
    /// What limited the rate.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
    #[serde(rename_all = "lowercase")]
    pub(super) enum Bound {
        /// The worker's core had no time left.
        Switch => "switch",
        /// The hosts' threads, or rings and windows.
        Hosts => "hosts",
        /// The requested rate.
        Rate => "rate",
        /// Switch and hosts share one core, which had no time left.
        Core => "core",
    }
}

/// Times of the worker per frame in, in a sample of its polls.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Parts {
    /// Polling and receiving; over core: making frames.
    pub(super) receive_ns: f64,
    /// Parsing, deciding, rewriting, copying.
    pub(super) engine_ns: f64,
    /// Sending; over core: counting received frames.
    pub(super) send_ns: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct RunReport {
    #[serde(flatten)]
    scenario: Scenario,
    /// Measured time.
    seconds: f64,
    /// Frames of the pattern, per second.
    pattern_fps: f64,
    /// Into the switch and out of it, per second.
    in_fps: f64,
    out_fps: f64,
    in_bps: f64,
    out_bps: f64,
    /// The worker's busy time per frame in and out.
    in_ns: Option<f64>,
    out_ns: Option<f64>,
    parts: Option<Parts>,
    /// Share of time in which the worker found no frame.
    idle: Option<f64>,
    /// Share of time in which the worker had its core. Times per frame are of that share alone.
    on_core: Option<f64>,
    bound: Option<Bound>,
    /// Whether the switch's counters were read; else frames in and out are what hosts sent and got.
    switch_read: bool,
    /// Dropped in the switch over the whole run, by reason; and frames that its ports missed.
    drops: Vec<api::DropCount>,
    switch_missed: u64,
    /// Not sent, or missed, by ports of hosts.
    host_drops: Vec<api::DropCount>,
    host_missed: u64,
    latency: Option<Latency>,
    /// Over the whole run.
    hosts: Counts,
    /// All flows over the whole run.
    total: FlowCounts,
    /// Empty without `--flows`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) flows: Vec<FlowReport>,
    /// By a signal.
    pub(super) interrupted: bool,
}

impl RunReport {
    pub(super) fn new(scenario: &Scenario, course: &Course, played: &[Played], one_core: bool) -> Self {
        let (from, to) = (&course.from, &course.to);
        let seconds = to.at.duration_since(from.at).as_secs_f64().max(1e-9);
        let rate = |from: u64, to: u64| to.saturating_sub(from) as f64 / seconds;
        let switch = from.switch.as_ref().zip(to.switch.as_ref());
        let [frames_in, frames_out, bytes_in, bytes_out] = match switch {
            Some((from, to)) => [
                (from.received, to.received),
                (from.sent, to.sent),
                (from.rx_bytes, to.rx_bytes),
                (from.tx_bytes, to.tx_bytes),
            ],
            None => [
                (from.hosts.sent, to.hosts.sent),
                (from.hosts.received, to.hosts.received),
                (from.hosts.sent_bytes, to.hosts.sent_bytes),
                (from.hosts.received_bytes, to.hosts.received_bytes),
            ],
        };
        let worker = switch.and_then(|(from, to)| from.worker.zip(to.worker));
        let times = worker.map(|(from, to)| {
            let elapsed = to.elapsed_ns.saturating_sub(from.elapsed_ns) as f64;
            let idle = to.idle_ns.saturating_sub(from.idle_ns) as f64;
            let share = |part: f64| {
                if elapsed > 0.0 {
                    (part / elapsed).min(1.0)
                } else {
                    0.0
                }
            };
            let cpu = from.cpu_ns.zip(to.cpu_ns);
            let on_core = cpu.map(|(from, to)| share(to.saturating_sub(from) as f64));
            // Other threads took the core from busy and idle polls alike.
            ((elapsed - idle) * on_core.unwrap_or(1.0), share(idle), on_core)
        });
        let per = |busy: f64, (from, to): (u64, u64)| (to > from).then(|| busy / (to - from) as f64);
        let parts = worker.and_then(|(from, to)| {
            let frames = to.clocks.frames.saturating_sub(from.clocks.frames);
            let ns = 1e9 / to.clock_hz.max(1) as f64 / frames.max(1) as f64;
            let part = |from: u64, to: u64| to.saturating_sub(from) as f64 * ns;
            (frames > 0 && to.clock_hz > 0).then(|| Parts {
                receive_ns: part(from.clocks.receive, to.clocks.receive),
                engine_ns: part(from.clocks.engine, to.clocks.engine),
                send_ns: part(from.clocks.send, to.clocks.send),
            })
        });
        let idle = times.map(|(_, idle, _)| idle);
        let bound = idle.map(|idle| match scenario.rate {
            _ if one_core && scenario.rate == Rate::Flat => Bound::Core,
            _ if idle < BUSY => Bound::Switch,
            Rate::Flat => Bound::Hosts,
            Rate::Frames(_) | Rate::Bits(_) => Bound::Rate,
        });
        let mut flows: Vec<FlowReport> = played.iter().flat_map(|p| p.host.flows.iter().cloned()).collect();
        let (mut total, mut hosts) = (FlowCounts::default(), Counts::default());
        settle(&mut flows);
        flows.iter().for_each(|f| total.add(&f.counts));
        played.iter().for_each(|p| hosts.add(&p.host.counts));
        let mut host_drops = Drops::default();
        played.iter().for_each(|p| host_drops.add(&p.port.drops));
        let whole = course.begin.switch.as_ref().zip(course.end.switch.as_ref());
        Self {
            scenario: scenario.clone(),
            seconds,
            pattern_fps: rate(from.hosts.driven, to.hosts.driven),
            in_fps: rate(frames_in.0, frames_in.1),
            out_fps: rate(frames_out.0, frames_out.1),
            in_bps: 8.0 * rate(bytes_in.0, bytes_in.1),
            out_bps: 8.0 * rate(bytes_out.0, bytes_out.1),
            in_ns: times.and_then(|(busy, ..)| per(busy, frames_in)),
            out_ns: times.and_then(|(busy, ..)| per(busy, frames_out)),
            parts,
            idle,
            on_core: times.and_then(|(_, _, on_core)| on_core),
            bound,
            switch_read: switch.is_some(),
            drops: whole.map(|(begin, end)| drops(begin, end)).unwrap_or_default(),
            switch_missed: whole.map_or(0, |(begin, end)| end.missed.saturating_sub(begin.missed)),
            host_drops: drops::list(&host_drops),
            host_missed: played.iter().map(|p| p.port.rx_missed).sum(),
            // On one core, a frame spends no time outside the switch.
            latency: (!one_core)
                .then(|| HostReport::latency(played.iter().map(|p| &p.host)))
                .flatten(),
            hosts,
            total,
            flows,
            interrupted: course.interrupted,
        }
    }

    fn dropped(&self) -> u64 {
        self.drops.iter().map(|d| d.frames).sum::<u64>() + self.switch_missed
    }

    fn cells(&self) -> Vec<String> {
        let mega = |fps: f64| format!("{:.2}", fps / 1e6);
        let giga = |bps: f64| format!("{:.2}", bps / 1e9);
        let ns = |ns: Option<f64>| ns.map_or_else(|| "-".to_owned(), |ns| format!("{ns:.1}"));
        vec![
            self.scenario.workload.name().to_owned(),
            self.scenario.sizes.to_string(),
            format!("{} x {}", self.scenario.groups, self.scenario.receivers),
            mega(self.in_fps),
            mega(self.out_fps),
            giga(self.in_bps),
            giga(self.out_bps),
            ns(self.in_ns),
            ns(self.out_ns),
            ns(self.parts.map(|p| p.engine_ns)),
            ns(self.parts.map(|p| p.receive_ns + p.send_ns)),
            self.bound.map_or("-", Bound::name).to_owned(),
            count(self.dropped()),
            count(self.total.missing),
        ]
    }

    /// Facts that are not in the table.
    fn remarks(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let list = |rows: &[api::DropCount]| {
            let rows = rows.iter().map(|d| format!("{} {}", d.reason, count(d.frames)));
            rows.collect::<Vec<_>>().join(", ")
        };
        if !self.drops.is_empty() {
            lines.push(format!("dropped by the switch: {}", list(&self.drops)));
        }
        if self.switch_missed > 0 {
            lines.push(format!(
                "missed by the switch's ports: {}",
                count(self.switch_missed)
            ));
        }
        if !self.host_drops.is_empty() {
            lines.push(format!("dropped by the hosts' ports: {}", list(&self.host_drops)));
        }
        if self.host_missed > 0 {
            lines.push(format!("missed by the hosts' ports: {}", count(self.host_missed)));
        }
        let total = &self.total;
        let bad: Vec<String> = [
            (total.missing, "missing at the receivers"),
            (total.bad_icrc, "with a wrong ICRC"),
            (total.wrong_results, "with a wrong sum"),
            (total.timeouts, "time-outs after which a flow went on"),
            (self.hosts.others, "for no simulated host"),
        ]
        .iter()
        .filter(|(n, _)| *n > 0)
        .map(|(n, what)| format!("{} {what}", count(*n)))
        .collect();
        if !bad.is_empty() {
            lines.push(format!("frames {}", bad.join(", ")));
        }
        if let Some(latency) = &self.latency {
            let time = |ns: u64| span(std::time::Duration::from_nanos(ns));
            lines.push(format!(
                "latency, from host to host: half {}, 99 % {}, 99.9 % {}, at most {}",
                time(latency.p50_ns),
                time(latency.p99_ns),
                time(latency.p999_ns),
                time(latency.max_ns)
            ));
        }
        if let Some(share) = self.on_core.filter(|share| *share < 1.0 - BUSY) {
            lines.push(format!(
                "other threads had the worker's core for {:.0} % of the time: this lowers the rates, not the times per frame",
                100.0 * (1.0 - share)
            ));
        }
        if self.interrupted {
            lines.push(format!("cut short after {:.1} s", self.seconds));
        }
        lines
    }
}

/// Counts missing frames at each receiver by what was sent: a receiver does not see a gap at the end.
fn settle(flows: &mut [FlowReport]) {
    let sources = flows.iter().filter(|f| f.role == "source");
    let sent: BTreeMap<String, u64> = sources.map(|f| (f.group.clone(), f.counts.data_sent)).collect();
    for flow in flows.iter_mut().filter(|f| f.role == "receiver") {
        let came = flow.counts.data_received.saturating_sub(flow.counts.repeats);
        flow.counts.missing = sent.get(&flow.group).map_or(0, |sent| sent.saturating_sub(came));
    }
}

fn drops(begin: &SwitchNow, end: &SwitchNow) -> Vec<api::DropCount> {
    let before = |reason: &str| {
        let row = begin.drops.iter().find(|row| row.reason == reason);
        row.map_or(0, |row| row.frames)
    };
    let rows = end.drops.iter().map(|row| api::DropCount {
        reason: row.reason.clone(),
        frames: row.frames.saturating_sub(before(&row.reason)),
    });
    rows.filter(|row| row.frames > 0).collect()
}

const COLUMNS: [&str; 14] = [
    "pattern",
    "payload",
    "groups",
    "M/s in",
    "M/s out",
    "Gb/s in",
    "Gb/s out",
    "ns in",
    "ns out",
    "engine ns",
    "ports ns",
    "bound by",
    "drops",
    "missing",
];

/// As a row.
#[derive(Serialize)]
#[serde(transparent)]
struct FlowRow<'r>(&'r FlowReport);

columns!(flow: FlowRow<'_> => (flow.0) { host, group, role } (flow.0.counts) {
    data_sent, repeated, data_received, repeats, missing,
});

impl BenchReport {
    pub(super) fn new(setting: String) -> Self {
        Self {
            setting,
            runs: Vec::new(),
            failure: None,
        }
    }

    /// Adds a run, and whether its groups were removed. Returns whether another run may follow.
    pub(super) fn add(&mut self, run: Outcome<RunReport>, removed: Outcome) -> bool {
        self.failure = match (run.map(|run| self.runs.push(run)), removed) {
            (Err(failure), Err(left)) => Some(Failure {
                what: format!("{failure}; {left}"),
                ..failure
            }),
            (ran, removed) => ran.and(removed).err(),
        };
        self.failure.is_none() && self.runs.iter().all(|run| !run.interrupted)
    }

    /// A table of all runs; in JSON one object a line for each.
    pub(super) fn show(&self, output: Output) -> Outcome {
        #[derive(Serialize)]
        struct Line<'a> {
            setting: &'a str,
            #[serde(flatten)]
            run: &'a RunReport,
        }
        if !output.is_json() && !self.runs.is_empty() {
            return output.show(self);
        }
        self.runs.iter().try_for_each(|run| {
            let setting = &self.setting;
            output.show_next(&Done {
                facts: Line { setting, run },
                sentence: String::new(),
            })
        })
    }

    /// An error if a run failed, nothing was measured, or the switch has computed something wrong.
    pub(super) fn verdict(&self) -> Outcome {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        if let Some(run) = self.runs.iter().find(|run| run.total.wrong_results > 0) {
            let wrong = count(run.total.wrong_results);
            let what = format!(
                "{}: {wrong} of the checked results are not the sum",
                run.scenario.workload
            );
            return Err(Failure::failed(what));
        }
        let deaf = |run: &&RunReport| run.hosts.sent > 0 && run.hosts.received == 0 && !run.interrupted;
        match self.runs.iter().find(deaf) {
            Some(run) => Err(Failure::failed(format!(
                "{}: {} frames were sent, and nothing came back",
                run.scenario.workload,
                count(run.hosts.sent)
            ))
            .next("see that each --port is connected to the switch's port of that name: castnet port, castnet counters and castnet drops show what it gets")),
            None => Ok(()),
        }
    }
}

impl Report for BenchReport {
    fn page(&self, page: &mut Page) {
        page.line(&self.setting);
        if self.runs.iter().any(|run| !run.switch_read) {
            page.line("the switch's counters were not read: in and out are what the hosts sent and received (--switch URL reads them)");
        }
        page.line("");
        page.table(&COLUMNS, self.runs.iter().map(RunReport::cells).collect());
        for run in &self.runs {
            let remarks = run.remarks();
            if !remarks.is_empty() {
                page.title(format!("{} {}", run.scenario.workload, run.scenario.sizes));
                remarks.iter().for_each(|line| page.line(format!("  {line}")));
            }
            if !run.flows.is_empty() {
                page.title(format!(
                    "{} {}, by flow",
                    run.scenario.workload, run.scenario.sizes
                ));
                let flows: Vec<_> = run.flows.iter().map(FlowRow).collect();
                page.rows(&flows, "none");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use castnet_traffic::Pattern;

    use super::super::measure::Moment;
    use super::*;

    #[test]
    fn a_wrong_sum_is_a_failure() {
        let moment = Moment {
            at: Instant::now(),
            hosts: Counts::default(),
            switch: None,
        };
        let course = Course {
            begin: moment.clone(),
            from: moment.clone(),
            to: moment.clone(),
            end: moment,
            interrupted: false,
        };
        let scenario = Scenario::new(Pattern::Aggregate.into());
        let mut bench = BenchReport::new("a switch".to_owned());
        bench.runs.push(RunReport::new(&scenario, &course, &[], true));
        assert!(bench.verdict().is_ok());
        bench.runs[0].total.wrong_results = 2;
        let failure = bench.verdict().expect_err("sums are wrong");
        assert!(failure.what.contains("2 of the checked results"), "{failure}");
        assert_eq!(failure.code(), 1);
    }
}
