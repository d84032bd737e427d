//! The match-action pipeline over batches of frames: parse, classify, run the group's machine, carry its effects out on
//! bytes, send. Frames of no group are switched as an Ethernet switch would, or routed where routes are installed.
//!
//! The engine does no I/O and knows no clock. It is driven by whoever owns the ports:
//!
//! 1. [`Engine::process`] for each batch that a port received: it drains the batch into the [`Egress`];
//! 2. [`Engine::handle_timeout`] when the time of [`Engine::poll_timeout`] has come;
//! 3. between batches [`Engine::install`], [`Engine::remove`], [`Engine::set_tables`]; and draining of
//!    [`Engine::pop_event`], [`Engine::pop_trace`], [`Engine::pop_captured`].
//!
//! All tables are sized in [`Engine::new`], and a [`Group`] brings its memory along; from then on a frame costs no
//! allocation (contract S2). Each frame ends in exactly one [`Verdict`], and that is counted (S1).
#![forbid(unsafe_code)]

mod address;
mod bridge;
mod config;
mod dry_run;
mod egress;
mod engine;
mod group;
mod ingress;
mod moving;
mod observe;
mod output;
pub mod plain;
mod port_set;
mod tables;

pub use address::destination;
pub use castnet_collective::path::WORDS_MAX;
pub use castnet_collective::translated::Refusal;
pub use castnet_collective::{EndpointId, EndpointSet};
pub use config::{ConfigError, EngineConfig, PortInfo};
pub use dry_run::DryRun;
pub use egress::Egress;
pub use engine::Engine;
pub use group::collective::{Collective, CollectiveGroupStatus};
pub use group::context::{Context, ContextStatus};
pub use group::forwarding::{Forwarding, ForwardingStatus};
pub use group::install::{InstallError, port_count};
pub use group::multicast::context::{Group, GroupStatus};
pub use moving::Expected;
pub use observe::counters::{
    CollectiveCounters, CongestionCounters, CountersSnapshot, EndpointCounters, EndpointSnapshot,
    ForwardingCounters, ForwardingEndpoint, GroupSnapshot, KindSnapshot, MulticastCounters, PathCounters,
    PathSnapshot, PortCounters, PortTraffic, Totals,
};
pub use observe::events::{EngineEvent, EventKind};
pub use observe::neighbour::{NAME_MAX, Name, Neighbour, Said};
pub use observe::tap::{Captured, FrameFilter, Seen, TAPS_MAX, TapId};
pub use observe::trace::{SentFrame, Stage, Step, Trace, Verdict};
pub use port_set::PortSet;
pub use tables::fdb::FdbEntry;
pub use tables::published::{Members, Owners, Tables};
pub use tables::route::{Flow, Hop};
