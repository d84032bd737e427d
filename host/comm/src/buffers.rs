//! Memory of collectives: slices, in place or separate, and owned vectors for non-blocking collectives.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

use castnet_rnic::Lent;
use castnet_wire::control::{DataType, Operation};

use crate::element::Element;
use crate::error::CommError;
use crate::machine::{Collective, Place, Space};

/// The memory of a blocking collective. Converts from `&mut [T]` (in place), `(&[T], &mut [T])` (input, output) and,
/// where this rank only contributes, `&[T]`; also from vectors and arrays.
#[derive(Debug)]
pub enum Buffers<'a, T> {
    /// The result replaces the contribution.
    InPlace(&'a mut [T]),
    /// Separate input and output.
    Apart(&'a [T], &'a mut [T]),
    /// Input only: the ranks of a Reduce that are not its root.
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
    /// Number of input elements, and of output elements (`None`: the same memory).
    pub fn lengths(&self) -> (usize, Option<usize>) {
        match self {
            Self::InPlace(all) => (all.len(), None),
            Self::Apart(from, to) => (from.len(), Some(to.len())),
            Self::From(from) => (from.len(), Some(0)),
        }
    }
}

/// What the buffers of a call mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallLayout {
    /// Number of elements: of one rank's block for ReduceScatter and AllGather, otherwise of the whole.
    pub elements: usize,
    /// Where the contribution of this rank begins in memory that is used in place, in bytes.
    pub input: usize,
    /// Where its result begins there, in bytes.
    pub output: usize,
    /// Whether the operation matters.
    pub reduces: bool,
}

impl CallLayout {
    /// Checks a call of rank `rank` of `size`. `lengths` are those of [`Buffers::lengths`].
    ///
    /// # Errors
    /// The root is no rank, the operation does not support the type, or the lengths do not fit the collective.
    pub fn new(
        collective: Collective,
        operation: Operation,
        data_type: DataType,
        (input, output): (usize, Option<usize>),
        rank: u16,
        size: u16,
    ) -> Result<Self, CommError> {
        if let Collective::Reduce { root } | Collective::Broadcast { root } = collective
            && root >= size
        {
            return Err(CommError::NoSuchRank { rank: root, size });
        }
        let reduces = !matches!(
            collective,
            Collective::Broadcast { .. } | Collective::Barrier | Collective::AllGather
        );
        if reduces && !operation.supports(data_type) {
            return Err(CommError::Unsupported { operation, data_type });
        }
        let ranks = usize::from(size);
        let is_equal = output.is_none_or(|output| output == input);
        let in_place = (
            input.is_multiple_of(ranks),
            "one block for each rank",
            input / ranks,
        );
        let (fits, expected, elements) = match (collective, output) {
            (Collective::AllReduce, _) => (is_equal, "input and output of equal length", input),
            (Collective::Reduce { root }, _) if root == rank => {
                (is_equal, "input and output of equal length", input)
            }
            (Collective::Reduce { .. } | Collective::Broadcast { .. } | Collective::Barrier, _) => {
                (true, "", input)
            }
            (Collective::ReduceScatter | Collective::AllGather, None) => in_place,
            (Collective::ReduceScatter, Some(output)) => (
                output.checked_mul(ranks) == Some(input),
                "one input block for each rank, one output block",
                output,
            ),
            (Collective::AllGather, Some(output)) => (
                input.checked_mul(ranks) == Some(output),
                "one input block, one output block for each rank",
                input,
            ),
        };
        if !fits {
            return Err(CommError::Lengths {
                collective,
                input,
                output: output.unwrap_or(input),
                expected,
            });
        }
        let own = usize::from(rank) * elements * data_type.size();
        let (input, output) = match collective {
            Collective::ReduceScatter => (0, own),
            Collective::AllGather => (own, 0),
            _ => (0, 0),
        };
        Ok(Self {
            elements,
            input,
            output,
            reduces,
        })
    }
}

/// The memory of a non-blocking collective until it ends. Converts from `Vec<T>` (in place) and `(Vec<T>, Vec<T>)`.
#[derive(Debug)]
pub enum OwnedBuffers<T> {
    /// The result replaces the contribution.
    InPlace(Vec<T>),
    /// Separate input and output.
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
    /// As [`Buffers::lengths`].
    pub fn lengths(&self) -> (usize, Option<usize>) {
        match self {
            Self::InPlace(all) => (all.len(), None),
            Self::Apart(from, to) => (from.len(), Some(to.len())),
        }
    }

    pub(crate) fn into_output(self) -> Vec<T> {
        match self {
            Self::InPlace(all) | Self::Apart(_, all) => all,
        }
    }
}

/// An input that is apart. The RNIC reads it, and so does whoever lends it.
#[derive(Debug)]
pub(crate) enum Input {
    Lent(&'static [u8]),
    Counted(Arc<[u8]>),
}

impl Input {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Lent(bytes) => bytes,
            Self::Counted(bytes) => bytes,
        }
    }

    pub(crate) fn lend(&self) -> Lent {
        match self {
            Self::Lent(bytes) => Lent::shared(bytes),
            Self::Counted(bytes) => Lent::counted(bytes.clone()),
        }
    }
}

