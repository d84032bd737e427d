//! The content of a store as a document: checked, exported, imported. Works on any [`Store`].
//!
//! docs/store.md describes the document.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::net::Ipv4Addr;

use castnet_group::CollectiveSettings;
use castnet_proto::convert::{
    name_from_proto, new_collective_from_proto, new_group_from_proto, unicast_mcst_id_from_proto,
};
use castnet_proto::v1;
use castnet_wire::{McstId, Qpn};
use serde::de::Error as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Batch, Entry, FILE, Key, REFUSED, STORE_VERSION, Store, StoreError, Table, Write, encode};
use crate::state::kinds::{collective, multicast};
use crate::state::written_off::WrittenOff;
use crate::state::{HostRecord, Kind, Record};

/// Entries of a store.
pub type Entries = BTreeMap<Key, Entry>;

/// What is wrong with an entry. Displays as `groups/g1: ...`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EntryFault {
    /// Such as `groups/g1`.
    pub entry: String,
    /// What is wrong with it.
    pub reason: String,
}

impl fmt::Display for EntryFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.entry, self.reason)
    }
}

/// Why a document is not imported. Nothing has changed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum ImportError {
    /// It is not JSON, or not such a document.
    #[error("the document does not read: {0}")]
    Document(#[from] serde_json::Error),
    /// Of an older or newer Castnet.
    #[error("the document has schema {found}; this version reads {STORE_VERSION}")]
    Schema { found: u64 },
    /// Its entries are wrong.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Faults(Vec<EntryFault>),
    /// The store has entries, and they are not to be replaced.
    #[error("the store has {groups} group(s) and {hosts} host(s) already")]
    NotEmpty { groups: usize, hosts: usize },
    /// The store fails.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// An exported store.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    schema: u64,
    #[serde(default)]
    meta: BTreeMap<String, Value>,
    groups: BTreeMap<String, Value>,
    hosts: BTreeMap<String, Value>,
    #[serde(default)]
    written_off: BTreeMap<String, Value>,
}

impl Document {
    fn table(&mut self, table: Table) -> &mut BTreeMap<String, Value> {
        match table {
            Table::Groups => &mut self.groups,
            Table::Hosts => &mut self.hosts,
            Table::WrittenOff => &mut self.written_off,
            Table::Meta => &mut self.meta,
        }
    }
}

/// Entries about the store itself, not its content: `probe`, the term, of which an import sets the epoch, the file where it began, and
/// whether it was refused.
fn is_passing(key: &Key) -> bool {
    key.table == Table::Meta && ["probe", "epoch", "instance", FILE, REFUSED].contains(&key.name.as_str())
}

/// The content of a store as text: JSON, sorted by name, values as stored. Equal for equal content. The second value names the entries that
/// are left out, as they are no such records: a document with one of them cannot be imported.
pub fn export(entries: &Entries) -> (String, Vec<EntryFault>) {
    let mut document = Document {
        schema: STORE_VERSION,
        ..Document::default()
    };
    let mut faults = Vec::new();
    for (key, entry) in entries.iter().filter(|(key, _)| !is_passing(key)) {
        match reads(key, &entry.value).and_then(|()| serde_json::from_slice(&entry.value)) {
            Ok(value) => drop(document.table(key.table).insert(key.name.clone(), value)),
            Err(error) => faults.push(fault(key, format_args!("does not read: {error}"))),
        }
    }
    // Cannot fail: all keys are strings, and it writes to memory.
    let text = serde_json::to_string_pretty(&document).unwrap_or_default();
    (text + "\n", faults)
}

fn reads(key: &Key, value: &[u8]) -> Result<(), serde_json::Error> {
    match key.table {
        Table::Groups => serde_json::from_slice(value).map(|_: Record| ()),
        Table::Hosts => serde_json::from_slice(value).map(|_: HostRecord| ()),
        Table::WrittenOff => serde_json::from_slice(value).map(|_: WrittenOff| ()),
        Table::Meta if key.name == "owner" => serde_json::from_slice(value).map(|_: String| ()),
        Table::Meta => Ok(()),
    }
}

