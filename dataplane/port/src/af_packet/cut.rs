//! Takes super-frames apart. A super-frame (UDP GSO, TSO) has one set of headers and the payloads of many packets. The
//! kernel passes it whole between packet sockets, with the size of its payloads in a `virtio_net_hdr`.
//!
//! The packets are made in place. The headers of a packet are written over the end of the packet before it, which has
//! been used by then. So no payload is copied.
//!
//! The packets are those that the kernel would make (`inet_gso_segment`, `tcp_gso_segment`, `__udp_gso_segment`), with
//! one difference: the UDP checksum of RoCE over IPv4 is zero, as in packets that are sent one by one.

use castnet_wire::ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, MACS_LEN, VlanTag};
use castnet_wire::layout::{IDENT, IPV4_CHECKSUM, SRC, TOTAL_LENGTH};
use castnet_wire::udp::ROCE_PORT;
use castnet_wire::{DropReason, Ethernet, Ipv4, ipv4};

use crate::checksum::{self, TCP, UDP};

/// Bytes of `struct virtio_net_hdr`.
pub(super) const VNET_HEADER: usize = 10;
/// The longest super-frame: a maximal IP packet with Ethernet header and two tags.
const FRAME_MAX: usize = 65535 + Ethernet::LEN + 2 * VlanTag::LEN;
/// Ethernet with two tags, the longest IPv4 header, the longest TCP header.
const HEADERS_MAX: usize = Ethernet::LEN + 2 * VlanTag::LEN + 60 + 60;
/// The most packets of a UDP super-frame (UDP_MAX_SEGMENTS), and the least payload of a TCP packet (TCP_MIN_SND_MSS).
/// They bound the work that one frame of a neighbour causes.
const UDP_PACKETS_MAX: usize = 128;
const TCP_PAYLOAD_MIN: usize = 48;
const IPV6: usize = 40;
const IPV6_LENGTH: usize = 4;
const IPV6_NEXT_HEADER: usize = 6;
const IPV6_SRC: usize = 8;
/// Flags of TCP that only the last packet has, and the one that only the first packet has.
const FIN_PSH: u8 = 0x09;
const CWR: u8 = 0x80;

/// The used fields of a `struct virtio_net_hdr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct VnetHeader {
    kind: u8,
    /// Bytes of payload of each packet but the last.
    size: u16,
}

impl VnetHeader {
    const NEEDS_CHECKSUM: u8 = 1;
    const SINGLE: u8 = 0;
    const TCP_V4: u8 = 1;
    const TCP_V6: u8 = 4;
    const UDP: u8 = 5;
    /// A flag in the kind: the packets use ECN.
    const ECN: u8 = 0x80;

    pub(super) fn parse(bytes: [u8; VNET_HEADER]) -> Self {
        Self {
            kind: bytes[1] & !Self::ECN,
            size: u16::from_ne_bytes([bytes[4], bytes[5]]),
        }
    }

    /// Of a super-frame of UDP packets: bytes of its headers, bytes of payload of each packet, offset of its UDP header.
    pub(super) fn of_udp(headers: u16, size: u16, udp: u16) -> [u8; VNET_HEADER] {
        let mut bytes = [Self::NEEDS_CHECKSUM, Self::UDP, 0, 0, 0, 0, 0, 0, 0, 0];
        // The checksum is 6 bytes into the UDP header.
        for (at, value) in [(2, headers), (4, size), (6, udp), (8, 6)] {
            bytes[at..at + 2].copy_from_slice(&value.to_ne_bytes());
        }
        bytes
    }

    /// True if the frame is one packet.
    pub(super) fn is_single(self) -> bool {
        self.kind == Self::SINGLE
    }

    /// The number of packets of a super-frame of `length` bytes, about: headers are not known.
    pub(super) fn packets(self, length: usize) -> u64 {
        (length / usize::from(self.size).max(1)).clamp(1, UDP_PACKETS_MAX) as u64
    }
}

/// A received super-frame and how much of it is left.
#[derive(Debug)]
pub(super) struct Cutter {
    /// The frame, behind its `virtio_net_hdr`, whose memory a tag may take.
    bytes: Box<[u8]>,
    headers: Headers,
    /// The payload that is left.
    next: usize,
    end: usize,
}

impl Cutter {
    pub(super) fn new() -> Self {
        Self {
            bytes: vec![0; VNET_HEADER + FRAME_MAX].into(),
            headers: Headers::default(),
            next: 0,
            end: 0,
        }
    }

    /// Memory for the `virtio_net_hdr` and the bytes of the next super-frame. What is left of the last one is lost.
    pub(super) fn buffer(&mut self) -> &mut [u8] {
        self.next = self.end;
        &mut self.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.next == self.end
    }

