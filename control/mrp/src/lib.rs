//! MRP, the in-band registration of multicast groups (Cepheus III.C), as pure machines: [`Registrar`] of a switch, [`Leader`] of the
//! source, [`Receiver`] of a receiver. [`Meeting`] is for hosts that go on without switches. `docs/mrp.md` describes packets and rules.
//!
//! A leader sends its registration again and again: often until each receiver has confirmed, which repairs losses, and rarely later,
//! as a switch forgets a registration that is not repeated. A switch sends packets on when it has all of a registration and has
//! installed the group. So a receiver that gets its record knows that all switches between have the group.
#![forbid(unsafe_code)]

mod leader;
mod meeting;
mod receiver;
mod registrar;
mod tree;

pub use leader::{Leader, LeaderConfig, LeaderError};
pub use meeting::{Meeting, Roll, TooMuch};
pub use receiver::{Receiver, ReceiverError};
pub use registrar::{Dropped, Hop, Limits, Outgoing, Received, Registrar, Switch, Upstream};

use castnet_rules::MRP_PREFIX;
use castnet_wire::McstId;

/// Name on a switch of a group that was registered with MRP.
pub fn group_name(mcst_id: McstId) -> String {
    format!("{MRP_PREFIX}{mcst_id}")
}
