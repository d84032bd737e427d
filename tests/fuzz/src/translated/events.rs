//! The group, and the events of records.

use super::{RANKS, RECORD, World, endpoint, unwrapped};
use castnet_collective::translated::Event;
use castnet_collective::{
    CollectiveMode, EndpointConfig, EndpointId, EndpointKind, LossPolicy, PacketShape, RankSet,
    StragglerPolicy, TranslatedConfig, TranslatedStatus,
};
use castnet_wire::{
    Call, CallFlags, Control, DataType, NakCode, Nanos, Opcode, Operation, Primitive, Psn, RnrTimer,
    Syndrome, Verdict,
};

fn rank(rank: u16) -> EndpointConfig {
    let near_wrap = |n: u32| Psn::new(0u32.wrapping_sub(3 + 5 * n));
    EndpointConfig {
        kind: EndpointKind::Rank {
            rank,
            sq_psn: near_wrap(rank.into()),
            rq_psn: Psn::new(1000 * u32::from(rank)),
            is_host: true,
        },
        ranks: RankSet::only(rank),
    }
}

fn switch(ranks: &[u16]) -> EndpointConfig {
    EndpointConfig {
        kind: EndpointKind::Switch,
        ranks: ranks.iter().copied().collect(),
    }
}

pub(super) fn config(setting: &[u8; RECORD]) -> TranslatedConfig {
    let [shape, policy, slots, message, start, calls, stall, _] = *setting;
    let (endpoints, parent) = match shape % 5 {
        0 => ((0..RANKS).map(rank).collect(), None),
        1 => (vec![rank(0), rank(1), switch(&[2, 3, 4])], Some(endpoint(2))),
        2 => (vec![rank(0), switch(&[1, 2]), switch(&[3, 4])], None),
        3 => (vec![switch(&[0, 4]), rank(1), switch(&[2, 3])], Some(endpoint(0))),
        _ => (vec![switch(&[0, 1]), switch(&[2, 3, 4])], Some(endpoint(1))),
    };
    TranslatedConfig {
        endpoints,
        parent,
        start_psn: Psn::new([0, 0xFF_FFFA, 0x7F_FFFC][usize::from(start) % 3]),
        slots: 2 << (slots % 5),
        message_packets: u16::from(message % 6),
        pmtu: 256 * u16::from(message / 6 % 2),
        reproducible: message / 12 % 2 == 0,
        collectives_max: 2 << (calls % 3),
        mode: CollectiveMode::ALL[usize::from(policy / 6) % 2],
        loss: [LossPolicy::Repair, LossPolicy::Reflect][usize::from(policy) % 2],
        straggler: [
            StragglerPolicy::KeepAlive,
            StragglerPolicy::Rnr,
            StragglerPolicy::None,
        ][usize::from(policy / 2) % 3],
        tick: Nanos::from_millis(1),
        stall_timeout: Nanos::from_millis(3 * u64::from(stall % 2)),
    }
}

