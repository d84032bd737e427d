//! `castnet-lab consensus`: values of one byte to several acceptors, one after the other (Shufflecast, figure 8(d)).

use castnet_commands::Stop;
use castnet_commands::replicate::{BlocksArgs, By, HostArgs, LoadArgs, PatternArg, ServersArgs, WriteReport};
use castnet_console::exit::{Failure, Outcome, first_failure};
use castnet_console::output::{Output, Page, Report};
use castnet_console::units::{Size, Span, name, positive_span};
use castnet_wire::Pmtu;
use clap::Args;
use serde::Serialize;

/// The paper's improvements of the 90th and of the 99th percentile, over its numbers of acceptors.
const PAPER: [&str; 2] = ["2.21 to 2.93", "1.39 to 2.13"];

/// Sends values of one byte to several acceptors, one after the other, and compares latencies over connections and by multicast
#[derive(Debug, Args)]
#[command(
    after_help = "The acceptors are servers: castnet host replicate serve at each.

Examples:
  castnet-lab consensus --name h1 --servers 10.0.0.2,10.0.0.3,10.0.0.4 --group values --acceptors 3
  castnet-lab consensus --name h1 --servers ... --group blocks    as figure 8(d) of Shufflecast; groups blocks-3, blocks-5, blocks-7"
)]
pub(crate) struct ConsensusCommand {
    #[command(flatten)]
    host: HostArgs,
    #[command(flatten)]
    servers: ServersArgs,
    /// Prefix of the groups, NAME-3 for three acceptors: this host is the source, and the first three servers are the receivers
    #[arg(long, value_parser = name)]
    group: String,
    /// Numbers of acceptors; of several, all with commas between them
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "3,5,7")]
    acceptors: Vec<usize>,
    /// Values; each goes to the next byte of the acceptors' memory
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
    /// What the values are drawn from
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Fails if no value is accepted for so long
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = positive_span)]
    give_up: Span,
    /// Path MTU of connections to single acceptors; a group has its own
    #[arg(long, value_name = "BYTES", default_value_t = Pmtu::B4096)]
    pmtu: Pmtu,
}

impl ConsensusCommand {
    pub(crate) fn run(self, output: Output, stop: &Stop) -> Outcome {
        let all = self.servers.servers.len();
        if let Some(wrong) = self.acceptors.iter().find(|n| !(1..=all).contains(*n)) {
            return Err(Failure::usage(format!(
                "--acceptors {wrong}: --servers has {all}"
            )));
        }
        let mut rnic = self.host.device.open()?;
        let mut load = LoadArgs {
            blocks: BlocksArgs {
                span: Some(Size(self.count)),
                pattern: PatternArg::Sequential,
                seed: self.seed,
            },
            depth: 1,
            quorum: None,
            count: Some(self.count),
            duration: None,
            rate: None,
            no_verify: false,
            give_up: self.give_up,
            pmtu: self.pmtu,
        };
        let (mut runs, mut ended): (Vec<Run>, _) = (Vec::new(), Ok(()));
        'all: for acceptors in self.acceptors {
            let group = format!("{}-{acceptors}", self.group);
            let majority = acceptors / 2 + 1;
            for (by, accepted_by) in [
                (By::Unicasts, majority),
                (By::Unicasts, acceptors),
                (By::Multicast, acceptors),
            ] {
                load.quorum = (accepted_by < acceptors).then_some(accepted_by);
                let servers = &self.servers.servers[..acceptors];
                let (way, turn) = ((by, Some(group.as_str())), (Size(1), runs.len() as u64));
                match load.run(&mut *rnic, &self.host, servers, way, turn, stop) {
                    Ok(work) => runs.push(Run {
                        acceptors,
                        accepted_by,
                        work,
                    }),
                    Err(failure) => {
                        ended = Err(failure);
                        break 'all;
                    }
                }
            }
        }
        if runs.is_empty() {
            return ended;
        }
        let report = Consensus::new(runs);
        let verdict = report.runs.iter().try_for_each(|run| run.work.verdict());
        output.conclude(&report, first_failure([ended, verdict]))
    }
}

/// Values that went to acceptors in one way.
#[derive(Debug, Serialize)]
struct Run {
    acceptors: usize,
    /// Acceptors whose acknowledgements the next value waits for.
    accepted_by: usize,
    #[serde(flatten)]
    work: WriteReport,
}

/// Latencies over connections in multiples of those by multicast to the same acceptors.
#[derive(Debug, Serialize)]
struct Improvement {
    acceptors: usize,
    /// Over connections; by multicast all.
    accepted_by: usize,
    p50: f64,
    p90: f64,
    p99: f64,
}

#[derive(Debug, Serialize)]
struct Consensus {
    runs: Vec<Run>,
    improvements: Vec<Improvement>,
}

impl Consensus {
    fn new(runs: Vec<Run>) -> Self {
        let is_multicast = |run: &&Run| run.work.by == By::Multicast.text();
        let improvement = |run: &Run| {
            let mut same = runs.iter().filter(|other| other.acceptors == run.acceptors);
            let multicast = &same.find(is_multicast)?.work.latency_us;
            let connections = &run.work.latency_us;
            Some(Improvement {
                acceptors: run.acceptors,
                accepted_by: run.accepted_by,
                p50: connections.p50 / multicast.p50,
                p90: connections.p90 / multicast.p90,
                p99: connections.p99 / multicast.p99,
            })
        };
        let over_connections = runs.iter().filter(|run| !is_multicast(run));
        let improvements = over_connections.filter_map(improvement).collect();
        Self { runs, improvements }
    }
}

impl Report for Consensus {
    fn page(&self, page: &mut Page) {
        let row = |run: &Run| {
            let latency = &run.work.latency_us;
            let mut cells = vec![
                run.acceptors.to_string(),
                run.work.way(),
                run.accepted_by.to_string(),
            ];
            cells.extend([latency.p50, latency.p90, latency.p99].map(|us| format!("{us:.0}")));
            cells.extend([run.work.client_cpu(), run.work.is_right()]);
            cells
        };
        let columns = [
            "acceptors",
            "by",
            "accepted by",
            "p50 us",
            "p90 us",
            "p99 us",
            "client cpu",
            "all there",
        ];
        page.table(&columns, self.runs.iter().map(row).collect());
        page.title(
            "Latency over connections in multiples of that by multicast, which waits for all acceptors",
        );
        let row = |improvement: &Improvement| {
            let Improvement {
                acceptors,
                accepted_by,
                p50,
                p90,
                p99,
            } = improvement;
            let mut cells = vec![format!("{acceptors} connections, {accepted_by} accept")];
            cells.extend([p50, p90, p99].map(|times| format!("{times:.2}")));
            cells
        };
        let paper = ["paper: Paxos, by number of acceptors", "-", PAPER[0], PAPER[1]].map(str::to_owned);
        let rows = self.improvements.iter().map(row).chain([paper.into()]);
        page.table(&["", "p50", "p90", "p99"], rows.collect());
    }
}
