//! The demo's AllReduce: five hosts contribute numbers, and each must get the sums that are computed here, at one
//! place. Through the switches, or, for comparison, in a ring between the hosts.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use castnet_comm::{
    CollectiveMode, Collectives, CommConfig, CommError, CommPath, Communicator, Fallback, Operation, Timeouts,
};
use castnet_console::api;
use castnet_console::connect;
use castnet_console::drops;
use castnet_console::exit::{Failure, Outcome};
use castnet_console::tree::{self, Node};
use castnet_console::units::Ratio;
use castnet_port::{MemEnd, PortSpec};
use castnet_proto::transport::{Address, Security};
use castnet_rnic::messages::{MIX_STEP, mix};
use castnet_rnic::{SoftRnic, SoftRnicConfig};
use castnet_wire::{CounterSet, Pmtu};
use castnet_worker::engine::CollectiveCounters;
use indicatif::ProgressBar;
use tokio::sync::mpsc;

use crate::act::{self, QP_TIMEOUTS, STALL_TIMEOUT};
use crate::fabric::{Fabric, HOSTS, LINKS, switch_of};
use crate::links::{Bytes, RankReport};
use crate::report::SwitchReport;

/// Packets that a rank may have in flight, and those of a full message.
const WINDOW_PACKETS: u32 = 128;
const MESSAGE_PACKETS: u32 = 16;
const JOIN_TIMEOUT: Duration = Duration::from_secs(20);
/// Intervals of the bar, and of a rank that waits for the others.
const LOOK: Duration = Duration::from_millis(50);
const NAP: Duration = Duration::from_millis(1);
/// Bits of the integers that contributions are fractions of: as f32, sums of eight ranks are exact in any order, so the
/// switches' sums must be the same, bit for bit.
const NUMBER_BITS: u32 = 20;

/// A multiple of 1/1024 between -512 and 512 (drawn by SplitMix64).
fn contribution(seed: u64, rank: usize, index: usize) -> f32 {
    let state = seed
        .wrapping_add((rank as u64) << 40)
        .wrapping_add(index as u64)
        .wrapping_mul(MIX_STEP);
    let number = ((mix(state) >> (64 - NUMBER_BITS)) as i32) - (1 << (NUMBER_BITS - 1));
    number as f32 / 1024.0
}

/// All sums, in f64.
pub(crate) fn sums(seed: u64, elements: usize) -> Vec<f32> {
    let sum = |index| {
        let all = (0..HOSTS.len()).map(|rank| f64::from(contribution(seed, rank, index)));
        all.sum::<f64>() as f32
    };
    (0..elements).map(sum).collect()
}

#[derive(Clone, Debug)]
pub(crate) struct Script {
    /// The group's name, too.
    pub(crate) job: &'static str,
    /// Between the hosts instead of in the switches.
    pub(crate) ring: bool,
    pub(crate) mode: CollectiveMode,
    pub(crate) loss: Ratio,
    pub(crate) pmtu: Pmtu,
    pub(crate) seed: u64,
}

#[derive(Debug)]
pub(crate) struct Played {
    pub(crate) mcst_id: String,
    /// Until the last rank had its sums.
    pub(crate) seconds: f64,
    pub(crate) ranks: Vec<RankReport>,
    pub(crate) counted: Counted,
}

/// What switches and controller report.
#[derive(Debug)]
pub(crate) struct Counted {
    pub(crate) links: Vec<Bytes>,
    pub(crate) switches: Vec<SwitchReport<CollectiveCounters>>,
    pub(crate) drops: Vec<api::DropCount>,
    pub(crate) tree: Option<Node>,
}

/// States that a rank reports.
enum Tells {
    Ready,
    Done,
    Failed,
}

struct Stage {
    script: Script,
    controller: Address,
    elements: usize,
    stop: Arc<AtomicBool>,
    /// All is counted: begin.
    begun: AtomicBool,
    /// All is counted: leave.
    over: AtomicBool,
    tells: mpsc::UnboundedSender<Tells>,
}

struct Told {
    seconds: f64,
    result: Vec<f32>,
    mcst_id: Option<Ipv4Addr>,
}

