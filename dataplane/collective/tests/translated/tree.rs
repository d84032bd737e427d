//! Trees of switches with ranks on them.

/// What an endpoint of a switch leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    Host(usize),
    Switch { switch: usize, endpoint: usize },
}

/// Switch 0 is the root; `endpoints[s]` are those of switch `s`.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    pub(crate) endpoints: Vec<Vec<Peer>>,
    pub(crate) parent: Vec<Option<usize>>,
    pub(crate) ranks: u16,
}

impl Tree {
    /// One switch.
    pub(crate) fn star(ranks: u16) -> Self {
        Self::new(&[None], &vec![0; usize::from(ranks)])
    }

    /// A spine over two leaves with two hosts each: the tree of the model checker.
    pub(crate) fn two_leaves() -> Self {
        Self::new(&[None, Some(0), Some(0)], &[1, 1, 2, 2])
    }

    /// `above[s]` is the switch above `s`, a lower number; `at[r]` the switch of rank `r`. Switches with nobody below them are
    /// left without endpoints but the one upwards.
    pub(crate) fn new(above: &[Option<usize>], at: &[usize]) -> Self {
        let mut endpoints = vec![Vec::new(); above.len()];
        let mut parent = vec![None; above.len()];
        // In rank order, as controllers do, but for the ranks of lower switches, which may be anywhere.
        for (rank, &switch) in at.iter().enumerate() {
            endpoints[switch].push(Peer::Host(rank));
        }
        for switch in (1..above.len()).rev() {
            let up = above[switch].unwrap();
            let (here, there) = (endpoints[switch].len(), endpoints[up].len());
            endpoints[switch].push(Peer::Switch {
                switch: up,
                endpoint: there,
            });
            endpoints[up].push(Peer::Switch {
                switch,
                endpoint: here,
            });
            parent[switch] = Some(here);
        }
        Self {
            endpoints,
            parent,
            ranks: at.len() as u16,
        }
    }

    /// The ranks behind an endpoint.
    pub(crate) fn behind(&self, switch: usize, endpoint: usize) -> Vec<u16> {
        match self.endpoints[switch][endpoint] {
            Peer::Host(rank) => vec![rank as u16],
            Peer::Switch {
                switch: next,
                endpoint: back,
            } => (0..self.endpoints[next].len())
                .filter(|&e| e != back)
                .flat_map(|e| self.behind(next, e))
                .collect(),
        }
    }
}
