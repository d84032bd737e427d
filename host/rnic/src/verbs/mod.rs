//! RNICs of the machine through libibverbs: hardware, or the kernel's rdma_rxe (SoftRoCE). The library is loaded when a
//! [`VerbsRnic`] is opened, so programs also run where it is not installed. Differences from the software RNIC:
//!
//! - The device assigns QP numbers.
//! - The kernel resolves the next hop, so [`QpRemote::mac`] is ignored.
//! - A completion does not contain whether the sender requested a solicited event.
//! - Regions are at this process's addresses, and their local and remote keys may differ.
//! - Memory cannot be lent to it ([`Rnic::lend_memory`]). A registration pins the pages that an address has at that moment.
//!   If it were kept for the next call, it would refer to the old pages after the owner has freed and mapped the memory
//!   again, and nothing reports that to this process. A registration for each call would cost system calls.

mod announce;
mod handles;
mod library;
mod queue;
mod select;
mod status;
mod sys;
mod sysfs;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use castnet_endpoint::{
    Access, Completion, LocalSlice, MESSAGE_MAX, MemoryError, MemoryKey, OutOfRange, PostError, QpError,
    QpEvent, QpState, RecvWr, SendOp, SendWr,
};
use castnet_port::{Sleeper, Waker};
use castnet_wire::{Nanos, Qpn};
use tracing::{debug, warn};

use crate::datagrams::Datagrams;
use crate::error::RnicError;
use crate::rnic::{DeviceAttributes, MemoryRegion, QpOptions, QpRemote, Rnic, Traffic, range};
use handles::{Channel, Domain, QueuePair, Region};
use library::Api;
use queue::{Direction, VerbsQp};
use sysfs::Sysfs;

pub use sysfs::GidEntry;

/// Selection of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerbsConfig {
    /// Name, such as rxe0 or mlx5_0. `None` selects the first device whose port is up and has a matching GID.
    pub device: Option<String>,
    /// Port number, starting at 1.
    pub port: u8,
    /// Address of the host. `None` uses that of the first RoCEv2 GID with an IPv4 address.
    pub ip: Option<Ipv4Addr>,
    /// Index of the GID. `None` selects the RoCEv2 GID with the host's address.
    pub gid_index: Option<u32>,
    /// Name or path of the library.
    pub library: String,
}

impl Default for VerbsConfig {
    fn default() -> Self {
        Self {
            device: None,
            port: 1,
            ip: None,
            gid_index: None,
            library: "libibverbs.so.1".to_owned(),
        }
    }
}

/// An RDMA device of this machine, for listings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerbsDevice {
    /// Name of the device.
    pub name: String,
    /// Attributes with [`VerbsConfig::default`], or why it cannot be used.
    pub state: Result<DeviceAttributes, String>,
    /// Advice for the operator if it cannot be used.
    pub advice: Option<String>,
}

/// Lists all RDMA devices of this machine. Fails if there is none, or the library is missing.
pub fn devices() -> Result<Vec<VerbsDevice>, RnicError> {
    let (config, sysfs) = (VerbsConfig::default(), Sysfs::default());
    let api = Api::load(&config.library)?;
    let names = handles::device_names(&api)?;
    if names.is_empty() {
        return Err(RnicError::NoRdmaDevice {
            without_driver: sysfs.devices(),
        });
    }
    let looked_at = names.into_iter().map(|name| {
        let config = VerbsConfig {
            device: Some(name.clone()),
            ..config.clone()
        };
        match select::choose(&api, &sysfs, &config) {
            Ok(chosen) => VerbsDevice {
                name,
                state: Ok(chosen.attributes),
                advice: None,
            },
            Err(error) => VerbsDevice {
                name,
                advice: error.advice(),
                state: Err(error.to_string()),
            },
        }
    });
    Ok(looked_at.collect())
}

