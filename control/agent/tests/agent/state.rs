//! The state of an agent without its shell, over a switch that only keeps what it is told.

use std::borrow::Cow;
use std::collections::BTreeMap;

use castnet_agent::state::core::Core;
use castnet_agent::state::pipeline::{Installer, Pipeline};
use castnet_agent::state::refusal::Refusal;
use castnet_proto::convert::SourceGuardParts;
use castnet_proto::v1::{ControllerTerm, InstallOutcome};
use castnet_rules::{GroupRule, Ipv4Net, Route};
use castnet_wire::{MacAddr, McstId, PortId};
use castnet_worker::engine::{InstallError as Refused, Neighbour, SourceGuard};
use castnet_worker::{InstallError, Installed, InstalledGroup, RouteError, Stopped};

use crate::agent::port;
use crate::bulk::numbered;

const GROUPS_MAX: usize = 3;

#[derive(Default)]
struct Switch {
    groups: BTreeMap<McstId, GroupRule>,
    routes: BTreeMap<Ipv4Net, Route>,
    guards: usize,
    published: usize,
}

impl Installer for Switch {
    fn rule(&self, mcst_id: McstId) -> Option<&GroupRule> {
        self.groups.get(&mcst_id)
    }

    fn resolve<'r>(&self, rule: &'r GroupRule) -> Result<Cow<'r, GroupRule>, Stopped> {
        Ok(Cow::Borrowed(rule))
    }

    fn install(&mut self, rule: &GroupRule) -> Result<Installed, InstallError> {
        if self.groups.len() >= GROUPS_MAX {
            return Err(Refused::GroupsFull { max: GROUPS_MAX }.into());
        }
        self.groups.insert(rule.mcst_id, rule.clone());
        Ok(Installed::New { worker: 0 })
    }
}

impl Pipeline for Switch {
    fn install_together(&mut self, install: &mut dyn FnMut(&mut dyn Installer)) -> Result<(), Stopped> {
        install(self);
        self.published += 1;
        Ok(())
    }

    fn remove_group(&mut self, mcst_id: McstId) -> Result<Option<GroupRule>, Stopped> {
        Ok(self.groups.remove(&mcst_id))
    }

    fn read_rule(&mut self, mcst_id: McstId, read: &mut dyn FnMut(&GroupRule)) -> Option<()> {
        self.groups.get(&mcst_id).map(read)
    }

    fn group(&mut self, _: McstId) -> Result<Option<InstalledGroup>, Stopped> {
        Ok(None)
    }

    fn groups_per_port(&mut self) -> [usize; PortId::COUNT] {
        [0; PortId::COUNT]
    }

    fn set_routes(&mut self, routes: Vec<Route>) -> Result<(), RouteError> {
        self.routes = routes.into_iter().map(|route| (route.prefix, route)).collect();
        Ok(())
    }

    fn set_routes_within(&mut self, _: &[Ipv4Net], routes: Vec<Route>) -> Result<(usize, usize), RouteError> {
        self.set_routes(routes)?;
        Ok((self.routes.len(), 0))
    }

    fn add_route(&mut self, route: Route) -> Result<bool, RouteError> {
        Ok(self.routes.insert(route.prefix, route).is_some())
    }

    fn remove_route(&mut self, prefix: Ipv4Net) -> Result<bool, Stopped> {
        Ok(self.routes.remove(&prefix).is_some())
    }

    fn routes(&mut self) -> Vec<Route> {
        self.routes.values().cloned().collect()
    }

    fn set_source_guards(&mut self, guards: Vec<SourceGuard>) -> Result<(), Stopped> {
        self.guards = guards.len();
        Ok(())
    }

    fn neighbours(&mut self) -> Result<Vec<Neighbour>, Stopped> {
        Ok(Vec::new())
    }

    fn port_mac(&mut self, _: PortId) -> Option<MacAddr> {
        None
    }

    fn is_up(&mut self, _: PortId) -> bool {
        true
    }
}

fn term(owner: &str) -> ControllerTerm {
    ControllerTerm {
        owner: owner.into(),
        epoch: 1,
        instance: 1,
        address: format!("http://{owner}:7470"),
        in_memory: false,
    }
}

/// Group 1 of "us", and group 2 of an operator.
fn two_groups() -> (Core, Switch) {
    let (mut core, mut switch) = (Core::default(), Switch::default());
    for (n, caller, owner) in [(1, Some(&term("us")), "us"), (2, None, "")] {
        let installed = core.install_group(&mut switch, caller, owner, &numbered(n));
        assert_eq!(installed, Ok(InstallOutcome::Installed));
    }
    (core, switch)
}