    /// Starts to take apart the super-frame of `length` bytes in the buffer, which is a single frame only if it was too long
    /// for its slot. `tag`, which the kernel removed, is inserted into all packets.
    pub(super) fn start(
        &mut self,
        header: VnetHeader,
        length: usize,
        tag: Option<[u8; VlanTag::LEN]>,
    ) -> Result<(), DropReason> {
        let mut start = VNET_HEADER;
        let end = start + length;
        if end > self.bytes.len() || header.is_single() {
            return Err(DropReason::TooLong);
        }
        if let Some(tag) = tag {
            let macs = start..start + MACS_LEN;
            start -= tag.len();
            self.bytes.copy_within(macs.clone(), start);
            self.bytes[macs.end - tag.len()..macs.end].copy_from_slice(&tag);
        }
        self.headers = Headers::parse(header, &self.bytes[start..end]).ok_or(DropReason::Malformed)?;
        self.next = start + self.headers.length;
        self.end = end;
        Ok(())
    }

    /// The next packet.
    pub(super) fn next(&mut self) -> Option<&[u8]> {
        if self.is_empty() {
            return None;
        }
        let end = self.end.min(self.next + self.headers.size);
        let start = self.next - self.headers.length;
        self.next = end;
        let packet = &mut self.bytes[start..end];
        self.headers.write(packet, end == self.end);
        Some(packet)
    }
}

/// The headers of the next packet, and what changes from packet to packet.
#[derive(Debug)]
struct Headers {
    bytes: [u8; HEADERS_MAX],
    length: usize,
    l3: usize,
    l4: usize,
    is_v6: bool,
    protocol: u8,
    /// True if the checksum is left out: RoCE over IPv4.
    plain: bool,
    /// Bytes of payload of each packet but the last.
    size: usize,
    is_first: bool,
    ident: u16,
    sequence: u32,
    /// Sum of the IPv4 header without total length, identification and checksum.
    ip_sum: u32,
    /// Sum of the pseudo header without the length.
    pseudo: u32,
}

impl Default for Headers {
    fn default() -> Self {
        Self {
            bytes: [0; HEADERS_MAX],
            length: 0,
            l3: 0,
            l4: 0,
            is_v6: false,
            protocol: 0,
            plain: false,
            size: 0,
            is_first: true,
            ident: 0,
            sequence: 0,
            ip_sum: 0,
            pseudo: 0,
        }
    }
}

impl Headers {
    /// `None` if the frame is not what the header says, or has more packets than the kernel makes.
    fn parse(header: VnetHeader, frame: &[u8]) -> Option<Self> {
        let (ethernet, l3) = Ethernet::parse(frame).ok()?;
        let ip = frame.get(l3..)?;
        let is_v6 = ethernet.ethertype == ETHERTYPE_IPV6;
        let (l4, protocol, addresses) = match ethernet.ethertype {
            ETHERTYPE_IPV4 => {
                let (parsed, length) = Ipv4::parse(ip).ok()?;
                if usize::from(parsed.total_len) != ip.len() || parsed.is_fragment() {
                    return None;
                }
                (l3 + length, parsed.protocol, ip.get(SRC.start..Ipv4::LEN)?)
            }
            ETHERTYPE_IPV6 => {
                if usize::from(word(ip, IPV6_LENGTH)?) + IPV6 != ip.len() {
                    return None;
                }
                (l3 + IPV6, *ip.get(IPV6_NEXT_HEADER)?, ip.get(IPV6_SRC..IPV6)?)
            }
            _ => return None,
        };
        let segment = frame.get(l4..)?;
        let expected = match header.kind {
            VnetHeader::TCP_V4 if !is_v6 => TCP,
            VnetHeader::TCP_V6 if is_v6 => TCP,
            VnetHeader::UDP => UDP,
            _ => return None,
        };
        let own = match protocol {
            UDP => 8,
            _ => usize::from(segment.get(12)? >> 4) * 4,
        };
        let (length, size) = (l4 + own, usize::from(header.size));
        let payload = frame.len().checked_sub(length).filter(|&bytes| bytes > 0)?;
        let fits = match protocol {
            UDP => size > 0 && payload.div_ceil(size) <= UDP_PACKETS_MAX,
            _ => size >= TCP_PAYLOAD_MIN && own >= 20,
        };
        if protocol != expected || !fits {
            return None;
        }
        let mut headers = Self {
            length,
            l3,
            l4,
            is_v6,
            protocol,
            plain: !is_v6 && protocol == UDP && word(segment, 2)? == ROCE_PORT,
            size,
            pseudo: u32::from(checksum::sum(addresses)) + u32::from(protocol),
            ..Self::default()
        };
        headers.bytes[..length].copy_from_slice(&frame[..length]);
        if !is_v6 {
            let ip = &mut headers.bytes[l3..l4];
            headers.ident = word(ip, IDENT.start)?;
            for field in [TOTAL_LENGTH, IDENT, IPV4_CHECKSUM] {
                ip[field].fill(0);
            }
            headers.ip_sum = u32::from(checksum::sum(ip));
        }
        if protocol == TCP {
            headers.sequence = u32::from_be_bytes(*segment.get(4..)?.first_chunk()?);
        }
        Some(headers)
    }

