//! A collective group in the engine: translated or augmented connections, with payloads in slots (EPIC 4.3 and 4.4, Mode-II and III), or
//! terminated ones (4.2, Mode-I), which are in `terminated`.
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
