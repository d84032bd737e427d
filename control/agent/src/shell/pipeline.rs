//! The running dataplane, as the state sees it.

use std::borrow::Cow;

use castnet_rules::{GroupRule, Ipv4Net, Route};
use castnet_wire::{MacAddr, McstId, PortId};
use castnet_worker::engine::{Neighbour, SourceGuard};
use castnet_worker::{Dataplane, InstallError, Installed, InstalledGroup, RouteError, Stopped};

use crate::state::pipeline::{Installer, Pipeline};

/// Methods that the dataplane has under the same names.
macro_rules! as_dataplane {
    ($($name:ident($($value:ident: $of:ty),*) -> $answer:ty;)*) => {
        $(fn $name(&mut self, $($value: $of),*) -> $answer {
            Dataplane::$name(self, $($value),*)
        })*
    };
}

impl Pipeline for &Dataplane {
    fn install_together(&mut self, install: &mut dyn FnMut(&mut dyn Installer)) -> Result<(), Stopped> {
        Dataplane::install_together(self, |installer| install(installer))
    }

    as_dataplane! {
        remove_group(mcst_id: McstId) -> Result<Option<GroupRule>, Stopped>;
        read_rule(mcst_id: McstId, read: &mut dyn FnMut(&GroupRule)) -> Option<()>;
        groups_per_port() -> [usize; PortId::COUNT];
        group(mcst_id: McstId) -> Result<Option<InstalledGroup>, Stopped>;
        set_routes(routes: Vec<Route>) -> Result<(), RouteError>;
        set_routes_within(scope: &[Ipv4Net], routes: Vec<Route>) -> Result<(usize, usize), RouteError>;
        add_route(route: Route) -> Result<bool, RouteError>;
        remove_route(prefix: Ipv4Net) -> Result<bool, Stopped>;
        routes() -> Vec<Route>;
        set_source_guards(guards: Vec<SourceGuard>) -> Result<(), Stopped>;
        neighbours() -> Result<Vec<Neighbour>, Stopped>;
        port_mac(port: PortId) -> Option<MacAddr>;
        is_up(port: PortId) -> bool;
    }
}

impl Installer for castnet_worker::Installer<'_> {
    fn rule(&self, mcst_id: McstId) -> Option<&GroupRule> {
        castnet_worker::Installer::rule(self, mcst_id)
    }

    fn resolve<'r>(&self, rule: &'r GroupRule) -> Result<Cow<'r, GroupRule>, Stopped> {
        castnet_worker::Installer::resolve(self, rule)
    }

    fn install(&mut self, rule: &GroupRule) -> Result<Installed, InstallError> {
        castnet_worker::Installer::install(self, rule)
    }
}
