//! The payloads of a group's slots, and the arithmetic on them (EPIC 4.1: AggregateData).
//!
//! All memory is taken when the group is compiled. A contribution lies in its frame in pieces, whose borders may cut an
//! element in two; here they are in a row of whole blocks ([`row`]), so that nothing need be put together twice.

use castnet_collective::EndpointId;
use castnet_collective::EndpointSet;
use castnet_reduce::Kernel;
use castnet_rules::{CollectiveGroup, SLOT_ALIGN};
use castnet_wire::FrameBuf;

/// Bytes of a block: a multiple of all elements, and of what vectors hold.
const BLOCK: usize = 64;

/// A packet's payload in pieces, of which all but the last are of whole blocks of [`BLOCK`] bytes: no element lies in two
/// of them.
pub(crate) type Row<'a> = [&'a [u8]; 3];

/// What belongs to a slot beside its payload.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Note {
    /// Immediate data of the packet, where its opcode has it.
    pub(crate) imm: u32,
    /// The ICRC of the payload under the group's own header; `None` until somebody asks.
    pub(crate) icrc: Option<u32>,
    /// Those whose contributions are kept.
    kept: EndpointSet,
}

/// The slots.
#[derive(Debug)]
pub(crate) struct Slots {
    bytes: Box<[u8]>,
    /// Where the first slot begins: at a multiple of [`SLOT_ALIGN`].
    start: usize,
    stride: usize,
    /// Packets per slot: the result, then, where contributions are kept, one of each endpoint.
    packets: usize,
    notes: Box<[Note]>,
}

impl Clone for Slots {
    fn clone(&self) -> Self {
        let mut slots = Self {
            bytes: self.bytes.clone(),
            start: 0,
            notes: self.notes.clone(),
            ..*self
        };
        slots.start = start(&slots.bytes);
        let used = self.bytes.len() - SLOT_ALIGN;
        let from = self.bytes.get(self.start..self.start + used).unwrap_or_default();
        if let Some(to) = slots.bytes.get_mut(slots.start..slots.start + used) {
            to.copy_from_slice(from);
        }
        slots
    }
}

fn start(bytes: &[u8]) -> usize {
    bytes.as_ptr().align_offset(SLOT_ALIGN).min(SLOT_ALIGN)
}

impl Slots {
    pub(crate) fn new(rule: &CollectiveGroup) -> Self {
        // Not zeros: pages of zeros would be given when they are first touched, which is on the way of a frame.
        let bytes = vec![u8::MAX; rule.slot_bytes() as usize + SLOT_ALIGN].into_boxed_slice();
        Self {
            start: start(&bytes),
            bytes,
            stride: rule.slot_stride(),
            packets: rule.packets_per_slot(),
            notes: vec![Note::default(); rule.slots.into()].into_boxed_slice(),
        }
    }

    /// Bytes that it takes.
    pub(crate) fn footprint(&self) -> usize {
        self.bytes.len() + size_of_val(&*self.notes)
    }

    fn keeps(&self) -> bool {
        self.packets > 1
    }

    /// All packets of a slot.
    fn slot(&mut self, slot: u16) -> &mut [u8] {
        let length = self.packets * self.stride;
        let at = self.start + usize::from(slot) * length;
        self.bytes.get_mut(at..at + length).unwrap_or_default()
    }

    /// The result's payload.
    pub(crate) fn result(&self, slot: u16, length: usize) -> &[u8] {
        let at = self.start + usize::from(slot) * self.packets * self.stride;
        self.bytes
            .get(at..at + length.min(self.stride))
            .unwrap_or_default()
    }

    pub(crate) fn note(&self, slot: u16) -> Note {
        self.notes.get(usize::from(slot)).copied().unwrap_or_default()
    }

    pub(crate) fn note_mut(&mut self, slot: u16) -> Option<&mut Note> {
        self.notes.get_mut(usize::from(slot))
    }

    /// The payload is the result.
    pub(crate) fn store(&mut self, slot: u16, row: Row<'_>) {
        copy(self.slot(slot), row);
        if let Some(note) = self.note_mut(slot) {
            note.icrc = None;
        }
    }

    /// The payload is a contribution: the first is copied, the others are added to it; or each is kept.
    #[inline]
    pub(crate) fn aggregate(
        &mut self,
        slot: u16,
        from: EndpointId,
        first: bool,
        kernel: &Kernel,
        row: Row<'_>,
    ) {
        let (keeps, stride) = (self.keeps(), self.stride);
        if let Some(note) = self.note_mut(slot) {
            note.icrc = None;
            if first {
                note.kept = EndpointSet::EMPTY;
            }
            if keeps {
                note.kept.insert(from);
            }
        }
        let packets = self.slot(slot);
        if keeps {
            let at = (1 + from.index()) * stride;
            copy(packets.get_mut(at..).unwrap_or_default(), row);
        } else if first {
            copy(packets, row);
        } else {
            add(packets, kernel, row);
        }
    }

    /// All contributions are in: adds those that were kept, in the order of endpoints.
    pub(crate) fn complete(&mut self, slot: u16, kernel: &Kernel, length: usize) {
        if !self.keeps() {
            return;
        }
        let (stride, kept) = (self.stride, self.note(slot).kept);
        let Some((result, contributions)) = self.slot(slot).split_at_mut_checked(stride) else {
            return;
        };
        let Some(result) = result.get_mut(..length) else {
            return;
        };
        let mut first = true;
        for endpoint in kept {
            let at = endpoint.index() * stride;
            let Some(contribution) = contributions.get(at..at + length) else {
                continue;
            };
            if core::mem::take(&mut first) {
                result.copy_from_slice(contribution);
            } else {
                kernel.apply(result, contribution);
            }
        }
        if let Some(note) = self.note_mut(slot) {
            note.icrc = None;
        }
    }
}

