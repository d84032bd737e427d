//! Reads and writes topology files (TOML).

use core::fmt::{Display, Write};
use core::net::Ipv4Addr;
use std::collections::{BTreeMap, BTreeSet};

use castnet_toml_reader::{Faults, Value};
use castnet_wire::MacAddr;

use crate::build::port_mac;
use crate::error::TopologyError;
use crate::graph::{DEFAULT_MTU, End, MulticastRoute, PORTS_MAX, Splitter, SwitchKind, Topology};

const NAME: &str = "a name in quotes";
const KIND: &str = "a kind of switch: \"castnet\", \"plain\" or \"router\"";
const PREFIX: &str = "a prefix of IPv4 addresses, such as \"10.201.0.0/24\"";
const IP: &str = "an IPv4 address, such as \"10.0.0.1\"";
const MAC: &str = "an Ethernet address, such as \"02:00:00:00:00:01\"";
const PORTS: &str = "a number of ports, 1 to 64, or a list of their Ethernet addresses";

impl Topology {
    /// Reads a topology file and reports all faults at once, each with line, column and field. If the text is not TOML,
    /// only that is reported. If `ports` is a number, addresses are generated. McstID prefixes must not overlap,
    /// and no address is that of two hosts.
    ///
    /// ```toml
    /// group_addresses = "239.200.0.0/16"                   # optional: multicast addresses of groups, for programmable routers
    ///
    /// [[switches]]
    /// name = "leaf"
    /// ports = ["06:00:00:00:01:00", "06:00:00:00:01:01"]   # addresses of ports 0 and 1; or a number of ports
    /// mcst_prefix = "10.201.0.0/24"                        # McstIDs that routers route to it; needed behind a router
    ///
    /// [[switches]]
    /// name = "rack"
    /// kind = "plain"                                       # an ordinary switch; or "router"; default "castnet"
    /// ports = 8
    ///
    /// [[switches]]
    /// name = "core"
    /// kind = "router"
    /// programmable = true                                  # it has an agent, and the controller gives it rules for groups
    /// ports = 8
    ///
    /// [[hosts]]
    /// name = "h0"
    /// ip = "10.0.0.1"                                      # optional, as is mac
    /// mac = "02:00:00:00:00:01"
    ///
    /// [[links]]
    /// a = "leaf:0"
    /// b = "h0"
    /// mtu = 9000                                           # the default
    /// up = true                                            # the default
    ///
    /// [[multicast_routes]]                                 # routers replicate what is sent to the address, by static routes
    /// address = "239.1.0.1"
    /// switches = ["leaf", "leaf2"]                         # the Castnet switches that get a copy
    /// source = "leaf3"                                     # optional: only this switch sends to it, also for fewer receivers
    ///
    /// [[splitters]]                                        # of a Shufflecast, in the order of its ToRs; not among the links
    /// from = "leaf"
    /// links = [{ port = 2, to = "leaf2:3" }, { port = 3, to = "leaf3:3" }]
    /// ```
    pub fn from_toml(text: &str) -> Result<Self, Faults> {
        castnet_toml_reader::read(text, &[], |file| {
            let mut reader = Reader::default();
            file.items("switches", "a list of switches: [[switches]]", |v| {
                reader.switch(v)
            });
            file.items("hosts", "a list of hosts: [[hosts]]", |v| reader.host(v));
            file.items("links", "a list of links: [[links]]", |v| reader.link(v));
            file.items(
                "multicast_routes",
                "a list of addresses: [[multicast_routes]]",
                |v| reader.multicast_route(v),
            );
            file.items("splitters", "a list of splitters: [[splitters]]", |v| {
                reader.splitter(v)
            });
            let block = file.get("group_addresses", |v| v.parsed(PREFIX));
            block.and_then(|block| {
                file.accept_at("group_addresses", reader.topology.set_group_addresses(block))
            });
            for error in reader.topology.prefixes_missing() {
                if let TopologyError::PrefixMissing { switch, .. } = &error
                    && let Some(path) = reader.without_prefix.get(switch)
                {
                    file.fault_at(&format!("{path}.mcst_prefix"), error);
                }
            }
            Some(reader.topology)
        })
    }

