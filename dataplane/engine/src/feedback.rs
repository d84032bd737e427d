//! Frames that a group makes towards its source: aggregated ACK, NAK and RNR NAK, and CNPs that are passed on.
//!
//! To the source itself the frame comes from the McstID and goes to its address and QPN. To the switch on the way there it
//! goes to the McstID and QPN 1, as if from a member; its source address is not looked at there, and is this switch's own
//! where it has one, else the McstID.

use core::net::Ipv4Addr;

use castnet_collective::PathId;
use castnet_wire::ethernet::ETHERTYPE_IPV4;
use castnet_wire::ipv4::{DONT_FRAGMENT, PROTOCOL_UDP};
use castnet_wire::udp::ROCE_PORT;
use castnet_wire::{Aeth, Bth, FrameBuf, Ipv4, Opcode, Psn, Qpn, RoceHeader, Syndrome, Udp, icrc};

use crate::egress::Egress;
use crate::group::Group;
use crate::multicast::Tools;
use crate::pipeline::Cx;
use crate::replicate::set_macs;
use crate::trace::{Observer, Stage, Step};

/// Bytes of tags and EtherType between the Ethernet addresses and the IP header: two tags at most.
const LINK_MAX: usize = 10;
const MACS: usize = 12;
/// IPv4, UDP, BTH, AETH, ICRC.
const ACK_LEN: usize = 20 + 8 + 12 + 4 + 4;
/// IPv4, UDP, BTH, 16 reserved bytes, ICRC.
const CNP_LEN: usize = 20 + 8 + 12 + 16 + 4;

/// What the frame that causes feedback hands down to it: its VLAN tags, and its class of service.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    bytes: [u8; LINK_MAX],
    length: usize,
    /// DSCP; ECN zeroed.
    tos: u8,
}

impl Link {
    pub(crate) fn of(frame: Option<&impl FrameBuf>, header: &RoceHeader) -> Self {
        let mut link = Self {
            bytes: [0; LINK_MAX],
            length: 2,
            tos: header.tos & 0xFC,
        };
        link.bytes[..2].copy_from_slice(&ETHERTYPE_IPV4.to_be_bytes());
        let tags = frame
            .and_then(|f| f.head().get(MACS..header.l3))
            .filter(|t| t.len() <= LINK_MAX);
        if let Some(tags) = tags {
            link.length = tags.len();
            link.bytes[..tags.len()].copy_from_slice(tags);
        }
        link
    }

    fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

/// What to say.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Feedback {
    Acknowledge {
        to: PathId,
        psn: Psn,
        msn: u32,
        syndrome: Syndrome,
    },
    Cnp {
        to: PathId,
    },
}

/// Makes a frame of `feedback`, out of `reuse` where that is as long, and sends it. Counts it as lost where there is no
/// buffer or the port is down.
pub(crate) fn send<E: Egress, O: Observer>(
    cx: &mut Cx<'_, E, O>,
    tools: &mut Tools<'_>,
    group: &mut Group,
    link: &Link,
    feedback: Feedback,
    reuse: Option<E::Buf>,
) {
    let (to, packet_len) = match feedback {
        Feedback::Acknowledge { to, .. } => (to, ACK_LEN),
        Feedback::Cnp { to } => (to, CNP_LEN),
    };
    let length = MACS + link.length + packet_len;
    let port = group.hot.port(to).filter(|port| tools.ports.up.contains(*port));
    let frame = port.and_then(|port| {
        let frame = reuse.filter(|f| f.length() == length && f.head().len() >= length);
        frame.or_else(|| cx.egress.allocate(port, length))
    });
    let (Some(port), Some(mut frame), Some(leg)) = (port, frame, group.hot.leg(to)) else {
        group.cold.exceptions.lost += 1;
        tools.counters.totals.copies_lost += 1;
        cx.observer.step(|| {
            Step::new(
                Stage::Feedback,
                "not sent",
                "no buffer, or the source's port is down",
            )
        });
        return;
    };
    let mcst_id = group.hot.mcst_id.0;
    let (src, dst, qpn) = match leg.is_host() {
        true => (mcst_id, Ipv4Addr::from(leg.ip), Qpn::from_bytes(leg.qpn)),
        false => (tools.own_address.unwrap_or(mcst_id), mcst_id, Qpn::VIRTUAL),
    };
    let macs = (tools.next_hops.get(leg.next_hop()), tools.ports.mac(port));
    let ip = Ipv4 {
        tos: link.tos,
        total_len: packet_len as u16,
        ident: 0,
        flags_frag: DONT_FRAGMENT,
        ttl: 64,
        protocol: PROTOCOL_UDP,
        src,
        dst,
    };
    let mut packet = [0; CNP_LEN];
    write(&mut packet, &ip, group.hot.feedback_sport, qpn, &feedback);
    let icrc = icrc::full(&[&packet[..packet_len - 4]]);
    packet[packet_len - 4..packet_len].copy_from_slice(&icrc.to_le_bytes());

    let head = frame.head_mut();
    set_macs(head, macs.0, macs.1);
    let l3 = MACS + link.length;
    if let Some(room) = head.get_mut(MACS..l3) {
        room.copy_from_slice(link.bytes());
    }
    if let Some(room) = head.get_mut(l3..length) {
        room.copy_from_slice(&packet[..packet_len]);
    }
    count(group, &feedback);
    tools.counters.totals.originated += 1;
    cx.observer.step(|| {
        let why = format!("dst {dst} qpn {qpn}, src {src}, by port {port}");
        Step::new(
            Stage::Feedback,
            format!("{} for {}", title(&feedback), group.cold.describe(to)),
            why,
        )
    });
    cx.send(tools.counters, port, frame);
}

/// Everything but the ICRC.
#[inline]
fn write(packet: &mut [u8; CNP_LEN], ip: &Ipv4, sport: u16, qpn: Qpn, feedback: &Feedback) {
    let udp = Udp {
        sport,
        dport: ROCE_PORT,
        length: ip.total_len - 20,
        checksum: 0,
    };
    packet[..20].copy_from_slice(&ip.to_bytes());
    packet[20..28].copy_from_slice(&udp.to_bytes());
    match *feedback {
        Feedback::Acknowledge {
            psn, msn, syndrome, ..
        } => {
            packet[28..40].copy_from_slice(&Bth::new(Opcode::Ack, qpn, psn).to_bytes());
            packet[40..44].copy_from_slice(&Aeth { syndrome, msn }.to_bytes());
        }
        Feedback::Cnp { .. } => {
            let bth = Bth {
                becn: true,
                ..Bth::new(Opcode::Cnp, qpn, Psn::new(0))
            };
            packet[28..40].copy_from_slice(&bth.to_bytes());
        }
    }
}

#[inline]
fn count(group: &mut Group, feedback: &Feedback) {
    let more = &mut group.cold.exceptions;
    match feedback {
        Feedback::Acknowledge {
            syndrome: Syndrome::Ack,
            ..
        } => group.hot.counters.acks_out += 1,
        Feedback::Acknowledge {
            syndrome: Syndrome::Nak(_),
            ..
        } => more.naks_out += 1,
        Feedback::Acknowledge {
            syndrome: Syndrome::RnrNak(_),
            ..
        } => more.rnr_naks_out += 1,
        Feedback::Cnp { .. } => more.cnps_out += 1,
    }
}

fn title(feedback: &Feedback) -> String {
    match feedback {
        Feedback::Acknowledge {
            psn, syndrome, msn, ..
        } => format!("{syndrome} of PSN {psn}, MSN {msn},"),
        Feedback::Cnp { .. } => "CNP".into(),
    }
}
