//! Links and switches of trees that are down. A multicast group gets another tree at once. No collective of a group can end, and its
//! switches only report that they wait: after a grace period it fails with the name of the link, and its ranks find another place.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use castnet_topology::{End, Topology};

use crate::state::fabric::{Facts, Who};
use crate::state::kinds::multicast::replan;
use crate::state::lost_switches::why_dead;
use crate::state::{Core, Due, Effect, Ending, Entry, Event, Phase, Reach, Record};
use castnet_rules::{GroupKind, NextHop};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DownLink {
    /// `link leaf0:2 - spine0:0`, or `switch spine0`.
    pub(crate) name: String,
    /// It is a dead switch, and no link.
    is_switch: bool,
    why: String,
    /// The rank that it leads to, or else the switch below it.
    rank: Option<u16>,
    switch: Option<String>,
    /// The switch whose rule it was found by, and the hosts that are connected to the group by it.
    at: String,
    hosts: Vec<String>,
}

impl DownLink {
    pub(crate) fn words(&self) -> String {
        format!("{} is down: {}", self.name, self.why)
    }

    /// The hosts that it cuts off from the group, and why.
    fn cut_off(&self) -> impl Iterator<Item = (String, String)> {
        let words = self.words();
        let each = self.hosts.iter().cloned();
        each.map(move |host| {
            let why = format!("host {host} is cut off: {words}");
            (host, why)
        })
    }
}

/// Links of a group's tree that are down, by name, with the time since when.
pub(crate) type DownLinks = BTreeMap<String, (Instant, DownLink)>;

/// Groups of which a link may have gone down or come up since they were last looked at.
#[derive(Default)]
pub(crate) struct Changed {
    pub(crate) switches: BTreeSet<String>,
    pub(crate) groups: BTreeSet<String>,
}

/// Notes which links of a group are down, and moves or fails it if its time is up. It is looked at again when its time is up, or when another
/// tree is looked for again.
pub(crate) fn look(core: &mut Core, name: &str) {
    let now = core.now;
    match look_at(core, name, now) {
        Some(at) => core.set_timer(name, Due::Links, at.saturating_duration_since(now)),
        None => core.cancel_timer(name, &Due::Links),
    }
}

fn look_at(core: &mut Core, name: &str, now: Instant) -> Option<Instant> {
    let entry = core.groups.get(name).filter(|e| is_watched(e.record()))?;
    let before = &entry.links_down;
    let down: DownLinks = down(core, entry)
        .into_iter()
        .map(|link| {
            let since = before.get(&link.name).map_or(now, |(since, _)| *since);
            (link.name.clone(), (since, link))
        })
        .collect();
    let patience = core.config.timeouts.link;
    let moves = entry.record().kind.behaviour().outlives_switches();
    let grace = if moves { Duration::ZERO } else { patience };
    let up = down
        .values()
        .map(|(since, link)| (*since + grace, link))
        .min_by_key(|(at, _)| *at);
    let cut_off = cut_off_for_long(entry, &down, now);
    let next = match up {
        Some((_, link)) if moves => {
            let (group, lost) = (name.to_owned(), link.words());
            core.effects.push(Effect::Plan(replan::planning(group, lost)));
            Some(now + patience)
        }
        Some((at, link)) if at <= now => {
            let reason = format!("{} has been down for {grace:?}: {}", link.name, link.why);
            let generation = entry.record().generation;
            if core.may_warn_of(name) {
                tracing::warn!(group = name, reason, "group lost a link");
            }
            let ending = Ending::failed(generation, link.rank, link.switch.as_deref(), reason);
            core.try_step(name, Event::Lost, Some(ending));
            return None;
        }
        up => up.map(|(at, _)| at),
    };
    if *before != down
        && let Some(entry) = core.groups.get_mut(name)
    {
        if down.is_empty() {
            replan::forget_failure(entry);
        }
        entry.links_down = down;
        core.notify(name);
    }
    core.lose_cut_off(name, cut_off);
    next
}

/// Hosts at switches of the tree that have been dead for as long as a receiver may stall, if the group is not to wait for it, and why. Of one
/// whose own link is down, its switch says whether it stalls.
fn cut_off_for_long(entry: &Entry, down: &DownLinks, now: Instant) -> Vec<(String, String)> {
    let Some(policy) = entry.record().multicast().and_then(|kind| kind.settings.on_stall) else {
        return Vec::new();
    };
    let after = Duration::from_millis(policy.after_ms.into());
    let dead = down
        .values()
        .filter(|(since, link)| link.is_switch && *since + after <= now);
    dead.flat_map(|(_, link)| link.cut_off()).collect()
}

