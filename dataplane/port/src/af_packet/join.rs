//! Joins consecutive RoCE packets of one flow to a super-frame (UDP GSO). Where one packet at a time is wanted, the kernel
//! takes it apart and makes the same packets, but for the UDP checksum: it is zero in single packets, and filled in by
//! the kernel. The ICRC does not cover it.

use castnet_wire::ethernet::{ETHERTYPE_AT, ETHERTYPE_IPV4};
use castnet_wire::layout::{
    DPORT, DST, FRAGMENT, IDENT, IPV4_CHECKSUM, PROTOCOL, SRC, TOTAL_LENGTH, UDP, UDP_CHECKSUM, UDP_LENGTH,
    VERSION_LENGTH, in_frame,
};
use castnet_wire::udp::ROCE_PORT;
use castnet_wire::{Ethernet, Ipv4, ipv4};

use super::cut::{VNET_HEADER, VnetHeader};
use crate::checksum;

/// Bytes of the headers that the packets of a super-frame share: Ethernet without a tag, IPv4 without options, UDP.
pub(super) const HEADERS: usize = Ethernet::LEN + UDP.end;
/// The longest super-frame (GSO_LEGACY_MAX_SIZE), and the most packets in one (UDP_MAX_SEGMENTS before Linux 6.9).
const BYTES_MAX: usize = 65_535;
const PACKETS_MAX: usize = 64;
/// The fragment offset, and the flag that more fragments follow.
const FRAGMENT_BITS: u16 = ipv4::MORE_FRAGMENTS | ipv4::FRAGMENT_OFFSET;

/// Consecutive frames that are sent as one: one frame, or a super-frame.
#[derive(Clone, Debug)]
pub(super) struct Run {
    /// Headers of the first frame. Zeros if it cannot be joined.
    headers: [u8; HEADERS],
    /// Bytes of each frame but the last.
    length: usize,
    /// Bytes of the super-frame.
    bytes: usize,
    count: usize,
    /// True if a further frame may follow.
    is_open: bool,
}

impl Run {
    /// Starts with a frame of `length` bytes that starts with `head`.
    pub(super) fn new(head: &[u8], length: usize) -> Self {
        let headers = plain_headers(head, length);
        Self {
            headers: headers.copied().unwrap_or([0; HEADERS]),
            length,
            bytes: length,
            count: 1,
            is_open: headers.is_some(),
        }
    }

    /// The number of frames.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Adds the next frame. Returns false if it is not part of this run.
    pub(super) fn add(&mut self, head: &[u8], length: usize) -> bool {
        let bytes = self.bytes + length - HEADERS.min(length);
        if !self.is_open || length > self.length || bytes > BYTES_MAX {
            return false;
        }
        let Some(headers) = plain_headers(head, length) else {
            return false;
        };
        if get(headers, IDENT) != get(&self.headers, IDENT).wrapping_add(self.count as u16) {
            return false;
        }
        let mut same = *headers;
        for field in [TOTAL_LENGTH, IDENT, IPV4_CHECKSUM, UDP_LENGTH].map(in_frame) {
            same[field.clone()].copy_from_slice(&self.headers[field]);
        }
        if same != self.headers {
            return false;
        }
        self.count += 1;
        self.bytes = bytes;
        self.is_open = length == self.length && self.count < PACKETS_MAX;
        true
    }

    /// The `virtio_net_hdr` and the headers of the super-frame.
    pub(super) fn headers(&self) -> [u8; VNET_HEADER + HEADERS] {
        let mut headers = self.headers;
        let mut set = |field, value: u16| headers[in_frame(field)].copy_from_slice(&value.to_be_bytes());
        let total = (self.bytes - Ethernet::LEN) as u16;
        let length = total - Ipv4::LEN as u16;
        set(TOTAL_LENGTH, total);
        set(UDP_LENGTH, length);
        set(IPV4_CHECKSUM, 0);
        // The kernel completes a sum of the pseudo header.
        let addresses = u32::from(checksum::sum(&self.headers[in_frame(SRC.start..DST.end)]));
        let pseudo = addresses + u32::from(checksum::UDP) + u32::from(length);
        set(UDP_CHECKSUM, ipv4::fold(pseudo));
        let sum = ipv4::checksum(&headers[Ethernet::LEN..Ethernet::LEN + Ipv4::LEN]);
        headers[in_frame(IPV4_CHECKSUM)].copy_from_slice(&sum.to_be_bytes());

        let mut out = [0; VNET_HEADER + HEADERS];
        out[..VNET_HEADER].copy_from_slice(&VnetHeader::of_udp(
            HEADERS as u16,
            (self.length - HEADERS) as u16,
            in_frame(UDP).start as u16,
        ));
        out[VNET_HEADER..].copy_from_slice(&headers);
        out
    }
}

