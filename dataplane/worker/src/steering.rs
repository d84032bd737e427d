//! Flow steering: rules in the devices that direct each group's frames to the receive queue of its worker.

use std::net::Ipv4Addr;
use std::sync::Arc;

use castnet_port::{FlowTable, Steered};
use castnet_wire::McstId;
use parking_lot::Mutex;

use crate::worker::rank;

/// In the order of the configured ports. Only control uses them, because device calls can be slow.
pub(crate) struct FlowTables {
    tables: Vec<Option<Arc<dyn FlowTable>>>,
    workers: usize,
    /// Per port.
    results: Mutex<Vec<Option<Steered>>>,
}

impl FlowTables {
    pub(crate) fn new(tables: Vec<Option<Arc<dyn FlowTable>>>, workers: usize) -> Self {
        let results = Mutex::new(vec![None; tables.len()]);
        Self {
            tables,
            workers,
            results,
        }
    }

    /// Replaces the steering rules by those of `groups` (group and worker, in the order of the McstIDs). Returns the
    /// indexes of the ports whose device refuses rules now and refused none before.
    pub(crate) fn steer(&self, groups: impl Iterator<Item = (McstId, usize)> + Clone) -> Vec<usize> {
        let mut newly_refused = Vec::new();
        let mut results = self.results.lock();
        for (port_index, (table, result)) in self.tables.iter().zip(results.iter_mut()).enumerate() {
            let Some(table) = table else { continue };
            let wanted: Vec<(Ipv4Addr, usize)> = groups
                .clone()
                .map(|(mcst_id, worker)| (mcst_id.0, rank(worker, port_index, self.workers)))
                .collect();
            let steered = table.steer(&wanted);
            if steered.refused > 0 && result.as_ref().is_none_or(|before| before.refused == 0) {
                newly_refused.push(port_index);
            }
            *result = Some(steered);
        }
        newly_refused
    }

    /// `None` if the port's device has no flow table.
    pub(crate) fn result(&self, port_index: usize) -> Option<Steered> {
        self.results.lock().get(port_index).cloned().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device that accepts one rule and refuses the others.
    #[derive(Default)]
    struct Device(Mutex<Vec<(Ipv4Addr, usize)>>);

    impl FlowTable for Device {
        fn steer(&self, wanted: &[(Ipv4Addr, usize)]) -> Steered {
            *self.0.lock() = wanted.to_vec();
            Steered {
                rules: 1,
                refused: wanted.len().saturating_sub(1),
                reason: "full".to_owned(),
            }
        }
    }

    #[test]
    fn every_port_counts_queues_from_its_own_worker() {
        let devices: [Arc<Device>; 2] = Default::default();
        let tables = [
            Some(devices[0].clone() as Arc<dyn FlowTable>),
            None,
            Some(devices[1].clone() as _),
        ];
        let tables = FlowTables::new(tables.into(), 3);
        let group = |n| McstId(Ipv4Addr::new(10, 200, 0, n));
        assert_eq!(tables.result(0), None);
        let groups = [(group(1), 0), (group(2), 1), (group(3), 2)];
        // Both devices refuse; this is reported only once.
        assert_eq!(tables.steer(groups.into_iter()), [0, 2]);
        assert_eq!(tables.steer(groups.into_iter()), []);
        let queues = |n: usize| devices[n].0.lock().iter().map(|w| w.1).collect::<Vec<_>>();
        // Port 0 belongs to worker 0, port 2 to worker 2, whose queue there has index 0.
        assert_eq!((queues(0), queues(1)), (vec![0, 1, 2], vec![1, 2, 0]));
        assert_eq!(tables.result(2).map(|s| (s.rules, s.refused)), Some((1, 2)));
        assert_eq!((tables.result(1), tables.result(7)), (None, None));
    }
}
