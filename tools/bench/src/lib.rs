//! `castnet bench`: sends traffic into a switch, and counts what comes back.

mod inside;
mod measure;
mod outside;
mod players;
mod report;
mod write;

use std::path::PathBuf;
use std::time::Duration;

use castnet_console::connect::Tls;
use castnet_console::exit::{Failure, Outcome};
use castnet_console::output::Output;
use castnet_console::service::Signals;
use castnet_console::units::Span;
use castnet_proto::transport::Address;
use castnet_switch::config::NamedPort;
use castnet_switch::dpdk::Hugepages;
use castnet_traffic::{Check, Pattern, PlanError, Rate, Scenario, Sizes, Workload};
use castnet_wire::PortId;
use clap::{Args, ValueEnum};

const AFTER_HELP: &str = "Patterns:
  multicast  data of one source to all receivers, which acknowledge each message
  ack        every receiver acknowledges every PSN; one data frame opens a whole window
  nak        half of the receivers refuse the middle of each window with a burst of NAKs; the
             source sends again from there
  cnp        CNPs of all receivers, one after the other
  aggregate  all ranks contribute to AllReduces of f32, one after the other, and get every result
  mix        all of these; mix:multicast=8,ack=4,cnp=1 names them with their shares

Without --port, a switch with one worker runs in this program, with simulated hosts: on threads of their own (--over memory), or as ports of the worker (--over core), without rings and a second core. Over core, the table also shows the parts of the worker's time. With --port, each port simulates the host that is connected to one port of a real switch.

Columns:
  M/s, Gb/s  frames into and out of the switch, in millions per second and in Gb/s (whole frames
             without FCS)
  ns         busy time of the worker per frame, in nanoseconds
  engine ns  its part for parsing, deciding and rewriting, per frame in
  ports ns   its part for the ports, per frame in; over core the ports are the hosts
  bound by   what limited the rate; the switch, if its worker was idle for less than 5 %
  drops      frames that the switch dropped
  missing    data frames that never reached a receiver
docs/bench.md says what each pattern does and how to read the table.

Examples:
  castnet bench                                         all patterns, about ten seconds
  castnet bench ack --receivers 16 --over core          ACKs per second of one core
  castnet bench multicast --size 64 --size 4096 --groups 100
  castnet bench multicast --size 64:7,1024:4,4096:1 --rate 2M --time 10s
  castnet bench mix:multicast=4,aggregate=1 -O json     one object a line, for each run
  castnet bench --port h1=eth1 --port h2=eth2 --switch http://10.0.0.9:7471 --insecure multicast
                                         h1 and h2: the switch's ports; groups are installed there, and removed at the end
  castnet bench --port h1=eth1 --port h2=eth2 --group rules.toml multicast     h1 and h2: members of the file's groups
  castnet bench ack --as rx1 --frames 64 --write ack.pcap     packet files, for other generators";

/// Measures a switch: one inside this program, or a real one behind ports
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct BenchCommand {
    /// What to send; several patterns run one after the other [default: all of them]
    #[arg(value_name = "PATTERN")]
    workloads: Vec<Workload>,
    /// Payload of data in bytes, or a mix of sizes with weights (64:7,1024:4,4096:1); may be given again, for a run each. For aggregate, the
    /// smallest path MTU that is as large [default: that of the pattern]
    #[arg(long = "size", value_name = "BYTES")]
    sizes: Vec<Sizes>,
    /// Groups of each pattern
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    groups: u32,
    /// Receivers of each group, or its ranks [default: 8; with --port, all but the first port]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..PortId::COUNT as i64))]
    receivers: Option<u32>,
    /// Rate of the pattern's own frames, of all hosts together: frames per second (500k, 2M), bits per second (10Gbps), or flat, as fast as
    /// possible
    #[arg(long, default_value = "flat")]
    rate: Rate,
    /// How long each run takes
    #[arg(long, value_name = "TIME", default_value = "1s", conflicts_with = "frames")]
    time: Span,
    /// Ends a run after so many frames of the pattern instead
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    frames: Option<u64>,
    /// Data frames from one acknowledgement to the next
    #[arg(long, value_name = "FRAMES", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=4096))]
    message: u32,
    /// Data frames in flight, of all groups together; for ack: PSNs to be acknowledged
    #[arg(long, value_name = "FRAMES", default_value_t = 256, value_parser = clap::value_parser!(u32).range(4..=65_536))]
    window: u32,
    /// NAKs in one burst
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=4096))]
    burst: u32,
    /// Which frames that come back have their ICRC checked, and which results their sum: none, sample (one in 64) or all
    #[arg(long, default_value = "sample")]
    check: Check,
    /// Also shows what each member of each group has sent, received and missed
    #[arg(long, conflicts_with = "write")]
    flows: bool,
    /// Writes frames of the pattern into a pcap file instead of sending them (64 unless --frames says otherwise)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["ports", "over"])]
    write: Option<PathBuf>,
    /// With --write: the host whose frames are written, tx (the source) or rx1, rx2 ... [default: the first that sends frames of the pattern]
    #[arg(long = "as", value_name = "HOST", requires = "write")]
    host: Option<String>,
    #[command(flatten)]
    inside: InsideArgs,
    #[command(flatten)]
    outside: OutsideArgs,
}