    /// The fabric as a topology file; [`Topology::from_toml`] reads it back.
    pub fn to_toml(&self) -> String {
        let mut out = String::new();
        if let Some(block) = self.group_addresses() {
            let _ = writeln!(out, "group_addresses = \"{block}\"\n");
        }
        let quoted = |text: &str| toml::Value::String(text.into()).to_string();
        for switch in self.switches() {
            let _ = writeln!(
                out,
                "[[switches]]\nname = {}\nup = {}",
                quoted(&switch.name),
                switch.up
            );
            if switch.kind != SwitchKind::default() {
                let _ = writeln!(out, "kind = \"{}\"", switch.kind.name());
            }
            if switch.programmable {
                out.push_str("programmable = true\n");
            }
            if let Some(prefix) = switch.mcst_prefix {
                let _ = writeln!(out, "mcst_prefix = \"{prefix}\"");
            }
            // A list has no gaps: ports that do not count from 0 are written as tables.
            let dense = switch.ports.keys().enumerate().all(|(i, p)| i == *p as usize);
            let ports: Vec<String> = switch
                .ports
                .iter()
                .map(|(port, mac)| match dense {
                    true => format!("\"{}\"", MacAddr(*mac)),
                    false => format!("{{ port = {port}, mac = \"{}\" }}", MacAddr(*mac)),
                })
                .collect();
            let _ = writeln!(out, "ports = [{}]\n", ports.join(", "));
        }
        for host in self.hosts() {
            let _ = writeln!(out, "[[hosts]]\nname = {}", quoted(&host.name));
            if let Some(ip) = host.ip {
                let _ = writeln!(out, "ip = \"{ip}\"");
            }
            if let Some(mac) = &host.mac {
                let _ = writeln!(out, "mac = \"{}\"", MacAddr(*mac));
            }
            out.push('\n');
        }
        for (_, link) in self.links() {
            let (a, b) = (quoted(&link.a.to_string()), quoted(&link.b.to_string()));
            let _ = writeln!(
                out,
                "[[links]]\na = {a}\nb = {b}\nmtu = {}\nup = {}\n",
                link.mtu, link.up
            );
        }
        for (address, route) in self.multicast_routes() {
            let switches: Vec<String> = route.switches.iter().map(|name| quoted(name)).collect();
            let _ = writeln!(
                out,
                "[[multicast_routes]]\naddress = \"{address}\"\nswitches = [{}]",
                switches.join(", ")
            );
            if let Some(source) = &route.source {
                let _ = writeln!(out, "source = {}", quoted(source));
            }
            out.push('\n');
        }
        for Splitter { from, links } in self.splitters() {
            let link =
                |(port, to): &(u8, End)| format!("{{ port = {port}, to = {} }}", quoted(&to.to_string()));
            let links: Vec<String> = links.iter().map(link).collect();
            let _ = writeln!(
                out,
                "[[splitters]]\nfrom = {}\nlinks = [{}]\n",
                quoted(from),
                links.join(", ")
            );
        }
        out
    }
}

#[derive(Default)]
struct Reader {
    topology: Topology,
    /// Switches that could not be read: links to them are not reported as faults.
    broken: Vec<String>,
    /// Names and field paths of the switches without `mcst_prefix`.
    without_prefix: BTreeMap<String, String>,
    /// Hosts by their addresses.
    ips: BTreeMap<Ipv4Addr, String>,
    macs: BTreeMap<MacAddr, String>,
}

/// Notes that a host has an address.
///
/// # Errors
/// Another host has it.
fn note<A: Copy + Display + Ord>(
    hosts: &mut BTreeMap<A, String>,
    address: Option<A>,
    host: &str,
) -> Result<(), TopologyError> {
    let Some(address) = address else { return Ok(()) };
    match hosts.get(&address) {
        Some(first) => Err(TopologyError::DuplicateAddress {
            address: address.to_string(),
            host: host.into(),
            first: first.clone(),
        }),
        None => {
            hosts.insert(address, host.into());
            Ok(())
        }
    }
}

impl Reader {
    fn switch(&mut self, value: Value<'_>) -> Option<()> {
        let t = value.table("a switch: [[switches]]")?;
        let number = self.topology.switch_count();
        let name = t.need("name", NAME, Value::text);
        let kind = t.optional("kind", SwitchKind::default(), |v| v.parsed(KIND));
        let ports = t.need("ports", PORTS, |v| read_ports(v, number));
        let up = t.optional("up", true, Value::flag);
        let programmable = t.optional("programmable", false, Value::flag);
        let prefix = t.value("mcst_prefix");
        let mcst_prefix = prefix.and_then(|v| v.parsed(PREFIX));
        let name = name?;
        let (Some(ports), Some(kind), Some(up)) = (ports, kind, up) else {
            self.broken.push(name.into());
            return None;
        };
        t.accept_at("name", self.topology.add_switch(name, ports))?;
        self.topology.set_switch_kind(name, kind);
        self.topology.set_switch_up(name, up);
        let programmable = self
            .topology
            .set_programmable(name, programmable.unwrap_or_default());
        t.accept_at("programmable", programmable);
        if prefix.is_none() {
            self.without_prefix.insert(name.into(), value.path());
        }
        t.accept_at("mcst_prefix", self.topology.set_mcst_prefix(name, mcst_prefix?))
    }

    fn host(&mut self, value: Value<'_>) -> Option<()> {
        let t = value.table("a host: [[hosts]]")?;
        let name = t.need("name", NAME, Value::text);
        let ip = t.get("ip", |v| v.parsed(IP));
        let mac = t.get("mac", read_mac);
        let name = name?;
        t.accept_at("name", self.topology.add_host(name, ip, mac))?;
        t.accept_at("ip", note(&mut self.ips, ip, name));
        t.accept_at("mac", note(&mut self.macs, mac.map(MacAddr), name))
    }

