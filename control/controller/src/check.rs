//! What a configuration contradicts, all of it at once.

use std::collections::BTreeSet;
use std::fmt;
use std::net::Ipv4Addr;
use std::time::Duration;

use castnet_proto::convert::name_from_proto;
use castnet_proto::transport::Address;
use castnet_topology::{Switch, SwitchKind, Topology, overlaps, pool_fault};

use crate::config::{Config, SwitchConfig};
use crate::state::multicast_routes::MulticastRoutes;

/// Longest time limit.
pub(crate) const TIMEOUT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// All faults of a configuration; at least one, each like `switches[1].name: "leaf" is there twice`. Displays one line per fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct ConfigFaults(pub Vec<String>);

impl ConfigFaults {
    fn add(&mut self, field: impl fmt::Display, reason: impl fmt::Display) {
        self.0.push(format!("{field}: {reason}"));
    }
}

impl Config {
    /// Checks everything that is not of one field alone, and again what a file reader has checked: the flags win.
    ///
    /// # Errors
    /// All faults.
    pub fn check(&self) -> Result<(), ConfigFaults> {
        let mut faults = ConfigFaults(Vec::new());
        self.check_switches(&mut faults);
        self.check_topology(&mut faults);
        self.check_pool(&mut faults);
        self.check_tenants(&mut faults);
        let timeouts = &self.timeouts;
        for (name, least_ms, given) in [
            ("switch_ms", 1, timeouts.switch),
            ("host_ms", 1, timeouts.host),
            ("reconcile_ms", 1, timeouts.reconcile),
            ("link_ms", 0, timeouts.link),
        ] {
            if given < Duration::from_millis(least_ms) || given > TIMEOUT_MAX {
                let reason = format!("{} {}", given.as_millis(), timeout_text(least_ms));
                faults.add(format!("timeouts.{name}"), reason);
            }
        }
        match faults.0.is_empty() {
            true => Ok(()),
            false => Err(faults),
        }
    }

    fn names(&self) -> BTreeSet<&String> {
        self.switches.iter().map(|s| &s.name).collect()
    }

    fn check_switches(&self, faults: &mut ConfigFaults) {
        let (mut names, mut agents) = (BTreeSet::new(), BTreeSet::new());
        for (i, SwitchConfig { name, agent }) in self.switches.iter().enumerate() {
            let field = format!("switches[{i}].name");
            if let Err(invalid) = name_from_proto(&field, name) {
                for fault in invalid.faults() {
                    faults.add(&fault.field, &fault.kind);
                }
            } else if !names.insert(name) {
                faults.add(field, format_args!("{name:?} is there twice"));
            }
            if !agents.insert(agent) {
                let reason = format_args!("{agent} is the agent of another switch");
                faults.add(format!("switches[{i}].agent"), reason);
            }
        }
    }

    fn check_topology(&self, faults: &mut ConfigFaults) {
        let Some(topology) = &self.topology else { return };
        let names = self.names();
        // As one is that a full disk has cut off.
        if topology.switches().next().is_none() {
            faults.add(
                "topology",
                "the file has no switch: leave it out for what LLDP and ARP show",
            );
        }
        if let Err(reason) = MulticastRoutes::new(Some(topology)) {
            faults.add("topology", format_args!("[[splitters]]: {reason}"));
        }
        for Switch {
            name,
            kind,
            programmable,
            ..
        } in topology.switches()
        {
            // Castnet switches and programmable routers have agents, others have none.
            let reason = match (kind, names.contains(name)) {
                (SwitchKind::Router, false) if *programmable => format!(
                    "the topology says that router {name:?} is programmable, but its agent is not configured"
                ),
                (SwitchKind::Router, true) if *programmable => continue,
                (SwitchKind::Castnet, false) => format!(
                    "the topology has a switch {name:?}, but its agent is not configured; one without is of kind = \"plain\" or \"router\""
                ),
                (SwitchKind::Plain | SwitchKind::Router, true) => format!(
                    "{name:?} has an agent, but the topology says that it runs no groups (kind = {:?})",
                    kind.name()
                ),
                _ => continue,
            };
            faults.add("switches", reason);
        }
        let hosts = topology.hosts().map(|host| &host.name);
        for name in hosts {
            if let Err(invalid) = name_from_proto("name", name) {
                faults.add(
                    "topology",
                    format_args!("host {name:?} can join no group: {invalid}"),
                );
            }
        }
        for missing in topology.prefixes_missing() {
            faults.add("topology", missing);
        }
    }

