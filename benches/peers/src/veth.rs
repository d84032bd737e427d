//! The second table: flooding over veth pairs of the kernel, by its own bridge and by Castnet.

use anyhow::{Result, bail};

use crate::machine::Cores;
use crate::options::Options;
use crate::run::Field;

/// The word that makes this program Castnet's part.
pub const PART: &str = "veth-part";

/// Runs Castnet's part until nobody asks any more.
///
/// # Errors
/// It does not start.
pub fn part(_: impl Iterator<Item = String>) -> Result<()> {
    bail!("not yet")
}

/// Adds both switches.
pub fn join(_: &mut Field, _: &Options, _: Cores) {}
