//! Broadcasts that wait for each other (NIC-based multicast over Myrinet, 5.4), explored in all orders of deliveries. A relay of the paper takes a
//! message with a receive token, which it keeps until all relays below it have the message.

use castnet_group::TreeShape;
use stateright::{Checker, Model, Property};

use crate::relays::{above, planned_from, segment};

/// The relay above each relay in each broadcast; `None` above its root.
struct Broadcasts {
    above: Vec<Vec<Option<usize>>>,
    /// All broadcasts share the token of a relay, as in the paper. Otherwise each has its own, as groups of Castnet have slots of their own.
    is_shared: bool,
}

impl Broadcasts {
    /// Of the planner: one from each host.
    fn planned(hosts: u8, racks: u8, tree: TreeShape, is_shared: bool) -> Self {
        let topology = segment(hosts, racks, false);
        let number = |relay: &str| {
            relay
                .trim_start_matches("relay")
                .parse::<usize>()
                .expect("a number")
        };
        let above = (0..hosts).map(|source| {
            let mut parents = vec![None; hosts.into()];
            for (relay, parent) in above(&planned_from(&topology, (source, hosts), tree)) {
                parents[number(&relay)] = Some(number(&parent));
            }
            assert_eq!(parents.iter().filter(|parent| parent.is_none()).count(), 1);
            parents
        });
        Self {
            above: above.collect(),
            is_shared,
        }
    }

    /// Chains in the order of the ring from each source on, as trees that are relative to their root.
    fn rotated(hosts: usize) -> Self {
        let chain = |source: usize| {
            let parent = |relay: usize| (relay != source).then(|| (relay + hosts - 1) % hosts);
            (0..hosts).map(parent).collect()
        };
        Self {
            above: (0..hosts).map(chain).collect(),
            is_shared: true,
        }
    }

    /// Whether the token of a relay is with this broadcast. A root has none.
    fn holds(&self, state: &[u16], broadcast: usize, relay: usize) -> bool {
        let (above, has) = (&self.above[broadcast], state[broadcast]);
        let mut below = (0..above.len()).filter(|below| above[*below] == Some(relay));
        above[relay].is_some() && has >> relay & 1 == 1 && below.any(|below| has >> below & 1 == 0)
    }

    fn has_all(&self, state: &[u16]) -> bool {
        state
            .iter()
            .all(|has| has.count_ones() as usize == self.above[0].len())
    }

    /// Whether broadcasts can wait for each other for ever.
    fn get_stuck(self) -> bool {
        let checker = self.checker().spawn_bfs().join();
        assert!(checker.is_done() || checker.discovery("goes on").is_some());
        checker.discovery("goes on").is_some()
    }
}

impl Model for Broadcasts {
    /// The relays that have the message of each broadcast.
    type State = Vec<u16>;
    /// A broadcast, and the relay that gets its message from the one above.
    type Action = (usize, usize);

    fn init_states(&self) -> Vec<Self::State> {
        let root = |above: &Vec<Option<usize>>| 1 << above.iter().position(Option::is_none).unwrap_or(0);
        vec![self.above.iter().map(root).collect()]
    }

    fn actions(&self, state: &Self::State, actions: &mut Vec<Self::Action>) {
        for (broadcast, above) in self.above.iter().enumerate() {
            for (relay, parent) in above.iter().enumerate() {
                let Some(parent) = parent else { continue };
                let comes = state[broadcast] >> parent & 1 == 1 && state[broadcast] >> relay & 1 == 0;
                let mut others = 0..self.above.len();
                let is_taken = self.is_shared && others.any(|other| self.holds(state, other, relay));
                if comes && !is_taken {
                    actions.push((broadcast, relay));
                }
            }
        }
    }

    fn next_state(&self, state: &Self::State, (broadcast, relay): Self::Action) -> Option<Self::State> {
        let mut next = state.clone();
        next[broadcast] |= 1 << relay;
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always("goes on", |model, state| {
            let mut actions = Vec::new();
            model.actions(state, &mut actions);
            !actions.is_empty() || model.has_all(state)
        })]
    }
}

fn shapes() -> [TreeShape; 4] {
    let postal = TreeShape::Postal {
        latency: 250,
        packets: 8,
    };
    [TreeShape::Star, TreeShape::Chain, TreeShape::Binomial, postal]
}

/// The paper's rule: a relay is below one that is earlier in an order that all broadcasts share, or below the root.
#[test]
fn broadcasts_over_one_ordinary_switch_never_wait_for_each_other() {
    for shape in shapes() {
        assert!(!Broadcasts::planned(4, 1, shape, true).get_stuck(), "{shape}");
    }
}

#[test]
fn without_one_order_they_do() {
    assert!(Broadcasts::rotated(4).get_stuck());
}

/// Over several ordinary switches a chain begins with the relays at that of its source, so that no link has a message twice. That is not one order: relays
/// that share a token would wait for each other. Those of Castnet share none.
#[test]
fn over_two_ordinary_switches_only_slots_of_their_own_prevent_it() {
    let chains = |is_shared| Broadcasts::planned(6, 2, TreeShape::Chain, is_shared);
    assert!(chains(true).get_stuck());
    assert!(!chains(false).get_stuck());
}
