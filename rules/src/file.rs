//! Rule files: TOML in, TOML out.

use core::fmt::Write;

use castnet_wire::{MacAddr, McstId, Pmtu, PortId, Psn, Qpn};

use crate::check;
use crate::collective_draft::CollectiveDraft;
use crate::collective_file::{read_collective, write_collective};
use crate::draft::{GroupDraft, HopDraft, MemberDraft, PathDraft, RouteDraft};
use crate::fault::{FaultKind, Faults};
use crate::group::{DEFAULT_STALL_TIMEOUT_MS, HostEndpoint, MulticastGroup, NextHop, RemoteMemory};
use crate::limit::{IP_TEXT, Limit, MAC_TEXT, PREFIX_TEXT};
use crate::reader::{self, Fields, Reader, Value};
use crate::route::Route;
use crate::set::RuleSet;

const NAME: &str = "a name in quotes";
pub(crate) const PORT: &str = "a port, 0 to 63";

impl RuleSet {
    /// Reads a rule file, and says all that is wrong with it at once: every fault with its line, column and field.
    /// Ports are checked against the limit of 64; [`RuleSet::check`] knows the switch's own number.
    ///
    /// Where the text is not TOML, only that is told. `examples/` has files to start from.
    pub fn from_toml(text: &str) -> Result<Self, Faults> {
        reader::read(text, read_set)
    }

    /// Writes a rule file that [`RuleSet::from_toml`] reads back to the same rules.
    pub fn to_toml(&self) -> String {
        let mut out = String::new();
        for group in &self.groups {
            write_group(&mut out, group);
        }
        for group in &self.collectives {
            write_collective(&mut out, group);
        }
        for route in &self.routes {
            write_route(&mut out, route);
        }
        out
    }
}

fn read_set<'t>(r: &mut Reader<'t>, mut fields: Fields<'_, 't>) -> Option<RuleSet> {
    let mut groups = Vec::new();
    if let Some(value) = fields.take(r, "groups") {
        for value in r
            .array(&value, "a list of groups: [[groups]]")
            .into_iter()
            .flatten()
        {
            groups.push(read_group(r, &value).unwrap_or_default());
        }
    }
    let mut collectives = Vec::new();
    if let Some(value) = fields.take(r, "collectives") {
        for value in r
            .array(&value, "a list of collective groups: [[collectives]]")
            .into_iter()
            .flatten()
        {
            collectives.push(read_collective(r, &value).unwrap_or_default());
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
    r.place(check::switch(&groups, &collectives, &routes, PortId::COUNT));
    Some(RuleSet {
        groups: groups
            .into_iter()
            .map(GroupDraft::finish)
            .collect::<Option<_>>()?,
        collectives: collectives
            .into_iter()
            .map(CollectiveDraft::finish)
            .collect::<Option<_>>()?,
        routes: routes
            .into_iter()
            .map(RouteDraft::finish)
            .collect::<Option<_>>()?,
    })
}

fn read_group<'t>(r: &mut Reader<'t>, value: &Value<'_, 't>) -> Option<GroupDraft> {
    let mut f = r.table(value, "a group: [[groups]]")?;
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
        start_psn: optional(r, &mut f, "start_psn", None, |r, v| {
            r.number(v, &Limit::PSN).map(|n| Some(Psn::new(n as u32)))
        }),
        va_base: optional(r, &mut f, "va_base", 0, |r, v| r.number(v, &Limit::U64)),
        source: f.need(r, "source", PORT).and_then(|v| read_port(r, &v)),
        stall_timeout_ms: optional(r, &mut f, "stall_timeout_ms", DEFAULT_STALL_TIMEOUT_MS, |r, v| {
            r.number(v, &Limit::U32).map(|n| n as u32)
        }),
        paths: f
            .need(r, "paths", "a list of paths: [[groups.paths]]")
            .and_then(|v| {
                let values = r.array(&v, "a list of paths: [[groups.paths]]")?;
                Some(
                    values
                        .iter()
                        .map(|v| read_path(r, v).unwrap_or_default())
                        .collect(),
                )
            }),
    };
    f.finish(r);
    Some(group)
}

fn read_path<'t>(r: &mut Reader<'t>, value: &Value<'_, 't>) -> Option<PathDraft> {
    let mut f = r.table(value, "a path: [[groups.paths]]")?;
    let port = f.need(r, "port", PORT).and_then(|v| read_port(r, &v));
    let (host, switch) = (f.take(r, "host"), f.take(r, "switch"));
    match (&host, &switch) {
        (None, None) => f.fault(r, FaultKind::NoNextHop),
        (Some(_), Some(_)) => f.fault(r, FaultKind::TwoNextHops),
        _ => {}
    }
    let host = host.and_then(|v| read_host(r, &v)).map(HopDraft::Host);
    let switch = switch.and_then(|v| read_switch(r, &v));
    f.finish(r);
    Some(PathDraft {
        port,
        next_hop: host.or(switch),
    })
}

