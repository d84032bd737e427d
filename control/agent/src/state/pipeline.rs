//! The switch below the agent.

use std::borrow::Cow;

use castnet_rules::{GroupRule, Ipv4Net, Route};
use castnet_wire::{MacAddr, McstId, PortId};
use castnet_worker::engine::{Neighbour, SourceGuard};
use castnet_worker::{InstallError, Installed, InstalledGroup, RouteError, Stopped};

/// What the agent asks of a switch, and commands it. The methods are those of [`castnet_worker::Dataplane`].
#[allow(missing_docs, reason = "the methods of the dataplane are documented there")]
pub trait Pipeline {
    /// Calls `install` once, and publishes what it has installed.
    fn install_together(&mut self, install: &mut dyn FnMut(&mut dyn Installer)) -> Result<(), Stopped>;
    fn remove_group(&mut self, mcst_id: McstId) -> Result<Option<GroupRule>, Stopped>;
    fn read_rule(&mut self, mcst_id: McstId, read: &mut dyn FnMut(&GroupRule)) -> Option<()>;
    fn group(&mut self, mcst_id: McstId) -> Result<Option<InstalledGroup>, Stopped>;
    fn groups_per_port(&mut self) -> [usize; PortId::COUNT];
    fn set_routes(&mut self, routes: Vec<Route>) -> Result<(), RouteError>;
    fn set_routes_within(
        &mut self,
        scope: &[Ipv4Net],
        routes: Vec<Route>,
    ) -> Result<(usize, usize), RouteError>;
    fn add_route(&mut self, route: Route) -> Result<bool, RouteError>;
    fn remove_route(&mut self, prefix: Ipv4Net) -> Result<bool, Stopped>;
    fn routes(&mut self) -> Vec<Route>;
    fn set_source_guards(&mut self, guards: Vec<SourceGuard>) -> Result<(), Stopped>;
    fn neighbours(&mut self) -> Result<Vec<Neighbour>, Stopped>;
    fn port_mac(&mut self, port: PortId) -> Option<MacAddr>;
    fn is_up(&mut self, port: PortId) -> bool;
}

/// Installs groups that are published together, as [`castnet_worker::Installer`].
#[allow(missing_docs, reason = "the methods of the installer are documented there")]
pub trait Installer {
    fn rule(&self, mcst_id: McstId) -> Option<&GroupRule>;
    fn resolve<'r>(&self, rule: &'r GroupRule) -> Result<Cow<'r, GroupRule>, Stopped>;
    fn install(&mut self, rule: &GroupRule) -> Result<Installed, InstallError>;
}
