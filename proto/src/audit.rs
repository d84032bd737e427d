//! The audit log: one JSON object a line for each call that is more than reading.
//!
//! A thread writes it, so that no call waits for the disk. If the disk is full or slow, lines are lost; how many, the log of the
//! service says. A file that was renamed or removed is made anew, as log rotation wants it. One of 64 MiB becomes `FILE.1`, that before
//! it `FILE.2`, up to `FILE.3`: it never takes more than 256 MiB, whoever calls.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use castnet_wire::{Limit, Nanos};
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::watch;

use crate::access::{Caller, Role};

/// What each line begins with: its first field.
const LINE_START: &[u8] = b"{\"at_unix_ns\":";
/// Lines that wait to be written.
const WAITING_MAX: usize = 4096;
/// Most bytes of a file.
const SIZE_MAX: u64 = 64 << 20;
/// Full files that are kept.
const KEPT: u32 = 3;
/// Most characters of a text that a caller gives.
const TEXT_MAX: usize = 256;
/// Lines of a host or a reader, of which strangers must not push out those of others.
const OF_CALLER: Limit = Limit::new(8192, Nanos::from_millis(200));
/// Lost lines are logged at most so often.
const LOST_INTERVAL: Duration = Duration::from_secs(60);
/// How long an end waits for the lines that are not written yet.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// One call.
#[derive(Debug, Serialize)]
struct Line<'l> {
    at_unix_ns: u64,
    identity: &'l str,
    role: String,
    address: &'l str,
    method: &'l str,
    /// The group, host or route; empty if the call was refused before it was read.
    object: &'l str,
    /// `ok`, or the code of the refusal.
    outcome: &'l str,
    /// Why it was refused.
    #[serde(skip_serializing_if = "str::is_empty")]
    reason: &'l str,
}

/// An open audit log. Its thread ends when it is closed, or with the last clone.
#[derive(Clone, Debug)]
pub struct AuditLog {
    /// `None`: it is closed.
    lines: Arc<Mutex<Option<SyncSender<String>>>>,
    /// Its thread has the other end until it ends.
    thread: watch::Receiver<()>,
    lost: Arc<AtomicU64>,
    /// By identity, of hosts and readers.
    limits: Arc<Mutex<BTreeMap<String, Limit>>>,
    start: Instant,
}

impl AuditLog {
    /// Opens or makes the file. Only its owner may read it.
    pub fn open(path: &Path) -> io::Result<Self> {
        let (lines, waiting) = sync_channel(WAITING_MAX);
        let lost = Arc::new(AtomicU64::new(0));
        let log = LogFile {
            path: path.to_owned(),
            file: open(path)?,
            lost: lost.clone(),
            told: None,
        };
        let (runs, ended) = watch::channel(());
        let thread = std::thread::Builder::new().name("castnet-audit".into());
        thread.spawn(move || {
            log.write_all(&waiting);
            drop(runs);
        })?;
        let (limits, start) = (Arc::default(), Instant::now());
        Ok(Self {
            lines: Arc::new(Mutex::new(Some(lines))),
            thread: ended,
            lost,
            limits,
            start,
        })
    }

    /// Takes no more lines, and waits a moment until those that it has are written.
    pub async fn close(&self) {
        self.lines.lock().take();
        let mut thread = self.thread.clone();
        if tokio::time::timeout(CLOSE_TIMEOUT, thread.changed())
            .await
            .is_err()
        {
            tracing::warn!("the audit log takes too long for its last lines: they may be lost");
        }
    }

    fn allows(&self, caller: &Caller) -> bool {
        let now = Nanos(self.start.elapsed().as_nanos() as u64);
        let mut limits = self.limits.lock();
        let of_caller = limits.entry(caller.identity().to_owned());
        of_caller.or_insert(OF_CALLER).allows(now)
    }

