//! States that a run can be required to reach.

use super::{Bounded, State};
use stateright::Property;

macro_rules! sights {
    ($($name:ident = $text:literal;)*) => {
        $(#[doc = $text] pub fn $name() -> Property<Bounded> {
            Property::sometimes($text, |_, s: &State| s.seen.$name)
        })*
    };
}

sights! {
    nak_held = "a NAK waits for a slower path";
    nak_released = "a NAK is sent up once the last path has everything before it";
    nak_repeated = "a second NAK of the same gap is absorbed by the switch";
    filtered = "a retransmission is sent only where it is needed";
    answered = "a retransmission that all paths have is answered by the switch";
    answered_below = "a retransmission that all paths have is answered by a switch below the first";
    rnr_merged = "an RNR NAK covers a gap of another path";
    fatal_repeated = "a NAK that ends the connection is repeated";
    timed_out = "the source times out";
    cnp_absorbed = "a CNP is absorbed because another path is as congested";
    cnp_overtakes = "a CNP passes although another path has sent some";
    source_changed = "the source of the group changes";
    sources_compete = "a switch reports that two members want to send";
    evicted = "a path is evicted while another one lacks a packet";
    resent = "a switch repairs from its ring";
    resent_to_silent = "a switch repeats for a path that is silent";
    requested = "a switch requests a packet of the switch above";
    kept_behind_gap = "a switch keeps a packet behind a gap";
    beyond_ring = "a packet behind a gap does not fit into the ring";
}
