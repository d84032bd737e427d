//! The machine's own RDMA device.

use anyhow::Result;
use castnet_rnic::Rnic;
use castnet_rnic::verbs::{VerbsConfig, VerbsRnic};

/// Opens the RDMA device of this machine.
///
/// # Errors
/// There is no libibverbs or no device; the message says what to install or load.
pub fn open() -> Result<Box<dyn Rnic>> {
    Ok(Box::new(VerbsRnic::open(VerbsConfig::default())?))
}
