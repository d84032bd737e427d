//! Frames of an event: as a member would send them, and then with a fault.

use super::common::collective::control;
use super::common::{self, DataFrame, ethernet, host_ip, host_qpn, peer_mac, port};
use super::{GROUPS, PORTS, RECORD, World, rule_of};
use crate::endpoint::repaired;
use castnet_engine::ContextStatus;
use castnet_rules::GroupRule;
use castnet_wire::{
    Aeth, AtomicEth, Call, CallFlags, DataType, ExtHeaders, MacAddr, NakCode, Opcode, Operation, PortId,
    Primitive, Psn, Qpn, Reth, RnrTimer, Syndrome,
};
use std::net::Ipv4Addr;

/// First the opcodes of members, last those that no group carries.
const OPCODES: [Opcode; 16] = [
    Opcode::SendOnly,
    Opcode::SendFirst,
    Opcode::SendMiddle,
    Opcode::SendLast,
    Opcode::WriteOnly,
    Opcode::WriteFirst,
    Opcode::WriteMiddle,
    Opcode::WriteLast,
    Opcode::SendOnlyImm,
    Opcode::SendLastImm,
    Opcode::WriteOnlyImm,
    Opcode::SendOnlyInv,
    Opcode::ReadRequest,
    Opcode::CompareSwap,
    Opcode::ReadResponseOnly,
    Opcode::UcSendOnly,
];
const LENGTHS: [usize; 8] = [256, 256, 64, 4, 0, 13, 1024, 1028];
/// Address of no host.
const STRANGER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 77);

/// Numbers of a member: of the next packet that it sends, of the newest packet sent to it, and of the oldest one that
/// it has not acknowledged.
struct Numbers {
    next: Psn,
    newest: Psn,
    unacknowledged: Psn,
    /// Opcodes of the next packets, from their position in the message.
    message_position: Option<MessagePosition>,
}

/// Position of a packet in the data of a collective.
#[derive(Clone, Copy)]
struct MessagePosition {
    index: i32,
    packets: i32,
    message: i32,
}

impl MessagePosition {
    fn opcode(self, ahead: i32) -> Opcode {
        let index = self.index + ahead;
        let last = index % self.message == self.message - 1 || index + 1 == self.packets;
        match (index % self.message == 0, last) {
            (true, true) => Opcode::SendOnly,
            (true, false) => Opcode::SendFirst,
            (false, false) => Opcode::SendMiddle,
            (false, true) => Opcode::SendLast,
        }
    }
}

impl World {
    /// The frames of a record, and their ingress port.
    pub(super) fn frames(&self, record: &[u8; RECORD]) -> (PortId, Vec<Vec<u8>>) {
        let (n, what) = (usize::from(record[1]) % PORTS, record[5]);
        let frame = |frame| (port(n), vec![self.with_fault(frame, record)]);
        match record[0] % 16 {
            9 => frame(self.other(n, record)),
            10 => match self.history.iter().rev().nth(usize::from(what) % 16) {
                Some((from, bytes)) if record[7] < 0xC0 => {
                    (*from, vec![self.with_fault(bytes.clone(), record)])
                }
                Some((_, bytes)) => frame(bytes.clone()),
                None => frame(Vec::new()),
            },
            15 => frame(record[..].repeat(1 + usize::from(what) % 12)),
            _ => {
                let burst = 1 << (record[4] >> 4 & 3);
                let frames = (0..burst).map(|i| self.with_fault(self.group_frame(n, record, i), record));
                (port(n), frames.collect())
            }
        }
    }

