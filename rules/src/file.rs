//! Reads and writes rule files (TOML).

use core::fmt::Write;

use castnet_wire::{MacAddr, McstId, Pmtu, PortId, Qpn};

use crate::check;
use crate::draft::{
    EndpointDraft, GroupDraft, HopDraft, HostDraft, PartDraft, RankDraft, RouteDraft, SwitchDraft,
};
use crate::fault::{FaultKind, Faults};
use crate::group::{
    DEFAULT_STALL_TIMEOUT_MS, GroupRule, HostEndpoint, HostPart, NextHop, RankPart, RemoteMemory,
};
use crate::kinds::{GroupKind, KindDraft};
use crate::limit::{IP_TEXT, Limit, MAC_TEXT, PREFIX_TEXT};
use crate::reader::{self, Fields, Reader, Value, needed_psn, optional, read_port, read_u32};
use crate::route::Route;
use crate::set::RuleSet;

const NAME: &str = "a name in quotes";
pub(crate) const PORT: &str = "a port, 0 to 63";
const ENDPOINTS: &str = "a list of endpoints: [[groups.endpoints]]";

impl RuleSet {
    /// Reads a rule file and reports all faults at once, each with line, column and field. Ports are checked against
    /// the limit of 64; [`RuleSet::check`] checks them against the number of ports of a switch.
    ///
    /// If the text is not TOML, only that is reported. `examples/` holds files to start from.
    pub fn from_toml(text: &str) -> Result<Self, Faults> {
        reader::read(text, read_set)
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

fn read_set<'t>(r: &mut Reader<'t>, mut fields: Fields<'_, 't>) -> Option<RuleSet> {
    // `None` if a group lacks a field; then the file has faults.
    let (mut groups, mut checked) = (Some(Vec::new()), check::Groups::new(PortId::COUNT));
    let lists = [
        ("groups", "a list of groups: [[groups]]", "multicast"),
        // Name of the list of groups that compute in earlier versions.
        ("collectives", "a list of groups: [[groups]]", "translated"),
    ];
    for (name, expected, kind) in lists {
        let list = match name {
            "collectives" => fields.take_old(r, name),
            _ => fields.take(r, name),
        };
        let values = list.and_then(|value| r.array(&value, expected));
        for (i, value) in values.into_iter().flatten().enumerate() {
            let group = read_group(r, &value, kind).unwrap_or_default();
            r.fault_at_fields(checked.check(&format!("{name}[{i}]"), &group));
            // A file can have very many groups. The positions of this group's fields are no longer needed.
            r.forget_positions();
            groups = groups.zip(group.finish()).map(|(mut groups, group)| {
                groups.push(group);
                groups
            });
        }
    }
    let mut routes = Vec::new();
    if let Some(value) = fields.take(r, "routes") {
        for value in r
            .array(&value, "a list of routes: [[routes]]")
            .into_iter()
            .flatten()
        {
            routes.push(read_route(r, &value).unwrap_or_default());
        }
    }
    fields.finish(r);
    r.fault_at_fields(check::routes(&routes, PortId::COUNT));
    Some(RuleSet {
        groups: groups?,
        routes: routes
            .into_iter()
            .map(RouteDraft::finish)
            .collect::<Option<_>>()?,
    })
}

/// Reads a group. Its kind is `kind` if the table names none.
fn read_group<'t>(r: &mut Reader<'t>, value: &Value<'_, 't>, kind: &'static str) -> Option<GroupDraft> {
    let mut f = r.table(value, "a group: [[groups]]")?;
    let (given, known) = (f.take(r, "kind"), GroupKind::NAMES);
    let kind = match &given {
        None => kind,
        Some(value) => {
            let name = r.text(value)?;
            let Some(kind) = known.iter().find(|k| **k == name) else {
                // The fields of an unknown kind cannot be checked.
                let name = name.to_string();
                r.fault(value, FaultKind::UnknownKind { name, known });
                return None;
            };
            kind
        }
    };
    let group = GroupDraft {
        name: read_name(r, &mut f),
        generation: optional(r, &mut f, "generation", 0, |r, v| r.number(v, &Limit::U64)),
        mcst_id: f
            .need(r, "mcst_id", IP_TEXT)
            .and_then(|v| r.parsed(&v, IP_TEXT))
            .map(McstId),
        pmtu: f
            .need(r, "pmtu", "256, 512, 1024, 2048 or 4096")
            .and_then(|v| read_pmtu(r, &v)),
        stall_timeout_ms: optional(r, &mut f, "stall_timeout_ms", DEFAULT_STALL_TIMEOUT_MS, read_u32),
        kind: KindDraft::read(kind, r, &mut f),
        endpoints: f.need(r, "endpoints", ENDPOINTS).and_then(|v| {
            let values = r.array(&v, ENDPOINTS)?;
            let read = |v| read_endpoint(r, v, kind).unwrap_or_default();
            Some(values.iter().map(read).collect())
        }),
    };
    f.finish(r);
    Some(group)
}

