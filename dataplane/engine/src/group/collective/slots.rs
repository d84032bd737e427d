//! The payloads of a group's slots, and the arithmetic on them (EPIC 4.1: AggregateData).
//!
//! All memory is taken when the group is compiled. A contribution lies in its frame in two pieces, whose border may cut an
//! element in two.

use castnet_collective::EndpointId;
use castnet_collective::EndpointSet;
use castnet_reduce::{Kernel, prefetch};
use castnet_rules::{GroupRule, SLOT_ALIGN, TranslatedRule};
use castnet_wire::FrameBuf;

/// A packet's payload, as it lies in its frame.
pub(crate) type Pieces<'a> = (&'a [u8], &'a [u8]);

/// What belongs to a slot beside its payload.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Note<const W: usize> {
    /// Immediate data of the packet, where its opcode has it.
    pub(crate) imm: u32,
    /// The ICRC of the payload under the group's own header; `None` until somebody asks.
    pub(crate) icrc: Option<u32>,
    /// Those whose contributions are kept.
    kept: EndpointSet<W>,
}

/// The slots.
#[derive(Debug)]
pub(crate) struct Slots<const W: usize> {
    bytes: Box<[u8]>,
    /// Where the first slot begins: at a multiple of [`SLOT_ALIGN`].
    start: usize,
    stride: usize,
    /// Packets per slot: the result, then, where contributions are kept, one of each endpoint. 0 where there is no payload.
    packets: usize,
    notes: Box<[Note<W>]>,
}

fn start(bytes: &[u8]) -> usize {
    bytes.as_ptr().align_offset(SLOT_ALIGN).min(SLOT_ALIGN)
}

impl<const W: usize> Slots<W> {
    pub(crate) fn new(rule: &GroupRule, kind: &TranslatedRule) -> Self {
        let endpoints = rule.endpoints.len();
        // Not zeros: pages of zeros would be given when they are first touched, which is on the way of a frame.
        let bytes =
            vec![u8::MAX; kind.slot_bytes(rule.pmtu, endpoints) as usize + SLOT_ALIGN].into_boxed_slice();
        Self {
            start: start(&bytes),
            bytes,
            stride: TranslatedRule::slot_stride(rule.pmtu),
            packets: kind.packets_per_slot(endpoints),
            notes: vec![Note::default(); kind.slots.into()].into_boxed_slice(),
        }
    }

    /// Slots with notes and no payload: contributions are left out, and each result is zeros.
    pub(crate) fn without_payload(rule: &GroupRule, kind: &TranslatedRule) -> Self {
        let bytes = vec![0; TranslatedRule::slot_stride(rule.pmtu)].into_boxed_slice();
        Self {
            start: 0,
            bytes,
            stride: TranslatedRule::slot_stride(rule.pmtu),
            packets: 0,
            notes: vec![Note::default(); kind.slots.into()].into_boxed_slice(),
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

    /// Asks for the memory of a slot: its note and its result.
    #[inline]
    pub(crate) fn prefetch(&self, slot: u16) {
        if let Some(note) = self.notes.get(usize::from(slot)) {
            prefetch(note);
        }
        prefetch(self.result(slot, self.stride));
    }

    /// The result's payload.
    pub(crate) fn result(&self, slot: u16, length: usize) -> &[u8] {
        let at = self.start + usize::from(slot) * self.packets * self.stride;
        self.bytes
            .get(at..at + length.min(self.stride))
            .unwrap_or_default()
    }

    pub(crate) fn note(&self, slot: u16) -> Note<W> {
        self.notes.get(usize::from(slot)).copied().unwrap_or_default()
    }

    pub(crate) fn note_mut(&mut self, slot: u16) -> Option<&mut Note<W>> {
        self.notes.get_mut(usize::from(slot))
    }

    /// The payload is the result.
    pub(crate) fn store(&mut self, slot: u16, payload: Pieces<'_>) {
        copy(self.slot(slot), payload);
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
        payload: Pieces<'_>,
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
            copy(packets.get_mut(at..).unwrap_or_default(), payload);
        } else if first {
            copy(packets, payload);
        } else {
            kernel.apply_pieces(packets, payload.0, payload.1);
        }
    }

    /// All contributions are in: adds those that were kept, in the order of endpoints.
    pub(crate) fn complete(&mut self, slot: u16, kernel: &Kernel, length: usize) {
        if !self.keeps() {
            return;
        }
        let (stride, kept) = (self.stride, self.note(slot).kept);
        let Some((result, contributions)) = self.slot(slot).split_at_mut_checked(stride) else {
            return debug_assert!(false, "a slot that keeps contributions has room for them");
        };
        let Some(result) = result.get_mut(..length) else {
            return debug_assert!(false, "a result is no longer than a packet");
        };
        let mut first = true;
        for endpoint in kept {
            let at = endpoint.index() * stride;
            let Some(contribution) = contributions.get(at..at + length) else {
                debug_assert!(false, "each endpoint's contribution has its place");
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
pub(crate) fn pieces(frame: &impl FrameBuf, at: usize, length: usize) -> Option<Pieces<'_>> {
    let (end, [head, body, _]) = (at + length, frame.segments());
    match head.get(at..end) {
        Some(all) => Some((all, &[])),
        None => Some((head.get(at..)?, body.get(..end - head.len())?)),
    }
}

/// The same for any frame; `room` is for one that has its payload elsewhere, as much as a payload can have.
#[inline]
pub(crate) fn payload<'f>(
    frame: &'f impl FrameBuf,
    at: usize,
    length: usize,
    room: &'f mut [u8],
) -> Pieces<'f> {
    pieces(frame, at, length).unwrap_or_else(|| (gathered(frame, at, length, room), &[]))
}

/// All of it, copied to `room`.
#[cold]
fn gathered<'f>(frame: &'f impl FrameBuf, at: usize, length: usize, room: &'f mut [u8]) -> &'f [u8] {
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
    &room[..length]
}

/// Copies the payload, as far as there is room.
#[inline]
pub(crate) fn copy(mut to: &mut [u8], (first, second): Pieces<'_>) {
    for piece in [first, second] {
        let n = piece.len().min(to.len());
        let (now, rest) = to.split_at_mut(n);
        now.copy_from_slice(&piece[..n]);
        to = rest;
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
        /// Wherever a frame is cut, what is found is its payload.
        #[test]
        fn a_payload_is_found_in_any_pieces(
            bytes in proptest::collection::vec(any::<u8>(), 0..700),
            cuts in any::<(prop::sample::Index, prop::sample::Index)>(),
            place in any::<(prop::sample::Index, prop::sample::Index)>(),
            as_ports_do: bool,
        ) {
            let pick = |(a, b): (prop::sample::Index, prop::sample::Index)| {
                let (a, b) = (a.index(bytes.len() + 1), b.index(bytes.len() + 1));
                (a.min(b), a.max(b))
            };
            let (mut cut, (at, end)) = (pick(cuts), pick(place));
            if as_ports_do {
                cut = (128.min(bytes.len()), bytes.len());
            }
            let frame = Cut(bytes[..cut.0].into(), bytes[cut.0..cut.1].into(), bytes[cut.1..].into());
            let mut room = [0; 4096];
            let (first, second) = payload(&frame, at, end - at, &mut room);
            prop_assert_eq!([first, second].concat(), &bytes[at..end]);
            let mut copied = vec![0; end - at];
            copy(&mut copied, (first, second));
            prop_assert_eq!(copied, &bytes[at..end]);
        }
    }
}