    fn check_tenants(&self, faults: &mut ConfigFaults) {
        let mut names = BTreeSet::new();
        for (i, tenant) in self.tenants.iter().enumerate() {
            let field = |name| format!("tenants[{i}].{name}");
            if tenant.name.is_empty() || !names.insert(&tenant.name) {
                faults.add(
                    field("name"),
                    format_args!("{:?} is empty or there twice", tenant.name),
                );
            }
            if tenant.members.iter().all(String::is_empty) {
                faults.add(field("members"), "has no name: it would have no groups");
            }
            let (total, each) = (tenant.bandwidth, tenant.group_bandwidth);
            if tenant.groups.or(tenant.slots).is_none() && total.or(each).is_none() {
                let lacking = "missing, as slots and bandwidth are: it would limit nothing";
                faults.add(field("groups"), lacking);
            }
            if let (Some(total), Some(each)) = (total, each)
                && each > total
            {
                let reason = format_args!(
                    "{each}b/s for each group is more than {total}b/s for all: none would be created"
                );
                faults.add(field("group_bandwidth"), reason);
            }
        }
    }

    /// No address of the pool belongs to anybody.
    fn check_pool(&self, faults: &mut ConfigFaults) {
        let pool = self.mcst_pool;
        let mut bad = |reason: fmt::Arguments<'_>| faults.add("mcst_pool", reason);
        if let Some(reason) = pool_fault(&pool) {
            // What else it contains follows from that.
            return bad(format_args!("{pool} cannot be a pool of McstIDs: {reason}"));
        }
        for switch in self.topology.iter().flat_map(Topology::switches) {
            let (name, prefix) = (&switch.name, switch.mcst_prefix);
            if let Some(prefix) = prefix.filter(|prefix| overlaps(prefix, &pool)) {
                bad(format_args!(
                    "{pool} overlaps mcst_prefix {prefix} of switch {name:?} in the topology"
                ));
            }
        }
        for host in self.topology.iter().flat_map(Topology::hosts) {
            if let Some(ip) = host.ip.filter(|ip| pool.contains(ip)) {
                bad(format_args!(
                    "{pool} contains {ip}, the address of host {:?}",
                    host.name
                ));
            }
        }
        let services = self
            .switches
            .iter()
            .map(|s| (&s.agent, format!("the agent of switch {:?}", s.name)));
        let own = std::iter::once((&self.listen, "the controller itself".to_owned()));
        for (address, whose) in services.chain(own) {
            let Address::Tcp { host, .. } = address else {
                continue;
            };
            if let Some(ip) = host.parse::<Ipv4Addr>().ok().filter(|ip| pool.contains(ip)) {
                bad(format_args!("{pool} contains {ip}, the address of {whose}"));
            }
        }
    }
}

/// Follows a number of milliseconds that is no time limit.
pub(crate) fn timeout_text(least_ms: u64) -> String {
    let most = TIMEOUT_MAX.as_millis();
    format!("is no time limit: {least_ms} to {most} milliseconds")
}

#[cfg(test)]
mod tests {
    use castnet_topology::End;

    use super::*;

    fn config(switches: &[&str]) -> Config {
        let switch = |(i, name): (usize, &&str)| SwitchConfig {
            name: (*name).into(),
            agent: format!("http://127.0.0.1:{}", 7471 + i).parse().unwrap(),
        };
        Config::new(switches.iter().enumerate().map(switch).collect())
    }

