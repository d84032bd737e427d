//! The traffic that `castnet bench` measures a switch with: frames of many hosts from templates, and what comes back
//! counted.
//!
//! A [`Scenario`] is what an operator asks for. A [`Plan`] of it assigns flows to hosts, and holds the groups that a
//! switch needs. A [`Host`] plays all members behind one port: [`Host::fill`] makes frames, [`Host::take`] counts
//! received ones and records which ones to answer. A host uses no port, clock or thread; [`drive`] provides those.
//!
//! Hosts communicate through the switch only: a receiver acknowledges data, and a source continues when it is
//! acknowledged. They are not RC endpoints. A lost frame is counted as missing and not waited for, so a bad path
//! neither slows the traffic down nor stays hidden. Only ranks retransmit, because a collective needs every
//! contribution.
//!
//! ```
//! use castnet_traffic::{Host, Place, Plan, Scenario};
//! use castnet_wire::{Batch, Nanos, parse_frame};
//!
//! let scenario = Scenario { receivers: 2, ..Scenario::new("multicast".parse()?) };
//! let plan = Plan::own(&scenario, &Place::star(3))?;
//! let mut source = Host::<Vec<u8>>::new(&plan, 0, |bytes| Some(bytes.to_vec()))?;
//! let mut frames = Batch::new();
//! source.fill(Nanos(0), &mut frames, |template| Some(template.clone()));
//! assert!(frames.iter().all(|f: &Vec<u8>| parse_frame(f, f.len()).is_ok()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod bucket;
mod class;
mod counts;
pub mod drive;
mod flow;
mod host;
mod latency;
mod make;
mod plan;
mod rank;
mod receiver;
mod scenario;
mod seen;
mod source;
mod template;

pub use counts::{Counts, FlowCounts};
pub use host::{FlowReport, Host, HostReport};
pub use latency::Latency;
pub use plan::{FlowPlan, HostPlan, Place, Plan, PlanError, Role};
pub use scenario::{BadScenario, Check, Pattern, Rate, Scenario, Share, Sizes, Workload};
pub use template::{Ends, HEADER};
