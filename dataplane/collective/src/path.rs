//! Paths of a group: the entries of its Path Table, and sets of them (Cepheus III.B).

use core::{array, fmt};

/// Most paths or endpoints of one group at one switch.
pub const PATHS_MAX: usize = 1024;

/// Words of the largest path set.
pub const WORDS_MAX: usize = PATHS_MAX / 64;

/// A set of any paths of a group.
pub type Paths = PathSet<WORDS_MAX>;

/// An entry of a group's Path Table, below [`PATHS_MAX`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathId(u16);

impl PathId {
    /// The path `index`, or `None` from [`PATHS_MAX`] on.
    pub const fn new(index: usize) -> Option<Self> {
        if index < PATHS_MAX {
            Some(Self(index as u16))
        } else {
            None
        }
    }

    /// Its index in the Path Table, below [`PATHS_MAX`].
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for PathId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A set of paths below `64 * W`, one bit each.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathSet<const W: usize = 1>([u64; W]);

impl<const W: usize> Default for PathSet<W> {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl<const W: usize> PathSet<W> {
    /// No path.
    pub const EMPTY: Self = Self([0; W]);

    /// The most paths in the set.
    pub const CAPACITY: usize = 64 * W;

    /// The paths 0 to `count - 1`, up to the capacity.
    pub fn first(count: usize) -> Self {
        Self(array::from_fn(|word| match count.saturating_sub(64 * word) {
            left @ 0..64 => (1 << left) - 1,
            _ => u64::MAX,
        }))
    }

    /// Only `path`.
    #[inline]
    pub fn only(path: PathId) -> Self {
        let mut set = Self::EMPTY;
        set.insert(path);
        set
    }

    #[inline(always)]
    const fn bit(path: PathId) -> (usize, u64) {
        let word = if W == 1 { 0 } else { path.index() / 64 };
        (word, 1 << (path.index() % 64))
    }

    /// True if the set contains `path`.
    #[inline]
    pub fn contains(&self, path: PathId) -> bool {
        let (word, bit) = Self::bit(path);
        self.0.get(word).is_some_and(|w| w & bit != 0)
    }

    /// Adds `path`.
    #[inline]
    pub fn insert(&mut self, path: PathId) {
        let (word, bit) = Self::bit(path);
        match self.0.get_mut(word) {
            Some(w) => *w |= bit,
            None => debug_assert!(false, "the path is one of the machine's"),
        }
    }

    /// Removes `path`.
    #[inline]
    pub fn remove(&mut self, path: PathId) {
        let (word, bit) = Self::bit(path);
        if let Some(w) = self.0.get_mut(word) {
            *w &= !bit;
        }
    }

    /// The set without `path`.
    #[must_use]
    #[inline]
    pub fn without(mut self, path: PathId) -> Self {
        self.remove(path);
        self
    }

    /// The union of both sets.
    #[must_use]
    #[inline]
    pub fn or(self, other: Self) -> Self {
        Self(array::from_fn(|i| self.0[i] | other.0[i]))
    }

    /// The set without the paths of `other`.
    #[must_use]
    #[inline]
    pub fn minus(self, other: Self) -> Self {
        Self(array::from_fn(|i| self.0[i] & !other.0[i]))
    }

    /// The number of paths in the set.
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// True if the set is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0 == [0; W]
    }

    /// The paths, lowest first.
    #[inline]
    pub fn iter(&self) -> PathIter<W> {
        PathIter {
            left: self.0,
            word: 0,
        }
    }
}

impl<const W: usize> IntoIterator for PathSet<W> {
    type Item = PathId;
    type IntoIter = PathIter<W>;
    fn into_iter(self) -> PathIter<W> {
        self.iter()
    }
}

impl<const W: usize> FromIterator<PathId> for PathSet<W> {
    fn from_iter<I: IntoIterator<Item = PathId>>(paths: I) -> Self {
        let mut set = Self::EMPTY;
        for path in paths {
            set.insert(path);
        }
        set
    }
}

impl<const W: usize> fmt::Debug for PathSet<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(PathId::index)).finish()
    }
}

/// The paths of a [`PathSet`], lowest first.
#[derive(Clone, Debug)]
pub struct PathIter<const W: usize = 1> {
    left: [u64; W],
    /// All words before this one have been visited.
    word: usize,
}

impl<const W: usize> Iterator for PathIter<W> {
    type Item = PathId;

    #[inline]
    fn next(&mut self) -> Option<PathId> {
        loop {
            let word = self.left.get_mut(self.word)?;
            if *word != 0 {
                let path = PathId::new(64 * self.word + word.trailing_zeros() as usize);
                *word &= *word - 1;
                return path;
            }
            self.word += 1;
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = PathSet(self.left).len();
        (left, Some(left))
    }
}

impl<const W: usize> ExactSizeIterator for PathIter<W> {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::vec::Vec;

    #[test]
    fn first_covers_none_some_and_all() {
        assert_eq!(PathSet::<1>::first(0), PathSet::EMPTY);
        let paths = |set: PathSet<2>| set.iter().map(PathId::index).collect::<Vec<_>>();
        assert_eq!(paths(PathSet::first(3)), [0, 1, 2]);
        assert_eq!(paths(PathSet::first(66)), (0..66).collect::<Vec<_>>());
        assert_eq!(
            (PathSet::<1>::first(64).len(), PathSet::<1>::first(200).len()),
            (64, 64)
        );
        assert_eq!(
            (PathSet::<2>::first(200).len(), PathSet::<16>::first(1024).len()),
            (128, 1024)
        );
        assert_eq!(
            (PathSet::<16>::CAPACITY, PathId::new(PATHS_MAX)),
            (PATHS_MAX, None)
        );
    }

    fn check<const W: usize>(picks: &[(usize, bool)]) -> Result<(), TestCaseError> {
        let (mut set, mut twin) = (PathSet::<W>::EMPTY, BTreeSet::new());
        for &(index, put) in picks {
            let path = PathId::new(index % (64 * W)).unwrap();
            if put {
                set.insert(path);
                twin.insert(path);
            } else {
                set.remove(path);
                twin.remove(&path);
            }
            prop_assert_eq!(set.contains(path), put);
            prop_assert_eq!((set.len(), set.is_empty()), (twin.len(), twin.is_empty()));
        }
        prop_assert!(set.iter().eq(twin.iter().copied()));
        let half: BTreeSet<PathId> = twin.iter().copied().step_by(2).collect();
        let part = half.iter().copied().collect::<PathSet<W>>();
        prop_assert!(set.minus(part).iter().eq(twin.difference(&half).copied()));
        prop_assert_eq!(set.minus(part).or(part), set);
        Ok(())
    }

    proptest! {
        #[test]
        fn a_set_is_a_set(picks in proptest::collection::vec((0usize..1024, any::<bool>()), 0..200)) {
            check::<1>(&picks)?;
            check::<3>(&picks)?;
            check::<16>(&picks)?;
        }
    }
}
