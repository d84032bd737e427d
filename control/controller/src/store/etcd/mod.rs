//! A store in an etcd cluster (API v3), for several controllers. Only the leader opens it.
//!
//! Keys are `PREFIX/groups/NAME`, `PREFIX/hosts/NAME`, `PREFIX/meta/NAME`; values as in the redb store: the version of the
//! entry in eight bytes, most significant first, then JSON. `PREFIX/layout` has the version of the layout, `PREFIX/leader` the
//! address of the controller that leads.
//!
//! Each transaction requires that `PREFIX/leader` is that of this controller, unchanged, so a controller that has lost the lead
//! writes nothing. A transaction that fails may have been performed, or may be performed later. Therefore the next access first
//! changes `PREFIX/leader`, which ends a late transaction, and then takes back what was performed.
//!
//! etcd limits the size of a transaction. A batch that exceeds it is first written to `PREFIX/redo/`, in several transactions;
//! the key `PREFIX/redo/commit` makes it valid, and then its entries are moved to their places.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use castnet_proto::transport::{Address, Security};
use tokio::sync::Mutex;
use tonic::{Code, Status};

use super::{
    Batch, Entry, Key, STORE_VERSION, Store, StoreError, Table, Version, check, check_layout, parts,
    with_version,
};
use client::{Client, changed_at, created_at, delete, delete_all, end_of, found, get, put, revision};
pub(crate) use lead::Lead;

mod client;
mod lead;

#[allow(missing_docs, unreachable_pub, clippy::all)]
mod api {
    tonic::include_proto!("etcdserverpb");
}

/// Operations of a transaction; etcd's default limit is 128.
const OPS_MAX: usize = 100;
/// Bytes of the values of a transaction, and of one value; etcd's default limit is 1.5 MiB for a request.
pub(crate) const BYTES_MAX: usize = 1_200_000;
/// Entries of a page.
const PAGE: i64 = 512;

/// Default of [`EtcdConfig::lead_ttl`]: the shortest that etcd grants with its default election timeout.
pub const DEFAULT_LEAD_TTL: Duration = Duration::from_secs(2);

/// Where the store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdConfig {
    /// The members of the cluster.
    pub members: Vec<Address>,
    /// What all keys start with.
    pub prefix: String,
    /// What protects the connections.
    pub security: Security,
    /// A member that has not answered a call for so long is left for another one.
    pub answer_within: Duration,
    /// Time to live of the lease that is the lead: another controller leads so long after the leader has ended, and a leader that
    /// stands still for so long loses the lead. etcd grants whole seconds, so a fraction is left out, and may grant more.
    pub lead_ttl: Duration,
}

/// Result of an attempt to lead.
#[derive(Debug)]
pub enum Campaign {
    /// This controller leads. The store ends when the lead is lost.
    Won(EtcdStore),
    /// The controller with this address leads.
    Lost(String),
}

/// The store of the controller that leads.
#[derive(Debug)]
pub struct EtcdStore {
    name: String,
    prefix: String,
    lead: Arc<Lead>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    entries: HashMap<Key, Known>,
    /// The latest revision that was seen.
    revision: i64,
    /// Revision at which the key of the lead was last changed.
    fence: i64,
    doubt: Option<Doubt>,
    is_closed: bool,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    version: Version,
    /// Revision of its last write; `None`: not known.
    revision: Option<i64>,
}

/// What may have been performed or not.
#[derive(Clone, Debug)]
enum Doubt {
    /// A write of these entries, after this revision.
    Writes(Vec<Key>, i64),
    /// Writes below `PREFIX/redo/`, which are not valid.
    Redo,
    /// A valid batch is not in its place yet.
    Move,
}

/// A controller that wants to lead.
#[derive(Debug)]
pub struct Candidate {
    name: String,
    prefix: String,
    client: Arc<Client>,
    address: String,
    lead_ttl: Duration,
}

impl Candidate {
    /// `address`: where other controllers send clients to.
    pub fn new(config: &EtcdConfig, address: &str) -> Self {
        Self {
            name: format!("etcd {}", config.prefix),
            prefix: config.prefix.clone(),
            client: Arc::new(Client::new(config)),
            address: address.into(),
            lead_ttl: config.lead_ttl,
        }
    }

    /// Takes the lead if no other controller has it.
    ///
    /// # Errors
    /// etcd cannot be reached, or has no quorum.
    pub async fn campaign(&self) -> Result<Campaign, StoreError> {
        let key = format!("{}/leader", self.prefix).into_bytes();
        let outcome = lead::campaign(&self.client, key, &self.address, self.lead_ttl).await;
        Ok(match outcome.map_err(|status| failed(&self.name, &status))? {
            Err(leader) => Campaign::Lost(leader),
            Ok(lead) => {
                let state = State {
                    fence: lead.created,
                    revision: lead.created,
                    ..State::default()
                };
                Campaign::Won(EtcdStore {
                    name: self.name.clone(),
                    prefix: self.prefix.clone(),
                    lead,
                    state: Mutex::new(state),
                })
            }
        })
    }
}