/// The payload of a frame, `length` bytes from `at` on, as it lies there. `None` where it reaches into the trailer, which is
/// the place of the ICRC.
#[inline]
pub(crate) fn pieces(frame: &impl FrameBuf, at: usize, length: usize) -> Option<(&[u8], &[u8])> {
    let (end, [head, body, _]) = (at + length, frame.segments());
    match head.get(at..end) {
        Some(all) => Some((all, &[])),
        None => Some((head.get(at..)?, body.get(..end - head.len())?)),
    }
}

/// The payload of a frame, `length` bytes from `at` on, in a row. `room` is for what lies in two of the frame's pieces, or
/// for all of it: as much as a payload can have.
#[inline]
pub(crate) fn row<'f>(frame: &'f impl FrameBuf, at: usize, length: usize, room: &'f mut [u8]) -> Row<'f> {
    if let Some((first, second)) = pieces(frame, at, length) {
        let torn = first.len() % BLOCK;
        if torn == 0 || second.is_empty() {
            return [first, second, &[]];
        }
        // The block that lies in both, out of two copies of a length that the compiler knows.
        if let (Some(before), Some((after, _)), Some((left, right))) = (
            frame.head().last_chunk::<BLOCK>(),
            second.split_first_chunk::<BLOCK>(),
            room.split_at_mut_checked(BLOCK),
        ) && let (Some(left), Some(right)) = (left.first_chunk_mut(), right.first_chunk_mut())
        {
            (*left, *right) = (*before, *after);
            let first = first.get(..first.len() - torn).unwrap_or_default();
            let middle = room.get(BLOCK - torn..2 * BLOCK - torn).unwrap_or_default();
            return [first, middle, second.get(BLOCK - torn..).unwrap_or_default()];
        }
    }
    gathered(frame, at, length, room)
}

/// The same for any frame: all of it copied to `room`.
#[cold]
fn gathered<'f>(frame: &'f impl FrameBuf, at: usize, length: usize, room: &'f mut [u8]) -> Row<'f> {
    let length = length.min(room.len());
    let (mut skip, mut to) = (at, &mut room[..length]);
    for segment in frame.segments() {
        let from = skip.min(segment.len());
        skip -= from;
        let n = (segment.len() - from).min(to.len());
        let (now, rest) = to.split_at_mut(n);
        now.copy_from_slice(&segment[from..from + n]);
        to = rest;
    }
    [&room[..length], &[], &[]]
}

/// Copies the row, as far as there is room.
#[inline]
fn copy(mut to: &mut [u8], row: Row<'_>) {
    for piece in row {
        let n = piece.len().min(to.len());
        let (now, rest) = to.split_at_mut(n);
        now.copy_from_slice(&piece[..n]);
        to = rest;
    }
}

/// Adds the row, as far as there is room.
#[inline]
fn add(mut sum: &mut [u8], kernel: &Kernel, row: Row<'_>) {
    for piece in row {
        if !piece.is_empty() {
            let n = piece.len().min(sum.len());
            let (now, rest) = sum.split_at_mut(n);
            kernel.apply(now, piece);
            sum = rest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A frame in three pieces.
    #[derive(Debug)]
    struct Cut(Vec<u8>, Vec<u8>, Vec<u8>);

    impl FrameBuf for Cut {
        fn length(&self) -> usize {
            self.0.len() + self.1.len() + self.2.len()
        }

        fn head(&self) -> &[u8] {
            &self.0
        }

        fn head_mut(&mut self) -> &mut [u8] {
            &mut self.0
        }

        fn trailer(&self) -> [u8; 4] {
            [0; 4]
        }

        fn set_trailer(&mut self, _: [u8; 4]) {}

        fn segments(&self) -> [&[u8]; 3] {
            [&self.0, &self.1, &self.2]
        }
    }

    proptest! {
        /// Wherever a frame is cut, the row is the payload, in whole blocks but for the last piece.
        #[test]
        fn a_row_is_the_payload_in_whole_blocks(
            bytes in proptest::collection::vec(any::<u8>(), 0..700),
            cuts in any::<(prop::sample::Index, prop::sample::Index)>(),
            payload in any::<(prop::sample::Index, prop::sample::Index)>(),
            as_ports_do: bool,
        ) {
            let pick = |(a, b): (prop::sample::Index, prop::sample::Index)| {
                let (a, b) = (a.index(bytes.len() + 1), b.index(bytes.len() + 1));
                (a.min(b), a.max(b))
            };
            let (mut cut, (at, end)) = (pick(cuts), pick(payload));
            if as_ports_do {
                cut = (128.min(bytes.len()), bytes.len());
            }
            let frame = Cut(bytes[..cut.0].into(), bytes[cut.0..cut.1].into(), bytes[cut.1..].into());
            let mut room = [0; 4096];
            let row = row(&frame, at, end - at, &mut room);
            prop_assert_eq!(row.concat(), &bytes[at..end]);
            if let Some((first, second)) = pieces(&frame, at, end - at) {
                prop_assert_eq!([first, second].concat(), &bytes[at..end]);
            }
            let last = row.iter().rposition(|piece| !piece.is_empty()).unwrap_or(0);
            prop_assert!(row[..last].iter().all(|piece| piece.len() % BLOCK == 0));
        }
    }
}
