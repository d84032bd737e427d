//! A cache of routed RoCEv2 flows: for each flow, what groups, FDB and routes say about its frames. One cache line a flow, direct-mapped.
//! An entry is valid until one of the tables changes for its port (`generation`), or until the FDB must note the source address again (`until`).

use core::net::Ipv4Addr;

use castnet_reduce::prefetch;
use castnet_wire::ethernet::{ETHERTYPE_AT, ETHERTYPE_IPV4, MACS_LEN};
use castnet_wire::ipv4::PROTOCOL_UDP;
use castnet_wire::layout::{DPORT, DST, FRAGMENT, PROTOCOL, SPORT, SRC, UDP, VERSION_LENGTH, in_frame};
use castnet_wire::udp::ROCE_PORT;
use castnet_wire::{Ethernet, MacAddr, Nanos, PortId};

const HEADERS: usize = Ethernet::LEN + UDP.end;

/// What selects the path of a plain RoCEv2 frame: no tag, no IP option, no fragment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FlowKey {
    macs: [u8; MACS_LEN],
    addresses: [u8; 8],
    sport: [u8; 2],
    ingress: PortId,
}

impl FlowKey {
    /// `None` if the frame is not plain.
    #[inline]
    pub(crate) fn of(head: &[u8], ingress: PortId) -> Option<Self> {
        let head = head.first_chunk::<HEADERS>()?;
        let word = |at: usize| [head[at], head[at + 1]];
        let [flags, fragment] = word(in_frame(FRAGMENT).start);
        let is_plain = word(ETHERTYPE_AT) == ETHERTYPE_IPV4.to_be_bytes()
            && head[Ethernet::LEN] == VERSION_LENGTH
            && (flags & 0x3F) | fragment == 0
            && head[Ethernet::LEN + PROTOCOL] == PROTOCOL_UDP
            && word(in_frame(DPORT).start) == ROCE_PORT.to_be_bytes();
        if !is_plain {
            return None;
        }
        Some(Self {
            macs: *head.first_chunk()?,
            addresses: *head[in_frame(SRC.start..DST.end)].first_chunk()?,
            sport: word(in_frame(SPORT).start),
            ingress,
        })
    }

    pub(crate) fn src_mac(&self) -> MacAddr {
        MacAddr(
            self.macs[MACS_LEN / 2..]
                .first_chunk()
                .copied()
                .unwrap_or_default(),
        )
    }

    pub(crate) fn dst_ip(&self) -> Ipv4Addr {
        self.addresses
            .last_chunk::<4>()
            .copied()
            .unwrap_or_default()
            .into()
    }

    #[inline]
    fn hash(&self) -> usize {
        let [a, b] = self.sport;
        let key = u64::from_le_bytes(self.addresses) ^ u64::from_le_bytes([0, a, 0, b, 0, a, 0, b]);
        (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as usize
    }
}

/// Where the frames of a flow leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FlowHop {
    pub(crate) port: PortId,
    pub(crate) dst: MacAddr,
    pub(crate) src: MacAddr,
    pub(crate) mtu: u32,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Entry {
    key: FlowKey,
    hop: FlowHop,
    generation: u64,
    until: Nanos,
}

#[derive(Clone, Debug)]
pub(crate) struct Flows {
    /// A power of two, or none.
    entries: Box<[Entry]>,
    /// Grows with each change of groups, routes, ports or MTUs.
    pub(crate) generation: u64,
}

impl Flows {
    pub(crate) fn new(capacity: usize) -> Self {
        let capacity = if capacity == 0 {
            0
        } else {
            capacity.next_power_of_two()
        };
        Self {
            entries: vec![Entry::default(); capacity].into_boxed_slice(),
            generation: 0,
        }
    }

    #[inline]
    fn index(&self, key: &FlowKey) -> usize {
        key.hash() & self.entries.len().wrapping_sub(1)
    }

    #[inline]
    pub(crate) fn prefetch(&self, key: &FlowKey) {
        if let Some(entry) = self.entries.get(self.index(key)) {
            prefetch(entry);
        }
    }

    /// `generation` is that of all tables together, for the ingress port.
    #[inline]
    pub(crate) fn find(&self, now: Nanos, generation: u64, key: &FlowKey) -> Option<&FlowHop> {
        let entry = self.entries.get(self.index(key))?;
        (entry.key == *key && entry.generation == generation && now < entry.until).then_some(&entry.hop)
    }

    pub(crate) fn insert(&mut self, key: FlowKey, hop: FlowHop, generation: u64, until: Nanos) {
        let index = self.index(&key);
        if let Some(entry) = self.entries.get_mut(index) {
            *entry = Entry {
                key,
                hop,
                generation,
                until,
            };
        }
    }
}
