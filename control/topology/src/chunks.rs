//! A list whose copies share what did not change.

use std::sync::Arc;

const CHUNK: usize = 256;

/// A list in chunks. A clone costs a counter per chunk; a change copies one chunk if it is shared.
#[derive(Clone, Debug)]
pub struct Chunks<T> {
    /// All but the last are full.
    chunks: Vec<Arc<Vec<T>>>,
}

impl<T> Default for Chunks<T> {
    fn default() -> Self {
        Self { chunks: Vec::new() }
    }
}

impl<T> Chunks<T> {
    /// Number of items.
    pub fn len(&self) -> usize {
        let last = self.chunks.last().map_or(0, |chunk| chunk.len());
        self.chunks.len().saturating_sub(1) * CHUNK + last
    }

    /// Whether it has no items.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// The item at an index.
    #[inline]
    pub fn get(&self, at: usize) -> Option<&T> {
        self.chunks.get(at / CHUNK)?.get(at % CHUNK)
    }

    /// All items.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().flat_map(|chunk| chunk.iter())
    }
}

impl<T: PartialEq> Chunks<T> {
    /// Indices of all items that equal `item`. Numbers are compared several at a time.
    pub fn all_of<'c>(&'c self, item: &'c T) -> impl Iterator<Item = usize> + 'c {
        let with = self
            .chunks
            .iter()
            .enumerate()
            .filter(|(_, chunk)| chunk.contains(item));
        with.flat_map(move |(number, chunk)| {
            let equal = chunk.iter().enumerate().filter(move |(_, own)| *own == item);
            equal.map(move |(at, _)| number * CHUNK + at)
        })
    }
}

impl<T: Clone> Chunks<T> {
    /// The item at an index, to be changed.
    pub fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        let chunk = self.chunks.get_mut(at / CHUNK)?;
        // A chunk that would not change is not copied.
        (at % CHUNK < chunk.len()).then(|| &mut Arc::make_mut(chunk)[at % CHUNK])
    }

    /// Appends an item.
    pub fn push(&mut self, item: T) {
        match self.chunks.last_mut().filter(|chunk| chunk.len() < CHUNK) {
            Some(chunk) => Arc::make_mut(chunk).push(item),
            None => self.chunks.push(Arc::new(vec![item])),
        }
    }
}

impl<T> core::ops::Index<usize> for Chunks<T> {
    type Output = T;

    #[inline]
    fn index(&self, at: usize) -> &T {
        &self.chunks[at / CHUNK][at % CHUNK]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_keeps_what_it_had() {
        let mut list = Chunks::default();
        let numbers = 2 * CHUNK + 7;
        (0..numbers).for_each(|n| list.push(n));
        let copy = list.clone();
        *list.get_mut(CHUNK).unwrap() = 0;
        list.push(1);
        assert_eq!((copy.len(), list.len()), (numbers, numbers + 1));
        assert!(copy.iter().copied().eq(0..numbers));
        assert_eq!((list[CHUNK], list[CHUNK - 1], list[numbers]), (0, CHUNK - 1, 1));
        assert!(Arc::ptr_eq(&list.chunks[0], &copy.chunks[0]), "shared");
        assert_eq!((list.get_mut(numbers + 1), copy.get(numbers)), (None, None));
        assert!(list.all_of(&0).eq([0, CHUNK]) && list.all_of(&1).eq([1, numbers]));
    }

    #[test]
    fn full_chunks_are_counted() {
        for numbers in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK] {
            let mut list = Chunks::default();
            (0..numbers).for_each(|n| list.push(n));
            assert_eq!((list.len(), list.is_empty()), (numbers, numbers == 0));
            assert_eq!(list.iter().count(), numbers);
        }
    }
}