/// An RNIC of the machine.
pub struct VerbsRnic {
    // Dropped in this order: QPs with their queues, regions, channel, domain; the last one drops the device.
    qps: BTreeMap<Qpn, VerbsQp>,
    regions: BTreeMap<MemoryKey, Region>,
    channel: Arc<Channel>,
    domain: Arc<Domain>,
    context: Arc<handles::Context>,
    attributes: DeviceAttributes,
    config: VerbsConfig,
    gid_index: u8,
    interface: Option<String>,
    limits: sys::DeviceAttr,
    sysfs: Sysfs,
    sleeper: Sleeper,
    origin: Instant,
    token_next: usize,
    wcs: Box<[sys::Wc]>,
    completions: u64,
    /// The kernel's counters when the device was opened.
    counters_before: BTreeMap<String, u64>,
    /// The event with which the device has failed.
    failed: Option<String>,
}

const BATCH: usize = 64;
const EVENTS_MAX: usize = 64;
/// Delay before the kernel is asked again for a next hop if it failed immediately.
const RESOLVE_AGAIN: Duration = Duration::from_millis(100);

impl VerbsRnic {
    /// Opens a device. Fails if the library, a device, a GID or an active port is missing, with a variant for each.
    pub fn open(config: VerbsConfig) -> Result<Self, RnicError> {
        let (api, sysfs) = (Api::load(&config.library)?, Sysfs::default());
        let chosen = select::choose(&api, &sysfs, &config)?;
        let domain = Domain::new(&chosen.context)?;
        let channel = Channel::new(&chosen.context)?;
        let mut sleeper = Sleeper::new().map_err(RnicError::io("creating a sleeper"))?;
        for events in [&channel.events, &chosen.context.events] {
            sleeper
                .add_file(events.clone())
                .map_err(RnicError::io("adding events to a sleeper"))?;
        }
        debug!(device = chosen.attributes.name, ip = %chosen.attributes.ip, gid = chosen.gid_index, "opened");
        Ok(Self {
            qps: BTreeMap::new(),
            regions: BTreeMap::new(),
            channel,
            domain,
            context: chosen.context,
            counters_before: sysfs.counters(&chosen.attributes.name, config.port),
            attributes: chosen.attributes,
            config,
            gid_index: chosen.gid_index,
            interface: chosen.interface,
            limits: chosen.limits,
            sysfs,
            sleeper,
            origin: Instant::now(),
            token_next: 0,
            wcs: vec![sys::Wc::default(); BATCH].into_boxed_slice(),
            completions: 0,
            failed: None,
        })
    }

    /// The kernel's counters of the device by name, for all QPs and users. The driver defines which counters exist.
    pub fn counters(&self) -> BTreeMap<String, u64> {
        self.sysfs.counters(&self.attributes.name, self.config.port)
    }

    fn qp(&mut self, qpn: Qpn) -> Result<&mut VerbsQp, QpError> {
        self.qps.get_mut(&qpn).ok_or(QpError::Unknown { qpn })
    }

    fn region(&self, key: MemoryKey) -> Result<&Region, RnicError> {
        Ok(self.regions.get(&key).ok_or(MemoryError::UnknownKey { key })?)
    }

    /// `None` if the slice is empty.
    fn bytes(&self, slice: LocalSlice) -> Result<Option<sys::Sge>, RnicError> {
        let LocalSlice { key, offset, length } = slice;
        if length == 0 {
            return Ok(None);
        }
        let region = self.regions.get(&key).ok_or(PostError::UnknownKey { key })?;
        slice.check_inside(region.length() as u64)?;
        Ok(Some(sys::Sge {
            addr: region.va() + offset,
            length,
            lkey: key.lkey(),
        }))
    }

    /// Reads completions from the device. Returns true if there were any.
    fn drain(&mut self) -> Result<bool, RnicError> {
        let before = self.completions;
        for (qpn, qp) in &mut self.qps {
            for direction in [Direction::Send, Direction::Receive] {
                self.completions += qp.drain(*qpn, direction, &mut self.wcs, &self.attributes.name)?;
            }
        }
        Ok(self.completions != before)
    }

