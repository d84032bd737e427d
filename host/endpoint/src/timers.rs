//! The timers of the QPs of an endpoint.

use alloc::vec::Vec;

use castnet_wire::{Nanos, Qpn};

/// A list, latest first. It allocates nothing once as many timers have run at once, and nearly all endpoints have few.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timers(Vec<(Nanos, Qpn)>);

impl Timers {
    /// The earliest.
    pub(crate) fn first(&self) -> Option<(Nanos, Qpn)> {
        self.0.last().copied()
    }

    /// Replaces the timer of a QP.
    pub(crate) fn change(&mut self, qpn: Qpn, old: Option<Nanos>, new: Option<Nanos>) {
        let find = |list: &[(Nanos, Qpn)], at| list.binary_search_by(|timer| (at, qpn).cmp(timer));
        if let Some(at) = old.and_then(|at| find(&self.0, at).ok()) {
            self.0.remove(at);
        }
        if let Some(new) = new
            && let Err(at) = find(&self.0, new)
        {
            self.0.insert(at, (new, qpn));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use proptest::prelude::*;

    proptest! {
        /// Against a set.
        #[test]
        fn the_first_timer_is_the_earliest(changes in prop::collection::vec((0..20_usize, prop::option::of(0..50_u64)), 0..200)) {
            let (mut timers, mut set, mut running) = (Timers::default(), BTreeSet::new(), [None; 20]);
            for (qp, at) in changes {
                let (qpn, at) = (Qpn::new(qp as u32), at.map(Nanos));
                timers.change(qpn, running[qp], at);
                running[qp].map(|old| set.remove(&(old, qpn)));
                at.map(|at| set.insert((at, qpn)));
                running[qp] = at;
                prop_assert_eq!(timers.first(), set.first().copied());
            }
        }
    }
}
