//! Which hosts may register groups with MRP: off unless both a pool of addresses and ports are given.

use castnet_console::exit::{Failure, Outcome};
use castnet_console::units::Span;
use castnet_rules::Ipv4Net;
use castnet_toml_reader::Value;
use castnet_wire::mrp::DEFAULT_PORT;
use castnet_wire::udp::ROCE_PORT;
use castnet_wire::{MacAddr, Nanos, PortId};
use castnet_worker::engine::RegistrationConfig;
use clap::Args;

/// Configuration of MRP, as flags and as the table `[mrp]` of a file. A field that is `None` or empty has its default.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
#[command(next_help_heading = "Groups that hosts register themselves (MRP; docs/mrp.md)")]
pub struct MrpRule {
    /// Addresses that hosts may register as groups; may be given again. Off without it
    #[arg(id = "mrp_pool", long = "mrp-pool", value_name = "PREFIX")]
    pub pool: Vec<Ipv4Net>,
    /// A port where registrations may come in: of a leader, or to another switch; may be given again
    #[arg(id = "mrp_port", long = "mrp-port", value_name = "NAME")]
    pub ports: Vec<String>,
    /// Of these ports, one that leads to another switch where no LLDP shows it, and the Ethernet address of the switch's port; may be
    /// given again, also for several switches behind one port. Without an address, only routes lead to switches there
    #[arg(id = "mrp_fabric_port", long = "mrp-fabric-port", value_name = "NAME[=MAC]")]
    pub fabric_ports: Vec<String>,
    /// UDP port of registrations [default: 4793]
    #[arg(id = "mrp_udp_port", long = "mrp-udp-port", value_name = "N")]
    pub udp_port: Option<u16>,
    /// Most groups of a leader [default: 16]
    #[arg(
        id = "mrp_groups_per_leader",
        long = "mrp-groups-per-leader",
        value_name = "N"
    )]
    pub groups_per_leader: Option<usize>,
    /// Most groups of all leaders at a port [default: 256]
    #[arg(id = "mrp_groups_per_port", long = "mrp-groups-per-port", value_name = "N")]
    pub groups_per_port: Option<usize>,
    /// Most groups of all leaders [default: 1024]
    #[arg(id = "mrp_groups", long = "mrp-groups", value_name = "N")]
    pub groups: Option<usize>,
    /// Most members of a group [default: 1024]
    #[arg(id = "mrp_members", long = "mrp-members", value_name = "N")]
    pub members: Option<usize>,
    /// How long a group lives that its leader does not repeat [default: 60s]
    #[arg(id = "mrp_lifetime", long = "mrp-lifetime", value_name = "TIME")]
    pub lifetime: Option<Span>,
}

