//! The payloads of a group's slots, and the arithmetic on them (EPIC 4.1: AggregateData). All memory is allocated when the group is
//! compiled. A payload lies in its frame in two pieces, and an element may be split between them.

use castnet_collective::EndpointId;
use castnet_collective::EndpointSet;
use castnet_reduce::{Kernel, prefetch};
use castnet_rules::{GroupRule, SLOT_ALIGN, TranslatedRule};
use castnet_wire::FrameBuf;

use super::context::{KernelCache, KernelKey};
use crate::group::verify::{Pieces, pieces};

/// The state of a slot besides its payload.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SlotMetadata<const W: usize> {
    /// Immediate data, where the opcode has it.
    pub(crate) imm: u32,
    /// The ICRC of the payload with the group's own header, once computed.
    pub(crate) icrc: Option<u32>,
    /// Endpoints whose contributions are stored separately.
    kept: EndpointSet<W>,
    /// How they are reduced, while all are there and their sum is not made.
    unmade: Option<KernelKey>,
}

#[derive(Debug)]
pub(crate) struct Slots<const W: usize> {
    bytes: Box<[u8]>,
    /// Offset of the first slot, whose address is a multiple of [`SLOT_ALIGN`].
    start: usize,
    stride: usize,
    /// Per slot of contributions: the result and, if stored separately, one for each endpoint. 0 without payload.
    packets: usize,
    /// Slots of contributions. The others store one packet.
    sums: u16,
    metadata: Box<[SlotMetadata<W>]>,
}

fn start(bytes: &[u8]) -> usize {
    bytes.as_ptr().align_offset(SLOT_ALIGN).min(SLOT_ALIGN)
}

impl<const W: usize> Slots<W> {
    /// Without payload, contributions are ignored, and results are zeros.
    pub(crate) fn new(rule: &GroupRule, kind: &TranslatedRule, payload: bool) -> Self {
        let (endpoints, stride) = (rule.endpoints.len(), TranslatedRule::slot_stride(rule.pmtu));
        // Not zeros: the kernel would map zeroed pages at the first access, while a frame is handled.
        let bytes = match payload {
            true => vec![u8::MAX; kind.slot_bytes(rule.pmtu, endpoints) as usize + SLOT_ALIGN],
            false => vec![0; stride],
        };
        Self {
            start: if payload { start(&bytes) } else { 0 },
            bytes: bytes.into_boxed_slice(),
            stride,
            packets: if payload {
                kind.packets_per_slot(endpoints)
            } else {
                0
            },
            sums: kind.aggregation_slots(),
            metadata: vec![SlotMetadata::default(); kind.slots.into()].into_boxed_slice(),
        }
    }

    pub(crate) fn footprint(&self) -> usize {
        self.bytes.len() + size_of_val(&*self.metadata)
    }

    fn keeps(&self) -> bool {
        self.packets > 1
    }

    /// The first byte of a slot, and its packets.
    #[inline]
    fn place(&self, slot: u16) -> (usize, usize) {
        let sums = usize::from(slot.min(self.sums));
        let others = usize::from(slot) - sums;
        let before = sums * self.packets + others * self.packets.min(1);
        let packets = if slot < self.sums {
            self.packets
        } else {
            self.packets.min(1)
        };
        (self.start + before * self.stride, packets)
    }

    fn slot(&mut self, slot: u16) -> &mut [u8] {
        let (at, packets) = self.place(slot);
        self.bytes
            .get_mut(at..at + packets * self.stride)
            .unwrap_or_default()
    }

    #[inline]
    pub(crate) fn prefetch(&self, slot: u16) {
        if let Some(metadata) = self.metadata.get(usize::from(slot)) {
            prefetch(metadata);
        }
        prefetch(self.result(slot, self.stride));
    }

    pub(crate) fn result(&self, slot: u16, length: usize) -> &[u8] {
        let (at, _) = self.place(slot);
        self.bytes
            .get(at..at + length.min(self.stride))
            .unwrap_or_default()
    }

    pub(crate) fn metadata(&self, slot: u16) -> SlotMetadata<W> {
        self.metadata.get(usize::from(slot)).copied().unwrap_or_default()
    }

    pub(crate) fn metadata_mut(&mut self, slot: u16) -> Option<&mut SlotMetadata<W>> {
        self.metadata.get_mut(usize::from(slot))
    }

