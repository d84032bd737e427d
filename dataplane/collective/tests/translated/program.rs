//! What the ranks call, and what each host must then send and receive, by walking everything.

use castnet_collective::PacketShape;
use castnet_wire::{Call, CallFlags, Control, DataType, Opcode, Operation, Primitive, Verdict};

/// What stands in a packet: which one it is, and whose contributions are in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Payload {
    pub(crate) collective: usize,
    pub(crate) index: u32,
    pub(crate) ranks: u64,
}

/// One packet of a host's program, in either direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) collective: usize,
    /// `None` for the control message.
    pub(crate) index: Option<u32>,
    /// Its position in the group.
    pub(crate) g: u64,
    /// Where the packet stands in its message.
    pub(crate) opcode: Opcode,
    pub(crate) payload: u16,
}

impl Item {
    pub(crate) fn ends_message(&self) -> bool {
        self.opcode.info().ends_message()
    }

    pub(crate) fn shape(&self) -> PacketShape {
        PacketShape {
            opcode: self.opcode,
            payload: self.payload,
            pad: 0,
        }
    }
}

pub(crate) fn call(primitive: Primitive, root: u16, packets: u32) -> Call {
    Call {
        primitive,
        root,
        roots: 1,
        operation: Operation::Sum,
        data_type: DataType::F32,
        flags: CallFlags::default(),
        // The last packet has 100 bytes.
        elements: (u64::from(packets) * 64).saturating_sub(39),
        packets,
    }
}

pub(crate) fn control(sequence: usize, rank: u16, call: Call) -> Control {
    Control {
        sequence: sequence as u32,
        rank,
        call,
        verdict: Verdict::Agreed,
    }
}

/// The root of the block of a data packet.
fn root(call: &Call, index: u32) -> u16 {
    call.root + (index / call.packets) as u16
}

pub(crate) fn sends(call: &Call, rank: u16, index: u32) -> bool {
    match call.primitive {
        Primitive::AllReduce => true,
        Primitive::Reduce => root(call, index) != rank,
        Primitive::Broadcast => root(call, index) == rank,
    }
}

pub(crate) fn receives(call: &Call, rank: u16, index: u32) -> bool {
    call.primitive == Primitive::AllReduce || !sends(call, rank, index)
}

/// Whose contributions the result must hold.
pub(crate) fn expected_ranks(call: &Call, ranks: u16, index: u32) -> u64 {
    let all = (1 << ranks) - 1;
    match call.primitive {
        Primitive::AllReduce => all,
        Primitive::Reduce => all & !(1 << root(call, index)),
        Primitive::Broadcast => 1 << root(call, index),
    }
}

/// The position of each collective's control message, and one past the last packet.
pub(crate) fn starts(calls: &[Call]) -> Vec<u64> {
    let mut starts = vec![0];
    for call in calls {
        starts.push(starts.last().unwrap() + 1 + call.all_packets());
    }
    starts
}

/// The packets of one direction of one host, in order.
pub(crate) fn items(calls: &[Call], goes: impl Fn(&Call, u32) -> bool, message_packets: u32) -> Vec<Item> {
    let mut items = Vec::new();
    let mut g = 0;
    for (collective, call) in calls.iter().enumerate() {
        items.push(Item {
            collective,
            index: None,
            g,
            opcode: Opcode::SendOnlyImm,
            payload: 64,
        });
        g += 1;
        for index in 0..call.packets * u32::from(call.roots) {
            let (within, ends_block) = (index % call.packets, (index + 1) % call.packets == 0);
            let (first, last) = (
                within % message_packets == 0,
                within % message_packets == message_packets - 1 || ends_block,
            );
            if goes(call, index) {
                items.push(Item {
                    collective,
                    index: Some(index),
                    g,
                    opcode: match (first, last) {
                        (true, true) => Opcode::SendOnly,
                        (true, false) => Opcode::SendFirst,
                        (false, true) => Opcode::SendLast,
                        (false, false) => Opcode::SendMiddle,
                    },
                    payload: if ends_block { 100 } else { 256 },
                });
            }
            g += 1;
        }
    }
    items
}
