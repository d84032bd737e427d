//! State of the dataplane as messages.

use castnet_proto::convert::{port_to_proto, shown_rule};
use castnet_proto::v1;
use castnet_proto::v1::installed_group::State;
use castnet_rules::{ENDPOINTS_MAX, GroupRule};
use castnet_wire::{CounterSet, Drops, McstId, Nanos, Pmtu, describe};
use castnet_worker::engine::{
    Captured, ContextStatus, FdbEntry, Neighbour, Said, Seen, Step, Trace, Verdict, copy_totals,
};
use castnet_worker::{
    Counters, DataplaneConfig, GroupReport, InstalledGroup, KindReport, PfcClassReport, PortReport, Ring,
    RingReport, WorkerReport, WorkerStats, copy_clocks, copy_pfc_counters, copy_port_totals,
    copy_worker_counters,
};

pub(crate) mod collective;
mod forwarding;
mod multicast;

/// Minimum of link MTU minus path MTU, in bytes: the longest headers of RoCEv2 over IPv4, and a reserve; the planner's
/// `HEADROOM`.
const PMTU_HEADROOM: usize = 80;

pub(crate) fn capabilities(
    config: &DataplaneConfig,
    boot_id: u64,
    workers: &[WorkerStats],
    ports: &[PortReport],
) -> v1::Capabilities {
    let used: usize = workers.iter().map(|w| w.group_memory_bytes).sum();
    let groups: usize = workers.iter().map(|w| w.groups).sum();
    let max = config.engine.memory_bytes_max;
    let widest = ports.iter().map(|p| p.link.mtu).max().unwrap_or(0);
    let fits = Pmtu::ALL.iter().filter(|p| p.bytes() + PMTU_HEADROOM <= widest);
    v1::Capabilities {
        switch_name: config.engine.switch.clone(),
        version: castnet_proto::process::version().into(),
        boot_id,
        ports: config.ports.iter().map(|p| p.name.clone()).collect(),
        groups_max: config.engine.groups_max as u64,
        groups: groups as u64,
        memory_bytes_max: max as u64,
        memory_bytes_free: max.saturating_sub(used) as u64,
        pmtus: fits.map(|p| p.bytes() as u32).collect(),
        endpoints_max: ENDPOINTS_MAX as u32,
        workers: workers.len() as u32,
    }
}

/// Empty without a rule.
pub(crate) fn next_hop(rule: Option<&GroupRule>, endpoint: usize) -> &str {
    let endpoint = rule.and_then(|rule| rule.endpoints.get(endpoint));
    endpoint.map_or("", |endpoint| endpoint.next_hop.name())
}

pub(crate) fn group(installed: &InstalledGroup, owner: String, now: Nanos) -> v1::InstalledGroup {
    let InstalledGroup { worker, rule, status } = installed;
    v1::InstalledGroup {
        rule: Some(shown_rule(rule)),
        owner,
        worker: *worker as u32,
        state: Some(match status {
            ContextStatus::Multicast(status) => State::Multicast(multicast::state(status, now)),
            ContextStatus::Collective(status) => State::Translated(collective::state(status)),
            ContextStatus::Forwarding(status) => State::Forwarding(forwarding::state(status)),
        }),
    }
}

/// A rule with McstID, name and generation only.
pub(crate) fn brief(mcst_id: McstId, name: String, generation: u64) -> v1::GroupRule {
    v1::GroupRule {
        name,
        mcst_id: mcst_id.to_string(),
        generation,
        ..Default::default()
    }
}

/// Counters only. `rule`: absent if it is not installed any more.
pub(crate) fn counted_group(
    report: &GroupReport,
    rule: Option<&GroupRule>,
    owner: String,
) -> v1::InstalledGroup {
    let brief = || brief(report.mcst_id, report.name.clone(), report.generation);
    v1::InstalledGroup {
        rule: Some(rule.map_or_else(brief, shown_rule)),
        owner,
        worker: report.worker as u32,
        state: Some(match &report.counters {
            KindReport::Multicast(counters, paths) => {
                State::Multicast(multicast::counted(counters, paths, rule))
            }
            KindReport::Translated(counters, endpoints) => {
                State::Translated(collective::counted(counters, endpoints, rule))
            }
            KindReport::Forwarding(counters, endpoints) => {
                State::Forwarding(forwarding::counted(counters, endpoints, rule))
            }
        }),
    }
}

pub(crate) fn port(report: &PortReport) -> v1::Port {
    let (totals, drops) = report.totals();
    let drops = drop_counts(&drops, false);
    let device = &report.link.device;
    v1::Port {
        port: port_to_proto(report.id),
        name: report.name.clone(),
        mac: report.link.mac.to_string(),
        mtu: report.link.mtu as u32,
        up: report.link.up,
        counters: Some(copy_port_totals!(totals => v1::PortCounters { drops })),
        driver: device.driver.clone(),
        speed_mbps: device.speed_mbps,
        rx_queues: device.rx_queues as u32,
        tx_queues: device.tx_queues.map(|n| n as u32),
        steering: device.steering.name().into(),
        multi_segment: device.multi_segment,
        numa_node: device.numa_node,
        gso: device.segmentation.to_string(),
        pfc: report.pfc.iter().map(pfc_class).collect(),
        reason: report.reason.clone(),
    }
}

