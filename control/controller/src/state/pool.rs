//! The addresses of groups; free ones are found without a walk over those in use.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use castnet_rules::Ipv4Net;

/// A set of addresses as runs of neighbours: adding, removing and finding the first free one are searches in a tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AddressSet {
    /// First and last of each run; no two runs touch.
    runs: BTreeMap<u32, u32>,
}

impl AddressSet {
    pub(crate) fn set(&mut self, address: Ipv4Addr, member: bool) {
        let at = u32::from(address);
        match (self.run_of(at), member) {
            (None, true) => {
                let mut run = (at, at);
                if let Some(before) = at.checked_sub(1).and_then(|at| self.run_of(at)) {
                    run.0 = before.0;
                }
                if let Some(after) = at.checked_add(1).and_then(|at| self.run_of(at)) {
                    self.runs.remove(&after.0);
                    run.1 = after.1;
                }
                self.runs.insert(run.0, run.1);
            }
            (Some((first, last)), false) => {
                self.runs.remove(&first);
                if first < at {
                    self.runs.insert(first, at - 1);
                }
                if at < last {
                    self.runs.insert(at + 1, last);
                }
            }
            (None, false) | (Some(_), true) => {}
        }
    }

    fn first_free(&self, at: u32) -> Option<u32> {
        match self.run_of(at) {
            Some((_, last)) => last.checked_add(1),
            None => Some(at),
        }
    }

    fn run_of(&self, at: u32) -> Option<(u32, u32)> {
        let (first, last) = self.runs.range(..=at).next_back()?;
        (at <= *last).then_some((*first, *last))
    }

    /// Addresses of `pool` that are not in the set: those after `last` first, then the others.
    pub(crate) fn free_in(&self, pool: Ipv4Net, last: Option<Ipv4Addr>) -> impl Iterator<Item = Ipv4Addr> {
        let bounds = bounds(pool);
        let start = bounds.map_or(0, |(first, end)| {
            let after = last.and_then(|last| u32::from(last).checked_add(1));
            after.filter(|at| (first..=end).contains(at)).unwrap_or(first)
        });
        // The remaining ranges: from the start to the end, then from the first address to the start.
        let mut parts = match bounds {
            Some((first, end)) => [
                Some((start, end)),
                start
                    .checked_sub(1)
                    .filter(|to| first <= *to)
                    .map(|to| (first, to)),
            ],
            None => [None, None],
        };
        std::iter::from_fn(move || {
            for part in &mut parts {
                let Some((from, to)) = *part else { continue };
                let free = self.first_free(from).filter(|free| *free <= to);
                *part = free.filter(|free| *free < to).map(|free| (free + 1, to));
                if let Some(free) = free {
                    return Some(free.into());
                }
            }
            None
        })
    }
}

/// Number of usable addresses of a pool.
pub(crate) fn size(pool: Ipv4Net) -> u64 {
    bounds(pool).map_or(0, |(first, last)| u64::from(last.saturating_sub(first)) + 1)
}

/// First and last usable address of a pool.
fn bounds(pool: Ipv4Net) -> Option<(u32, u32)> {
    let first = pool.hosts().next()?;
    let last = match pool.prefix_len() {
        31.. => u32::from(pool.broadcast()),
        _ => u32::from(pool.broadcast()) - 1,
    };
    Some((first.into(), last))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// The slow and obvious way: all addresses of the pool, less those in use.
    fn slow(used: &BTreeSet<Ipv4Addr>, pool: Ipv4Net, last: Option<Ipv4Addr>) -> Vec<Ipv4Addr> {
        let (earlier, later): (Vec<_>, Vec<_>) =
            pool.hosts().partition(|ip| last.is_some_and(|last| *ip <= last));
        let all = later.into_iter().chain(earlier);
        all.filter(|ip| !used.contains(ip)).collect()
    }

    proptest! {
        #[test]
        fn free_addresses_are_those_that_a_walk_finds(
            prefix in 26u8..=32,
            changes in proptest::collection::vec((0u32..80, any::<bool>()), 0..120),
            last in proptest::option::of(0u32..80),
        ) {
            let base = u32::from(Ipv4Addr::new(10, 200, 0, 0));
            let pool = Ipv4Net::new((base + 5).into(), prefix).unwrap().trunc();
            let (mut set, mut used) = (AddressSet::default(), BTreeSet::new());
            for (offset, member) in changes {
                let ip: Ipv4Addr = (base + offset).into();
                set.set(ip, member);
                match member {
                    true => used.insert(ip),
                    false => used.remove(&ip),
                };
            }
            let last = last.map(|offset| (base + offset).into());
            let free: Vec<Ipv4Addr> = set.free_in(pool, last).collect();
            prop_assert_eq!(free, slow(&used, pool, last));
            prop_assert_eq!(size(pool), pool.hosts().count() as u64);
            let runs: Vec<_> = set.runs.iter().collect();
            prop_assert!(runs.windows(2).all(|w| *w[0].1 + 1 < *w[1].0), "no two runs touch: {:?}", runs);
        }
    }

    /// However many groups there are, the next address takes one step.
    #[test]
    fn addresses_that_are_given_out_in_turn_are_one_run() {
        let pool: Ipv4Net = "10.0.0.0/12".parse().unwrap();
        let (mut set, mut last) = (AddressSet::default(), None);
        for given in 0..100_000 {
            let next = set.free_in(pool, last).next().unwrap();
            set.set(next, true);
            last = Some(next);
            assert_eq!(set.runs.len(), 1, "after {given}");
        }
    }
}
