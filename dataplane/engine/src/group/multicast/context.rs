//! A multicast group in the engine. Each frame touches hot state: at most 16 bytes per path in use (contract M6), seven in the machine,
//! nine in [`PathDestination`]. Set-up, exceptions and first packets of WRITEs touch cold state.

use castnet_collective::path::Paths;
use castnet_collective::{Multicast, MulticastConfig, MulticastStatus, PathId, RepairConfig};
use castnet_reduce::prefetch;
use castnet_rules::{Endpoint, GroupRule, HostEndpoint, MulticastRule, NextHop};
use castnet_wire::{Limit, MacAddr, McstId, Nanos, PortId, Qpn, RoceHeader, TokenBucket};
use core::net::Ipv4Addr;

use crate::egress::Egress;
use crate::group::install::{feedback_sport, macs, rule_bytes};
use crate::group::kind::{EnginePrefetch, Kind};
use crate::group::lookup::LookupTable;
use crate::group::meter;
use crate::group::multicast::core::Core;
use crate::group::multicast::frame::arm;
use crate::group::multicast::ring::Ring;
use crate::group::rewrite::PathDestination;
use crate::group::services::Services;
use crate::observe::counters::{
    CountersSnapshot, Exceptions, HotCounters, MulticastCounters, PathCounters, PathSnapshot,
};
use crate::observe::events::REPORTS;
use crate::observe::trace::{Observer, Off, Verdict};
use crate::output::acknowledge::{AckTemplate, Address, LinkHeader};
use crate::output::cx::Cx;
use crate::port_set::PortSet;
use crate::tables::next_hops::{NextHops, NextHopsFull};

/// Ticks of a group that repairs, per time-out of the source's QP.
const TICKS: u64 = 64;

#[derive(Clone, Debug)]
pub(crate) struct Hot {
    /// If each port has one path, the index of a path is the number of used ports below its own (Path Index).
    pub(crate) ports: PortSet,
    /// Present if a port has several paths.
    pub(crate) table: Option<Box<LookupTable>>,
    pub(crate) machine: Multicast,
    pub(crate) destinations: Box<[PathDestination]>,
    pub(crate) mcst_id: McstId,
    pub(crate) pmtu: u16,
    /// Present if the group has a rate limit and its source is next to this switch.
    pub(crate) meter: Option<Box<TokenBucket>>,
    source_port: PortId,
    pub(crate) source: PathId,
    /// Class of service of the source's data, if it has no VLAN tags; otherwise [`TAGGED`].
    source_tos: u8,
    /// Data is sent to addresses of a static core, too.
    pub(super) uses_core: bool,
    /// A switch is behind routers, which choose among equal paths by the source port: replicas keep theirs.
    pub(super) has_routers: bool,
    pub(crate) counters: HotCounters,
}

/// No class of service: the bits of ECN are set.
const TAGGED: u8 = u8::MAX;

impl Hot {
    /// Whether the source's data has no tags, and this class of service.
    #[inline(always)]
    pub(super) fn is_link(&self, tos: u8) -> bool {
        self.source_tos == tos & 0xFC
    }

    /// Has a meaning only without look-up table.
    #[inline]
    fn path(&self, port: PortId) -> Option<PathId> {
        // Most frames come from the source. Counting bits takes longer than this.
        if port == self.source_port {
            return Some(self.source);
        }
        self.ports
            .contains(port)
            .then(|| PathId::new(self.ports.rank(port)))?
    }

    /// The port that a frame to `dst` counts as from: what a static core has brought is the source's, whatever port it has come by.
    pub(super) fn origin(&self, ingress: PortId, dst: Ipv4Addr) -> PortId {
        match dst == self.mcst_id.0 {
            true => ingress,
            false => self.source_port,
        }
    }

    /// The ingress path of a frame. The fast path passes `None` for `mac`, so frames of an endpoint that verifies it take the slow path.
    #[inline(always)]
    pub(crate) fn sender(
        &self,
        ingress: PortId,
        src: Ipv4Addr,
        dest_qp: Qpn,
        mac: Option<MacAddr>,
    ) -> Option<PathId> {
        if let Some(table) = &self.table {
            return PathId::new(table.find(ingress, src, dest_qp, mac)?);
        }
        let path = self.path(ingress)?;
        let dest = self.dest(path)?;
        // Only the switch next to a member knows its address, so any source address is valid.
        let known = dest_qp == Qpn::VIRTUAL && (!dest.is_addressed() || dest.ip == src.octets());
        known.then_some(path)
    }

