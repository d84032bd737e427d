//! Frames in the network: a private head, and a body that replicas share.

use std::sync::Arc;

use arrayvec::ArrayVec;
use castnet_engine::Egress;
use castnet_reduce::prefetch;
use castnet_wire::ethernet::{ETHERTYPE_AT, ETHERTYPE_IPV4};
use castnet_wire::icrc::{self, ShiftCache};
use castnet_wire::layout::{TOTAL_LENGTH, VERSION_LENGTH, in_frame};
use castnet_wire::{Ethernet, FrameBuf, PortId};

const HEAD: usize = <Frame as FrameBuf>::HEAD;
const TRAILER: usize = 4;

/// A frame. Moving it moves a pointer.
#[derive(Clone, Debug)]
pub(crate) struct Frame(Box<Parts>);

#[derive(Clone, Debug)]
struct Parts {
    /// The whole frame if it has no body.
    head: ArrayVec<u8, { HEAD + TRAILER }>,
    body: Body,
    /// Zeros if there is no body.
    trailer: [u8; TRAILER],
}

#[derive(Clone, Debug)]
enum Body {
    None,
    /// So many zeros, which are not stored: the payload of messages without memory.
    Zeros(usize),
    Bytes(Arc<[u8]>),
}

/// The bytes of [`Body::Zeros`]: the payload of the longest packet fits.
static ZEROS: [u8; 4096] = [0; 4096];

impl Body {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::None => &[],
            Self::Zeros(length) => &ZEROS[..*length],
            Self::Bytes(bytes) => bytes,
        }
    }
}

impl Frame {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let mut head = ArrayVec::new();
        let (mut body, mut trailer) = (Body::None, [0; TRAILER]);
        if bytes.len() <= head.capacity() {
            head.extend(bytes.iter().copied());
        } else {
            let (first, rest) = bytes.split_at(HEAD);
            let (middle, last) = rest.split_at(rest.len() - TRAILER);
            head.extend(first.iter().copied());
            trailer.copy_from_slice(last);
            body = match ZEROS.get(..middle.len()) {
                Some(zeros) if middle == zeros => Body::Zeros(middle.len()),
                _ => Body::Bytes(middle.into()),
            };
        }
        Self(Box::new(Parts { head, body, trailer }))
    }

    /// Flips a bit. Replicas do not change.
    pub(crate) fn flip(&mut self, bit: usize) {
        let mut bytes = self.to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        *self = Self::new(&bytes);
    }

    /// True if the ICRC of a RoCEv2 frame is right: for plain frames with a payload of zeros, which is not read. False: unknown.
    pub(crate) fn is_icrc_good(&self, shifts: &mut ShiftCache<4>) -> bool {
        let Parts { head, body, trailer } = &*self.0;
        let (Body::Zeros(zeros), Some(packet)) = (body, head.get(Ethernet::LEN..)) else {
            return false;
        };
        let word = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        if word(ETHERTYPE_AT) != ETHERTYPE_IPV4
            || packet[0] != VERSION_LENGTH
            || usize::from(word(in_frame(TOTAL_LENGTH).start)) + Ethernet::LEN != self.length()
        {
            return false;
        }
        // The complement is the register.
        let icrc = !shifts.apply(!icrc::full(&[packet]), *zeros);
        icrc.to_le_bytes() == *trailer
    }

    /// Prefetches the frame without its body.
    pub(crate) fn prefetch(&self) {
        prefetch(&*self.0);
    }

    pub(crate) fn to_vec(&self) -> Vec<u8> {
        self.segments().concat()
    }
}

impl FrameBuf for Frame {
    fn length(&self) -> usize {
        match &self.0.body {
            Body::None => self.0.head.len(),
            Body::Zeros(length) => HEAD + length + TRAILER,
            Body::Bytes(bytes) => HEAD + bytes.len() + TRAILER,
        }
    }

    fn head(&self) -> &[u8] {
        &self.0.head
    }

    fn head_mut(&mut self) -> &mut [u8] {
        &mut self.0.head
    }

    fn trailer(&self) -> [u8; TRAILER] {
        match self.0.body {
            Body::None => self.0.head.last_chunk().copied().unwrap_or_default(),
            _ => self.0.trailer,
        }
    }

    fn set_trailer(&mut self, bytes: [u8; TRAILER]) {
        match self.0.body {
            Body::None => {
                if let Some(last) = self.0.head.last_chunk_mut() {
                    *last = bytes;
                }
            }
            _ => self.0.trailer = bytes,
        }
    }

    fn segments(&self) -> [&[u8]; 3] {
        let trailer: &[u8] = match self.0.body {
            Body::None => &[],
            _ => &self.0.trailer,
        };
        [&self.0.head, self.0.body.bytes(), trailer]
    }
}

/// Memory in which frames are in one piece. Its bytes are zeros between two frames, so that a body of zeros need not be written.
#[derive(Debug, Default)]
pub(crate) struct Contiguous(Vec<u8>);

