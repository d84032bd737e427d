//! `castnet-lab calibrate`: the times from which trees of relays at the edge are computed (NIC-based multicast over Myrinet, 5.5).

use std::time::Duration;

use castnet_comm::machine::Collective;
use castnet_comm::{DataType, Fallback, Operation};
use castnet_commands::Stop;
use castnet_commands::collective::{
    Call, Callers, Calls, HowArgs, Measure, RankArgs, Sizes, each_rank, failure,
};
use castnet_console::exit::{Failure, Outcome};
use castnet_console::output::{Output, Page, Report};
use castnet_console::units::{self, bytes};
use castnet_group::{TreeChoice, TreeShape};
use castnet_planner::relay_time;
use castnet_rnic::Traffic;
use clap::Args;
use serde::Serialize;

use crate::help::CALIBRATE_HELP;

/// Bytes of the message by which the time of a packet is measured.
const LONG: u64 = 4 << 20;

/// Time for the calls of each measurement.
const BUDGET: Duration = Duration::from_secs(2);

/// Share of the packets that may be sent again. A busy host is late at times; a network that loses packets is another thing.
const AGAIN_MAX: f64 = 0.005;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "What is computed (rank 0)")]
struct CalibrateArgs {
    /// Bytes of the messages: one, several (4K,1M) or a range (4K..4M)
    #[arg(long, value_name = "SIZES", default_value = "4K..4M")]
    bytes: Sizes,
    /// Factor between the sizes of a range
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u64).range(2..))]
    factor: u64,
    /// Receivers that have a relay each
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u16).range(1..=1023))]
    relays: u16,
}

#[derive(Debug, Serialize)]
struct Calibration {
    pmtu: u32,
    /// Time of a short message to the other host.
    hop_us: f64,
    /// Time of one more full packet to it.
    copy_us: f64,
    /// The hop in times of a copy.
    latency: f64,
    relays: u16,
    messages: Vec<Message>,
}

/// The times in which the relays have a message, by the postal model.
#[derive(Debug, Serialize)]
struct Message {
    bytes: u64,
    star_us: f64,
    chain_us: f64,
    binomial_us: f64,
    /// That of `auto`.
    auto_us: f64,
}

/// Measures the times between two hosts from which trees of relays at the edge are computed
#[derive(Debug, Args)]
#[command(after_help = CALIBRATE_HELP)]
pub(crate) struct CalibrateCommand {
    #[command(flatten)]
    rank: RankArgs,
    #[command(flatten)]
    what: CalibrateArgs,
    #[command(flatten)]
    how: HowArgs,
}

impl CalibrateCommand {
    pub(crate) fn run(self, output: Output, stop: &Stop) -> Outcome {
        let Self { rank, what, how } = self;
        if rank.size != 2 {
            return Err(Failure::usage(format!(
                "--size {}: a hop is measured between two hosts",
                rank.size
            ))
            .next("--size 2, with --rank 0 at one host and --rank 1 at another one"));
        }
        Call::barrier().check(&rank, &how.network)?;
        each_rank(&rank, stop, |rank| run_rank(rank, &what, &how, output, stop))
    }
}

fn run_rank(rank: &RankArgs, what: &CalibrateArgs, how: &HowArgs, output: Output, stop: &Stop) -> Outcome {
    let mut config = rank.config(how, stop)?;
    config.fallback = Fallback::Only;
    let callers = Callers::open(&rank.device, &how.network)?;
    let mut caller = callers.connect(rank, config, output)?;
    let mut measure = |collective, bytes| -> Outcome<f64> {
        let measure = Measure {
            collective,
            operation: Operation::Sum,
            data_type: DataType::U8,
            bytes,
            calls: how.measure.iters.map_or(Calls::Within(BUDGET), Calls::Exactly),
            warmup: how.measure.warmup,
            verify: false,
            saturate: false,
            in_place: false,
        };
        let row = measure.run(&mut caller, &mut || {});
        Ok(row.map_err(|error| error.failure(&rank.job))?.time_median_us)
    };
    let before = callers.traffic();
    // Each sends the other one a message, at the same time.
    let hop_us = measure(Collective::Barrier, 0)?;
    let long_us = measure(Collective::Broadcast { root: 0 }, LONG)?;
    caller.close().map_err(|error| failure(error, &rank.job))?;
    if rank.rank != 0 {
        return Ok(());
    }
    if let Some(share) = sent_again(before, callers.traffic()).filter(|share| *share > AGAIN_MAX) {
        let percent = share * 100.0;
        return Err(Failure::failed(format!(
            "{percent:.1} % of the packets were sent again: the network loses packets, and the times would be those of the repair"
        ))
        .next("calibrate where nothing is lost: in a lab without its faults, else see castnet drops at the switches between the hosts"));
    }
    let pmtu = how.network.pmtu.bytes() as u32;
    let packets = LONG.div_ceil(pmtu.into()) as f64;
    output.show(&Calibration::new(
        pmtu,
        (hop_us, (long_us - hop_us).max(0.0) / packets),
        what,
    ))
}

