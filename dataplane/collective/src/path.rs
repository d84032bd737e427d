//! Paths of a group: the entries of its Path Table, and sets of them (Cepheus III.B).

use castnet_wire::PortId;
use core::fmt;

/// Paths that one group can have at one switch: one per port.
pub const PATHS_MAX: usize = PortId::COUNT;

/// An entry of a group's Path Table: 0 to 63.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathId(u8);

impl PathId {
    /// The path `index`, or `None` from [`PATHS_MAX`] on.
    pub const fn new(index: u8) -> Option<Self> {
        if (index as usize) < PATHS_MAX {
            Some(Self(index))
        } else {
            None
        }
    }

    /// Its place in the Path Table, below [`PATHS_MAX`].
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for PathId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A set of paths, one bit each.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathSet(u64);

impl PathSet {
    /// No path.
    pub const EMPTY: Self = Self(0);

    /// The paths 0 to `count - 1`; all 64 from there on.
    pub const fn first(count: usize) -> Self {
        if count >= PATHS_MAX {
            Self(u64::MAX)
        } else {
            Self((1 << count) - 1)
        }
    }

    /// Only `path`.
    pub const fn only(path: PathId) -> Self {
        Self(1 << path.0)
    }

    /// Bit `i` stands for path `i`.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Bit `i` stands for path `i`.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Whether `path` is in it.
    pub const fn contains(self, path: PathId) -> bool {
        self.0 & Self::only(path).0 != 0
    }

    /// Puts `path` in.
    pub const fn insert(&mut self, path: PathId) {
        self.0 |= Self::only(path).0;
    }

    /// Takes `path` out.
    pub const fn remove(&mut self, path: PathId) {
        self.0 &= !Self::only(path).0;
    }

    /// The set without `path`.
    pub const fn without(self, path: PathId) -> Self {
        Self(self.0 & !Self::only(path).0)
    }

    /// How many paths are in it.
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether no path is in it.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The paths, lowest first.
    pub const fn iter(self) -> PathIter {
        PathIter(self.0)
    }
}

impl IntoIterator for PathSet {
    type Item = PathId;
    type IntoIter = PathIter;
    fn into_iter(self) -> PathIter {
        self.iter()
    }
}

impl FromIterator<PathId> for PathSet {
    fn from_iter<I: IntoIterator<Item = PathId>>(paths: I) -> Self {
        let mut set = Self::EMPTY;
        for path in paths {
            set.insert(path);
        }
        set
    }
}

impl fmt::Debug for PathSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(PathId::index)).finish()
    }
}

/// The paths of a [`PathSet`], lowest first.
#[derive(Clone, Debug)]
pub struct PathIter(u64);

impl Iterator for PathIter {
    type Item = PathId;

    fn next(&mut self) -> Option<PathId> {
        if self.0 == 0 {
            return None;
        }
        let path = PathId(self.0.trailing_zeros() as u8);
        self.0 &= self.0 - 1;
        Some(path)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.0.count_ones() as usize;
        (left, Some(left))
    }
}

impl ExactSizeIterator for PathIter {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::vec::Vec;

    #[test]
    fn first_covers_none_some_and_all() {
        assert_eq!(PathSet::first(0), PathSet::EMPTY);
        assert_eq!(
            PathSet::first(3).iter().map(PathId::index).collect::<Vec<_>>(),
            [0, 1, 2]
        );
        assert_eq!((PathSet::first(64).len(), PathSet::first(200).len()), (64, 64));
        assert_eq!(PathId::new(64), None);
    }

    proptest! {
        #[test]
        fn a_set_is_a_set(picks in proptest::collection::vec((0u8..64, any::<bool>()), 0..100)) {
            let (mut set, mut twin) = (PathSet::EMPTY, BTreeSet::new());
            for (index, put) in picks {
                let path = PathId::new(index).unwrap();
                if put {
                    set.insert(path);
                    twin.insert(path);
                } else {
                    set.remove(path);
                    twin.remove(&path);
                }
                prop_assert_eq!(set.contains(path), put);
                prop_assert_eq!(set.len(), twin.len());
            }
            prop_assert!(set.iter().eq(twin.iter().copied()));
            prop_assert_eq!(twin.into_iter().collect::<PathSet>(), set);
        }
    }
}
