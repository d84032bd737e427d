//! Reads and writes rule files (TOML).

use core::fmt::Write;
use core::net::Ipv4Addr;

use castnet_toml_reader::{Faults, Table, Value};
use castnet_wire::{BitRate, MacAddr, McstId, Pmtu, PortId, Psn, Qpn, RateLimit};

use crate::check::{self, Unread};
use crate::fault::FaultKind;
use crate::group::{
    DEFAULT_STALL_TIMEOUT_MS, Endpoint, GroupRule, HostEndpoint, HostPart, NextHop, RankPart, RemoteMemory,
};
use crate::kinds::GroupKind;
use crate::limit::{IP_TEXT, Limit, MAC_TEXT, MODE_TEXT, PREFIX_TEXT, RATE_TEXT};
use crate::route::{Route, RouteHop};
use crate::set::RuleSet;

const PSN: &str = "a PSN, 0 to 0xffffff";
pub(crate) const ENDPOINT: &str = "the name of one of its endpoints, or a port that only one is at";
const ENDPOINTS: &str = "a list of endpoints: [[groups.endpoints]]";

/// New and old names of fields; old ones are still accepted.
const RENAMED: &[(&str, &str)] = &[
    ("endpoints", "paths"),
    ("start_psn", "psn_start"),
    ("host", "rank"),
];

impl RuleSet {
    /// Reads a rule file. Reports all faults at once, each with line, column and field. Ports may be 0 to 63;
    /// [`RuleSet::check`] checks them for a switch. If the text is not TOML, only that is reported.
    pub fn from_toml(text: &str) -> Result<Self, Faults> {
        castnet_toml_reader::read(text, RENAMED, read_set)
    }

    /// Writes a rule file. [`RuleSet::from_toml`] reads it back to the same rules.
    pub fn to_toml(&self) -> String {
        let mut out = String::new();
        for group in &self.groups {
            write_group(&mut out, group);
        }
        for route in &self.routes {
            write_route(&mut out, route);
        }
        out
    }
}

fn read_set(file: &Table<'_>) -> Option<RuleSet> {
    let (mut groups, mut checked) = (Vec::new(), check::Groups::new(PortId::COUNT));
    let lists = [
        (file.value("groups"), "multicast"),
        // In earlier versions groups that compute had a list of their own.
        (file.old_value("collectives"), "translated"),
    ];
    for (list, kind) in &lists {
        let values = list.as_ref().and_then(|v| v.list("a list of groups: [[groups]]"));
        for value in values.into_iter().flatten() {
            let Some((group, unread)) = read_group(value, kind) else {
                continue;
            };
            for fault in checked.check(&group, &unread) {
                value.fault_at(&fault.field, fault.kind);
            }
            groups.push(group);
        }
    }
    let routes = file.items("routes", "a list of routes: [[routes]]", |v| Some(read_route(v)));
    for fault in check::check_routes(&routes, PortId::COUNT, &Unread(file.faulty())) {
        file.fault_at(&fault.field, fault.kind);
    }
    Some(RuleSet { groups, routes })
}

