//! A client: connects to the servers, writes, and has them prove what they hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use castnet_member::MemberConfig;
use castnet_rnic::stream::Flow;
use castnet_rnic::{QpOptions, QpRemote, QueueLimits, Rnic};
use castnet_wire::{Pmtu, Psn, Qpn};

use crate::control::{Address, Control, End, Reply, Request, VERSION};
use crate::error::ReplicateError;
use crate::server::{SLEEP_MAX, cpu_seconds, is_name, random_psn, remote};
use crate::verify::{Check, Checked};
use crate::workload::Workload;
use crate::writer::{DEPTH_MAX, Pace, Target, Writer, Written};

/// Longest time for which a server may owe an answer while a client writes. A controller puts a member out of its group earlier.
const PING_PATIENCE: Duration = Duration::from_secs(30);
/// How often a client that writes asks whether the servers are there.
const PING_INTERVAL: Duration = Duration::from_secs(1);
/// The same of a client that waits: a server takes one that asks for nothing for gone.
const IDLE_PING_INTERVAL: Duration = Duration::from_secs(5);
/// Longest time until a server is connected, or has saved its file.
const PATIENCE: Duration = Duration::from_secs(120);
/// Longest sleep of a client that writes.
const WRITE_SLEEP_MAX: Duration = Duration::from_millis(20);

/// A way to reach several servers.
#[derive(Clone, Debug)]
pub enum Way {
    /// One connection to a group whose receivers are the servers: this host is its source.
    Multicast(Box<MemberConfig>),
    /// One connection per server. Each write is sent on all of them.
    Unicasts {
        /// Path MTU; at most that of each end.
        pmtu: Pmtu,
        /// Time-out exponent of the QPs: 4.096 us * 2^t.
        timeout: u8,
        /// Retries of the QPs without progress.
        retry_cnt: u8,
        /// How long to wait for answers to ARP.
        connect_timeout: Duration,
    },
}

/// A server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerInfo {
    /// Its name.
    pub name: String,
    /// Bytes that can be written.
    pub bytes: u64,
    /// Its file, if it has one.
    pub file: Option<String>,
    /// The largest path MTU in bytes.
    pub pmtu: u32,
}

/// What a server did.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerWork {
    /// Processor time in seconds, from its connection until the end.
    pub cpu_seconds: f64,
    /// Bytes written to its file.
    pub saved: Option<u64>,
}

/// What a client did.
#[derive(Clone, Debug)]
pub struct ClientWork {
    /// What was written.
    pub written: Written,
    /// Processor time of this process in seconds, while it wrote.
    pub cpu_seconds: f64,
    /// What each server did.
    pub servers: Vec<ServerWork>,
}

/// A client with its connections to the servers. They give it up if nothing is called for 30 s.
pub struct Client {
    servers: Vec<(ServerInfo, Control)>,
    /// Set when a connection ends, or the program is to stop.
    over: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
}

impl Client {
    /// Connects to servers. `name` is this host's. Fails if one cannot be reached, serves another client, or two are the same.
    pub fn connect(
        name: &str,
        addresses: &[Address],
        stop: &Arc<AtomicBool>,
    ) -> Result<Self, ReplicateError> {
        let mut others = addresses.iter().enumerate();
        if let Some((_, twice)) = others.find(|(i, address)| addresses[..*i].contains(address)) {
            let what = format!("server {twice} is given twice");
            return Err(ReplicateError::OutOfRange { what });
        }
        let over = Arc::default();
        let mut servers: Vec<(ServerInfo, Control)> = Vec::new();
        let mut pings = Pings::default();
        for address in addresses {
            let mut control = Control::connect(address, stop, &over)?;
            control.send(&Request::Hello {
                version: VERSION,
                client: name.to_owned(),
            })?;
            let since = Instant::now();
            let info = loop {
                match reply(&mut control)? {
                    Some(Reply::Hello {
                        server,
                        bytes,
                        file,
                        pmtu,
                        ..
                    }) if is_name(&server) => {
                        break ServerInfo {
                            name: server,
                            bytes,
                            file,
                            pmtu,
                        };
                    }
                    Some(other) => return Err(unexpected(&control, &other)),
                    None => std::thread::sleep(SLEEP_MAX),
                }
                check_patience(&control, since, PING_PATIENCE)?;
                // Those before it have nothing to do meanwhile.
                pings.poll(&mut servers, |_| true)?;
                if stop.load(Ordering::Relaxed) {
                    return Err(ReplicateError::Interrupted);
                }
            };
            if servers.iter().any(|(other, _)| other.name == info.name) {
                return Err(ReplicateError::SameServer { server: info.name });
            }
            control.peer.clone_from(&info.name);
            servers.push((info, control));
        }
        let stop = stop.clone();
        Ok(Self { servers, over, stop })
    }