/// Hosts that are cut off from the whole network, and why: their own switch is dead, or their own link is down, and not for a moment only.
pub(crate) fn cut_off(core: &Core, entry: &Entry) -> BTreeMap<String, String> {
    let (now, patience) = (core.now, core.config.timeouts.link);
    let is_lost = |since: Instant, link: &DownLink| {
        let reach = core.facts.switches.get(&link.at).map(|(reach, _)| reach);
        link.is_switch || since + patience <= now && reach == Some(&Reach::Up)
    };
    let down = entry.links_down.values();
    let lost = down.filter(|(since, link)| is_lost(*since, link));
    let of_each = lost.flat_map(|(_, link)| {
        let own = move |host: &str| is_at_own_port(&core.facts, entry.record(), &link.at, host);
        link.cut_off().filter(move |(host, _)| own(host))
    });
    of_each.collect()
}

/// Whether a host alone is at its port of a switch, as far as is known. Behind an ordinary switch or a router it may have other ways.
fn is_at_own_port(facts: &Facts, record: &Record, switch: &str, host: &str) -> bool {
    let Some(rule) = record.wanted_rule(switch) else {
        return false;
    };
    let Some((port, _)) = rule.hosts().find(|(_, end)| end.name == host) else {
        return false;
    };
    let is_filed = |file: &Topology| {
        let place = file.attachment(host);
        place.is_some_and(|(_, at, filed)| at == switch && usize::from(filed) == port.index())
    };
    rule.endpoints.iter().filter(|end| end.port == port).count() == 1
        && facts.file.as_ref().is_none_or(is_filed)
}

/// Whether it fails with a link of its tree, or gets another tree.
pub(crate) fn is_watched(record: &Record) -> bool {
    let moves = record.kind.behaviour().outlives_switches();
    record.phase == Phase::Active || record.phase == Phase::Degraded && moves
}

pub(crate) fn down(core: &Core, entry: &Entry) -> Vec<DownLink> {
    let (facts, record) = (&core.facts, entry.record());
    let Some(plan) = &record.plan else {
        return Vec::new();
    };
    let mut all = Vec::new();
    for (switch, rule) in &plan.rules {
        let down = |name, why| DownLink {
            name,
            is_switch: false,
            why,
            rank: None,
            switch: Some(switch.clone()),
            at: switch.clone(),
            hosts: Vec::new(),
        };
        all.extend(why_dead(core, entry, switch).map(|why| DownLink {
            is_switch: true,
            hosts: rule.hosts().map(|(_, host)| host.name.clone()).collect(),
            ..down(format!("switch {switch}"), why)
        }));
        let parent = match &rule.kind {
            GroupKind::Multicast(kind) => Some(kind.source),
            GroupKind::Translated(kind) => kind.parent,
            GroupKind::Forwarding(_) => None,
        };
        for (index, endpoint) in (0..).zip(&rule.endpoints) {
            let near = (switch.as_str(), endpoint.port.index() as u8);
            match &endpoint.next_hop {
                NextHop::Host(host) => all.extend(silent_port(facts, near).map(|why| DownLink {
                    rank: host.rank().map(|part| part.rank),
                    switch: None,
                    hosts: vec![host.name.clone()],
                    ..down(format!("link {} - {}", End::port(switch, near.1), host.name), why)
                })),
                // Each link between switches once: at the lower one.
                NextHop::Switch { name, .. } if parent == Some(index) => {
                    let back = plan.rules.get(name).and_then(|parent| {
                        let mut endpoints = parent.endpoints.iter();
                        endpoints.find(|e| e.next_hop.name() == switch && e.next_hop.rank().is_none())
                    });
                    let Some(back) = back else { continue };
                    let far = (name.as_str(), back.port.index() as u8);
                    let why = silent_port(facts, near)
                        .or_else(|| silent_port(facts, far))
                        .or_else(|| unheard(core, near, far));
                    let name = || format!("link {} - {}", End::port(switch, near.1), End::port(name, far.1));
                    all.extend(why.map(|why| down(name(), why)));
                }
                NextHop::Switch { .. } => {}
            }
        }
    }
    all
}

/// What a switch that cannot be reached has said last does not count: it may have a link again.
pub(crate) fn silent_port(facts: &Facts, (switch, port): (&str, u8)) -> Option<String> {
    let Some((Reach::Up, report)) = facts.switches.get(switch) else {
        return None;
    };
    let port = report.ports.get(&port).filter(|p| !p.up)?;
    Some(format!("port {} of switch {switch} has no link", port.name))
}