/// Plays it, and compares what every rank got with `sums`.
pub(crate) async fn play(
    fabric: &Fabric,
    controller: &Address,
    script: Script,
    sums: &[f32],
    bar: &ProgressBar,
) -> Outcome<Played> {
    let (tells, mut told) = mpsc::unbounded_channel();
    let stage = Arc::new(Stage {
        script: script.clone(),
        controller: controller.clone(),
        elements: sums.len(),
        stop: Arc::default(),
        begun: AtomicBool::new(false),
        over: AtomicBool::new(false),
        tells,
    });
    let ranks: Vec<_> = fabric
        .hosts
        .iter()
        .enumerate()
        .map(|(index, (_, end))| {
            let (stage, end) = (stage.clone(), end.clone());
            tokio::task::spawn_blocking(move || {
                let told = rank(&stage, index, end);
                if told.is_err() {
                    // The others would wait for this one.
                    stage.stop.store(true, Ordering::Relaxed);
                    let _ = stage.tells.send(Tells::Failed);
                }
                told
            })
        })
        .collect();

    let losses = fabric.losses();
    let counted = count(fabric, controller, &stage, &mut told, bar).await;
    losses.set(0.0);
    stage.over.store(true, Ordering::Relaxed);
    if counted.is_err() {
        stage.stop.store(true, Ordering::Relaxed);
    }
    let (mut results, mut failures) = (Vec::new(), Vec::new());
    for (host, handle) in HOSTS.into_iter().zip(ranks) {
        match handle.await.map_err(Failure::failed)? {
            Ok(told) => results.push((host, told)),
            Err(failure) => failures.push((host, failure)),
        }
    }
    if !failures.is_empty() {
        let stalled = counted.err().filter(|_| failures.len() == HOSTS.len());
        return Err(stalled.unwrap_or_else(|| act::first_cause(failures)));
    }
    let counted = counted?;
    let mcst_id = results.first().and_then(|(_, told)| told.mcst_id);
    let ranks = results
        .iter()
        .enumerate()
        .map(|(rank, (host, told))| rank_report(rank, host, told, sums));
    Ok(Played {
        mcst_id: mcst_id.map(|id| id.to_string()).unwrap_or_default(),
        seconds: results.iter().map(|(_, told)| told.seconds).fold(0.0, f64::max),
        ranks: ranks.collect(),
        counted,
    })
}

async fn count(
    fabric: &Fabric,
    controller: &Address,
    stage: &Stage,
    tells: &mut mpsc::UnboundedReceiver<Tells>,
    bar: &ProgressBar,
) -> Outcome<Counted> {
    all_tell(fabric, tells, None).await?;
    let (links, drops) = (links(fabric).await?, act::drops(fabric).await?);
    fabric.losses().set(stage.script.loss.0);
    stage.begun.store(true, Ordering::Relaxed);
    all_tell(fabric, tells, Some((bar, &links))).await?;
    fabric.losses().set(0.0);
    let after = self::links(fabric).await?;
    let mut client = connect::controller(&controller.clone().into(), &Security::default()).await?;
    let group = client
        .get_group(api::GetGroupRequest {
            group: stage.script.job.to_owned(),
        })
        .await;
    let group = group.ok().and_then(|answer| answer.into_inner().collective);
    Ok(Counted {
        links: after
            .iter()
            .zip(&links)
            .map(|(now, then)| now.since(*then))
            .collect(),
        switches: match &group {
            Some(group) => {
                let state = group.state.clone().unwrap_or_default();
                act::switches(fabric, &state.mcst_id, |kind| Some(*kind.translated()?.0)).await?
            }
            None => Vec::new(),
        },
        drops: drops::list(&act::drops(fabric).await?.since(&drops)),
        tree: group.and_then(|group| tree::of_collective(&group.tree, &|_, _| String::new())),
    })
}

/// Waits until each rank has reported once. With `watched`, a bar and the links' counters at its beginning, something
/// must move all the while.
async fn all_tell(
    fabric: &Fabric,
    tells: &mut mpsc::UnboundedReceiver<Tells>,
    watched: Option<(&ProgressBar, &[Bytes])>,
) -> Outcome {
    let mut left = HOSTS.len();
    let mut last = (Instant::now(), 0);
    while left > 0 {
        match tokio::time::timeout(LOOK, tells.recv()).await {
            Ok(Some(Tells::Ready | Tells::Done)) => left -= 1,
            Ok(Some(Tells::Failed) | None) => return Err(Failure::failed("a rank has failed")),
            Err(_) => {
                let Some((bar, then)) = watched else { continue };
                let now = links(fabric).await?;
                let moved = |bytes: &[Bytes]| bytes.iter().map(|b| b.up + b.down).sum::<u64>();
                if let (Some(now), Some(then)) = (now.first(), then.first()) {
                    bar.set_position(now.since(*then).up);
                }
                if moved(&now) != last.1 {
                    last = (Instant::now(), moved(&now));
                } else if last.0.elapsed() > STALL_TIMEOUT {
                    return Err(Failure::failed(format!("nothing moved for {STALL_TIMEOUT:?}"))
                        .next("try again with -v, and with a smaller --allreduce"));
                }
            }
        }
    }
    Ok(())
}

