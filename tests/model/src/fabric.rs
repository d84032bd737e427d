//! The switches of both models and how they hang together.

use castnet_collective::{Multicast, MulticastConfig, PathId};
use castnet_wire::{Nanos, Psn};

/// Receivers.
pub const RECEIVERS: usize = 3;
/// Switches at most.
pub const SWITCHES: usize = 3;
/// Paths per switch at most.
pub const PATHS: usize = 3;
/// Links at most: two per edge.
pub const LINKS: usize = 12;
/// The PSN of the first packet: the third is past the wrap.
pub const START: Psn = Psn::new(Psn::MODULUS - 2);

/// The link that leads away from the source: the first edge is the source's.
const FROM_SOURCE: usize = 0;

/// Two tiers of switches between one source and three receivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// A root with the source, a receiver and a leaf; the leaf with two receivers. Both kinds of next hop at one switch.
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
        /// Which switch; 0 is the one next to the source.
        index: usize,
        /// Which path.
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
    /// By switch and path, the link that leads away.
    away: [[usize; PATHS]; SWITCHES],
    /// By receiver, the link that leads away.
    away_from_receiver: [usize; RECEIVERS],
}

impl Fabric {
    /// The fabric of a topology.
    pub fn new(topology: Topology) -> Self {
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

    /// How many switches there are.
    pub fn switches(&self) -> usize {
        self.ups.len()
    }

    /// How many links there are.
    pub fn links(&self) -> usize {
        2 * self.edges.len()
    }

    /// Where a link ends: even ones go down, odd ones up.
    pub fn end(&self, link: usize) -> End {
        let [upper, lower] = self.edges[link / 2];
        if link.is_multiple_of(2) { lower } else { upper }
    }

    /// The link that leads away from `end`.
    pub fn link_from(&self, end: End) -> usize {
        match end {
            End::Source => FROM_SOURCE,
            End::Receiver(i) => self.away_from_receiver[i],
            End::Switch { index, path } => self.away[index][path],
        }
    }

    /// What is at the other end.
    pub fn peer(&self, end: End) -> End {
        self.end(self.link_from(end))
    }

    /// The path of a switch that leads to the source.
    pub fn up(&self, index: usize) -> usize {
        self.ups[index]
    }

    /// The paths of a switch that lead to receivers.
    pub fn downs(&self, index: usize) -> &[usize] {
        &self.downs[index]
    }

    /// The machine that ships for a switch, before it has seen anything.
    pub fn machine(&self, index: usize, start_psn: Option<Psn>) -> Multicast {
        Multicast::new(MulticastConfig {
            paths: self.downs[index].len() as u16 + 1,
            source: path_id(self.ups[index]),
            start_psn,
            stall_timeout: Nanos::ZERO,
        })
    }
}

/// The path `index` of a machine.
pub fn path_id(index: usize) -> PathId {
    PathId::new(index).expect("few paths")
}
