//! Which ToRs a multicast reaches by the rules, in how many hops, and the load of the splitters.

use super::{Relaying, Tor};

/// What a multicast from one ToR to all arrives at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reach {
    /// By number of the ToR: hops to it. The source has 0.
    hops: Vec<Option<usize>>,
    /// By number of the ToR: copies from splitters.
    copies: Vec<usize>,
}

impl Reach {
    /// Hops to a ToR, if it is reached.
    pub fn hops(&self, tor: Tor) -> Option<usize> {
        self.hops.get(tor.number()).copied().flatten()
    }

    /// Copies that a ToR receives. The source receives its own multicast too, as a leaf of its last relay.
    pub fn copies(&self, tor: Tor) -> usize {
        self.copies.get(tor.number()).copied().unwrap_or(0)
    }

    /// ToRs that are reached, without the source.
    pub fn reached(&self) -> usize {
        self.hops.iter().flatten().count() - 1
    }

    /// Hops to the farthest ToR that is reached.
    pub fn hops_max(&self) -> usize {
        self.hops.iter().flatten().copied().max().unwrap_or(0)
    }

    /// ToRs by hops: the first item is the source alone.
    pub fn by_hops(&self) -> Vec<usize> {
        let mut tors = vec![0; self.hops_max() + 1];
        self.hops.iter().flatten().for_each(|hops| tors[*hops] += 1);
        tors
    }
}

impl Relaying {
    /// The multicast of `source` to all ToRs. `failed` sends nothing to its splitter, and still receives (3.3.1: a failed
    /// relay).
    pub fn reach(&self, source: Tor, failed: Option<Tor>) -> Reach {
        let tors = self.fabric.size();
        let mut reach = Reach {
            hops: vec![None; tors],
            copies: vec![0; tors],
        };
        reach.hops[source.number()] = Some(0);
        let mut relays = vec![false; tors];
        let working = self.relays(source).filter(|relay| Some(*relay) != failed);
        working.for_each(|relay| relays[relay.number()] = true);
        let mut senders = vec![source];
        for hop in 1.. {
            senders.retain(|tor| relays[tor.number()]);
            if senders.is_empty() {
                break;
            }
            let mut new = Vec::new();
            for sender in senders {
                for receiver in self.fabric.splitter(sender) {
                    reach.copies[receiver.number()] += 1;
                    let hops = &mut reach.hops[receiver.number()];
                    if hops.is_none() {
                        *hops = Some(hop);
                        new.push(receiver);
                    }
                }
            }
            senders = new;
        }
        reach
    }

    /// By number of the ToR: how many of the sources its splitter carries. Each multicasts at line rate if it is at most 1
    /// everywhere.
    pub fn loads(&self, sources: &[Tor]) -> Vec<usize> {
        let mut loads = vec![0; self.fabric.size()];
        let relays = sources.iter().flat_map(|source| self.relays(*source));
        relays.for_each(|relay| loads[relay.number()] += 1);
        loads
    }

    /// Share of line rate of each source, in order, when all multicast at once: the splitter with the highest load on its
    /// tree divides its rate evenly (6.3).
    pub fn rates(&self, sources: &[Tor]) -> Vec<f64> {
        let loads = self.loads(sources);
        let busiest = |source: &Tor| self.relays(*source).map(|relay| loads[relay.number()]).max();
        let rate = |source| 1.0 / busiest(source).unwrap_or(1) as f64;
        sources.iter().map(rate).collect()
    }
}
