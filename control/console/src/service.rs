//! Readiness and signals of services.

use std::fs::{File, Metadata, TryLockError};
use std::io::Write;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::Serialize;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::exit::{self, Failure, Outcome};
use crate::files::{self, Place};
use crate::output::{Done, Output};

/// 128 + SIGINT.
const FORCED: i32 = 130;

/// Signals within this time of the first one are one with it. Nobody presses a key twice that fast and means both.
const AT_ONCE: Duration = Duration::from_millis(100);

/// Catches SIGINT, SIGTERM, SIGQUIT, and SIGHUP, which a closed terminal sends. SIGUSR1 and SIGUSR2 do nothing: they mean nothing here, and
/// by default they end a process with nothing put in order.
#[derive(Debug)]
pub struct Signals(watch::Receiver<()>);

/// Whether a signal that was caught has asked this process to end.
static STOPPED: AtomicBool = AtomicBool::new(false);

/// Whether a signal has asked this process to end, since [`Signals::catch`].
pub fn is_stopped() -> bool {
    STOPPED.load(Ordering::Relaxed)
}

impl Signals {
    /// Call it before readiness is announced: an earlier signal ends the process.
    pub fn catch() -> Outcome<Self> {
        Self::catch_with(unless_ignored(SignalKind::hangup())?)
    }

    /// For a service, which has [`Reloads`]: SIGHUP does not end it.
    pub fn catch_in_service() -> Outcome<Self> {
        Self::catch_with(None)
    }

    fn catch_with(mut hangup: Option<Signal>) -> Outcome<Self> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut quit = signal(SignalKind::quit())?;
        for harmless in [SignalKind::user_defined1(), SignalKind::user_defined2()] {
            // What catches it stays when this is dropped.
            drop(signal(harmless)?);
        }
        let (caught, signals) = watch::channel(());
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                    _ = quit.recv() => {}
                    // A shell that ends sends it, and the kernel after it: the second one means no haste.
                    () = next(&mut hangup) => {
                        if is_stopped() {
                            continue;
                        }
                    }
                }
                STOPPED.store(true, Ordering::Relaxed);
                caught.send_replace(());
            }
        });
        Ok(Self(signals))
    }

    /// Waits for the first signal. A second one ends the process by force.
    ///
    /// `timeout`, `sudo` and supervisors signal a program and then its group: signals at once are one.
    pub async fn first(mut self) {
        self.any().await;
        tokio::spawn(async move {
            // Looks for a signal before it looks at the clock.
            let rest = async {
                loop {
                    self.any().await;
                }
            };
            let _: Result<(), _> = tokio::time::timeout(AT_ONCE, rest).await;
            self.any().await;
            let _ = writeln!(
                std::io::stderr(),
                "castnet: ended by force: not everything was put in order"
            );
            std::process::exit(FORCED);
        });
    }

    /// Waits for a signal.
    pub async fn any(&mut self) {
        if self.0.changed().await.is_err() {
            // The runtime ends.
            std::future::pending().await
        }
    }
}

/// `None` if the process ignores the signal since its start, as SIGHUP under nohup(1).
fn unless_ignored(kind: SignalKind) -> Outcome<Option<Signal>> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let bit = 1u64 << (kind.as_raw_value() - 1);
    match ignored.is_some_and(|mask| mask & bit != 0) {
        true => Ok(None),
        false => Ok(Some(signal(kind)?)),
    }
}

/// Waits for the next one; for ever, if it is not caught.
async fn next(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => {
            signal.recv().await;
        }
        None => std::future::pending().await,
    }
}

/// What a service does before it serves. A signal ends that, also while it waits, as for the other end of a pipe.
pub async fn unless_stopped<T>(
    stop: impl Future<Output = ()>,
    start: impl Future<Output = Outcome<T>>,
) -> Outcome<T> {
    tokio::select! {
        biased;
        () = stop => Err(exit::interrupted()),
        started = start => started,
    }
}

/// Serves until a signal, or until what it serves ends by itself, which is a failure. So is an error of `reload`, which is called at each
/// SIGHUP, and is dropped at a signal.
pub async fn until_stopped(
    stop: impl Future<Output = ()>,
    ended: impl Future<Output = Failure>,
    reloads: &mut Reloads,
    mut reload: impl AsyncFnMut() -> Outcome,
) -> Outcome {
    let reloading = async {
        loop {
            reloads.next().await;
            if let Err(failure) = reload().await {
                return failure;
            }
        }
    };
    tokio::select! {
        biased;
        failure = ended => Err(failure),
        () = stop => Ok(()),
        failure = reloading => Err(failure),
    }
}

