//! Compares Castnet with other switches in one run: the same frames, the same virtual devices, the same core
//! (docs/peers.md). One table is over DPDK's virtual devices (feature `dpdk`): testpmd, DPDK's example ipv4_multicast,
//! OVS-DPDK and Castnet. The other is over veth pairs of the kernel: the Linux bridge and Castnet.

pub mod count;
#[cfg(feature = "dpdk")]
pub mod dpdk;
pub mod machine;
pub mod measure;
pub mod options;
pub mod plot;
pub mod process;
pub mod report;
mod run;
pub mod veth;

pub use run::main;
