//! The fast path of multicast: plain data of the source, and plain ACKs.

mod ack;
mod copies;
mod data;

use core::net::Ipv4Addr;

use castnet_wire::{DropReason, FrameBuf};

use super::context::Group;
use crate::address;
use crate::egress::Egress;
use crate::group::headers::Headers;
use crate::group::services::Services;
use crate::observe::trace::{Off, Verdict};
use crate::output::cx::Cx;

impl Group {
    /// Returns the first frame that needs the slow path.
    // Not inlined: one call for each run of frames to the group.
    #[inline(never)]
    pub(super) fn fast_frames<E: Egress>(
        &mut self,
        services: &mut Services,
        cx: &mut Cx<'_, E, Off>,
        slot: u32,
        frames: &mut impl Iterator<Item = E::Buf>,
    ) -> Option<E::Buf> {
        // PSNs are bridged.
        if self.hot.machine.is_switching() {
            return frames.next();
        }
        let repairs = self.hot.machine.repairs();
        let mut previous = None;
        let mut next = frames.next();
        while let Some(frame) = next {
            let headers = Headers::of(&frame);
            let taken = if headers.may_be_data() {
                let sender = |mac| self.hot.sender(cx.ingress, headers.src(), headers.qpn(), mac);
                let from = sender(None);
                let mac = || address::source_mac(frame.head());
                if from.is_none() && headers.is_data() && sender(mac()).is_none() {
                    // Data of no endpoint is dropped here: a flood of it costs no more than member data.
                    let verdict = Verdict::Dropped(DropReason::NotMember);
                    self.cold.exceptions.dropped += 1;
                    services.output.counters.account(cx.ingress, verdict);
                    next = frames.next();
                    continue;
                }
                if from != Some(self.hot.source) {
                    return Some(frame);
                }
                self.try_data(services, cx, (slot, repairs), (frame, &headers), frames)
            } else {
                self.try_ack(services, cx, slot, &mut previous, (frame, &headers))
                    .map(|()| frames.next())
            };
            match taken {
                Ok(frame) => next = frame,
                Err(slow) => return Some(slow),
            }
        }
        None
    }

    /// The same for data that a static core has brought to its `address`, by a port that leads there.
    #[inline(never)]
    pub(crate) fn fast_core_frames<E: Egress>(
        &mut self,
        services: &mut Services,
        cx: &mut Cx<'_, E, Off>,
        (slot, address): (u32, Ipv4Addr),
        frames: &mut impl Iterator<Item = E::Buf>,
    ) -> Option<E::Buf> {
        let (port, repairs) = (self.hot.origin(cx.ingress, address), self.hot.machine.repairs());
        let mut next = frames.next();
        while let Some(frame) = next {
            let headers = Headers::of(&frame);
            let is_from_source = headers.dst() == address
                && self.hot.sender(port, headers.src(), headers.qpn(), None) == Some(self.hot.source);
            if !is_from_source {
                return Some(frame);
            }
            match self.try_data(services, cx, (slot, repairs), (frame, &headers), frames) {
                Ok(frame) => next = frame,
                Err(slow) => return Some(slow),
            }
        }
        None
    }
}
