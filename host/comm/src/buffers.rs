//! What users hand over: slices, in place or not, and owned vectors for collectives that run on.

use std::any::Any;
use std::ops::Range;

use crate::element::Element;
use crate::machine::{Place, Space};

/// The memory of a blocking collective. Made from `&mut [T]` (in place), `(&[T], &mut [T])` (from, to), and, where this rank
/// only contributes, `&[T]`; also from vectors and arrays.
#[derive(Debug)]
pub enum Buffers<'a, T> {
    /// The result takes the place of the contribution.
    InPlace(&'a mut [T]),
    /// From one slice into another.
    Apart(&'a [T], &'a mut [T]),
    /// Contributes, and gets nothing: the ranks of a Reduce that are not its root.
    From(&'a [T]),
}

impl<'a, T> From<&'a mut [T]> for Buffers<'a, T> {
    fn from(slice: &'a mut [T]) -> Self {
        Self::InPlace(slice)
    }
}

impl<'a, T> From<&'a mut Vec<T>> for Buffers<'a, T> {
    fn from(vec: &'a mut Vec<T>) -> Self {
        Self::InPlace(vec)
    }
}

impl<'a, T, const N: usize> From<&'a mut [T; N]> for Buffers<'a, T> {
    fn from(array: &'a mut [T; N]) -> Self {
        Self::InPlace(array)
    }
}

impl<'a, T> From<(&'a [T], &'a mut [T])> for Buffers<'a, T> {
    fn from((from, to): (&'a [T], &'a mut [T])) -> Self {
        Self::Apart(from, to)
    }
}

impl<'a, T> From<(&'a Vec<T>, &'a mut Vec<T>)> for Buffers<'a, T> {
    fn from((from, to): (&'a Vec<T>, &'a mut Vec<T>)) -> Self {
        Self::Apart(from, to)
    }
}

impl<'a, T> From<&'a [T]> for Buffers<'a, T> {
    fn from(slice: &'a [T]) -> Self {
        Self::From(slice)
    }
}

impl<'a, T> From<&'a Vec<T>> for Buffers<'a, T> {
    fn from(vec: &'a Vec<T>) -> Self {
        Self::From(vec)
    }
}

impl<T> Buffers<'_, T> {
    /// Elements that go in, and that come out (`None`: the same memory).
    pub(crate) fn lengths(&self) -> (usize, Option<usize>) {
        match self {
            Self::InPlace(all) => (all.len(), None),
            Self::Apart(from, to) => (from.len(), Some(to.len())),
            Self::From(from) => (from.len(), Some(0)),
        }
    }
}

/// The memory of a collective that runs on, given away until it ends. Made from `Vec<T>` (in place) and `(Vec<T>, Vec<T>)`
/// (from, to).
#[derive(Debug)]
pub enum OwnedBuffers<T> {
    /// The result takes the place of the contribution.
    InPlace(Vec<T>),
    /// From one vector into another.
    Apart(Vec<T>, Vec<T>),
}

impl<T> From<Vec<T>> for OwnedBuffers<T> {
    fn from(vec: Vec<T>) -> Self {
        Self::InPlace(vec)
    }
}

impl<T> From<(Vec<T>, Vec<T>)> for OwnedBuffers<T> {
    fn from((from, to): (Vec<T>, Vec<T>)) -> Self {
        Self::Apart(from, to)
    }
}

impl<T> OwnedBuffers<T> {
    pub(crate) fn lengths(&self) -> (usize, Option<usize>) {
        match self {
            Self::InPlace(all) => (all.len(), None),
            Self::Apart(from, to) => (from.len(), Some(to.len())),
        }
    }

    /// Where the result is.
    pub(crate) fn into_output(self) -> Vec<T> {
        match self {
            Self::InPlace(all) | Self::Apart(_, all) => all,
        }
    }
}

/// Where in memory that is used in place the input and the output begin, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bases {
    pub(crate) input: usize,
    pub(crate) output: usize,
}

/// A task's input and output, as bytes.
pub(crate) enum Data<'a> {
    Apart(&'a [u8], &'a mut [u8]),
    InPlace(&'a mut [u8], Bases),
}

