//! The switches of both models and their links.

use castnet_collective::path::Paths;
use castnet_collective::{Multicast, MulticastConfig, PathId, RepairConfig};
use castnet_wire::{AnySource, Nanos, Psn};

/// Number of receivers.
pub const RECEIVERS: usize = 3;
/// Number of hosts.
pub const HOSTS: usize = RECEIVERS + 1;
/// Most switches.
pub const SWITCHES: usize = 3;
/// Most paths of a switch.
pub const PATHS: usize = 3;
/// Most links: two per edge.
pub const LINKS: usize = 12;
/// Most slots of a ring.
pub const SLOTS_MAX: usize = 4;
/// PSN of the first packet. The third one is behind the wrap.
pub const START: Psn = Psn::new(Psn::MODULUS - 2);

/// The link from the source. The first edge is that of the source.
pub const FROM_SOURCE: usize = 0;

/// Two tiers of switches between a source and three receivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// A root with the source, a receiver and a leaf; the leaf has two receivers. One switch has both kinds of next
    /// hop.
    RootAndLeaf,
    /// A spine between two leaves: one with the source and a receiver, one with two receivers.
    SpineAndLeaves,
}

/// One end of an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The source host.
    Source,
    /// A receiving host.
    Receiver(usize),
    /// A path of a switch.
    Switch {
        /// Index of the switch; 0 is next to the source.
        index: usize,
        /// Index of the path.
        path: usize,
    },
}

/// The switches of a [`Topology`] and their edges.
#[derive(Clone, Debug)]
pub struct Fabric {
    /// Upper and lower end of each edge.
    edges: Vec<[End; 2]>,
    /// By switch, the path towards the source.
    ups: Vec<usize>,
    /// By switch, the paths towards receivers.
    downs: Vec<Vec<usize>>,
    /// By switch and path, the outgoing link.
    away: [[usize; PATHS]; SWITCHES],
    /// By receiver, the outgoing link.
    away_from_receiver: [usize; RECEIVERS],
    /// Slots of the ring of each switch; 0 where the source repairs.
    slots: u16,
    /// All hosts may send.
    switching: bool,
}

impl Fabric {
    /// The fabric of a topology. Its switches have rings of `slots` packets; 0 where the source repairs.
    pub fn new(topology: Topology, slots: u16) -> Self {
        let switch = |index, path| End::Switch { index, path };
        let (ups, edges) = match topology {
            Topology::RootAndLeaf => (
                vec![0, 1],
                vec![
                    [End::Source, switch(0, 0)],
                    [switch(0, 1), End::Receiver(0)],
                    [switch(0, 2), switch(1, 1)],
                    [switch(1, 0), End::Receiver(1)],
                    [switch(1, 2), End::Receiver(2)],
                ],
            ),
            Topology::SpineAndLeaves => (
                vec![0, 0, 1],
                vec![
                    [End::Source, switch(0, 0)],
                    [switch(0, 1), End::Receiver(0)],
                    [switch(0, 2), switch(1, 0)],
                    [switch(1, 1), switch(2, 1)],
                    [switch(2, 0), End::Receiver(1)],
                    [switch(2, 2), End::Receiver(2)],
                ],
            ),
        };
        let exists = |index, path: &usize| edges.iter().flatten().any(|end| *end == switch(index, *path));
        let downs = ups.iter().enumerate();
        let downs = downs.map(|(index, up)| {
            (0..PATHS)
                .filter(|path| path != up && exists(index, path))
                .collect()
        });
        let downs = downs.collect();
        let (away, away_from_receiver) = ([[0; PATHS]; SWITCHES], [0; RECEIVERS]);
        let mut fabric = Self {
            edges,
            ups,
            downs,
            away,
            away_from_receiver,
            slots,
            switching: false,
        };
        for link in 0..fabric.links() {
            match fabric.end(link ^ 1) {
                End::Source => debug_assert_eq!(link, FROM_SOURCE),
                End::Receiver(i) => fabric.away_from_receiver[i] = link,
                End::Switch { index, path } => fabric.away[index][path] = link,
            }
        }
        fabric
    }

    /// Lets all hosts send.
    #[must_use]
    pub fn with_switching(self) -> Self {
        Self {
            switching: true,
            ..self
        }
    }

    /// Number of switches.
    pub fn switches(&self) -> usize {
        self.ups.len()
    }

    /// Number of links.
    pub fn links(&self) -> usize {
        2 * self.edges.len()
    }

    /// The end that a link leads to. Even links go down, odd links go up.
    pub fn end(&self, link: usize) -> End {
        let [upper, lower] = self.edges[link / 2];
        if link.is_multiple_of(2) { lower } else { upper }
    }

    /// The outgoing link of `end`.
    pub fn link_from(&self, end: End) -> usize {
        match end {
            End::Source => FROM_SOURCE,
            End::Receiver(i) => self.away_from_receiver[i],
            End::Switch { index, path } => self.away[index][path],
        }
    }

    /// The other end of the edge.
    pub fn peer(&self, end: End) -> End {
        self.end(self.link_from(end))
    }

    /// The path of a switch towards the source.
    pub fn up(&self, index: usize) -> usize {
        self.ups[index]
    }

    /// Number of paths of a switch.
    pub fn paths(&self, index: usize) -> usize {
        self.downs[index].len() + 1
    }

    /// The paths of a switch towards receivers.
    pub fn downs(&self, index: usize) -> &[usize] {
        &self.downs[index]
    }

    /// The last path of a switch leads to this receiver, perhaps over other switches.
    pub fn is_behind_last(&self, index: usize, receiver: usize) -> bool {
        let mut end = self.peer(End::Receiver(receiver));
        while let End::Switch { index: at, path } = end {
            if at == index {
                return self.downs[index].last() == Some(&path);
            }
            let path = self.ups[at];
            end = self.peer(End::Switch { index: at, path });
        }
        false
    }

    /// The machine of the data plane for a switch, in its initial state, with its first `paths` paths.
    pub fn machine(&self, index: usize, paths: usize, start_psn: Option<Psn>) -> Multicast {
        let machine = Multicast::new(MulticastConfig {
            paths: paths as u16,
            source: path_id(self.ups[index]),
            start_psn,
            stall_timeout: Nanos::ZERO,
        });
        let is_host = |path: &usize| {
            let path = *path;
            !matches!(self.peer(End::Switch { index, path }), End::Switch { .. })
        };
        let machine = match self.switching {
            true => machine.with_switching(AnySource::Bridged, (0..paths).filter(is_host).map(path_id)),
            false => machine,
        };
        if self.slots == 0 {
            return machine;
        }
        machine.with_repair(RepairConfig {
            slots: self.slots,
            // The clock stands still: each tick is due.
            tick: Nanos::ZERO,
            switches: (0..paths)
                .filter(is_host)
                .map(path_id)
                .fold(Paths::first(paths), Paths::without),
        })
    }

    /// Slots of the ring of each switch; 0 where the source repairs.
    pub fn slots(&self) -> usize {
        self.slots.into()
    }
}

/// The path `index` of a machine.
pub fn path_id(index: usize) -> PathId {
    PathId::new(index).expect("few paths")
}
