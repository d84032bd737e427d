//! What a trace or a capture records.

use core::net::Ipv4Addr;

use crate::{DropReason, McstId, PortId};

/// The frames that a subscriber wants. The filter sees whole frames, even if a capture keeps only their first bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameFilter {
    /// Only frames with this ingress port or, in a capture, this egress port; `None` for all ports.
    pub port: Option<PortId>,
    /// Only frames of this group; `None` for all frames.
    pub group: Option<McstId>,
    /// Only frames from this address, which is also read from malformed frames; `None` for all.
    pub src: Option<Ipv4Addr>,
    /// Only frames to this address, which is also read from malformed frames; `None` for all.
    pub dst: Option<Ipv4Addr>,
    /// Only those that were dropped.
    pub drops: bool,
    /// Only those that were dropped for this reason.
    pub reason: Option<DropReason>,
}