    /// Reads pending events, so that they do not wake the thread again.
    fn take_events(&mut self) {
        for _ in 0..EVENTS_MAX {
            let Some(token) = self.channel.next_event() else {
                break;
            };
            for qp in self.qps.values_mut() {
                qp.has_reported(token);
            }
        }
        for _ in 0..EVENTS_MAX {
            match self.context.next_event() {
                Ok(Some((event, qpn))) => self.take_async_event(event, qpn),
                Ok(None) => break,
                // The device was removed or its driver unloaded.
                Err(error) => {
                    self.failed = Some(error.to_string());
                    break;
                }
            }
        }
    }

    fn take_async_event(&mut self, event: u32, qpn: Option<u32>) {
        let (device, name) = (&self.attributes.name, status::event_name(event));
        match event {
            sys::EVENT_DEVICE_FATAL => self.failed = Some(name),
            sys::EVENT_QP_FATAL | sys::EVENT_QP_REQ_ERR | sys::EVENT_QP_ACCESS_ERR | sys::EVENT_CQ_ERR => {
                warn!(device, event = name, qpn, "a QP has failed");
            }
            sys::EVENT_PORT_ERR => warn!(device, event = name, "the port has gone down"),
            _ => debug!(device, event = name, qpn, "event"),
        }
    }

    /// The error for a next hop that did not reply. The kernel may have used another interface.
    fn unreached(&self, remote: Ipv4Addr, waited: Duration) -> RnicError {
        // Connecting a UDP socket sends nothing; it only looks up the route.
        let routed = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).and_then(|socket| {
            socket.connect((remote, castnet_wire::udp::ROCE_PORT))?;
            socket.local_addr()
        });
        match routed.map(|address| address.ip()) {
            Ok(from) if from != self.attributes.ip => self.no_route(remote, Some(from)),
            Err(error) if error.raw_os_error() == Some(libc::ENETUNREACH) => self.no_route(remote, None),
            _ => RnicError::Unreachable {
                remote,
                next_hop: remote,
                waited,
            },
        }
    }

    fn no_route(&self, remote: Ipv4Addr, from: Option<IpAddr>) -> RnicError {
        RnicError::NoRoute {
            remote,
            device: self.attributes.name.clone(),
            ip: self.attributes.ip,
            from,
        }
    }

    fn ready(&mut self, qpn: Qpn, remote: &QpRemote) -> Result<(), (&'static str, io::Error)> {
        let dgid = sys::Gid {
            raw: remote.ip.to_ipv6_mapped().octets(),
        };
        let to_receive = sys::QpAttr {
            qp_state: sys::QPS_RTR,
            path_mtu: select::mtu_code(remote.pmtu),
            dest_qp_num: remote.qpn.value(),
            rq_psn: remote.rq_psn.value(),
            max_dest_rd_atomic: 1,
            min_rnr_timer: remote.min_rnr_timer,
            ah_attr: sys::AhAttr {
                grh: sys::GlobalRoute {
                    dgid,
                    flow_label: 0,
                    sgid_index: self.gid_index,
                    hop_limit: remote.ttl,
                    traffic_class: remote.tos,
                },
                is_global: 1,
                port_num: self.config.port,
                ..sys::AhAttr::default()
            },
            ..sys::QpAttr::default()
        };
        let to_send = sys::QpAttr {
            qp_state: sys::QPS_RTS,
            sq_psn: remote.sq_psn.value(),
            timeout: remote.timeout,
            retry_cnt: remote.retry_cnt,
            rnr_retry: remote.rnr_retry,
            max_rd_atomic: 1,
            ..sys::QpAttr::default()
        };
        let no_qp = |_| ("finding the QP", io::Error::from(io::ErrorKind::NotFound));
        let qp = &mut self.qp(qpn).map_err(no_qp)?.pair;
        qp.modify(
            to_receive,
            sys::QP_STATE
                | sys::QP_AV
                | sys::QP_PATH_MTU
                | sys::QP_DEST_QPN
                | sys::QP_RQ_PSN
                | sys::QP_MAX_DEST_RD_ATOMIC
                | sys::QP_MIN_RNR_TIMER,
        )
        .map_err(|e| ("making a QP ready to receive", e))?;
        qp.modify(
            to_send,
            sys::QP_STATE
                | sys::QP_SQ_PSN
                | sys::QP_TIMEOUT
                | sys::QP_RETRY_CNT
                | sys::QP_RNR_RETRY
                | sys::QP_MAX_QP_RD_ATOMIC,
        )
        .map_err(|e| ("making a QP ready to send", e))
    }
}

