//! What the controller knows and decides. Handlers of [`core::Core`] make all changes; what a change asks for outside is an [`effect::Effect`],
//! and time is that of the call. Nothing here uses the shell.

pub(crate) mod access;
pub(crate) mod broken_links;
pub(crate) mod change;
pub(crate) mod core;
pub(crate) mod detour;
pub(crate) mod draws;
pub(crate) mod driver;
pub(crate) mod effect;
pub(crate) mod fabric;
pub(crate) mod foresee;
pub(crate) mod hosts;
pub(crate) mod journal;
pub mod kinds;
pub mod lifecycle;
pub(crate) mod lost_switches;
pub(crate) mod multicast_routes;
pub(crate) mod others;
pub(crate) mod pace;
pub(crate) mod planning;
pub(crate) mod pool;
pub(crate) mod reconcile;
pub mod record;
pub(crate) mod requests;
pub(crate) mod shown;
pub(crate) mod table;
pub(crate) mod tenants;
pub(crate) mod timers;
pub(crate) mod unexplained;
pub(crate) mod view;
pub mod written_off;

pub(crate) use self::{
    core::Core,
    detour::Detours,
    draws::Draws,
    effect::{Asked, Effect, Planning},
    fabric::{HostRecord, Reach},
    kinds::{
        Ends, GroupKind, Joining, Kind, News, Views, collective::record::Collective,
        multicast::record::Multicast,
    },
    lifecycle::{After, Cause, Event, Failure, Phase},
    planning::{Layout, NoPlan},
    record::{Ending, Plan, Record},
    requests::Seen,
    table::Entry,
    timers::{Due, Leased, Owner},
};
