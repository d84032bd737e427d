//! Shared by commands: reports, failures and exit codes, units, configuration files, connections, readiness, signals.

pub mod api;
pub mod connect;
pub mod drops;
pub mod exit;
pub mod output;
pub mod service;
pub mod settings;
pub mod tree;
pub mod units;
pub mod watch;
