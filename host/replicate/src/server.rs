//! A server: memory that a client writes over a group or over a connection of its own, and what the client asks about it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use castnet_member::{Group, MemberConfig, MemberError};
use castnet_proto::process::draw;
use castnet_rnic::stream::Flow;
use castnet_rnic::{Access, MemoryRegion, QpOptions, QpRemote, Rnic};
use castnet_wire::{Pmtu, Psn, Qpn};
use nix::sys::resource::{UsageWho, getrusage};
use sha2::{Digest as _, Sha256};

use crate::control::{Address, Control, End, Listener, Reply, Request, VERSION};
use crate::error::ReplicateError;
use crate::store::{Store, poll};
use crate::workload::BLOCK_MAX;

/// Most blocks of one request for digests.
pub(crate) const DIGESTS_MAX: u32 = 1024;
/// Longest sleep between two looks at the control connection.
pub(crate) const SLEEP_MAX: Duration = Duration::from_millis(2);
/// How often a server with a client looks for others.
const REFUSE_INTERVAL: Duration = Duration::from_millis(100);
/// After which time it refuses them.
const REFUSE_AFTER: Duration = Duration::from_secs(1);
/// Longest time until a client says who it is.
const HELLO_WAIT: Duration = Duration::from_secs(5);
/// Bytes that are hashed between two polls of the RNIC.
const HASH_CHUNK: usize = 64 << 10;

/// Configuration of a server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Name of this host, also in groups.
    pub name: String,
    /// Bytes of memory; for a file that is not empty, its length. `None`: as many as the file has.
    pub bytes: Option<u64>,
    /// The file that the memory is read from at the start, and saved to when a client has finished.
    pub file: Option<PathBuf>,
    /// Where clients connect.
    pub listen: Address,
    /// How to join a group that a client names: its `group` is [`Group::Named`].
    pub member: MemberConfig,
}

/// What a server reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerEvent {
    /// Clients can connect.
    Ready {
        /// The address.
        address: String,
        /// Bytes of memory.
        bytes: u64,
    },
    /// A client has connected.
    Client {
        /// Its name.
        name: String,
    },
    /// A client has finished, or its connection has ended.
    Left {
        /// Its name.
        name: String,
        /// Why it did not finish.
        error: Option<String>,
    },
}

/// A random first PSN, so that packets of an earlier connection are not accepted.
pub(crate) fn random_psn() -> Psn {
    Psn::new(draw() as u32)
}

/// Processor time of this process in seconds.
pub(crate) fn cpu_seconds() -> f64 {
    let used = getrusage(UsageWho::RUSAGE_SELF).map(|usage| {
        let [user, system] = [usage.user_time(), usage.system_time()];
        (user.tv_sec() + system.tv_sec()) as f64 + (user.tv_usec() + system.tv_usec()) as f64 / 1e6
    });
    used.unwrap_or_default()
}

/// Serves one client after the other, until `stop` is set.
///
/// # Errors
/// The RNIC has no capacity for the memory or fails, the file cannot be used, or the address is in use. What goes wrong with one
/// client is a [`ServerEvent::Left`].
pub fn serve(
    rnic: &mut dyn Rnic,
    config: &ServerConfig,
    stop: &Arc<AtomicBool>,
    report: &mut dyn FnMut(ServerEvent),
) -> Result<(), ReplicateError> {
    let store = config.file.as_ref().map(|path| Store::open(path, config.bytes));
    let store = store.transpose()?;
    let bytes = store.as_ref().map(|store| store.bytes).or(config.bytes);
    let length = bytes
        .and_then(|bytes| usize::try_from(bytes).ok())
        .filter(|bytes| *bytes > 0);
    let length = length.ok_or_else(|| ReplicateError::OutOfRange {
        what: "a server needs a size, or a file".to_owned(),
    })?;
    let memory = rnic.register_memory(length, Access::REMOTE_WRITE)?;
    if let Some(store) = &store {
        store.load(rnic, memory.key)?;
    }
    let listener = Listener::bind(&config.listen)?;
    report(ServerEvent::Ready {
        address: listener.address(),
        bytes: memory.length as u64,
    });
    let mut server = Server {
        config,
        stop,
        store,
        memory,
        listener,
        waiting: None,
        client: String::new(),
    };
    let mut failed = Ok(());
    while !stop.load(Ordering::Relaxed) {
        if let Err(error) = rnic.poll_or_wait(SLEEP_MAX) {
            failed = Err(error.into());
            break;
        }
        let waiting = server.waiting.take().map(|(control, _)| control);
        let Some(mut control) = waiting.or_else(|| server.listener.accept(stop)) else {
            continue;
        };
        let ended = server.session(rnic, &mut control, report);
        // Most errors are the client's to know; it may be gone.
        if let Err(error) = &ended {
            let what = error.to_string();
            let _ = control.send(&Reply::Failed { what });
        }
        if !server.client.is_empty() {
            report(ServerEvent::Left {
                name: std::mem::take(&mut server.client),
                error: ended.err().map(|error| error.to_string()),
            });
        }
    }
    // What was acknowledged is kept, whatever has ended the server.
    server.save(rnic)?;
    failed
}

