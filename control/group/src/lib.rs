//! What a group is: its settings, each described once. Command lines, messages, plans and records hold these types. Pure.
#![forbid(unsafe_code)]

mod description;
mod distribution;
mod shape;
mod spec;

pub use description::{Description, NoDescription};
pub use distribution::{Distribution, NoDistribution};
pub use shape::{DEFAULT_RELAY_LATENCY, NoLatency, NoTreeShape, TreeChoice, TreeShape, tree_latency};
pub use spec::{CollectiveSettings, DEFAULT_MEMBER_STALL_MS, GivenSettings, MulticastSettings, StallPolicy};