    pub(crate) fn port(&self, path: PathId) -> Option<PortId> {
        match &self.table {
            Some(table) => table.port(path.index()),
            None => self.ports.into_iter().nth(path.index()),
        }
    }

    /// The port of `path`, in a loop over all paths from the first on. `left` is initially the set of the group's ports.
    #[inline(always)]
    pub(crate) fn next_port(&self, left: &mut PortSet, path: usize) -> Option<PortId> {
        match &self.table {
            Some(table) => table.port(path),
            None => left.next(),
        }
    }

    pub(crate) fn dest(&self, path: PathId) -> Option<&PathDestination> {
        self.destinations.get(path.index())
    }
}

/// What only set-up, exceptions and first packets of WRITEs touch.
#[derive(Clone, Debug)]
pub(crate) struct Cold {
    /// Endpoints in order of their ports: an index is a [`PathId`].
    pub(crate) rule: GroupRule,
    pub(crate) va_base: u64,
    pub(crate) feedback: Address,
    /// Source address of feedback to an adjacent switch.
    own: Option<Ipv4Addr>,
    pub(super) core: Core,
    /// Present if the switch repairs losses.
    pub(super) ring: Option<Box<Ring>>,
    /// VLAN tags and class of service of the source's last data. Its feedback has the same, whatever the frame has that causes it: a receiver
    /// could keep it from the source otherwise.
    pub(super) link: LinkHeader,
    /// By path, those of its last data. Empty unless the source may change.
    links: Box<[LinkHeader]>,
    /// Data of the group before the present source.
    data_before: u64,
    /// Reports of the paths that have joined: each time that the source sends their first packet.
    pub(crate) joined: Limit,
    /// Reports of members that want to send while another one does: each time that it waits.
    pub(crate) competed: Limit,
    /// By path: the member was reported as failed. What it says afterwards may change again and again.
    failed: Box<[bool]>,
    /// An acknowledge packet with the addresses of `feedback`.
    pub(crate) ack: AckTemplate,
    pub(crate) exceptions: Exceptions,
}

impl Cold {
    /// The member at the end of `path`; `None` for a switch.
    pub(crate) fn host(&self, path: PathId) -> Option<&HostEndpoint> {
        self.rule.endpoints.get(path.index())?.next_hop.host()
    }

    /// Notes that a member has failed. Whether this was not known.
    pub(crate) fn is_first_failure(&mut self, path: PathId) -> bool {
        let known = self.failed.get_mut(path.index());
        known.is_some_and(|known| !core::mem::replace(known, true))
    }

    /// The number of members that have failed.
    pub(crate) fn failures(&self) -> usize {
        self.failed.iter().filter(|failed| **failed).count()
    }

    pub(crate) fn describe(&self, path: PathId) -> String {
        match self.rule.endpoints.get(path.index()) {
            Some(p) => {
                let kind = if p.next_hop.host().is_some() {
                    "host"
                } else {
                    "switch"
                };
                format!("path {path} (port {}, {kind} {})", p.port, p.next_hop.name())
            }
            None => format!("path {path}"),
        }
    }
}

/// A compiled multicast group, aligned so that no two workers, whose groups lie in one heap, write the same cache line for each frame.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub struct Group {
    pub(crate) hot: Hot,
    /// Not part of the cold state, because ACKs change them.
    pub(crate) paths: Box<[PathCounters]>,
    pub(crate) cold: Box<Cold>,
}