    /// Writes the headers of a packet whose payload is in place, and goes on to the next packet.
    fn write(&mut self, packet: &mut [u8], is_last: bool) {
        packet[..self.length].copy_from_slice(&self.bytes[..self.length]);
        let length = (packet.len() - self.l4) as u16;
        let (head, segment) = packet.split_at_mut(self.l4);
        let ip = &mut head[self.l3..];
        if self.is_v6 {
            ip[IPV6_LENGTH..IPV6_LENGTH + 2].copy_from_slice(&length.to_be_bytes());
        } else {
            let total = (self.l4 - self.l3) as u16 + length;
            let sum = !ipv4::fold(self.ip_sum + u32::from(total) + u32::from(self.ident));
            ip[TOTAL_LENGTH].copy_from_slice(&total.to_be_bytes());
            ip[IDENT].copy_from_slice(&self.ident.to_be_bytes());
            ip[IPV4_CHECKSUM].copy_from_slice(&sum.to_be_bytes());
            self.ident = self.ident.wrapping_add(1);
        }
        let field = if self.protocol == UDP {
            segment[4..6].copy_from_slice(&length.to_be_bytes());
            6
        } else {
            segment[4..8].copy_from_slice(&self.sequence.to_be_bytes());
            self.sequence = self.sequence.wrapping_add(self.size as u32);
            let absent = if self.is_first { 0 } else { CWR } | if is_last { 0 } else { FIN_PSH };
            segment[13] &= !absent;
            self.is_first = false;
            16
        };
        let pseudo = ipv4::fold(self.pseudo + u32::from(length));
        segment[field..field + 2].copy_from_slice(&if self.plain { [0; 2] } else { pseudo.to_be_bytes() });
        if !self.plain {
            checksum::complete_segment(self.protocol, segment);
        }
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    struct Flow {
        is_v6: bool,
        is_tcp: bool,
        is_tagged: bool,
        port: u16,
        ident: u16,
        sequence: u32,
        flags: u8,
    }

    impl Flow {
        fn kind(&self) -> u8 {
            match (self.is_tcp, self.is_v6) {
                (false, _) => VnetHeader::UDP,
                (true, false) => VnetHeader::TCP_V4,
                (true, true) => VnetHeader::TCP_V6,
            }
        }

        /// One packet of the flow: the slow twin of `Headers::write`.
        fn packet(&self, ident: u16, sequence: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
            let mut segment = Vec::new();
            segment.extend(50_000_u16.to_be_bytes());
            segment.extend(self.port.to_be_bytes());
            if self.is_tcp {
                segment.extend(sequence.to_be_bytes());
                segment.extend([0, 0, 0, 9, 0x80, flags, 1, 2, 0, 0, 0, 0]);
                segment.extend([1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8]);
            } else {
                segment.extend((payload.len() as u16 + 8).to_be_bytes());
                segment.extend([0; 2]);
            }
            segment.extend(payload);
            let protocol = if self.is_tcp { TCP } else { UDP };
            let length = segment.len() as u16;
            let (addresses, mut ip) = if self.is_v6 {
                let mut ip = vec![0x60, 2, 3, 4];
                ip.extend(length.to_be_bytes());
                ip.extend([protocol, 64]);
                ((1..33).collect::<Vec<u8>>(), ip)
            } else {
                let mut ip = vec![0x45, 2];
                ip.extend((length + 20).to_be_bytes());
                ip.extend(ident.to_be_bytes());
                ip.extend([0x40, 0, 64, protocol, 0, 0]);
                (vec![10, 0, 0, 1, 10, 0, 0, 2], ip)
            };
            ip.extend(&addresses);
            if !self.is_v6 {
                let sum = ipv4::checksum(&ip).to_be_bytes();
                ip[10..12].copy_from_slice(&sum);
            }
            if self.is_v6 || self.port != ROCE_PORT || self.is_tcp {
                let pseudo = [&addresses[..], &[0, protocol], &length.to_be_bytes()].concat();
                let at = if self.is_tcp { 16 } else { 6 };
                let sum = match !checksum::sum(&[pseudo, segment.clone()].concat()) {
                    0 if !self.is_tcp => 0xFFFF,
                    sum => sum,
                };
                segment[at..at + 2].copy_from_slice(&sum.to_be_bytes());
            }
            let mut frame = vec![2; 12];
            if self.is_tagged {
                frame.extend([0x81, 0, 0, 7]);
            }
            frame.extend(if self.is_v6 { [0x86, 0xDD] } else { [8, 0] });
            [frame, ip, segment].concat()
        }

        fn packets(&self, payload: &[u8], size: usize) -> Vec<Vec<u8>> {
            let count = payload.len().div_ceil(size);
            let packet = |(index, payload): (usize, &[u8])| {
                let mut flags = self.flags;
                flags &= if index > 0 { !CWR } else { 0xFF };
                flags &= if index + 1 < count { !FIN_PSH } else { 0xFF };
                let sequence = self.sequence.wrapping_add((index * size) as u32);
                self.packet(self.ident.wrapping_add(index as u16), sequence, flags, payload)
            };
            payload.chunks(size).enumerate().map(packet).collect()
        }
    }

    fn flows() -> impl Strategy<Value = Flow> {
        let port = prop_oneof![Just(ROCE_PORT), any::<u16>()];
        (any::<[bool; 3]>(), port, any::<u16>(), any::<u32>(), any::<u8>()).prop_map(
            |([is_v6, is_tcp, is_tagged], port, ident, sequence, flags)| Flow {
                is_v6,
                is_tcp,
                is_tagged,
                port,
                ident,
                sequence,
                flags,
            },
        )
    }

    fn cut(cutter: &mut Cutter, header: VnetHeader, mut frame: Vec<u8>) -> Result<Vec<Vec<u8>>, DropReason> {
        // The kernel removes a tag.
        let tag = (frame.get(12..14) == Some(&[0x81, 0])).then(|| frame.drain(12..16).collect::<Vec<_>>());
        cutter.buffer()[VNET_HEADER..VNET_HEADER + frame.len()].copy_from_slice(&frame);
        cutter.start(header, frame.len(), tag.and_then(|t| t.try_into().ok()))?;
        Ok(std::iter::from_fn(|| cutter.next().map(<[u8]>::to_vec)).collect())
    }

    proptest! {
        #[test]
        fn the_packets_are_those_of_single_sends(
            flow in flows(), payload in prop::collection::vec(any::<u8>(), 1..6000), size in 48usize..1500,
        ) {
            let whole = flow.packet(flow.ident, flow.sequence, flow.flags, &payload);
            let header = VnetHeader { kind: flow.kind(), size: size as u16 };
            let packets = cut(&mut Cutter::new(), header, whole);
            prop_assert_eq!(packets, Ok(flow.packets(&payload, size)));
        }

        /// Nothing that a neighbour sends panics or makes more packets than the kernel would.
        #[test]
        fn bad_super_frames_are_refused(
            flow in flows(), payload in prop::collection::vec(any::<u8>(), 0..3000), size in 0u16.., kind in 0u8..8,
            damage in prop::collection::vec((0usize..80, any::<u8>()), 0..4), end in 0usize..3200,
        ) {
            let mut frame = flow.packet(flow.ident, flow.sequence, flow.flags, &payload);
            for (at, byte) in damage {
                if let Some(old) = frame.get_mut(at) {
                    *old = byte;
                }
            }
            frame.truncate(end.max(16));
            let length = frame.len();
            if let Ok(packets) = cut(&mut Cutter::new(), VnetHeader { kind, size }, frame) {
                prop_assert!(!packets.is_empty() && packets.len() <= UDP_PACKETS_MAX);
                prop_assert!(packets.iter().all(|p| p.len() <= length + 4));
            }
        }
    }

    #[test]
    fn the_longest_super_frame_is_taken_apart() {
        let flow = Flow {
            is_v6: false,
            is_tcp: false,
            is_tagged: true,
            port: ROCE_PORT,
            ident: 65_530,
            sequence: 0,
            flags: 0,
        };
        let payload: Vec<u8> = (0..65_535 - 28).map(|i| (i * 7) as u8).collect();
        let whole = flow.packet(flow.ident, 0, 0, &payload);
        let header = |size| VnetHeader {
            kind: VnetHeader::UDP,
            size,
        };
        let mut cutter = Cutter::new();
        let packets = cut(&mut cutter, header(1040), whole.clone());
        assert_eq!(packets, Ok(flow.packets(&payload, 1040)));
        assert_eq!(
            cut(&mut cutter, header(511), whole.clone()),
            Err(DropReason::Malformed)
        );
        assert!(cut(&mut cutter, header(512), whole).is_ok());
        assert!(cutter.is_empty());
    }
}