    /// The servers in the order of their addresses.
    pub fn servers(&self) -> impl Iterator<Item = &ServerInfo> {
        self.servers.iter().map(|(info, _)| info)
    }

    /// Writes, and returns when all servers have acknowledged everything, have left the group or connection, and have saved their
    /// files. `progress` receives the number of acknowledged writes.
    ///
    /// # Errors
    /// [`ReplicateError::Broken`] if it ends too early, with the number of writes that all servers have. So each server that fails or is
    /// put out of the group is an error, also one that fails after its last acknowledgement.
    pub fn write(
        &mut self,
        rnic: &mut dyn Rnic,
        way: &Way,
        workload: Workload,
        pace: Pace,
        progress: &mut dyn FnMut(u64),
    ) -> Result<ClientWork, ReplicateError> {
        workload.check()?;
        let needed = workload.blocks() * u64::from(workload.block);
        if let Some((small, _)) = self.servers.iter().find(|(info, _)| info.bytes < needed) {
            return Err(ReplicateError::TooSmall {
                server: small.name.clone(),
                bytes: small.bytes,
                needed,
            });
        }
        let work = match way {
            Way::Multicast(config) => self.by_multicast(rnic, config, workload, pace, progress),
            Way::Unicasts { .. } => self.by_unicasts(rnic, way, (workload, pace), progress),
        };
        work.map_err(|error| self.cause(error))
    }

    /// An interruption is the end of a connection, unless the program is to stop: a server has said why, or its connection tells.
    fn cause(&mut self, error: ReplicateError) -> ReplicateError {
        if self.stop.load(Ordering::Relaxed) || !self.over.load(Ordering::Relaxed) {
            return error;
        }
        let found = self.servers.iter_mut().find_map(|(_, control)| {
            // Answers that nobody has waited for are before it.
            loop {
                match reply(control) {
                    Ok(Some(_)) => {}
                    Ok(None) => return None,
                    Err(cause) => return Some(cause),
                }
            }
        });
        match (error, found) {
            (
                ReplicateError::Broken {
                    acknowledged,
                    under_way,
                    ..
                },
                Some(cause),
            ) => ReplicateError::Broken {
                error: Box::new(cause),
                acknowledged,
                under_way,
            },
            (ReplicateError::Broken { error, .. }, None) => *error,
            (error, cause) => cause.unwrap_or(error),
        }
    }