/// `kind` is for tables that name none. A field that could not be read has a placeholder.
fn read_group(value: Value<'_>, kind: &'static str) -> Option<(GroupRule, Unread)> {
    let t = value.table("a group: [[groups]]")?;
    let kind = t.optional("kind", kind, |v| {
        let (name, known) = (v.text()?, GroupKind::NAMES);
        let kind = known.iter().find(|kind| **kind == name).copied();
        let name = name.into();
        v.accept(kind.ok_or(FaultKind::UnknownKind { name, known }))
    });
    let Some(kind_name) = kind else {
        t.accept_all();
        return None;
    };
    let name = read_name(&t);
    let generation = t.get("generation", |v| Limit::U64.read(v)).unwrap_or_default();
    let mcst_id = t.need("mcst_id", IP_TEXT, read_ip);
    let pmtu = t.need("pmtu", "256, 512, 1024, 2048 or 4096", read_pmtu);
    let stall_timeout_ms = t.get("stall_timeout_ms", |v| Limit::U32.read(v));
    let rate_limit = t.get("rate_limit", read_rate_limit);
    let (mut kind, upstream) = GroupKind::read(kind_name, &t)?;
    let endpoints = t.need("endpoints", ENDPOINTS, |v| {
        let endpoints = v.list(ENDPOINTS)?;
        Some(endpoints.map(|v| read_endpoint(v, kind_name)).collect())
    });
    let endpoints: Vec<Endpoint> = endpoints.unwrap_or_default();
    let mut unread = Unread(value.faulty());
    if let (Some(value), Some(index)) = (upstream, kind.fields_mut().upstream_mut()) {
        match find_endpoint(value, &endpoints, &unread) {
            Some(found) => *index = found,
            None => _ = unread.0.insert(value.name().into()),
        }
    }
    let group = GroupRule {
        name,
        generation,
        mcst_id: McstId(mcst_id.unwrap_or(Ipv4Addr::UNSPECIFIED)),
        pmtu: pmtu.unwrap_or(Pmtu::B1024),
        stall_timeout_ms: stall_timeout_ms.unwrap_or(DEFAULT_STALL_TIMEOUT_MS),
        rate_limit,
        endpoints,
        kind,
    };
    Some((group, unread))
}

/// Index of the endpoint with a name, or of the only one at a port. `None` after a fault, or if an endpoint that could
/// not be read may be the one.
fn find_endpoint(value: Value<'_>, endpoints: &[Endpoint], unread: &Unread) -> Option<u16> {
    let found = if value.is_text() {
        let name = value.string()?;
        let names: Vec<_> = endpoints.iter().map(|e| e.next_hop.name().to_string()).collect();
        if unread.has("endpoints") || names.iter().any(String::is_empty) {
            return None;
        }
        let index = names.iter().position(|n| *n == name);
        index.ok_or(FaultKind::NoEndpointOf { name, names })
    } else {
        let port = port(value)?;
        let is_unread = |i| unread.has(format_args!("endpoints[{i}].port"));
        if unread.has("endpoints") || (0..endpoints.len()).any(is_unread) {
            return None;
        }
        let ports: Vec<_> = endpoints.iter().map(|e| e.port).collect();
        let index = ports.iter().position(|p| *p == port);
        match ports.iter().filter(|p| **p == port).count() {
            2.. => Err(FaultKind::SeveralEndpointsAt { port }),
            _ => index.ok_or(FaultKind::NoEndpointAt { port, ports }),
        }
    };
    value.accept(found).map(|index| index as u16)
}

fn read_endpoint(value: Value<'_>, kind: &str) -> Endpoint {
    let unread = NextHop::switch(String::new(), MacAddr::UNSPECIFIED);
    let Some(t) = value.table("an endpoint: [[groups.endpoints]]") else {
        return Endpoint::new(PortId::default(), unread);
    };
    let (port, virtual_qpn) = (read_port(&t), read_virtual_qpn(&t, "virtual_qpn"));
    let verify_mac = t.get("verify_mac", Value::flag).unwrap_or_default();
    let joining = t.get("joining", Value::flag).unwrap_or_default();
    let (host, switch) = (t.value("host"), t.value("switch"));
    match (&host, &switch) {
        (None, None) => value.fault(FaultKind::NoNextHop),
        (Some(_), Some(_)) => value.fault(FaultKind::TwoNextHops),
        _ => {}
    }
    let host = host.and_then(|v| read_host(v, kind)).map(NextHop::Host);
    let switch = switch.and_then(|v| read_switch(v, kind));
    Endpoint {
        port,
        virtual_qpn,
        verify_mac,
        joining,
        next_hop: host.or(switch).unwrap_or(unread),
    }
}

fn has_ranks(kind: &str) -> bool {
    kind == "translated"
}