    /// Adds a line; never waits.
    pub(crate) fn add(&self, caller: &Caller, method: &str, outcome: &str, reason: &str) {
        if matches!(caller.role, Role::Host | Role::ReadOnly) && !self.allows(caller) {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let line = Line {
            at_unix_ns: now.map_or(0, |d| d.as_nanos() as u64),
            identity: caller.identity(),
            role: caller.role.to_string(),
            address: &caller.peer.address,
            method,
            object: caller.object(),
            outcome,
            reason: &cut(reason),
        };
        let send = |line| Some(self.lines.lock().as_ref()?.try_send(line));
        if !matches!(serde_json::to_string(&line).map(send), Ok(Some(Ok(())))) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A text of a caller, cut if it is too long.
pub(crate) fn cut(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(TEXT_MAX) {
        Some((end, _)) => format!("{}... ({} bytes)", &text[..end], text.len()).into(),
        None => text.into(),
    }
}

/// A regular file that has something else than an audit log is refused.
fn open(path: &Path) -> io::Result<File> {
    if std::fs::metadata(path).is_ok_and(|file| file.is_file()) {
        is_log(&File::open(path)?)?;
    }
    OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(path)
}

/// Whether a file has nothing, or lines of an audit log.
fn is_log(file: &File) -> io::Result<()> {
    let mut start = Vec::new();
    file.take(LINE_START.len() as u64).read_to_end(&mut start)?;
    match LINE_START.starts_with(&start) {
        true => Ok(()),
        false => Err(io::Error::other("there is another file, which is no audit log")),
    }
}

struct LogFile {
    path: PathBuf,
    file: File,
    lost: Arc<AtomicU64>,
    /// When lost lines were logged last.
    told: Option<Instant>,
}

impl LogFile {
    fn write_all(mut self, lines: &Receiver<String>) {
        while let Ok(mut line) = lines.recv() {
            line.push('\n');
            let written = self
                .reopen()
                .and_then(|length| self.write(line.as_bytes(), length));
            if let Err(error) = &written {
                self.lost.fetch_add(1, Ordering::Relaxed);
                tracing::debug!(%error, "a line of the audit log is lost");
            }
            self.tell(written.err());
        }
        self.told = None;
        self.tell(None);
    }

    /// Adds a line to a file of this length, whole or not at all.
    fn write(&mut self, line: &[u8], length: u64) -> io::Result<()> {
        let written = self.file.write_all(line);
        if written.is_err() {
            // Not of a pipe or a device.
            let _ = self.file.set_len(length);
        }
        written
    }

    /// Opens the file anew if another one, or none, has its name. Returns its length.
    fn reopen(&mut self) -> io::Result<u64> {
        let own = self.file.metadata()?;
        let same = |named: std::fs::Metadata| (named.dev(), named.ino()) == (own.dev(), own.ino());
        if !std::fs::metadata(&self.path).is_ok_and(same) {
            self.file = open(&self.path)?;
        } else if own.len() >= SIZE_MAX {
            self.put_aside()?;
        } else {
            return Ok(own.len());
        }
        Ok(self.file.metadata()?.len())
    }

    fn put_aside(&mut self) -> io::Result<()> {
        let kept = |n: u32| {
            let mut name = self.path.clone().into_os_string();
            name.push(format!(".{n}"));
            name
        };
        for n in 1..=KEPT {
            if Path::new(&kept(n)).exists() {
                is_log(&File::open(kept(n))?)?;
            }
        }
        for n in (1..KEPT).rev() {
            match std::fs::rename(kept(n), kept(n + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        std::fs::rename(&self.path, kept(1))?;
        self.file = open(&self.path)?;
        Ok(())
    }

    fn tell(&mut self, error: Option<io::Error>) {
        let due = self.told.is_none_or(|told| told.elapsed() >= LOST_INTERVAL);
        let lost = match due {
            true => self.lost.swap(0, Ordering::Relaxed),
            false => 0,
        };
        if lost > 0 {
            self.told = Some(Instant::now());
            let reason = error.map_or_else(|| "too many at once".into(), |e| e.to_string());
            tracing::warn!(file = %self.path.display(), lost, reason, "lines of the audit log are lost");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_files_are_put_aside_and_three_are_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("audit.jsonl");
        let mut log = LogFile {
            path: path.clone(),
            file: open(&path).expect("a file"),
            lost: Arc::default(),
            told: None,
        };
        for n in 1..=6_u64 {
            log.file.write_all(LINE_START).expect("written");
            log.file.set_len(SIZE_MAX + n).expect("longer");
            log.reopen().expect("rotated");
            assert_eq!(log.file.metadata().expect("it").len(), 0);
        }
        let size =
            |name: &str| std::fs::metadata(folder.path().join(name)).map_or(0, |file| file.len() - SIZE_MAX);
        assert_eq!(
            ["audit.jsonl.1", "audit.jsonl.2", "audit.jsonl.3"].map(size),
            [6, 5, 4]
        );
        assert_eq!(std::fs::read_dir(folder.path()).expect("files").count(), 4);
        log.file.write_all(LINE_START).expect("written");
        log.file.set_len(SIZE_MAX - 1).expect("longer");
        log.reopen().expect("not rotated");
        assert_eq!(log.file.metadata().expect("it").len(), SIZE_MAX - 1);
    }

    /// A path that is given by mistake costs no file, neither at the start nor when a full one is put aside.
    #[test]
    fn other_files_are_neither_added_to_nor_renamed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("audit.jsonl");
        for (text, is_taken) in [
            ("", true),
            ("{\"at_unix_ns\":17,\"identity\":\"ops\"}\n", true),
            ("{\"at_u", true),
            ("{}\n", false),
            ("listen = 3\n", false),
        ] {
            std::fs::write(&path, text).expect("written");
            assert_eq!(open(&path).is_ok(), is_taken, "{text:?}");
            assert_eq!(std::fs::read_to_string(&path).expect("a file"), text);
        }
        std::fs::write(&path, "").expect("written");
        let other = folder.path().join("audit.jsonl.2");
        std::fs::write(&other, "precious").expect("written");
        let mut log = LogFile {
            path: path.clone(),
            file: open(&path).expect("a file"),
            lost: Arc::default(),
            told: None,
        };
        log.file.set_len(SIZE_MAX).expect("longer");
        assert!(log.reopen().is_err());
        assert_eq!(std::fs::read_to_string(&other).expect("a file"), "precious");
        assert_eq!(std::fs::metadata(&path).expect("it").len(), SIZE_MAX);
    }

    /// It would push out all lines of others within a minute, in files and in the queue.
    #[test]
    fn a_host_adds_so_many_lines_and_others_go_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("audit.jsonl");
        let log = AuditLog::open(&path).expect("a file");
        let caller = |name: &str, role| {
            let peer = crate::transport::Peer {
                address: "192.0.2.1:7".into(),
                names: Some(vec![name.into()]),
            };
            Caller::new(Arc::new(peer), role)
        };
        let (flood, other) = (caller("h9", Role::Host), caller("h1", Role::Host));
        let allowed = (0..10_000).filter(|_| log.allows(&flood)).count();
        assert!((8192..9000).contains(&allowed), "{allowed}");
        assert!(!log.allows(&flood) && log.allows(&other));
        log.add(&flood, "LeaveGroup", "ok", "");
        assert_eq!(log.lost.load(Ordering::Relaxed), 1);
        // Operators are not limited.
        log.add(&caller("h9", Role::Operator), "DestroyGroup", "ok", "");
        let text = || std::fs::read_to_string(&path).expect("a file");
        while !text().contains("DestroyGroup") {
            std::thread::yield_now();
        }
        assert_eq!(text().lines().count(), 1);
    }

    #[tokio::test]
    async fn what_waits_is_written_before_it_is_closed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("audit.jsonl");
        let log = AuditLog::open(&path).expect("a file");
        let peer = crate::transport::Peer {
            address: "192.0.2.1:7".into(),
            names: None,
        };
        let caller = Caller::new(Arc::new(peer), Role::Operator);
        // A service still has it.
        let other = log.clone();
        for _ in 0..WAITING_MAX {
            other.add(&caller, "DestroyGroup", "ok", "");
        }
        log.close().await;
        let lines = || {
            let text = std::fs::read_to_string(&path).expect("a file");
            text.lines().count()
        };
        assert_eq!(lines(), WAITING_MAX);
        other.add(&caller, "DestroyGroup", "ok", "");
        log.close().await;
        assert_eq!((lines(), log.lost.load(Ordering::Relaxed)), (WAITING_MAX, 1));
    }

    #[test]
    fn a_text_of_a_caller_is_cut() {
        assert_eq!(cut("g1 host h1"), "g1 host h1");
        assert_eq!(cut(&"x".repeat(256)), "x".repeat(256));
        assert_eq!(
            cut(&"é".repeat(257)),
            format!("{}... (514 bytes)", "é".repeat(256))
        );
    }
}
