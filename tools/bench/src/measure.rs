//! One run: warm-up, measured time, and drain.

use std::sync::Arc;
use std::time::{Duration, Instant};

use castnet_console::api;
use castnet_console::drops;
use castnet_console::exit::{Failure, Outcome};
use castnet_console::output::Output;
use castnet_console::service::Signals;
use castnet_traffic::{Counts, Scenario};
use castnet_wire::CounterSet;
use castnet_worker::{Clocks, Dataplane, PortReport};
use indicatif::ProgressBar;

use super::players::Part;

/// Interval of reading the hosts' counters.
const TICK: Duration = Duration::from_millis(10);
/// A run has ended after so long without a change of a counter ...
const QUIET: Duration = Duration::from_millis(150);
/// ... or after so long in all.
const DRAIN_MAX: Duration = Duration::from_secs(3);
/// A run of a number of frames ends after so long without a change.
const STUCK: Duration = Duration::from_secs(2);
/// Longer runs have a progress bar.
const LONG: Duration = Duration::from_secs(2);

pub(super) enum Watched {
    None,
    Inside(Arc<Dataplane>),
    Agent(api::AgentClient),
}

#[derive(Clone, Debug, Default)]
pub(super) struct SwitchNow {
    pub(super) received: u64,
    pub(super) sent: u64,
    pub(super) rx_bytes: u64,
    pub(super) tx_bytes: u64,
    pub(super) drops: Vec<api::DropCount>,
    /// Frames lost before the switch received them.
    pub(super) missed: u64,
    pub(super) worker: Option<WorkerNow>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct WorkerNow {
    pub(super) elapsed_ns: u64,
    pub(super) idle_ns: u64,
    /// Time that its thread was on a core, if the kernel reports it.
    pub(super) cpu_ns: Option<u64>,
    pub(super) clocks: Clocks,
    pub(super) clock_hz: u64,
}

impl Watched {
    pub(super) async fn read(&mut self) -> Outcome<Option<SwitchNow>> {
        match self {
            Self::None => Ok(None),
            Self::Inside(dataplane) => {
                let dataplane = dataplane.clone();
                let counters = tokio::task::spawn_blocking(move || dataplane.counters()).await;
                let counters = counters.map_err(Failure::failed)?.map_err(Failure::failed)?;
                let sum = |of: fn(&PortReport) -> u64| counters.ports.iter().map(of).sum();
                Ok(Some(SwitchNow {
                    received: counters.totals.received,
                    sent: counters.totals.sent,
                    rx_bytes: sum(|p| p.stats.rx_bytes),
                    tx_bytes: sum(|p| p.stats.tx_bytes),
                    drops: drops::list(&counters.drops),
                    missed: sum(|p| p.stats.rx_missed),
                    worker: counters.workers.first().map(|w| WorkerNow {
                        elapsed_ns: w.elapsed.0,
                        idle_ns: w.idle.0,
                        cpu_ns: cpu_ns(WORKER),
                        clocks: w.clocks,
                        clock_hz: w.clock_hz,
                    }),
                }))
            }
            Self::Agent(agent) => {
                let counters = agent.get_counters(api::GetCountersRequest {}).await?.into_inner();
                let ports = counters.ports.iter().filter_map(|p| p.counters.as_ref());
                let sum = |of: fn(&api::PortCounters) -> u64| ports.clone().map(of).sum();
                let totals = counters.totals.unwrap_or_default();
                Ok(Some(SwitchNow {
                    received: totals.received,
                    sent: totals.sent,
                    rx_bytes: sum(|p| p.rx_bytes),
                    tx_bytes: sum(|p| p.tx_bytes),
                    drops: counters.drops,
                    missed: sum(|p| p.rx_missed),
                    worker: None,
                }))
            }
        }
    }
}

/// All counters at one moment.
#[derive(Clone, Debug)]
pub(super) struct Moment {
    pub(super) at: Instant,
    pub(super) hosts: Counts,
    pub(super) switch: Option<SwitchNow>,
}

#[derive(Clone, Debug)]
pub(super) struct Course {
    /// Before anything was sent.
    pub(super) begin: Moment,
    /// Start of the measured time.
    pub(super) from: Moment,
    /// End of the measured time.
    pub(super) to: Moment,
    /// After the drain.
    pub(super) end: Moment,
    /// A signal cut it short.
    pub(super) interrupted: bool,
}

pub(super) struct Run<'a> {
    pub(super) output: Output,
    pub(super) scenario: &'a Scenario,
    /// `None`: until all frames of the scenario are sent.
    pub(super) time: Option<Duration>,
    pub(super) part: &'a Part,
    pub(super) watched: &'a mut Watched,
}