    /// The payload is already the result.
    pub(crate) fn store(&mut self, slot: u16, payload: Pieces<'_>) {
        copy(self.slot(slot), payload);
        if let Some(metadata) = self.metadata_mut(slot) {
            (metadata.icrc, metadata.unmade) = (None, None);
        }
    }

    /// Copies the first `length` bytes of the result, and what is known of them, to another slot.
    pub(crate) fn hand_over(&mut self, from: u16, to: u16, length: usize) {
        let ((source, _), (target, _)) = (self.place(from), self.place(to));
        let length = length.min(self.stride);
        if self.packets > 0 && source + length <= self.bytes.len() && target + length <= self.bytes.len() {
            self.bytes.copy_within(source..source + length, target);
        }
        let metadata = self.metadata(from);
        if let Some(to) = self.metadata_mut(to) {
            (to.imm, to.icrc) = (metadata.imm, metadata.icrc);
        }
    }

    /// Copies the first contribution and reduces others into it; a reproducible group stores each separately.
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
        if let Some(metadata) = self.metadata_mut(slot) {
            metadata.icrc = None;
            if first {
                (metadata.kept, metadata.unmade) = (EndpointSet::EMPTY, None);
            }
            if keeps {
                metadata.kept.insert(from);
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

    /// All contributions have been received. Of separately stored ones, [`Self::make`] makes the sum before it is read.
    pub(crate) fn complete(&mut self, slot: u16, kernel: KernelKey) {
        if self.keeps()
            && let Some(metadata) = self.metadata_mut(slot)
        {
            metadata.unmade = Some(kernel);
        }
    }

    /// Reduces separately stored contributions, all of which have been received, in the order of endpoints, if that has not been done.
    /// Returns the bytes that were combined: a megabyte takes a tenth of a millisecond.
    pub(crate) fn make(&mut self, slot: u16, length: usize, kernels: &mut KernelCache) -> usize {
        let SlotMetadata { kept, unmade, .. } = self.metadata(slot);
        let Some(kernel) = unmade else { return 0 };
        let (stride, kernel) = (self.stride, kernels.select(kernel));
        let Some((result, contributions)) = self.slot(slot).split_at_mut_checked(stride) else {
            debug_assert!(false, "the slot has memory for its contributions");
            return 0;
        };
        let Some(result) = result.get_mut(..length) else {
            debug_assert!(false, "a result is no longer than a packet");
            return 0;
        };
        let contributions = kept.into_iter().filter_map(|endpoint| {
            let at = endpoint.index() * stride;
            let contribution = contributions.get(at..at + length);
            debug_assert!(
                contribution.is_some(),
                "the slot has memory for the contribution of each endpoint"
            );
            contribution
        });
        kernel.fold(result, contributions);
        if let Some(metadata) = self.metadata_mut(slot) {
            (metadata.icrc, metadata.unmade) = (None, None);
        }
        kept.len() * length
    }
}

/// The payload of any frame. If it is not in head and body alone, it is copied to `room`, which has the size of the largest payload.
#[inline]
pub(crate) fn payload<'f>(
    frame: &'f impl FrameBuf,
    at: usize,
    length: usize,
    room: &'f mut [u8],
) -> Pieces<'f> {
    pieces(frame, at, length).unwrap_or_else(|| (gathered(frame, at, length, room), &[]))
}

/// Copies a payload to `room`.
#[cold]
pub(crate) fn gathered<'f>(
    frame: &'f impl FrameBuf,
    at: usize,
    length: usize,
    room: &'f mut [u8],
) -> &'f [u8] {
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
        /// The payload is found for every cut of the frame.
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
            let (mut copy_prefix, (at, end)) = (pick(cuts), pick(place));
            if as_ports_do {
                copy_prefix = (128.min(bytes.len()), bytes.len());
            }
            let frame = Cut(bytes[..copy_prefix.0].into(), bytes[copy_prefix.0..copy_prefix.1].into(), bytes[copy_prefix.1..].into());
            let mut room = [0; 4096];
            let (first, second) = payload(&frame, at, end - at, &mut room);
            prop_assert_eq!([first, second].concat(), &bytes[at..end]);
            let mut copied = vec![0; end - at];
            copy(&mut copied, (first, second));
            prop_assert_eq!(copied, &bytes[at..end]);
        }
    }
}