fn read_host(value: Value<'_>, kind: &str) -> Option<HostEndpoint> {
    let expected = match has_ranks(kind) {
        true => "a host: { rank, name, ip, qpn, mac, sq_psn, rq_psn }",
        false => "a host: { name, ip, qpn, mac }",
    };
    let t = value.table(expected)?;
    let rank = has_ranks(kind).then(|| t.need("rank", "a rank, 0 to 1023", |v| Limit::RANK.read(v)));
    let psn = |name| t.need(name, PSN, read_psn).unwrap_or_default();
    Some(HostEndpoint {
        name: read_name(&t),
        ip: t.need("ip", IP_TEXT, read_ip).unwrap_or(Ipv4Addr::UNSPECIFIED),
        qpn: t
            .need("qpn", "the host's QPN, 0x2 to 0xfffffe", read_qpn)
            .unwrap_or_default(),
        mac: t.get("mac", read_mac).unwrap_or_default(),
        part: match rank {
            Some(rank) => HostPart::Rank(RankPart {
                rank: rank.unwrap_or(u16::MAX),
                sq_psn: psn("sq_psn"),
                rq_psn: psn("rq_psn"),
            }),
            None => t.get("memory", read_memory).into(),
        },
    })
}

fn read_memory(value: Value<'_>) -> Option<RemoteMemory> {
    let t = value.table("memory: { va, rkey, length }")?;
    let va = t.need("va", "a virtual address", |v| Limit::U64.read(v));
    let rkey = t.need("rkey", "a remote key", |v| Limit::U32.read(v));
    let length = t.need("length", "a length in bytes", |v| Limit::U64.read(v));
    Some(RemoteMemory {
        va: va?,
        rkey: rkey?,
        length: length?,
    })
}

fn read_switch(value: Value<'_>, kind: &str) -> Option<NextHop> {
    const RANKS: &str = "the ranks behind it: [0, 1]";
    let expected = match has_ranks(kind) {
        true => "a switch: { name, mac, ranks }",
        false => "a switch: { name, mac }",
    };
    let t = value.table(expected)?;
    let name = read_name(&t);
    let ip = t.value("ip").map(|v| read_ip(v).unwrap_or(Ipv4Addr::UNSPECIFIED));
    Some(NextHop::Switch {
        name,
        ip,
        qpn: read_virtual_qpn(&t, "qpn"),
        mac: match ip {
            None => t.need("mac", MAC_TEXT, read_mac).unwrap_or_default(),
            Some(_) => t.get("mac", read_mac).unwrap_or_default(),
        },
        ranks: match has_ranks(kind) {
            false => Vec::new(),
            true => {
                let rank = |v: Value<'_>| Limit::RANK.read(v).unwrap_or(u16::MAX);
                let ranks = t.need("ranks", RANKS, |v| Some(v.list(RANKS)?.map(rank).collect()));
                ranks.unwrap_or_default()
            }
        },
        mode: t.get("mode", |v| v.parsed(MODE_TEXT)),
        core: t.get("core", read_ip),
    })
}

fn read_route(value: Value<'_>) -> Route {
    const NEXT_HOPS: &str = "a list of { port, mac }";
    const COPY_TO: &str = "a list of IPv4 addresses";
    let t = value.table("a route: [[routes]]");
    let t = t.as_ref();
    let prefix = t.and_then(|t| t.need("prefix", PREFIX_TEXT, |v| v.parsed(PREFIX_TEXT)));
    let hops = |v: Value<'_>| Some(v.list(NEXT_HOPS)?.map(read_route_hop).collect());
    let addresses = |v: Value<'_>| {
        let address = |v| read_ip(v).unwrap_or(Ipv4Addr::UNSPECIFIED);
        Some(v.list(COPY_TO)?.map(address).collect())
    };
    let copy_to: Option<Vec<Ipv4Addr>> = t.and_then(|t| t.get("copy_to", addresses));
    let next_hops = t.and_then(|t| match &copy_to {
        Some(_) => t.get("next_hops", hops),
        None => t.need("next_hops", NEXT_HOPS, hops),
    });
    Route {
        prefix: prefix.unwrap_or_default(),
        next_hops: next_hops.unwrap_or_default(),
        replicate: t
            .and_then(|t| t.get("replicate", Value::flag))
            .unwrap_or_default(),
        copy_to: copy_to.unwrap_or_default(),
    }
}