impl EtcdStore {
    pub(crate) fn lead(&self) -> &Arc<Lead> {
        &self.lead
    }

    fn path(&self, rest: &str) -> Vec<u8> {
        format!("{}/{rest}", self.prefix).into_bytes()
    }

    fn path_of(&self, key: &Key) -> Vec<u8> {
        self.path(&format!("{}/{}", key.table.name(), key.name))
    }

    /// The entry of a path; `None`: something else is there.
    fn key_of(&self, path: &[u8], below: &str) -> Option<Key> {
        let path = std::str::from_utf8(path).ok()?;
        let rest = path
            .strip_prefix(&self.prefix)?
            .strip_prefix('/')?
            .strip_prefix(below)?;
        let (table, name) = rest.split_once('/')?;
        let table = Table::ALL.into_iter().find(|t| t.name() == table)?;
        let name = name.into();
        Some(Key { table, name })
    }

    fn failed(&self, status: &Status) -> StoreError {
        failed(&self.name, status)
    }

    fn not_leading(&self) -> StoreError {
        self.lead.lose();
        StoreError::NotLeading {
            store: self.name.clone(),
        }
    }

    /// The lead is that of this controller, and no transaction is in doubt since.
    fn guard(&self, state: &State) -> Vec<api::Compare> {
        let key = &self.lead.key;
        vec![created_at(key, self.lead.created), changed_at(key, state.fence)]
    }

    /// Performs a transaction that requires the lead, and these conditions. Returns its revision: a later write that is taken back leaves it.
    async fn guarded(
        &self,
        state: &mut State,
        mut compare: Vec<api::Compare>,
        success: Vec<api::RequestOp>,
    ) -> Result<i64, StoreError> {
        compare.extend(self.guard(state));
        let request = api::TxnRequest {
            compare,
            success,
            failure: Vec::new(),
        };
        let answer = self.lead.client.transaction(request).await;
        let answer = answer.map_err(|status| self.failed(&status))?;
        let at = revision(answer.header.as_ref());
        state.revision = state.revision.max(at);
        match answer.succeeded {
            true => Ok(at),
            false => Err(self.not_leading()),
        }
    }

    /// All that starts with `prefix`, at one revision.
    async fn all(&self, state: &mut State, prefix: Vec<u8>) -> Result<Vec<api::KeyValue>, StoreError> {
        let (mut all, mut at) = (Vec::new(), 0);
        let (mut key, range_end) = (prefix.clone(), end_of(&prefix));
        loop {
            let request = api::RangeRequest {
                key,
                range_end: range_end.clone(),
                limit: PAGE,
                revision: at,
            };
            let page = self.lead.client.range(request).await;
            let page = page.map_err(|status| self.failed(&status))?;
            if at == 0 {
                at = revision(page.header.as_ref());
                state.revision = state.revision.max(at);
            }
            all.extend(page.kvs);
            match all.last() {
                Some(last) if page.more => key = [&last.key, &[0][..]].concat(),
                _ => return Ok(all),
            }
        }
    }

    async fn read_all(&self, state: &mut State) -> Result<BTreeMap<Key, Entry>, StoreError> {
        if state.is_closed {
            return Err(StoreError::Closed {
                store: self.name.clone(),
            });
        }
        self.settle(state).await?;
        let commit = self.path("redo/commit");
        let all = self.all(state, self.path("")).await?;
        if all.iter().any(|kv| kv.key == commit) {
            // The last leader ended in between.
            self.move_redo(state).await?;
            return Box::pin(self.read_all(state)).await;
        }
        let redo = self.path("redo/");
        let layout = all.iter().find(|kv| kv.key == self.path("layout"));
        if let Some(kv) = layout {
            check_layout(&self.name, &String::from_utf8_lossy(&kv.value))?;
        }
        if layout.is_none() || all.iter().any(|kv| kv.key.starts_with(&redo)) {
            let version = STORE_VERSION.to_string().into_bytes();
            let ops = vec![put(self.path("layout"), version, 0), delete_all(&redo)];
            self.guarded(state, Vec::new(), ops).await?;
        }
        let mut entries = BTreeMap::new();
        state.entries.clear();
        for kv in all {
            let Some(key) = self.key_of(&kv.key, "") else {
                continue;
            };
            let (version, value) = parts(&kv.value);
            let known = Known {
                version,
                revision: Some(kv.mod_revision),
            };
            state.entries.insert(key.clone(), known);
            let value = value.into();
            entries.insert(key, Entry { version, value });
        }
        Ok(entries)
    }