/// Where simulated hosts run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Over {
    /// On threads of their own, with rings between.
    Memory,
    /// In the worker, as its ports.
    Core,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "A switch inside this program")]
struct InsideArgs {
    /// memory: hosts on threads of their own; core: hosts as ports of the worker [default: memory if there are two cores]
    #[arg(long, value_enum, hide_possible_values = true)]
    over: Option<Over>,
    /// The worker's core [default: the last one]
    #[arg(long, value_name = "N")]
    core: Option<usize>,
    /// Threads that simulate hosts [default: one for each other core, 4 at most; with --port, 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: Option<u32>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "A real switch")]
struct OutsideArgs {
    /// A port of this machine, with the name of the switch's port that it is connected to (with --group: the name of the member that it
    /// simulates); the first port is the source's. May be given again. SPEC as for castnet switch
    #[arg(long = "port", value_name = "NAME=SPEC", conflicts_with_all = ["over", "core"])]
    ports: Vec<NamedPort>,
    /// The switch's rule file, whose groups are used
    #[arg(long = "group", value_name = "FILE", requires = "ports")]
    rules: Option<PathBuf>,
    /// Where the switch's agent listens: its counters are read and, without --group, groups are installed there
    #[arg(long, value_name = "URL", requires = "ports")]
    switch: Option<Address>,
    /// Where DPDK's buffers live
    #[arg(long, value_enum, default_value_t, requires = "ports")]
    hugepages: Hugepages,
    #[command(flatten)]
    tls: Tls,
}

impl BenchCommand {
    fn scenarios(&self, ports: Option<usize>) -> Outcome<Vec<Scenario>> {
        let standard = self.workloads.is_empty();
        let workloads = match standard {
            true => Pattern::ALL.iter().map(|p| Workload::from(*p)).collect(),
            false => self.workloads.clone(),
        };
        let mut scenarios = Vec::new();
        for workload in workloads {
            let sizes = match self.sizes.as_slice() {
                [] if standard && workload.name() == "multicast" => {
                    [64, 1024, 4096].map(Sizes::from).to_vec()
                }
                [] => vec![Sizes::from(match workload.name() {
                    "ack" | "nak" | "cnp" => 64,
                    _ => 1024,
                })],
                given => given.to_vec(),
            };
            let source = usize::from(workload.has_multicast());
            let receivers = match (self.receivers, ports) {
                (Some(receivers), _) => receivers as usize,
                (None, Some(ports)) => ports.saturating_sub(source),
                (None, None) => 8,
            };
            let most = PortId::COUNT - source;
            if receivers == 0 || receivers > most {
                return Err(Failure::usage(format!(
                    "{workload} with {receivers} receivers: a switch has 64 ports, and a source and a receiver need two"
                ))
                .next("give --receivers, or one --port for each member"));
            }
            for sizes in sizes {
                scenarios.push(Scenario {
                    sizes,
                    groups: self.groups as usize,
                    receivers,
                    message: self.message,
                    // All groups share the rings.
                    window: (self.window / self.groups / workload.shares().len() as u32).max(4),
                    burst: self.burst,
                    rate: self.rate,
                    frames: self.frames,
                    check: self.check,
                    ..Scenario::new(workload.clone())
                });
            }
        }
        Ok(scenarios)
    }

    /// Runs the command.
    pub async fn run(self, output: Output) -> Outcome {
        if let Some(path) = &self.write {
            let scenarios = self.scenarios(None)?;
            return write::write(
                output,
                &scenarios,
                path,
                self.host.as_deref(),
                !self.workloads.is_empty(),
            );
        }
        let mut signals = Signals::catch()?;
        let time = self.frames.is_none().then_some(self.time.0);
        if time == Some(Duration::ZERO) {
            return Err(
                Failure::usage("a run of no time measures nothing").next("give --time 1s, or --frames N")
            );
        }
        let mut bench = if self.outside.ports.is_empty() {
            inside::run(output, &self.scenarios(None)?, time, &self.inside, &mut signals).await?
        } else {
            if self.outside.rules.is_none() && self.outside.switch.is_none() {
                return Err(
                    Failure::usage("it is not known which groups the switch behind these ports has")
                        .next("--switch URL installs groups there, and --group FILE names those that it has"),
                );
            }
            let scenarios = self.scenarios(Some(self.outside.ports.len()))?;
            outside::run(
                output,
                &scenarios,
                time,
                &self.outside,
                self.inside.threads,
                &mut signals,
            )
            .await?
        };
        if !self.flows {
            bench.runs.iter_mut().for_each(|run| run.flows.clear());
        }
        let shown = bench.show(output);
        bench.verdict().and(shown)
    }
}

fn no_plan(error: &PlanError) -> Failure {
    let failure = Failure::usage(error);
    match error {
        PlanError::TooFewPlaces { .. } => failure.next("give more --port NAME=SPEC, or fewer --receivers"),
        PlanError::NobodyPlays { .. } => failure.next("name a --port after each member of the file's groups"),
        PlanError::BehindSwitch { .. } => {
            failure.next("give the rule file of a switch that has all members next to it")
        }
        PlanError::NoGroup { .. } => {
            failure.next("castnet rules example, and castnet rules example --collective, show such groups")
        }
        PlanError::OverPmtu { .. } => failure.next("give a smaller --size"),
        _ => failure,
    }
}