    fn by_multicast(
        &mut self,
        rnic: &mut dyn Rnic,
        config: &MemberConfig,
        workload: Workload,
        pace: Pace,
        progress: &mut dyn FnMut(u64),
    ) -> Result<ClientWork, ReplicateError> {
        let config = MemberConfig {
            by_write: true,
            interrupt: Some(self.over.clone()),
            ..config.clone()
        };
        let group = config.group.name().unwrap_or_default().to_owned();
        self.ask(&Request::Join { group })?;
        let mut member = castnet_member::source(config, rnic)?.join()?;
        let target = Target {
            server: None,
            qpns: member.qpns().to_vec(),
            va: member.group().va_base,
            rkey: 0,
        };
        let ready = self.replies(PATIENCE, &mut || Ok(member.poll()?), |reply| {
            matches!(reply, Reply::Ready).then_some(())
        });
        if let Err(error) = ready {
            // The group must not wait for this member.
            let _ = member.leave();
            return Err(error);
        }
        let targets = vec![target];
        let (written, lost) =
            member.run(|rnic, flow| self.post(rnic, (workload, pace, targets), flow, progress));
        let confirmed = match (&written, &lost) {
            // A group goes on without a receiver that is lost. Then the last acknowledgements say nothing about it.
            (Ok(_), _) => self.ask(&Request::Confirm).and_then(|()| {
                self.replies(PATIENCE, &mut || Ok(member.poll()?), |reply| {
                    matches!(reply, Reply::Confirmed).then_some(())
                })
            }),
            _ => Ok(Vec::new()),
        };
        // The servers leave after the source.
        let left = member.leave();
        let (written, cpu_seconds) = match (written, lost) {
            (
                Err(ReplicateError::Broken {
                    acknowledged,
                    under_way,
                    ..
                }),
                Some(lost),
            ) => {
                return Err(ReplicateError::Broken {
                    error: Box::new(lost.into()),
                    acknowledged,
                    under_way,
                });
            }
            (written, _) => written?,
        };
        confirmed?;
        left?;
        let servers = self.finish(rnic)?;
        Ok(ClientWork {
            written,
            cpu_seconds,
            servers,
        })
    }

    fn by_unicasts(
        &mut self,
        rnic: &mut dyn Rnic,
        way: &Way,
        (workload, pace): (Workload, Pace),
        progress: &mut dyn FnMut(u64),
    ) -> Result<ClientWork, ReplicateError> {
        let limits = QueueLimits {
            send: DEPTH_MAX as usize,
            receive: 1,
        };
        let mut qpns = Vec::new();
        let made = (0..self.servers.len()).try_for_each(|_| {
            qpns.push(rnic.create_qp(&QpOptions {
                limits,
                ..QpOptions::default()
            })?);
            Ok::<_, ReplicateError>(())
        });
        let work = made.and_then(|()| {
            let targets = self.connect_all(rnic, &qpns, way)?;
            self.post(rnic, (workload, pace, targets), &mut |_| Flow::Continue, progress)
        });
        for &qpn in &qpns {
            rnic.destroy_qp(qpn)?;
        }
        let (written, cpu_seconds) = work?;
        let servers = self.finish(rnic)?;
        Ok(ClientWork {
            written,
            cpu_seconds,
            servers,
        })
    }

    fn connect_all(
        &mut self,
        rnic: &mut dyn Rnic,
        qpns: &[Qpn],
        way: &Way,
    ) -> Result<Vec<Target>, ReplicateError> {
        let &Way::Unicasts {
            pmtu,
            timeout,
            retry_cnt,
            connect_timeout,
        } = way
        else {
            return Ok(Vec::new());
        };
        let least = self.servers().map(|info| info.pmtu).min().unwrap_or_default();
        let active = rnic.attributes().active_pmtu;
        let pmtu = Pmtu::from_bytes(least).unwrap_or(pmtu).min(pmtu).min(active);
        let psns: Vec<Psn> = qpns.iter().map(|_| random_psn()).collect();
        let ip = rnic.attributes().ip;
        for ((_, control), (qpn, psn)) in self.servers.iter_mut().zip(qpns.iter().zip(&psns)) {
            control.send(&Request::Connect(End {
                ip,
                qpn: qpn.value(),
                psn: psn.value(),
                pmtu: pmtu.bytes() as u32,
            }))?;
        }
        let connected = self.replies(PATIENCE, &mut || poll(rnic), |reply| match reply {
            Reply::Connected { end, va, rkey } => Some((end, va, rkey)),
            _ => None,
        })?;
        let mut targets = Vec::new();
        for (at, (end, va, rkey)) in connected.into_iter().enumerate() {
            let server = self.servers[at].0.name.clone();
            let remote = remote(&end, psns[at]).ok_or_else(|| ReplicateError::Malformed {
                server: server.clone(),
                what: "a QPN, PSN or path MTU out of range".to_owned(),
            })?;
            let remote = QpRemote {
                timeout,
                retry_cnt,
                ..remote
            };
            rnic.connect_qp(qpns[at], &remote, connect_timeout)?;
            targets.push(Target {
                server: Some(server),
                qpns: vec![qpns[at]],
                va,
                rkey,
            });
        }
        Ok(targets)
    }

