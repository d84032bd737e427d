//! Ports: where frames enter and leave the switch. A port is a memory link, a pcap file, a network interface
//! (AF_PACKET), or memory shared with another process (memif). A seeded fault injector can wrap any of them. DPDK devices are in the crate `castnet-dpdk`.
//!
//! The main types are [`Port`], [`PortSpec`], [`Pool`] and [`Sleeper`]. A [`PortSpec`] describes a port and
//! can be sent to the thread that will use it. There [`PortSpec::open`] creates a [`BoxPort`] whose frames
//! live in that thread's [`Pool`]. A port never blocks. A thread that has nothing to do sleeps in a
//! [`Sleeper`] to which its ports are attached.
//!
//! ```
//! use castnet_port::{Batch, MemLink, MemLinkConfig, Pool, PoolConfig, Port, Sides, Sleeper};
//! use std::time::Duration;
//!
//! let (near, far) = MemLink::pair(&MemLinkConfig::default());
//! let pool = Pool::new(PoolConfig::default());
//! let (mut near, mut far) = (near.open(&pool, Sides::Both), far.open(&pool, Sides::Both));
//!
//! let mut batch = Batch::new();
//! batch.extend(pool.copy_from(&[0x55; 64]));
//! near.send(&mut batch);
//!
//! let mut sleeper = Sleeper::new()?;
//! far.attach(&mut sleeper)?;
//! sleeper.sleep(Duration::from_secs(1), || far.ready());
//! far.receive(&mut batch);
//! assert_eq!(batch.len(), 1);
//! # Ok::<(), std::io::Error>(())
//! ```
pub mod af_packet;
mod checksum;
pub mod dpdk;
pub mod faulty;
pub mod frames;
pub mod marking;
pub mod memif;
pub mod memory;
pub mod obeying;
pub mod pcap;
pub mod pfc;
pub mod pool;
mod port;
mod retired;
pub mod ring;
pub mod shared;
pub mod sleep;
pub mod spec;
pub mod steer;

pub use af_packet::{
    AfPacketPort, AfPacketSpec, Detached, InterfaceWatch, Offload, Reattach, has_interface, has_offload,
    set_offloads,
};
pub use castnet_pfc::PfcConfig;
pub use castnet_wire::{BATCH, Batch, FrameBuf};
pub use dpdk::DpdkSpec;
pub use faulty::{FaultControl, FaultCounts, Faults, Faulty};
pub use frames::{Bridge, Memory, MemoryPort};
pub use marking::Marking;
pub use memif::{MemifPort, MemifSpec};
pub use memory::{MemEnd, MemLink, MemLinkConfig, MemPort};
pub use obeying::Obeying;
pub use pcap::{PcapPort, PcapSpec};
pub use pool::{Pool, PoolBuf, PoolConfig, PoolStats};
pub use port::{
    BoxPort, Port, PortDevice, PortLink, PortStats, RingUse, Segmentation, Sides, Steering, fits, frame_max,
};
pub use ring::{FrameRing, HandOver, MoveRing, Popped};
pub use sleep::{Sleeper, Waker};
pub use spec::{Backend, BadPortSpec, OpenError, PortSpec, port_text};
pub use steer::{FlowTable, Steered};
