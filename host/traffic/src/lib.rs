//! Traffic to measure switches with: frames of many hosts, made from templates, and what comes back, counted.
//!
//! A [`Scenario`] says what is to be sent; a [`Plan`] of it says which host sends what to which group, and what a switch must
//! have installed for that. A [`Host`] then plays all members behind one port: [`Host::fill`] makes frames, [`Host::take`] counts
//! what comes and remembers what is to be answered. It asks no port, no clock and no thread; [`drive`] has those.
//!
//! Hosts speak to one another through the switch alone: a receiver acknowledges what it got, a source goes on when it is acknowledged.
//! They are no RC endpoints. A frame that is lost is counted as missing and not waited for, so that a bad path slows nothing down
//! and hides nothing; only ranks repeat what has no result, since a collective cannot do without.
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
pub mod template;

pub use bucket::Bucket;
pub use counts::{Counts, FlowCounts};
pub use host::{FlowReport, Host, HostReport};
pub use latency::Latency;
pub use plan::{FlowPlan, HostPlan, Place, Plan, PlanError, Role};
pub use scenario::{BadScenario, Check, Pattern, Rate, Scenario, Share, Sizes, Workload};
pub use template::{Ends, Template};
