//! The two queues of a link: frames to the peer and from it. Nothing that the peer has written is used before it is checked.
//!
//! A ring has a head and a tail, which count slots modulo 2^16. In the ring to the server (S2M) the client fills a slot
//! and moves the head, and the server empties it and moves the tail. In the ring to the client (M2S) the client lends
//! empty buffers by moving the head, and the server fills one and moves the tail. The client has the memory, so it
//! knows where its buffers are, and does not read that from the ring.

use std::rc::Rc;

use arrayvec::ArrayVec;
use castnet_wire::DropReason;

use super::ring::{Descriptor, NEXT, Ring};
use crate::shared::Region;

/// The most buffers of a frame.
pub(super) const CHAIN: usize = 64;

/// A peer that breaks the protocol. The link ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Fault {
    #[error("ring of {size} with {used} slots in use")]
    Index { used: u16, size: u16 },
    #[error("slot {slot}: no {length} bytes at {offset} of region {region}")]
    Buffer {
        slot: u16,
        region: u16,
        offset: u32,
        length: u32,
    },
}

/// The buffers of this side's memory: one per slot, of the same size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Buffers {
    pub(super) start: u32,
    pub(super) size: u32,
}

impl Buffers {
    /// The descriptor of an empty buffer.
    pub(super) fn empty(&self, slot: u16, ring: u16) -> Descriptor {
        Descriptor {
            flags: 0,
            region: 0,
            length: self.size,
            offset: self.start + u32::from(slot & (ring - 1)) * self.size,
        }
    }
}

/// Bytes in a region, which were checked.
#[derive(Clone, Copy, Debug)]
struct Piece {
    region: u16,
    offset: u32,
    length: u32,
}

/// One direction of a link.
#[derive(Debug)]
struct Side {
    ring: Ring,
    regions: Rc<[Rc<Region>]>,
    /// If this process is the client.
    buffers: Option<Buffers>,
    /// The next slot to fill or to empty.
    next: u16,
    /// Slots from `next` on that are ours by the last look.
    known: u16,
}

impl Side {
    fn new(ring: Ring, regions: Rc<[Rc<Region>]>, buffers: Option<Buffers>) -> Self {
        Self {
            ring,
            regions,
            buffers,
            next: 0,
            known: 0,
        }
    }

    fn check(&self, used: u16) -> Result<u16, Fault> {
        let size = self.ring.size();
        if used <= size {
            Ok(used)
        } else {
            Err(Fault::Index { used, size })
        }
    }

    /// The buffer of a slot, inside its region. `given`: the descriptor's length, which the peer wrote.
    fn buffer(&self, slot: u16, given: Descriptor) -> Result<Piece, Fault> {
        let (region, offset, length) = match self.buffers {
            // The peer cannot move it.
            Some(buffers) => {
                let own = buffers.empty(slot, self.ring.size());
                let fits = given.length <= own.length;
                (own.region, own.offset, if fits { given.length } else { u32::MAX })
            }
            None => (given.region, given.offset, given.length),
        };
        let is_inside = self
            .regions
            .get(usize::from(region))
            .is_some_and(|r| r.contains(offset as usize, length as usize));
        if !is_inside {
            return Err(Fault::Buffer {
                slot: slot & (self.ring.size() - 1),
                region,
                offset,
                length: given.length,
            });
        }
        Ok(Piece {
            region,
            offset,
            length,
        })
    }

    fn advance(&mut self, slots: u16) {
        self.next = self.next.wrapping_add(slots);
        self.known -= slots;
    }
}

/// Frames to the peer.
#[derive(Debug)]
pub(super) struct Sender {
    side: Side,
    /// `next` as the peer knows it.
    published: u16,
}

impl Sender {
    /// `buffers`: of the client, whose ring this is.
    pub(super) fn new(ring: Ring, regions: Rc<[Rc<Region>]>, buffers: Option<Buffers>) -> Self {
        Self {
            side: Side::new(ring, regions, buffers),
            published: 0,
        }
    }

    /// Slots with frames that the peer has not given back.
    pub(super) fn waiting(&self) -> Result<u16, Fault> {
        let side = &self.side;
        match side.buffers {
            Some(_) => side.check(side.next.wrapping_sub(side.ring.tail())),
            None => {
                let free = side.check(side.ring.head().wrapping_sub(side.next))?;
                Ok(side.ring.size() - free)
            }
        }
    }

    /// Slots that can be filled.
    fn free(&mut self, least: u16) -> Result<u16, Fault> {
        let side = &mut self.side;
        if side.known < least {
            side.known = match side.buffers {
                Some(_) => {
                    let used = side.check(side.next.wrapping_sub(side.ring.tail()))?;
                    side.ring.size() - used
                }
                None => side.check(side.ring.head().wrapping_sub(side.next))?,
            };
        }
        Ok(side.known)
    }