fn read_endpoint<'t>(r: &mut Reader<'t>, value: &Value<'_, 't>, kind: &str) -> Option<EndpointDraft> {
    let mut f = r.table(value, "an endpoint: [[groups.endpoints]]")?;
    let port = f.need(r, "port", PORT).and_then(|v| read_port(r, &v));
    let virtual_qpn = read_qpn(r, &mut f, "virtual_qpn");
    let verify_mac = optional(r, &mut f, "verify_mac", false, Reader::boolean);
    let (host, switch) = (f.take(r, "host"), f.take(r, "switch"));
    match (&host, &switch) {
        (None, None) => f.fault(r, FaultKind::NoNextHop),
        (Some(_), Some(_)) => f.fault(r, FaultKind::TwoNextHops),
        _ => {}
    }
    let host = host.and_then(|v| read_host(r, &v, kind)).map(HopDraft::Host);
    let switch = switch
        .and_then(|v| read_switch(r, &v, kind))
        .map(HopDraft::Switch);
    f.finish(r);
    Some(EndpointDraft {
        port,
        virtual_qpn,
        verify_mac,
        next_hop: host.or(switch),
    })
}

fn has_ranks(kind: &str) -> bool {
    kind == "translated"
}

fn read_host<'t>(r: &mut Reader<'t>, value: &Value<'_, 't>, kind: &str) -> Option<HostDraft> {
    let expected = match has_ranks(kind) {
        true => "a host: { rank, name, ip, qpn, mac, sq_psn, rq_psn }",
        false => "a host: { name, ip, qpn, mac }",
    };
    let mut f = r.table(value, expected)?;
    let rank = has_ranks(kind).then(|| {
        f.need(r, "rank", "a rank, 0 to 1023")
            .and_then(|v| r.number(&v, &Limit::RANK))
            .map(|n| n as u16)
    });
    let host = HostDraft {
        name: read_name(r, &mut f),
        ip: f.need(r, "ip", IP_TEXT).and_then(|v| r.parsed(&v, IP_TEXT)),
        qpn: f
            .need(r, "qpn", "the host's QPN, 0x2 to 0xfffffe")
            .and_then(|v| r.number(&v, &Limit::QPN))
            .map(|n| Qpn::new(n as u32)),
        mac: read_mac_or_none(r, &mut f),
        part: match rank {
            Some(rank) => Some(PartDraft::Rank(RankDraft {
                rank,
                sq_psn: needed_psn(r, &mut f, "sq_psn"),
                rq_psn: needed_psn(r, &mut f, "rq_psn"),
            })),
            None => optional(r, &mut f, "memory", PartDraft::Plain, |r, v| {
                read_memory(r, v).map(PartDraft::Memory)
            }),
        },
    };
    f.finish(r);
    Some(host)
}

/// Reads an optional QPN of a switch; [`Qpn::VIRTUAL`] by default.
fn read_qpn<'t>(r: &mut Reader<'t>, f: &mut Fields<'_, 't>, name: &'static str) -> Option<Qpn> {
    optional(r, f, name, Qpn::VIRTUAL, |r, v| {
        r.number(v, &Limit::QPN).map(|n| Qpn::new(n as u32))
    })
}

fn read_memory<'t>(r: &mut Reader<'t>, value: &Value<'_, 't>) -> Option<RemoteMemory> {
    let mut f = r.table(value, "memory: { va, rkey, length }")?;
    let va = f
        .need(r, "va", "a virtual address")
        .and_then(|v| r.number(&v, &Limit::U64));
    let rkey = f
        .need(r, "rkey", "a remote key")
        .and_then(|v| r.number(&v, &Limit::U32));
    let length = f
        .need(r, "length", "a length in bytes")
        .and_then(|v| r.number(&v, &Limit::U64));
    f.finish(r);
    Some(RemoteMemory {
        va: va?,
        rkey: rkey? as u32,
        length: length?,
    })
}