fn read_route_hop(value: Value<'_>) -> RouteHop {
    let t = value.table("a next hop: { port, mac }");
    let t = t.as_ref();
    RouteHop {
        port: t.map(read_port).unwrap_or_default(),
        mac: t
            .and_then(|t| t.need("mac", MAC_TEXT, read_mac))
            .unwrap_or_default(),
    }
}

fn read_name(table: &Table<'_>) -> String {
    let name = table.need("name", "a name in quotes", Value::string);
    name.unwrap_or_default()
}

fn read_port(table: &Table<'_>) -> PortId {
    table.need("port", "a port, 0 to 63", port).unwrap_or_default()
}

fn port(value: Value<'_>) -> Option<PortId> {
    PortId::new(Limit::PORT.read(value)?)
}

/// [`Qpn::VIRTUAL`] by default.
fn read_virtual_qpn(table: &Table<'_>, name: &'static str) -> Qpn {
    let qpn = table.optional(name, Qpn::VIRTUAL, read_qpn);
    qpn.unwrap_or_default()
}

fn read_qpn(value: Value<'_>) -> Option<Qpn> {
    Limit::QPN.read(value).map(Qpn::new)
}

pub(crate) fn read_psn(value: Value<'_>) -> Option<Psn> {
    Limit::PSN.read(value).map(Psn::new)
}

fn read_ip(value: Value<'_>) -> Option<Ipv4Addr> {
    value.parsed(IP_TEXT)
}

/// Zeros are no address: they are what a missing one is.
fn read_mac(value: Value<'_>) -> Option<MacAddr> {
    let mac = value.parsed(MAC_TEXT)?;
    value.accept(match check::bad_mac(mac) {
        Some(kind) if mac == MacAddr::UNSPECIFIED => Err(kind),
        _ => Ok(mac),
    })
}

fn read_pmtu(value: Value<'_>) -> Option<Pmtu> {
    let bytes = Limit::PMTU.read(value)?;
    value.accept(Pmtu::from_bytes(bytes).ok_or_else(|| Limit::PMTU.fault(bytes)))
}

/// `"400M"`, or with a burst other than the default `{ rate = "400M", burst_bytes = 65536 }`.
fn read_rate_limit(value: Value<'_>) -> Option<RateLimit> {
    let rate = |v: Value<'_>| v.parsed::<BitRate>(RATE_TEXT);
    if value.is_text() {
        return rate(value).map(RateLimit::of);
    }
    let t = value.table("a rate in quotes, or a table: { rate, burst_bytes }")?;
    let burst_bytes = t.get("burst_bytes", |v| Limit::U64.read(v));
    let limit = RateLimit::of(t.need("rate", RATE_TEXT, rate)?);
    Some(RateLimit {
        burst_bytes: burst_bytes.unwrap_or(limit.burst_bytes),
        ..limit
    })
}

fn rate_limit_text(limit: RateLimit) -> String {
    let RateLimit { rate, burst_bytes } = limit;
    match limit == RateLimit::of(rate) {
        true => format!("\"{rate}\""),
        false => format!("{{ rate = \"{rate}\", burst_bytes = {burst_bytes} }}"),
    }
}

/// Empty if unspecified.
fn mac_text(mac: MacAddr) -> String {
    match mac {
        MacAddr::UNSPECIFIED => String::new(),
        mac => format!(", mac = \"{mac}\""),
    }
}

