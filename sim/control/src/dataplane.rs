//! The dataplane of a simulated switch: what the control of a worker does, over an engine of the network of frames.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use castnet_agent::state::pipeline::{Installer, Pipeline};
use castnet_rules::{GroupIndex, GroupRule, Ipv4Net, NamedBy, Route, RuleSet};
use castnet_sim::Simulation;
use castnet_wire::{MacAddr, McstId, PortId};
use castnet_worker::engine::{Context, GroupKey, Neighbour, PortInfo, SourceGuard, Tables, port_count};
use castnet_worker::{InstallError, Installed, InstalledGroup, RouteError, Stopped, SwitchEventKind};

/// What is installed at a switch.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) rules: BTreeMap<McstId, GroupRule>,
    index: GroupIndex,
    pub(crate) routes: BTreeMap<Ipv4Net, Route>,
    guards: Vec<SourceGuard>,
    /// What clients have not been told yet.
    pub(crate) events: Vec<SwitchEventKind>,
}

/// The dataplane of a switch while the network stands still.
pub(crate) struct Dataplane<'s> {
    pub(crate) frames: &'s mut Simulation,
    pub(crate) switch: &'s str,
    pub(crate) state: &'s mut State,
}

impl Dataplane<'_> {
    pub(crate) fn infos(&self) -> Vec<PortInfo> {
        let engine = self.frames.engine(self.switch);
        engine.map_or_else(Vec::new, |engine| engine.config().ports.clone())
    }

    fn publish(&mut self, change: impl FnOnce(&mut Tables)) -> Result<(), Stopped> {
        let published = self.frames.with_engine(self.switch, |engine, now| {
            let mut tables = Tables::clone(engine.tables());
            tables.generation += 1;
            change(&mut tables);
            engine.set_tables(now, Arc::new(tables));
        });
        published.ok_or(Stopped)
    }

    fn publish_routes(&mut self) -> Result<(), Stopped> {
        let routes: Vec<Route> = self.state.routes.values().cloned().collect();
        self.publish(|tables| tables.set_routes(&routes))
    }

    fn check_routes(&self, routes: &[Route]) -> Result<(), RouteError> {
        let set = RuleSet {
            routes: routes.to_vec(),
            ..RuleSet::default()
        };
        match set.check(port_count(&self.infos())) {
            faults if faults.is_empty() => Ok(()),
            faults => Err(RouteError::Faults(faults)),
        }
    }

    /// Takes the rule of a group away from what is looked up by it.
    fn unregister(&mut self, mcst_id: McstId) -> Result<Option<GroupRule>, Stopped> {
        let Some(rule) = self.state.rules.remove(&mcst_id) else {
            return Ok(None);
        };
        self.state.index.remove(&rule, NamedBy::Control);
        self.publish(|tables| {
            tables.members.remove(&rule);
            GroupKey::of_group(&rule).for_each(|key| tables.owners.remove(key));
        })?;
        Ok(Some(rule))
    }
}

impl Installer for Dataplane<'_> {
    fn rule(&self, mcst_id: McstId) -> Option<&GroupRule> {
        self.state.rules.get(&mcst_id)
    }

    /// Rules of these controllers leave no address open.
    fn resolve<'r>(&self, rule: &'r GroupRule) -> Result<Cow<'r, GroupRule>, Stopped> {
        Ok(Cow::Borrowed(rule))
    }

    fn install(&mut self, rule: &GroupRule) -> Result<Installed, InstallError> {
        let group = Context::compile(rule, &self.infos())?;
        let running = self.state.rules.get(&rule.mcst_id);
        let running = running.filter(|running| running.name == rule.name).cloned();
        let instead_of = running.as_ref().map(|r| &*r.name);
        let faults = self.state.index.check(rule, NamedBy::Control, instead_of);
        if !faults.is_empty() {
            return Err(InstallError::Clash(faults));
        }
        let ordered = rule.clone().in_order();
        match &running {
            Some(running) if running.generation > rule.generation => {
                return Err(InstallError::Older {
                    name: rule.name.clone(),
                    running: running.generation,
                    given: rule.generation,
                });
            }
            Some(running) if *running == ordered => return Ok(Installed::Unchanged),
            _ => {}
        }
        let installed = self
            .frames
            .with_engine(self.switch, |engine, now| engine.install(now, group));
        installed.ok_or(Stopped)?.map_err(|(refused, _)| refused)?;
        self.unregister(rule.mcst_id)?;
        self.state.index.insert(&ordered, NamedBy::Control);
        self.publish(|tables| {
            tables.members.add(&ordered);
            GroupKey::of_group(&ordered).for_each(|key| tables.owners.insert(key, 0));
        })?;
        self.state.rules.insert(rule.mcst_id, ordered);
        self.state.events.push(SwitchEventKind::GroupInstalled {
            mcst_id: rule.mcst_id,
            name: rule.name.clone(),
            generation: rule.generation,
        });
        Ok(match running {
            None => Installed::New { worker: 0 },
            Some(running) => Installed::Replaced {
                before: running.generation,
            },
        })
    }
}

