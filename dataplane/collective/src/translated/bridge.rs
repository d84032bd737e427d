//! PSN bridging between PSNs on the wire and positions. The `u` and `d` of a host count only packets that it sends or receives.
//! Conversion starts at the lowest unacknowledged position, whose `u` or `d` is known, and searches the collectives in flight: whoever
//! repeats a packet must not make this switch visit all of them.

use super::endpoint::Receiving;
use super::machine::Translated;
use super::{EndpointId, EndpointKind};
use crate::calls::Role;
use castnet_wire::Psn;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Location {
    /// Acknowledged to the endpoint, or finished here; `newest`: the newest such packet.
    Done { newest: bool },
    /// Its position.
    At(u64),
    /// Beyond a control message that has not been received.
    Unknown,
}

impl<const W: usize> Translated<W> {
    #[inline]
    pub(super) fn wire_g(&self, g: u64) -> Psn {
        wire(self.cold().start_psn, g)
    }

    /// The position of a group's PSN, which is near `near`. `None` before the first position.
    #[inline]
    pub(super) fn unfold(&self, near: u64, psn: Psn) -> Option<u64> {
        near.checked_add_signed(psn.diff(self.wire_g(near)).into())
    }

    /// The PSN `u` of the packet `index` of a host.
    pub(super) fn wire_u(&self, endpoint: EndpointId, index: u64) -> Psn {
        match self.kind(endpoint) {
            EndpointKind::Rank { sq_psn, .. } => wire(sq_psn, index),
            EndpointKind::Switch => self.wire_g(index),
        }
    }

    /// `u` from a host, or `g` from a switch, to a position.
    #[inline]
    pub(super) fn locate(&self, from: EndpointId, psn: Psn) -> Location {
        let receiving = &self.endpoint(from).receiving;
        match self.kind(from) {
            // Nearly always it is the next expected packet.
            EndpointKind::Rank { sq_psn, .. } if psn == wire(sq_psn, receiving.expected_u) => {
                debug_assert_eq!(self.locate_in_turn(from), Some(receiving.expected));
                Location::At(receiving.expected)
            }
            EndpointKind::Rank { sq_psn, .. } => {
                let ahead = psn.diff(wire(sq_psn, receiving.confirmed_u));
                let Ok(ahead) = u64::try_from(ahead) else {
                    return Location::Done { newest: ahead == -1 };
                };
                let (at, known) = (receiving.confirmed, receiving.known);
                match self.calls.forward(from, Role::Sends, at, ahead, known) {
                    Some(g) => Location::At(g),
                    None => Location::Unknown,
                }
            }
            EndpointKind::Switch => {
                // The pipes of Mode-III may be further apart than PSNs can be compared, but not the packets of one neighbour.
                let (near, lowest) = match self.is_augmented() {
                    true => (receiving.expected, receiving.confirmed),
                    false => (self.base, self.base),
                };
                match self.unfold(near, psn) {
                    Some(g) if g > self.calls.end() => Location::Unknown,
                    Some(g) if g >= lowest => Location::At(g),
                    _ => Location::Done {
                        newest: self.wire_g(receiving.confirmed).prev() == psn,
                    },
                }
            }
        }
    }

    /// The same for the next packet of a host, by a search.
    fn locate_in_turn(&self, from: EndpointId) -> Option<u64> {
        let Receiving {
            confirmed,
            confirmed_u,
            expected_u,
            known,
            ..
        } = self.endpoint(from).receiving;
        let ahead = expected_u - confirmed_u;
        self.calls.forward(from, Role::Sends, confirmed, ahead, known)
    }

    /// The part of TranslateHeader that is equal for all receivers.
    #[inline]
    pub fn header(&self, g: Psn) -> Header<'_, W> {
        Header {
            machine: self,
            g,
            at: self.unfold(self.base, g).unwrap_or(0),
        }
    }

    #[inline]
    fn translate_header(&self, endpoint: EndpointId, g: Psn, at: u64) -> Psn {
        let Some(state) = self.endpoints.get(endpoint.index()) else {
            return g;
        };
        match self.kind(endpoint) {
            EndpointKind::Rank { rq_psn, .. } => {
                let sending = &state.sending;
                let searched =
                    || sending.acked_d + self.calls.count(endpoint, Role::Receives, sending.acked, at);
                let d = if at + 1 == sending.next {
                    debug_assert_eq!(searched(), sending.next_d - 1);
                    sending.next_d - 1
                } else {
                    searched()
                };
                wire(rq_psn, d)
            }
            EndpointKind::Switch => g,
        }
    }
}

/// The part of TranslateHeader that is equal for all receivers of a packet.
#[derive(Clone, Copy, Debug)]
pub struct Header<'a, const W: usize = 1> {
    machine: &'a Translated<W>,
    g: Psn,
    at: u64,
}

impl<const W: usize> Header<'_, W> {
    /// The PSN to `endpoint`, `d` for a rank and `g` for a switch, of a packet of [`super::Effect::Emit`] or `EmitControl`.
    #[inline]
    pub fn psn(&self, endpoint: EndpointId) -> Psn {
        self.machine.translate_header(endpoint, self.g, self.at)
    }
}

pub(super) fn wire(start: Psn, index: u64) -> Psn {
    Psn::new((u64::from(start.value()) + index) as u32)
}
