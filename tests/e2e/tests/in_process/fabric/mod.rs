//! A fabric in this process: switches joined by memory links, each with its agent, a controller, and hosts' ends of links.

use std::sync::Arc;

use castnet_agent::Agent;
use castnet_controller::{Config, Controller, SwitchConfig};
use castnet_port::{FaultControl, Faults, MemEnd, MemLink, MemLinkConfig, Pool, PoolConfig, PortSpec, Sides};
use castnet_proto::transport::{Address, Security};
use castnet_rnic::{NeighbourConfig, Rnic, SoftRnic, SoftRnicConfig};
use castnet_wire::{Nanos, PortId, Qpn};
use castnet_worker::{Dataplane, DataplaneConfig, PortConfig};
use tokio::runtime::Runtime;

/// Switches, and who is behind their ports. What is no switch is a host; hosts are called h1, h2, ...
pub(crate) type Plan = &'static [(&'static str, &'static [&'static str])];

/// Three hosts at one switch.
pub(crate) const STAR: Plan = &[("s", &["h1", "h2", "h3"])];

/// Five hosts at two leaves below a spine.
pub(crate) const TWO_TIERS: Plan = &[
    ("spine", &["leaf1", "leaf2"]),
    ("leaf1", &["spine", "h1", "h2", "h3"]),
    ("leaf2", &["spine", "h4", "h5"]),
];

/// A host: its end of its link.
#[derive(Clone)]
pub(crate) struct Host {
    pub(crate) name: String,
    number: u8,
    end: MemEnd,
}

impl Host {
    /// Its RNIC, for this thread.
    pub(crate) fn rnic(&self) -> Box<dyn Rnic> {
        let pool = Pool::new(PoolConfig::default());
        let port = PortSpec::from(self.end.clone())
            .open(&pool, Sides::Both)
            .expect("a port");
        let config = SoftRnicConfig {
            neighbours: NeighbourConfig {
                announce_interval: Nanos::from_millis(300),
                ..NeighbourConfig::default()
            },
            // Never the numbers of an RNIC that was at this address before.
            first_qpn: Qpn::new(self.first_qpn()),
            ..SoftRnicConfig::new([10, 0, 0, self.number].into())
        };
        Box::new(SoftRnic::new(port, pool, config).expect("an RNIC"))
    }

    fn first_qpn(&self) -> u32 {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(1);
        NEXT.fetch_add(1, Ordering::Relaxed) << 10
    }
}

/// All of it, running.
pub(crate) struct Fabric {
    runtime: Runtime,
    switches: Vec<(Arc<Dataplane>, Agent)>,
    controller: Controller,
    pub(crate) hosts: Vec<Host>,
    /// What each link loses, and whether a host is at it.
    faults: Vec<(bool, FaultControl)>,
}

impl Fabric {
    /// Starts it. Losses are drawn from `seed`.
    pub(crate) fn start(plan: Plan, seed: u64) -> Self {
        println!("seed {seed}");
        let runtime = Runtime::new().expect("a runtime");
        let mut ends = links(plan);
        let (mut switches, mut faults, mut seeds) = (Vec::new(), Vec::new(), seed << 8);
        for (name, behind) in plan {
            let mut ports = Vec::new();
            for (id, towards) in (0..).filter_map(PortId::new).zip(*behind) {
                let control = FaultControl::new(seeds);
                seeds += 1;
                let spec = PortSpec::from(take(&mut ends, name, towards)).with_faults(control.clone());
                ports.push(PortConfig::new(id, *towards, spec));
                faults.push((!is_switch(plan, towards), control));
            }
            let mut config = DataplaneConfig::new(*name, ports);
            config.engine.lldp_interval = Some(Nanos::from_millis(100));
            let dataplane = Arc::new(Dataplane::start(config).expect("a switch"));
            let listen: Address = "http://127.0.0.1:0".parse().expect("an address");
            let agent = runtime
                .block_on(Agent::start(dataplane.clone(), &listen, &Security::default()))
                .expect("an agent");
            switches.push((dataplane, agent));
        }
        let configs = switches.iter().map(|(dataplane, agent)| SwitchConfig {
            name: dataplane.name().to_owned(),
            agent: agent.address().clone(),
        });
        let config = Config::new(configs.collect());
        let controller = runtime.block_on(Controller::start(config)).expect("a controller");
        let mut hosts: Vec<_> = ends
            .into_iter()
            .map(|(name, _, end)| Host {
                number: name[1..].parse().expect("a number"),
                name: name.to_owned(),
                end,
            })
            .collect();
        hosts.sort_by_key(|h| h.number);
        Self {
            runtime,
            switches,
            controller,
            hosts,
            faults,
        }
    }

    /// Where the controller is.
    pub(crate) fn controller(&self) -> Address {
        self.controller.address().expect("an address").clone()
    }

    /// From now on each direction of each link loses this share of its frames.
    pub(crate) fn lose(&self, share: f64) {
        for (to_host, control) in &self.faults {
            control.set_rx(Faults::loss(share));
            let tx = if *to_host {
                Faults::loss(share)
            } else {
                Faults::NONE
            };
            control.set_tx(tx);
        }
    }

    /// Stops everything.
    pub(crate) fn stop(self) {
        self.runtime.block_on(self.controller.stop());
        for (dataplane, agent) in self.switches {
            self.runtime.block_on(agent.stop());
            dataplane.stop();
        }
    }
}

fn is_switch(plan: Plan, name: &str) -> bool {
    plan.iter().any(|(switch, _)| *switch == name)
}

type End = (&'static str, &'static str, MemEnd);

/// Every link as its two ends: at whom, towards whom.
fn links(plan: Plan) -> Vec<End> {
    let mut ends: Vec<End> = Vec::new();
    for (switch, behind) in plan {
        for towards in *behind {
            if ends.iter().any(|(at, to, _)| at == switch && to == towards) {
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

fn take(ends: &mut Vec<End>, at: &str, towards: &str) -> MemEnd {
    let found = ends
        .iter()
        .position(|(a, b, _)| *a == at && *b == towards)
        .expect("a link");
    ends.swap_remove(found).2
}