fn pfc_class(report: &PfcClassReport) -> v1::PfcClass {
    copy_pfc_counters!(report.counters => v1::PfcClass {
        traffic_class: report.class.index() as u32,
        paused: report.is_paused,
        stopping: report.is_stopping,
        storm: report.has_storm,
        queued_bytes: report.queued_bytes,
    })
}

/// Drops by reason, without zeros unless `all`.
pub(crate) fn drop_counts(drops: &Drops, all: bool) -> Vec<v1::DropCount> {
    let counted = drops.fields().filter(|(_, frames)| all || *frames > 0);
    let count = |(reason, frames): (&str, u64)| v1::DropCount {
        reason: reason.into(),
        frames,
    };
    counted.map(count).collect()
}

pub(crate) fn counters(counters: &Counters, groups: Vec<v1::InstalledGroup>) -> v1::Counters {
    v1::Counters {
        ports: counters.ports.iter().map(port).collect(),
        groups,
        drops: drop_counts(&counters.drops, false),
        at_ns: counters.at.0,
        totals: Some(copy_totals!(counters.totals => v1::Totals)),
    }
}

pub(crate) fn neighbour(neighbour: &Neighbour, now: Nanos) -> v1::Neighbour {
    let kind = match &neighbour.said {
        Said::Lldp {
            chassis,
            remote_port,
            system,
            ..
        } => v1::neighbour::Kind::Switch(v1::SwitchNeighbour {
            name: system.to_string(),
            mac: chassis.to_string(),
            port: remote_port.to_string(),
        }),
        Said::Arp { ip, mac } => v1::neighbour::Kind::Host(v1::HostNeighbour {
            ip: ip.to_string(),
            mac: mac.to_string(),
        }),
    };
    v1::Neighbour {
        port: port_to_proto(neighbour.port),
        kind: Some(kind),
        age_ns: now.since(neighbour.seen).0,
    }
}

pub(crate) fn fdb_entry(entry: &FdbEntry, now: Nanos) -> v1::FdbEntry {
    v1::FdbEntry {
        mac: entry.mac.to_string(),
        port: port_to_proto(entry.port),
        vlan: entry.vlan.into(),
        age_ns: now.since(entry.seen).0,
    }
}

pub(crate) fn trace(trace: &Trace, lost: u64) -> v1::FrameTrace {
    let line = |bytes: &[u8]| describe(bytes, bytes.len()).to_string();
    let step = |step: &Step| v1::TraceStep {
        stage: step.stage.name().into(),
        decision: step.decision.clone(),
        reason: std::iter::once(&step.why)
            .chain(&step.facts)
            .cloned()
            .collect::<Vec<_>>()
            .join("; "),
    };
    let sent = trace.sent.iter().map(|sent| v1::TraceOutput {
        port: port_to_proto(sent.port),
        summary: line(&sent.bytes),
        rewrite: String::new(),
    });
    v1::FrameTrace {
        at_ns: trace.at.0,
        ingress: port_to_proto(trace.ingress),
        summary: line(&trace.frame),
        steps: trace.steps.iter().map(step).collect(),
        outputs: sent.collect(),
        drop_reason: match trace.verdict {
            Verdict::Dropped(reason) => Some(reason.name().into()),
            _ => None,
        },
        lost,
    }
}

pub(crate) fn captured(captured: Captured, at_unix_ns: u64, lost: u64) -> v1::CapturedFrame {
    let (direction, drop_reason) = match captured.seen {
        Seen::In => (v1::Direction::In, None),
        Seen::Dropped(reason) => (v1::Direction::In, Some(reason.name().into())),
        Seen::Out => (v1::Direction::Out, None),
    };
    v1::CapturedFrame {
        at_unix_ns,
        port: port_to_proto(captured.port),
        direction: direction as i32,
        length: captured.length as u32,
        bytes: captured.bytes,
        drop_reason,
        lost,
    }
}

pub(crate) fn worker(report: &WorkerReport) -> v1::WorkerStats {
    let stats = &report.stats;
    let pool = &stats.pool;
    copy_worker_counters!(stats.counters => v1::WorkerStats {
        worker: stats.worker as u32,
        core: stats.core.map(|c| c as u32),
        batches: stats.batch_sizes.iter().sum(),
        batch_sizes: stats.batch_sizes.to_vec(),
        groups: stats.groups as u32,
        elapsed_ns: stats.elapsed.0,
        idle_ns: stats.idle.0,
        group_memory_bytes: stats.group_memory_bytes as u64,
        generation: stats.generation,
        buffers: Some(v1::BufferStats {
            buffers: pool.buffers as u64,
            buffers_free: pool.buffers_free as u64,
            bodies_free: pool.bodies_free as u64,
            exhausted: pool.exhausted,
        }),
        clock_hz: stats.clock_hz,
        clocks: Some(copy_clocks!(stats.clocks => v1::ClockStats)),
        rings: report.rings.iter().map(ring).collect(),
    })
}

fn ring(report: &RingReport) -> v1::RingStats {
    let occupancy = &report.occupancy;
    v1::RingStats {
        size: occupancy.size as u64,
        samples: occupancy.samples,
        used_sum: occupancy.used_sum,
        used_max: occupancy.used_max as u64,
        levels: occupancy.levels.to_vec(),
        from: Some(match &report.ring {
            Ring::Port { id, .. } => v1::ring_stats::From::Port(port_to_proto(*id)),
            Ring::Worker(worker) => v1::ring_stats::From::Worker(*worker as u32),
        }),
    }
}