    fn group_frame(&self, n: usize, record: &[u8; RECORD], nth: i32) -> Vec<u8> {
        let [kind, _, _, delta, scale, what, length, spoof, ..] = *record;
        let index = usize::from(record[2]) % GROUPS;
        let rule = self.groups[index]
            .as_ref()
            .map_or_else(|| rule_of(index, 1), |m| m.rule.clone());
        let collective = rule.translated().is_some();
        let numbers = self.numbers(&rule, n);
        let delta = match scale >> 6 {
            3 => i32::from(delta as i8) << 16,
            2 => i32::from(delta as i8),
            _ => i32::from(delta as i8) / 16,
        };
        let mut frame = match kind % 16 {
            5..=7 => {
                let near = [numbers.newest, numbers.unacknowledged][usize::from(scale >> 2 & 1)];
                let mut frame = DataFrame::new(Opcode::Ack, near.add(delta + nth).value(), &[]);
                let syndrome = match what % 8 {
                    0..=3 => Syndrome::Ack,
                    4 | 5 => Syndrome::Nak(NakCode::PsnSequenceError),
                    6 => Syndrome::RnrNak(RnrTimer::new(what / 8)),
                    _ => Syndrome::Nak(NakCode::RemoteAccessError),
                };
                frame.ext.aeth = Some(Aeth { syndrome, msn: 1 });
                frame
            }
            8 => DataFrame::new(Opcode::Cnp, 0, &[]),
            3 | 4 if collective => {
                let sent = self.control(&rule, n, record);
                let mut frame =
                    DataFrame::new(sent.opcode, numbers.next.add(delta + nth).value(), &sent.payload);
                frame.ext.imm = sent.imm;
                frame
            }
            _ => {
                let opcode = match numbers.message_position {
                    Some(message_position) if what < 128 => message_position.opcode(delta + nth),
                    _ => OPCODES[usize::from(what) % OPCODES.len()],
                };
                let length = LENGTHS[usize::from(length) % LENGTHS.len()];
                let payload = (1u32 << (4 * n)).to_le_bytes().repeat(length.div_ceil(4));
                let payload = match opcode.info().has_payload {
                    true => &payload[..length],
                    false => &[],
                };
                let mut frame = DataFrame::new(opcode, numbers.next.add(delta + nth).value(), payload);
                frame.ext = ExtHeaders {
                    reth: Some(Reth {
                        va: common::VA_BASE + u64::from(what / 16) * 0x1_0000,
                        rkey: 1,
                        dma_len: length as u32,
                    }),
                    atomic_eth: Some(AtomicEth {
                        va: 0,
                        rkey: 1,
                        swap_add: 1,
                        compare: 0,
                    }),
                    aeth: Some(Aeth {
                        syndrome: Syndrome::Ack,
                        msn: 0,
                    }),
                    imm: Some(9),
                    ieth: Some(1),
                    ..frame.ext
                };
                frame
            }
        };
        frame.dst = rule.mcst_id.0;
        frame.src = match spoof % 16 {
            0..11 => source_of(&rule, n),
            11 => host_ip((n + 1) % PORTS),
            12 => frame.dst,
            13 => rule_of((index + 1) % GROUPS, 1).mcst_id.0,
            _ => STRANGER,
        };
        frame.ack_request = scale & 1 != 0;
        frame.ethernet = ethernet(n);
        frame.tos = if scale & 8 != 0 { 3 } else { 2 * (scale >> 1 & 1) };
        if spoof & 0x30 == 0x30 {
            frame.dest_qp = [host_qpn(n), Qpn::new(0), Qpn::new(2)][usize::from(what) % 3];
        }
        frame.bytes()
    }

    /// A frame outside all groups, or one that falsely claims to be of a group.
    fn other(&self, n: usize, record: &[u8; RECORD]) -> Vec<u8> {
        let (what, target) = (record[5], usize::from(record[6]));
        let group = rule_of(usize::from(record[2]) % GROUPS, 1).mcst_id.0;
        match what % 8 {
            0 => common::arp_request(n, group),
            1 => common::arp_request(n, host_ip(target % 8)),
            2 | 3 => {
                let dst = match target % 8 {
                    7 => MacAddr::BROADCAST,
                    6 => common::port_mac(n),
                    other => peer_mac(other),
                };
                common::plain_frame(
                    dst,
                    peer_mac(n + usize::from(record[7] & 8)),
                    None,
                    usize::from(record[9]),
                )
            }
            // From the group to a host. Only a switch may send this.
            _ => {
                let opcode = [Opcode::Ack, Opcode::SendOnly, Opcode::Cnp, Opcode::ReadRequest]
                    [usize::from(what / 8) % 4];
                let mut frame = DataFrame::new(opcode, u32::from(record[3]) + 99, &[]);
                let syndrome = Syndrome::Ack;
                frame.ext.aeth = Some(Aeth { syndrome, msn: 0 });
                frame.ext.reth = Some(Reth {
                    va: 0,
                    rkey: 0,
                    dma_len: 0,
                });
                (frame.src, frame.dst) = (group, host_ip(target % 4));
                (frame.dest_qp, frame.ethernet) = (host_qpn(target % 4), ethernet(n));
                frame.ethernet.dst = peer_mac(target % 4);
                frame.bytes()
            }
        }
    }

    /// Applies the fault in the last bytes of a record to a frame; usually none.
    fn with_fault(&self, mut frame: Vec<u8>, record: &[u8; RECORD]) -> Vec<u8> {
        let [.., at, value, how] = *record;
        add_tags(&mut frame, record[8]);
        match how % 8 {
            1 if !frame.is_empty() => {
                let at = usize::from(at) % frame.len();
                frame[at] ^= value;
                frame
            }
            2 | 3 if !frame.is_empty() => {
                let at = usize::from(at) % frame.len().min(80);
                frame[at] = value;
                repaired(&frame)
            }
            4 => {
                frame.truncate(usize::from(at) * frame.len() / 256);
                if value & 1 != 0 { repaired(&frame) } else { frame }
            }
            5 => {
                frame.extend(vec![value; usize::from(at) % 100]);
                frame
            }
            _ => frame,
        }
    }