/// Refuses values that exceed their fields, as the software RNIC does.
fn check_remote(remote: &QpRemote) -> Result<(), QpError> {
    OutOfRange::check("timeout", remote.timeout, 0, 31)?;
    OutOfRange::check("retry_cnt", remote.retry_cnt, 0, 7)?;
    OutOfRange::check("rnr_retry", remote.rnr_retry, 0, 7)?;
    Ok(OutOfRange::check("min_rnr_timer", remote.min_rnr_timer, 0, 31)?)
}

fn initialize(pair: &mut QueuePair, port: u8) -> Result<(), RnicError> {
    let init = sys::QpAttr {
        qp_state: sys::QPS_INIT,
        port_num: port,
        qp_access_flags: sys::ACCESS_LOCAL_WRITE | sys::ACCESS_REMOTE_WRITE,
        ..sys::QpAttr::default()
    };
    let mask = sys::QP_STATE | sys::QP_PKEY_INDEX | sys::QP_PORT | sys::QP_ACCESS_FLAGS;
    pair.modify(init, mask)
        .map_err(RnicError::io("initializing a QP"))
}

fn depth(field: &'static str, asked: usize, max: i32) -> Result<u32, QpError> {
    let max = u32::try_from(max).unwrap_or(0).max(1);
    OutOfRange::check(field, asked as u64, 1, max.into())?;
    Ok(asked as u32)
}

