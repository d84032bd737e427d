//! Shared by commands: reports, failures and exit codes, units, configuration files, connections, readiness, signals.
//!
//! ```
//! use castnet_console::units::{Ratio, Size};
//!
//! let size: Size = "64MiB".parse()?;
//! let loss: Ratio = "1%".parse()?;
//! assert_eq!((size.0, loss.0), (64 << 20, 0.01));
//! # Ok::<(), String>(())
//! ```

pub mod api;
pub mod connect;
pub mod drops;
pub mod exit;
pub mod files;
pub mod flags;
pub mod logging;
pub mod output;
pub mod plot;
pub mod program;
pub mod rate;
pub mod service;
pub mod settings;
mod stderr;
pub mod tree;
pub mod units;
pub mod watch;