impl MrpRule {
    /// The set fields of `self`, the others from `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        fn list<T>(mine: Vec<T>, other: Vec<T>) -> Vec<T> {
            if mine.is_empty() { other } else { mine }
        }
        Self {
            pool: list(self.pool, other.pool),
            ports: list(self.ports, other.ports),
            fabric_ports: list(self.fabric_ports, other.fabric_ports),
            udp_port: self.udp_port.or(other.udp_port),
            groups_per_leader: self.groups_per_leader.or(other.groups_per_leader),
            groups_per_port: self.groups_per_port.or(other.groups_per_port),
            groups: self.groups.or(other.groups),
            members: self.members.or(other.members),
            lifetime: self.lifetime.or(other.lifetime),
        }
    }

    pub(crate) fn read(value: Value<'_>) -> Option<Self> {
        let t = value.table("a table: [mrp]")?;
        let count = |v: Value<'_>| v.number(0..=u64::MAX, "is over 64 bits");
        Some(Self {
            pool: t.items("pool", "a list of prefixes: [\"10.200.0.0/16\"]", |v| v.parse()),
            ports: t.items("ports", "a list of ports: [\"PORT\"]", |v| v.string()),
            fabric_ports: t.items(
                "fabric_ports",
                "a list of ports with addresses: [\"PORT=MAC\"]",
                |v| v.string(),
            ),
            udp_port: t.get("udp_port", |v| {
                v.number(0..=u64::from(u16::MAX), "is over 16 bits")
            }),
            groups_per_leader: t.get("groups_per_leader", count),
            groups_per_port: t.get("groups_per_port", count),
            groups: t.get("groups", count),
            members: t.get("members", count),
            lifetime: t.get("lifetime", Value::number_or_text),
        })
    }

    /// As the type of the dataplane; `None` if MRP is off. `names` are the ports of the switch in the order of their numbers.
    pub(crate) fn registration(&self, names: &[&str]) -> Outcome<Option<RegistrationConfig>> {
        if self.pool.is_empty() && self.ports.is_empty() && self.fabric_ports.is_empty() {
            return Ok(None);
        }
        let mut faults = Vec::new();
        if self.pool.is_empty() {
            faults.push("MRP has ports, but no pool: no address may be registered".to_owned());
        }
        if self.ports.is_empty() {
            faults.push("MRP has a pool, but no ports: nobody may register".to_owned());
        }
        let index = |name: &String| names.iter().position(|known| known == name);
        for name in self.ports.iter().filter(|name| index(name).is_none()) {
            faults.push(format!(
                "MRP is asked for on port {name}, which this switch has not"
            ));
        }
        let (fabric, more) = self.fabric(names);
        faults.extend(more);
        let udp_port = self.udp_port.unwrap_or(DEFAULT_PORT);
        if udp_port == 0 || udp_port == ROCE_PORT {
            faults.push(format!(
                "{udp_port} is no UDP port for MRP: not 0, and not that of RoCEv2"
            ));
        }
        if self.lifetime.is_some_and(|Span(span)| span.as_secs() == 0) {
            faults.push(
                "groups would end between two packets of their leader: a lifetime of at least 1s".to_owned(),
            );
        }
        if !faults.is_empty() {
            return Err(Failure::usage(faults.join("\n")));
        }
        let ports = self.ports.iter().filter_map(index);
        Ok(Some(RegistrationConfig {
            udp_port,
            ports: ports.filter_map(|n| PortId::new(u8::try_from(n).ok()?)).collect(),
            fabric: fabric.into_iter().map(|(port, _)| port).collect(),
            pool: self.pool.clone(),
        }))
    }

    /// The ports to switches that no LLDP shows, each with the Ethernet address of a switch there, and the faults of the list.
    pub fn fabric(&self, names: &[&str]) -> (Vec<(PortId, Option<MacAddr>)>, Vec<String>) {
        let (mut fabric, mut faults) = (Vec::new(), Vec::new());
        for entry in &self.fabric_ports {
            let (name, mac) = match entry.split_once('=') {
                Some((name, mac)) => (name, Some(mac)),
                None => (entry.as_str(), None),
            };
            let index = names.iter().position(|known| *known == name);
            let port = index.and_then(|n| PortId::new(u8::try_from(n).ok()?));
            let Some(port) = port else {
                faults.push(format!(
                    "MRP has the fabric port {name}, which this switch has not"
                ));
                continue;
            };
            if !self.ports.iter().any(|known| known == name) {
                faults.push(format!(
                    "MRP has the fabric port {name}, but may not come in there: --mrp-port {name}"
                ));
            }
            match mac.map(str::parse::<MacAddr>).transpose() {
                Ok(mac) if mac.is_none_or(|mac| !mac.is_multicast() && mac != MacAddr::UNSPECIFIED) => {
                    fabric.push((port, mac));
                }
                _ => faults.push(format!(
                    "fabric port {entry}: NAME=MAC, with the Ethernet address of the switch behind it (castnet port shows it there)"
                )),
            }
        }
        (fabric, faults)
    }

    /// The lifetime of a registration, if it is set.
    pub fn lifetime(&self) -> Option<Nanos> {
        let nanos = |Span(span): Span| Nanos(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX));
        self.lifetime.map(nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 3] = ["h1", "h2", "spine"];

    fn rule(pool: &[&str], ports: &[&str]) -> MrpRule {
        MrpRule {
            pool: pool.iter().map(|p| p.parse().expect("a prefix")).collect(),
            ports: ports.iter().map(|p| (*p).to_owned()).collect(),
            ..MrpRule::default()
        }
    }

    #[test]
    fn it_is_off_until_a_pool_and_ports_are_given() {
        assert_eq!(MrpRule::default().registration(&NAMES).expect("no fault"), None);
        let on = rule(&["10.200.0.0/16"], &["h1", "spine"])
            .registration(&NAMES)
            .expect("no fault")
            .expect("on");
        assert_eq!((on.udp_port, on.ports.0), (4793, 0b101));
        assert!(on.covers([10, 200, 9, 9].into()) && !on.covers([10, 201, 0, 1].into()));
    }

    #[test]
    fn every_fault_is_named() {
        let faults = |rule: MrpRule| rule.registration(&NAMES).expect_err("a fault").what;
        assert!(faults(rule(&["10.200.0.0/16"], &[])).contains("nobody may register"));
        assert!(faults(rule(&[], &["h1"])).contains("no address may be registered"));
        let bad = MrpRule {
            udp_port: Some(4791),
            lifetime: Some("500ms".parse().expect("a time")),
            ..rule(&["10.200.0.0/16"], &["h9"])
        };
        assert_eq!(faults(bad).lines().count(), 3);
        let fabric = |ports: &[&str]| {
            let fabric_ports = ports.iter().map(|p| (*p).to_owned()).collect();
            faults(MrpRule {
                fabric_ports,
                ..rule(&["10.200.0.0/16"], &["spine"])
            })
        };
        assert!(fabric(&["h9=02:00:00:00:00:01"]).contains("fabric port h9, which this switch has not"));
        assert!(fabric(&["h1"]).contains("--mrp-port h1"));
        for mac in ["", "x", "01:00:00:00:00:01", "00:00:00:00:00:00"] {
            assert!(fabric(&[&format!("spine={mac}")]).contains("NAME=MAC"), "{mac}");
        }
    }

    #[test]
    fn several_switches_may_be_behind_a_fabric_port() {
        let macs = ["02:00:00:00:00:01", "02:00:00:00:00:02"];
        let rule = MrpRule {
            fabric_ports: macs
                .iter()
                .map(|mac| format!("spine={mac}"))
                .chain(["h1".into()])
                .collect(),
            ..rule(&["10.200.0.0/16"], &["spine", "h1"])
        };
        let on = rule.registration(&NAMES).expect("no fault").expect("on");
        assert_eq!(on.fabric.0, 0b101);
        let (fabric, _) = rule.fabric(&NAMES);
        let found: Vec<_> = fabric
            .iter()
            .map(|(port, mac)| (port.index(), mac.map(|mac| mac.to_string())))
            .collect();
        let wanted = [
            (2, Some(macs[0].to_owned())),
            (2, Some(macs[1].to_owned())),
            (0, None),
        ];
        assert_eq!(found, wanted);
    }
}