    fn numbers(&self, rule: &GroupRule, n: usize) -> Numbers {
        let none = |psn: Psn| Numbers {
            next: psn,
            newest: psn,
            unacknowledged: psn,
            message_position: None,
        };
        match super::status(rule, &self.engine) {
            Some(ContextStatus::Forwarding(_)) | None => none(Psn::new(100)),
            Some(ContextStatus::Multicast(status)) => {
                let newest = status.machine.newest_psn.unwrap_or(Psn::new(99));
                Numbers {
                    next: newest.next(),
                    newest,
                    unacknowledged: status.machine.agg_ack_psn.map_or(newest, Psn::next),
                    message_position: None,
                }
            }
            Some(ContextStatus::Collective(status)) => {
                let at = status.rule.endpoints.iter().position(|e| e.port == port(n));
                let Some(at) = at else {
                    return none(status.machine.base);
                };
                let e = &status.machine.endpoints[at];
                let open = status
                    .machine
                    .collectives
                    .iter()
                    .rfind(|c| c.g.is_before(e.expected));
                let message_position = open.map(|c| MessagePosition {
                    index: (e.expected.diff(c.g) - 1) % (c.call.packets as i32).max(1),
                    packets: c.call.packets as i32,
                    message: status
                        .rule
                        .translated()
                        .map_or(1, |kind| kind.message_packets.into()),
                });
                match status.rule.endpoints[at].next_hop.rank() {
                    Some(rank) => Numbers {
                        next: rank
                            .sq_psn
                            .add(e.packets.0 as i32)
                            .add(e.expected.diff(e.unconfirmed)),
                        newest: rank
                            .rq_psn
                            .add(e.packets.1 as i32)
                            .add(e.next.diff(e.unacknowledged) - 1),
                        unacknowledged: rank.rq_psn.add(e.packets.1 as i32),
                        message_position,
                    },
                    None => Numbers {
                        next: e.expected,
                        newest: e.next.prev(),
                        unacknowledged: e.unacknowledged,
                        message_position,
                    },
                }
            }
        }
    }

    /// The next control message of the rank at port `n`; by default, of the collective that others have opened.
    fn control(&self, rule: &GroupRule, n: usize, record: &[u8; RECORD]) -> common::collective::Sent {
        let [kind, packets, root, wrong] = [record[9], record[10], record[11], record[12]];
        let Some(ContextStatus::Collective(status)) = super::status(rule, &self.engine) else {
            return control(0, n as u16, barrier());
        };
        let at = status.rule.endpoints.iter().position(|e| e.port == port(n));
        let expected = at.map(|at| status.machine.endpoints[at].expected);
        let open = status
            .machine
            .collectives
            .iter()
            .find(|c| Some(c.g) == expected && wrong & 1 == 0);
        let ranks = at.map_or(&[][..], |at| status.rule.endpoints[at].next_hop.ranks());
        let rank = ranks.first().copied().unwrap_or(n as u16) + u16::from(wrong & 2 != 0);
        let sequence = open.map_or(status.machine.next_sequence, |c| c.sequence) + u32::from(wrong & 4 != 0);
        let primitive = Primitive::ALL[usize::from(kind) % Primitive::ALL.len()];
        let data_type = match kind {
            0..128 => DataType::U32,
            _ => DataType::ALL[usize::from(kind) % DataType::ALL.len()],
        };
        let operation = match kind {
            0..192 => Operation::Sum,
            _ => Operation::ALL[usize::from(packets) % Operation::ALL.len()],
        };
        let packets = match packets {
            255 => Call::PACKETS_MAX,
            n => u32::from(n % 10),
        };
        let own = Call {
            primitive,
            root: if primitive == Primitive::AllReduce {
                0
            } else {
                u16::from(root) % 6
            },
            roots: match primitive {
                Primitive::AllReduce => 1,
                _ if packets == 0 || packets > 9 => 1,
                _ => 1 + u16::from(wrong >> 6),
            },
            operation,
            data_type,
            flags: CallFlags(wrong >> 4 & 3),
            elements: u64::from(packets) * (256 / data_type.size() as u64),
            packets,
        };
        control(sequence, rank, open.map_or(own, |c| c.call))
    }
}

/// Adds one to four VLAN tags of either kind.
fn add_tags(frame: &mut Vec<u8>, tags: u8) {
    if tags < 192 || frame.len() < 12 {
        return;
    }
    for n in 0..=(tags - 192) / 16 {
        let [tpid, kind] = match (tags ^ n) & 4 {
            0 => [0x81, 0x00],
            _ => [0x88, 0xA8],
        };
        frame.splice(12..12, [tpid, kind, 0, tags % 3]);
    }
}

fn barrier() -> Call {
    Call {
        primitive: Primitive::AllReduce,
        root: 0,
        roots: 1,
        operation: Operation::Sum,
        data_type: DataType::U32,
        flags: CallFlags::NONE,
        elements: 0,
        packets: 0,
    }
}

/// Source address of the frames that the endpoint at port `n` sends to the group.
fn source_of(rule: &GroupRule, n: usize) -> Ipv4Addr {
    let endpoint = rule.endpoints.iter().find(|e| e.port == port(n));
    match endpoint.map(|e| e.next_hop.ip()) {
        Some(Some(ip)) => ip,
        Some(None) if rule.multicast().is_some() => STRANGER,
        Some(None) => rule.mcst_id.0,
        None => host_ip(n),
    }
}
