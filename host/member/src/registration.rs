//! Registers a group in the band, without a controller: the machines of `castnet-mrp` over datagrams of the RNIC, or over a UDP socket of
//! the kernel where the RNIC has none, on a thread of their own, so that a transfer does not delay them.

use std::collections::BTreeSet;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use castnet_mrp::{Leader, LeaderConfig, LeaderError, Receiver, ReceiverError, Roll, group_name};
use castnet_proto::process::draw;
use castnet_rnic::{Datagrams, Rnic};
use castnet_wire::datagram::PAYLOAD_MAX;
use castnet_wire::mrp::DEFAULT_PORT;
use castnet_wire::{McstId, MrpCall, MrpMember, MrpMemory, MrpPacket, Nanos, Pmtu};
use crossbeam::channel::{Receiver as Results, Sender, bounded};

use crate::error::MemberError;
use crate::meeting::Hosts;

/// How a group is registered in the band.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// UDP port of MRP at the switches and at all members.
    pub udp_port: u16,
    /// What the member must know of the others.
    pub others: Others,
    /// How long the others may take to join, and then to confirm.
    pub patience: Duration,
    /// Interval of repetition of a registered group: a fraction of the lifetime that the switches give it.
    pub refresh: Duration,
    /// Whether this member goes on from host to host if the group cannot be registered, or is slow. All members must.
    pub calls: bool,
}

impl Registration {
    /// UDP port 4793, a minute for the others, and a repetition every 15 seconds.
    pub const fn new(others: Others) -> Self {
        Self {
            udp_port: DEFAULT_PORT,
            others,
            patience: Duration::from_secs(60),
            refresh: Duration::from_secs(15),
            calls: false,
        }
    }
}

/// The others in a group that is registered in the band.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Others {
    /// The source registers the group for these receivers.
    Receivers(BTreeSet<Ipv4Addr>),
    /// A receiver gives its connection to this leader.
    Leader(Ipv4Addr),
}

/// Interval of repetition until the group is registered.
pub(crate) const REPEAT: Nanos = Nanos::from_millis(200);
/// How long switches may refuse a group whose members can go on from host to host.
const REFUSALS: Nanos = Nanos::from_secs(5);
/// Longest wait for a packet before the machines are looked at.
const LOOK: Duration = Duration::from_millis(20);
/// Packets that withdraw a group: they are not confirmed.
const WITHDRAWALS: usize = 3;

/// A registration that is kept up until this is dropped. A leader withdraws it then: an RNIC that carries the datagrams must be polled
/// afterwards.
#[derive(Debug)]
pub(crate) struct Registered {
    stop: Arc<AtomicBool>,
    results: Results<Told>,
    thread: Option<JoinHandle<()>>,
}

/// That a group is registered, with all that the leader can call; and after that, why it is not any more.
pub(crate) type Told = Result<Option<Roll>, MemberError>;

impl Registered {
    /// Starts to register the group with this member's connection.
    pub(crate) fn start(
        carrier: Carrier,
        how: &Registration,
        (mcst_id, pmtu): (McstId, Pmtu),
        (host, member, memory): (&str, MrpMember, Option<MrpMemory>),
    ) -> Result<Self, MemberError> {
        let started = Instant::now();
        let mut patience = how.patience;
        if how.calls && matches!(how.others, Others::Leader(_)) {
            // The leader may wait as long for JOINs, and then for confirmations, before it calls.
            patience = patience.saturating_mul(9) / 4;
        }
        let patience = nanos(patience);
        let side = match &how.others {
            Others::Receivers(receivers) => {
                let config = LeaderConfig {
                    mcst_id,
                    number: number(SystemTime::now()),
                    pmtu,
                    source: MrpMember {
                        source: true,
                        ..member
                    },
                    receivers: receivers.clone(),
                    repeat: REPEAT,
                    refresh: nanos(how.refresh),
                    patience,
                    // With a way around the switches it need not wait long.
                    refusals: if how.calls {
                        patience.min(REFUSALS)
                    } else {
                        patience
                    },
                };
                Side::Leader(Leader::new(Nanos::ZERO, config), mcst_id.0)
            }
            Others::Leader(leader) => {
                let group = (mcst_id, *leader);
                let receiver = Receiver::new(Nanos::ZERO, group, (member, memory), (REPEAT, patience));
                let key = if how.calls { draw() as u32 | 1 } else { 0 };
                Side::Receiver(receiver.with_key(key), *leader, key)
            }
        };
        let (to, results) = bounded(2);
        let stop = Arc::new(AtomicBool::new(false));
        let worker = Worker {
            carrier,
            udp_port: how.udp_port,
            group: group_name(mcst_id),
            host: host.to_owned(),
            started,
            stop: stop.clone(),
            is_registered: false,
            calls: how.calls,
            to,
        };
        let thread = std::thread::Builder::new().name("castnet-mrp".into());
        let thread = thread
            .spawn(move || worker.run(side))
            .map_err(MemberError::Thread)?;
        Ok(Self {
            stop,
            results,
            thread: Some(thread),
        })
    }