impl Group {
    /// `payload`: with memory for packets that are kept.
    pub(crate) fn new(rule: GroupRule, kind: &MulticastRule, payload: bool) -> Box<Self> {
        let ports: PortSet = rule.endpoints.iter().map(|e| e.port).collect();
        let source = PathId::new(kind.source.into()).unwrap_or_default();
        let machine = Multicast::new(MulticastConfig {
            paths: rule.endpoints.len() as u16,
            source,
            start_psn: kind.start_psn,
            stall_timeout: Nanos::from_millis(rule.stall_timeout_ms.into()),
        });
        let joining = rule.endpoints.iter().enumerate().filter(|(_, e)| e.joining);
        let machine = machine.with_joining(joining.filter_map(|(i, _)| PathId::new(i)));
        let hosts = || {
            let endpoints = rule.endpoints.iter().enumerate();
            endpoints.filter(|(_, e)| e.next_hop.host().is_some())
        };
        let host_paths = || hosts().filter_map(|(i, _)| PathId::new(i));
        let machine = match kind.any_source {
            Some(numbers) => machine.with_switching(numbers, host_paths()),
            None => machine,
        };
        let machine = match &kind.repair {
            Some(repair) => machine.with_repair(RepairConfig {
                slots: repair.slots,
                tick: Nanos(u64::from(repair.ack_timeout_us) * 1_000 / TICKS),
                switches: host_paths().fold(Paths::first(rule.endpoints.len()), Paths::without),
            }),
            None => machine,
        };
        let machine = match kind.hold_fatal_naks {
            true => machine.with_held_naks(host_paths()),
            false => machine,
        };
        let ring = kind
            .repair
            .map(|repair| Box::new(Ring::new(&rule, &repair, payload)));
        // The hosts of a group with any source send one after the other.
        let metered = match kind.any_source {
            Some(_) => hosts().next().map(|(_, host)| host),
            None => rule.upstream(),
        };
        let core = Core::new(&rule, source);
        let hot = Hot {
            ports,
            table: LookupTable::new(&rule, None),
            machine,
            destinations: rule.endpoints.iter().map(PathDestination::new).collect(),
            mcst_id: rule.mcst_id,
            pmtu: rule.pmtu.bytes() as u16,
            meter: metered.and_then(|source| meter::of(&rule, source)).map(Box::new),
            source_tos: 0,
            source_port: rule.upstream().map(|e| e.port).unwrap_or_default(),
            source,
            uses_core: core.is_used(),
            has_routers: rule
                .endpoints
                .iter()
                .any(|e| e.next_hop.host().is_none() && e.next_hop.ip().is_some()),
            counters: HotCounters::default(),
        };
        let paths = vec![PathCounters::default(); rule.endpoints.len()].into_boxed_slice();
        let feedback = feedback_address(&rule, source, None);
        let ack = AckTemplate::new(&feedback);
        let exceptions = Exceptions::default();
        let cold = Box::new(Cold {
            rule,
            va_base: kind.va_base,
            feedback,
            own: None,
            core,
            ring,
            link: LinkHeader::PLAIN,
            links: match kind.any_source {
                Some(_) => vec![LinkHeader::PLAIN; paths.len()].into_boxed_slice(),
                None => Box::default(),
            },
            data_before: 0,
            joined: REPORTS,
            competed: REPORTS,
            failed: vec![false; paths.len()].into_boxed_slice(),
            ack,
            exceptions,
        });
        Box::new(Self { hot, paths, cold })
    }

    /// See [`Multicast::filter_cnps`].
    pub(crate) fn filter_cnps(&mut self, filters: bool) {
        self.hot.machine.filter_cnps(filters);
    }

    /// Takes over the stream of the group that it replaces, if the rule says so and both have the same source.
    pub(crate) fn carry_on(&mut self, old: &Self) {
        let (rule, before) = (&self.cold.rule, &old.cold.rule);
        let since = rule.multicast().and_then(|kind| kind.carries_on);
        let same_source = rule
            .upstream()
            .zip(before.upstream())
            .is_some_and(|(a, b)| neighbour(a) == neighbour(b));
        if !same_source || since.is_none_or(|since| before.generation < since) {
            return;
        }
        let key_at = |at: &usize| before.endpoints.get(*at).map(neighbour);
        let mut sorted: Vec<usize> = (0..before.endpoints.len()).collect();
        sorted.sort_unstable_by_key(key_at);
        let kept = rule.endpoints.iter().enumerate().filter_map(|(i, endpoint)| {
            let found = sorted.binary_search_by_key(&Some(neighbour(endpoint)), key_at);
            PathId::new(i).zip(PathId::new(*sorted.get(found.ok()?)?))
        });
        self.hot.machine.carry_on(&old.hot.machine, kept);
        if rule.rate_limit == before.rate_limit {
            self.copy_meter(old);
        }
        self.note_link(old.cold.link);
    }

    pub(crate) fn copy_state(&mut self, of: &Self) {
        self.hot.machine.copy_state(&of.hot.machine);
        self.adopt_source();
        self.cold.data_before = of.cold.data_before;
        self.cold.links.clone_from(&of.cold.links);
        self.note_link(of.cold.link);
        self.copy_meter(of);
    }

    /// Data of `from` has these tags, whether or not it is the source.
    pub(super) fn note_data(&mut self, from: PathId, link: LinkHeader) {
        if let Some(own) = self.cold.links.get_mut(from.index()) {
            *own = link;
        }
        if from == self.hot.source {
            self.note_link(link);
        }
    }

    /// The source's data has these tags.
    pub(super) fn note_link(&mut self, link: LinkHeader) {
        self.hot.source_tos = if link.is_plain(link.tos()) {
            link.tos()
        } else {
            TAGGED
        };
        self.cold.link = link;
    }

