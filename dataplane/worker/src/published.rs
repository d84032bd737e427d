//! What control publishes to all workers: whole snapshots, taken between two batches.

use std::net::Ipv4Addr;
use std::sync::Arc;

use castnet_engine::Tables;

/// One snapshot: the engine's tables, and how rings that are full are met.
#[derive(Debug)]
pub(crate) struct Published {
    pub(crate) tables: Arc<Tables>,
    /// Whether a frame that finds a ring full waits.
    patient: bool,
}

impl Published {
    pub(crate) fn new(tables: Tables) -> Self {
        Self {
            tables: Arc::new(tables),
            patient: false,
        }
    }

    /// The same, under which a frame that finds the ring to another worker full waits, and is not dropped.
    pub(crate) fn patient(self, patient: bool) -> Self {
        Self { patient, ..self }
    }

    pub(crate) fn is_patient(&self) -> bool {
        self.patient
    }

    pub(crate) fn generation(&self) -> u64 {
        self.tables.generation()
    }

    /// The worker of frames to `destination`: the group's, or worker 0.
    pub(crate) fn owner(&self, destination: Option<Ipv4Addr>) -> usize {
        destination
            .and_then(|address| self.tables.owner(address))
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use castnet_engine::Owners;
    use castnet_wire::McstId;

    #[test]
    fn whoever_has_no_group_goes_to_worker_0() {
        let group = |n| McstId(Ipv4Addr::new(10, 200, 0, n));
        let mut owners = Owners::default();
        for (n, worker) in [(9, 2), (1, 1), (5, 0)] {
            owners.insert(group(n), worker);
        }
        let published = Published::new(Tables::default().with_owners(owners));
        let owner = |n| published.owner(Some(group(n).0));
        assert_eq!([1, 2, 5, 9, 10].map(owner), [1, 0, 0, 2, 0]);
        assert_eq!(published.owner(None), 0);
    }
}
