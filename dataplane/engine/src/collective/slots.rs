//! The payloads of a group's slots, and the arithmetic on them (EPIC 4.1: AggregateData).
//!
//! All memory is taken when the group is compiled. A contribution lies in its frame in up to three pieces, whose borders
//! may cut an element in two.

use castnet_collective::EndpointId;
use castnet_collective::EndpointSet;
use castnet_reduce::Kernel;
use castnet_rules::{CollectiveGroup, SLOT_ALIGN};
use castnet_wire::{FrameBuf, RoceHeader};

/// Bytes of the largest element.
const ELEMENT_MAX: usize = 8;

/// A packet's payload as it lies in its frame.
pub(crate) type Pieces<'a> = [&'a [u8]; 3];

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

/// How contributions become one: the kernel, and the bytes of an element.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arithmetic {
    pub(crate) kernel: Kernel,
    pub(crate) element: usize,
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
    pub(crate) fn store(&mut self, slot: u16, pieces: &Pieces<'_>) {
        copy(self.slot(slot), pieces);
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
        arithmetic: &Arithmetic,
        pieces: &Pieces<'_>,
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
            copy(packets.get_mut(at..).unwrap_or_default(), pieces);
        } else if first {
            copy(packets, pieces);
        } else {
            fold(packets, arithmetic, pieces);
        }
    }

    /// All contributions are in: adds those that were kept, in the order of endpoints.
    pub(crate) fn complete(&mut self, slot: u16, arithmetic: &Arithmetic, length: usize) {
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
                arithmetic.kernel.apply(result, contribution);
            }
        }
        if let Some(note) = self.note_mut(slot) {
            note.icrc = None;
        }
    }
}

/// Where the payload of a frame lies.
#[inline]
pub(crate) fn pieces<'f>(frame: &'f impl FrameBuf, header: &RoceHeader) -> Pieces<'f> {
    let (from, to) = (header.payload_at, header.payload_at + header.payload_len);
    let [head, body, trailer] = frame.segments();
    let clip = |segment: &'f [u8], at: usize| {
        let first = from.clamp(at, at + segment.len()) - at;
        let last = to.clamp(at, at + segment.len()) - at;
        segment.get(first..last).unwrap_or_default()
    };
    [
        clip(head, 0),
        clip(body, head.len()),
        clip(trailer, head.len() + body.len()),
    ]
}

/// The payload of a frame in one piece: as it lies there, or copied to `room`, as far as that reaches. Checksum and sum are
/// quickest over one piece of a round length.
#[inline]
pub(crate) fn whole<'f>(frame: &'f impl FrameBuf, header: &RoceHeader, room: &'f mut [u8]) -> &'f [u8] {
    match pieces(frame, header) {
        [all, [], []] => all,
        pieces => {
            let length = header.payload_len.min(room.len());
            copy(room, &pieces);
            room.get(..length).unwrap_or_default()
        }
    }
}

/// Copies the pieces, one after the other, as far as there is room.
#[inline]
pub(crate) fn copy(mut to: &mut [u8], pieces: &Pieces<'_>) {
    for piece in pieces {
        let n = piece.len().min(to.len());
        let (now, rest) = to.split_at_mut(n);
        now.copy_from_slice(&piece[..n]);
        to = rest;
    }
}

/// Adds the pieces. An element that lies in two of them is put together first.
#[inline]
fn fold(sum: &mut [u8], arithmetic: &Arithmetic, pieces: &Pieces<'_>) {
    let Arithmetic { kernel, element } = *arithmetic;
    let element = element.clamp(1, ELEMENT_MAX);
    let (mut torn, mut have) = ([0; ELEMENT_MAX], 0);
    let mut at = 0;
    for piece in pieces {
        let mut piece = *piece;
        if have > 0 {
            let n = (element - have).min(piece.len());
            let (now, rest) = piece.split_at(n);
            torn[have..have + n].copy_from_slice(now);
            (have, piece) = (have + n, rest);
            if have < element {
                continue;
            }
            if let Some(sum) = sum.get_mut(at..at + element) {
                kernel.apply(sum, &torn[..element]);
            }
            at += element;
        }
        // Elements are of 1, 2, 4 or 8 bytes.
        let whole = piece.len() & !(element - 1);
        let (now, rest) = piece.split_at(whole);
        if let Some(sum) = sum.get_mut(at..at + whole) {
            kernel.apply(sum, now);
        }
        at += whole;
        torn[..rest.len()].copy_from_slice(rest);
        have = rest.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use castnet_wire::{CallFlags, DataType, Operation};
    use proptest::prelude::*;

    proptest! {
        /// Wherever a payload is cut into pieces, the sum is that of the whole.
        #[test]
        fn cuts_do_not_matter(elements in proptest::collection::vec(any::<(u64, u64)>(), 0..40), cuts in any::<(usize, usize)>(), pick in 0usize..4) {
            let data_type = [DataType::U8, DataType::U16, DataType::I32, DataType::F64][pick];
            let size = data_type.size();
            let side = |pick: fn(&(u64, u64)) -> u64| -> Vec<u8> {
                elements.iter().flat_map(|e| pick(e).to_le_bytes()[..size].to_vec()).collect()
            };
            let (mut sum, more) = (side(|e| e.0), side(|e| e.1));
            let kernel = Kernel::select(Operation::Sum, data_type, CallFlags::default());
            let mut expected = sum.clone();
            kernel.apply(&mut expected, &more);
            let (a, b) = (cuts.0 % (more.len() + 1), cuts.1 % (more.len() + 1));
            let (a, b) = (a.min(b), a.max(b));
            fold(&mut sum, &Arithmetic { kernel, element: size }, &[&more[..a], &more[a..b], &more[b..]]);
            prop_assert_eq!(sum, expected);
        }
    }
}
