//! The plan of a group without one of its members.

use std::collections::BTreeMap;

use castnet_rules::{GroupKind, GroupRule, NextHop};

use crate::state::Plan;

/// The plan without a receiver, and without the switches that served only it.
pub(super) fn without(plan: &Plan, host: &str) -> Plan {
    let mut plan = plan.clone();
    remove(&mut plan.rules, |hop| hop.host().is_some_and(|h| h.name == host));
    // From the leaves on: a switch below which there is nothing left is no child of the one above it.
    for switch in plan.tree.iter().rev() {
        if plan.rules.get(&switch.name).is_some_and(is_childless) {
            plan.rules.remove(&switch.name);
            remove(&mut plan.rules, |hop| {
                hop.host().is_none() && hop.name() == switch.name
            });
        }
    }
    plan.tree.retain(|switch| plan.rules.contains_key(&switch.name));
    plan
}

/// Its only endpoint is the one towards the source.
fn is_childless(rule: &GroupRule) -> bool {
    rule.endpoints.len() <= 1
}

fn remove(rules: &mut BTreeMap<String, GroupRule>, goes: impl Fn(&NextHop) -> bool) {
    for rule in rules.values_mut() {
        while let Some(at) = rule.endpoints.iter().position(|e| goes(&e.next_hop)) {
            rule.endpoints.remove(at);
            if let GroupKind::Multicast(kind) = &mut rule.kind
                && at < usize::from(kind.source)
            {
                kind.source -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use castnet_rules::{Endpoint, MulticastRule};
    use castnet_wire::{MacAddr, PortId};

    use super::*;
    use crate::state::core::tests::{self, end};
    use crate::state::record::TreeSwitch;

    fn host(port: u8) -> Endpoint {
        Endpoint::new(PortId::new(port).unwrap(), NextHop::Host(end(port)))
    }

    fn switch(port: u8, name: &str) -> Endpoint {
        Endpoint::new(
            PortId::new(port).unwrap(),
            NextHop::switch(name.into(), MacAddr([2, 0, 0, 0, 1, port])),
        )
    }

    fn rule(endpoints: Vec<Endpoint>, source: u16) -> GroupRule {
        let kind = MulticastRule {
            source,
            ..MulticastRule::default()
        };
        GroupRule {
            endpoints,
            ..tests::rule(kind)
        }
    }

    /// h0 sends: a has h0, h1 and leads to b, which leads to c with h2 and h3.
    fn plan() -> Plan {
        let tree = [("a", None), ("b", Some("a")), ("c", Some("b"))];
        let tree = tree.map(|(name, parent)| TreeSwitch {
            name: name.into(),
            parent: parent.map(String::from),
            via: Vec::new(),
        });
        let rules = [
            ("a", rule(vec![host(1), switch(5, "b"), host(0)], 2)),
            ("b", rule(vec![switch(1, "c"), switch(2, "a")], 1)),
            ("c", rule(vec![host(2), host(3), switch(4, "b")], 2)),
        ];
        Plan {
            tree: tree.into(),
            rules: rules.map(|(name, rule)| (name.to_owned(), rule)).into(),
            ..Plan::default()
        }
    }

    /// The endpoints of each switch, the one of the source first.
    fn endpoints(plan: &Plan) -> Vec<String> {
        let each = plan.rules.iter().map(|(name, rule)| {
            let source = rule.upstream().unwrap().next_hop.name();
            let all = rule.endpoints.iter().map(|e| e.next_hop.name());
            let others: Vec<&str> = all.filter(|name| *name != source).collect();
            format!("{name}: {source} -> {}", others.join(" "))
        });
        each.collect()
    }

    #[test]
    fn only_what_the_member_alone_needs_goes() {
        let all = plan();
        assert_eq!(endpoints(&all), ["a: h0 -> h1 b", "b: a -> c", "c: b -> h2 h3"]);
        let less = without(&all, "h2");
        assert_eq!(endpoints(&less), ["a: h0 -> h1 b", "b: a -> c", "c: b -> h3"]);
        let least = without(&less, "h3");
        assert_eq!(endpoints(&least), ["a: h0 -> h1"]);
        assert_eq!(least.tree.len(), 1);
        assert_eq!(
            endpoints(&without(&all, "h1")),
            ["a: h0 -> b", "b: a -> c", "c: b -> h2 h3"]
        );
    }
}
