//! A store that fails for a while: when it is tried again, how, and what is logged.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use tokio::time::Instant;

use crate::store::{Batch, Key, Store, StoreError, Version, Write};

/// Pause between log messages about a store that fails.
const LOG_PERIOD: Duration = Duration::from_secs(60);
/// A store that is nearly full has room for a few small entries now and then: that is not enough.
const PROBE_BYTES: RangeInclusive<usize> = 1 << 16..=1 << 20;

/// When a store that fails is tried again, and what is logged about it.
pub(crate) struct Health {
    backoff: (Duration, Duration),
    pause: Duration,
    /// While it fails: time of the next attempt.
    pub(crate) retry_at: Option<Instant>,
    works_since: Instant,
    /// Earliest time of the next message about a failure.
    log_at: Instant,
    is_logged: bool,
}

impl Health {
    /// `backoff`: first and longest pause between attempts.
    pub(crate) fn new(backoff: (Duration, Duration), now: Instant) -> Self {
        Self {
            backoff,
            pause: backoff.0,
            retry_at: None,
            works_since: now,
            log_at: now,
            is_logged: false,
        }
    }

    /// Returns whether to log it.
    pub(crate) fn fails(&mut self, now: Instant) -> bool {
        let (first, longest) = self.backoff;
        // A store that worked only for a moment is not tried more often again.
        if self.retry_at.is_none() && now - self.works_since > longest {
            self.pause = first;
        }
        self.retry_at = Some(now + self.pause);
        self.pause = (self.pause * 2).min(longest);
        let logs = now >= self.log_at;
        if logs {
            self.log_at = now + LOG_PERIOD;
            self.is_logged = true;
        }
        logs
    }

    /// Returns whether to log it.
    pub(crate) fn works(&mut self, now: Instant) -> bool {
        self.retry_at = None;
        self.works_since = now;
        std::mem::take(&mut self.is_logged)
    }
}

/// An entry of the controller itself.
pub(crate) struct Own {
    key: Key,
    version: Version,
}

impl Own {
    pub(crate) fn new(name: &str, versions: &BTreeMap<Key, Version>) -> Self {
        let key = Key::meta(name);
        let version = versions.get(&key).copied().unwrap_or(0);
        Self { key, version }
    }

    pub(crate) async fn write(&mut self, store: &dyn Store, value: Vec<u8>) -> Result<(), StoreError> {
        let batch = [(self.key.clone(), Write::put(self.version, value))];
        store.commit(batch.into()).await?;
        self.version += 1;
        Ok(())
    }
}

/// Writes an entry of the store that has no meaning, to see whether others can be written.
pub(crate) struct Probe {
    entry: Own,
    bytes: usize,
}

impl Probe {
    pub(crate) fn new(versions: &BTreeMap<Key, Version>) -> Self {
        Self {
            entry: Own::new("probe", versions),
            bytes: *PROBE_BYTES.start(),
        }
    }

    /// The next probe is as large as this batch, within limits.
    pub(crate) fn set_size(&mut self, batch: &Batch) {
        let entries = batch.values().filter_map(|write| write.entry.as_ref());
        let bytes: usize = entries.map(|e| e.value.len()).sum();
        self.bytes = bytes.clamp(*PROBE_BYTES.start(), *PROBE_BYTES.end());
    }

    pub(crate) async fn write(&mut self, store: &dyn Store) -> Result<(), StoreError> {
        for bytes in [self.bytes, 0] {
            self.entry.write(store, vec![0; bytes]).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

    #[test]
    fn pauses_grow_and_one_line_a_minute_is_logged() {
        let start = Instant::now();
        let mut health = Health::new(BACKOFF, start);
        let (mut now, mut attempts, mut lines) = (start, 0, 0);
        while now - start < Duration::from_secs(3600) {
            lines += usize::from(health.fails(now));
            attempts += 1;
            now = health.retry_at.unwrap();
        }
        // 50 ms to 1.6 s, then every 2 s.
        assert_eq!((attempts, lines), (1805, 60));
        assert!(health.works(now));
        assert_eq!(health.retry_at, None);
    }

    #[test]
    fn a_store_that_comes_and_goes_is_not_tried_and_logged_more_often() {
        let mut now = Instant::now();
        let mut health = Health::new(BACKOFF, now);
        let (mut failures, mut recoveries) = (0, 0);
        for _ in 0..90 {
            failures += usize::from(health.fails(now));
            now = health.retry_at.unwrap();
            recoveries += usize::from(health.works(now));
        }
        // 3 minutes, nearly.
        assert_eq!((failures, recoveries), (3, 3));
        assert_eq!(health.pause, BACKOFF.1);
        now += BACKOFF.1 * 2;
        health.fails(now);
        assert_eq!(health.retry_at, Some(now + BACKOFF.0));
    }
}
