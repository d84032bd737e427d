//! A store that ends with the process, for demonstrations and tests.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{Batch, Entry, Key, Store, StoreError, check};

/// Entries in memory. Clones share them, so the store can outlive a controller.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore(Arc<Mutex<BTreeMap<Key, Entry>>>);

#[tonic::async_trait]
impl Store for MemoryStore {
    async fn load(&self) -> Result<BTreeMap<Key, Entry>, StoreError> {
        Ok(self.0.lock().clone())
    }

    async fn commit(&self, batch: Batch) -> Result<(), StoreError> {
        let mut entries = self.0.lock();
        for (key, write) in &batch {
            let found = entries.get(key).map_or(0, |e| e.version);
            check("(memory)", key, write.was, found)?;
        }
        for (key, write) in batch {
            match write.entry {
                Some(entry) => drop(entries.insert(key, entry)),
                None => drop(entries.remove(&key)),
            }
        }
        Ok(())
    }

    async fn close(&self) -> Result<(), StoreError> {
        Ok(())
    }
}
