//! One act of the demo: a group is created, five hosts join it as hosts do, one sends to four, and all is counted.

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use castnet_console::api;
use castnet_console::connect;
use castnet_console::drops;
use castnet_console::exit::{self, Failure, Outcome};
use castnet_console::tree::{self, Node};
use castnet_console::units::{Ratio, rate_of};
use castnet_member::{Group, Member, MemberConfig, MemberError, StreamHeader, Transferred};
use castnet_port::{BoxPort, MemEnd, PortSpec};
use castnet_proto::transport::{Address, Security};
use castnet_rnic::messages::{MIX_STEP, mix};
use castnet_rnic::{SoftRnic, SoftRnicConfig};
use castnet_wire::{CounterSet, Drops, McstId, Pmtu};
use castnet_worker::KindReport;
use indicatif::ProgressBar;
use tokio::sync::mpsc;

use crate::fabric::{Fabric, HOSTS, Losses, switch_of};
use crate::report::{ActReport, ReceiverReport, SourceReport, SwitchReport};

/// Time-out exponents of the source's QP: 268 ms where nothing is lost, so that threads that wait for a core cause no
/// time-outs; 17 ms where packets are lost.
pub(crate) const QP_TIMEOUTS: [u8; 2] = [16, 12];
/// After this time without progress, something is broken.
pub(crate) const STALL_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// Bytes drawn from a seed.
    Drawn { size: u64, seed: u64 },
    /// A file of this length.
    File { path: PathBuf, size: u64 },
}

impl Content {
    pub(crate) fn size(&self) -> u64 {
        match self {
            Self::Drawn { size, .. } | Self::File { size, .. } => *size,
        }
    }

    fn open(&self) -> Outcome<(Box<dyn Read>, StreamHeader)> {
        let header = |name: &str| StreamHeader {
            name: name.to_owned(),
            length: Some(self.size()),
        };
        match self {
            Self::Drawn { size, seed } => Ok((Box::new(Drawn { state: *seed }.take(*size)), header("demo"))),
            Self::File { path, .. } => {
                let file = std::fs::File::open(path).map_err(|e| exit::cannot_read(path, &e))?;
                let name = path
                    .file_name()
                    .map(|n| n.to_string_lossy().into_owned())
                    .unwrap_or_default();
                Ok((Box::new(file), header(&name)))
            }
        }
    }
}

/// Bytes that look random and are the same for the same seed (SplitMix64).
struct Drawn {
    state: u64,
}

impl Read for Drawn {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        for chunk in out.chunks_mut(8) {
            self.state = self.state.wrapping_add(MIX_STEP);
            chunk.copy_from_slice(&mix(self.state).to_le_bytes()[..chunk.len()]);
        }
        Ok(out.len())
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) name: &'static str,
    pub(crate) group: String,
    pub(crate) loss: Ratio,
    pub(crate) pmtu: Pmtu,
    pub(crate) content: Content,
}

struct Stage {
    script: Script,
    controller: Address,
    losses: Losses,
    /// A host has failed, or nothing moves: all end.
    stop: Arc<AtomicBool>,
    connected: AtomicUsize,
    /// All are connected, and the links lose: begin.
    begun: AtomicBool,
    /// All is counted: hosts may leave.
    over: AtomicBool,
    /// Bytes that each host has sent or received.
    moved: [AtomicU64; HOSTS.len()],
    /// Numbers of hosts that have transferred, or failed.
    finished: mpsc::UnboundedSender<usize>,
}

struct Told {
    transferred: Transferred,
    /// What only the source reports, or only a receiver.
    source: SourceReport,
    receiver: ReceiverReport,
}

