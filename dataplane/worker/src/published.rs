//! Snapshots that control publishes to all workers. Workers load them between two batches.

use std::sync::Arc;

use castnet_engine::{GroupKey, Tables};

#[derive(Debug)]
pub(crate) struct Published {
    pub(crate) tables: Arc<Tables>,
    /// True if a frame is blocked, not dropped, when the ring to another worker is full.
    pub(crate) patient: bool,
}

impl Published {
    pub(crate) fn new(tables: Tables, patient: bool) -> Self {
        let tables = Arc::new(tables);
        Self { tables, patient }
    }

    pub(crate) fn generation(&self) -> u64 {
        self.tables.generation
    }

    /// The worker that processes frames with this key: the group's worker, or worker 0.
    pub(crate) fn owner(&self, key: Option<GroupKey>) -> usize {
        key.and_then(|key| self.tables.owner(key)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use castnet_engine::Owners;
    use castnet_wire::McstId;
    use std::net::Ipv4Addr;

    #[test]
    fn frames_of_no_group_go_to_worker_0() {
        let group = |n| McstId(Ipv4Addr::new(10, 200, 0, n));
        let mut owners = Owners::default();
        for (n, worker) in [(9, 2), (1, 1), (5, 0)] {
            owners.insert(group(n), worker);
        }
        // Data of a static core to group 9, whose McstID at its source's switch is 10.7.0.1.
        owners.insert(GroupKey::From([10, 7, 0, 1].into()), 2);
        let mut tables = Tables::default();
        tables.owners = owners;
        let published = Published::new(tables, false);
        let owner = |n| published.owner(Some(group(n).into()));
        assert_eq!([1, 2, 5, 9, 10].map(owner), [1, 0, 0, 2, 0]);
        assert_eq!(published.owner(None), 0);
        let of_core = |src| published.owner(Some(GroupKey::From(src)));
        assert_eq!([of_core([10, 7, 0, 1].into()), of_core(group(9).0)], [2, 0]);
    }
}
