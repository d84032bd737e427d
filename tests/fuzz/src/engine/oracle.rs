//! Knowledge about groups from their rules and from frames only.

use super::{Frame, Member};
use crate::driver::print_step;
use castnet_engine::Engine;
use castnet_rules::GroupRule;
use castnet_wire::{
    Control, DataType, Kind, Opcode, Operation, Parsed, PortId, Psn, RoceHeader, Syndrome, describe, icrc,
    ipv4, parse_frame,
};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

fn parsed(frame: &[u8]) -> Option<(RoceHeader, Ipv4Addr, Ipv4Addr)> {
    let Ok(Parsed::Roce(header)) = parse_frame(frame, frame.len()) else {
        return None;
    };
    let (src, dst) = header.ip.v4()?;
    Some((header, src, dst))
}

/// Returns true if a member of the group has sent this frame to the group. Frames other than multicast data must also
/// be valid.
pub(super) fn is_for(rule: &GroupRule, ingress: PortId, frame: &[u8]) -> bool {
    let Some((header, src, dst)) = parsed(frame) else {
        return false;
    };
    let mut endpoints = rule.endpoints.iter().filter(|e| e.port == ingress);
    let speaks = endpoints.any(|endpoint| {
        let from = match endpoint.next_hop.ip() {
            Some(ip) => ip == src,
            // The source address of multicast data may be any host behind an adjacent switch.
            None => rule.multicast().is_some() || rule.mcst_id.0 == src,
        };
        from && endpoint.virtual_qpn == header.bth.dest_qp
    });
    let data =
        rule.multicast().is_some() && matches!(header.bth.opcode.info().kind, Kind::Send | Kind::Write);
    speaks
        && dst == rule.mcst_id.0
        && ipv4::checksum_is_right(&frame[header.l3..])
        && (data || icrc::verify_bytes(frame, header.l3, header.frame_len))
}

/// The group that a frame is sent to or sent by, with any number of tags: hosts remove all of them.
pub(super) fn group_of(groups: &[Option<Member>], frame: &[u8]) -> Option<usize> {
    let mut rest = frame.get(12..)?;
    while let [0x81, 0x00, _, _, after @ ..] | [0x88, 0xA8, _, _, after @ ..] = rest {
        rest = after;
    }
    let [0x08, 0x00, ip @ ..] = rest else {
        return None;
    };
    let ip = ip.first_chunk::<20>()?;
    let address = |at: usize| Ipv4Addr::new(ip[at], ip[at + 1], ip[at + 2], ip[at + 3]);
    [address(16), address(12)].into_iter().find_map(|address| {
        let is = |m: &Option<Member>| m.as_ref().is_some_and(|m| m.rule.mcst_id.0 == address);
        groups.iter().position(is)
    })
}

/// How far ahead of a stream a path may be, in packets.
const AHEAD: i32 = 1 << 16;

/// Acknowledgements of the members of a group.
#[derive(Clone, Debug, Default)]
pub(super) struct Feedback {
    /// By port, all PSNs that a multicast receiver has acknowledged.
    acknowledged: BTreeMap<PortId, Vec<Psn>>,
    /// The source has repeated data of a stream whose beginning the rule does not name.
    went_back: bool,
}

impl Feedback {
    /// Records a frame of a member, before `engine` handles it.
    pub(super) fn record_frame(&mut self, rule: &GroupRule, engine: &Engine, ingress: PortId, frame: &[u8]) {
        let (Some(kind), Some((header, ..))) = (rule.multicast(), parsed(frame)) else {
            return;
        };
        let Some(machine) = engine.group_status(rule.mcst_id).map(|status| status.machine) else {
            return;
        };
        let Some(newest) = machine.newest_psn else { return };
        let psn = header.bth.psn;
        match (header.bth.opcode.info().kind, header.aeth) {
            (Kind::Send | Kind::Write, _) => {
                // What is so far ahead may be more than half the circle after AggAckPSN, and counts as old then.
                let repeated = !(1..1 << 21).contains(&psn.diff(newest));
                self.went_back |= kind.start_psn.is_none() && repeated;
            }
            (Kind::Ack, Some(aeth)) => {
                let acknowledged = match aeth.syndrome {
                    // An acknowledgement of unsent data must be ignored, unless the path was ahead when the stream came here: such a path
                    // has all that has passed.
                    _ if psn.is_after(newest) && !(self.went_back && psn.diff(newest) <= AHEAD) => return,
                    _ if psn.is_after(newest) => newest,
                    Syndrome::Ack => psn,
                    _ => psn.prev(),
                };
                self.acknowledged.entry(ingress).or_default().push(acknowledged);
            }
            _ => {}
        }
    }

