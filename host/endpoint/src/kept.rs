//! What a responder keeps behind a gap, where the other end sends single packets again on request.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use castnet_wire::{Nanos, RoundTrip};

use crate::packet::Request;

/// Packets from the expected one on that have an entry. What is further ahead counts as lost.
const ENTRIES_MAX: usize = 256;

/// A packet with its payload.
pub(crate) type KeptRequest = (Request<'static>, Vec<u8>);

#[derive(Clone, Debug, Default)]
struct Entry {
    packet: Option<KeptRequest>,
    /// When it was asked for, first and last, while it is missing.
    asked: Option<(Nanos, Nanos)>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Kept {
    /// From the expected packet to the newest one; empty without a gap.
    entries: VecDeque<Entry>,
    /// The time from a question to its packet.
    repair: RoundTrip,
}

impl Kept {
    /// Keeps a packet that is so many ahead of the expected one. False if it is there already, or too far ahead.
    pub(crate) fn insert(&mut self, now: Nanos, request: &Request<'_>, ahead: usize) -> bool {
        if ahead >= ENTRIES_MAX {
            return false;
        }
        if ahead >= self.entries.len() {
            self.entries.resize_with(ahead + 1, Entry::default);
        }
        let Some(entry) = self.entries.get_mut(ahead).filter(|entry| entry.packet.is_none()) else {
            return false;
        };
        if let Some((first, _)) = entry.asked.take() {
            self.repair.measure(now.since(first));
        }
        let Request {
            kind,
            is_first,
            is_last,
            psn,
            ack_request,
            solicited,
            pad,
            target,
            imm,
            invalidate,
            payload,
        } = *request;
        let header = Request {
            kind,
            is_first,
            is_last,
            psn,
            ack_request,
            solicited,
            pad,
            target,
            imm,
            invalidate,
            payload: &[],
        };
        entry.packet = Some((header, payload.to_vec()));
        true
    }

    /// A packet that must be asked for now, by its distance from the expected one: it was not asked for, or it is overdue, by the time that others
    /// have taken. It then counts as asked for.
    pub(crate) fn next_to_ask(&mut self, now: Nanos) -> Option<usize> {
        let patience = self
            .repair
            .estimate()
            .map(|longest| Nanos(longest.0.saturating_mul(2)));
        let is_due = |entry: &Entry| {
            entry.packet.is_none()
                && entry
                    .asked
                    .is_none_or(|(_, last)| patience.is_some_and(|patience| now.since(last) >= patience))
        };
        let index = self.entries.iter().position(is_due)?;
        let entry = self.entries.get_mut(index)?;
        let first = entry.asked.map_or(now, |(first, _)| first);
        entry.asked = Some((first, now));
        Some(index)
    }

    /// The expected packet has been processed: the next one is expected.
    pub(crate) fn advance(&mut self, now: Nanos) {
        let entry = self.entries.pop_front();
        if let Some((first, _)) = entry.and_then(|entry| entry.asked) {
            self.repair.measure(now.since(first));
        }
    }

    /// True if the expected packet was kept.
    pub(crate) fn has_next(&self) -> bool {
        self.entries.front().is_some_and(|entry| entry.packet.is_some())
    }

    /// The expected packet, if it was kept.
    pub(crate) fn take_next(&mut self) -> Option<KeptRequest> {
        self.entries.front_mut()?.packet.take()
    }

    pub(crate) fn footprint(&self) -> usize {
        let payloads = self.entries.iter().filter_map(|entry| entry.packet.as_ref());
        self.entries.capacity() * size_of::<Entry>()
            + payloads.map(|(_, payload)| payload.capacity()).sum::<usize>()
    }
}
