//! Groups of hosts, and the planner's tree of one.

use castnet_planner::{LinkLoad, Member, PlanError, Request, RoomTable, Tree, plan};
use castnet_rules::MulticastRule;
use castnet_topology::{End, Link, Topology};
use castnet_wire::{McstId, Pmtu, Qpn};

/// Name of a host by its number, as the builders of fabrics give it.
pub(super) fn host(number: u32) -> String {
    format!("h{number}")
}

/// The tree of a multicast group in a fabric without other groups. The first member is the source.
pub(super) fn planned(t: &Topology, members: &[u32]) -> Result<Tree, PlanError> {
    planned_beside(t, &LinkLoad::new(), members)
}

/// The tree of a multicast group beside others. The first member is the source.
pub(super) fn planned_beside(t: &Topology, load: &LinkLoad, members: &[u32]) -> Result<Tree, PlanError> {
    let members = members
        .iter()
        .map(|number| Member::new(&host(*number), Qpn::new(0x11)));
    let mcst_id = McstId([10, 255, 0, 1].into());
    let rule = MulticastRule::default();
    let request = Request::multicast("group", mcst_id, Pmtu::B4096, members.collect(), rule);
    let plan = plan(t, load, &RoomTable::new(), &request)?;
    Ok(plan.tree)
}

/// Whether a link is between two switches.
pub(super) fn is_inner(link: &Link) -> bool {
    [&link.a, &link.b]
        .iter()
        .all(|end| matches!(end, End::Switch { .. }))
}
