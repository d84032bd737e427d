//! Limits per certificate: the clients with one certificate must not take everything, such as all connections.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// What each certificate has, by its names.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shares(Arc<Mutex<BTreeMap<Vec<String>, usize>>>);

/// One of those of a certificate, until it is dropped.
#[derive(Debug)]
pub(crate) struct Share(Shares, Vec<String>);

impl Shares {
    /// `None` if the certificate has `most`, the most that it may have at a time.
    pub(crate) fn take(&self, names: &[String], most: usize) -> Option<Share> {
        let mut taken = self.0.lock();
        match taken.get_mut(names) {
            Some(count) if *count >= most => return None,
            Some(count) => *count += 1,
            None => drop(taken.insert(names.to_vec(), 1)),
        }
        Some(Share(self.clone(), names.to_vec()))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let Self(Shares(taken), names) = self;
        let mut taken = taken.lock();
        match taken.get_mut(names) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(taken.remove(names)),
        }
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
}