/// The share of the frames in between. `None`: they are not counted.
fn sent_again(before: Option<Traffic>, after: Option<Traffic>) -> Option<f64> {
    let (before, after) = (before?, after?);
    let grew =
        |count: fn(&Traffic) -> Option<u64>| Some(count(&after)?.saturating_sub(count(&before)?) as f64);
    Some(grew(|t| t.retransmissions)? / grew(|t| t.frames_sent)?.max(1.0))
}

impl Calibration {
    fn new(pmtu: u32, (hop_us, copy_us): (f64, f64), what: &CalibrateArgs) -> Self {
        let latency = (hop_us / copy_us).clamp(1.0, 1000.0);
        // In hundredths, as trees are computed.
        let hundredths = (latency * 100.0).round() as u32;
        let message = |size: u64| {
            let auto = TreeChoice::Auto {
                message: size.try_into().unwrap_or(u32::MAX),
            };
            let packets = size.div_ceil(pmtu.into()).try_into().unwrap_or(u32::MAX);
            let time = |shape| {
                let copies = relay_time(what.relays.into(), shape, hundredths, packets);
                copies as f64 / 100.0 * copy_us
            };
            Message {
                bytes: size,
                star_us: time(TreeShape::Star),
                chain_us: time(TreeShape::Chain),
                binomial_us: time(TreeShape::Binomial),
                auto_us: time(auto.shape(hundredths, pmtu)),
            }
        };
        Self {
            pmtu,
            hop_us,
            copy_us,
            latency,
            relays: what.relays,
            messages: what.bytes.list(what.factor).into_iter().map(message).collect(),
        }
    }
}

impl Report for Calibration {
    fn page(&self, page: &mut Page) {
        page.facts(&[
            ("hop", format!("{:.2} us", self.hop_us)),
            (
                "copy",
                format!("{:.3} us, of a packet of {} bytes", self.copy_us, self.pmtu),
            ),
            (
                "latency",
                format!(
                    "{:.2} copies: castnet controller --relay-latency {:.2}",
                    self.latency, self.latency
                ),
            ),
        ]);
        page.title(format!(
            "A message at {} relays, by the postal model",
            self.relays
        ));
        let rows = self.messages.iter().map(|message| {
            let times = [
                message.star_us,
                message.chain_us,
                message.binomial_us,
                message.auto_us,
            ];
            let times = times.map(|us| units::span(Duration::from_secs_f64(us / 1e6)));
            [vec![bytes(message.bytes)], times.into()].concat()
        });
        page.table(&["message", "star", "chain", "binomial", "auto"], rows.collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_again_is_a_share_of_what_was_sent_since() {
        let traffic = |frames, again| {
            Some(Traffic {
                frames_sent: Some(frames),
                retransmissions: again,
                ..Traffic::default()
            })
        };
        assert_eq!(
            sent_again(traffic(100, Some(50)), traffic(1100, Some(60))),
            Some(0.01)
        );
        assert_eq!(sent_again(traffic(100, None), traffic(1100, None)), None);
        assert_eq!(sent_again(None, traffic(1100, Some(60))), None);
    }

    #[test]
    fn the_tree_of_auto_is_never_slower_than_the_others() {
        let what = CalibrateArgs {
            bytes: "64..64M".parse().expect("sizes"),
            factor: 4,
            relays: 15,
        };
        for (hop, copy) in [(30.0, 2.0), (5.0, 5.0), (2000.0, 0.5), (1.0, 0.0)] {
            let calibration = Calibration::new(1024, (hop, copy), &what);
            assert!((1.0..=1000.0).contains(&calibration.latency), "{calibration:?}");
            for message in &calibration.messages {
                let least = message.chain_us.min(message.binomial_us).min(message.star_us);
                assert!(message.auto_us <= least * 1.001, "{message:?}");
            }
        }
        let calibration = Calibration::new(1024, (30.0, 2.0), &what);
        assert_eq!(calibration.latency, 15.0);
        let short = &calibration.messages[0];
        assert!(
            short.star_us < short.chain_us && short.auto_us <= short.star_us,
            "{short:?}"
        );
        let long = &calibration.messages[calibration.messages.len() - 1];
        assert!(
            long.chain_us < long.binomial_us && long.binomial_us < long.star_us,
            "{long:?}"
        );
    }
}
