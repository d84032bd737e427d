//! A store that fails and delays as it is told, or by a seed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use castnet_controller::store::{Batch, Entry, Key, Store, StoreError, Table};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::sleep;

use crate::random::Random;

/// What happens to the next batches.
#[derive(Debug, Default)]
struct Faults {
    /// Commits so far.
    commits: u64,
    /// Those of groups.
    of_groups: u64,
    /// All fail.
    broken: bool,
    /// These fail, counted from 1.
    fails: Vec<u64>,
    /// A third of the commits fail, and all take some time: by this seed.
    seed: Option<Random>,
    /// Commits say so and wait for a permit of this.
    gate: Option<(Arc<Semaphore>, mpsc::UnboundedSender<()>)>,
    /// Time that each commit takes.
    delay: Duration,
    /// Keys that were stored.
    stored: BTreeSet<Key>,
}

/// A store around another one.
#[derive(Clone, Debug)]
pub struct FaultyStore {
    inner: Arc<dyn Store>,
    faults: Arc<parking_lot::Mutex<Faults>>,
}

impl FaultyStore {
    /// A store that works.
    pub fn new(inner: Arc<dyn Store>) -> Self {
        let faults = Arc::default();
        Self { inner, faults }
    }

    /// Commits since the store was made.
    pub fn commits(&self) -> u64 {
        self.faults.lock().commits
    }

    /// Commits of groups since the store was made; others are probes.
    pub fn commits_of_groups(&self) -> u64 {
        self.faults.lock().of_groups
    }

    /// Whether all commits fail from now on.
    pub fn set_broken(&self, broken: bool) {
        self.faults.lock().broken = broken;
    }

    /// The commits of these numbers fail, counted from the next, which is 1.
    pub fn fail(&self, numbers: &[u64]) {
        let mut faults = self.faults.lock();
        faults.fails = numbers.iter().map(|n| faults.commits + n).collect();
    }

    /// From now on some fail and all take a while.
    pub fn seed(&self, seed: Option<u64>) {
        self.faults.lock().seed = seed.map(Random);
    }

    /// Commits are held back no longer, nor those that wait.
    pub fn release(&self) {
        if let Some((gate, _)) = self.faults.lock().gate.take() {
            gate.add_permits(Semaphore::MAX_PERMITS / 2);
        }
    }

    /// From now on each commit takes so long.
    pub fn slow(&self, delay: Duration) {
        self.faults.lock().delay = delay;
    }

    /// Whether it has ever had an entry.
    pub fn has_had(&self, table: Table, name: &str) -> bool {
        let name = name.into();
        self.faults.lock().stored.contains(&Key { table, name })
    }

    /// Holds commits back; tells of each that waits.
    pub fn hold(&self) -> (Arc<Semaphore>, mpsc::UnboundedReceiver<()>) {
        let (waits, told) = mpsc::unbounded_channel();
        let gate = Arc::new(Semaphore::new(0));
        self.faults.lock().gate = Some((gate.clone(), waits));
        (gate, told)
    }
}

#[tonic::async_trait]
impl Store for FaultyStore {
    async fn load(&self) -> Result<BTreeMap<Key, Entry>, StoreError> {
        self.inner.load().await
    }

    async fn commit(&self, batch: Batch) -> Result<(), StoreError> {
        let (fails, pauses, gate, delay) = {
            let faults = &mut *self.faults.lock();
            faults.commits += 1;
            faults.of_groups += u64::from(batch.keys().any(|key| key.table == Table::Groups));
            let mut fails = faults.broken || faults.fails.contains(&faults.commits);
            let mut pauses = 0;
            if let Some(random) = &mut faults.seed {
                fails |= random.below(3) == 0;
                pauses = random.below(20);
            }
            (fails, pauses, faults.gate.clone(), faults.delay)
        };
        if !delay.is_zero() {
            sleep(delay).await;
        }
        if let Some((gate, waits)) = gate {
            let _ = waits.send(());
            gate.acquire().await.unwrap().forget();
        }
        for _ in 0..pauses {
            tokio::task::yield_now().await;
        }
        if fails {
            return Err(StoreError::Failed {
                store: "(faulty)".into(),
                entry: batch.into_keys().next(),
                error: "no space left on device".into(),
            });
        }
        let keys: Vec<Key> = batch.keys().cloned().collect();
        self.inner.commit(batch).await?;
        self.faults.lock().stored.extend(keys);
        Ok(())
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.inner.close().await
    }
}
