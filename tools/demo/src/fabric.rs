//! The demo's fabric: three switches in two tiers and five hosts, joined by memory links, each switch with its agent.

use std::sync::Arc;

use castnet_agent::Agent;
use castnet_console::connect;
use castnet_console::exit::{Failure, Outcome};
use castnet_port::{FaultControl, Faults, MemEnd, MemLink, MemLinkConfig, PortSpec};
use castnet_proto::transport::{Address, Security};
use castnet_wire::{Nanos, PortId};
use castnet_worker::{Dataplane, DataplaneConfig, PortConfig};

/// With their neighbours in the order of the ports.
pub(crate) const SWITCHES: [(&str, &[&str]); 3] = [
    ("spine", &["leaf1", "leaf2"]),
    ("leaf1", &["spine", "h1", "h2", "h3"]),
    ("leaf2", &["spine", "h4", "h5"]),
];

/// The first one sends.
pub(crate) const HOSTS: [&str; 5] = ["h1", "h2", "h3", "h4", "h5"];

/// The links, each with its lower end first.
pub(crate) const LINKS: [(&str, &str); 7] = [
    ("h1", "leaf1"),
    ("h2", "leaf1"),
    ("h3", "leaf1"),
    ("h4", "leaf2"),
    ("h5", "leaf2"),
    ("leaf1", "spine"),
    ("leaf2", "spine"),
];

pub(crate) const LOOPBACK: &str = "http://127.0.0.1:0";

pub(crate) fn switch_of(host: &str) -> &'static str {
    SWITCHES
        .iter()
        .find(|(name, ends)| is_leaf(name) && ends.contains(&host))
        .map_or("", |(name, _)| name)
}

fn is_leaf(switch: &str) -> bool {
    switch != SWITCHES[0].0
}

#[derive(Debug)]
pub(crate) struct Switch {
    pub(crate) name: &'static str,
    pub(crate) dataplane: Arc<Dataplane>,
    pub(crate) address: Address,
    agent: Agent,
    /// By port: whether a host is behind it, and its fault injector.
    faults: Vec<(bool, FaultControl)>,
}

/// All switches, running, and the hosts' ends of their links.
#[derive(Debug)]
pub(crate) struct Fabric {
    pub(crate) switches: Vec<Switch>,
    pub(crate) hosts: Vec<(&'static str, MemEnd)>,
}

impl Fabric {
    /// Builds the links and starts the switches. Fault injectors are seeded from `seed` and do nothing yet.
    pub(crate) async fn start(seed: u64) -> Outcome<Self> {
        let mut ends = links();
        let mut take = |at: &str, towards: &str| -> Outcome<MemEnd> {
            let found = ends.iter().position(|(a, b, _)| *a == at && *b == towards);
            found
                .map(|i| ends.swap_remove(i).2)
                .ok_or_else(|| Failure::failed(format!("no link {at} - {towards}")))
        };
        let mut switches = Vec::new();
        let mut seeds = seed;
        for (name, behind) in SWITCHES {
            let (mut ports, mut faults) = (Vec::new(), Vec::new());
            for (id, towards) in (0..).filter_map(PortId::new).zip(behind) {
                let control = FaultControl::new(seeds);
                seeds = seeds.wrapping_add(1);
                let spec = PortSpec::from(take(name, towards)?).with_faults(control.clone());
                ports.push(PortConfig::new(id, *towards, spec));
                faults.push((HOSTS.contains(towards), control));
            }
            switches.push(Switch::start(name, ports, faults).await?);
        }
        let hosts = HOSTS
            .iter()
            .map(|host| Ok((*host, take(host, switch_of(host))?)))
            .collect::<Outcome<_>>()?;
        Ok(Self { switches, hosts })
    }

    pub(crate) fn losses(&self) -> Losses {
        Losses(
            self.switches
                .iter()
                .flat_map(|s| s.faults.iter().cloned())
                .collect(),
        )
    }

    pub(crate) async fn stop(self) -> Outcome {
        for switch in self.switches {
            switch.agent.stop().await;
            let dataplane = switch.dataplane;
            tokio::task::spawn_blocking(move || dataplane.stop())
                .await
                .map_err(Failure::failed)?;
        }
        Ok(())
    }
}

/// Control of the losses of all links.
#[derive(Clone, Debug)]
pub(crate) struct Losses(Vec<(bool, FaultControl)>);

impl Losses {
    /// Each direction of each link loses this share of its frames: between switches at the receiving end, at a host's
    /// link at the switch.
    pub(crate) fn set(&self, share: f64) {
        for (to_host, control) in &self.0 {
            control.set_rx(Faults::loss(share));
            control.set_tx(if *to_host {
                Faults::loss(share)
            } else {
                Faults::NONE
            });
        }
    }
}

impl Switch {
    async fn start(
        name: &'static str,
        ports: Vec<PortConfig>,
        faults: Vec<(bool, FaultControl)>,
    ) -> Outcome<Self> {
        let mut config = DataplaneConfig::new(name, ports);
        config.engine.hash_seed = castnet_switch::hash_seed();
        // With the default of 30 s the controller would learn the links too late for a demo.
        config.engine.lldp_interval = Some(Nanos::from_millis(250));
        let dataplane = castnet_switch::start(config).await?;
        let listen: Address = LOOPBACK.parse().map_err(Failure::failed)?;
        let agent = Agent::start(dataplane.clone(), &listen, &Security::default())
            .await
            .map_err(|e| connect::failure(&e, "castnet doctor"))?;
        Ok(Self {
            name,
            dataplane,
            address: agent.address().clone(),
            agent,
            faults,
        })
    }
}

/// The two ends of each link: node, neighbour, end.
fn links() -> Vec<(&'static str, &'static str, MemEnd)> {
    let mut ends: Vec<(&'static str, &'static str, MemEnd)> = Vec::new();
    for (switch, behind) in SWITCHES {
        for towards in behind {
            if ends.iter().any(|(a, b, _)| *a == switch && b == towards) {
                continue;
            }
            let names = [format!("{switch}.{towards}"), format!("{towards}.{switch}")];
            let (here, there) = MemLink::pair(&MemLinkConfig::between(&names[0], &names[1]));
            ends.push((switch, towards, here));
            ends.push((towards, switch, there));
        }
    }
    ends
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plan_is_a_tree_of_two_tiers() {
        let ends = links();
        // Five hosts and two leaves have one link each towards the source of the tree: seven links, two ends each.
        assert_eq!(ends.len(), 14);
        for host in HOSTS {
            assert_eq!(ends.iter().filter(|(at, _, _)| *at == host).count(), 1, "{host}");
            assert!(is_leaf(switch_of(host)), "{host}");
        }
        assert_eq!(switch_of("nobody"), "");
        for (lower, upper) in LINKS {
            for (at, towards) in [(lower, upper), (upper, lower)] {
                assert!(
                    ends.iter().any(|(a, b, _)| *a == at && *b == towards),
                    "{at} - {towards}"
                );
            }
        }
        assert_eq!(2 * LINKS.len(), ends.len());
    }
}