    /// True if a frame of `length` bytes finds free slots, as far as that is known before they are filled.
    pub(super) fn has_capacity(&mut self, length: usize) -> Result<bool, Fault> {
        if self.free(1)? == 0 {
            return Ok(false);
        }
        let size = match self.side.buffers {
            Some(buffers) => buffers.size,
            None => self.side.ring.descriptor(self.side.next).length,
        };
        let slots = length.div_ceil(size.max(1) as usize).min(CHAIN) as u16;
        let slots = slots.min(self.side.ring.size());
        Ok(self.free(slots)? >= slots)
    }

    /// Copies a frame into the next slots. The peer sees it after [`Sender::publish`].
    ///
    /// # Errors
    /// The link must end. The result inside says whether the frame was taken.
    pub(super) fn push(&mut self, pieces: &[&[u8]]) -> Result<Result<(), DropReason>, Fault> {
        let mut left: usize = pieces.iter().map(|p| p.len()).sum();
        let (mut pieces, mut piece) = (pieces.iter(), &[][..]);
        let mut used = 0;
        while used == 0 || left > 0 {
            if usize::from(used) == CHAIN {
                return Ok(Err(DropReason::TooLong));
            }
            if self.free(used + 1)? <= used {
                return Ok(Err(DropReason::TxFull));
            }
            let slot = self.side.next.wrapping_add(used);
            let buffer = self.capacity(slot)?;
            let (region, size) = (
                &self.side.regions[usize::from(buffer.region)],
                buffer.length as usize,
            );
            let mut at = 0;
            while at < size && left > 0 {
                if piece.is_empty() {
                    piece = pieces.next().copied().unwrap_or_default();
                    continue;
                }
                let (now, later) = piece.split_at(piece.len().min(size - at));
                region.write(buffer.offset as usize + at, now);
                (piece, at, left) = (later, at + now.len(), left - now.len());
            }
            let filled = Descriptor {
                flags: if left > 0 { NEXT } else { 0 },
                region: buffer.region,
                length: at as u32,
                offset: buffer.offset,
            };
            self.side.ring.set_descriptor(slot, filled);
            used += 1;
        }
        self.side.advance(used);
        Ok(Ok(()))
    }

    /// The buffer that a slot has for a part of a frame.
    fn capacity(&self, slot: u16) -> Result<Piece, Fault> {
        let empty = match self.side.buffers {
            Some(buffers) => buffers.empty(slot, self.side.ring.size()),
            None => self.side.ring.descriptor(slot),
        };
        let piece = self.side.buffer(slot, empty)?;
        if piece.length == 0 {
            let Descriptor {
                region,
                offset,
                length,
                ..
            } = empty;
            return Err(Fault::Buffer {
                slot: slot & (self.side.ring.size() - 1),
                region,
                offset,
                length,
            });
        }
        Ok(piece)
    }

    /// Passes the pushed frames to the peer. Returns true if the peer sleeps and needs an event.
    #[must_use]
    pub(super) fn publish(&mut self) -> bool {
        let side = &self.side;
        if self.published == side.next {
            return false;
        }
        self.published = side.next;
        match side.buffers {
            Some(_) => side.ring.set_head(side.next),
            None => side.ring.set_tail(side.next),
        }
        side.ring.wants_event()
    }
}

/// Frames from the peer.
#[derive(Debug)]
pub(super) struct Receiver {
    side: Side,
    /// Slots that were emptied and not given back.
    emptied: u16,
    /// The last frame.
    frame: ArrayVec<Piece, CHAIN>,
}

impl Receiver {
    /// `buffers`: of the client, which lends all of them.
    pub(super) fn new(ring: Ring, regions: Rc<[Rc<Region>]>, buffers: Option<Buffers>) -> Self {
        if let Some(buffers) = buffers {
            for slot in 0..ring.size() {
                ring.set_descriptor(slot, buffers.empty(slot, ring.size()));
            }
            ring.set_head(ring.size());
        }
        ring.mask_events();
        Self {
            side: Side::new(ring, regions, buffers),
            emptied: 0,
            frame: ArrayVec::new(),
        }
    }

    /// Slots that the peer has filled, at least one if there is any.
    fn filled(&mut self) -> Result<u16, Fault> {
        if self.side.known == 0 {
            self.side.known = self.waiting()?;
        }
        Ok(self.side.known)
    }

    /// Slots that the peer has filled, by a new look.
    pub(super) fn waiting(&self) -> Result<u16, Fault> {
        let side = &self.side;
        let end = match side.buffers {
            Some(_) => side.ring.tail(),
            None => side.ring.head(),
        };
        let filled = side.check(end.wrapping_sub(side.next))?;
        // The peer cannot have filled again what was not given back.
        side.check(filled + self.emptied)?;
        Ok(filled)
    }

