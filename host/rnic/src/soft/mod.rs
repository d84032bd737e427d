//! [`SoftRnic`]: an endpoint on a port.

mod iteration;

use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

use castnet_endpoint::{
    Access, Completion, Endpoint, EndpointConfig, Lent, MemoryError, MemoryKey, PostError, QpConfig, QpError,
    QpState, QueueLimits, ReactionConfig, RecvWr, SendWr, Stats,
};
use castnet_port::{
    Batch, BoxPort, Pool, PoolBuf, PoolConfig, Port, PortSpec, PortStats, Sides, Sleeper, Waker,
};
use castnet_wire::{Arp, BitRate, Limit, MacAddr, Nanos, Pmtu, Qpn};

use crate::datagrams::{Datagrams, UdpPort};
use crate::error::RnicError;
use crate::neighbours::{NeighbourConfig, NeighbourStats, Neighbours, Resolution};
use crate::rnic::{DeviceAttributes, MemoryRegion, QpOptions, QpRemote, Rnic, Traffic, range};

/// Bytes of the port's MTU reserved for RoCEv2 headers, as in rxe.
const HEADERS: usize = 80;
/// The smallest assigned QP number, as in rxe, and the end of the range.
const LEAST_QPN: u32 = 0x11;
const END_QPN: u32 = 0xFF_FFF0;
/// The first virtual address of regions, and their alignment.
const VA_BASE: u64 = 1 << 32;
const VA_STEP: u64 = 1 << 21;

/// The gateway for destinations that are not on the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gateway {
    /// Length of the link's prefix, 0 to 32. Addresses with this prefix are on the link.
    pub prefix_len: u8,
    /// The next hop for all other addresses.
    pub ip: Ipv4Addr,
}

/// Configuration of a software RNIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SoftRnicConfig {
    /// IPv4 address.
    pub ip: Ipv4Addr,
    /// `None` if all addresses are on the link. McstIDs always are: the switch answers ARP for them.
    pub gateway: Option<Gateway>,
    /// Configuration of ARP.
    pub neighbours: NeighbourConfig,
    /// Congestion control of all QPs: their packets are ECN-capable then. `None`: switches do not mark them, marks of others cause no
    /// CNP, and CNPs have no effect.
    pub congestion: Option<Congestion>,
    /// The first QP number assigned. RNICs with one address, at once or in turn, need different ones to be told apart.
    pub first_qpn: Qpn,
}

/// ECN-capable (RFC 3168), in the type of service.
const ECT_0: u8 = 2;
/// The assumed speed of a port with unknown speed.
const RATE_MAX: BitRate = match BitRate::new(10_000_000_000) {
    Some(rate) => rate,
    None => unreachable!(),
};

/// Congestion control of a software RNIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Congestion {
    /// Who limits the notifications.
    pub algorithm: CongestionAlgorithm,
    /// The rate of the link, which a QP without congestion may use. `None`: the speed of the port or, if it is unknown, 10 Gb/s.
    pub rate_max: Option<BitRate>,
}

/// Who limits congestion notifications to one in 50 us. The rates are those of DCQCN in either case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CongestionAlgorithm {
    /// The receiver, per QP, as RNICs do (DCQCN).
    Dcqcn,
    /// The sender: it reacts to one, however many receivers send (PEEL's guard timer). All ends of a group need it.
    GuardTimer,
}

impl Congestion {
    fn cnp_interval(self) -> Nanos {
        match self.algorithm {
            CongestionAlgorithm::Dcqcn => QpConfig::CNP_INTERVAL,
            CongestionAlgorithm::GuardTimer => Nanos::ZERO,
        }
    }

    fn reaction(self, speed_mbps: Option<u32>) -> ReactionConfig {
        let guard = match self.algorithm {
            CongestionAlgorithm::Dcqcn => Nanos::ZERO,
            CongestionAlgorithm::GuardTimer => ReactionConfig::GUARD,
        };
        let speed = || speed_mbps.and_then(|mbps| BitRate::new(u64::from(mbps) * 1_000_000));
        ReactionConfig {
            guard,
            ..ReactionConfig::new(self.rate_max.or_else(speed).unwrap_or(RATE_MAX))
        }
    }
}

impl SoftRnicConfig {
    /// An RNIC at `ip` with all addresses on the link.
    pub fn new(ip: Ipv4Addr) -> Self {
        Self {
            ip,
            gateway: None,
            neighbours: NeighbourConfig::default(),
            congestion: None,
            first_qpn: Qpn::new(LEAST_QPN),
        }
    }
}