    /// What becomes of the registration.
    pub(crate) fn results(&self) -> Results<Told> {
        self.results.clone()
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What carries the packets of a host.
#[derive(Debug)]
pub(crate) enum Carrier {
    Rnic(Datagrams),
    Kernel(UdpSocket),
}

impl Carrier {
    /// Opens the UDP port at the RNIC, or at the kernel if the RNIC carries no datagrams.
    pub(crate) fn open(rnic: &mut dyn Rnic, udp_port: u16) -> Result<Self, MemberError> {
        match rnic.datagrams(udp_port) {
            Some(datagrams) => Ok(Self::Rnic(datagrams)),
            None => Self::kernel(rnic.attributes().ip, udp_port),
        }
    }

    fn kernel(ip: Ipv4Addr, port: u16) -> Result<Self, MemberError> {
        let socket = UdpSocket::bind(SocketAddrV4::new(ip, port));
        let socket = socket.and_then(|socket| socket.set_read_timeout(Some(LOOK)).map(|()| socket));
        let failed = |error| MemberError::Socket { ip, port, error };
        socket.map(Self::Kernel).map_err(failed)
    }

    /// What cannot be sent is repeated.
    pub(crate) fn send(&self, to: SocketAddrV4, packet: &MrpPacket) {
        let bytes = packet.to_bytes();
        match self {
            Self::Rnic(datagrams) => datagrams.send(to, &bytes),
            Self::Kernel(socket) => {
                if let Err(error) = socket.send_to(&bytes, to) {
                    tracing::debug!(%to, %error, "a registration packet is not sent");
                }
            }
        }
    }

    /// The next packet with its source address, or `None` after [`LOOK`].
    pub(crate) fn receive(&self, buffer: &mut [u8; PAYLOAD_MAX]) -> Option<(Ipv4Addr, MrpPacket)> {
        match self {
            Self::Rnic(datagrams) => {
                let (from, payload) = datagrams.receive(LOOK)?;
                Some((from, MrpPacket::parse(&payload).ok()?))
            }
            Self::Kernel(socket) => match socket.recv_from(buffer) {
                Ok((length, SocketAddr::V4(from))) => {
                    Some((*from.ip(), MrpPacket::parse(&buffer[..length]).ok()?))
                }
                // The socket has an IPv4 address.
                Ok((_, SocketAddr::V6(_))) => None,
                Err(error) => {
                    if !is_idle(&error) {
                        // An answer to an earlier packet, such as a port that is not open yet.
                        tracing::debug!(%error, "registration");
                    }
                    None
                }
            },
        }
    }
}

/// The begin of 2025, in seconds since 1970. Numbers of registrations count from here on, up to 2042.
const NUMBERS_SINCE: Duration = Duration::from_secs(1_735_689_600);

/// Eighths of seconds: larger than those of earlier registrations, as long as the clock of the host does not go back.
fn number(now: SystemTime) -> u32 {
    let since = now.duration_since(SystemTime::UNIX_EPOCH + NUMBERS_SINCE);
    since.map_or(1, |since| (since.as_millis() / 125) as u32)
}

pub(crate) fn nanos(length: Duration) -> Nanos {
    Nanos(u64::try_from(length.as_nanos()).unwrap_or(u64::MAX / 2))
}

enum Side {
    /// With the McstID, to which it sends.
    Leader(Leader, Ipv4Addr),
    /// With the address of the leader, and the key of its JOINs.
    Receiver(Receiver, Ipv4Addr, u32),
}

struct Worker {
    carrier: Carrier,
    udp_port: u16,
    /// Names of the group and of this host, for errors.
    group: String,
    host: String,
    started: Instant,
    stop: Arc<AtomicBool>,
    is_registered: bool,
    /// Whether a leader calls its receivers when the group cannot be registered.
    calls: bool,
    to: Sender<Told>,
}

impl Worker {
    fn run(mut self, mut side: Side) {
        let mut buffer = [0; PAYLOAD_MAX];
        while !self.stop.load(Ordering::Relaxed) {
            let now = nanos(self.started.elapsed());
            let due = match &mut side {
                Side::Leader(leader, to) => match leader.handle_timeout(now) {
                    Ok(packets) => {
                        packets.iter().for_each(|packet| self.send(*to, packet));
                        Ok(leader.is_registered())
                    }
                    Err(error) => Err(self.not_registered(error, self.roll(leader))),
                },
                Side::Receiver(receiver, to, key) => match receiver.handle_timeout(now) {
                    Ok(packet) => {
                        packet.iter().for_each(|packet| self.send(*to, packet));
                        Ok(receiver.is_registered())
                    }
                    Err(ReceiverError::Called(call)) => Err(self.called(call, (*to, *key))),
                    Err(error @ ReceiverError::Withdrawn) => Err(MemberError::Ended {
                        group: self.group.clone(),
                        reason: error.to_string(),
                    }),
                    Err(error) => Err(error.into()),
                },
            };
            match due {
                Ok(true) if !self.is_registered => {
                    self.is_registered = true;
                    let roll = match &side {
                        Side::Leader(leader, _) => self.roll(leader),
                        Side::Receiver(..) => None,
                    };
                    let _ = self.to.send(Ok(roll));
                }
                Ok(_) => {}
                Err(error) => {
                    let _ = self.to.send(Err(error));
                    break;
                }
            }
            let Some((from, packet)) = self.carrier.receive(&mut buffer) else {
                continue;
            };
            match &mut side {
                Side::Leader(leader, _) => leader.handle(nanos(self.started.elapsed()), from, &packet),
                Side::Receiver(receiver, to, _) => {
                    receiver
                        .handle(from, &packet)
                        .iter()
                        .for_each(|packet| self.send(*to, packet));
                }
            }
        }
        if let Side::Leader(leader, to) = side {
            (0..WITHDRAWALS).for_each(|_| self.send(to, &leader.withdraw()));
        }
    }

    /// All that this leader can call.
    fn roll(&self, leader: &Leader) -> Option<Roll> {
        leader.roll().filter(|_| self.calls)
    }

    /// All receivers have joined and can be called, but not all have confirmed.
    fn not_registered(&self, error: LeaderError, roll: Option<Roll>) -> MemberError {
        match (error, roll) {
            (error @ LeaderError::NotConfirmed { .. }, Some(roll)) => MemberError::NotInstalled {
                group: self.group.clone(),
                reason: error.to_string(),
                hosts: Hosts::of_roll(roll, &self.host),
            },
            (error, _) => error.into(),
        }
    }

    fn called(&self, call: MrpCall, (leader, key): (Ipv4Addr, u32)) -> MemberError {
        let (group, reason) = (self.group.clone(), call.reason);
        let roll = Roll::Receiver {
            leader,
            key,
            rank: call.rank,
            size: call.size,
        };
        let hosts = Hosts::of_roll(roll, &self.host);
        match self.is_registered {
            true => MemberError::Diverted { group, reason, hosts },
            false => MemberError::NotInstalled { group, reason, hosts },
        }
    }

    fn send(&self, to: Ipv4Addr, packet: &MrpPacket) {
        self.carrier.send(SocketAddrV4::new(to, self.udp_port), packet);
    }
}

fn is_idle(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}

#[cfg(test)]
mod tests {
    use castnet_wire::{MrpBody, MrpPart, Qpn};

    use super::*;

    fn member(n: u8) -> MrpMember {
        MrpMember {
            ip: Ipv4Addr::new(127, 0, 0, n),
            qpn: Qpn::new(0x100 + u32::from(n)),
            source: false,
        }
    }

    /// Gives each receiver its record, as the switches next to them do, until the leader withdraws the group.
    fn be_the_switches(socket: &UdpSocket, udp_port: u16) {
        let mut buffer = [0; PAYLOAD_MAX];
        // In the name of the leader.
        let to_receivers = UdpSocket::bind((member(1).ip, 0)).expect("a socket");
        loop {
            let (length, _) = socket.recv_from(&mut buffer).expect("a packet");
            let packet = MrpPacket::parse(&buffer[..length]).expect("of MRP");
            let members = match packet.body {
                MrpBody::Members(_, members) => members,
                MrpBody::Withdraw => return,
                other => panic!("{other:?} to the group"),
            };
            for own in members.into_iter().filter(|member| !member.source) {
                let part = MrpPart {
                    sequence: 0,
                    total: 1,
                    pmtu: Pmtu::B1024,
                };
                let body = MrpBody::Members(part, vec![own]);
                let number = packet.number;
                let bytes = MrpPacket { number, body }.to_bytes();
                to_receivers
                    .send_to(&bytes, SocketAddrV4::new(own.ip, udp_port))
                    .expect("sent");
            }
        }
    }

    fn await_result(registered: &Registered) -> Told {
        registered
            .results
            .recv_timeout(Duration::from_secs(20))
            .expect("a result")
    }

    #[test]
    fn a_leader_registers_its_receivers_over_sockets_and_withdraws_in_the_end() {
        let switches = UdpSocket::bind("127.0.0.100:0").expect("a socket");
        let udp_port = switches.local_addr().expect("an address").port();
        let group = (McstId([127, 0, 0, 100].into()), Pmtu::B1024);
        let start = |n: u8, others: Others| {
            let how = Registration {
                udp_port,
                ..Registration::new(others)
            };
            let carrier = Carrier::kernel(member(n).ip, udp_port).expect("a socket");
            Registered::start(carrier, &how, group, ("h", member(n), None)).expect("a thread")
        };
        let receivers = [2, 3].map(|n| start(n, Others::Leader(member(1).ip)));
        let leader = start(1, Others::Receivers([2, 3].map(|n| member(n).ip).into()));
        let switches = std::thread::spawn(move || be_the_switches(&switches, udp_port));
        for registered in receivers.iter().chain([&leader]) {
            await_result(registered).expect("registered");
        }
        drop(leader);
        switches.join().expect("withdrawn");
    }

    /// The switches ignore a registration with the number of one that was withdrawn.
    #[test]
    fn a_registration_soon_after_another_one_has_a_larger_number() {
        let now = SystemTime::now();
        assert!(number(now + Duration::from_millis(125)) > number(now));
    }

    #[test]
    fn who_does_not_answer_is_named() {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let udp_port = socket.local_addr().expect("an address").port();
        let group = (McstId([127, 0, 0, 101].into()), Pmtu::B1024);
        let how = Registration {
            udp_port,
            patience: Duration::from_millis(1),
            ..Registration::new(Others::Receivers([member(9).ip].into()))
        };
        // The port is in use.
        let error = Carrier::kernel(member(1).ip, udp_port).expect_err("two sockets");
        assert!(
            error
                .to_string()
                .contains(&format!("UDP port {udp_port} of 127.0.0.1")),
            "{error}"
        );
        drop(socket);
        let carrier = Carrier::kernel(member(1).ip, udp_port).expect("a socket");
        let registered = Registered::start(carrier, &how, group, ("h", member(1), None)).expect("a thread");
        let error = await_result(&registered)
            .expect_err("nobody is there")
            .to_string();
        assert_eq!(error, "registration: no connection from 127.0.0.9 within 1 ms");
    }
}