impl World {
    /// The event of a record. `status` is that of the machine.
    pub(super) fn decode(&self, record: &[u8; RECORD], status: &TranslatedStatus) -> Event {
        let [kind, from, delta, scale, a, b, c, d] = *record;
        // One index more than there are endpoints: an unknown sender.
        let from = endpoint(usize::from(from) % (self.config.endpoints.len() + 1));
        let state = status.endpoints.get(from.index());
        let delta = match scale / 64 {
            3 => i32::from(delta as i8) << 16,
            2 => i32::from(delta as i8) << 4,
            _ => i32::from(delta as i8) / 16,
        };
        let ack_request = scale & 1 != 0;
        let expected = state.map_or(status.base, |s| s.expected);
        let next = unwrapped(expected, status.finished, status.base).unwrap_or_default();
        let psn = |feedback: bool| match (state.map(|s| s.kind), feedback) {
            (Some(EndpointKind::Rank { sq_psn, .. }), false) => {
                let near = [self.count(from, true, next), state.map_or(0, |s| s.packets.0)];
                sq_psn
                    .add(near[usize::from(scale / 2 % 4 == 3)] as i32)
                    .add(delta)
            }
            (Some(EndpointKind::Rank { rq_psn, .. }), true) => {
                let near = [
                    self.known[from.index()].sent_to.wrapping_sub(1),
                    state.map_or(0, |s| s.packets.1),
                ];
                rq_psn.add(near[usize::from(scale / 2 % 2)] as i32).add(delta)
            }
            (_, false) => expected.add(delta),
            (_, true) => {
                let near = state.map_or(status.base, |s| {
                    [s.next.prev(), s.unacknowledged][usize::from(scale / 2 % 2)]
                });
                near.add(delta)
            }
        };
        match kind % 16 {
            0..=4 => Event::Data {
                from,
                psn: psn(false),
                shape: PacketShape {
                    opcode: match a {
                        0..192 => self.opcode_at(next.saturating_add_signed(delta.into())),
                        _ => Opcode::SendOnly,
                    },
                    payload: if b > 250 { 13 } else { 256 },
                    pad: if b > 250 { 3 } else { 0 },
                },
                ack_request,
            },
            5..=7 => Event::Control {
                from,
                psn: psn(false),
                control: self.control(from, next, [a, b, c, d]),
                ack_request,
            },
            8..=11 => Event::Feedback {
                from,
                psn: psn(true),
                msn: d.into(),
                syndrome: match a % 8 {
                    0..=3 => Syndrome::Ack,
                    4 | 5 => Syndrome::Nak(NakCode::PsnSequenceError),
                    6 => Syndrome::RnrNak(RnrTimer::new(b)),
                    _ => Syndrome::Nak(NakCode::RemoteAccessError),
                },
            },
            12 => Event::Cnp { from },
            13 => Event::Request { from, psn: psn(true) },
            _ => Event::Marked { from },
        }
    }

    /// The opcode of the packet at `g`, from its position in the message.
    fn opcode_at(&self, g: u64) -> Opcode {
        let Some(past) = self.collective_at(g).filter(|p| p.start < g) else {
            return Opcode::SendOnly;
        };
        let message = match self.config.message_packets {
            0 => u64::MAX,
            m => m.into(),
        };
        let block = past.block(past.block_of(g));
        let index = g - block.start;
        let last = (index + 1).is_multiple_of(message) || g + 1 == block.end;
        match (index.is_multiple_of(message), last) {
            (true, true) => Opcode::SendOnly,
            (true, false) => Opcode::SendFirst,
            (false, false) => Opcode::SendMiddle,
            (false, true) => Opcode::SendLast,
        }
    }

    /// The next control message of `from`; by default, of the collective that others have opened.
    fn control(&self, from: EndpointId, next: u64, [a, b, c, d]: [u8; 4]) -> Control {
        let open = self.collective_at(next).filter(|p| p.start == next && d & 1 == 0);
        let primitive = Primitive::ALL[usize::from(a) % Primitive::ALL.len()];
        let packets = match b {
            0..250 => u32::from(b % 12),
            250..253 => 40,
            // As many as possible in flight such that they span less than half of the PSN range.
            _ => 1 << 19,
        };
        let own = Call {
            primitive,
            root: match primitive {
                Primitive::AllReduce => 0,
                _ => u16::from(c) % (RANKS + 1),
            },
            roots: match primitive {
                Primitive::AllReduce => 1,
                _ if packets == 0 || packets > 12 => 1,
                _ => 1 + u16::from(c >> 5),
            },
            operation: Operation::Sum,
            data_type: DataType::U32,
            flags: CallFlags::NONE,
            elements: 64 * u64::from(packets),
            packets,
        };
        let ranks = self
            .config
            .endpoints
            .get(from.index())
            .map_or(&[][..], |e| e.ranks.as_slice());
        let rank = ranks
            .get(usize::from(c) % ranks.len().max(1))
            .copied()
            .unwrap_or_default();
        let wrong = |bit: u8| u16::from(d & bit != 0);
        let mut control = Control {
            sequence: self.past.partition_point(|p| p.start < next) as u32,
            rank: (rank + wrong(2)) % RANKS,
            call: open.map_or(own, |p| p.call),
            verdict: Verdict::Agreed,
        };
        control.sequence += u32::from(wrong(4));
        if d & 8 != 0 {
            // As a switch sends it if ranks below it disagree.
            let other = Control {
                rank: (control.rank + 1) % RANKS,
                call: Call {
                    elements: 1,
                    packets: 1,
                    ..own
                },
                ..control
            };
            control.merge(&other);
        }
        control
    }
}