/// The headers of a frame that can be joined: RoCE over IPv4 without tag, options, fragment, padding or UDP checksum, and
/// with a correct checksum of the IP header. All of this is the same after the kernel has taken a super-frame apart.
fn plain_headers(head: &[u8], length: usize) -> Option<&[u8; HEADERS]> {
    let headers: &[u8; HEADERS] = head.first_chunk()?;
    let total = length - Ethernet::LEN;
    let is_plain = headers[ETHERTYPE_AT..ETHERTYPE_AT + 2] == ETHERTYPE_IPV4.to_be_bytes()
        && headers[Ethernet::LEN] == VERSION_LENGTH
        && headers[Ethernet::LEN + PROTOCOL] == checksum::UDP
        && get(headers, DPORT) == ROCE_PORT
        && get(headers, FRAGMENT) & FRAGMENT_BITS == 0
        && usize::from(get(headers, TOTAL_LENGTH)) == total
        && usize::from(get(headers, UDP_LENGTH)) == total - Ipv4::LEN
        && get(headers, UDP_CHECKSUM) == 0
        // The other form of a zero, which the kernel does not write.
        && get(headers, IPV4_CHECKSUM) != 0xFFFF
        && length > HEADERS;
    (is_plain && ipv4::checksum_is_right(&headers[Ethernet::LEN..])).then_some(headers)
}

fn get(headers: &[u8; HEADERS], field: std::ops::Range<usize>) -> u16 {
    let at = in_frame(field).start;
    u16::from_be_bytes([headers[at], headers[at + 1]])
}

#[cfg(test)]
mod tests {
    use castnet_wire::{Bth, ExtHeaders, MacAddr, Network, Opcode, Psn, Qpn, emit_roce};
    use proptest::prelude::*;

    use super::super::cut::Cutter;
    use super::*;

    /// A packet of one of two flows. `gap` is added to the identification, `damage` to a byte of the headers.
    #[derive(Clone, Debug)]
    struct Step {
        flow: bool,
        gap: u16,
        short: usize,
        damage: Option<(usize, u8)>,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let rarely = |range: std::ops::Range<u16>| prop_oneof![9 => Just(0), 1 => range];
        let damage = prop_oneof![9 => Just(None), 1 => (0..HEADERS, 1u8..).prop_map(Some)];
        let step = (prop::bool::weighted(0.05), rarely(1..9), rarely(1..99), damage).prop_map(
            |(flow, gap, short, damage)| Step {
                flow,
                gap,
                short: usize::from(short) * 4,
                damage,
            },
        );
        prop::collection::vec(step, 1..150)
    }

    fn frames(steps: &[Step], payload: usize, mut ident: u16) -> Vec<Vec<u8>> {
        let frame = |(index, step): (usize, &Step)| {
            ident = ident.wrapping_add(1 + step.gap);
            let ethernet = Ethernet {
                dst: MacAddr([2, 0, 0, 0, 0, 2]),
                src: MacAddr([2, 0, 0, 0, 0, 1]),
                vlan: None,
                ethertype: ETHERTYPE_IPV4,
            };
            let network = Network::V4(Ipv4 {
                ident,
                ..Ipv4::udp([10, 0, 0, 1].into(), [10, 0, 0, 2].into())
            });
            let bth = Bth::new(Opcode::SendMiddle, Qpn::new(7), Psn::new(index as u32));
            let sport = 0xC000 + u16::from(step.flow);
            let payload = vec![index as u8; payload - step.short.min(payload)];
            let mut out = vec![0; 6000];
            let length = emit_roce(
                &mut out,
                &ethernet,
                &network,
                sport,
                &bth,
                &ExtHeaders::NONE,
                &payload,
            );
            out.truncate(length.unwrap());
            if let Some((at, value)) = step.damage {
                out[at] = out[at].wrapping_add(value);
            }
            out
        };
        steps.iter().enumerate().map(frame).collect()
    }

    proptest! {
        /// What was joined and taken apart is what was to be sent, whatever the frames are.
        #[test]
        fn a_super_frame_is_taken_apart_into_the_same_frames(
            steps in steps(), payload in prop_oneof![Just(0usize), Just(256), Just(1024), Just(4096)], ident: u16,
        ) {
            let frames = frames(&steps, payload, ident);
            let (mut left, mut cutter) = (&frames[..], Cutter::new());
            while let Some(first) = left.first() {
                let mut run = Run::new(first, first.len());
                let count = 1 + left[1..].iter().take_while(|f| run.add(f, f.len())).count();
                prop_assert_eq!(run.count(), count);
                let (run_frames, rest) = left.split_at(count);
                left = rest;
                if count == 1 {
                    continue;
                }
                let mut whole = run.headers().to_vec();
                whole.extend(run_frames.iter().flat_map(|f| &f[HEADERS..]));
                prop_assert_eq!(whole.len(), VNET_HEADER + run.bytes);
                prop_assert!(run.bytes <= BYTES_MAX && count <= PACKETS_MAX);
                let header = VnetHeader::parse(*whole.first_chunk().unwrap());
                cutter.buffer()[..whole.len()].copy_from_slice(&whole);
                prop_assert_eq!(cutter.start(header, run.bytes, None), Ok(()));
                for frame in run_frames {
                    prop_assert_eq!(cutter.next(), Some(&frame[..]));
                }
                prop_assert!(cutter.is_empty());
            }
        }
    }

    #[test]
    fn runs_are_as_long_as_super_frames_can_be() {
        let step = Step {
            flow: false,
            gap: 0,
            short: 0,
            damage: None,
        };
        for (payload, count) in [(256, 64), (1024, 62), (4096, 15)] {
            let frames = frames(&vec![step.clone(); 64], payload, 65_500);
            let mut run = Run::new(&frames[0], frames[0].len());
            let added = frames[1..].iter().take_while(|f| run.add(f, f.len())).count();
            assert_eq!(1 + added, count, "{payload} bytes");
        }
    }
}