    /// The tags of feedback to a path: those of its own data. None before it has sent any.
    #[inline]
    pub(super) fn link_to(&self, to: PathId) -> LinkHeader {
        if to == self.hot.source {
            return self.cold.link;
        }
        let own = self.cold.links.get(to.index());
        own.copied().unwrap_or(LinkHeader::PLAIN)
    }

    /// Adopts the source of the machine, if that has changed.
    pub(crate) fn adopt_source(&mut self) {
        let (before, source) = (self.hot.source, self.hot.machine.source());
        if before == source {
            return;
        }
        let Some(endpoint) = self.cold.rule.endpoints.get(source.index()) else {
            return;
        };
        (self.hot.source, self.hot.source_port) = (source, endpoint.port);
        let link = self.cold.links.get(source.index()).copied();
        self.note_link(link.unwrap_or(LinkHeader::PLAIN));
        self.cold.feedback = feedback_address(&self.cold.rule, source, self.cold.own);
        self.cold.ack = AckTemplate::new(&self.cold.feedback);
        let data_in = self.hot.counters.data_in;
        if let Some(path) = self.paths.get_mut(before.index()) {
            path.filtered += data_in - self.cold.data_before;
        }
        self.cold.data_before = data_in;
    }

    /// The addresses of feedback to `path`.
    pub(crate) fn feedback_to(&self, path: PathId) -> Address {
        feedback_address(&self.cold.rule, path, self.cold.own)
    }

    fn copy_meter(&mut self, of: &Self) {
        if let (Some(meter), Some(of)) = (&mut self.hot.meter, &of.hot.meter) {
            **meter = **of;
        }
    }

    /// Prefetches what frames from `ingress` touch outside of the group.
    #[inline]
    fn prefetch_path(&self, ingress: PortId) {
        prefetch(&*self.hot.destinations);
        if let Some(meter) = &self.hot.meter {
            prefetch(&**meter);
        }
        if let Some(table) = &self.hot.table {
            prefetch(&**table);
        } else if let Some(path) = self.hot.path(ingress).filter(|path| *path != self.hot.source) {
            self.hot.machine.prefetch(path, &EnginePrefetch);
            if let Some(counters) = self.paths.get(path.index()) {
                prefetch(&counters.acks_in);
            }
        }
    }

    /// Bytes that plain frames touch: Path Index, machine, destinations, counters of data and ACKs.
    pub fn hot_bytes(&self) -> usize {
        size_of::<Hot>() - size_of::<Multicast>()
            + self.hot.machine.hot_bytes()
            + size_of_val(&*self.hot.destinations)
            + self.hot.table.as_ref().map_or(0, |table| table.bytes())
            + self.hot.meter.as_ref().map_or(0, |_| size_of::<TokenBucket>())
    }

    /// Bytes of the cold state: the rule, the counters of exceptions, and packets that are kept.
    pub fn cold_bytes(&self) -> usize {
        size_of::<Self>() - size_of::<Hot>()
            + size_of::<Cold>()
            + rule_bytes(&self.cold.rule)
            + size_of_val(&*self.paths)
            + size_of_val(&*self.cold.failed)
            + size_of_val(&*self.cold.links)
            + self.hot.machine.cold_bytes()
            + self.cold.core.bytes()
            + self.cold.ring.as_ref().map_or(0, |ring| ring.footprint())
    }

    /// Its counters.
    pub fn counters(&self) -> MulticastCounters {
        MulticastCounters::of(&self.hot.counters, &self.cold.exceptions)
    }

    /// The counters of its paths, in order of their ports.
    pub fn paths(&self) -> impl Iterator<Item = PathSnapshot> {
        let data_in = self.hot.counters.data_in;
        self.cold
            .rule
            .endpoints
            .iter()
            .zip(&self.paths)
            .enumerate()
            .map(move |(i, (path, counters))| {
                let source = i == self.hot.source.index();
                let own = if source {
                    data_in - self.cold.data_before
                } else {
                    0
                };
                let not_sent = own + counters.filtered + counters.lost;
                PathSnapshot {
                    port: path.port,
                    source,
                    copies_out: (data_in + counters.resent).saturating_sub(not_sent),
                    counters: *counters,
                }
            })
    }
}

impl Kind for Box<Group> {
    type Status = GroupStatus;

    fn rule(&self) -> &GroupRule {
        &self.cold.rule
    }

    fn memory_bytes(&self) -> usize {
        match self.cold.ring {
            Some(_) => self.cold.rule.reserved_bytes() as usize,
            None => self.hot_bytes() + self.cold_bytes(),
        }
    }