fn following_qpn(qpn: u32) -> u32 {
    let next = qpn.wrapping_add(1);
    if (LEAST_QPN..END_QPN).contains(&next) {
        next
    } else {
        LEAST_QPN
    }
}

#[derive(Debug, Default)]
struct Queues {
    sends: VecDeque<Completion>,
    receives: VecDeque<Completion>,
    /// The next hop whose Ethernet address is in the QP's frames.
    next_hop: Option<Ipv4Addr>,
    limits: QueueLimits,
}

/// An RC endpoint on a port, with ARP: answers for its address, resolves others, and announces itself periodically, so
/// that switches learn its port. It processes only frames to its own Ethernet address and broadcasts, and keeps
/// 256 frames for QPs that are not connected yet: members of a group are connected in any order.
pub struct SoftRnic<P> {
    attributes: DeviceAttributes,
    config: SoftRnicConfig,
    endpoint: Endpoint,
    neighbours: Neighbours,
    port: P,
    pool: Pool,
    sleeper: Sleeper,
    /// The origin of [`Rnic::now`].
    origin: Instant,
    queues: BTreeMap<Qpn, Queues>,
    qpn_next: u32,
    va_next: u64,
    batch: Batch<PoolBuf>,
    /// Received ARP packets that are not processed yet.
    arps: Vec<Arp>,
    /// Frames for QPs that are not connected yet: a remote may be connected first, and would wait for its time-out.
    early: VecDeque<Box<[u8]>>,
    /// Buffer for a whole frame in one piece.
    frame: Box<[u8]>,
    /// True if the last poll found work or a send was posted since: then waiting does not sleep.
    busy: bool,
    udp_ports: Vec<UdpPort>,
    /// Others can claim the address as often as they send.
    claims_logged: Limit,
    /// Keeps the kernel from answering RoCEv2 frames with ICMP errors. `None`: the kernel does not have this address.
    kernel_port: Option<UdpSocket>,
}

impl SoftRnic<BoxPort> {
    /// How often an opened RNIC announces itself. A later switch must learn the host before the controller gives up.
    const ANNOUNCE_INTERVAL: Nanos = Nanos::from_secs(2);
    /// The longest time to wait for the port's link.
    const LINK_WAIT: Duration = Duration::from_secs(1);

    /// Opens a port and creates an RNIC on it, for a host that is a process of its own. It announces itself every 2
    /// seconds. Its first QP number is random, so that a group does not take it for an earlier process with its
    /// address. If the kernel has its address, it binds the UDP port of RoCEv2: otherwise the kernel answers each frame
    /// with an ICMP error.
    pub fn open(spec: &PortSpec, mut config: SoftRnicConfig) -> Result<Self, RnicError> {
        config.first_qpn = Qpn::new(RandomState::new().hash_one(config.ip) as u32);
        config.neighbours.announce_interval = Self::ANNOUNCE_INTERVAL;
        let kernel_port = match spec.is_of_kernel() {
            false => None,
            true => UdpSocket::bind((config.ip, castnet_wire::udp::ROCE_PORT))
                .inspect_err(|error| tracing::debug!(%error, ip = %config.ip, "the kernel's UDP port 4791 is not held"))
                .ok(),
        };
        let spec = spec.clone().for_rnic(config.ip);
        let pool = Pool::new(PoolConfig::default());
        let port = spec.open(&pool, Sides::Both)?;
        let mut rnic = Self {
            kernel_port,
            ..Self::new(port, pool, config)?
        };
        rnic.await_link();
        Ok(rnic)
    }

    /// Waits for a link that comes up by itself, so that the first ARP requests are not lost.
    fn await_link(&mut self) {
        let start = Instant::now();
        while !self.port.is_up() && start.elapsed() < Self::LINK_WAIT {
            let now = self.now();
            self.port.poll(now);
            // A port that is down and has no work of its own does not come up by polling.
            let Some(due) = self.port.poll_timeout() else {
                return;
            };
            let timeout = Duration::from_nanos(due.since(self.now()).0).min(Self::LINK_WAIT);
            let port = &self.port;
            self.sleeper.sleep(timeout, || port.ready());
        }
    }
}

