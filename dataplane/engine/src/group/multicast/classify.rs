//! Finds the ingress path of a frame to a multicast group, by an exact match on destination QPN, source address and ingress port, and
//! on the source MAC address if the rule requires it (contract C4).

use core::net::Ipv4Addr;

use castnet_collective::PathId;
use castnet_rules::NextHop;
use castnet_wire::{DropReason, MacAddr, PortId, RoceHeader};

use super::context::{Group, Hot};
use crate::group::classify::{Class, class, explain_not_member};

/// Returns the ingress path of a frame and its class, or the reason for its drop.
#[inline]
pub(crate) fn classify(
    hot: &Hot,
    ingress: PortId,
    src: Ipv4Addr,
    mac: Option<MacAddr>,
    header: &RoceHeader,
) -> Result<(PathId, Class), DropReason> {
    let path = hot
        .sender(ingress, src, header.bth.dest_qp, mac)
        .ok_or(DropReason::NotMember)?;
    class(header)
        .map(|class| (path, class))
        .ok_or(DropReason::NotMulticastable)
}

/// Explains why `classify` refused a frame.
pub(crate) fn explain(
    group: &Group,
    ingress: PortId,
    src: Ipv4Addr,
    mac: Option<MacAddr>,
    header: &RoceHeader,
) -> String {
    if group.hot.sender(ingress, src, header.bth.dest_qp, mac).is_some() {
        return format!("{} cannot be multicast", header.bth.opcode);
    }
    let rule = &group.cold.rule;
    let at = group
        .hot
        .paths_at(ingress)
        .filter_map(|path| rule.endpoints.get(path.index()));
    explain_not_member(at, ingress, NextHop::ip, (src, mac), header.bth.dest_qp)
}
