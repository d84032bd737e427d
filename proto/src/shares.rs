//! Limits per certificate: the clients with one certificate must not take everything, such as all connections.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// What each certificate has, by its names.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shares(Arc<Mutex<BTreeMap<Vec<String>, usize>>>);

/// Some of what a certificate has, until it is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    shares: Shares,
    names: Vec<String>,
    count: usize,
}

impl Shares {
    /// Takes one. `None` if the certificate has `most`, the most that it may have at a time.
    pub(crate) fn take(&self, names: &[String], most: usize) -> Option<Share> {
        let mut share = self.none(names);
        share.set(1, most).then_some(share)
    }

    /// A share of nothing yet.
    pub(crate) fn none(&self, names: &[String]) -> Share {
        Share {
            shares: self.clone(),
            names: names.to_vec(),
            count: 0,
        }
    }
}

impl Share {
    /// So much more of the same certificate.
    pub(crate) fn another(&self, count: usize) -> Self {
        let mut share = self.shares.none(&self.names);
        share.set(count, usize::MAX);
        share
    }

    /// Changes how much this is. Refused, and then nothing changes, if more is wanted and the certificate has `most` already.
    pub(crate) fn set(&mut self, count: usize, most: usize) -> bool {
        let mut taken = self.shares.0.lock();
        let all = taken.get(&self.names).copied().unwrap_or_default();
        if count > self.count && all >= most {
            return false;
        }
        match all + count - self.count {
            0 => drop(taken.remove(&self.names)),
            all => drop(taken.insert(self.names.clone(), all)),
        }
        self.count = count;
        true
    }

    /// What the certificate has in all.
    pub(crate) fn of_all(&self) -> usize {
        let taken = self.shares.0.lock();
        taken.get(&self.names).copied().unwrap_or_default()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set(0, usize::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_certificate_has_its_own_share_and_gives_it_back() {
        let shares = Shares::default();
        let [a, b] = ["a", "b"].map(|name| vec![name.to_owned()]);
        let of_a: Vec<_> = (0..3).map(|_| shares.take(&a, 2)).collect();
        assert_eq!(of_a.iter().flatten().count(), 2);
        assert!(shares.take(&b, 2).is_some());
        drop(of_a);
        assert!(shares.0.lock().is_empty(), "nothing is left of those who left");
        let one = shares.take(&a, 2);
        assert!(one.is_some() && shares.take(&a, 2).is_some());
    }

    #[test]
    fn a_share_grows_until_its_certificate_has_the_most() {
        let shares = Shares::default();
        let names = ["a".to_owned()];
        let (mut first, mut second) = (shares.none(&names), shares.none(&names));
        assert!(
            first.set(9, 10) && second.set(5, 10),
            "less than the most was taken"
        );
        assert_eq!((first.of_all(), second.of_all()), (14, 14));
        assert!(!first.set(10, 10) && first.of_all() == 14);
        assert!(first.set(4, 10) && first.of_all() == 9);
        drop(second);
        assert_eq!(first.of_all(), 4);
        drop(first);
        assert!(shares.0.lock().is_empty());
    }
}