fn write_group(out: &mut String, group: &GroupRule) {
    let GroupRule {
        name,
        generation,
        mcst_id,
        pmtu,
        stall_timeout_ms,
        rate_limit,
        endpoints,
        kind,
    } = group;
    let (name, pmtu) = (quoted(name), pmtu.bytes());
    line(
        out,
        format_args!(
            "[[groups]]\nkind = \"{}\"\nname = {name}\ngeneration = {generation}\nmcst_id = \"{mcst_id}\"\npmtu = \
             {pmtu}\nstall_timeout_ms = {stall_timeout_ms}",
            kind.name()
        ),
    );
    if let Some(limit) = rate_limit {
        line(out, format_args!("rate_limit = {}", rate_limit_text(*limit)));
    }
    kind.fields().write(group, out);
    if endpoints.is_empty() {
        line(out, format_args!("endpoints = []"));
    }
    for endpoint in endpoints {
        let hop = match &endpoint.next_hop {
            NextHop::Host(host) => host_text(host),
            NextHop::Switch {
                name,
                ip,
                qpn,
                mac,
                ranks,
                mode,
                core,
            } => {
                let ip = ip.map_or_else(String::new, |ip| format!(", ip = \"{ip}\""));
                let qpn = match *qpn {
                    Qpn::VIRTUAL => String::new(),
                    qpn => format!(", qpn = {qpn}"),
                };
                let ranks = match &ranks[..] {
                    [] if !has_ranks(kind.name()) => String::new(),
                    ranks => format!(", ranks = {ranks:?}"),
                };
                let mode = mode.map_or_else(String::new, |mode| format!(", mode = \"{mode}\""));
                let core = core.map_or_else(String::new, |core| format!(", core = \"{core}\""));
                format!(
                    "switch = {{ name = {}{ip}{qpn}{}{ranks}{mode}{core} }}",
                    quoted(name),
                    mac_text(*mac)
                )
            }
        };
        line(
            out,
            format_args!("\n[[groups.endpoints]]\nport = {}", endpoint.port),
        );
        if endpoint.virtual_qpn != Qpn::VIRTUAL {
            line(out, format_args!("virtual_qpn = {}", endpoint.virtual_qpn));
        }
        if endpoint.verify_mac {
            line(out, format_args!("verify_mac = true"));
        }
        if endpoint.joining {
            line(out, format_args!("joining = true"));
        }
        line(out, format_args!("{hop}"));
    }
    out.push('\n');
}

fn host_text(host: &HostEndpoint) -> String {
    let HostEndpoint {
        name,
        ip,
        qpn,
        mac,
        part,
    } = host;
    let part = match part {
        HostPart::Plain => String::new(),
        HostPart::Memory(RemoteMemory { va, rkey, length }) => {
            format!(", memory = {{ va = {va:#x}, rkey = {rkey:#x}, length = {length} }}")
        }
        HostPart::Rank(RankPart { rank, sq_psn, rq_psn }) => {
            format!(", rank = {rank}, sq_psn = {sq_psn}, rq_psn = {rq_psn}")
        }
    };
    format!(
        "host = {{ name = {}, ip = \"{ip}\", qpn = {qpn}{}{part} }}",
        quoted(name),
        mac_text(*mac)
    )
}

fn write_route(out: &mut String, route: &Route) {
    if !route.copy_to.is_empty() {
        let copies: Vec<String> = route.copy_to.iter().map(|to| format!("\"{to}\"")).collect();
        let (prefix, copies) = (route.prefix, copies.join(", "));
        return line(
            out,
            format_args!("[[routes]]\nprefix = \"{prefix}\"\ncopy_to = [{copies}]\n"),
        );
    }
    let hops: Vec<String> = route
        .next_hops
        .iter()
        .map(|hop| format!("{{ port = {}, mac = \"{}\" }}", hop.port, hop.mac))
        .collect();
    let hops = hops.join(", ");
    let replicate = if route.replicate { "replicate = true\n" } else { "" };
    line(
        out,
        format_args!(
            "[[routes]]\nprefix = \"{}\"\nnext_hops = [{hops}]\n{replicate}",
            route.prefix
        ),
    );
}

pub(crate) fn line(out: &mut String, text: core::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{text}");
}

pub(crate) fn quoted(text: &str) -> String {
    toml::Value::String(text.into()).to_string()
}