fn rank(stage: &Stage, index: usize, end: MemEnd) -> Outcome<Told> {
    let script = &stage.script;
    let ip = Ipv4Addr::new(10, 0, 0, index as u8 + 1);
    let rnic = SoftRnic::open(&PortSpec::from(end), SoftRnicConfig::new(ip)).map_err(Failure::failed)?;
    let mut config = CommConfig::new(
        stage.controller.clone(),
        script.job,
        index as u16,
        HOSTS.len() as u16,
        HOSTS[index],
    );
    config.pmtu = script.pmtu;
    config.window_packets = WINDOW_PACKETS;
    config.message_packets = MESSAGE_PACKETS;
    config.mode = Some(script.mode);
    config.qp_timeout = QP_TIMEOUTS[usize::from(script.loss.0 > 0.0)];
    config.fallback = if script.ring {
        Fallback::Only
    } else {
        Fallback::Forbidden
    };
    config.timeouts = Timeouts {
        join: JOIN_TIMEOUT,
        // The stage is watched: this is a last resort.
        collective: Duration::from_secs(24 * 3600),
        ..Timeouts::default()
    };
    config.interrupt = Some(stage.stop.clone());
    let mut input: Vec<f32> = Vec::new();
    input.extend((0..stage.elements).map(|element| contribution(script.seed, index, element)));
    let mut result = vec![0.0; stage.elements];

    let mut communicator = Communicator::connect(config, Box::new(rnic)).map_err(Failure::failed)?;
    let _ = stage.tells.send(Tells::Ready);
    wait_for(&mut communicator, &stage.begun, stage)?;
    let start = Instant::now();
    communicator
        .allreduce((&input[..], &mut result[..]), Operation::Sum)
        .map_err(Failure::failed)?;
    let seconds = start.elapsed().as_secs_f64();
    let _ = stage.tells.send(Tells::Done);
    wait_for(&mut communicator, &stage.over, stage)?;
    let mcst_id = match communicator.path() {
        CommPath::InNetwork { mcst_id, .. } => Some(mcst_id),
        CommPath::HostBased { .. } | CommPath::Unused => None,
    };
    communicator.close().map_err(Failure::failed)?;
    Ok(Told {
        seconds,
        result,
        mcst_id,
    })
}

/// Waits for the stage, and answers the other hosts meanwhile.
fn wait_for(communicator: &mut Communicator, what: &AtomicBool, stage: &Stage) -> Outcome {
    while !what.load(Ordering::Relaxed) {
        if stage.stop.load(Ordering::Relaxed) {
            return Err(Failure::failed(CommError::Interrupted));
        }
        if !communicator.progress().map_err(Failure::failed)? {
            std::thread::sleep(NAP);
        }
    }
    Ok(())
}

fn rank_report(rank: usize, host: &str, told: &Told, sums: &[f32]) -> RankReport {
    let differs = |(got, must): &(&f32, &f32)| got.to_bits() != must.to_bits();
    let wrong = told.result.iter().zip(sums).filter(differs).count() + told.result.len().abs_diff(sums.len());
    RankReport {
        rank,
        host: host.to_owned(),
        switch: switch_of(host).to_owned(),
        elements: told.result.len() as u64,
        wrong: wrong as u64,
        seconds: told.seconds,
    }
}

/// Bytes of all links since the switches started, counted at the receiving end; at a host's link both at the switch.
async fn links(fabric: &Fabric) -> Outcome<Vec<Bytes>> {
    let counters = act::counters(fabric).await?;
    let port = |switch: &str, towards: &str| {
        let (_, counters) = counters.iter().find(|(name, _)| *name == switch)?;
        let port = counters.ports.iter().find(|p| p.name == towards)?;
        Some(port.stats)
    };
    let link = |(lower, upper): &(&str, &str)| {
        let above = port(upper, lower).unwrap_or_default();
        let below = port(lower, upper).map(|stats| stats.rx_bytes);
        Bytes {
            up: above.rx_bytes,
            down: below.unwrap_or(above.tx_bytes),
        }
    };
    Ok(LINKS.iter().map(link).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_exact_in_any_order_and_differ_from_what_any_rank_has() {
        let elements = 1000;
        let sums = sums(7, elements);
        let mut distinct = std::collections::BTreeSet::new();
        for (index, sum) in sums.iter().enumerate() {
            let all: Vec<f32> = (0..HOSTS.len())
                .map(|rank| contribution(7, rank, index))
                .collect();
            let forwards: f32 = all.iter().sum();
            let backwards: f32 = all.iter().rev().sum();
            let as_a_tree = (all[0] + all[1] + all[2]) + (all[3] + all[4]);
            for other in [forwards, backwards, as_a_tree] {
                assert_eq!(other.to_bits(), sum.to_bits(), "element {index}: {all:?}");
            }
            assert!(all.iter().all(|x| x.abs() <= 512.0), "{all:?}");
            distinct.insert(sum.to_bits());
        }
        assert!(
            distinct.len() > elements * 9 / 10,
            "only {} sums differ",
            distinct.len()
        );
    }

    #[test]
    fn a_wrong_bit_and_a_missing_element_are_seen() {
        let sums = vec![1.0, 2.0, 3.0];
        let told = |result: Vec<f32>| Told {
            seconds: 0.0,
            result,
            mcst_id: None,
        };
        let wrong = |result| rank_report(3, "h4", &told(result), &sums).wrong;
        assert_eq!(wrong(sums.clone()), 0);
        assert_eq!(wrong(vec![1.0, f32::from_bits(2.0_f32.to_bits() + 1), 3.0]), 1);
        assert_eq!(wrong(vec![1.0]), 2);
    }
}
