//! Reads and writes rule files (TOML).

use core::fmt::Write;
use core::net::Ipv4Addr;

use castnet_toml_reader::{Faults, Table, Value};
use castnet_wire::{MacAddr, McstId, Pmtu, PortId, Psn, Qpn};

use crate::check;
use crate::draft::{
    EndpointDraft, GroupDraft, HopDraft, HostDraft, PartDraft, RankDraft, RouteDraft, SwitchDraft,
};
use crate::fault::FaultKind;
use crate::group::{
    DEFAULT_STALL_TIMEOUT_MS, GroupRule, HostEndpoint, HostPart, NextHop, RankPart, RemoteMemory,
};
use crate::kinds::{GroupKind, KindDraft};
use crate::limit::{IP_TEXT, Limit, MAC_TEXT, PREFIX_TEXT};
use crate::route::Route;
use crate::set::RuleSet;

const PSN: &str = "a PSN, 0 to 0xffffff";
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
            let group = read_group(value, kind).unwrap_or_default();
            for fault in checked.check(&group) {
                value.fault_at(&fault.field, fault.kind);
            }
            groups.push(group.finish());
        }
    }
    let routes = file.items("routes", "a list of routes: [[routes]]", |v| {
        Some(read_route(v).unwrap_or_default())
    });
    for fault in check::routes(&routes, PortId::COUNT) {
        file.fault_at(&fault.field, fault.kind);
    }
    Some(RuleSet {
        groups: groups.into_iter().collect::<Option<_>>()?,
        routes: routes
            .into_iter()
            .map(RouteDraft::finish)
            .collect::<Option<_>>()?,
    })
}

/// `kind` is for tables that name none.
fn read_group(value: Value<'_>, kind: &'static str) -> Option<GroupDraft> {
    let t = value.table("a group: [[groups]]")?;
    let kind = t.optional("kind", kind, |v| {
        let (name, known) = (v.text()?, GroupKind::NAMES);
        let kind = known.iter().find(|kind| **kind == name).copied();
        let name = name.into();
        v.accept(kind.ok_or(FaultKind::UnknownKind { name, known }))
    });
    let Some(kind) = kind else {
        t.accept_all();
        return None;
    };
    Some(GroupDraft {
        name: read_name(&t),
        generation: t.optional("generation", 0, |v| Limit::U64.read(v)),
        mcst_id: t.need("mcst_id", IP_TEXT, read_ip).map(McstId),
        pmtu: t.need("pmtu", "256, 512, 1024, 2048 or 4096", read_pmtu),
        stall_timeout_ms: t.optional("stall_timeout_ms", DEFAULT_STALL_TIMEOUT_MS, |v| {
            Limit::U32.read(v)
        }),
        kind: KindDraft::read(kind, &t),
        endpoints: t.need("endpoints", ENDPOINTS, |v| {
            let endpoints = v.list(ENDPOINTS)?;
            Some(
                endpoints
                    .map(|v| read_endpoint(v, kind).unwrap_or_default())
                    .collect(),
            )
        }),
    })
}

