//! The bounds of a run.

use super::Bounded;
use crate::fabric::{HOSTS, RECEIVERS, Topology};
use crate::message::PACKETS;
use crate::switch::Fault;
use stateright::Property;

/// Bounds of a run. Faults may affect any message on any link in either direction.
#[derive(Clone, Copy)]
pub struct Config {
    /// The switches.
    pub topology: Topology,
    /// Number of packets.
    pub packets: u8,
    /// Most packets of the source that are not acknowledged.
    pub window: u8,
    /// Slots of the ring of each switch; 0 where the source repairs.
    pub slots: u16,
    /// By host, the packets that it sends if the source may change: in this order, each when it has received those
    /// before. Nothing: only the first host sends.
    pub sends: [u8; HOSTS],
    /// All of them send at once.
    pub at_once: bool,
    /// Bit `i`: packet `i` requests an ACK, and ends a message.
    pub ack_requests: u8,
    /// Most lost messages.
    pub losses: u8,
    /// Messages that may be lost.
    pub losable: Losable,
    /// Most duplicated messages.
    pub duplicates: u8,
    /// Most delayed messages, each overtaken by any number of later ones: at most two.
    pub delays: u8,
    /// Most time-outs of the source while messages are in flight.
    pub early_time_outs: u8,
    /// Most time-outs of the source while no message is in flight. Delivery must not need more.
    pub time_outs: u8,
    /// How often, most, a switch that repairs sends because of a tick while messages are in flight.
    pub early_ticks: u8,
    /// By receiver, the packet that finds no posted receive when it first arrives.
    pub not_ready: [Option<u8>; RECEIVERS],
    /// By receiver, the number of CNPs that it sends, at any time.
    pub cnps: [u8; RECEIVERS],
    /// How often a window of CNPs ends, at any time.
    pub windows: u8,
    /// A switch that may evict its last path, at any time.
    pub evicts: Option<usize>,
    /// By receiver, the packet that ends its connection.
    pub refuses: [Option<u8>; RECEIVERS],
    /// A deliberate fault.
    pub fault: Fault,
    /// Explore all interleavings, including those that differ only in the order of independent events.
    pub exhaustive: bool,
    /// States that the run must reach.
    pub sights: &'static [Sight],
}

/// Messages that may be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Losable {
    /// All messages.
    All,
    /// Packets that are followed by others. Their loss must be repaired without a time-out.
    Followed,
    /// All messages, but not those between the source and the switch next to it. Switches that repair must not need
    /// a time-out.
    BehindFirst,
    /// All messages except those of receivers. A receiver whose connection has ended reports it once. If that report
    /// is lost on its first link, the source uses up its retries, as without a switch.
    NotFromReceivers,
}

/// A `sometimes` property of `sights`.
pub type Sight = fn() -> Property<Bounded>;

impl Config {
    /// A run without faults in which all packets request an ACK.
    pub const fn without_faults(topology: Topology) -> Self {
        Self {
            topology,
            packets: PACKETS,
            window: PACKETS,
            slots: 0,
            sends: [0; HOSTS],
            at_once: false,
            ack_requests: 0b111,
            losses: 0,
            losable: Losable::All,
            duplicates: 0,
            delays: 0,
            early_time_outs: 0,
            time_outs: 0,
            early_ticks: 0,
            not_ready: [None; RECEIVERS],
            cnps: [0; RECEIVERS],
            windows: 0,
            evicts: None,
            refuses: [None; RECEIVERS],
            fault: Fault::Nothing,
            exhaustive: false,
            sights: &[],
        }
    }
}
