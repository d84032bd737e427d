//! Rules of devices that lead each group's frames to the queue of its worker, as far as devices can have such.

use std::net::Ipv4Addr;
use std::sync::Arc;

use castnet_port::{FlowTable, Steered};
use castnet_wire::McstId;
use parking_lot::Mutex;

use crate::worker::rank;

/// The rules of all ports, in the order of the configuration. Only control has them: a device may take its time.
pub(crate) struct FlowTables {
    tables: Vec<Option<Arc<dyn FlowTable>>>,
    workers: usize,
    /// What came of them the last time.
    came: Mutex<Vec<Option<Steered>>>,
}

impl FlowTables {
    pub(crate) fn new(tables: Vec<Option<Arc<dyn FlowTable>>>, workers: usize) -> Self {
        let came = Mutex::new(vec![None; tables.len()]);
        Self {
            tables,
            workers,
            came,
        }
    }

    /// Makes the rules those of these groups, each with its worker, in the order of their addresses. Returns the places of
    /// ports whose device refuses what it did not refuse before.
    pub(crate) fn steer(&self, groups: impl Iterator<Item = (McstId, usize)> + Clone) -> Vec<usize> {
        let mut newly_refused = Vec::new();
        let mut came = self.came.lock();
        for (place, (table, came)) in self.tables.iter().zip(came.iter_mut()).enumerate() {
            let Some(table) = table else { continue };
            let wanted: Vec<(Ipv4Addr, usize)> = groups
                .clone()
                .map(|(mcst_id, worker)| (mcst_id.0, rank(worker, place, self.workers)))
                .collect();
            let steered = table.steer(&wanted);
            if steered.refused > 0 && came.as_ref().is_none_or(|before| before.refused == 0) {
                newly_refused.push(place);
            }
            *came = Some(steered);
        }
        newly_refused
    }

    /// What came of the rules of the port at `place`; `None` where its device has none.
    pub(crate) fn came(&self, place: usize) -> Option<Steered> {
        self.came.lock().get(place).cloned().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device with as many queues as are not taken by others.
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
        assert_eq!(tables.came(0), None);
        let groups = [(group(1), 0), (group(2), 1), (group(3), 2)];
        // Both refuse, and say so once.
        assert_eq!(tables.steer(groups.into_iter()), [0, 2]);
        assert_eq!(tables.steer(groups.into_iter()), []);
        let queues = |n: usize| devices[n].0.lock().iter().map(|w| w.1).collect::<Vec<_>>();
        // Port 0 is worker 0's, port 2 is worker 2's, whose queue there is the first.
        assert_eq!((queues(0), queues(1)), (vec![0, 1, 2], vec![1, 2, 0]));
        assert_eq!(tables.came(2).map(|s| (s.rules, s.refused)), Some((1, 2)));
        assert_eq!((tables.came(1), tables.came(7)), (None, None));
    }
}
