//! Receivers that the tree of their group does not reach: they are outside, and get the stream from host to host (the co-working that
//! Cepheus V.D leaves to the future).
//!
//! They are members like others: they have joined, have leases, and leave. A member that has the stream passes it on to each of them, from
//! the byte on that it lacks. The source waits until none is outside any more, as each leaves when it has everything.

use std::collections::{BTreeMap, BTreeSet};

use castnet_planner::{Plan, PlanError, Request, RequestKind};
use castnet_topology::{End, Topology};
use serde::{Deserialize, Serialize};

use super::record::{Multicast, Seat};
use crate::error::Refusal;
use crate::state::Core;

/// A plan of a group, without the receivers that no tree reaches.
#[derive(Debug)]
pub(crate) struct Split {
    pub(crate) plan: Plan,
    /// Those receivers, and why.
    pub(crate) outside: Vec<(String, String)>,
}

impl Split {
    pub(crate) fn all(plan: Plan) -> Self {
        let outside = Vec::new();
        Self { plan, outside }
    }
}

/// Plans a group without those of the receivers that no tree reaches, if all of them may be outside. `topology` is the fabric without the
/// switches that have refused the group, and `refusals` says why they have.
///
/// # Errors
/// Others are not reached, or no receiver is left: then the error is that of the whole group.
pub(crate) fn split(
    (topology, fabric, refusals): (&Topology, &Topology, &str),
    mut request: Request,
    may_be_outside: &BTreeSet<String>,
    mut outside: Vec<(String, String)>,
    plan: impl Fn(&Request) -> Result<Plan, PlanError>,
) -> Result<Split, PlanError> {
    take_out(&mut request, &outside);
    let mut first = None;
    loop {
        let error = match plan(&request) {
            Ok(plan) => return Ok(Split { plan, outside }),
            Err(error) => error,
        };
        let mut more = not_reached((topology, fabric, refusals), &request, &error);
        more.retain(|(host, _)| may_be_outside.contains(host));
        if more.is_empty() || matches!(error, PlanError::NoReceivers { .. }) {
            return Err(first.unwrap_or(error));
        }
        first.get_or_insert(error);
        take_out(&mut request, &more);
        outside.append(&mut more);
    }
}

/// The receivers that an error is about, and why.
fn not_reached(
    (topology, fabric, refusals): (&Topology, &Topology, &str),
    request: &Request,
    error: &PlanError,
) -> Vec<(String, String)> {
    let RequestKind::Multicast(rule) = &request.kind else {
        return Vec::new();
    };
    let source = request.members.get(usize::from(rule.source));
    let from = source.map_or("", |source| source.host.as_str());
    let one = |host: &str| vec![(host.to_owned(), error.reason())];
    match error {
        PlanError::NoPath { to, .. } => {
            // All at once: a switch may have cut off many.
            let cut = |member: &castnet_planner::Member| {
                let cut = topology.cut(from, &member.host)?;
                let reason = match fabric.cut(from, &member.host) {
                    None => refusals.to_owned(),
                    Some(_) => {
                        let (field, from, to) = ("members".into(), from.into(), member.host.clone());
                        PlanError::NoPath { field, from, to, cut }.reason()
                    }
                };
                Some((member.host.clone(), reason))
            };
            let all: Vec<_> = request
                .members
                .iter()
                .filter(|m| m.host != from)
                .filter_map(cut)
                .collect();
            if all.is_empty() { one(to) } else { all }
        }
        PlanError::UnknownHost { host, .. } => one(host),
        PlanError::PmtuTooLarge { a, b, .. } => {
            let mut hosts = [a, b].into_iter().filter(|end| matches!(end, End::Host(_)));
            hosts.next().map_or_else(Vec::new, |end| one(end.node()))
        }
        _ => Vec::new(),
    }
}

fn take_out(request: &mut Request, hosts: &[(String, String)]) {
    let hosts: BTreeSet<&str> = hosts.iter().map(|(host, _)| host.as_str()).collect();
    let RequestKind::Multicast(rule) = &mut request.kind else {
        return;
    };
    let source = request
        .members
        .get(usize::from(rule.source))
        .map(|m| m.host.clone());
    request.members.retain(|m| !hosts.contains(m.host.as_str()));
    let at = request
        .members
        .iter()
        .position(|m| Some(&m.host) == source.as_ref());
    rule.source = at.unwrap_or_default() as u16;
}

/// A receiver that the tree does not reach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outside {
    /// The host.
    pub host: String,
    /// Why it is outside.
    pub reason: String,
    /// The member that passes the stream on to it; empty: there is none.
    pub via: String,
    /// Grows with each choice of `via` in the group.
    pub number: u64,
}

