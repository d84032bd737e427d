//! Completes checksums that a sender left to its device.
//!
//! The sender has stored the sum of the pseudo header in the checksum field (RFC 1071; a partial checksum in
//! Linux). The inverted sum over the whole segment including that field is the final checksum.

use castnet_wire::Ethernet;
use castnet_wire::ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6};

pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;

/// Completes the TCP or UDP checksum of an Ethernet frame. Leaves all other frames unchanged.
pub(crate) fn complete(frame: &mut [u8]) {
    if let Some((protocol, segment)) = segment(frame) {
        complete_segment(protocol, segment);
    }
}

/// Completes the checksum of a TCP or UDP segment. Leaves those of other protocols unchanged.
pub(crate) fn complete_segment(protocol: u8, segment: &mut [u8]) {
    let at = match protocol {
        TCP => 16,
        UDP => 6,
        _ => return,
    };
    let sum = !sum(segment);
    let Some(field) = segment.get_mut(at..at + 2) else {
        return;
    };
    // In UDP, zero means that there is no checksum.
    let sum = if protocol == UDP && sum == 0 { 0xFFFF } else { sum };
    field.copy_from_slice(&sum.to_be_bytes());
}

/// The ones' complement sum of big-endian words, folded to 16 bits.
pub(crate) fn sum(bytes: &[u8]) -> u16 {
    let words = bytes
        .chunks(2)
        .map(|w| u64::from(u16::from_be_bytes([w[0], w.get(1).copied().unwrap_or(0)])));
    let mut sum: u64 = words.sum();
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    sum as u16
}

/// The layer 4 protocol and segment, without the frame's padding.
fn segment(frame: &mut [u8]) -> Option<(u8, &mut [u8])> {
    let (ethernet, l3) = Ethernet::parse(frame).ok()?;
    let ip = frame.get_mut(l3..)?;
    match ethernet.ethertype {
        ETHERTYPE_IPV4 => {
            let header = usize::from(ip.first()? & 0x0F) * 4;
            let total = usize::from(word(ip, 2)?);
            // Fragments carry no complete checksum.
            let fragment = word(ip, 6)? & 0x3FFF != 0;
            let protocol = *ip.get(9)?;
            if fragment || header < 20 {
                None
            } else {
                Some((protocol, ip.get_mut(header..total)?))
            }
        }
        // No sender of partial checksums puts an extension header before TCP or UDP.
        ETHERTYPE_IPV6 => {
            let length = usize::from(word(ip, 4)?);
            Some((*ip.get(6)?, ip.get_mut(40..40 + length)?))
        }
        _ => None,
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    bytes
        .get(at..at + 2)
        .and_then(|b| b.try_into().ok())
        .map(u16::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns a frame with a partial checksum, the offset of its segment, and its pseudo header.
    fn frame(v6: bool, tagged: bool, udp: bool, payload: &[u8], pad: usize) -> (Vec<u8>, usize, Vec<u8>) {
        let (protocol, header, field) = if udp { (UDP, 8, 6) } else { (TCP, 20, 16) };
        let length = header + payload.len();
        let mut f = vec![2; 12];
        if tagged {
            f.extend([0x81, 0, 0, 7]);
        }
        let mut pseudo = Vec::new();
        if v6 {
            f.extend([
                0x86,
                0xDD,
                0x60,
                0,
                0,
                0,
                (length >> 8) as u8,
                length as u8,
                protocol,
                64,
            ]);
            f.extend([0x11; 32]);
            pseudo.extend([0x11; 32]);
        } else {
            let total = length + 20;
            f.extend([
                8,
                0,
                0x45,
                0,
                (total >> 8) as u8,
                total as u8,
                0,
                0,
                0x40,
                0,
                64,
                protocol,
                0,
                0,
            ]);
            f.extend([10, 0, 0, 1, 10, 0, 0, 2]);
            pseudo.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        }
        pseudo.extend([0, protocol, (length >> 8) as u8, length as u8]);
        let segment = f.len();
        f.extend(vec![0x35; header]);
        f[segment + field..segment + field + 2].copy_from_slice(&sum(&pseudo).to_be_bytes());
        f.extend(payload);
        f.extend(vec![0xEE; pad]);
        (f, segment, pseudo)
    }

    proptest! {
        #[test]
        fn the_result_verifies_as_a_receiver_does(
            v6: bool, tagged: bool, udp: bool, payload in prop::collection::vec(any::<u8>(), 0..300), pad in 0usize..10,
        ) {
            let (mut f, segment, pseudo) = frame(v6, tagged, udp, &payload, pad);
            complete(&mut f);
            let end = f.len() - pad;
            prop_assert_eq!(sum(&[&pseudo, &f[segment..end]].concat()), 0xFFFF, "a receiver wants all ones");
            prop_assert!(f[end..].iter().all(|&b| b == 0xEE), "padding is untouched");
        }

        #[test]
        fn any_bytes_are_accepted(mut bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            complete(&mut bytes);
        }
    }
}
