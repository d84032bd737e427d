//! The counters of a switch out of those of its workers.

use castnet_engine::{KindSnapshot, PortCounters, Totals};
use castnet_port::PortStats;
use castnet_wire::{DropReason, Nanos};

use crate::control::Shared;
use crate::report::{Counters, GroupReport, KindReport, PortReport, Report, add_totals};

/// Adds up what the workers report.
pub(crate) struct Sum<'a> {
    shared: &'a Shared,
    counters: Counters,
}

impl<'a> Sum<'a> {
    pub(crate) fn new(shared: &'a Shared) -> Self {
        let infos = shared.infos_now();
        let ports = infos.into_iter().zip(&shared.links).map(|(info, link)| {
            let mut link = link.clone();
            link.up = shared.is_up(info.id);
            link.mtu = info.mtu;
            let engine = PortCounters {
                port: info.id,
                rx_frames: 0,
                rx_bytes: 0,
                tx_frames: 0,
                tx_bytes: 0,
                drops: [0; DropReason::COUNT],
            };
            PortReport {
                id: info.id,
                name: info.name,
                link,
                stats: PortStats::default(),
                engine,
            }
        });
        let counters = Counters {
            at: Nanos::ZERO,
            totals: Totals::default(),
            drops: [0; DropReason::COUNT],
            ports: ports.collect(),
            groups: Vec::new(),
            workers: Vec::new(),
        };
        Self { shared, counters }
    }

    pub(crate) fn add(&mut self, report: &Report) {
        let sum = &mut self.counters;
        sum.at = sum.at.max(report.at);
        add_totals(&mut sum.totals, &report.counters.totals);
        add_each(&mut sum.drops, &report.counters.drops);
        for (port, now) in sum.ports.iter_mut().zip(&report.ports) {
            let (stats, on_the_way) = (&now.stats, &now.drops);
            if let Some((speed_mbps, steering)) = now.link {
                port.link.device.speed_mbps = speed_mbps;
                port.link.device.steering = steering;
            }
            port.stats.add(stats);
            add_each(&mut port.engine.drops, on_the_way);
            add_each(&mut sum.drops, on_the_way);
            add_each(&mut sum.drops, &stats.drops);
            let lost: u64 = on_the_way.iter().sum();
            port.engine.rx_frames += lost;
            sum.totals.received += lost;
            sum.totals.dropped += lost;
        }
        for counted in &report.counters.ports {
            let Some(port) = sum.ports.iter_mut().find(|p| p.id == counted.port) else {
                continue;
            };
            port.engine.rx_frames += counted.rx_frames;
            port.engine.rx_bytes += counted.rx_bytes;
            port.engine.tx_frames += counted.tx_frames;
            port.engine.tx_bytes += counted.tx_bytes;
            add_each(&mut port.engine.drops, &counted.drops);
        }
        sum.workers.push(report.runtime);
    }

    pub(crate) fn groups(&mut self, report: &Report, worker: usize) {
        let counters = &report.counters;
        self.kind(&counters.multicast, worker, KindReport::Multicast);
        self.kind(&counters.collective, worker, KindReport::Translated);
        self.kind(&counters.forwarding, worker, KindReport::Forwarding);
    }

    fn kind<C: Copy, E: Clone>(
        &mut self,
        counted: &KindSnapshot<C, E>,
        worker: usize,
        report: fn(C, Vec<E>) -> KindReport,
    ) {
        let state = self.shared.state.lock();
        for group in &counted.groups {
            let known = state.groups.get(&group.mcst_id);
            self.counters.groups.push(GroupReport {
                name: known.map(|g| g.rule.name.clone()).unwrap_or_default(),
                mcst_id: group.mcst_id,
                generation: group.generation,
                worker,
                counters: report(group.counters, counted.endpoints_of(group).to_vec()),
            });
        }
    }

    pub(crate) fn finish(mut self) -> Counters {
        self.counters.groups.sort_by_key(|g| g.mcst_id);
        self.counters
    }
}

fn add_each(sum: &mut [u64; DropReason::COUNT], more: &[u64; DropReason::COUNT]) {
    for (sum, more) in sum.iter_mut().zip(more) {
        *sum += more;
    }
}
