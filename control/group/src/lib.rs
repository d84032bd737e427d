//! What a group is: its settings, each described once. Command lines, messages, plans and records hold these types. Pure.
#![forbid(unsafe_code)]

mod distribution;
mod shape;

pub use distribution::{Distribution, NoDistribution};
pub use shape::{NoLatency, NoTreeShape, TreeChoice, TreeShape, tree_latency};