fn read_endpoint(value: Value<'_>, kind: &str) -> Option<EndpointDraft> {
    let t = value.table("an endpoint: [[groups.endpoints]]")?;
    let (port, virtual_qpn) = (read_port(&t), read_virtual_qpn(&t, "virtual_qpn"));
    let verify_mac = t.optional("verify_mac", false, Value::flag);
    let (host, switch) = (t.value("host"), t.value("switch"));
    match (&host, &switch) {
        (None, None) => value.fault(FaultKind::NoNextHop),
        (Some(_), Some(_)) => value.fault(FaultKind::TwoNextHops),
        _ => {}
    }
    let host = host.and_then(|v| read_host(v, kind)).map(HopDraft::Host);
    let switch = switch.and_then(|v| read_switch(v, kind)).map(HopDraft::Switch);
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

fn read_host(value: Value<'_>, kind: &str) -> Option<HostDraft> {
    let expected = match has_ranks(kind) {
        true => "a host: { rank, name, ip, qpn, mac, sq_psn, rq_psn }",
        false => "a host: { name, ip, qpn, mac }",
    };
    let t = value.table(expected)?;
    let rank = has_ranks(kind).then(|| t.need("rank", "a rank, 0 to 1023", |v| Limit::RANK.read(v)));
    Some(HostDraft {
        name: read_name(&t),
        ip: t.need("ip", IP_TEXT, read_ip),
        qpn: t.need("qpn", "the host's QPN, 0x2 to 0xfffffe", read_qpn),
        mac: t.optional("mac", MacAddr::UNSPECIFIED, read_mac),
        part: match rank {
            Some(rank) => Some(PartDraft::Rank(RankDraft {
                rank,
                sq_psn: t.need("sq_psn", PSN, read_psn),
                rq_psn: t.need("rq_psn", PSN, read_psn),
            })),
            None => t.optional("memory", PartDraft::Plain, |v| {
                read_memory(v).map(PartDraft::Memory)
            }),
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

fn read_switch(value: Value<'_>, kind: &str) -> Option<SwitchDraft> {
    const RANKS: &str = "the ranks behind it: [0, 1]";
    let expected = match has_ranks(kind) {
        true => "a switch: { name, mac, ranks }",
        false => "a switch: { name, mac }",
    };
    let t = value.table(expected)?;
    let name = read_name(&t);
    let ip = t.optional("ip", None, |v| read_ip(v).map(Some));
    Some(SwitchDraft {
        name,
        ip,
        qpn: read_virtual_qpn(&t, "qpn"),
        mac: match ip {
            Some(None) => t.need("mac", MAC_TEXT, read_mac),
            _ => t.optional("mac", MacAddr::UNSPECIFIED, read_mac),
        },
        ranks: match has_ranks(kind) {
            false => Some(Vec::new()),
            true => t.need("ranks", RANKS, |v| {
                // All of them are read before the return, to report each fault.
                let ranks: Vec<_> = v.list(RANKS)?.map(|v| Limit::RANK.read(v)).collect();
                ranks.into_iter().collect()
            }),
        },
    })
}

fn read_route(value: Value<'_>) -> Option<RouteDraft> {
    const NEXT_HOPS: &str = "a list of { port, mac }";
    let t = value.table("a route: [[routes]]")?;
    Some(RouteDraft {
        prefix: t.need("prefix", PREFIX_TEXT, |v| v.parsed(PREFIX_TEXT)),
        next_hops: t.need("next_hops", NEXT_HOPS, |v| {
            let hops = v.list(NEXT_HOPS)?;
            Some(hops.map(|v| read_route_hop(v).unwrap_or_default()).collect())
        }),
    })
}

fn read_route_hop(value: Value<'_>) -> Option<(Option<PortId>, Option<MacAddr>)> {
    let t = value.table("a next hop: { port, mac }")?;
    Some((read_port(&t), t.need("mac", MAC_TEXT, read_mac)))
}

fn read_name(table: &Table<'_>) -> Option<String> {
    table.need("name", "a name in quotes", Value::string)
}

fn read_port(table: &Table<'_>) -> Option<PortId> {
    table.need("port", "a port, 0 to 63", port)
}

pub(crate) fn port(value: Value<'_>) -> Option<PortId> {
    PortId::new(Limit::PORT.read(value)?)
}

/// [`Qpn::VIRTUAL`] by default.
fn read_virtual_qpn(table: &Table<'_>, name: &'static str) -> Option<Qpn> {
    table.optional(name, Qpn::VIRTUAL, read_qpn)
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

fn read_mac(value: Value<'_>) -> Option<MacAddr> {
    value.parsed(MAC_TEXT)
}

fn read_pmtu(value: Value<'_>) -> Option<Pmtu> {
    let bytes = Limit::PMTU.read(value)?;
    value.accept(Pmtu::from_bytes(bytes).ok_or_else(|| Limit::PMTU.fault(bytes)))
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