impl Pipeline for Dataplane<'_> {
    fn install_together(&mut self, install: &mut dyn FnMut(&mut dyn Installer)) -> Result<(), Stopped> {
        install(self);
        Ok(())
    }

    fn remove_group(&mut self, mcst_id: McstId) -> Result<Option<GroupRule>, Stopped> {
        let Some(rule) = self.unregister(mcst_id)? else {
            return Ok(None);
        };
        self.frames
            .with_engine(self.switch, |engine, _| engine.remove(mcst_id).map(drop));
        let name = rule.name.clone();
        let event = SwitchEventKind::GroupRemoved { mcst_id, name };
        self.state.events.push(event);
        Ok(Some(rule))
    }

    fn read_rule(&mut self, mcst_id: McstId, read: &mut dyn FnMut(&GroupRule)) -> Option<()> {
        self.state.rules.get(&mcst_id).map(read)
    }

    fn group(&mut self, mcst_id: McstId) -> Result<Option<InstalledGroup>, Stopped> {
        let engine = self.frames.engine(self.switch).ok_or(Stopped)?;
        let found = self.state.rules.get(&mcst_id).zip(engine.status(mcst_id));
        Ok(found.map(|(rule, status)| InstalledGroup {
            worker: 0,
            rule: rule.clone(),
            status,
        }))
    }

    fn groups_per_port(&mut self) -> [usize; PortId::COUNT] {
        let mut counts = [0; PortId::COUNT];
        for rule in self.state.rules.values() {
            let ports: BTreeSet<PortId> = rule.endpoints.iter().map(|e| e.port).collect();
            ports.into_iter().for_each(|port| counts[port.index()] += 1);
        }
        counts
    }

    fn set_routes(&mut self, routes: Vec<Route>) -> Result<(), RouteError> {
        self.check_routes(&routes)?;
        self.state.routes = routes.into_iter().map(|route| (route.prefix, route)).collect();
        Ok(self.publish_routes()?)
    }

    fn set_routes_within(
        &mut self,
        scope: &[Ipv4Net],
        routes: Vec<Route>,
    ) -> Result<(usize, usize), RouteError> {
        self.check_routes(&routes)?;
        let there = &mut self.state.routes;
        let before = there.len();
        let prefixes: BTreeSet<Ipv4Net> = routes.iter().map(|route| route.prefix).collect();
        let is_within = |prefix: &Ipv4Net| scope.iter().any(|scope| scope.contains(prefix));
        there.retain(|prefix, _| prefixes.contains(prefix) || !is_within(prefix));
        let removed = before - there.len();
        let mut added = 0;
        for route in routes {
            if there.get(&route.prefix) != Some(&route) {
                added += 1;
                there.insert(route.prefix, route);
            }
        }
        self.publish_routes()?;
        Ok((added, removed))
    }

    fn add_route(&mut self, route: Route) -> Result<bool, RouteError> {
        self.check_routes(std::slice::from_ref(&route))?;
        let replaced = self.state.routes.insert(route.prefix, route).is_some();
        self.publish_routes()?;
        Ok(replaced)
    }

    fn remove_route(&mut self, prefix: Ipv4Net) -> Result<bool, Stopped> {
        let removed = self.state.routes.remove(&prefix).is_some();
        self.publish_routes()?;
        Ok(removed)
    }

    fn routes(&mut self) -> Vec<Route> {
        self.state.routes.values().cloned().collect()
    }

    fn set_source_guards(&mut self, guards: Vec<SourceGuard>) -> Result<(), Stopped> {
        if self.state.guards != guards {
            self.state.guards.clone_from(&guards);
            self.publish(|tables| tables.guards = guards.into())?;
        }
        Ok(())
    }

    fn neighbours(&mut self) -> Result<Vec<Neighbour>, Stopped> {
        let (engine, now) = (self.frames.engine(self.switch).ok_or(Stopped)?, self.frames.now());
        Ok(engine.neighbours(now).collect())
    }

    fn port_mac(&mut self, port: PortId) -> Option<MacAddr> {
        let infos = self.infos();
        infos.iter().find(|info| info.id == port).map(|info| info.mac)
    }

    fn is_up(&mut self, port: PortId) -> bool {
        self.frames.is_port_up(self.switch, port)
    }
}