/// Writes an exported document into a store, in one transaction; with `force` in place of what it has. The epoch becomes
/// `now_unix_s`, which is larger than that of any controller that has counted its starts: with this store a controller
/// takes over from one that runs on the store of the export.
///
/// # Errors
/// The document is wrong, all faults at once; or the store has entries already, or fails. Nothing has changed then.
pub async fn import(
    store: &dyn Store,
    text: &str,
    force: bool,
    now_unix_s: u64,
) -> Result<Entries, ImportError> {
    // First only the number: other fields depend on it.
    let whole: Value = serde_json::from_str(text)?;
    let schema = whole.get("schema").and_then(Value::as_u64);
    let found = schema.ok_or_else(|| serde_json::Error::custom("it has no number \"schema\""))?;
    if found != STORE_VERSION {
        return Err(ImportError::Schema { found });
    }
    let mut document: Document = serde_json::from_str(text)?;
    let mut new = Entries::new();
    for table in Table::ALL {
        for (name, value) in std::mem::take(document.table(table)) {
            let value = serde_json::to_vec(&value)?;
            let key = Key { table, name };
            if !is_passing(&key) {
                new.insert(key, Entry { version: 1, value });
            }
        }
    }
    let faults = check(&new);
    if !faults.is_empty() {
        return Err(ImportError::Faults(faults));
    }
    let old = store.load().await?;
    let count = |table| old.keys().filter(|key| key.table == table).count();
    if !force && old.keys().any(|key| !is_passing(key)) {
        let (groups, hosts) = (count(Table::Groups), count(Table::Hosts));
        return Err(ImportError::NotEmpty { groups, hosts });
    }
    let mut batch = Batch::new();
    let epoch = Key::meta("epoch");
    let before = old
        .get(&epoch)
        .and_then(|e| serde_json::from_slice::<u64>(&e.value).ok());
    let value = encode(&before.map_or(now_unix_s, |before| now_unix_s.max(before + 1)));
    new.insert(epoch, Entry { version: 1, value });
    let is_mark = |key: &Key| key.table == Table::Meta && key.name == REFUSED;
    for (key, entry) in old.iter().filter(|(key, _)| !is_passing(key) || is_mark(key)) {
        batch.insert(key.clone(), Write::remove(entry.version));
    }
    for (key, entry) in &mut new {
        let was = old.get(key).map_or(0, |entry| entry.version);
        entry.version = was + 1;
        batch.insert(key.clone(), Write::put(was, entry.value.clone()));
    }
    store.commit(batch).await?;
    Ok(new)
}

fn fault(key: &Key, reason: impl fmt::Display) -> EntryFault {
    EntryFault {
        entry: key.to_string(),
        reason: reason.to_string(),
    }
}

/// All faults: each entry reads, none contradicts another, and a controller begins on them.
pub fn check(entries: &Entries) -> Vec<EntryFault> {
    let mut check = Check::default();
    for (key, entry) in entries {
        match key.table {
            Table::Groups => check.group(key, entry),
            Table::Hosts => check.host(key, entry),
            Table::WrittenOff => check.written_off(key, entry),
            Table::Meta if ["epoch", "instance", REFUSED].contains(&key.name.as_str()) => {
                check.read::<u64>(key, entry);
            }
            Table::Meta if key.name == FILE => drop(check.read::<String>(key, entry)),
            Table::Meta if key.name == "owner" => {
                if check
                    .read::<String>(key, entry)
                    .is_some_and(|owner| owner.is_empty())
                {
                    check.add(key, "is empty: it is the name of the controller at switches");
                }
            }
            Table::Meta => {}
        }
    }
    let number = |name| {
        let entry = entries.get(&Key::meta(name));
        entry.and_then(|e| serde_json::from_slice::<u64>(&e.value).ok())
    };
    if let Some(epoch) = number(REFUSED).filter(|epoch| *epoch == number("epoch").unwrap_or_default()) {
        let refused = StoreError::Refused { epoch };
        let reason = format_args!(
            "{refused}. No controller begins on this store: use that of the other one; or stop that one, export this store, and import it again with --force"
        );
        check.add(&Key::meta(REFUSED), reason);
    }
    let owner = Key::meta("owner");
    let has_groups = entries.keys().any(|key| key.table == Table::Groups);
    if has_groups && !entries.contains_key(&owner) {
        let reason =
            "is missing: without it, the rules of the groups at switches are those of another controller";
        check.add(&owner, reason);
    }
    // Hosts come after groups.
    for (mcst_id, group) in &check.mcst_ids {
        if let Some(host) = check.ips.get(&mcst_id.0) {
            check.faults.push(EntryFault {
                entry: group.clone(),
                reason: format!("McstID {mcst_id} is the address of {host}"),
            });
        }
    }
    check.faults.sort_by(|a, b| a.entry.cmp(&b.entry));
    check.faults
}

/// What the entries so far have, and whose it is.
#[derive(Default)]
struct Check {
    faults: Vec<EntryFault>,
    mcst_ids: BTreeMap<McstId, String>,
    queue_pairs: HashMap<(Ipv4Addr, Qpn), String>,
    ips: BTreeMap<Ipv4Addr, String>,
}

fn json(settings: &impl Serialize) -> Value {
    serde_json::to_value(settings).unwrap_or_default()
}

impl Check {
    fn add(&mut self, key: &Key, reason: impl fmt::Display) {
        self.faults.push(fault(key, reason));
    }

    fn read<T: for<'de> Deserialize<'de>>(&mut self, key: &Key, entry: &Entry) -> Option<T> {
        let read = serde_json::from_slice(&entry.value);
        read.map_err(|error| self.add(key, format_args!("does not read: {error}")))
            .ok()
    }

    fn name(&mut self, key: &Key, name: &str) {
        if name != key.name {
            self.add(key, format_args!("its record is that of {name:?}"));
        } else if let Err(invalid) = name_from_proto("name", name) {
            self.add(key, invalid);
        }
    }

