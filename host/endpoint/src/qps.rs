//! The QPs of an endpoint, by number.

use alloc::boxed::Box;
use alloc::vec::Vec;

use castnet_wire::Qpn;

/// A sorted list. A QP is found without reading others, and nearly all endpoints have few.
#[derive(Debug)]
pub(crate) struct Qps<Q>(Vec<(Qpn, Box<Q>)>);

impl<Q> Default for Qps<Q> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<Q> Qps<Q> {
    fn find(&self, qpn: Qpn) -> Result<usize, usize> {
        self.0.binary_search_by_key(&qpn, |(own, _)| *own)
    }

    pub(crate) fn get(&self, qpn: &Qpn) -> Option<&Q> {
        self.find(*qpn).ok().map(|at| &*self.0[at].1)
    }

    pub(crate) fn get_mut(&mut self, qpn: &Qpn) -> Option<&mut Q> {
        self.find(*qpn).ok().map(|at| &mut *self.0[at].1)
    }

    pub(crate) fn contains_key(&self, qpn: &Qpn) -> bool {
        self.find(*qpn).is_ok()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Replaces a QP with the same number.
    pub(crate) fn insert(&mut self, qpn: Qpn, qp: Q) {
        let new = (qpn, Box::new(qp));
        match self.find(qpn) {
            Ok(at) => self.0[at] = new,
            Err(at) => self.0.insert(at, new),
        }
    }

    pub(crate) fn remove(&mut self, qpn: &Qpn) {
        if let Ok(at) = self.find(*qpn) {
            self.0.remove(at);
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &(Qpn, Box<Q>)> {
        self.0.iter()
    }

    /// Copies what `copy` copies from each QP to that with its number; `of` has the same numbers.
    pub(crate) fn copy_each(&mut self, of: &Self, copy: impl Fn(&mut Q, &Q)) {
        for ((_, qp), (_, of)) in self.0.iter_mut().zip(&of.0) {
            copy(qp, of);
        }
    }

    /// The first entries, at most `count`.
    pub(crate) fn first(&self, count: usize) -> &[(Qpn, Box<Q>)] {
        &self.0[..count.min(self.0.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use proptest::prelude::*;

    proptest! {
        /// Against a map.
        #[test]
        fn qps_are_found_by_number(steps in prop::collection::vec((0..3_u8, 0..20_u32, any::<u16>()), 0..80)) {
            let (mut qps, mut map) = (Qps::default(), BTreeMap::new());
            for (kind, number, value) in steps {
                let qpn = Qpn::new(number);
                match kind {
                    0 => qps.remove(&qpn),
                    _ => qps.insert(qpn, value),
                }
                match kind {
                    0 => map.remove(&qpn),
                    _ => map.insert(qpn, value),
                };
                let found = (0..20).map(Qpn::new).all(|qpn| {
                    let value = map.get(&qpn);
                    qps.get(&qpn) == value && qps.get_mut(&qpn).as_deref() == value && qps.contains_key(&qpn) == value.is_some()
                });
                prop_assert!(found && qps.len() == map.len());
            }
        }
    }
}
