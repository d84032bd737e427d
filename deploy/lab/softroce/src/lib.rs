//! A lab of virtual machines whose RNIC is the Linux kernel's own SoftRoCE (`rdma_rxe`), unmodified.
//!
//! [`Lab::start`] boots N machines under QEMU's software emulation, with Debian's kernel, verbs tools, perftest and
//! rping. Each has two interfaces, tap devices in the lab's own network namespace:
//!
//! - `eth0`, on tap `hN`, 10.0.0.N/24, with the RDMA device `rxe0`. The switch under test takes the taps as its ports
//!   ([`LabConfig::bridge`]: a plain Linux bridge instead).
//! - `eth1`, on the bridge `mgmt`, 192.168.100.N/24: programs reach [`MANAGEMENT_IP`] in the namespace past that switch.
//!
//! ```no_run
//! use std::time::Duration;
//! use castnet_softroce::{Lab, LabConfig};
//!
//! # fn main() -> Result<(), castnet_softroce::LabError> {
//! castnet_softroce::available()?;
//! let lab = Lab::start(&LabConfig { bridge: true, ..LabConfig::default() })?;
//! let mut server = lab.host(1).spawn("ibv_rc_pingpong -d rxe0 -g 1 -e")?;
//! server.wait_for_output("local address", Duration::from_secs(20))?;
//! let client = lab.host(2).run("ibv_rc_pingpong -d rxe0 -g 1 -e 10.0.0.1", Duration::from_secs(60))?;
//! assert_eq!(client.code, 0, "{client:?}");
//! server.wait(Duration::from_secs(20))?;
//! lab.stop()
//! # }
//! ```
//!
//! A lab is removed when its [`Lab`] is dropped, and also when its process is killed.

mod cpio;
mod error;
mod host;
mod image;
mod job;
mod kernel;
mod lab;
mod machine;
mod modules;
mod network;
mod packages;
mod process;
mod rootfs;
mod state;
mod watch;

pub use error::LabError;
pub use host::Host;
pub use image::{Image, default_cache, image};
pub use job::{Job, Output};
pub use lab::{HOSTS_MAX, Lab, LabConfig};
pub use network::MANAGEMENT_IP;
pub use packages::{available, install};
pub use state::{LabState, hosts_of, labs, take_down};