impl Contiguous {
    /// Calls `act` with all bytes of the frame.
    pub(crate) fn with<R>(&mut self, frame: &Frame, act: impl FnOnce(&[u8]) -> R) -> R {
        let Parts { head, body, trailer } = &*frame.0;
        if matches!(body, Body::None) {
            return act(head);
        }
        let length = frame.length();
        if self.0.len() < length {
            self.0.resize(length, 0);
        }
        self.0[..HEAD].copy_from_slice(head);
        self.0[length - TRAILER..length].copy_from_slice(trailer);
        if let Body::Bytes(bytes) = body {
            self.0[HEAD..length - TRAILER].copy_from_slice(bytes);
        }
        let result = act(&self.0[..length]);
        match body {
            Body::Bytes(_) => self.0[..length].fill(0),
            _ => {
                self.0[..HEAD].fill(0);
                self.0[length - TRAILER..length].fill(0);
            }
        }
        result
    }
}

/// What a switch sends, in order.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    pub(crate) frames: Vec<(PortId, Frame)>,
    /// For frames that are put together from parts.
    scratch: Vec<u8>,
}

impl Egress for Sent {
    type Buf = Frame;

    fn replicate(&mut self, _: PortId, original: &Frame, _: usize) -> Option<Frame> {
        Some(original.clone())
    }

    fn allocate(&mut self, _: PortId, length: usize) -> Option<Frame> {
        self.scratch.clear();
        self.scratch.resize(length, 0);
        Some(Frame::new(&self.scratch))
    }

    fn gather(&mut self, _: PortId, parts: &[&[u8]]) -> Option<Frame> {
        self.scratch.clear();
        parts.iter().for_each(|part| self.scratch.extend_from_slice(part));
        Some(Frame::new(&self.scratch))
    }

    fn send(&mut self, port: PortId, frame: Frame) {
        self.frames.push((port, frame));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let lengths = prop_oneof![0..200_usize, 4000..4300_usize];
        (lengths, any::<bool>(), any::<u8>()).prop_map(|(length, zeros, seed)| {
            let byte = |at: usize| at.wrapping_mul(31) as u8 ^ seed;
            let is_zero = |at: usize| zeros && (HEAD..length.saturating_sub(TRAILER)).contains(&at);
            (0..length)
                .map(|at| if is_zero(at) { 0 } else { byte(at) })
                .collect()
        })
    }

    proptest! {

        /// Against the verification of all bytes, for right ICRCs and for one wrong bit.
        #[test]
        fn a_good_icrc_is_right(
            head in prop::collection::vec(any::<u8>(), 60..HEAD - Ethernet::LEN + 1), zeros in prop::sample::select(vec![1_usize, 4, 1024, 4096]),
            bit in prop::option::of(any::<prop::sample::Index>()),
        ) {
            let mut shifts = ShiftCache::new();
            let mut plain = vec![7; HEAD];
            plain[ETHERTYPE_AT..Ethernet::LEN].copy_from_slice(&ETHERTYPE_IPV4.to_be_bytes());
            plain[Ethernet::LEN..Ethernet::LEN + head.len()].copy_from_slice(&head);
            plain[Ethernet::LEN] = VERSION_LENGTH;
            plain.resize(HEAD + zeros + TRAILER, 0);
            let length = plain.len() as u16 - Ethernet::LEN as u16;
            plain[in_frame(TOTAL_LENGTH)].copy_from_slice(&length.to_be_bytes());
            let icrc = icrc::full(&[&plain[Ethernet::LEN..HEAD + zeros]]);
            plain.set_trailer(icrc.to_le_bytes());
            let mut frame = Frame::new(&plain);
            prop_assert!(frame.is_icrc_good(&mut shifts));
            if let Some(bit) = bit {
                frame.flip(bit.index(plain.len() * 8));
            }
            let is_right = icrc::verify(&frame, Ethernet::LEN, plain.len());
            prop_assert!(is_right || !frame.is_icrc_good(&mut shifts));
        }

        /// Against a frame in one piece; a replica changes alone.
        #[test]
        fn a_frame_is_its_bytes(frames in prop::collection::vec((bytes(), any::<prop::sample::Index>()), 1..6)) {
            let mut contiguous = Contiguous::default();
            for (mut plain, bit) in frames {
                let original = Frame::new(&plain);
                let mut frame = original.clone();
                frame.set_trailer([9, 8, 7, 6]);
                plain.set_trailer([9, 8, 7, 6]);
                let head = frame.head().len();
                prop_assert!(head >= plain.len().min(HEAD));
                if let Some(first) = frame.head_mut().first_mut() {
                    *first ^= 0xFF;
                    plain[0] ^= 0xFF;
                }
                if !plain.is_empty() {
                    let bit = bit.index(plain.len() * 8);
                    frame.flip(bit);
                    plain[bit / 8] ^= 1 << (bit % 8);
                }
                prop_assert_eq!(frame.length(), plain.len());
                prop_assert_eq!(frame.trailer(), plain.trailer());
                prop_assert_eq!(&frame.to_vec(), &plain);
                for frame in [&frame, &original] {
                    contiguous.with(frame, |bytes| assert_eq!(bytes, frame.to_vec()));
                }
            }
        }
    }
}
