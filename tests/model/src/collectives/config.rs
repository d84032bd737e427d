//! The bounds of a run.

use super::RANKS;
use super::fault::Fault;
use super::host::Part;
use super::message::Content;
use super::nodes::{self, SWITCHES};
use castnet_collective::translated::{CollectiveMode, LossPolicy, StragglerPolicy};
use castnet_wire::{Call, CallFlags, Control, DataType, Operation, Primitive, Psn, Verdict};

/// Bounds of a run. Faults may affect any message on any link in either direction.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The data flow.
    pub primitive: Primitive,
    /// The receiving rank of a Reduce, the sending rank of a Broadcast.
    pub root: u16,
    /// Data packets of each sender; they are one message.
    pub packets: u8,
    /// The modes of the spine and of each leaf.
    pub modes: [CollectiveMode; SWITCHES],
    /// Slots of each switch, at most [`nodes::SLOTS`]. In Mode-III, half of them are in each pipe.
    pub slots: u16,
    /// Which side repairs losses.
    pub loss: LossPolicy,
    /// How a waiting rank is kept alive.
    pub straggler: StragglerPolicy,
    /// The rank that starts only when no message is in flight, if any.
    pub late_rank: Option<u16>,
    /// The rank that calls another operation, if any.
    pub dissenter: Option<u16>,
    /// Most lost messages.
    pub losses: u8,
    /// The messages that may be lost.
    pub losable: Losable,
    /// Most duplicated messages.
    pub duplicates: u8,
    /// Most delayed messages, overtaken by any number of later ones: at most one.
    pub delays: u8,
    /// Most ticks of switches and time-outs of ranks while messages are in flight.
    pub early: u8,
    /// Most ticks of all switches while no message is in flight.
    pub ticks: u8,
    /// Most times that all switches ask while no message is in flight, as they do after a silence.
    pub asks: u8,
    /// Ticks, and rounds of time-outs, reserved until the late rank starts. They repair later losses.
    pub kept: u8,
    /// Most rounds of time-outs while no message is in flight. In a round every waiting rank has one, in any order.
    pub time_outs: u8,
    /// Whether to explore all orders of events, even those that commute.
    pub exhaustive: bool,
    /// A deliberate fault.
    pub fault: Fault,
}

/// The messages that may be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Losable {
    /// All.
    All,
    /// Packets that another one follows on their link: no timer is needed to repair such a loss.
    Followed,
    /// Results that the spine sends.
    Results,
}

impl Config {
    /// A run without faults.
    pub const fn without_faults(primitive: Primitive, root: u16, loss: LossPolicy) -> Self {
        Self {
            primitive,
            root,
            packets: 3,
            modes: [CollectiveMode::Translated; SWITCHES],
            slots: nodes::SLOTS as u16,
            loss,
            straggler: StragglerPolicy::KeepAlive,
            late_rank: None,
            dissenter: None,
            losses: 0,
            losable: Losable::All,
            duplicates: 0,
            delays: 0,
            early: 0,
            ticks: 2,
            asks: 0,
            kept: 0,
            time_outs: 3,
            exhaustive: false,
            fault: Fault::Nothing,
        }
    }

    fn call(&self, rank: u16) -> Call {
        let operation = match self.dissenter == Some(rank) {
            true => Operation::Max,
            false => Operation::Sum,
        };
        Call {
            primitive: self.primitive,
            root: self.root,
            roots: 1,
            operation,
            data_type: DataType::F32,
            flags: CallFlags::NONE,
            elements: u64::from(self.packets) * 256,
            packets: self.packets.into(),
        }
    }

    pub(super) fn control(&self, rank: u16) -> Control {
        Control {
            sequence: 0,
            rank,
            call: self.call(rank),
            verdict: Verdict::Agreed,
        }
    }

    pub(super) fn part(&self, rank: u16) -> Part {
        let is_root = rank == self.root;
        let (sends, receives) = match self.primitive {
            Primitive::AllReduce => (true, true),
            Primitive::Reduce => (!is_root, is_root),
            Primitive::Broadcast => (is_root, !is_root),
        };
        let contributes = |&r: &u16| match self.primitive {
            Primitive::AllReduce => true,
            Primitive::Reduce => r != self.root,
            Primitive::Broadcast => r == self.root,
        };
        let ranks = 0..RANKS as u16;
        // PSNs wrap at a different packet in each PSN space.
        let before_the_wrap = |packets: u32| Psn::new(Psn::MODULUS - packets);
        Part {
            rank,
            sends: u8::from(sends) * self.packets,
            receives: u8::from(receives) * self.packets,
            content: ranks
                .filter(contributes)
                .fold(Content::NONE, |sum, r| sum.plus(Content::only(r, 0))),
            sq_psn: before_the_wrap(1 + u32::from(rank)),
            rq_psn: before_the_wrap(4 - u32::from(rank)),
        }
    }
}