struct Server<'a> {
    config: &'a ServerConfig,
    stop: &'a Arc<AtomicBool>,
    store: Option<Store>,
    memory: MemoryRegion,
    listener: Listener,
    /// A client that has come while there is one, and when.
    waiting: Option<(Control, Instant)>,
    /// The client's name; empty without client.
    client: String,
}

/// What a request asks for beyond an answer.
enum Next {
    Join(String),
    Connect(End),
    Confirm,
    Finish,
    /// The client has gone.
    Gone,
}

impl Server<'_> {
    /// Serves a client until its connection ends.
    fn session(
        &mut self,
        rnic: &mut dyn Rnic,
        control: &mut Control,
        report: &mut dyn FnMut(ServerEvent),
    ) -> Result<(), ReplicateError> {
        loop {
            let (is_new, since) = (self.client.is_empty(), Instant::now());
            let next = self.answer(
                rnic,
                control,
                &mut || match is_new && since.elapsed() >= HELLO_WAIT {
                    true => Flow::Stop,
                    false => Flow::Continue,
                },
            )?;
            if is_new && !self.client.is_empty() {
                report(ServerEvent::Client {
                    name: self.client.clone(),
                });
            }
            let cpu = match next {
                None => continue,
                Some(Next::Gone) => return Ok(()),
                Some(Next::Confirm | Next::Finish) => {
                    return Err(self.unexpected("the end of a transfer that has not begun"));
                }
                Some(Next::Join(group)) => self.as_member(rnic, control, group)?,
                Some(Next::Connect(end)) => self.as_remote(rnic, control, &end)?,
            };
            let cpu_seconds = cpu_seconds() - cpu;
            let saved = self.save(rnic)?;
            control.send(&Reply::Finished { cpu_seconds, saved })?;
        }
    }

    fn unexpected(&self, what: &str) -> ReplicateError {
        ReplicateError::Malformed {
            server: self.client.clone(),
            what: what.to_owned(),
        }
    }

    fn save(&self, rnic: &mut dyn Rnic) -> Result<Option<u64>, ReplicateError> {
        let store = self.store.as_ref();
        store.map(|store| store.save(rnic, self.memory.key)).transpose()
    }

    /// Answers requests until one needs more than an answer, or `flow` ends it: `None` after each request at the begin of a
    /// session.
    fn answer(
        &mut self,
        rnic: &mut dyn Rnic,
        control: &mut Control,
        flow: &mut dyn FnMut() -> Flow,
    ) -> Result<Option<Next>, ReplicateError> {
        let mut refused = Instant::now();
        loop {
            let request = match control.poll() {
                Err(ReplicateError::Gone { why, .. }) if why.is_empty() => return Ok(Some(Next::Gone)),
                request => request?,
            };
            match request {
                None => {
                    if flow() == Flow::Stop {
                        return Ok(Some(Next::Gone));
                    }
                    if refused.elapsed() >= REFUSE_INTERVAL {
                        refused = Instant::now();
                        self.refuse_others();
                    }
                    rnic.poll_or_wait(SLEEP_MAX)?;
                }
                Some(Request::Hello { version, client }) => {
                    if version != VERSION {
                        let what = format!("version {version}: this server has version {VERSION}");
                        return Err(self.unexpected(&what));
                    }
                    if !is_name(&client) {
                        return Err(self.unexpected("a name of over 64 or other than printable characters"));
                    }
                    control.peer.clone_from(&client);
                    self.client = client;
                    control.send(&Reply::Hello {
                        version: VERSION,
                        server: self.config.name.clone(),
                        bytes: self.memory.length as u64,
                        file: self
                            .store
                            .as_ref()
                            .map(|store| store.path().display().to_string()),
                        pmtu: rnic.attributes().active_pmtu.bytes() as u32,
                    })?;
                    return Ok(None);
                }
                Some(_) if self.client.is_empty() => return Err(self.unexpected("a request before Hello")),
                Some(Request::Ping) => control.send(&Reply::Pong)?,
                Some(Request::Digests { block, first, count }) => {
                    let digests = self.digests(rnic, control, block, first, count)?;
                    control.send(&Reply::Digests(digests))?;
                }
                Some(Request::Join { group }) => return Ok(Some(Next::Join(group))),
                Some(Request::Connect(end)) => return Ok(Some(Next::Connect(end))),
                Some(Request::Confirm) => return Ok(Some(Next::Confirm)),
                Some(Request::Finish) => return Ok(Some(Next::Finish)),
            }
        }
    }

    /// Refuses clients that come while there is one. One that comes at the end of a session is the next.
    fn refuse_others(&mut self) {
        let is_late = |(_, since): &mut (Control, Instant)| since.elapsed() >= REFUSE_AFTER;
        if let Some((mut other, _)) = self.waiting.take_if(is_late) {
            let (name, client) = (&self.config.name, &self.client);
            let what = format!("{name} serves another client, {client}");
            let _ = other.send(&Reply::Failed { what });
        }
        if self.waiting.is_none() {
            self.waiting = self
                .listener
                .accept(self.stop)
                .map(|other| (other, Instant::now()));
        }
    }

    /// A receiver of a group until the client has finished. Returns the processor time of before.
    fn as_member(
        &mut self,
        rnic: &mut dyn Rnic,
        control: &mut Control,
        group: String,
    ) -> Result<f64, ReplicateError> {
        let mut config = self.config.member.clone();
        if let Group::Named { name, .. } = &mut config.group {
            *name = group;
        }
        config.interrupt = Some(control.over.clone());
        let mut member = castnet_member::region(config, rnic, self.memory)?.join()?;
        let cpu = cpu_seconds();
        let mut reply = Reply::Ready;
        let (asked, lost) = loop {
            if let Err(error) = control.send(&reply) {
                break (Err(error), None);
            }
            let (asked, lost) = member.run(|rnic, flow| self.answer(rnic, control, &mut || flow(0)));
            if !matches!((&asked, &lost), (Ok(Some(Next::Confirm)), None)) {
                break (asked, lost);
            }
            if let Err(lost) = member.confirm() {
                break (Ok(None), Some(lost));
            }
            reply = Reply::Confirmed;
        };
        if let Err(error) = member.leave() {
            tracing::warn!(%error, "not left");
        }
        match (asked?, lost) {
            // The source has left because it has finished.
            (Some(Next::Finish), Some(MemberError::Ended { .. })) => Ok(cpu),
            // The client may say so in a moment.
            (_, Some(MemberError::Ended { .. })) => self.await_finish(rnic, control).map(|()| cpu),
            (_, Some(lost)) => Err(lost.into()),
            (next, None) => self.finished(next).map(|()| cpu),
        }
    }

    /// A receiver whose group has ended: the source has left, and the client may say so in a moment.
    fn await_finish(&mut self, rnic: &mut dyn Rnic, control: &mut Control) -> Result<(), ReplicateError> {
        let next = self.answer(rnic, control, &mut || Flow::Continue)?;
        self.finished(next)
    }

    fn finished(&self, next: Option<Next>) -> Result<(), ReplicateError> {
        match next {
            Some(Next::Finish) => Ok(()),
            Some(Next::Gone) if self.stop.load(Ordering::Relaxed) => Err(ReplicateError::Stopped),
            Some(Next::Gone) => Err(ReplicateError::Gone {
                server: self.client.clone(),
                why: "before it has finished".to_owned(),
            }),
            _ => Err(self.unexpected("a request other than Ping, Digests or Finish while it writes")),
        }
    }

    /// The remote end of a connection until the client has finished. Returns the processor time of before.
    fn as_remote(
        &mut self,
        rnic: &mut dyn Rnic,
        control: &mut Control,
        client: &End,
    ) -> Result<f64, ReplicateError> {
        let qpn = rnic.create_qp(&QpOptions::default())?;
        let served = self.with_qp(rnic, control, client, qpn);
        rnic.destroy_qp(qpn)?;
        served
    }

    fn with_qp(
        &mut self,
        rnic: &mut dyn Rnic,
        control: &mut Control,
        client: &End,
        qpn: Qpn,
    ) -> Result<f64, ReplicateError> {
        let psn = random_psn();
        let remote =
            remote(client, psn).ok_or_else(|| self.unexpected("a QPN, PSN or path MTU out of range"))?;
        let remote = QpRemote {
            timeout: self.config.member.timeout,
            ..remote
        };
        rnic.connect_qp(qpn, &remote, self.config.member.connect_timeout)?;
        control.send(&Reply::Connected {
            end: End {
                ip: rnic.attributes().ip,
                qpn: qpn.value(),
                psn: psn.value(),
                pmtu: client.pmtu,
            },
            va: self.memory.va,
            rkey: self.memory.rkey,
        })?;
        let cpu = cpu_seconds();
        let next = self.answer(rnic, control, &mut || Flow::Continue)?;
        self.finished(next).map(|()| cpu)
    }

    /// SHA-256 of blocks: of the file if there is one, as it is after the last save, and of the memory otherwise.
    fn digests(
        &self,
        rnic: &mut dyn Rnic,
        control: &Control,
        block: u32,
        first: u64,
        count: u32,
    ) -> Result<Vec<String>, ReplicateError> {
        let end = first
            .checked_add(count.into())
            .and_then(|end| end.checked_mul(block.into()));
        let fits = end.is_some_and(|end| end <= self.memory.length as u64);
        if !fits || block == 0 || block > BLOCK_MAX || count > DIGESTS_MAX {
            return Err(self.unexpected("digests of blocks that are too many, or not in the memory"));
        }
        let mut chunk = vec![0; HASH_CHUNK.min(block as usize)];
        let mut digest_of = |block_number: u64| -> Result<String, ReplicateError> {
            let (mut hasher, begin) = (Sha256::new(), block_number * u64::from(block));
            for offset in (0..block as usize).step_by(HASH_CHUNK) {
                let part = HASH_CHUNK.min(block as usize - offset);
                let (part, at) = (&mut chunk[..part], begin + offset as u64);
                match &self.store {
                    Some(store) => store.read(at, part)?,
                    None => rnic.read_memory(self.memory.key, at, part)?,
                }
                hasher.update(part);
                poll(rnic)?;
            }
            if control.over.load(Ordering::Relaxed) {
                return Err(ReplicateError::Interrupted);
            }
            Ok(hex(&hasher.finalize()))
        };
        (first..first + u64::from(count)).map(&mut digest_of).collect()
    }
}

/// The other end as a QP is connected to it. `None`: a value is out of range.
pub(crate) fn remote(end: &End, psn: Psn) -> Option<QpRemote> {
    let is_psn = end.psn < Psn::MODULUS;
    let is_qpn = end.qpn > Qpn::VIRTUAL.value() && end.qpn < 0xFF_FFFF;
    let pmtu = Pmtu::from_bytes(end.pmtu).filter(|_| is_psn && is_qpn)?;
    Some(QpRemote {
        sq_psn: psn,
        rq_psn: Psn::new(end.psn),
        pmtu,
        ..QpRemote::new(end.ip, Qpn::new(end.qpn))
    })
}

/// Names of others are printed.
pub(crate) fn is_name(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
