mod figures;

use std::time::Duration;

use castnet_console::api;
use castnet_console::columns;
use castnet_console::connect::AgentArgs;
use castnet_console::exit::Outcome;
use castnet_console::output::{Output, Page, Report, Row};
use castnet_console::units::{bytes, count};
use castnet_console::watch::WatchArgs;
use clap::Args;
use tokio::time::{Instant, sleep_until};

use crate::port::PortNames;
use figures::{BATCHES, RingRow, Runtime, WorkerRow};

/// The time between two readings without --watch.
const INTERVAL: Duration = Duration::from_secs(1);

/// Workers of a switch: clocks per frame, batches, idle share, rings, buffers
#[derive(Debug, Args)]
#[command(
    after_help = "The figures are differences between two readings, one second apart or, with --watch, the given time apart. Clocks are ticks of the processor's time stamp counter (TSC). The clocks of the parts (receive, hand-over, engine, send, other) are measured in one poll of 16, the fill levels of rings in one poll of 64.

Columns (docs/runtime.md explains all of them):
  idle          share of the time without frames; with --idle busy, the worker uses its core
                all the time nevertheless
  batch         mean number of frames per batch, 32 at most; large batches make frames cheap
  clocks/frame  all clocks of the worker divided by its frames; clock rate / clocks per frame =
                frames per second that the core can do
  rings, max    the most frames in a ring; a ring that is nearly full will lose frames: the worker
                is overloaded, or was interrupted

Examples:
  castnet runtime                             figures over one second
  castnet runtime --since-start               figures since the switch started
  castnet runtime --watch 5s                  figures of each five seconds, until Ctrl-C
  castnet runtime --watch --output json       one JSON object a line, for scripts"
)]
pub(crate) struct RuntimeCommand {
    /// Figures since the switch started
    #[arg(long, conflicts_with = "watch")]
    since_start: bool,
    #[command(flatten)]
    watch: WatchArgs,
    #[command(flatten)]
    agent: AgentArgs,
}

impl RuntimeCommand {
    pub(crate) async fn run(self, output: Output) -> Outcome {
        let mut agent = self.agent.connect().await?;
        let names = PortNames::fetch(&mut agent).await?;
        if self.since_start {
            let now = read(&mut agent).await?;
            return output.show(&Runtime::new(None, &now, &names));
        }
        let every = self.watch.every().unwrap_or(INTERVAL);
        let (mut at, mut before) = (Instant::now(), read(&mut agent).await?);
        let look = async || {
            sleep_until(at + every).await;
            at = Instant::now();
            let now = read(&mut agent).await?;
            let report = Runtime::new(Some(&before), &now, &names);
            before = now;
            Ok(report)
        };
        self.watch.show(output, look).await
    }
}

async fn read(agent: &mut api::AgentClient) -> Outcome<api::RuntimeStats> {
    let stats = agent.get_runtime_stats(api::GetRuntimeStatsRequest {}).await?;
    Ok(stats.into_inner())
}

fn figure(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |v| format!("{v:.digits$}"))
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

impl Row for WorkerRow {
    const COLUMNS: &'static [&'static str] = &[
        "worker",
        "core",
        "idle",
        "frames/s",
        "clocks/frame",
        "ns/frame",
        "receive",
        "hand-over",
        "engine",
        "send",
        "other",
        "batch",
    ];

    fn cells(&self) -> Vec<String> {
        let parts = self.parts.as_ref();
        vec![
            self.worker.to_string(),
            self.core
                .map_or_else(|| "any".to_owned(), |core| core.to_string()),
            percent(self.idle_share),
            count(self.frames_per_s as u64),
            figure(self.clocks_per_frame, 0),
            figure(self.ns_per_frame, 1),
            figure(parts.map(|p| p.receive), 0),
            figure(parts.map(|p| p.hand_over), 0),
            figure(parts.map(|p| p.engine), 0),
            figure(parts.map(|p| p.send), 0),
            figure(parts.map(|p| p.other), 0),
            figure(self.batch_mean, 1),
        ]
    }
}

impl RingRow {
    fn ring(&self) -> String {
        format!("from {} {}", self.kind.name(), self.from)
    }

    fn mean(&self) -> String {
        figure(self.used_mean, 1)
    }

    fn max_share(&self) -> Option<String> {
        let max = self.used_max?;
        Some(percent(max as f64 / self.size.max(1) as f64))
    }
}

columns!(row: RingRow => row { worker, ring(), size, mean(), used_max as "max", max_share() });

impl Report for Runtime {
    fn page(&self, page: &mut Page) {
        let clock = self.workers.first().map_or(0, |w| w.clock_hz) as f64 / 1e9;
        let over = if self.since_start {
            format!("since the start, {:.1} s ago", self.seconds)
        } else {
            format!("over {:.2} s", self.seconds)
        };
        page.title(format!("Workers, {over}; clock {clock:.2} GHz"));
        page.rows(&self.workers, "none");

        page.title("Batches by frames");
        let sizes = BATCHES.iter().map(|(from, to)| match from == to {
            true => from.to_string(),
            false => format!("{from}-{to}"),
        });
        let columns: Vec<_> = ["worker", "batches"]
            .map(str::to_owned)
            .into_iter()
            .chain(sizes)
            .collect();
        let columns: Vec<_> = columns.iter().map(String::as_str).collect();
        page.table(&columns, self.workers.iter().map(batches).collect());

        page.title("Rings that workers receive frames from");
        page.rows(&self.rings, "no ring reports its fill level");

        page.title("Frames between workers, buffers and groups");
        let columns = [
            "worker",
            "handed over",
            "dropped",
            "taken over",
            "buffers",
            "free",
            "exhausted",
            "groups",
            "memory",
            "tables",
            "sleeps",
        ];
        page.table(&columns, self.workers.iter().map(rest).collect());
        for hint in &self.hints {
            page.title(hint);
        }
    }
}

fn batches(worker: &WorkerRow) -> Vec<String> {
    let sizes = worker.batch_sizes.iter().map(|size| match worker.batches {
        0 => "-".to_owned(),
        all => percent(size.batches as f64 / all as f64),
    });
    [worker.worker.to_string(), count(worker.batches)]
        .into_iter()
        .chain(sizes)
        .collect()
}

fn rest(worker: &WorkerRow) -> Vec<String> {
    vec![
        worker.worker.to_string(),
        count(worker.counters.handed_over),
        count(worker.counters.hand_over_drops),
        count(worker.counters.taken_over),
        count(worker.buffers),
        count(worker.buffers_free),
        count(worker.exhausted),
        groups(worker),
        bytes(worker.group_memory_bytes),
        worker.generation.to_string(),
        count(worker.counters.sleeps),
    ]
}

/// Its groups, and how many were moved to it and away from it.
fn groups(worker: &WorkerRow) -> String {
    match (worker.counters.groups_in, worker.counters.groups_out) {
        (0, 0) => worker.groups.to_string(),
        (came, went) => format!("{} (+{came} -{went})", worker.groups),
    }
}