pub(crate) async fn play(
    fabric: &Fabric,
    controller: &Address,
    script: Script,
    bar: &ProgressBar,
) -> Outcome<(ActReport, Option<Node>, String)> {
    let mut client = connect::controller(&controller.clone().into(), &Security::default()).await?;
    let created = client
        .create_group(create(&script))
        .await?
        .into_inner()
        .group
        .unwrap_or_default();
    let before = drops(fabric).await?;

    let (finished, mut ends) = mpsc::unbounded_channel();
    let stage = Arc::new(Stage {
        script: script.clone(),
        controller: controller.clone(),
        losses: fabric.losses(),
        stop: Arc::default(),
        connected: AtomicUsize::new(0),
        begun: AtomicBool::new(false),
        over: AtomicBool::new(false),
        moved: [const { AtomicU64::new(0) }; HOSTS.len()],
        finished,
    });
    let hosts: Vec<_> = fabric
        .hosts
        .iter()
        .enumerate()
        .map(|(index, &(name, ref end))| {
            let (stage, end, bar) = (stage.clone(), end.clone(), bar.clone());
            tokio::task::spawn_blocking(move || {
                let told = host(&stage, index, name, end, &bar);
                if told.is_err() {
                    // The others would wait for this one.
                    stage.stop.store(true, Ordering::Relaxed);
                }
                let _ = stage.finished.send(index);
                told
            })
        })
        .collect();

    let stalled = watch(&stage, &mut ends).await;
    stage.losses.set(0.0);
    let tree = client
        .get_group(api::GetGroupRequest {
            group: script.group.clone(),
        })
        .await;
    let switches = switches(fabric, &created.mcst_id, |kind| Some(*kind.multicast()?.0)).await;
    let after = drops(fabric).await;
    stage.over.store(true, Ordering::Relaxed);
    let (switches, after) = (switches?, after?);
    let mut told = Vec::new();
    for (host, (name, _)) in hosts.into_iter().zip(&fabric.hosts) {
        told.push((*name, host.await.map_err(Failure::failed)?));
    }
    client
        .destroy_group(api::DestroyGroupRequest {
            group: script.group.clone(),
            ..Default::default()
        })
        .await?;

    let (source_name, source) = told.remove(0);
    let source = match (source, stalled) {
        (_, Err(failure)) => return Err(failure),
        (Err(failure), _) => {
            let others = told
                .into_iter()
                .filter_map(|(name, told)| Some((name, told.err()?)));
            return Err(first_cause(std::iter::once((HOSTS[0], failure)).chain(others)));
        }
        (Ok(source), Ok(())) => source,
    };
    let digest = source.transferred.summary.digest.to_string();
    let receivers: Vec<_> = told
        .into_iter()
        .map(|(name, told)| receiver_report(name, told, &digest))
        .collect();
    let seconds = source.transferred.elapsed.as_secs_f64();
    let size = script.content.size();
    let report = ActReport {
        name: script.name,
        group: script.group,
        mcst_id: created.mcst_id,
        loss: script.loss,
        ok: receivers.iter().all(|r| r.ok && r.bytes == size),
        seconds,
        goodput_bits_per_s: rate_of(size, seconds),
        source: SourceReport {
            host: source_name.to_owned(),
            ..source.source
        },
        bytes_received: receivers.iter().map(|r| r.bytes).sum(),
        receivers,
        switches,
        drops: drops::list(&after.since(&before)),
    };
    let tree = tree
        .ok()
        .and_then(|answer| tree::of_multicast(source_name, &answer.into_inner().tree));
    Ok((report, tree, digest))
}

fn create(script: &Script) -> api::CreateGroupRequest {
    let member = |host: &&str| api::NewMember {
        host: (*host).to_owned(),
        connection: None,
    };
    api::CreateGroupRequest {
        name: script.group.clone(),
        source: HOSTS[0].to_owned(),
        members: HOSTS.iter().map(member).collect(),
        pmtu: script.pmtu.bytes() as u32,
        repair: (script.loss.0 > 0.0).then_some(api::MulticastRepair {
            slots: 0,
            ack_timeout_us: (4096 << QP_TIMEOUTS[1]) / 1000,
        }),
        ..Default::default()
    }
}

