//! Which hosts may register groups with MRP: off unless both a pool of addresses and ports are given.

use castnet_console::exit::{Failure, Outcome};
use castnet_console::units::Span;
use castnet_rules::Ipv4Net;
use castnet_toml_reader::Value;
use castnet_wire::mrp::DEFAULT_PORT;
use castnet_wire::udp::ROCE_PORT;
use castnet_wire::{Nanos, PortId};
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
            udp_port: self.udp_port.or(other.udp_port),
            groups_per_leader: self.groups_per_leader.or(other.groups_per_leader),
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
            udp_port: t.get("udp_port", |v| {
                v.number(0..=u64::from(u16::MAX), "is over 16 bits")
            }),
            groups_per_leader: t.get("groups_per_leader", count),
            groups: t.get("groups", count),
            members: t.get("members", count),
            lifetime: t.get("lifetime", Value::number_or_text),
        })
    }

    /// As the type of the dataplane; `None` if MRP is off. `names` are the ports of the switch in the order of their numbers.
    pub(crate) fn registration(&self, names: &[&str]) -> Outcome<Option<RegistrationConfig>> {
        if self.pool.is_empty() && self.ports.is_empty() {
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
            pool: self.pool.clone(),
        }))
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
    }
}
