//! What control publishes to all workers: whole snapshots, taken between two batches.

use std::net::Ipv4Addr;
use std::sync::Arc;

use castnet_engine::Tables;
use castnet_wire::McstId;

/// One snapshot: the engine's tables, and which worker has which group.
#[derive(Debug)]
pub(crate) struct Published {
    pub(crate) tables: Arc<Tables>,
    /// Sorted by address.
    owners: Box<[(Ipv4Addr, u16)]>,
    /// Whether a frame that finds a ring full waits.
    patient: bool,
}

impl Published {
    pub(crate) fn new(tables: Tables, owners: impl IntoIterator<Item = (McstId, usize)>) -> Self {
        let mut owners: Vec<_> = owners
            .into_iter()
            .map(|(m, worker)| (m.0, worker as u16))
            .collect();
        owners.sort_unstable();
        Self {
            tables: Arc::new(tables),
            owners: owners.into(),
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
        let Some(destination) = destination else { return 0 };
        match self
            .owners
            .binary_search_by_key(&destination, |(address, _)| *address)
        {
            Ok(at) => usize::from(self.owners[at].1),
            Err(_) => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_no_group_goes_to_worker_0() {
        let group = |n| McstId(Ipv4Addr::new(10, 200, 0, n));
        let published = Published::new(Tables::default(), [(group(9), 2), (group(1), 1), (group(5), 0)]);
        let owner = |n| published.owner(Some(group(n).0));
        assert_eq!([1, 2, 5, 9, 10].map(owner), [1, 0, 0, 2, 0]);
        assert_eq!(published.owner(None), 0);
    }
}