    /// Ends what is in doubt.
    async fn settle(&self, state: &mut State) -> Result<(), StoreError> {
        let Some(doubt) = state.doubt.clone() else {
            return Ok(());
        };
        if let Doubt::Move = doubt {
            return self.move_redo(state).await;
        }
        // From now on, a transaction that is under way fails.
        let lead = &*self.lead;
        let mut success = vec![put(lead.key.clone(), lead.address.clone().into(), lead.lease)];
        match &doubt {
            Doubt::Writes(keys, _) => success.extend(keys.iter().map(|key| get(&self.path_of(key)))),
            _ => success.push(delete_all(&self.path("redo/"))),
        }
        let request = api::TxnRequest {
            compare: vec![created_at(&lead.key, lead.created)],
            success,
            failure: Vec::new(),
        };
        let answer = lead.client.transaction(request).await;
        let answer = answer.map_err(|status| self.failed(&status))?;
        if !answer.succeeded {
            return Err(self.not_leading());
        }
        state.fence = revision(answer.header.as_ref());
        state.revision = state.revision.max(state.fence);
        if let Doubt::Writes(keys, since) = doubt {
            self.take_back(state, &keys, since, found(answer).collect())
                .await?;
        }
        state.doubt = None;
        Ok(())
    }

    /// Gives entries the values that they had at a revision.
    async fn take_back(
        &self,
        state: &mut State,
        keys: &[Key],
        since: i64,
        present: Vec<api::KeyValue>,
    ) -> Result<(), StoreError> {
        let is_as_before = present.iter().all(|kv| kv.mod_revision <= since)
            && keys.iter().filter(|key| state.entries.contains_key(key)).count() == present.len();
        if is_as_before {
            return Ok(());
        }
        let (mut ops, mut bytes) = (Vec::new(), 0);
        for key in keys {
            let path = self.path_of(key);
            let request = api::RangeRequest {
                key: path.clone(),
                revision: since,
                ..Default::default()
            };
            let before = match self.lead.client.range(request).await {
                Ok(before) => before,
                // It was compacted. The next leader takes what is there.
                Err(status) if status.code() == Code::OutOfRange => return Err(self.not_leading()),
                Err(status) => return Err(self.failed(&status)),
            };
            ops.push(match before.kvs.into_iter().next() {
                Some(kv) => {
                    bytes += kv.value.len();
                    put(path, kv.value, 0)
                }
                None => delete(path),
            });
        }
        if bytes > BYTES_MAX {
            return Err(self.not_leading());
        }
        let at = self.guarded(state, Vec::new(), ops).await?;
        for key in keys {
            if let Some(known) = state.entries.get_mut(key) {
                known.revision = Some(at);
            }
        }
        Ok(())
    }

    /// Writes a batch in one transaction.
    async fn write(&self, state: &mut State, batch: Batch) -> Result<(), StoreError> {
        let mut request = api::TxnRequest {
            compare: self.guard(state),
            ..Default::default()
        };
        request.failure.push(get(&self.lead.key));
        for (key, write) in &batch {
            let path = self.path_of(key);
            if let Some(at) = state.entries.get(key).map_or(Some(0), |known| known.revision) {
                request.compare.push(changed_at(&path, at));
            }
            request.failure.push(get(&path));
            request.success.push(match &write.entry {
                Some(entry) => put(path, with_version(entry.version, &entry.value), 0),
                None => delete(path),
            });
        }
        state.doubt = Some(Doubt::Writes(batch.keys().cloned().collect(), state.revision));
        let answer = self.lead.client.transaction(request).await;
        let answer = answer.map_err(|status| self.failed(&status))?;
        // The outcome is known.
        state.doubt = None;
        let at = revision(answer.header.as_ref());
        state.revision = state.revision.max(at);
        if answer.succeeded {
            self.written(state, batch, Some(at));
            return Ok(());
        }
        let mut leads = false;
        let mut versions = HashMap::new();
        for kv in found(answer) {
            if kv.key == self.lead.key {
                leads = kv.create_revision == self.lead.created && kv.mod_revision == state.fence;
            } else if let Some(key) = self.key_of(&kv.key, "") {
                versions.insert(key, (parts(&kv.value).0, kv.mod_revision));
            }
        }
        for (key, write) in batch.into_iter().filter(|_| leads) {
            let (found, at) = versions.get(&key).copied().unwrap_or_default();
            let known = state.entries.get(&key).map_or(Some(0), |known| known.revision);
            if known.is_some_and(|known| known != at) {
                return Err(StoreError::Conflict {
                    store: self.name.clone(),
                    entry: key,
                    expected: write.was,
                    found,
                });
            }
        }
        Err(self.not_leading())
    }

