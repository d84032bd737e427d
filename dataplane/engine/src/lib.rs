//! The match-action pipeline of a switch: parse a frame, classify it, run the group's protocol machine, execute its effects on
//! bytes, send. Frames that belong to no group are switched by Ethernet address, or routed if routes are installed.
//!
//! Main types: [`Engine`] (the pipeline of one worker), [`Context`] (a compiled group of any kind), [`Tables`] (routes and port
//! states), [`Egress`] (the sending side of the ports), [`Trace`] (the stages that one frame passed).
//!
//! The engine does no I/O and reads no clock. A worker or the simulator calls it:
//!
//! 1. [`Engine::process`] for each received batch: drains the batch into the [`Egress`]. A worker calls [`Engine::begin_iteration`] before the
//!    first one;
//! 2. [`Engine::handle_timeout`] at the time that [`Engine::poll_timeout`] returns, once more after each batch while it is due;
//! 3. between batches [`Engine::install`], [`Engine::remove`] and [`Engine::set_tables`], and the queues
//!    [`Engine::pop_event`], [`Taps::pop_trace`] and [`Taps::pop_captured`].
//!
//! [`Engine::new`] allocates all tables, and a [`Context`] has all memory of its group. After that no frame causes an allocation
//! (contract S2). Each frame ends in exactly one [`Verdict`], which is counted (S1).
//!
//! ```
//! use castnet_engine::plain::PlainEgress;
//! use castnet_engine::{Engine, EngineConfig, PortInfo, Verdict};
//! use castnet_wire::{Batch, MacAddr, Nanos, PortId};
//!
//! let port = |n: u8| PortId::new(n).unwrap();
//! let info = |n: u8| PortInfo {
//!     id: port(n),
//!     name: format!("port{n}"),
//!     mac: MacAddr([2, 0, 0, 0, 0, n]),
//!     mtu: 1500,
//!     flood: true,
//! };
//! let mut engine = Engine::new(EngineConfig::new("switch", vec![info(0), info(1)])).unwrap();
//!
//! // A frame to an unknown address is flooded to the other port.
//! let mut frame = vec![0; 60];
//! frame[..6].copy_from_slice(&[2, 0, 0, 0, 1, 9]);
//! frame[6..12].copy_from_slice(&[2, 0, 0, 0, 1, 1]);
//! frame[12..14].copy_from_slice(&[0x88, 0xB5]);
//! let mut batch: Batch<Vec<u8>> = [frame].into_iter().collect();
//! let mut egress = PlainEgress::default();
//! engine.process(Nanos::ZERO, port(0), &mut batch, &mut egress);
//! assert_eq!(egress.sent.len(), 1);
//! assert_eq!(engine.totals().flooded, 1);
//! ```
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

pub use address::GroupKey;
pub use bridge::RegistrationFrame;
pub use castnet_collective::path::WORDS_MAX;
pub use castnet_collective::translated::Refusal;
pub use castnet_collective::{EndpointId, EndpointSet};
pub use castnet_wire::FrameFilter;
pub use config::{ConfigError, EngineConfig, PortInfo, RegistrationConfig};
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
pub use observe::tap::{Captured, Seen, TAPS_MAX, TapId, Taps};
pub use observe::trace::{SentFrame, Stage, Step, Trace, Verdict};
pub use port_set::PortSet;
pub use tables::fdb::FdbEntry;
pub use tables::published::{Members, Owners, Tables};
pub use tables::route::{Flow, Hop};
pub use tables::source_guard::SourceGuard;