impl<P: Port<Buf = PoolBuf>> SoftRnic<P> {
    /// Creates an RNIC on `port`, whose frames live in `pool`. Fails if the MTU is too small or no descriptor is free.
    pub fn new(mut port: P, pool: Pool, config: SoftRnicConfig) -> Result<Self, RnicError> {
        let link = port.info();
        let least = Pmtu::B256.bytes() + HEADERS;
        let fits = |pmtu: &Pmtu| pmtu.bytes() + HEADERS <= link.mtu;
        let active_pmtu = Pmtu::ALL
            .into_iter()
            .rfind(fits)
            .ok_or(RnicError::MtuTooSmall { mtu: link.mtu, least })?;
        let mut sleeper = Sleeper::new().map_err(RnicError::io("creating a sleeper"))?;
        port.attach(&mut sleeper)
            .map_err(RnicError::io("attaching the port to a sleeper"))?;
        let attributes = DeviceAttributes {
            name: link.name,
            mac: link.mac,
            ip: config.ip,
            mtu: link.mtu,
            active_pmtu,
        };
        Ok(Self {
            endpoint: Endpoint::new(EndpointConfig {
                coalesce_acks: true,
                ..EndpointConfig::new(link.mac, config.ip)
            }),
            neighbours: Neighbours::new(link.mac, config.ip, config.neighbours),
            attributes,
            port,
            frame: vec![0; pool.frame_max().max(Endpoint::FRAME_MAX)].into_boxed_slice(),
            pool,
            sleeper,
            origin: Instant::now(),
            queues: BTreeMap::new(),
            qpn_next: following_qpn(config.first_qpn.value().wrapping_sub(1)),
            va_next: VA_BASE,
            batch: Batch::new(),
            arps: Vec::new(),
            early: VecDeque::new(),
            busy: true,
            udp_ports: Vec::new(),
            claims_logged: Limit::new(4, Nanos::from_secs(10)),
            kernel_port: None,
            config,
        })
    }

    /// Counters of the endpoint.
    pub fn stats(&self) -> &Stats {
        self.endpoint.stats()
    }

    /// Counters of the port.
    pub fn port_stats(&self) -> PortStats {
        self.port.stats()
    }

    /// Counters of the ARP machine.
    pub fn neighbour_stats(&self) -> NeighbourStats {
        self.neighbours.stats()
    }

    /// Status of a QP, which must exist.
    pub fn qp_status(&self, qpn: Qpn) -> Result<castnet_endpoint::QpStatus, RnicError> {
        Ok(self.endpoint.qp_status(qpn)?)
    }

    fn next_hop(&self, ip: Ipv4Addr) -> Ipv4Addr {
        match self.config.gateway {
            Some(gateway) => {
                let host_bits = 32 - u32::from(gateway.prefix_len.min(32));
                let mask = u32::MAX.checked_shl(host_bits).unwrap_or(0);
                let is_on_link = (ip.to_bits() ^ self.config.ip.to_bits()) & mask == 0;
                if is_on_link { ip } else { gateway.ip }
            }
            None => ip,
        }
    }

    /// Resolves the Ethernet address of the next hop to `ip` without blocking. The first call sends a
    /// request. Later calls return the state. Poll in between.
    pub fn resolve(&mut self, now: Nanos, ip: Ipv4Addr) -> Resolution {
        let next_hop = self.next_hop(ip);
        self.neighbours.resolve(now, next_hop)
    }

    /// As [`SoftRnic::resolve`], but blocks until there is a result or `timeout` has passed.
    pub fn resolve_within(&mut self, ip: Ipv4Addr, timeout: Duration) -> Result<MacAddr, RnicError> {
        let start = Instant::now();
        loop {
            let now = self.now();
            let waited = start.elapsed();
            match self.resolve(now, ip) {
                Resolution::Reachable(mac) => return Ok(mac),
                Resolution::NoRoom => {
                    return Err(RnicError::NeighboursFull {
                        max: self.config.neighbours.entries_max,
                    });
                }
                Resolution::Pending if waited < timeout => {}
                Resolution::Pending | Resolution::Unreachable => {
                    return Err(RnicError::Unreachable {
                        remote: ip,
                        next_hop: self.next_hop(ip),
                        waited,
                    });
                }
            }
            self.poll_or_wait(timeout.saturating_sub(waited))?;
        }
    }