    fn host(&mut self, key: &Key, entry: &Entry) {
        let Some(host) = self.read::<HostRecord>(key, entry) else {
            return;
        };
        self.name(key, &host.name);
        if let Some(other) = self.ips.insert(host.ip, key.to_string()) {
            self.add(key, format_args!("{} is the address of {other} too", host.ip));
        }
    }

    /// Comes after groups.
    fn written_off(&mut self, key: &Key, entry: &Entry) {
        self.read::<WrittenOff>(key, entry);
        match key.name.parse().map(McstId) {
            Err(_) => self.add(key, "its name is no McstID"),
            Ok(mcst_id) => {
                if let Some(group) = self.mcst_ids.get(&mcst_id).cloned() {
                    self.add(
                        key,
                        format_args!("{group} has this McstID, which switches may still have"),
                    );
                }
            }
        }
    }

    fn group(&mut self, key: &Key, entry: &Entry) {
        let Some(record) = self.read::<Record>(key, entry) else {
            return;
        };
        self.name(key, &record.name);
        for mcst_id in record.all_mcst_ids() {
            if let Some(other) = self.mcst_ids.insert(mcst_id, key.to_string()) {
                self.add(key, format_args!("McstID {mcst_id} is that of {other} too"));
            }
        }
        for party in record.kind.behaviour().parties() {
            for end in party.ends.into_iter().flat_map(|ends| ends.iter()) {
                let holder = format!("{} of {key}", party.host);
                if let Some(other) = self.queue_pairs.insert((end.ip, end.qpn), holder) {
                    let (ip, qpn, host) = (end.ip, end.qpn, party.host);
                    self.add(
                        key,
                        format_args!("queue pair {qpn} of {ip}, of {host}, is that of {other} too"),
                    );
                }
            }
        }
        self.settings(key, &record);
        self.layout(key, &record);
    }

    /// What no call accepts, in the words for a request that would create the group. Not its name: groups keep those that are refused by now.
    fn settings(&mut self, key: &Key, record: &Record) {
        let name = String::from("g");
        let (path, is, created) = match &record.kind {
            Kind::Multicast(group) => {
                let request = multicast::view::creation(group, record);
                let created = new_group_from_proto(&v1::CreateGroupRequest { name, ..request });
                ("", json(&group.settings), created.map(|new| json(&new.settings)))
            }
            Kind::Collective(group) => {
                let (lanes, mcst_ids) = (usize::from(group.settings.lanes), record.mcst_ids().count());
                if lanes != mcst_ids {
                    self.add(
                        key,
                        format_args!("settings.lanes: is {lanes}, but the group has {mcst_ids} McstID(s), one for each lane"),
                    );
                }
                let request = collective::view::creation(group, record);
                let created = new_collective_from_proto(&v1::CreateCollectiveRequest { name, ..request });
                let created = created.map(|new| json(&CollectiveSettings::new(&new.settings)));
                ("settings", json(&group.settings), created)
            }
        };
        if let Ok(created) = &created {
            self.compare(key, path, &is, created);
        }
        let addresses = record
            .all_mcst_ids()
            .filter_map(|mcst_id| unicast_mcst_id_from_proto("mcst_id", &mcst_id.to_string()).err());
        for invalid in created.err().into_iter().chain(addresses) {
            for fault in invalid.faults() {
                self.add(key, fault);
            }
        }
    }

    /// The settings at `path`, and those of a group that a request with them creates.
    fn compare(&mut self, key: &Key, path: &str, is: &Value, created: &Value) {
        match is.as_object() {
            Some(parts) => {
                for (name, is) in parts {
                    self.compare(key, &format!("{path}.{name}"), is, &created[name]);
                }
            }
            None if is != created => {
                let path = path.trim_start_matches('.');
                self.add(
                    key,
                    format_args!("{path}: is {is}, which only a request has, for the default"),
                );
            }
            None => {}
        }
    }

    fn layout(&mut self, key: &Key, record: &Record) {
        let Some(plan) = &record.plan else {
            if record.phase.has_run() {
                self.add(key, "it runs, but has no plan");
            }
            return;
        };
        let mut bad = |reason: String| self.add(key, reason);
        let mut tree = BTreeSet::new();
        for switch in &plan.tree {
            let name = &switch.name;
            if let Some(parent) = switch.parent.as_ref().filter(|parent| !tree.contains(*parent)) {
                bad(format!(
                    "switch {name} of its tree is below {parent}, which is not above it"
                ));
            }
            if !tree.insert(name) {
                bad(format!("switch {name} is in its tree twice"));
            }
            if !plan.rules.contains_key(name) {
                bad(format!("switch {name} of its tree has no rule"));
            }
            if record.phase.has_run() && !record.placed.contains(name) {
                bad(format!("it runs on switch {name}, but is not placed there"));
            }
        }
        for switch in plan.rules.keys().filter(|name| !tree.contains(name)) {
            bad(format!("switch {switch} has a rule, but is not in its tree"));
        }
    }
}