fn read_switch<'t>(r: &mut Reader<'t>, value: &Value<'_, 't>, kind: &str) -> Option<SwitchDraft> {
    const RANKS: &str = "the ranks behind it: [0, 1]";
    let expected = match has_ranks(kind) {
        true => "a switch: { name, mac, ranks }",
        false => "a switch: { name, mac }",
    };
    let mut f = r.table(value, expected)?;
    let name = read_name(r, &mut f);
    let ip = optional(r, &mut f, "ip", None, |r, v| r.parsed(v, IP_TEXT).map(Some));
    let hop = SwitchDraft {
        name,
        ip,
        qpn: read_qpn(r, &mut f, "qpn"),
        mac: match ip {
            Some(None) => read_mac(r, &mut f),
            _ => read_mac_or_none(r, &mut f),
        },
        ranks: match has_ranks(kind) {
            false => Some(Vec::new()),
            true => f.need(r, "ranks", RANKS).and_then(|v| {
                let values = r.array(&v, RANKS)?;
                // Read all of them before returning, to report each fault.
                let ranks: Vec<_> = values.iter().map(|v| r.number(v, &Limit::RANK)).collect();
                ranks.into_iter().map(|n| n.map(|n| n as u16)).collect()
            }),
        },
    };
    f.finish(r);
    Some(hop)
}

fn read_route<'t>(r: &mut Reader<'t>, value: &Value<'_, 't>) -> Option<RouteDraft> {
    let mut f = r.table(value, "a route: [[routes]]")?;
    let prefix = f
        .need(r, "prefix", PREFIX_TEXT)
        .and_then(|v| r.parsed(&v, PREFIX_TEXT));
    let next_hops = f.need(r, "next_hops", "a list of { port, mac }").and_then(|v| {
        let values = r.array(&v, "a list of { port, mac }")?;
        Some(
            values
                .iter()
                .map(|v| read_route_hop(r, v).unwrap_or_default())
                .collect(),
        )
    });
    f.finish(r);
    Some(RouteDraft { prefix, next_hops })
}

fn read_route_hop<'t>(
    r: &mut Reader<'t>,
    value: &Value<'_, 't>,
) -> Option<(Option<PortId>, Option<MacAddr>)> {
    let mut f = r.table(value, "a next hop: { port, mac }")?;
    let port = f.need(r, "port", PORT).and_then(|v| read_port(r, &v));
    let mac = read_mac(r, &mut f);
    f.finish(r);
    Some((port, mac))
}

fn read_name<'t>(r: &mut Reader<'t>, fields: &mut Fields<'_, 't>) -> Option<String> {
    fields
        .need(r, "name", NAME)
        .and_then(|v| r.text(&v).map(str::to_string))
}

fn read_mac<'t>(r: &mut Reader<'t>, fields: &mut Fields<'_, 't>) -> Option<MacAddr> {
    fields
        .need(r, "mac", MAC_TEXT)
        .and_then(|v| r.parsed(&v, MAC_TEXT))
}

/// Reads an optional MAC address. The switch resolves a missing one.
fn read_mac_or_none<'t>(r: &mut Reader<'t>, fields: &mut Fields<'_, 't>) -> Option<MacAddr> {
    optional(r, fields, "mac", MacAddr::UNSPECIFIED, |r, v| {
        r.parsed(v, MAC_TEXT)
    })
}

/// A MAC address as written in files; empty if unspecified.
fn mac_text(mac: MacAddr) -> String {
    match mac {
        MacAddr::UNSPECIFIED => String::new(),
        mac => format!(", mac = \"{mac}\""),
    }
}

fn read_pmtu<'t>(r: &mut Reader<'t>, value: &Value<'_, 't>) -> Option<Pmtu> {
    let bytes = r.number(value, &Limit::PMTU)?;
    let pmtu = Pmtu::from_bytes(bytes as u32);
    if pmtu.is_none() {
        r.fault(value, Limit::PMTU.fault(bytes));
    }
    pmtu
}

fn write_group(out: &mut String, group: &GroupRule) {
    let GroupRule {
        name,
        generation,
        mcst_id,
        pmtu,
        stall_timeout_ms,
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
    kind.write(group, out);
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
                format!(
                    "switch = {{ name = {}{ip}{qpn}{}{ranks} }}",
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
    let hops: Vec<String> = route
        .next_hops
        .iter()
        .map(|hop| format!("{{ port = {}, mac = \"{}\" }}", hop.port, hop.mac))
        .collect();
    let hops = hops.join(", ");
    line(
        out,
        format_args!(
            "[[routes]]\nprefix = \"{}\"\nnext_hops = [{hops}]\n",
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