impl Multicast {
    /// Hosts that may be outside: receivers that can get the stream from a member, if the source waits for them.
    pub(crate) fn may_be_outside(&self) -> BTreeSet<String> {
        let co_works = |host: &str| self.seat(host).is_some_and(|seat| seat.co_works);
        if self.settings.any_source.is_some() || !co_works(&self.source) {
            return BTreeSet::new();
        }
        let receivers = self.members.iter().filter(|m| m.host != self.source);
        receivers
            .map(|m| m.host.clone())
            .filter(|host| co_works(host))
            .collect()
    }

    pub(crate) fn is_outside(&self, host: &str) -> bool {
        self.outside.iter().any(|out| out.host == host)
    }

    /// The receiver outside for whom this was the number of a choice, and who passes the stream on to it.
    pub(crate) fn ends_outside(&self, number: u64) -> Option<Vec<&str>> {
        let out = self.outside.iter().find(|out| out.number == number)?;
        Some(vec![&out.host, &out.via])
    }

    fn seat(&self, host: &str) -> Option<&Seat> {
        self.member(host)?.1.state.joined()
    }

    /// Puts receivers outside of the tree, each with the reason. `None`, and nothing has changed: no receiver in the tree can pass the stream
    /// on.
    pub(crate) fn put_outside(&mut self, hosts: &[(String, String)], topology: &Topology) -> Option<()> {
        let before = self.outside.clone();
        self.outside.extend(hosts.iter().map(|(host, reason)| Outside {
            host: host.clone(),
            reason: reason.clone(),
            via: String::new(),
            number: 0,
        }));
        self.choose_via(topology);
        if self.outside.iter().any(|out| out.via.is_empty()) {
            self.outside = before;
            return None;
        }
        Some(())
    }

    /// A member is none any more, or is no longer in the group: it is not outside, and passes nothing on.
    pub(crate) fn forget_outside(&mut self, host: &str, topology: &Topology) {
        self.outside.retain(|out| out.host != host);
        if self.outside.iter().any(|out| out.via == host) {
            self.outside
                .iter_mut()
                .filter(|out| out.via == host)
                .for_each(|out| out.via.clear());
            self.choose_via(topology);
        }
    }

    /// Chooses who passes the stream on to those to whom nobody does. Never the source: its link is full with what it sends, while a
    /// receiver has its own direction free. Each member passes it on to one other before any does to two, so that all get it at the rate of
    /// a link; then who has it over the fewest hosts, then who is nearest, then the first by name. A receiver outside passes it on, too, but
    /// never to one that it gets it from.
    fn choose_via(&mut self, topology: &Topology) {
        for at in 0..self.outside.len() {
            if !self.outside[at].via.is_empty() {
                continue;
            }
            let to = self.outside[at].host.clone();
            let (depths, distances) = (self.depths(), topology.distances(&to));
            let load = |host: &str| self.outside.iter().filter(|out| out.via == host).count();
            let passes_on = self.members.iter().map(|m| m.host.as_str()).filter(|host| {
                *host != self.source
                    && self
                        .seat(host)
                        .is_some_and(|seat| seat.passes_on && seat.late.is_none())
            });
            let candidates = passes_on.filter_map(|host| {
                let depth = *depths.get(host)?;
                let distance = topology.distance(host, &distances).unwrap_or(u32::MAX);
                Some((load(host), depth, distance, host))
            });
            let via = candidates.min().map(|(.., host)| host.to_owned());
            self.outside_number += 1;
            let (out, number) = (&mut self.outside[at], self.outside_number);
            (out.via, out.number) = (via.unwrap_or_default(), number);
        }
    }

    /// Over how many hosts each receiver has the stream: 0 in the tree. None for those that nobody passes it on to.
    fn depths(&self) -> BTreeMap<&str, usize> {
        let via: BTreeMap<&str, &str> = self
            .outside
            .iter()
            .map(|out| (out.host.as_str(), out.via.as_str()))
            .collect();
        let depth = |host| {
            let chain = std::iter::successors(Some(host), |host| via.get(host).copied());
            let hosts: Vec<&str> = chain.take(via.len() + 2).collect();
            let from = hosts
                .last()
                .filter(|from| !via.contains_key(**from) && !from.is_empty())?;
            self.seat(from).map(|_| hosts.len() - 1)
        };
        let receivers = self.members.iter().map(|m| m.host.as_str());
        receivers.filter_map(|host| Some((host, depth(host)?))).collect()
    }
}

impl Core {
    /// A member does not reach a receiver outside to which it passes the stream on.
    pub(crate) fn unreached(
        &mut self,
        group: &str,
        (via, receiver, number): (&str, &str, u64),
        reason: &str,
    ) -> Result<(), Refusal> {
        self.member(group, via)?;
        let (_, kind) = self.multicast(group)?;
        let present =
            |out: &Outside| (out.host.as_str(), out.via.as_str(), out.number) == (receiver, via, number);
        if !kind.outside.iter().any(present) {
            return Ok(());
        }
        let reason = format!("host {receiver} is outside of the tree, and {via} does not reach it: {reason}");
        self.lose(group, receiver, reason)
    }
}