    fn connect(&mut self, qpn: Qpn, remote: &QpRemote, mac: MacAddr) -> Result<(), RnicError> {
        let active = self.attributes.active_pmtu;
        if remote.pmtu > active {
            return Err(RnicError::PmtuTooLarge {
                asked: remote.pmtu,
                active,
            });
        }
        let congestion = self.config.congestion;
        let ect = if congestion.is_some() { ECT_0 } else { 0 };
        self.endpoint.connect_qp(QpConfig {
            sq_psn: remote.sq_psn,
            rq_psn: remote.rq_psn,
            pmtu: remote.pmtu,
            timeout: remote.timeout,
            retry_cnt: remote.retry_cnt,
            rnr_retry: remote.rnr_retry,
            min_rnr_timer: remote.min_rnr_timer,
            repeat: remote.repeat,
            probes: true,
            rate_limit: remote.rate_limit,
            cnp_interval: congestion.map(Congestion::cnp_interval),
            reaction: congestion.map(|congestion| congestion.reaction(self.port.speed_mbps())),
            tos: remote.tos | ect,
            ttl: remote.ttl,
            ..QpConfig::new(qpn, remote.ip, mac, remote.qpn)
        })?;
        let next_hop = self.next_hop(remote.ip);
        if let Some(queues) = self.queues.get_mut(&qpn) {
            queues.next_hop = Some(next_hop);
        }
        self.handle_early();
        Ok(())
    }
}

fn check_completions(queue: &VecDeque<Completion>, max: usize) -> Result<(), PostError> {
    if queue.len() < max {
        Ok(())
    } else {
        Err(PostError::CompletionQueueFull { max })
    }
}