    /// Writes a batch that is too large for one transaction.
    async fn write_large(&self, state: &mut State, batch: Batch) -> Result<(), StoreError> {
        state.doubt = Some(Doubt::Redo);
        let (mut ops, mut bytes) = (vec![delete_all(&self.path("redo/"))], 0);
        self.guarded(state, Vec::new(), std::mem::take(&mut ops)).await?;
        for (key, write) in &batch {
            let value = write.entry.as_ref().map(|e| with_version(e.version, &e.value));
            let value = value.unwrap_or_default();
            if ops.len() == OPS_MAX || bytes + value.len() > BYTES_MAX {
                self.guarded(state, Vec::new(), std::mem::take(&mut ops)).await?;
                bytes = 0;
            }
            bytes += value.len();
            let path = self.path(&format!("redo/{}/{}", key.table.name(), key.name));
            ops.push(put(path, value, 0));
        }
        ops.push(put(self.path("redo/commit"), Vec::new(), 0));
        self.guarded(state, Vec::new(), ops).await?;
        // It is valid: nobody sees the entries in the wrong places.
        state.doubt = Some(Doubt::Move);
        self.written(state, batch, None);
        if let Err(error) = self.move_redo(state).await {
            tracing::debug!(%error, "a large batch is moved to its place later");
        }
        Ok(())
    }

    /// Moves the entries of a valid batch to their places. If it fails, it is repeated.
    async fn move_redo(&self, state: &mut State) -> Result<(), StoreError> {
        let commit = self.path("redo/commit");
        let mut all = self.all(state, self.path("redo/")).await?;
        let Some(at) = all.iter().position(|kv| kv.key == commit) else {
            state.doubt = None;
            return Ok(());
        };
        let commit = all.remove(at);
        let mut all = all.into_iter().peekable();
        while all.peek().is_some() {
            let (mut compare, mut success, mut bytes) = (Vec::new(), Vec::new(), 0);
            while let Some(kv) = all.next_if(|kv| {
                bytes += kv.value.len();
                success.is_empty() || success.len() + 2 <= OPS_MAX && bytes <= BYTES_MAX
            }) {
                // One that was moved already by a transaction that seemed to fail is not moved again.
                compare.push(changed_at(&kv.key, kv.mod_revision));
                if let Some(key) = self.key_of(&kv.key, "redo/") {
                    let path = self.path_of(&key);
                    success.push(match kv.value.is_empty() {
                        true => delete(path),
                        false => put(path, kv.value, 0),
                    });
                }
                success.push(delete(kv.key));
            }
            self.guarded(state, compare, success).await?;
        }
        // A late transaction must not end a later batch.
        let is_same = changed_at(&commit.key, commit.mod_revision);
        self.guarded(state, vec![is_same], vec![delete(commit.key)])
            .await?;
        state.doubt = None;
        Ok(())
    }

    fn written(&self, state: &mut State, batch: Batch, revision: Option<i64>) {
        for (key, write) in batch {
            match write.entry.map(|entry| entry.version) {
                Some(version) => drop(state.entries.insert(key, Known { version, revision })),
                None => drop(state.entries.remove(&key)),
            }
        }
    }
}

#[tonic::async_trait]
impl Store for EtcdStore {
    async fn load(&self) -> Result<BTreeMap<Key, Entry>, StoreError> {
        self.read_all(&mut *self.state.lock().await).await
    }

    async fn commit(&self, batch: Batch) -> Result<(), StoreError> {
        let state = &mut *self.state.lock().await;
        if state.is_closed {
            return Err(StoreError::Closed {
                store: self.name.clone(),
            });
        }
        if self.lead.is_lost() {
            return Err(self.not_leading());
        }
        self.settle(state).await?;
        let mut bytes = 0;
        for (key, write) in &batch {
            let version = state.entries.get(key).map_or(0, |known| known.version);
            check(&self.name, key, write.was, version)?;
            let size = write.entry.as_ref().map_or(0, |e| e.value.len());
            bytes += size;
            if size > BYTES_MAX {
                let error = format!("{size} bytes are more than {BYTES_MAX}, the most that etcd takes");
                return Err(StoreError::Failed {
                    store: self.name.clone(),
                    entry: Some(key.clone()),
                    error: error.into(),
                });
            }
        }
        match batch.len() <= OPS_MAX && bytes <= BYTES_MAX {
            true => self.write(state, batch).await,
            false => self.write_large(state, batch).await,
        }
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.state.lock().await.is_closed = true;
        self.lead.resign().await;
        Ok(())
    }
}

fn failed(store: &str, status: &Status) -> StoreError {
    let error = match status.code() {
        Code::Unavailable | Code::DeadlineExceeded => {
            format!(
                "{}: see that a majority of its members runs and can be reached",
                status.message()
            )
        }
        _ => status.message().into(),
    };
    StoreError::Failed {
        store: store.into(),
        entry: None,
        error: error.into(),
    }
}