/// Without a file, a link is up while one end receives the LLDP of the other. Unreachable switches do not count, nor does a link over which
/// this controller never knew of any: it was planned with a file, and an ordinary switch is between its ends.
fn unheard(core: &Core, near: (&str, u8), far: (&str, u8)) -> Option<String> {
    let (facts, signs) = (&core.facts, &core.signs);
    if facts.file.is_some() || !(signs.has_heard(near.0, far.0) || signs.has_heard(far.0, near.0)) {
        return None;
    }
    let hears = |at: (&str, u8), other: (&str, u8)| match facts.switches.get(at.0) {
        Some((Reach::Up, report)) => Some(
            report
                .neighbours
                .iter()
                .any(|n| matches!(&n.who, Who::Switch { name, .. } if n.port == at.1 && name == other.0)),
        ),
        _ => None,
    };
    let (one, other) = (hears(near, far), hears(far, near));
    let nobody = one != Some(true) && other != Some(true) && (one.is_some() || other.is_some());
    nobody.then(|| "nothing was heard over it by LLDP for too long".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::core::tests::core;
    use crate::state::fabric::tests::{port, switch_seen};
    use crate::state::fabric::{Fabric, PortReport, SwitchReport};

    fn report(neighbour: Option<&str>, up: bool) -> (Reach, SwitchReport) {
        let (number, port) = port("eth7", 7);
        let heard = neighbour.map(|name| switch_seen(number, name, "eth7"));
        let report = SwitchReport {
            ports: [(number, PortReport { up, ..port })].into(),
            neighbours: heard.into_iter().collect(),
        };
        (Reach::Up, report)
    }

    fn facts(a: (Reach, SwitchReport), b: (Reach, SwitchReport)) -> Facts {
        Facts {
            switches: [("a".to_owned(), a), ("b".to_owned(), b)].into(),
            ..Facts::default()
        }
    }

    /// Both ends have heard the other one before.
    fn core_with(facts: Facts) -> Core {
        let mut core = core(|_| {});
        core.facts = Fabric::new(self::facts(report(Some("b"), true), report(Some("a"), true)));
        for (by, other) in [("a", "b"), ("b", "a")] {
            let (_, heard) = report(Some(other), true);
            core.signs.report(&core.facts, by, &heard, core.now);
        }
        core.facts = Fabric::new(facts);
        core
    }

    #[test]
    fn one_ends_word_keeps_a_link_and_silence_of_all_who_speak_ends_it() {
        let at = [("a", 7), ("b", 7)];
        let unheard = |a, b| unheard(&core_with(facts(a, b)), at[0], at[1]).is_some();
        assert!(!unheard(report(Some("b"), true), report(None, true)));
        assert!(!unheard(report(None, true), report(Some("a"), true)));
        assert!(unheard(report(None, true), report(None, true)));
        assert!(
            unheard(report(Some("c"), true), report(None, true)),
            "somebody else"
        );
        // A switch that is away may have heard what it wants.
        let away = |neighbour| (Reach::Down("gone".into()), report(neighbour, true).1);
        assert!(unheard(report(None, true), away(Some("a"))));
        assert!(!unheard(report(Some("b"), true), away(None)));
        assert!(!unheard(away(None), away(None)), "nobody says anything");
        let silent = || facts(report(None, true), report(None, true));
        let mut filed = silent();
        filed.file = Some(castnet_topology::Topology::star(2).unwrap());
        let says = super::unheard(&core_with(filed), at[0], at[1]);
        assert_eq!(says, None, "a file's links need no LLDP");
    }

    /// A controller that was started again without its topology file ended jobs whose switches are joined by ordinary switches.
    #[test]
    fn a_link_over_which_nothing_was_ever_heard_is_not_down() {
        let mut core = core(|_| {});
        core.facts = Fabric::new(facts(report(None, true), report(None, true)));
        assert_eq!(unheard(&core, ("a", 7), ("b", 7)), None);
    }

    #[test]
    fn a_port_without_link_is_named() {
        let mut facts = facts(report(None, false), report(None, true));
        let says = silent_port(&facts, ("a", 7));
        assert_eq!(says.as_deref(), Some("port eth7 of switch a has no link"));
        assert_eq!(silent_port(&facts, ("b", 7)), None);
        assert_eq!(silent_port(&facts, ("a", 8)), None, "not known, not down");
        facts.switches.get_mut("a").unwrap().0 = Reach::Down("gone".into());
        assert_eq!(silent_port(&facts, ("a", 7)), None, "its last word");
    }
}