impl<P: Port<Buf = PoolBuf>> Rnic for SoftRnic<P> {
    fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }

    fn traffic(&self) -> Traffic {
        let stats = self.stats();
        Traffic {
            frames_sent: Some(stats.frames_out),
            retransmissions: Some(stats.retransmits),
            timeouts: Some(stats.timeouts),
            naks_received: Some(stats.sequence_naks_in),
            rnr_naks_received: Some(stats.rnr_naks_in),
            duplicates_received: Some(stats.duplicates_in),
            naks_sent: Some(stats.sequence_naks_out),
            rnr_naks_sent: Some(stats.rnr_naks_out),
            cnps_received: self.config.congestion.map(|_| stats.cnps_in),
            cnps_sent: self.config.congestion.map(|_| stats.cnps_out),
            probes: stats.probes,
            answers: stats.acks_in + stats.sequence_naks_in + stats.rnr_naks_in,
            requests: stats.requests_in + stats.duplicates_in,
        }
    }

    fn now(&self) -> Nanos {
        Nanos(self.origin.elapsed().as_nanos() as u64)
    }

    fn register_memory(&mut self, length: usize, access: Access) -> Result<MemoryRegion, RnicError> {
        let va = self.va_next;
        // Regions are at least one alignment step apart, so an overrun hits no other region.
        let span = (length as u64)
            .checked_next_multiple_of(VA_STEP)
            .and_then(|span| va.checked_add(span)?.checked_add(VA_STEP));
        let va_next = span.ok_or(MemoryError::Wraps { va, length })?;
        // A length that cannot be had would end the process. The pages of `vec!` are taken when they are used; those of a filled one, now.
        let mut room = Vec::<u8>::new();
        let reserved = room.try_reserve_exact(length);
        reserved.map_err(|_| RnicError::NoMemory { length })?;
        // A compiler leaves out what nobody uses.
        drop(std::hint::black_box(room));
        let key = self.endpoint.register_memory(va, vec![0; length], access)?;
        self.va_next = va_next;
        Ok(MemoryRegion {
            key,
            va,
            rkey: key.rkey(),
            length,
        })
    }

    fn deregister_memory(&mut self, key: MemoryKey) -> Result<(), RnicError> {
        Ok(self.endpoint.deregister_memory(key).map(drop)?)
    }

    fn lend_memory(&mut self, memory: Lent) -> Result<MemoryKey, (Lent, RnicError)> {
        let lent = self.endpoint.lend_memory(memory);
        lent.map_err(|(memory, error)| (memory, error.into()))
    }

    fn end_lending(&mut self, key: MemoryKey) -> Result<Lent, RnicError> {
        Ok(self.endpoint.end_lending(key)?)
    }

    fn read_memory(&self, key: MemoryKey, offset: u64, out: &mut [u8]) -> Result<(), RnicError> {
        let bytes = self.endpoint.memory(key)?;
        out.copy_from_slice(&bytes[range(offset, out.len(), bytes.len())?]);
        Ok(())
    }

    fn write_memory(&mut self, key: MemoryKey, offset: u64, bytes: &[u8]) -> Result<(), RnicError> {
        let region = self.endpoint.memory_mut(key)?;
        let range = range(offset, bytes.len(), region.len())?;
        region[range].copy_from_slice(bytes);
        Ok(())
    }

    fn create_qp(&mut self, options: &QpOptions) -> Result<Qpn, RnicError> {
        let qpn = options.qpn.unwrap_or_else(|| {
            while self.queues.contains_key(&Qpn::new(self.qpn_next)) {
                self.qpn_next = following_qpn(self.qpn_next);
            }
            Qpn::new(self.qpn_next)
        });
        self.endpoint.open_qp(qpn, options.limits)?;
        self.queues.insert(
            qpn,
            Queues {
                limits: options.limits,
                ..Queues::default()
            },
        );
        if options.qpn.is_none() {
            // A number is not reused at once, because frames of the old QP may still be in flight.
            self.qpn_next = following_qpn(self.qpn_next);
        }
        Ok(qpn)
    }

    fn connect_qp(&mut self, qpn: Qpn, remote: &QpRemote, timeout: Duration) -> Result<(), RnicError> {
        let mac = match remote.mac {
            Some(mac) => mac,
            None => self.resolve_within(remote.ip, timeout)?,
        };
        self.connect(qpn, remote, mac)
    }

    fn qp_state(&self, qpn: Qpn) -> Result<QpState, RnicError> {
        Ok(self.endpoint.qp_status(qpn)?.state)
    }

    fn reset_qp(&mut self, qpn: Qpn) -> Result<(), RnicError> {
        Ok(self.endpoint.reset_qp(qpn)?)
    }

    fn fail_qp(&mut self, qpn: Qpn) -> Result<(), RnicError> {
        Ok(self.endpoint.fail_qp(qpn)?)
    }

    fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), RnicError> {
        self.endpoint.destroy_qp(qpn)?;
        self.handle_early();
        self.sort_completions();
        self.queues.remove(&qpn).ok_or(QpError::Unknown { qpn })?;
        Ok(())
    }

    fn post_send(&mut self, qpn: Qpn, wr: SendWr) -> Result<(), RnicError> {
        if let Some(queues) = self.queues.get(&qpn) {
            check_completions(&queues.sends, queues.limits.send)?;
        }
        self.busy = true;
        Ok(self.endpoint.post_send(qpn, wr)?)
    }

    fn post_recv(&mut self, qpn: Qpn, wr: RecvWr) -> Result<(), RnicError> {
        if let Some(queues) = self.queues.get(&qpn) {
            check_completions(&queues.receives, queues.limits.receive)?;
        }
        Ok(self.endpoint.post_recv(qpn, wr)?)
    }

    fn poll(&mut self, now: Nanos) -> Result<bool, RnicError> {
        self.port.poll(now);
        let received = self.receive(now);
        let timeouts = self.endpoint.stats().timeouts;
        self.endpoint.handle_timeout(now);
        if self.endpoint.stats().timeouts != timeouts {
            self.neighbours.confirm_all(now);
        }
        let sent = self.transmit_datagrams(now) | self.transmit(now);
        let completed = self.sort_completions();
        self.busy = received || sent || completed;
        Ok(self.busy)
    }

    fn poll_send_completion(&mut self, qpn: Qpn) -> Option<Completion> {
        self.sort_completions();
        self.queues.get_mut(&qpn)?.sends.pop_front()
    }

    fn poll_recv_completion(&mut self, qpn: Qpn) -> Option<Completion> {
        self.sort_completions();
        self.queues.get_mut(&qpn)?.receives.pop_front()
    }

    fn datagrams(&mut self, port: u16) -> Option<Datagrams> {
        let in_kernel = self.kernel_port.as_ref();
        let kernel_port = in_kernel.and_then(|_| UdpSocket::bind((self.config.ip, port)).ok());
        let (open, user) = UdpPort::open(port, kernel_port, self.sleeper.waker());
        self.udp_ports.push(open);
        Some(user)
    }

    fn announce(&mut self) -> Result<(), RnicError> {
        let now = self.now();
        self.neighbours.announce(now);
        Ok(())
    }

    fn waker(&self) -> Waker {
        self.sleeper.waker()
    }

    fn wait_unless(&mut self, timeout: Duration, ready: &dyn Fn() -> bool) -> Result<(), RnicError> {
        if self.busy {
            return Ok(());
        }
        let timeout = timeout.min(self.idle_for(self.now()));
        if !timeout.is_zero() {
            let Self {
                port,
                udp_ports,
                sleeper,
                ..
            } = self;
            sleeper.sleep(timeout, || {
                port.ready() || udp_ports.iter().any(UdpPort::has_work) || ready()
            });
        }
        Ok(())
    }
}