fn read_host<'t>(r: &mut Reader<'t>, value: &Value<'_, 't>) -> Option<MemberDraft> {
    let mut f = r.table(value, "a host: { name, ip, qpn, mac }")?;
    let member = MemberDraft {
        name: read_name(r, &mut f),
        ip: f.need(r, "ip", IP_TEXT).and_then(|v| r.parsed(&v, IP_TEXT)),
        qpn: f
            .need(r, "qpn", "the host's QPN, 0x2 to 0xfffffe")
            .and_then(|v| r.number(&v, &Limit::QPN))
            .map(|n| Qpn::new(n as u32)),
        mac: read_mac(r, &mut f),
        memory: optional(r, &mut f, "memory", None, |r, v| read_memory(r, v).map(Some)),
    };
    f.finish(r);
    Some(member)
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

fn read_switch<'t>(r: &mut Reader<'t>, value: &Value<'_, 't>) -> Option<HopDraft> {
    let mut f = r.table(value, "a switch: { name, mac }")?;
    let hop = HopDraft::Switch {
        name: read_name(r, &mut f),
        mac: read_mac(r, &mut f),
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

pub(crate) fn optional<'t, T>(
    r: &mut Reader<'t>,
    fields: &mut Fields<'_, 't>,
    name: &'static str,
    absent: T,
    read: impl FnOnce(&mut Reader<'t>, &Value<'_, 't>) -> Option<T>,
) -> Option<T> {
    match fields.take(r, name) {
        Some(value) => read(r, &value),
        None => Some(absent),
    }
}

pub(crate) fn read_name<'t>(r: &mut Reader<'t>, fields: &mut Fields<'_, 't>) -> Option<String> {
    fields
        .need(r, "name", NAME)
        .and_then(|v| r.text(&v).map(str::to_string))
}

pub(crate) fn read_mac<'t>(r: &mut Reader<'t>, fields: &mut Fields<'_, 't>) -> Option<MacAddr> {
    fields
        .need(r, "mac", MAC_TEXT)
        .and_then(|v| r.parsed(&v, MAC_TEXT))
}

pub(crate) fn read_port<'t>(r: &mut Reader<'t>, value: &Value<'_, 't>) -> Option<PortId> {
    r.number(value, &Limit::PORT).and_then(|n| PortId::new(n as u8))
}

pub(crate) fn read_pmtu<'t>(r: &mut Reader<'t>, value: &Value<'_, 't>) -> Option<Pmtu> {
    let bytes = r.number(value, &Limit::PMTU)?;
    let pmtu = Pmtu::from_bytes(bytes as u32);
    if pmtu.is_none() {
        r.fault(value, Limit::PMTU.fault(bytes));
    }
    pmtu
}

fn write_group(out: &mut String, group: &MulticastGroup) {
    let MulticastGroup {
        name,
        generation,
        mcst_id,
        pmtu,
        start_psn,
        va_base,
        source,
        paths,
        stall_timeout_ms,
    } = group;
    let (name, pmtu) = (quoted(name), pmtu.bytes());
    line(
        out,
        format_args!("[[groups]]\nname = {name}\ngeneration = {generation}\nmcst_id = \"{mcst_id}\""),
    );
    line(out, format_args!("pmtu = {pmtu}"));
    if let Some(psn) = start_psn {
        line(out, format_args!("start_psn = {psn}"));
    }
    line(
        out,
        format_args!("va_base = {va_base:#x}\nsource = {source}\nstall_timeout_ms = {stall_timeout_ms}"),
    );
    if paths.is_empty() {
        line(out, format_args!("paths = []"));
    }
    for path in paths {
        let hop = match &path.next_hop {
            NextHop::Host(host) => host_text(host),
            NextHop::Switch { name, mac } => {
                format!("switch = {{ name = {}, mac = \"{mac}\" }}", quoted(name))
            }
        };
        line(
            out,
            format_args!("\n[[groups.paths]]\nport = {}\n{hop}", path.port),
        );
    }
    out.push('\n');
}

fn host_text(host: &HostEndpoint) -> String {
    let HostEndpoint {
        name,
        ip,
        qpn,
        mac,
        memory,
    } = host;
    let memory = match memory {
        None => String::new(),
        Some(RemoteMemory { va, rkey, length }) => {
            format!(", memory = {{ va = {va:#x}, rkey = {rkey:#x}, length = {length} }}")
        }
    };
    format!(
        "host = {{ name = {}, ip = \"{ip}\", qpn = {qpn}, mac = \"{mac}\"{memory} }}",
        quoted(name)
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