    fn lines(config: &Config) -> Vec<String> {
        let faults = config.check().err();
        let text = faults.map(|f| f.to_string()).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn castnet_switches_have_agents_and_plain_ones_have_none() {
        let with = |change: fn(&mut Topology)| {
            let mut config = config(&["s0"]);
            let mut topology = Topology::new();
            topology.add_switch("s0", [(0, [2; 6])]).unwrap();
            change(&mut topology);
            config.topology = Some(topology);
            lines(&config)
        };
        assert!(with(|topology| topology.add_plain("tor", 4).unwrap()).is_empty());
        let orphan = with(|topology| topology.add_switch("s1", [(0, [4; 6])]).unwrap());
        assert!(orphan[0].contains("\"s1\", but its agent"), "{orphan:?}");
        let plain = with(|topology| assert!(topology.set_switch_kind("s0", SwitchKind::Plain)));
        assert!(plain[0].contains("\"s0\" has an agent"), "{plain:?}");
    }

    #[test]
    fn an_empty_topology_file_is_no_topology() {
        let mut config = config(&["s0"]);
        config.topology = Some(Topology::from_toml("").unwrap());
        let found = lines(&config);
        assert!(
            found[0].starts_with("topology: the file has no switch"),
            "{found:?}"
        );
    }

    #[test]
    fn the_pool_has_no_address_that_is_routed_to_one_switch() {
        let with = |prefix: Option<&str>| {
            let mut config = config(&["s0"]);
            let mut topology = Topology::new();
            topology.add_switch("s0", [(0, [2; 6])]).unwrap();
            topology.add_plain("rt", 4).unwrap();
            topology.set_switch_kind("rt", SwitchKind::Router);
            topology
                .connect(End::port("rt", 0), End::port("s0", 0), 9000)
                .unwrap();
            if let Some(prefix) = prefix {
                topology.set_mcst_prefix("s0", prefix.parse().unwrap()).unwrap();
            }
            config.topology = Some(topology);
            lines(&config)
        };
        assert!(with(Some("10.201.0.0/24")).is_empty());
        let both =
            "mcst_pool: 10.200.0.0/16 overlaps mcst_prefix 10.200.7.0/24 of switch \"s0\" in the topology";
        assert_eq!(with(Some("10.200.7.0/24")), [both]);
        let missing = with(None);
        assert!(
            missing[0].starts_with("topology: missing: the prefix of McstIDs that router \"rt\""),
            "{missing:?}"
        );
    }

    #[test]
    fn a_pool_of_addresses_that_somebody_has_or_nobody_can_have_is_refused() {
        let mut config = config(&["s0"]);
        for (pool, word) in [
            ("0.0.0.0/0", "127.0.0.0/8 (loopback)"),
            ("0.0.0.0/8", "0.0.0.0/8"),
            ("127.0.0.0/16", "loopback"),
            ("169.254.7.0/24", "link-local"),
            ("198.18.0.0/24", "benchmarks"),
            ("224.0.0.0/8", "multicast"),
            ("239.1.0.0/16", "multicast"),
            ("240.0.0.0/8", "reserved"),
            ("255.255.255.0/24", "reserved"),
        ] {
            config.mcst_pool = pool.parse().unwrap();
            let lines = lines(&config);
            let start = format!("mcst_pool: {pool} cannot be a pool of McstIDs: ");
            assert!(
                lines.len() == 1 && lines[0].starts_with(&start) && lines[0].contains(word),
                "{lines:?}"
            );
        }
        for pool in ["10.0.0.0/8", "64.0.0.0/3", "192.168.0.4/30", "10.1.2.3/32"] {
            config.mcst_pool = pool.parse().unwrap();
            assert!(lines(&config).is_empty(), "{pool}");
        }
    }

    #[test]
    fn all_contradictions_are_reported_at_once() {
        let mut config = config(&["a", "a", "b c"]);
        config.switches[0].agent = "http://10.200.0.7:7471".parse().unwrap();
        config.switches[2].agent = config.switches[1].agent.clone();
        config.listen = "https://10.200.0.8:7470".parse().unwrap();
        config.timeouts.reconcile = Duration::ZERO;
        config.timeouts.switch = Duration::MAX;
        let mut topology = Topology::new();
        topology.add_switch("s0", [(0, [2; 6]), (1, [4; 6])]).unwrap();
        topology
            .add_host("h@1", Some([10, 200, 3, 4].into()), None)
            .unwrap();
        config.topology = Some(topology);
        let starts = [
            "switches[1].name: \"a\" is there twice",
            "switches[2].name: \"b c\" is not a name",
            "switches[2].agent: http://127.0.0.1:7472 is the agent of another switch",
            "switches: the topology has a switch \"s0\", but its agent",
            "topology: host \"h@1\" can join no group: ",
            "mcst_pool: 10.200.0.0/16 contains 10.200.3.4, the address of host \"h@1\"",
            "mcst_pool: 10.200.0.0/16 contains 10.200.0.7, the address of the agent of switch \"a\"",
            "mcst_pool: 10.200.0.0/16 contains 10.200.0.8, the address of the controller itself",
            "timeouts.switch_ms: 18446744073709551615999 is no time limit: 1 to 86400000 milliseconds",
            "timeouts.reconcile_ms: 0 is no time limit: 1 to 86400000 milliseconds",
        ];
        let lines = lines(&config);
        assert_eq!(lines.len(), starts.len(), "{lines:#?}");
        for (line, start) in lines.iter().zip(starts) {
            assert!(line.starts_with(start), "{line}\n{start}");
        }
    }
}