#[test]
fn a_group_is_removed_for_its_owner_and_its_generation() {
    let (us, them) = (&term("us"), &term("them"));
    for (n, caller, owner, generation, refused) in [
        (1, Some(them), None, None, r#"of "us", not of "them""#),
        (1, Some(us), Some("them"), None, r#"of "us", not of "them""#),
        (1, None, Some(""), None, r#"of "us", not of an operator"#),
        (1, Some(us), None, Some(7), "generation 1, not 7"),
        (2, Some(us), None, None, r#"of an operator, not of "us""#),
        (1, Some(us), None, Some(1), ""),
        // Who purges names the owner.
        (1, Some(them), Some("us"), None, ""),
        (2, Some(us), Some(""), None, ""),
        (1, None, None, None, ""),
        (2, None, None, None, ""),
    ] {
        let ((mut core, mut switch), mcst_id) = (two_groups(), numbered(n).mcst_id);
        let refusal = core
            .remove_group(&mut switch, caller, mcst_id, owner, generation)
            .err();
        let refusal = refusal.map(|refusal| refusal.to_string()).unwrap_or_default();
        assert!(refusal.ends_with(refused), "{n}: {refusal:?}, not {refused:?}");
        let stays = !refused.is_empty();
        assert_eq!(switch.groups.contains_key(&mcst_id), stays, "{n}: {refusal:?}");
        assert_eq!(core.owner_of(mcst_id), if stays && n == 1 { "us" } else { "" });
        let nothing = core.remove_group(&mut switch, caller, numbered(3).mcst_id, owner, generation);
        assert_eq!(nothing, Ok(false));
    }
}

#[test]
fn rules_of_a_request_are_installed_in_order_and_published_together() {
    let (us, them) = (&term("us"), &term("them"));
    let rules = || [1, 2, 3, 4].map(|n| Ok(numbered(n))).to_vec();
    let (mut core, mut switch) = two_groups();
    let mut install = |stop| {
        let installed = core.install_groups(&mut switch, Some(us), "us", rules(), stop);
        installed.unwrap()
    };
    assert!(matches!(
        install(true)[..],
        [Ok(InstallOutcome::Unchanged), Err(Refusal::AddressTaken { .. })]
    ));
    assert!(matches!(
        install(false)[2..],
        [Ok(InstallOutcome::Installed), Err(Refusal::Install(..))]
    ));
    let owners = [1, 2, 3, 4].map(|n| core.owner_of(numbered(n).mcst_id));
    assert_eq!(owners, ["us", "", "us", ""]);
    let refused = core.install_groups(&mut switch, Some(them), "us", rules(), false);
    assert!(matches!(refused, Err(Refusal::ForOthers { .. })), "{refused:?}");
    assert_eq!(switch.published, 4);
}

#[test]
fn guards_are_bounded_and_end_with_an_owner_that_is_forgotten() {
    let (mut core, mut switch) = (Core::default(), Switch::default());
    let guard = SourceGuardParts {
        hosts: vec![(port(0), [10, 0, 0, 1].into())],
        prefixes: Vec::new(),
    };
    core.set_source_guard(&mut switch, None, guard.clone()).unwrap();
    let mut set = |n: usize, guard: &SourceGuardParts| {
        core.set_source_guard(&mut switch, Some(&term(&format!("c{n}"))), guard.clone())
    };
    for n in 1..64 {
        set(n, &guard).unwrap();
    }
    assert_eq!(set(64, &guard), Err(Refusal::GuardsFull));
    // The first owner is forgotten.
    set(65, &guard).unwrap();
    set(65, &SourceGuardParts::default()).unwrap();
    assert_eq!(switch.guards, 63);
}

#[test]
fn routes_of_an_owner_that_is_forgotten_are_free() {
    let (mut core, mut switch) = (Core::default(), Switch::default());
    let scope: Ipv4Net = "239.200.0.0/16".parse().unwrap();
    let route = Route {
        prefix: "239.200.0.1/32".parse().unwrap(),
        next_hops: Vec::new(),
        replicate: false,
        copy_to: vec![[10, 1, 0, 7].into()],
    };
    let mut set = |core: &mut Core, owner: &str| {
        core.set_multicast_routes(&mut switch, Some(&term(owner)), &[scope], vec![route.clone()])
    };
    set(&mut core, "a").unwrap();
    let taken = set(&mut core, "b").unwrap_err();
    assert!(matches!(taken, Refusal::RouteTaken { owner, .. } if owner == "a"));
    for n in 0..64 {
        core.check(Some(&term(&format!("c{n}")))).unwrap();
    }
    set(&mut core, "b").unwrap();
    assert_eq!(core.routes(&mut switch)[0].owner, "b");
}