    pub(super) fn size(&self) -> u16 {
        self.side.ring.size()
    }

    /// Takes the next frame, and returns its length. Its bytes stay in their slots until [`Receiver::give_back`]. `None`
    /// if there is none.
    ///
    /// # Errors
    /// The link must end. Inside: the frame is not whole, or has more than [`CHAIN`] buffers.
    pub(super) fn next(&mut self) -> Result<Option<Result<usize, DropReason>>, Fault> {
        if self.filled()? == 0 {
            return Ok(None);
        }
        self.frame.clear();
        let (mut length, mut used, mut fits) = (0, 0, true);
        let is_whole = loop {
            // A peer publishes whole frames.
            if used == self.side.known {
                break false;
            }
            let slot = self.side.next.wrapping_add(used);
            let descriptor = self.side.ring.descriptor(slot);
            let piece = self.side.buffer(slot, descriptor)?;
            used += 1;
            length += piece.length as usize;
            fits &= self.frame.try_push(piece).is_ok();
            if descriptor.flags & NEXT == 0 {
                break true;
            }
        };
        self.side.advance(used);
        self.emptied += used;
        Ok(Some(match (is_whole, fits) {
            (false, _) => Err(DropReason::Malformed),
            (_, false) => Err(DropReason::TooLong),
            _ => Ok(length),
        }))
    }

    /// Copies bytes of the last frame, from `at` on. They must be within its length.
    #[inline]
    pub(super) fn copy(&self, mut at: usize, mut to: &mut [u8]) {
        for piece in &self.frame {
            let length = piece.length as usize;
            if at >= length {
                at -= length;
                continue;
            }
            let (now, later) = to.split_at_mut(to.len().min(length - at));
            if let Some(region) = self.side.regions.get(usize::from(piece.region)) {
                region.read(piece.offset as usize + at, now);
            }
            to = later;
            if to.is_empty() {
                return;
            }
            at = 0;
        }
    }

    /// Gives the slots of all frames that were taken back to the peer.
    pub(super) fn give_back(&mut self) {
        let side = &self.side;
        if self.emptied == 0 {
            return;
        }
        match side.buffers {
            Some(buffers) => {
                for i in 0..self.emptied {
                    let slot = side.next.wrapping_sub(self.emptied).wrapping_add(i);
                    side.ring
                        .set_descriptor(slot, buffers.empty(slot, side.ring.size()));
                }
                side.ring.set_head(side.next.wrapping_add(side.ring.size()));
            }
            None => side.ring.set_tail(side.next),
        }
        self.emptied = 0;
    }

    /// From now on the peer sends an event for each frame. The caller looks for frames once more.
    pub(super) fn ask_for_events(&self) {
        self.side.ring.ask_for_events();
    }

    /// From now on this side polls.
    pub(super) fn mask_events(&self) {
        self.side.ring.mask_events();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG2: u8 = 2;
    const SIZE: u16 = 1 << LOG2;

    /// The receiving side of a server, or of a client with buffers of its own, and the peer's view of the ring.
    fn receiver(is_client: bool) -> (Receiver, Ring) {
        let region = Rc::new(Region::create("test", 4096).unwrap().0);
        let [ring, of_peer] = [(); 2].map(|()| Ring::new(&region, 0, LOG2).unwrap());
        let buffers = Buffers {
            start: 1024,
            size: 64,
        };
        for slot in 0..SIZE {
            of_peer.set_descriptor(slot, buffers.empty(slot, SIZE));
        }
        let receiver = Receiver::new(ring, Rc::from([region]), is_client.then_some(buffers));
        (receiver, of_peer)
    }

    #[test]
    fn a_peer_cannot_fill_slots_that_were_not_given_back() {
        for is_client in [false, true] {
            let (mut receiver, peer) = receiver(is_client);
            let fill = |end: u16| match is_client {
                true => peer.set_tail(end),
                false => peer.set_head(end),
            };
            // Heads and tails pass 2^16.
            let mut filled = 0_u16;
            for _ in 0..u16::MAX / SIZE + 2 {
                filled = filled.wrapping_add(SIZE);
                fill(filled);
                assert_eq!(receiver.waiting(), Ok(SIZE));
                for _ in 0..SIZE {
                    assert_eq!(receiver.next(), Ok(Some(Ok(64))));
                }
                assert_eq!(receiver.next(), Ok(None));
                receiver.give_back();
            }
            fill(filled.wrapping_add(3));
            assert_eq!(receiver.next(), Ok(Some(Ok(64))));
            // Two wait, and one was not given back.
            fill(filled.wrapping_add(SIZE));
            assert_eq!(receiver.waiting(), Ok(3));
            fill(filled.wrapping_add(SIZE + 1));
            let (used, size) = (SIZE + 1, SIZE);
            assert_eq!(receiver.waiting(), Err(Fault::Index { used, size }));
        }
    }
}