    fn link(&mut self, value: Value<'_>) -> Option<()> {
        let t = value.table("a link: [[links]]")?;
        let ends = ["a", "b"].map(|name| t.need(name, "\"switch:port\" or \"host\"", read_end));
        let mtu = t.optional("mtu", DEFAULT_MTU, |v| {
            v.number(576..=65535, "is out of range: an MTU in bytes, 576 to 65535")
        });
        let up = t.optional("up", true, Value::flag);
        let [a, b] = ends;
        let (a, b, mtu, up) = (a?, b?, mtu?, up?);
        let at_fault = if self.topology.check_end(&a).is_err() {
            "a"
        } else {
            "b"
        };
        match self.topology.connect(a, b, mtu) {
            Ok(link) => _ = self.topology.set_link_up(link, up),
            Err(TopologyError::UnknownNode { name }) if self.broken.contains(&name) => {}
            Err(e) => t.fault_at(at_fault, e),
        }
        None
    }
}

impl Reader {
    fn splitter(&mut self, value: Value<'_>) -> Option<()> {
        const LINKS: &str = "a list of { port, to }";
        let t = value.table("a splitter: [[splitters]]")?;
        let from = t.need("from", NAME, |v| v.text().map(String::from));
        let link = |v: Value<'_>| {
            let t = v.table("a link: { port = 2, to = \"leaf2:3\" }")?;
            let port = t.need("port", "a port, 0 to 63", |v| {
                v.number(0..=63, "is no port: 0 to 63")
            });
            let to = t.need("to", "\"switch:port\"", read_end);
            Some((port?, to?))
        };
        let links = |v: Value<'_>| Some(v.list(LINKS)?.map(link).collect());
        let links: Option<Vec<Option<(u8, End)>>> = t.need("links", LINKS, links);
        let links: Vec<(u8, End)> = links?.into_iter().collect::<Option<_>>()?;
        let from = from?;
        let is_broken = |name: &str| self.broken.iter().any(|broken| broken == name);
        if is_broken(&from) || links.iter().any(|(_, end)| is_broken(end.node())) {
            return None;
        }
        t.accept_at("links", self.topology.add_splitter(Splitter { from, links }))
    }

    fn multicast_route(&mut self, value: Value<'_>) -> Option<()> {
        const SWITCHES: &str = "a list of names of Castnet switches";
        let t = value.table("an address: [[multicast_routes]]")?;
        let address = t.need("address", "a multicast address, such as \"239.1.0.1\"", |v| {
            v.parsed(IP)
        });
        let names = |v: Value<'_>| Some(v.list(SWITCHES)?.map(|v| v.text().map(String::from)).collect());
        let switches: Option<Vec<Option<String>>> = t.need("switches", SWITCHES, names);
        let source = t.get("source", |v| v.text().map(String::from));
        let switches: BTreeSet<String> = switches?.into_iter().collect::<Option<_>>()?;
        // A switch that could not be read is a fault already.
        if switches
            .iter()
            .chain(&source)
            .any(|name| self.broken.contains(name))
        {
            return None;
        }
        let route = MulticastRoute { switches, source };
        t.accept_at("address", self.topology.add_multicast_route(address?, route))
    }
}

fn read_ports(value: Value<'_>, switch: usize) -> Option<Vec<(u8, [u8; 6])>> {
    if value.is_number() {
        let outside = "is out of range: ports of a switch, 1 to 64";
        let count: u8 = value.number(1..=PORTS_MAX as u64, outside)?;
        return Some((0..count).map(|port| (port, port_mac(switch, port))).collect());
    }
    // Read all of them before returning, to report each fault.
    let ports: Vec<_> = (0..=u8::MAX)
        .zip(value.list(PORTS)?)
        .map(|(port, item)| read_port(item, port))
        .collect();
    ports.into_iter().collect()
}

/// An Ethernet address, or a table of port number and address.
fn read_port(value: Value<'_>, index: u8) -> Option<(u8, [u8; 6])> {
    if value.is_text() {
        return Some((index, read_mac(value)?));
    }
    let t = value.table(MAC)?;
    let port = t.need("port", "a port, 0 to 63", |v| {
        v.number(0..=63, "is no port: 0 to 63")
    });
    let mac = t.need("mac", MAC, read_mac);
    Some((port?, mac?))
}

fn read_mac(value: Value<'_>) -> Option<[u8; 6]> {
    value.parsed(MAC).map(|MacAddr(mac)| mac)
}

fn read_end(value: Value<'_>) -> Option<End> {
    let text = value.text()?;
    let Some((switch, port)) = text.rsplit_once(':') else {
        return Some(End::host(text));
    };
    let number = port.parse().ok().filter(|port| (*port as usize) < PORTS_MAX);
    let number = number.ok_or_else(|| format!("{port:?} is no port: 0 to 63, as in {switch:?}:0"));
    value.accept(number).map(|port| End::port(switch, port))
}