/// The bytes of a place inside memory that begins at `base`.
fn range(base: usize, offset: u64, length: u64) -> Option<Range<usize>> {
    let from = base.checked_add(usize::try_from(offset).ok()?)?;
    Some(from..from.checked_add(usize::try_from(length).ok()?)?)
}

impl<'a> Data<'a> {
    pub(crate) fn new<T: Element>(buffers: Buffers<'a, T>, bases: Bases) -> Self {
        match buffers {
            Buffers::InPlace(all) => Self::InPlace(bytemuck::cast_slice_mut(all), bases),
            Buffers::Apart(from, to) => Self::Apart(bytemuck::cast_slice(from), bytemuck::cast_slice_mut(to)),
            Buffers::From(from) => Self::Apart(bytemuck::cast_slice(from), &mut []),
        }
    }

    /// The bytes of the input or the output; `None` where they are not all there, or are scratch.
    pub(crate) fn read(&mut self, place: Place, length: u64) -> Option<&[u8]> {
        self.again().into_read(place, length)
    }

    /// The same, to be written. The input never is, but where it is the output too.
    pub(crate) fn write(&mut self, place: Place, length: u64) -> Option<&mut [u8]> {
        self.again().into_write(place, length)
    }

    /// [`Data::read`] of a view that is not needed any more.
    pub(crate) fn into_read(self, place: Place, length: u64) -> Option<&'a [u8]> {
        let offset = place.offset;
        match (self, place.space) {
            (Self::Apart(from, _), Space::Input) => from.get(range(0, offset, length)?),
            (Self::Apart(_, to), Space::Output) => to.get(range(0, offset, length)?),
            (Self::InPlace(all, bases), Space::Input) => all.get(range(bases.input, offset, length)?),
            (Self::InPlace(all, bases), Space::Output) => all.get(range(bases.output, offset, length)?),
            (_, Space::Scratch) => None,
        }
    }

    /// [`Data::write`] of a view that is not needed any more.
    pub(crate) fn into_write(self, place: Place, length: u64) -> Option<&'a mut [u8]> {
        let offset = place.offset;
        match (self, place.space) {
            (Self::Apart(_, to), Space::Output) => to.get_mut(range(0, offset, length)?),
            (Self::InPlace(all, bases), Space::Output) => all.get_mut(range(bases.output, offset, length)?),
            _ => None,
        }
    }

    /// The same view, for a shorter time.
    pub(crate) fn again(&mut self) -> Data<'_> {
        match self {
            Self::Apart(from, to) => Data::Apart(from, to),
            Self::InPlace(all, bases) => Data::InPlace(all, *bases),
        }
    }

    /// From the input to the output; whether both were there.
    pub(crate) fn copy_across(&mut self, from: u64, to: u64, length: u64) -> bool {
        let copied = match self {
            Self::Apart(input, output) => range(0, from, length)
                .and_then(|r| input.get(r))
                .zip(range(0, to, length).and_then(|r| output.get_mut(r)))
                .map(|(from, to)| to.copy_from_slice(from)),
            Self::InPlace(all, bases) => range(bases.input, from, length)
                .filter(|r| r.end <= all.len())
                .zip(range(bases.output, to, length).filter(|r| r.end <= all.len()))
                .map(|(from, to)| {
                    if from != to {
                        all.copy_within(from, to.start);
                    }
                }),
        };
        copied.is_some()
    }
}

/// Owned memory of any type of element.
pub(crate) trait Owned {
    fn data(&mut self) -> Data<'_>;
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}

pub(crate) struct OwnedData<T> {
    pub(crate) buffers: OwnedBuffers<T>,
    pub(crate) bases: Bases,
}

impl<T: Element> Owned for OwnedData<T> {
    fn data(&mut self) -> Data<'_> {
        let buffers = match &mut self.buffers {
            OwnedBuffers::InPlace(all) => Buffers::InPlace(all),
            OwnedBuffers::Apart(from, to) => Buffers::Apart(from, to),
        };
        Data::new(buffers, self.bases)
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