/// SIGHUP asks a service to read its configuration again. It ends no process that catches it.
#[derive(Debug)]
pub struct Reloads(Signal);

impl Reloads {
    /// Call it before readiness is announced.
    pub fn catch() -> Outcome<Self> {
        Ok(Self(signal(SignalKind::hangup())?))
    }

    /// Waits for the next one.
    pub async fn next(&mut self) {
        self.0.recv().await;
    }
}

#[derive(Serialize)]
struct Listening<'a> {
    name: &'a str,
    listening: &'a str,
}

/// Reports readiness on stdout, to systemd, and in a file. A regular file is removed on drop, unless another one has taken its place.
#[derive(Debug)]
pub struct Ready {
    // It stays open: the inode of an open file is not given to another one, so identities stay apart.
    file: Option<(PathBuf, File)>,
}

/// Device and inode.
fn identity(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

impl Ready {
    /// Announces a service that listens at `address`.
    pub fn announce(output: Output, name: &str, address: &str, file: Option<&Path>) -> Outcome<Self> {
        let line = Done {
            facts: Listening {
                name,
                listening: address,
            },
            sentence: format!("{name}: listening on {address}"),
        };
        // The file first: a reader of the line may look for it at once.
        let ready = Self::quiet(file, address)?;
        // A service serves even if its stdout is closed, or the disk under it full.
        if let Err(failure) = output.show_next(&line)
            && !failure.quiet
        {
            tracing::warn!("{failure}");
        }
        notify("READY=1");
        Ok(ready)
    }

    /// Reports in the file only, if there is one.
    pub fn quiet(file: Option<&Path>, text: &str) -> Outcome<Self> {
        let Some(path) = file else {
            return Ok(Self { file: None });
        };
        let written = files::replace(path, &format!("{text}\n"), is_ready_text);
        let file = written.map_err(|error| unwritten(path, &error))?;
        if let Some((_, file)) = &file {
            // For `clear`. Some network file systems have no locks.
            let _ = file.try_lock();
        }
        Ok(Self { file })
    }

    /// As [`Self::check`], and removes the file of a process that was killed: it must not be taken for that of this start, which may fail.
    /// Call it before anything that can fail.
    pub fn clear(file: Option<&Path>) -> Outcome {
        Self::check(file)?;
        let Some(path) = file else { return Ok(()) };
        let left = match files::place(path) {
            Ok(Place::File(place)) => File::open(&place).map(|file| (place, file)),
            Ok(Place::Special) => return Ok(()),
            Err(error) => Err(error),
        };
        // Most often there is none.
        let Ok((place, left)) = left else { return Ok(()) };
        let is_empty = left.metadata().is_ok_and(|meta| meta.len() == 0);
        // That of a process that runs is locked.
        if is_empty || matches!(left.try_lock(), Err(TryLockError::WouldBlock)) {
            return Ok(());
        }
        std::fs::remove_file(place).map_err(|error| unwritten(path, &error))
    }

    /// Fails if [`Self::quiet`] could not write the file now. For a check before something that cannot be undone. Changes nothing.
    pub fn check(file: Option<&Path>) -> Outcome {
        file.map_or(Ok(()), |path| {
            files::check_replaceable(path, is_ready_text).map_err(|error| unwritten(path, &error))
        })
    }
}

fn unwritten(path: &Path, error: &std::io::Error) -> Failure {
    exit::cannot_write_flag("--ready-file", path, error)
}

impl Drop for Ready {
    fn drop(&mut self) {
        notify("STOPPING=1");
        if let Some((path, own)) = &self.file
            && let (Ok(own), Ok(there)) = (own.metadata(), std::fs::symlink_metadata(path))
            && identity(&own) == identity(&there)
        {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Whether a text is what a ready file has: a line with one address, or the number of a queue pair.
fn is_ready_text(text: &str) -> bool {
    let begins = |start: &&str| text.starts_with(start);
    ["http://", "https://", "unix:", "0x"].iter().any(begins) && text.find('\n') == Some(text.len() - 1)
}

/// Reports to systemd if it asked for it (sd_notify(3)).
fn notify(state: &str) {
    let Some(target) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let target = target.to_string_lossy().into_owned();
    let address = match target.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&target),
    };
    // A failed report does not stop the service.
    if let (Ok(address), Ok(socket)) = (address, UnixDatagram::unbound()) {
        let _ = socket.send_to_addr(state.as_bytes(), &address);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::output::Format;

    #[tokio::test]
    async fn a_service_that_ends_by_itself_has_failed_also_at_a_signal() {
        use nix::sys::signal::Signal;
        use std::future::{pending, ready};
        let mut reloads = Reloads::catch().expect("a signal");
        let reload = async || Ok(());
        let dead = || Failure::failed("dead");
        let stopped = until_stopped(ready(()), pending(), &mut reloads, reload).await;
        assert!(stopped.is_ok());
        let ended = until_stopped(ready(()), ready(dead()), &mut reloads, reload).await;
        assert_eq!(ended.expect_err("a failure").what, "dead");
        nix::sys::signal::raise(Signal::SIGHUP).expect("a signal");
        let failed = until_stopped(pending(), pending(), &mut reloads, async || Err(dead())).await;
        assert_eq!(failed.expect_err("a failure").what, "dead");
    }

    #[test]
    fn a_ready_file_of_a_killed_process_is_removed_before_a_start() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("ready");
        Ready::clear(Some(&path)).expect("there is none");
        let lives = Ready::quiet(Some(&path), "unix:/run/s").expect("written");
        Ready::clear(Some(&path)).expect("it is another process's");
        assert!(path.exists(), "it is ready");
        drop(lives);
        for (text, is_left) in [("unix:/run/s\n", true), ("0x12\n", true), ("", false)] {
            std::fs::write(&path, text).expect("written");
            Ready::clear(Some(&path)).expect("one of Castnet's");
            assert_eq!(path.exists(), !is_left, "{text:?}");
        }
        std::fs::write(&path, "precious\n").expect("written");
        assert!(Ready::clear(Some(&path)).is_err() && path.exists());
        Ready::clear(Some(Path::new("/dev/null"))).expect("a device");
        Ready::clear(None).expect("no file is asked for");
    }

    #[test]
    fn the_ready_file_holds_the_address_while_the_service_is_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("ready");
        let output = Output::new(Format::Table);
        let ready = Ready::announce(output, "leaf1", "http://127.0.0.1:1", Some(&path)).expect("announced");
        assert_eq!(
            std::fs::read_to_string(&path).expect("a file"),
            "http://127.0.0.1:1\n"
        );
        drop(ready);
        assert!(!path.exists());
        // A device stays what it is, and a link leads to the file.
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("ready", &link).expect("a link");
        let ready = Ready::quiet(Some(&link), "here").expect("written");
        assert!(link.is_symlink() && path.exists());
        drop(ready);
        assert!(link.is_symlink() && !path.exists());
        drop(Ready::quiet(Some(Path::new("/dev/null")), "here").expect("written"));
        assert!(!Path::new("/dev/null").is_file());
        // What was written before may be written over, and nothing else; what another process has put there stays.
        // Where nothing was, the other file would get the inode of the removed one at once.
        for (before, is_taken) in [
            (None, true),
            (Some(""), true),
            (Some("unix:/run/s\n"), true),
            (Some("0x12\n"), true),
            (Some("precious\n"), false),
            (Some("unix:/a\nx"), false),
        ] {
            if let Some(before) = before {
                std::fs::write(&path, before).expect("written");
                std::fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("its owner");
            }
            assert_eq!(Ready::check(Some(&path)).is_ok(), is_taken, "{before:?}");
            assert_eq!(std::fs::read_to_string(&path).ok().as_deref(), before);
            let ready = Ready::quiet(Some(&path), "here");
            assert_eq!(ready.is_ok(), is_taken, "{before:?}");
            let mode = path.metadata().expect("it is there").permissions().mode();
            assert!(before.is_none() || mode & 0o777 == 0o600, "{before:?}: {mode:o}");
            std::fs::remove_file(&path).expect("it is there");
            std::fs::write(&path, "http://other\n").expect("written");
            drop(ready);
            assert!(path.exists());
        }
        std::fs::write(&path, [0xFF; 9]).expect("written");
        assert!(Ready::quiet(Some(&path), "here").is_err());
        assert!(Ready::quiet(Some(folder.path()), "here").is_err());
        let names = std::fs::read_dir(folder.path()).expect("a folder");
        assert_eq!(names.count(), 2, "no part is left");
        let failure =
            Ready::announce(output, "x", "y", Some(Path::new("/nonexistent/ready"))).expect_err("no folder");
        assert_eq!(failure.code(), 2);
        let failure = Ready::check(Some(Path::new("/nonexistent/ready"))).expect_err("no folder");
        assert!(failure.what.contains("--ready-file"), "{}", failure.what);
        Ready::check(None).expect("no file is asked for");
    }
}