    /// Feedback to an adjacent switch gets the source address `own`.
    fn bind(&mut self, next_hops: &mut NextHops, own: Option<Ipv4Addr>) -> Result<(), NextHopsFull> {
        let (destinations, rule) = (&mut self.hot.destinations, &self.cold.rule);
        next_hops.acquire_all(macs(rule), |i, index| destinations[i].bind(index))?;
        self.cold.feedback = feedback_address(rule, self.hot.source, own);
        self.cold.own = own;
        self.cold.ack = AckTemplate::new(&self.cold.feedback);
        Ok(())
    }

    fn unbind(&self, next_hops: &mut NextHops) {
        self.hot
            .destinations
            .iter()
            .for_each(|dest| next_hops.release(dest.next_hop()));
    }

    #[inline(always)]
    fn prefetch(&self, step: usize, ingress: PortId) {
        match step {
            0 => prefetch(&**self),
            1 => self.prefetch_path(ingress),
            _ => {}
        }
    }

    #[inline(always)]
    fn fast_frames<E: Egress>(
        &mut self,
        services: &mut Services,
        cx: &mut Cx<'_, E, Off>,
        slot: u32,
        frames: &mut impl Iterator<Item = E::Buf>,
    ) -> Option<E::Buf> {
        Group::fast_frames(self, services, cx, slot, frames)
    }

    #[inline]
    fn frame<E: Egress, O: Observer>(
        &mut self,
        services: &mut Services,
        cx: &mut Cx<'_, E, O>,
        slot: u32,
        header: &RoceHeader,
        src: Ipv4Addr,
        frame: E::Buf,
    ) -> Verdict {
        self.on_frame(services, cx, slot, header, src, frame)
    }

    fn timeout<E: Egress, O: Observer>(&mut self, services: &mut Services, cx: &mut Cx<'_, E, O>, slot: u32) {
        self.on_timeout(services, cx, slot);
    }

    fn emit<E: Egress, O: Observer>(&mut self, services: &mut Services, cx: &mut Cx<'_, E, O>, slot: u32) {
        self.on_emit(services, cx, slot);
    }

    fn resume(&mut self, services: &mut Services, now: Nanos, slot: u32) {
        if let Some(ring) = self.cold.ring.as_mut().filter(|ring| ring.emitting) {
            ring.emitting = false;
            self.queue(&mut services.timers, slot);
        }
        arm(&mut services.timers, now, slot, &self.hot.machine);
    }

    fn note_dropped(&mut self) {
        self.cold.exceptions.dropped += 1;
    }

    fn snapshot(&self, into: &mut CountersSnapshot) -> bool {
        into.multicast.add(self.rule(), self.counters(), self.paths())
    }

    fn status(&self) -> GroupStatus {
        GroupStatus {
            rule: self.cold.rule.clone(),
            machine: self.hot.machine.status(),
            counters: self.counters(),
            paths: self.paths().collect(),
            hot_bytes: self.hot_bytes(),
            cold_bytes: self.cold_bytes(),
        }
    }
}

/// The state of a multicast group, for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupStatus {
    /// Its rule, endpoints in order of their ports, which is the numbering of paths in `machine`.
    pub rule: GroupRule,
    /// The protocol state: AckPSN per path, AggAckPSN, MePSN.
    pub machine: MulticastStatus,
    /// Counters of the group.
    pub counters: MulticastCounters,
    /// Counters of its paths, in the order of the rule's endpoints.
    pub paths: Vec<PathSnapshot>,
    /// Bytes that plain frames touch.
    pub hot_bytes: usize,
    /// Bytes of the cold state.
    pub cold_bytes: usize,
}

/// What makes two endpoints the same: port, address, queue pair and name of the neighbour.
fn neighbour(endpoint: &Endpoint) -> (PortId, Option<Ipv4Addr>, Qpn, &str) {
    let hop = &endpoint.next_hop;
    (endpoint.port, hop.ip(), hop.qpn(), hop.name())
}

/// The addresses of feedback to `to`, from the McstID to a member and a switch behind routers; as for a member to an adjacent switch.
fn feedback_address(rule: &GroupRule, to: PathId, own: Option<Ipv4Addr>) -> Address {
    let group = rule.mcst_id.0;
    let hop = rule.endpoints.get(to.index()).map(|endpoint| &endpoint.next_hop);
    let ip = hop.and_then(NextHop::ip);
    Address {
        src: if ip.is_some() { group } else { own.unwrap_or(group) },
        dst: ip.unwrap_or(group),
        qpn: hop.map_or(Qpn::VIRTUAL, NextHop::qpn),
        sport: feedback_sport(rule.mcst_id),
    }
}