impl Run<'_> {
    fn hosts(&self) -> Counts {
        let mut sum = Counts::default();
        self.part.lives.iter().for_each(|live| sum.add(&live.read()));
        sum
    }

    async fn moment(&mut self) -> Outcome<Moment> {
        let switch = self.watched.read().await?;
        Ok(Moment {
            at: Instant::now(),
            hosts: self.hosts(),
            switch,
        })
    }

    /// Starts the hosts, and reads counters until the end.
    pub(super) async fn watch(mut self, signals: &mut Signals) -> Outcome<Course> {
        let begin = self.moment().await?;
        let bar = self.bar();
        let frames = self.scenario.frames.unwrap_or_default();
        self.part.stage.go();
        let mut interrupted = false;
        let from = match self.time {
            None => begin.clone(),
            Some(time) => {
                // Caches, pools and windows fill up first.
                interrupted |= wait((time / 5).min(Duration::from_millis(500)), signals).await;
                self.moment().await?
            }
        };
        let (mut before, mut moved) = (from.hosts, Instant::now());
        while !interrupted {
            interrupted = wait(TICK, signals).await;
            let hosts = self.hosts();
            match self.time {
                Some(time) => {
                    bar.set_position(from.at.elapsed().as_millis() as u64);
                    if from.at.elapsed() >= time {
                        break;
                    }
                }
                None => {
                    bar.set_position(hosts.driven);
                    if hosts != before {
                        (before, moved) = (hosts, Instant::now());
                    }
                    if hosts.driven >= frames || moved.elapsed() > STUCK {
                        break;
                    }
                }
            }
        }
        let to = self.moment().await?;
        self.part.stage.stop();
        let (start, mut before, mut moved) = (Instant::now(), to.hosts, Instant::now());
        while moved.elapsed() < QUIET && start.elapsed() < DRAIN_MAX {
            interrupted |= wait(TICK, signals).await;
            let hosts = self.hosts();
            if hosts != before {
                (before, moved) = (hosts, Instant::now());
            }
        }
        bar.finish_and_clear();
        let end = self.moment().await?;
        Ok(Course {
            begin,
            from,
            to,
            end,
            interrupted,
        })
    }

    fn bar(&self) -> ProgressBar {
        let length = match self.time {
            Some(time) if time > LONG => Some(time.as_millis() as u64),
            None if self.scenario.frames.is_some() => self.scenario.frames,
            _ => return ProgressBar::hidden(),
        };
        let bar = self.output.bar(length, "{msg} {bar:30} {percent} % {eta}");
        bar.with_message(self.scenario.workload.name())
    }
}

/// Name of the first worker's thread.
const WORKER: &str = "castnet-w0";

/// Nanoseconds that the thread has run, by /proc.
fn cpu_ns(name: &str) -> Option<u64> {
    for task in std::fs::read_dir("/proc/self/task").ok()?.flatten() {
        let read = |file: &str| std::fs::read_to_string(task.path().join(file));
        if read("comm").is_ok_and(|comm| comm.trim_end() == name) {
            let times = read("schedstat").ok()?;
            return times.split_ascii_whitespace().next()?.parse().ok();
        }
    }
    None
}

/// `true` if a signal came before.
async fn wait(time: Duration, signals: &mut Signals) -> bool {
    tokio::select! {
        () = signals.any() => true,
        () = tokio::time::sleep(time) => false,
    }
}