/// Returns the first of several failures that is not only the stop of a host.
pub(crate) fn first_cause(failures: impl IntoIterator<Item = (&'static str, Failure)>) -> Failure {
    let stopped = MemberError::Interrupted.to_string();
    let named = failures
        .into_iter()
        .map(|(name, failure)| failure.while_doing(name));
    let mut all: Vec<_> = named.collect();
    if all.is_empty() {
        return Failure::failed("nobody says why it failed");
    }
    let cause = all.iter().position(|f| !f.what.ends_with(&stopped)).unwrap_or(0);
    all.swap_remove(cause)
}

/// Waits until all hosts have transferred or failed; an error if nothing moves any more.
async fn watch(stage: &Stage, ends: &mut mpsc::UnboundedReceiver<usize>) -> Outcome {
    let (mut done, mut moved) = (BTreeSet::new(), 0);
    while done.len() < HOSTS.len() {
        match tokio::time::timeout(STALL_TIMEOUT, ends.recv()).await {
            Ok(Some(host)) => drop(done.insert(host)),
            Ok(None) => break,
            Err(_) => {
                let now = stage.moved.iter().map(|m| m.load(Ordering::Relaxed)).sum();
                if now == moved {
                    stage.stop.store(true, Ordering::Relaxed);
                    let left = HOSTS
                        .iter()
                        .enumerate()
                        .filter(|(i, _)| !done.contains(i))
                        .map(|(_, name)| *name);
                    let left = left.collect::<Vec<_>>().join(", ");
                    return Err(Failure::failed(format!(
                        "nothing moved for {STALL_TIMEOUT:?}; not done: {left}"
                    ))
                    .next("try again with -v, and with a smaller --size"));
                }
                moved = now;
            }
        }
    }
    Ok(())
}

fn host(stage: &Stage, index: usize, name: &str, end: MemEnd, bar: &ProgressBar) -> Outcome<Told> {
    let script = &stage.script;
    let ip = Ipv4Addr::new(10, 0, 0, index as u8 + 1);
    let mut rnic = SoftRnic::open(&PortSpec::from(end), SoftRnicConfig::new(ip)).map_err(Failure::failed)?;
    let group = Group::Named {
        name: script.group.clone(),
        controller: stage.controller.clone().into(),
        security: Security::default(),
        wait: Duration::ZERO,
    };
    let config = MemberConfig {
        timeout: QP_TIMEOUTS[usize::from(script.loss.0 > 0.0)],
        interrupt: Some(stage.stop.clone()),
        ..MemberConfig::new(name, group)
    };
    let transferred = if index == 0 {
        let (mut content, header) = script.content.open()?;
        send(stage, config, &mut rnic, &mut *content, &header, bar)
    } else {
        receive(stage, config, &mut rnic, index)
    };
    Ok(told(transferred.map_err(Failure::failed)?, &rnic))
}

fn send(
    stage: &Stage,
    config: MemberConfig,
    rnic: &mut SoftRnic<BoxPort>,
    content: &mut dyn Read,
    header: &StreamHeader,
    bar: &ProgressBar,
) -> Result<Transferred, MemberError> {
    let mut source = castnet_member::source(config, rnic)?.join()?;
    begin(stage, &mut source)?;
    let transferred = source.send(header, content, &mut |bytes, _| {
        bar.set_position(bytes);
        stage.moved[0].store(bytes, Ordering::Relaxed);
    })?;
    end(stage, 0, source)?;
    Ok(transferred)
}

fn receive(
    stage: &Stage,
    config: MemberConfig,
    rnic: &mut SoftRnic<BoxPort>,
    index: usize,
) -> Result<Transferred, MemberError> {
    let mut receiver = castnet_member::receiver(config, rnic)?.join()?;
    begin(stage, &mut receiver)?;
    let (transferred, _) = receiver.receive(&mut |_| Ok(io::sink()), &mut |_, bytes| {
        stage.moved[index].store(bytes, Ordering::Relaxed);
    })?;
    end(stage, index, receiver)?;
    Ok(transferred)
}

fn begin<T>(stage: &Stage, member: &mut Member<'_, T>) -> Result<(), MemberError> {
    if stage.connected.fetch_add(1, Ordering::Relaxed) + 1 == HOSTS.len() {
        stage.losses.set(stage.script.loss.0);
        stage.begun.store(true, Ordering::Relaxed);
    }
    member.wait_until(&mut || stage.begun.load(Ordering::Relaxed))
}

/// Leaves when all is counted.
fn end<T>(stage: &Stage, index: usize, mut member: Member<'_, T>) -> Result<(), MemberError> {
    let _ = stage.finished.send(index);
    member.wait_until(&mut || stage.over.load(Ordering::Relaxed))?;
    member.leave()
}

fn told(transferred: Transferred, rnic: &SoftRnic<BoxPort>) -> Told {
    let (stats, port) = (rnic.stats(), rnic.port_stats());
    let source = SourceReport {
        host: String::new(),
        frames_sent: port.tx_frames,
        bytes_sent: port.tx_bytes,
        retransmissions: stats.retransmits,
        timeouts: stats.timeouts,
        acks_received: stats.acks_in,
        naks_received: stats.sequence_naks_in,
    };
    let receiver = ReceiverReport {
        duplicates: stats.duplicates_in,
        acks_sent: stats.acks_out,
        naks_sent: stats.sequence_naks_out,
        ..ReceiverReport::default()
    };
    Told {
        transferred,
        source,
        receiver,
    }
}

fn receiver_report(name: &str, told: Outcome<Told>, digest: &str) -> ReceiverReport {
    let report = match told {
        Ok(told) => {
            let summary = told.transferred.summary;
            let sha256 = summary.digest.to_string();
            ReceiverReport {
                bytes: summary.bytes,
                ok: sha256 == digest,
                sha256,
                ..told.receiver
            }
        }
        Err(failure) => ReceiverReport {
            error: Some(failure.what),
            ..ReceiverReport::default()
        },
    };
    ReceiverReport {
        host: name.to_owned(),
        switch: switch_of(name).to_owned(),
        ..report
    }
}

pub(crate) async fn drops(fabric: &Fabric) -> Outcome<Drops> {
    let mut sum = Drops::default();
    for (_, counters) in counters(fabric).await? {
        sum.add(&counters.drops);
    }
    Ok(sum)
}

pub(crate) async fn counters(fabric: &Fabric) -> Outcome<Vec<(&'static str, castnet_worker::Counters)>> {
    let dataplanes: Vec<_> = fabric
        .switches
        .iter()
        .map(|s| (s.name, s.dataplane.clone()))
        .collect();
    let read = move || {
        dataplanes
            .into_iter()
            .map(|(name, d)| Ok((name, d.counters()?)))
            .collect()
    };
    let read: Result<Vec<_>, castnet_worker::Stopped> =
        tokio::task::spawn_blocking(read).await.map_err(Failure::failed)?;
    read.map_err(Failure::failed)
}

/// What each switch has counted of a group of the kind that `of` knows.
pub(crate) async fn switches<C: CounterSet>(
    fabric: &Fabric,
    mcst_id: &str,
    of: fn(&KindReport) -> Option<C>,
) -> Outcome<Vec<SwitchReport<C>>> {
    let mcst_id = McstId(mcst_id.parse().map_err(Failure::failed)?);
    let report = |(switch, counters): (&str, castnet_worker::Counters)| {
        Some(SwitchReport {
            switch: switch.to_owned(),
            counters: of(&counters.group(mcst_id)?.counters)?,
        })
    };
    Ok(counters(fabric).await?.into_iter().filter_map(report).collect())
}