    /// Posts all writes. Returns what was written, and the processor time for it.
    fn post(
        &mut self,
        rnic: &mut dyn Rnic,
        (workload, pace, targets): (Workload, Pace, Vec<Target>),
        flow: &mut dyn FnMut(u64) -> Flow,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(Written, f64), ReplicateError> {
        let mut writer = Writer::new(rnic, workload, pace, targets)?;
        let cpu = cpu_seconds();
        let result = self.drive(rnic, &mut writer, flow, progress);
        let cpu = cpu_seconds() - cpu;
        let (acknowledged, under_way) = writer.certain();
        let finished = writer.finish(rnic);
        match result {
            Ok(()) => Ok((finished?, cpu)),
            Err(error) => Err(ReplicateError::Broken {
                error: Box::new(error),
                acknowledged,
                under_way,
            }),
        }
    }

    fn drive(
        &mut self,
        rnic: &mut dyn Rnic,
        writer: &mut Writer,
        flow: &mut dyn FnMut(u64) -> Flow,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), ReplicateError> {
        let mut pinged = Instant::now();
        let mut pings = Pings::default();
        loop {
            let now = rnic.now();
            writer.poll(rnic, now)?;
            if writer.is_done(now) {
                return Ok(());
            }
            if flow(writer.acknowledged()) == Flow::Stop || self.over.load(Ordering::Relaxed) {
                return Err(ReplicateError::Interrupted);
            }
            if pinged.elapsed() >= PING_INTERVAL {
                pinged = Instant::now();
                progress(writer.acknowledged());
                pings.send(&mut self.servers, |_| true)?;
            }
            let due = writer
                .next_post(now)
                .map(|due| Duration::from_nanos(due.since(now).0));
            if !rnic.poll(now)? {
                rnic.wait(due.map_or(WRITE_SLEEP_MAX, |due| due.min(WRITE_SLEEP_MAX)))?;
            }
        }
    }

    fn finish(&mut self, rnic: &mut dyn Rnic) -> Result<Vec<ServerWork>, ReplicateError> {
        self.ask(&Request::Finish)?;
        self.replies(PATIENCE, &mut || poll(rnic), |reply| match reply {
            Reply::Finished { cpu_seconds, saved } => Some(ServerWork { cpu_seconds, saved }),
            _ => None,
        })
    }

    /// Has all servers prove that each block holds its last write, of the first `writes` of a workload. Blocks whose writes may be among
    /// `under_way` later ones are not checked.
    pub fn verify(
        &mut self,
        rnic: &mut dyn Rnic,
        workload: Workload,
        writes: u64,
        under_way: u64,
    ) -> Result<Vec<Checked>, ReplicateError> {
        workload.check()?;
        let (servers, mut pings) = (self.servers.len(), Pings::default());
        let mut check = Check::new(workload, writes, under_way, servers, &mut || {
            pings.poll(&mut self.servers, |_| true)
        })?;
        while let Some((first, count)) = check.next_range() {
            self.ask(&Request::Digests {
                block: workload.block,
                first,
                count,
            })?;
            let expected = check.expected(first, count);
            let digests = self.replies(PATIENCE, &mut || poll(rnic), |reply| match reply {
                Reply::Digests(digests) => Some(digests),
                _ => None,
            })?;
            for (at, digests) in digests.iter().enumerate() {
                if digests.len() != count as usize {
                    return Err(ReplicateError::Malformed {
                        server: self.servers[at].0.name.clone(),
                        what: format!("{} digests of {count} blocks", digests.len()),
                    });
                }
                check.compare(at, first, &expected, digests);
            }
        }
        let names = self.servers().map(|info| info.name.clone());
        Ok(check.finish(names.collect()))
    }

    fn ask(&mut self, request: &Request) -> Result<(), ReplicateError> {
        self.servers
            .iter_mut()
            .try_for_each(|(_, control)| control.send(request))
    }

    /// Waits for a reply of each server, and calls `idle` meanwhile, which sleeps a little. `take` returns `None` for other replies.
    fn replies<T>(
        &mut self,
        patience: Duration,
        idle: &mut dyn FnMut() -> Result<(), ReplicateError>,
        mut take: impl FnMut(Reply) -> Option<T>,
    ) -> Result<Vec<T>, ReplicateError> {
        let mut taken: Vec<Option<T>> = self.servers.iter().map(|_| None).collect();
        let (since, mut pings) = (Instant::now(), Pings::default());
        loop {
            for (at, (_, control)) in self.servers.iter_mut().enumerate() {
                while taken[at].is_none() {
                    match reply(control)? {
                        // To the last question while it wrote.
                        Some(Reply::Pong) => {}
                        Some(other) => {
                            let text = format!("{other:?}");
                            taken[at] = take(other);
                            if taken[at].is_none() {
                                return Err(malformed(control, &text));
                            }
                        }
                        None => break,
                    }
                }
                if taken[at].is_none() {
                    check_patience(control, since, patience)?;
                }
            }
            if taken.iter().all(Option::is_some) {
                return Ok(taken.into_iter().flatten().collect());
            }
            if self.stop.load(Ordering::Relaxed) {
                return Err(ReplicateError::Interrupted);
            }
            // The others are at what they were asked for.
            pings.poll(&mut self.servers, |at| taken[at].is_some())?;
            idle()?;
        }
    }
}

/// The questions to servers whether they are there.
struct Pings {
    sent: Instant,
    /// Since when each server owes an answer.
    owed: Vec<Option<Instant>>,
}

impl Default for Pings {
    fn default() -> Self {
        Self {
            sent: Instant::now(),
            owed: Vec::new(),
        }
    }
}

impl Pings {
    /// [`Pings::send`] once in a while, to servers that have nothing to do.
    fn poll(
        &mut self,
        servers: &mut [(ServerInfo, Control)],
        is_idle: impl Fn(usize) -> bool,
    ) -> Result<(), ReplicateError> {
        match self.sent.elapsed() >= IDLE_PING_INTERVAL {
            true => self.send(servers, is_idle),
            false => Ok(()),
        }
    }

