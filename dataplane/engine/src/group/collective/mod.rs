//! A collective group as the engine runs it: connection translated, with payloads in slots (EPIC 4.3, Mode-II).
//!
//! The machine decides without payloads ([`castnet_collective::Translated`]); here its effects are carried out on bytes.
//! `lookup` is EPIC's LookupTable, `slots` holds payloads for AggregateData, ReplicateData and RecycleBuffer, `translate` is
//! TranslateHeader; `verify` is what contract C3 asks for.

mod context;
mod explain;
mod fast;
mod feedback;
mod frame;
mod lookup;
mod slots;
mod translate;
mod verify;

pub use context::{Collective, CollectiveGroupStatus};
