//! Sums the workers' reports into the counters of the switch.

use castnet_engine::{KindSnapshot, PortCounters};
use castnet_port::PortStats;
use castnet_wire::CounterSet;

use crate::control::SharedControl;
use crate::report::{Counters, GroupReport, KindReport, PortReport, Report};

pub(crate) struct Sum<'a> {
    shared: &'a SharedControl,
    counters: Counters,
}

impl<'a> Sum<'a> {
    pub(crate) fn new(shared: &'a SharedControl) -> Self {
        let infos = shared.infos_now();
        let now = shared.clock.now();
        let ports = infos
            .into_iter()
            .zip(&shared.links)
            .enumerate()
            .map(|(slot, (info, link))| {
                let mut link = link.clone();
                link.up = shared.is_up(info.id);
                link.mtu = info.mtu;
                PortReport {
                    id: info.id,
                    name: info.name,
                    link,
                    reason: shared.no_interface(info.id),
                    stats: PortStats::default(),
                    engine: PortCounters::default(),
                    pfc: shared.pfc.report(slot, now),
                }
            });
        let counters = Counters {
            ports: ports.collect(),
            ..Counters::default()
        };
        Self { shared, counters }
    }

    pub(crate) fn add(&mut self, report: &Report) {
        let sum = &mut self.counters;
        sum.at = sum.at.max(report.at);
        sum.totals.add(&report.counters.totals);
        sum.drops.add(&report.counters.drops);
        for (port, now) in sum.ports.iter_mut().zip(&report.ports) {
            let (stats, on_the_way) = (&now.stats, &now.drops);
            if let Some((speed_mbps, steering, segmentation)) = now.link {
                port.link.device.segmentation = segmentation;
                port.link.device.speed_mbps = speed_mbps;
                port.link.device.steering = steering;
            }
            port.stats.add(stats);
            port.engine.drops.add(on_the_way);
            sum.drops.add(on_the_way);
            sum.drops.add(&stats.drops);
            let lost = on_the_way.total();
            port.engine.traffic.rx_frames += lost;
            sum.totals.received += lost;
            sum.totals.dropped += lost;
        }
        for (id, counted) in &report.counters.ports {
            if let Some(port) = sum.ports.iter_mut().find(|p| p.id == *id) {
                port.engine.add(counted);
            }
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