    /// Asks each of these servers that owes no answer.
    fn send(
        &mut self,
        servers: &mut [(ServerInfo, Control)],
        is_asked: impl Fn(usize) -> bool,
    ) -> Result<(), ReplicateError> {
        self.sent = Instant::now();
        self.owed.resize(servers.len(), None);
        let all = servers.iter_mut().zip(&mut self.owed).enumerate();
        for (_, ((_, control), owed)) in all.filter(|(at, _)| is_asked(*at)) {
            while let Some(answer) = reply(control)? {
                match answer {
                    Reply::Pong => *owed = None,
                    other => return Err(unexpected(control, &other)),
                }
            }
            match *owed {
                Some(since) => check_patience(control, since, PING_PATIENCE)?,
                None => {
                    control.send(&Request::Ping)?;
                    *owed = Some(Instant::now());
                }
            }
        }
        Ok(())
    }
}

fn poll(rnic: &mut dyn Rnic) -> Result<(), ReplicateError> {
    Ok(rnic.poll_or_wait(SLEEP_MAX).map(drop)?)
}

/// A reply, if one has come; an error if the server has failed.
fn reply(control: &mut Control) -> Result<Option<Reply>, ReplicateError> {
    match control.poll()? {
        Some(Reply::Failed { what }) => Err(ReplicateError::Server {
            server: control.peer.clone(),
            what: what.chars().filter(|c| !c.is_control()).take(1000).collect(),
        }),
        other => Ok(other),
    }
}

fn unexpected(control: &Control, reply: &Reply) -> ReplicateError {
    malformed(control, &format!("{reply:?}"))
}

fn malformed(control: &Control, what: &str) -> ReplicateError {
    ReplicateError::Malformed {
        server: control.peer.clone(),
        what: what.chars().take(200).collect(),
    }
}

fn check_patience(control: &Control, since: Instant, patience: Duration) -> Result<(), ReplicateError> {
    let after = since.elapsed();
    match after < patience {
        true => Ok(()),
        false => Err(ReplicateError::NoAnswer {
            server: control.peer.clone(),
            after: patience,
        }),
    }
}