impl Rnic for VerbsRnic {
    fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }

    fn traffic(&self) -> Traffic {
        let now = self.counters();
        // The growth of the first of these counters that the device has: rxe's names first, then those of mlx5.
        let growth = |names: &[&str]| {
            let (name, value) = names.iter().find_map(|name| now.get_key_value(*name))?;
            let before = self.counters_before.get(name).copied().unwrap_or(0);
            Some(value.wrapping_sub(before))
        };
        let naks_received = growth(&["rcvd_seq_err", "packet_seq_err"]);
        let rnr_naks_received = growth(&["rcvd_rnr_err", "rnr_nak_retry_err"]);
        let duplicates_received = growth(&["duplicate_request"]);
        let naks_sent = growth(&["out_of_seq_request", "out_of_sequence"]);
        let rnr_naks_sent = growth(&["send_rnr_err", "out_of_buffer"]);
        let sum = |counters: &[Option<u64>]| self.completions + counters.iter().flatten().sum::<u64>();
        Traffic {
            frames_sent: growth(&["sent_pkts"]),
            retransmissions: None,
            timeouts: growth(&["local_ack_timeout_err"]),
            naks_received,
            rnr_naks_received,
            duplicates_received,
            naks_sent,
            rnr_naks_sent,
            cnps_received: growth(&["rp_cnp_handled"]),
            cnps_sent: growth(&["np_cnp_sent"]),
            probes: 0,
            answers: sum(&[naks_received, rnr_naks_received]),
            requests: sum(&[duplicates_received, naks_sent, rnr_naks_sent]),
        }
    }

    fn now(&self) -> Nanos {
        Nanos(self.origin.elapsed().as_nanos() as u64)
    }

    fn register_memory(&mut self, length: usize, access: Access) -> Result<MemoryRegion, RnicError> {
        let mut rights = 0;
        if access.local_write || access.remote_write {
            // Remote write requires local write (ibv_reg_mr(3)).
            rights |= sys::ACCESS_LOCAL_WRITE;
        }
        if access.remote_write {
            rights |= sys::ACCESS_REMOTE_WRITE;
        }
        let region = Region::new(&self.domain, length, rights)?;
        let ((lkey, rkey), va) = (region.keys(), region.va());
        let key = MemoryKey::new(lkey);
        self.regions.insert(key, region);
        Ok(MemoryRegion {
            key,
            va,
            rkey,
            length,
        })
    }

    fn deregister_memory(&mut self, key: MemoryKey) -> Result<(), RnicError> {
        let region = self.regions.remove(&key);
        region.map(drop).ok_or(MemoryError::UnknownKey { key }.into())
    }

    fn read_memory(&self, key: MemoryKey, offset: u64, out: &mut [u8]) -> Result<(), RnicError> {
        let region = self.region(key)?;
        region.read(range(offset, out.len(), region.length())?, out);
        Ok(())
    }

    fn write_memory(&mut self, key: MemoryKey, offset: u64, bytes: &[u8]) -> Result<(), RnicError> {
        let region = self
            .regions
            .get_mut(&key)
            .ok_or(MemoryError::UnknownKey { key })?;
        region.write(range(offset, bytes.len(), region.length())?, bytes);
        Ok(())
    }

    fn create_qp(&mut self, options: &QpOptions) -> Result<Qpn, RnicError> {
        if let Some(qpn) = options.qpn {
            return Err(RnicError::ChosenQpn { qpn });
        }
        let most = self.limits.max_qp_wr.min(self.limits.max_cqe);
        let send = depth("limits.send", options.limits.send, most)?;
        let receive = depth("limits.receive", options.limits.receive, most)?;
        let tokens = [self.token_next, self.token_next + 1];
        self.token_next += 2;
        let queue =
            |depth: u32, token| handles::CompletionQueue::new(&self.channel, depth.cast_signed(), token);
        let (send_queue, recv_queue) = (queue(send, tokens[0])?, queue(receive, tokens[1])?);
        let cap = sys::QpCap {
            max_send_wr: send,
            max_recv_wr: receive,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let mut pair = QueuePair::new(&self.domain, send_queue, recv_queue, cap)?;
        initialize(&mut pair, self.config.port)?;
        let qpn = Qpn::new(pair.number());
        self.qps.insert(qpn, VerbsQp::new(pair, options.limits, tokens));
        Ok(qpn)
    }

    fn connect_qp(&mut self, qpn: Qpn, remote: &QpRemote, timeout: Duration) -> Result<(), RnicError> {
        check_remote(remote)?;
        if remote.pmtu > self.attributes.active_pmtu {
            return Err(RnicError::PmtuTooLarge {
                asked: remote.pmtu,
                active: self.attributes.active_pmtu,
            });
        }
        let state = self.qp_state(qpn)?;
        if state != QpState::Init {
            let event = QpEvent::Connect;
            return Err(QpError::WrongState { qpn, state, event }.into());
        }
        let start = Instant::now();
        loop {
            let (what, source) = match self.ready(qpn, remote) {
                Ok(()) => break,
                Err(failed) => failed,
            };
            let waited = start.elapsed();
            match source.raw_os_error() {
                // No reply: the kernel reports it after a second, or at once if it failed before.
                Some(libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::EAGAIN) => {
                    if waited >= timeout {
                        return Err(self.unreached(remote.ip, waited));
                    }
                    self.wait(RESOLVE_AGAIN.min(timeout.saturating_sub(waited)))?;
                }
                Some(libc::ENETUNREACH) => return Err(self.no_route(remote.ip, None)),
                _ => return Err(RnicError::Io { what, source }),
            }
        }
        self.qp(qpn)?.is_connected = true;
        Ok(())
    }

    fn qp_state(&self, qpn: Qpn) -> Result<QpState, RnicError> {
        let qp = self.qps.get(&qpn).ok_or(QpError::Unknown { qpn })?;
        let state = qp
            .pair
            .state()
            .map_err(RnicError::io("querying the state of a QP"))?;
        Ok(match state {
            sys::QPS_RESET | sys::QPS_INIT => QpState::Init,
            sys::QPS_RTR | sys::QPS_RTS | sys::QPS_SQD => QpState::Ready,
            _ => QpState::Error,
        })
    }

    /// The only state in which an RNIC takes other PSNs is that before a connection.
    fn reset_qp(&mut self, qpn: Qpn) -> Result<(), RnicError> {
        // Some devices remove the completions of a QP that is reset.
        self.drain()?;
        let port = self.config.port;
        let reset = sys::QpAttr {
            qp_state: sys::QPS_RESET,
            ..sys::QpAttr::default()
        };
        let pair = &mut self.qp(qpn)?.pair;
        pair.modify(reset, sys::QP_STATE)
            .map_err(RnicError::io("resetting a QP"))?;
        self.drain()?;
        let qp = self.qp(qpn)?;
        qp.forget_requests();
        initialize(&mut qp.pair, port)
    }

    fn fail_qp(&mut self, qpn: Qpn) -> Result<(), RnicError> {
        let error = sys::QpAttr {
            qp_state: sys::QPS_ERR,
            ..sys::QpAttr::default()
        };
        let qp = self.qp(qpn)?;
        qp.pair
            .modify(error, sys::QP_STATE)
            .map_err(RnicError::io("failing a QP"))
    }

    fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), RnicError> {
        let qp = self.qps.remove(&qpn);
        qp.map(drop).ok_or(QpError::Unknown { qpn }.into())
    }

    fn post_send(&mut self, qpn: Qpn, wr: SendWr) -> Result<(), RnicError> {
        if wr.local.length > MESSAGE_MAX {
            return Err(PostError::TooLong {
                length: wr.local.length,
                max: MESSAGE_MAX,
            }
            .into());
        }
        let bytes = self.bytes(wr.local)?;
        let qp = self.qps.get_mut(&qpn).ok_or(PostError::UnknownQp { qpn })?;
        if !qp.is_connected {
            return Err(PostError::NotConnected { qpn }.into());
        }
        let number = qp.sends.reserve(qpn)?;
        let opcode = match wr.op {
            SendOp::Send => sys::WR_SEND,
            SendOp::SendImm(_) => sys::WR_SEND_WITH_IMM,
            SendOp::Write { .. } => sys::WR_RDMA_WRITE,
            SendOp::WriteImm { .. } => sys::WR_RDMA_WRITE_WITH_IMM,
        };
        let flag = |on, flag| if on { flag } else { 0 };
        let flags = flag(wr.signaled, sys::SEND_SIGNALED) | flag(wr.solicited, sys::SEND_SOLICITED);
        let mut raw = sys::SendWr::new(number, opcode, flags);
        if let SendOp::SendImm(imm) | SendOp::WriteImm { imm, .. } = wr.op {
            raw.imm_data = imm.to_be();
        }
        if let SendOp::Write { va, rkey } | SendOp::WriteImm { va, rkey, .. } = wr.op {
            (raw.remote_addr, raw.rkey) = (va, rkey);
        }
        qp.pair
            .post_send(raw, bytes)
            .map_err(|e| queue::refused(qpn, "posting a send", qp.sends.max(), e))?;
        qp.sends.posted_send(&wr);
        Ok(())
    }

    fn post_recv(&mut self, qpn: Qpn, wr: RecvWr) -> Result<(), RnicError> {
        let bytes = self.bytes(wr.local)?;
        let qp = self.qps.get_mut(&qpn).ok_or(PostError::UnknownQp { qpn })?;
        let number = qp.receives.reserve(qpn)?;
        qp.pair
            .post_recv(number, bytes)
            .map_err(|e| queue::refused(qpn, "posting a receive", qp.receives.max(), e))?;
        qp.receives.posted_recv(&wr);
        Ok(())
    }

    /// Makes the kernel broadcast an ARP request on the device's interface. An RDMA device does not announce itself.
    fn datagrams(&mut self, _: u16) -> Option<Datagrams> {
        None
    }

    fn announce(&mut self) -> Result<(), RnicError> {
        let interface = self.interface.as_deref().unwrap_or_default();
        announce::announce(interface, self.attributes.ip).map_err(RnicError::io("announcing the host by ARP"))
    }

    fn poll(&mut self, _now: Nanos) -> Result<bool, RnicError> {
        if let Some(event) = &self.failed {
            return Err(RnicError::DeviceFailed {
                device: self.attributes.name.clone(),
                event: event.clone(),
            });
        }
        self.drain()
    }

    fn poll_send_completion(&mut self, qpn: Qpn) -> Option<Completion> {
        self.qps.get_mut(&qpn)?.sends.pop()
    }

    fn poll_recv_completion(&mut self, qpn: Qpn) -> Option<Completion> {
        self.qps.get_mut(&qpn)?.receives.pop()
    }

    fn waker(&self) -> Waker {
        self.sleeper.waker()
    }

    fn wait_unless(&mut self, timeout: Duration, ready: &dyn Fn() -> bool) -> Result<(), RnicError> {
        let mut armed = false;
        for qp in self.qps.values_mut() {
            armed |= qp.arm()?;
        }
        // Completions before the queue was armed cause no event.
        if armed && self.drain()? {
            return Ok(());
        }
        self.sleeper.sleep(timeout, ready);
        self.take_events();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Libraries, drivers and devices differ between machines, but there is always a reason and advice.
    #[test]
    fn a_machine_without_an_rdma_device_gives_advice() {
        match VerbsRnic::open(VerbsConfig::default()) {
            Ok(rnic) => assert!(!rnic.attributes().name.is_empty()),
            Err(error) => {
                let (text, advice) = (error.to_string(), error.advice().expect("advice"));
                match error {
                    RnicError::NoVerbsLibrary { .. } => assert!(advice.contains("apt install"), "{advice}"),
                    RnicError::NoRdmaDevice { .. } => {
                        assert!(text.contains("no RDMA device"), "{text}");
                        assert!(advice.contains("modprobe rdma_rxe"), "{advice}");
                    }
                    other => eprintln!("{other}: {advice}"),
                }
            }
        }
    }

    #[test]
    fn values_that_exceed_their_fields_are_refused() {
        let good = QpRemote::new(Ipv4Addr::new(10, 255, 0, 1), Qpn::VIRTUAL);
        assert_eq!(check_remote(&good), Ok(()));
        for bad in [
            QpRemote { timeout: 32, ..good },
            QpRemote { retry_cnt: 8, ..good },
            QpRemote { rnr_retry: 8, ..good },
            QpRemote {
                min_rnr_timer: 32,
                ..good
            },
        ] {
            assert!(matches!(check_remote(&bad), Err(QpError::OutOfRange { .. })));
        }
    }

    #[test]
    fn a_queue_larger_than_the_device_allows_is_refused() {
        assert_eq!(depth("limits.send", 256, 16384), Ok(256));
        let bound = OutOfRange {
            field: "limits.send",
            value: 20000,
            min: 1,
            max: 16384,
        };
        assert_eq!(depth("limits.send", 20000, 16384), Err(bound.into()));
        assert!(depth("limits.send", 0, 16384).is_err());
    }
}
