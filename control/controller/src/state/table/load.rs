//! How many groups use each link, for the planner.
//!
//! Paths over plain switches and routers may change with any link. All edges are then counted anew: by the first that
//! needs the numbers, outside the core's lock.

use std::collections::BTreeMap;
use std::mem::take;
use std::sync::{Arc, OnceLock};

use castnet_planner::{Edge, LinkLoad};
use castnet_topology::Topology;
use parking_lot::Mutex;

/// Edges of the trees of groups, with the number of groups.
pub(crate) type Load = BTreeMap<Edge, u32>;

/// Links of a fabric that is indexed, and whose groups are counted, in no time.
const LINKS_AT_ONCE: usize = 256;

/// Changes that are kept in any case.
const CHANGES_MIN: usize = 4096;

/// An edge that came or went (false), with its number of groups.
type Change = (Edge, u32, bool);

/// Groups per link of one fabric.
struct Counted {
    topology: Arc<Topology>,
    /// What is still to be counted.
    edges: Mutex<Arc<BTreeMap<Arc<Edge>, u32>>>,
    load: OnceLock<LinkLoad>,
}

impl Counted {
    fn load(&self) -> &LinkLoad {
        self.load.get_or_init(|| {
            let edges = take(&mut *self.edges.lock());
            LinkLoad::from_edges(
                &self.topology,
                edges.iter().map(|(edge, groups)| (&**edge, *groups)),
            )
        })
    }

    /// What was counted, after these changes.
    fn after(&self, changes: &[Change]) -> LinkLoad {
        let mut load = self.load().clone();
        for (edge, groups, add) in changes {
            match add {
                true => load.add_edge(&self.topology, edge, *groups),
                false => load.remove_edge(&self.topology, edge, *groups),
            }
        }
        load
    }
}

struct Links {
    counted: Arc<Counted>,
    /// Since then.
    changes: Vec<Change>,
}

/// All edges, and the groups per link of the fabric that was asked about last.
#[derive(Default)]
pub(super) struct Index {
    edges: Arc<BTreeMap<Arc<Edge>, u32>>,
    links: Mutex<Option<Links>>,
}

/// The groups per link as they were when it was taken.
pub(crate) struct Snapshot {
    counted: Arc<Counted>,
    changes: Vec<Change>,
}

impl Snapshot {
    /// These numbers.
    pub(crate) fn of(topology: &Arc<Topology>, load: LinkLoad) -> Self {
        let (topology, edges, load) = (topology.clone(), Mutex::default(), load.into());
        Self {
            counted: Arc::new(Counted {
                topology,
                edges,
                load,
            }),
            changes: Vec::new(),
        }
    }

    pub(crate) fn is_counted(&self) -> bool {
        self.counted.load.get().is_some()
    }

    /// Whether it takes little time to get the numbers, and to find their links in this fabric.
    pub(crate) fn is_short(&self, topology: &Topology) -> bool {
        self.is_counted() && topology.is_indexed() || topology.links().nth(LINKS_AT_ONCE).is_none()
    }

    /// The numbers. Not to be called under the core's lock, unless they are counted.
    pub(crate) fn get(&self) -> LinkLoad {
        self.counted.after(&self.changes)
    }
}

impl Index {
    /// The groups per link now, without these edges.
    pub(super) fn snapshot(&self, topology: &Arc<Topology>, without: Load) -> Snapshot {
        let still = |known: &Topology| {
            known.same_paths(topology) || known.same_links(topology) && !known.has_forwarders()
        };
        let anew = || Links {
            counted: Arc::new(Counted {
                topology: topology.clone(),
                edges: Mutex::new(self.edges.clone()),
                load: OnceLock::new(),
            }),
            changes: Vec::new(),
        };
        let mut links = self.links.lock();
        let known = links.take().filter(|links| still(&links.counted.topology));
        let links = links.insert(known.unwrap_or_else(anew));
        if !links.changes.is_empty() && links.counted.load.get().is_some() {
            links.counted = Arc::new(Counted {
                topology: links.counted.topology.clone(),
                edges: Mutex::default(),
                load: links.counted.after(&take(&mut links.changes)).into(),
            });
        }
        let without = without.into_iter().map(|(edge, groups)| (edge, groups, false));
        Snapshot {
            counted: links.counted.clone(),
            changes: links.changes.iter().cloned().chain(without).collect(),
        }
    }

    /// Takes in the edges of a group that came, or went.
    pub(super) fn set(&mut self, load: &Load, add: bool) {
        if load.is_empty() {
            return;
        }
        let edges = Arc::make_mut(&mut self.edges);
        for (edge, lanes) in load {
            let before = edges.get(edge).copied().unwrap_or(0);
            match super::count(before.into(), (*lanes).into(), add) as u32 {
                0 => drop(edges.remove(edge)),
                groups => match edges.get_mut(edge) {
                    Some(known) => *known = groups,
                    None => drop(edges.insert(Arc::new(edge.clone()), groups)),
                },
            }
        }
        let links = self.links.get_mut();
        if let Some(known) = links {
            let changes = load.iter().map(|(edge, lanes)| (edge.clone(), *lanes, add));
            known.changes.extend(changes);
            // So many changes are as much work as to count anew.
            if known.changes.len() > self.edges.len() + CHANGES_MIN {
                *links = None;
            }
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.edges.is_empty()
    }
}
