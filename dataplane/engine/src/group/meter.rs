//! The meter of a group with a rate limit: data of hosts is metered where it enters the tree, at the switch next to the host. Feedback and
//! control messages are not metered. The fast paths take only what needs no decision: frames after which the bucket is at least half full.

use castnet_rules::{Endpoint, GroupRule};
use castnet_wire::ipv4::ECN;
use castnet_wire::{DropReason, FrameBuf, RoceHeader, TokenBucket, ipv4};

use crate::egress::Egress;
use crate::observe::trace::{Observer, Stage, Step, Verdict};
use crate::output::cx::Cx;

/// The decision about a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Metered {
    Within,
    /// Below half, and the sender understands marks (ECT): it should slow down before frames are lost.
    Marked,
    Over,
}

/// The meter for data of an endpoint; `None` without a limit, and for a switch, whose data was metered before.
pub(crate) fn of(rule: &GroupRule, endpoint: &Endpoint) -> Option<TokenBucket> {
    let limit = rule.rate_limit.filter(|_| endpoint.next_hop.host().is_some());
    limit.map(TokenBucket::new)
}

/// Meters a frame of `bytes` bytes.
pub(crate) fn meter<E: Egress, O: Observer>(
    cx: &mut Cx<'_, E, O>,
    bucket: &mut TokenBucket,
    header: &RoceHeader,
    bytes: usize,
) -> Metered {
    bucket.refill(cx.now);
    if !bucket.take(bytes as u64) {
        return Metered::Over;
    }
    if !bucket.is_low() || !matches!(header.tos & ECN, 1 | 2) {
        return Metered::Within;
    }
    cx.observer.step(|| {
        let why = "the sender uses more than half of what its rate limit allows at once";
        Step::new(Stage::Meter, "congestion experienced", why)
    });
    Metered::Marked
}

/// Drops a frame that is over the limit.
#[cold]
pub(crate) fn drop_over<E: Egress, O: Observer>(
    cx: &mut Cx<'_, E, O>,
    rule: &GroupRule,
    bytes: usize,
) -> Verdict {
    cx.drop(Stage::Meter, DropReason::OverRate, || {
        let limit = rule
            .rate_limit
            .map_or_else(String::new, |limit| limit.to_string());
        format!("{bytes} bytes are more than the group's rate limit allows now: {limit}")
    })
}

/// Writes the mark.
#[cold]
pub(crate) fn mark(frame: &mut impl FrameBuf, header: &RoceHeader) {
    if let Some(packet) = frame.head_mut().get_mut(header.l3..) {
        ipv4::mark_congestion(packet);
    }
}