#[cfg(test)]
mod tests {
    use castnet_rules::HostEndpoint;
    use castnet_wire::Psn;
    use proptest::prelude::*;

    use super::*;
    use crate::state::Joining;
    use crate::state::core::tests::end;
    use crate::state::kinds::multicast::tests::request;

    /// h0 sends to the others, all of whom have joined.
    fn group(receivers: u8) -> Multicast {
        let mut group = Multicast::new(request((0..=receivers).map(end)), Psn::new(0), 100);
        for member in std::sync::Arc::make_mut(&mut group.members) {
            if let Joining::Joined(seat) = &mut std::sync::Arc::make_mut(member).state {
                (seat.co_works, seat.passes_on) = (true, true);
            }
        }
        group
    }

    fn via(group: &Multicast) -> Vec<(&str, &str)> {
        let each = group.outside.iter();
        each.map(|out| (out.host.as_str(), out.via.as_str())).collect()
    }

    fn put(group: &mut Multicast, hosts: &[&str]) -> bool {
        let hosts: Vec<_> = hosts.iter().map(|h| (h.to_string(), "full".to_owned())).collect();
        group.put_outside(&hosts, &Topology::new()).is_some()
    }

    fn remove(group: &mut Multicast, host: &str) {
        std::sync::Arc::make_mut(&mut group.members).retain(|m| m.host != host);
        group.forget_outside(host, &Topology::new());
    }

    #[test]
    fn each_member_passes_the_stream_on_once_before_any_does_twice() {
        let mut group = group(5);
        assert!(put(&mut group, &["h3", "h4", "h5"]));
        assert_eq!(via(&group), [("h3", "h1"), ("h4", "h2"), ("h5", "h3")]);
        let numbers: Vec<u64> = group.outside.iter().map(|out| out.number).collect();
        assert_eq!(numbers, [1, 2, 3]);
        assert_eq!(group.ends_outside(3), Some(vec!["h5", "h3"]));
        assert_eq!(group.ends_outside(4), None);
        // Those that had it from a member that is gone get it from another one; the rest stays.
        remove(&mut group, "h1");
        assert_eq!(via(&group), [("h3", "h4"), ("h4", "h2"), ("h5", "h3")]);
        assert_eq!(group.outside[0].number, 4);
        remove(&mut group, "h4");
        assert_eq!(via(&group), [("h3", "h2"), ("h5", "h3")]);
        remove(&mut group, "h2");
        assert_eq!(via(&group)[0], ("h3", ""), "nobody in the tree is left");
    }

    #[test]
    fn who_cannot_pass_on_is_not_chosen_and_the_source_never() {
        let mut group = group(3);
        for member in std::sync::Arc::make_mut(&mut group.members).iter_mut().take(2) {
            if let Joining::Joined(seat) = &mut std::sync::Arc::make_mut(member).state {
                seat.passes_on = member_is("h0", &seat.ends.endpoint);
            }
        }
        assert!(put(&mut group, &["h3"]));
        assert_eq!(via(&group), [("h3", "h2")]);
        assert!(!put(&mut group, &["h2"]), "only h1 is left in the tree");
        assert_eq!(via(&group), [("h3", "h2")], "nothing has changed");
    }

    fn member_is(name: &str, end: &HostEndpoint) -> bool {
        end.name == name
    }

    #[test]
    fn a_near_member_is_preferred() {
        let fabric = Topology::leaf_spine(2, 1, 3).expect("a fabric");
        let mut group = group(5);
        // h0 to h2 are at one leaf, h3 to h5 at the other.
        let hosts = [("h5".to_owned(), "full".to_owned())];
        assert_eq!(group.put_outside(&hosts, &fabric), Some(()));
        assert_eq!(via(&group), [("h5", "h3")]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        /// For any receivers outside, and any members that leave: each receiver that is left gets the stream from a member in the tree, directly or
        /// over other members.
        #[test]
        fn all_have_the_stream_from_the_tree(
            receivers in 2u8..12, outside in proptest::collection::btree_set(1u8..12, 1..8), gone in proptest::collection::vec(1u8..12, 0..10),
        ) {
            let mut group = group(receivers);
            let outside: Vec<String> = outside.iter().filter(|n| **n < receivers).map(|n| format!("h{n}")).collect();
            let names: Vec<&str> = outside.iter().map(String::as_str).collect();
            prop_assert!(put(&mut group, &names));
            for host in gone {
                remove(&mut group, &format!("h{host}"));
                let inside = group.members.iter().filter(|m| m.host != "h0" && !group.is_outside(&m.host)).count();
                let depths = group.depths();
                for out in &group.outside {
                    prop_assert_eq!(depths.contains_key(out.host.as_str()), inside > 0, "{:?}", group.outside);
                    prop_assert!(out.via != "h0");
                }
            }
        }
    }
}
