//! Topology files: TOML in, TOML out.
//!
//! ```toml
//! [[switches]]
//! name = "leaf"
//! ports = ["06:00:00:00:01:00", "06:00:00:00:01:01"]   # addresses of ports 0 and 1; or a number of ports
//! mcst_prefix = "10.201.0.0/24"                        # McstIDs that routers route to it; needed where one leads to it
//!
//! [[switches]]
//! name = "rack"
//! kind = "plain"                                       # an ordinary switch; "router"; the default is "castnet"
//! ports = 8
//!
//! [[hosts]]
//! name = "h0"
//! ip = "10.0.0.1"                                      # both may be left out
//! mac = "02:00:00:00:00:01"
//!
//! [[links]]
//! a = "leaf:0"
//! b = "h0"
//! mtu = 9000                                           # the default
//! up = true                                            # the default
//! ```

use core::fmt::Write;
use core::net::Ipv4Addr;
use core::ops::Range;

use ipnet::Ipv4Net;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::build::port_mac;
use crate::error::{FileFault, FileFaults, TopologyError};
use crate::graph::{DEFAULT_MTU, End, PORTS_MAX, SwitchKind, Topology};

type Value<'a> = &'a Spanned<DeValue<'a>>;

impl Topology {
    /// Reads a topology file, and says all that is wrong with it at once: every fault with its line, column and field.
    /// Where the text is not TOML, only that is told.
    ///
    /// `[[switches]]` have a `name` and `ports`: a list of the ports' Ethernet addresses, or their number, whose
    /// addresses are then made up; a `kind`, `"castnet"`, `"plain"` or `"router"`; `up`; and Castnet switches that routers lead to a
    /// `mcst_prefix`, which overlaps no other. `[[hosts]]` have a `name` and, where known, `ip` and `mac`. `[[links]]`
    /// have two ends, `a` and `b`, each `"switch:port"` or `"host"`, and `mtu` and `up`.
    pub fn from_toml(text: &str) -> Result<Self, FileFaults> {
        let mut reader = Reader {
            text,
            faults: Vec::new(),
            broken: Vec::new(),
            switches: Vec::new(),
        };
        let (document, errors) = DeTable::parse_recoverable(text);
        for error in errors {
            reader.fault(error.span().unwrap_or(0..0), "", error.message().into());
        }
        let mut topology = Self::new();
        if reader.faults.is_empty() {
            let top = Table {
                path: String::new(),
                span: 0..0,
                table: document.get_ref(),
            };
            reader.known(&top, &["switches", "hosts", "links"]);
            let lists = ["switches", "hosts", "links"].map(|name| reader.tables(&top, name));
            for (list, read) in lists.iter().zip([Reader::switch, Reader::host, Reader::link]) {
                list.iter()
                    .for_each(|table| read(&mut reader, table, &mut topology));
            }
        }
        if reader.faults.is_empty() {
            reader.prefixes(&topology);
        }
        if reader.faults.is_empty() {
            return Ok(topology);
        }
        reader.faults.sort_by_key(|(at, _)| *at);
        Err(FileFaults {
            file: None,
            faults: reader.faults.into_iter().map(|(_, fault)| fault).collect(),
        })
    }

    /// Writes a topology file that [`Topology::from_toml`] reads back to the same fabric.
    pub fn to_toml(&self) -> String {
        let mut out = String::new();
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
            if let Some(prefix) = switch.mcst_prefix {
                let _ = writeln!(out, "mcst_prefix = \"{prefix}\"");
            }
            // Lists have no holes: ports that do not count from 0 are tables.
            let dense = switch.ports.keys().enumerate().all(|(i, p)| i == *p as usize);
            let ports: Vec<String> = switch
                .ports
                .iter()
                .map(|(port, mac)| match dense {
                    true => format!("\"{}\"", mac_text(mac)),
                    false => format!("{{ port = {port}, mac = \"{}\" }}", mac_text(mac)),
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
                let _ = writeln!(out, "mac = \"{}\"", mac_text(mac));
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
        out
    }
}

struct Table<'a> {
    path: String,
    span: Range<usize>,
    table: &'a DeTable<'a>,
}

impl<'a> Table<'a> {
    fn get(&self, name: &str) -> Option<Value<'a>> {
        self.table.get(name)
    }