/// The memory of a collective whose caller is another thread or program, until the collective ends. Input and output are
/// elements of the call's data type.
#[derive(Debug)]
pub struct LentBytes {
    /// The input if it is apart.
    pub(crate) input: Option<Input>,
    /// The output, or all in place. Empty while the RNIC has it.
    pub(crate) rest: Lent,
    pub(crate) bases: Bases,
}

impl LentBytes {
    /// The result replaces the contribution.
    pub fn in_place(all: &'static mut [u8]) -> Self {
        Self::new(None, Lent::exclusive(all), Bases::default())
    }

    /// Separate input and output.
    pub fn apart(input: &'static [u8], output: &'static mut [u8]) -> Self {
        let input = Some(Input::Lent(input));
        Self::new(input, Lent::exclusive(output), Bases::default())
    }

    /// Its own memory, in place. Input and output begin at these bytes.
    pub fn owned_in_place(all: Vec<u8>, input: usize, output: usize) -> Self {
        Self::new(None, Lent::owned(all), Bases { input, output })
    }

    /// Its own memory, input and output apart.
    pub fn owned_apart(input: Vec<u8>, output: Vec<u8>) -> Self {
        let input = Some(Input::Counted(Arc::from(input)));
        Self::new(input, Lent::owned(output), Bases::default())
    }

    fn new(input: Option<Input>, rest: Lent, bases: Bases) -> Self {
        Self { input, rest, bases }
    }

    /// The first `length` bytes of the output; none if there are fewer.
    pub fn output(&mut self, length: u64) -> &[u8] {
        let output = self.data().into_read(Place::output(0), length);
        output.unwrap_or_default()
    }

    /// Number of input elements of `size` bytes, and of output elements (`None`: the same memory).
    pub(crate) fn lengths(&self, size: usize) -> (usize, Option<usize>) {
        let rest = self.rest.bytes().len() / size;
        match &self.input {
            Some(input) => (input.bytes().len() / size, Some(rest)),
            None => (rest, None),
        }
    }

    pub(crate) fn data(&mut self) -> Data<'_> {
        let rest = self.rest.bytes_mut().unwrap_or_default();
        match &self.input {
            Some(input) => Data::Apart(input.bytes(), rest),
            None => Data::InPlace(rest, self.bases),
        }
    }

    /// First byte of the input and of the output in memory that is used in place, otherwise 0.
    pub(crate) fn bases(&self) -> Bases {
        match self.input {
            Some(_) => Bases::default(),
            None => self.bases,
        }
    }
}

/// Where input and output begin in memory that is used in place, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bases {
    pub(crate) input: usize,
    pub(crate) output: usize,
}

pub(crate) enum Data<'a> {
    Apart(&'a [u8], &'a mut [u8]),
    InPlace(&'a mut [u8], Bases),
}

/// The range of bytes `offset..offset + length` behind `base`; `None` on overflow.
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

    /// `length` bytes of the input or output; `None` where they are out of range, or in scratch memory.
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

    /// `length` writable bytes of the output; `None` where they are out of range. The input is read-only.
    pub(crate) fn into_write(self, place: Place, length: u64) -> Option<&'a mut [u8]> {
        let offset = place.offset;
        match (self, place.space) {
            (Self::Apart(_, to), Space::Output) => to.get_mut(range(0, offset, length)?),
            (Self::InPlace(all, bases), Space::Output) => all.get_mut(range(bases.output, offset, length)?),
            _ => None,
        }
    }

    /// The output at `to`, and the input at `with`; `None` where one is not, or both are in one memory.
    pub(crate) fn into_both(self, to: Place, with: Place, length: u64) -> Option<(&'a mut [u8], &'a [u8])> {
        match (self, to.space, with.space) {
            (Self::Apart(input, output), Space::Output, Space::Input) => Some((
                output.get_mut(range(0, to.offset, length)?)?,
                input.get(range(0, with.offset, length)?)?,
            )),
            _ => None,
        }
    }

    /// Copies from the input to the output. Returns false if a range is out of bounds.
    pub(crate) fn copy_across(self, from: u64, to: u64, length: u64) -> bool {
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

/// Input and output of a task.
pub(crate) enum Memory {
    /// Lent until the task ends.
    Lent(LentBytes),
    /// Its own.
    Owned(Box<dyn Owned + Send>),
    /// Nothing is stored.
    None,
}

impl Memory {
    pub(crate) fn data(&mut self) -> Data<'_> {
        match self {
            Self::Lent(lent) => lent.data(),
            Self::Owned(own) => own.data(),
            Self::None => Data::Apart(&[], &mut []),
        }
    }
}

/// Owned memory of any element type.
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