    /// M1, M2: the source receives no acknowledgement that a receiver has not sent.
    pub(super) fn check(&self, rule: &GroupRule, sent: &[Frame]) {
        let (Some(kind), Some(source)) = (rule.multicast(), rule.upstream()) else {
            return;
        };
        for (port, frame) in sent.iter().filter(|(port, _)| *port == source.port) {
            let Some((header, ..)) = parsed(frame) else {
                panic!("unexpected frame to the source: {}", describe(frame, frame.len()));
            };
            let Some(aeth) = header.aeth else { continue };
            let psn = match aeth.syndrome {
                Syndrome::Ack => header.bth.psn,
                _ => header.bth.psn.prev(),
            };
            // Before the first packet nothing was acknowledged; a NAK may name the first one.
            if aeth.syndrome != Syndrome::Ack && kind.start_psn.is_none_or(|start| psn == start.prev()) {
                continue;
            }
            for path in rule.endpoints.iter().filter(|p| p.port != *port) {
                let all = self.acknowledged.get(&path.port);
                let has = all.is_some_and(|all| all.iter().any(|q| !q.is_before(psn)));
                assert!(
                    has,
                    "M1: the receiver at {} has not acknowledged {psn}",
                    path.port
                );
            }
        }
    }
}

/// Checks C1 by digits: the payload of each member repeats a word with a 1 in the member's own digit. So no digit of
/// a sum may exceed 1.
#[derive(Clone, Debug, Default)]
pub(super) struct Digits {
    /// True if a frame without such digits was added.
    has_unknown_payload: bool,
}

impl Digits {
    /// Records a frame that a member has sent to the group.
    pub(super) fn record_frame(&mut self, rule: &GroupRule, ingress: PortId, frame: &[u8]) {
        let (Some(_), Some((header, ..))) = (rule.translated(), parsed(frame)) else {
            return;
        };
        let payload = &frame[header.payload_at..][..header.payload_len];
        if header.bth.opcode == Opcode::SendOnlyImm && header.imm == Some(Control::IMMEDIATE) {
            let plain = |c: Control| c.call.operation == Operation::Sum && c.call.data_type == DataType::U32;
            self.has_unknown_payload |= !Control::parse(payload).is_ok_and(plain);
        } else if header.bth.opcode.info().kind == Kind::Send {
            let own = (1u32 << (4 * ingress.index())).to_le_bytes();
            self.has_unknown_payload |= payload.chunks(4).any(|word| word != &own[..word.len()]);
        }
    }

    pub(super) fn check(&self, rule: &GroupRule, sent: &[Frame]) {
        if self.has_unknown_payload || rule.multicast().is_some() {
            return;
        }
        for (port, frame) in sent {
            let Some((header, ..)) = parsed(frame) else {
                panic!("not RoCEv2: {}", describe(frame, frame.len()));
            };
            let data = header.bth.opcode.info().kind == Kind::Send && header.imm != Some(Control::IMMEDIATE);
            if !data {
                continue;
            }
            let (words, _) = frame[header.payload_at..][..header.payload_len].as_chunks::<4>();
            for word in words {
                let word = u32::from_le_bytes(*word);
                assert_eq!(word & !0x11_1111, 0, "C1: added twice, to {port}");
                assert_eq!(Some(word), words.first().map(|w| u32::from_le_bytes(*w)));
            }
        }
    }
}

/// Prints the differences between two sequences of frames.
pub(super) fn explain(sent: &[Frame], expected: &[Frame]) {
    for (who, frames) in [("the group", sent), ("its twin", expected)] {
        for (port, frame) in frames {
            print_step(|| {
                format!(
                    "{who} sends by {port}: {:#}\n    {frame:02x?}",
                    describe(frame, frame.len())
                )
            });
        }
    }
}
