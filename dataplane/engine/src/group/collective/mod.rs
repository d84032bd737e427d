//! A collective group in the engine: translated connections, with payloads in slots (EPIC 4.3, Mode-II).
//!
//! The machine decides without payloads ([`castnet_collective::Translated`]); this module executes its effects on bytes.
//! `CollectiveContext::sender` is EPIC's LookupTable (contract C4), `slots` holds payloads for AggregateData, ReplicateData and
//! RecycleBuffer, `translate` is TranslateHeader, and `group/verify.rs` implements contract C3.

mod context;
mod explain;
mod fast;
mod feedback;
mod frame;
mod slots;
mod terminated;
mod translate;

pub(crate) use context::OVERHEAD;
pub use context::{Collective, CollectiveGroupStatus};