    fn field(&self, name: &str) -> String {
        if self.path.is_empty() {
            name.into()
        } else {
            format!("{}.{name}", self.path)
        }
    }
}

struct Reader<'t> {
    text: &'t str,
    faults: Vec<(usize, FileFault)>,
    /// Switches that are there, but could not be read: links to them are not at fault.
    broken: Vec<String>,
    /// Name, field and place of each switch.
    switches: Vec<(String, String, Range<usize>)>,
}

impl Reader<'_> {
    fn fault(&mut self, span: Range<usize>, field: &str, message: String) {
        let before = self.text.get(..span.start).unwrap_or(self.text);
        let line_start = before.rfind('\n').map_or(0, |n| n + 1);
        let (line, column) = (
            before.matches('\n').count() + 1,
            before[line_start..].chars().count() + 1,
        );
        self.faults.push((
            span.start,
            FileFault {
                line,
                column,
                field: field.into(),
                message,
            },
        ));
    }

    /// Faults for all fields that are not known here.
    fn known(&mut self, table: &Table<'_>, known: &[&str]) {
        for (key, _) in table.table {
            let name = key.get_ref().as_ref();
            if !known.contains(&name) {
                let meant = known
                    .iter()
                    .find(|k| k.trim_end_matches('s') == name.trim_end_matches('s'));
                let meant = meant
                    .map(|k| format!(", did you mean {k:?}?"))
                    .unwrap_or_default();
                let message = format!("unknown field{meant}; allowed: {}", known.join(", "));
                self.fault(key.span(), &table.field(name), message);
            }
        }
    }

    fn tables<'a>(&mut self, top: &Table<'a>, name: &str) -> Vec<Table<'a>> {
        let Some(value) = top.get(name) else {
            return Vec::new();
        };
        let DeValue::Array(array) = value.get_ref() else {
            self.fault(value.span(), name, format!("a list belongs here: [[{name}]]"));
            return Vec::new();
        };
        let mut tables = Vec::new();
        for (i, item) in array.iter().enumerate() {
            let path = format!("{name}[{i}]");
            match item.get_ref() {
                DeValue::Table(table) => tables.push(Table {
                    path,
                    span: item.span(),
                    table,
                }),
                _ => self.fault(item.span(), &path, format!("a table belongs here: [[{name}]]")),
            }
        }
        tables
    }

    fn switch(&mut self, table: &Table<'_>, topology: &mut Topology) {
        self.known(table, &["name", "kind", "ports", "up", "mcst_prefix"]);
        let name = self.text_of(table, "name", "a name in quotes");
        let kind = self.kind(table);
        let up = self.flag(table, "up");
        let ports = self.ports(table, topology.switches().count());
        let prefix = self.prefix(table);
        let Some((name, span)) = name else {
            return;
        };
        let (Some(ports), Some(kind), Some(up)) = (ports, kind, up) else {
            self.broken.push(name.into());
            return;
        };
        match topology.add_switch(name, ports) {
            Ok(()) => {
                topology.set_switch_kind(name, kind);
                topology.set_switch_up(name, up);
                let field = table.field("mcst_prefix");
                if let Some((prefix, span)) = prefix
                    && let Err(e) = topology.set_mcst_prefix(name, prefix)
                {
                    self.fault(span, &field, e.to_string());
                }
                self.switches.push((name.into(), field, table.span.clone()));
            }
            Err(e) => self.fault(span, &table.field("name"), e.to_string()),
        }
    }

    fn kind(&mut self, table: &Table<'_>) -> Option<SwitchKind> {
        let Some(text) = self.optional_text(table, "kind", KIND) else {
            return Some(SwitchKind::default());
        };
        let (text, span) = text?;
        let kind = SwitchKind::ALL.into_iter().find(|kind| kind.name() == text);
        if kind.is_none() {
            self.fault(span, &table.field("kind"), format!("{text:?} is not {KIND}"));
        }
        kind
    }

    fn prefix(&mut self, table: &Table<'_>) -> Option<(Ipv4Net, Range<usize>)> {
        let (text, span) = self.optional_text(table, "mcst_prefix", PREFIX)??;
        let prefix = text.parse::<Ipv4Net>().ok();
        if prefix.is_none() {
            let message = format!("{text:?} is not {PREFIX}");
            self.fault(span.clone(), &table.field("mcst_prefix"), message);
        }
        Some((prefix?, span))
    }

    /// Faults for all prefixes that are needed and lacking.
    fn prefixes(&mut self, topology: &Topology) {
        for error in topology.prefixes_missing() {
            let TopologyError::PrefixMissing { switch, .. } = &error else {
                continue;
            };
            if let Some((_, field, span)) = self.switches.iter().find(|(name, ..)| name == switch).cloned() {
                self.fault(span, &field, error.to_string());
            }
        }
    }

    fn ports(&mut self, table: &Table<'_>, number: usize) -> Option<Vec<(u8, [u8; 6])>> {
        let field = table.field("ports");
        let expected = format!("a number of ports, 1 to {PORTS_MAX}, or a list of their Ethernet addresses");
        let Some(value) = table.get("ports") else {
            self.fault(table.span.clone(), &field, format!("missing: {expected}"));
            return None;
        };
        match value.get_ref() {
            DeValue::Integer(_) => {
                let count = self.number(value, &field, 1, PORTS_MAX as u32, "ports of a switch")? as u8;
                Some((0..count).map(|p| (p, port_mac(number, p))).collect())
            }
            DeValue::Array(items) if items.len() <= PORTS_MAX => {
                let ports: Vec<_> = items
                    .iter()
                    .enumerate()
                    .map(|(i, item)| self.port(item, &format!("{field}[{i}]"), i))
                    .collect();
                ports.into_iter().collect()
            }
            _ => {
                self.fault(value.span(), &field, format!("{expected} belongs here"));
                None
            }
        }
    }

    fn port(&mut self, item: Value<'_>, field: &str, index: usize) -> Option<(u8, [u8; 6])> {
        match item.get_ref() {
            DeValue::String(text) => Some((index as u8, self.mac(text, item.span(), field)?)),
            DeValue::Table(table) => {
                let table = Table {
                    path: field.into(),
                    span: item.span(),
                    table,
                };
                self.known(&table, &["port", "mac"]);
                let port = match table.get("port") {
                    Some(value) => self.number(
                        value,
                        &table.field("port"),
                        0,
                        PORTS_MAX as u32 - 1,
                        "a port's number",
                    ),
                    None => {
                        self.fault(
                            item.span(),
                            &table.field("port"),
                            "missing: a port, 0 to 63".into(),
                        );
                        None
                    }
                };
                let (text, span) = self.text_of(&table, "mac", MAC)?;
                Some((port? as u8, self.mac(text, span, &table.field("mac"))?))
            }
            _ => {
                self.fault(item.span(), field, format!("{MAC} belongs here"));
                None
            }
        }
    }

    fn host(&mut self, table: &Table<'_>, topology: &mut Topology) {
        self.known(table, &["name", "ip", "mac"]);
        let name = self.text_of(table, "name", "a name in quotes");
        let ip = self.optional_text(table, "ip", IP).map(|text| {
            let (text, span) = text?;
            let ip = text.parse::<Ipv4Addr>().ok();
            if ip.is_none() {
                self.fault(span, &table.field("ip"), format!("{text:?} is not {IP}"));
            }
            ip
        });
        let mac = self.optional_text(table, "mac", MAC).map(|text| {
            let (text, span) = text?;
            self.mac(text, span, &table.field("mac"))
        });
        if let Some((name, span)) = name
            && let Err(e) = topology.add_host(name, ip.flatten(), mac.flatten())
        {
            self.fault(span, &table.field("name"), e.to_string());
        }
    }

    fn link(&mut self, table: &Table<'_>, topology: &mut Topology) {
        self.known(table, &["a", "b", "mtu", "up"]);
        let ends = ["a", "b"].map(|name| {
            let (text, span) = self.text_of(table, name, "\"switch:port\" or \"host\"")?;
            self.end(text, span.clone(), &table.field(name))
                .map(|end| (end, span))
        });
        let mtu = match table.get("mtu") {
            Some(value) => self.number(value, &table.field("mtu"), 576, 65535, "an MTU in bytes"),
            None => Some(DEFAULT_MTU),
        };
        let up = self.flag(table, "up");
        let ([Some((a, _)), Some((b, span_b))], Some(mtu), Some(up)) = (ends, mtu, up) else {
            return;
        };
        let a_is_at_fault = topology.check_end(&a).is_err();
        match topology.connect(a, b, mtu) {
            Ok(link) => _ = topology.set_link_up(link, up),
            Err(TopologyError::UnknownNode { name }) if self.broken.contains(&name) => {}
            Err(e) => {
                let name = if a_is_at_fault { "a" } else { "b" };
                let span = table.get(name).map_or(span_b, |v| v.span());
                self.fault(span, &table.field(name), e.to_string());
            }
        }
    }

    fn end(&mut self, text: &str, span: Range<usize>, field: &str) -> Option<End> {
        let Some((switch, port)) = text.rsplit_once(':') else {
            return Some(End::host(text));
        };
        match port.parse() {
            Ok(port) if (port as usize) < PORTS_MAX => Some(End::port(switch, port)),
            _ => {
                self.fault(
                    span,
                    field,
                    format!("{port:?} is no port: 0 to 63, as in {switch:?}:0"),
                );
                None
            }
        }
    }

    fn text_of<'a>(
        &mut self,
        table: &Table<'a>,
        name: &str,
        expected: &str,
    ) -> Option<(&'a str, Range<usize>)> {
        let text = self.optional_text(table, name, expected);
        if text.is_none() {
            self.fault(
                table.span.clone(),
                &table.field(name),
                format!("missing: {expected}"),
            );
        }
        text.flatten()
    }

    /// Outer `None`: the field is not there; inner `None`: it is no text.
    fn optional_text<'a>(
        &mut self,
        table: &Table<'a>,
        name: &str,
        expected: &str,
    ) -> Option<Option<(&'a str, Range<usize>)>> {
        let value = table.get(name)?;
        match value.get_ref() {
            DeValue::String(text) => Some(Some((text, value.span()))),
            _ => {
                self.fault(
                    value.span(),
                    &table.field(name),
                    format!("{expected} belongs here"),
                );
                Some(None)
            }
        }
    }

    fn flag(&mut self, table: &Table<'_>, name: &str) -> Option<bool> {
        match table.get(name).map(|v| (v.get_ref(), v.span())) {
            None => Some(true),
            Some((DeValue::Boolean(flag), _)) => Some(*flag),
            Some((_, span)) => {
                self.fault(span, &table.field(name), "true or false belongs here".into());
                None
            }
        }
    }

    fn number(&mut self, value: Value<'_>, field: &str, least: u32, most: u32, what: &str) -> Option<u32> {
        let DeValue::Integer(integer) = value.get_ref() else {
            self.fault(
                value.span(),
                field,
                format!("{what}, {least} to {most}, belongs here"),
            );
            return None;
        };
        let number = u32::from_str_radix(integer.as_str(), integer.radix()).ok();
        let number = number.filter(|n| (least..=most).contains(n));
        if number.is_none() {
            self.fault(
                value.span(),
                field,
                format!("{integer} is out of range: {what}, {least} to {most}"),
            );
        }
        number
    }

    fn mac(&mut self, text: &str, span: Range<usize>, field: &str) -> Option<[u8; 6]> {
        let mut mac = [0; 6];
        let mut parts = text.split(':');
        let good = mac.iter_mut().all(|byte| {
            let part = parts.next().filter(|p| p.len() == 2);
            part.and_then(|p| u8::from_str_radix(p, 16).ok())
                .map(|b| *byte = b)
                .is_some()
        });
        if good && parts.next().is_none() {
            return Some(mac);
        }
        self.fault(span, field, format!("{text:?} is not {MAC}"));
        None
    }
}

const KIND: &str = "a kind of switch: \"castnet\", \"plain\" or \"router\"";
const PREFIX: &str = "a prefix of IPv4 addresses, such as \"10.201.0.0/24\"";
const IP: &str = "an IPv4 address, such as \"10.0.0.1\"";
const MAC: &str = "an Ethernet address, such as \"02:00:00:00:00:01\"";

fn mac_text(mac: &[u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}
