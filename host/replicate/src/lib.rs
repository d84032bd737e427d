//! Replicated block writes, as of a storage system with three replicas (Cepheus, V.B): a client writes blocks into the memory of
//! several servers by RDMA WRITE, over one multicast connection or over one connection per server.
//!
//! - A [`Workload`] is a sequence of writes: blocks in order or at random, with bytes drawn from a seed.
//! - A [`Writer`] posts them. A write is acknowledged when all servers have acknowledged it.
//! - [`serve`] is a server: memory, and possibly a file that it is saved to. It is controlled over a TCP connection or a Unix socket.
//! - A [`Client`] connects to the servers, writes, and compares what they hold with what it wrote, by the SHA-256 of each block.
#![forbid(unsafe_code)]

mod client;
mod control;
mod error;
mod parts;
mod server;
mod store;
mod verify;
mod workload;
mod writer;

pub use client::{Client, ClientWork, ServerInfo, ServerWork, Way};
pub use control::{Address, DEFAULT_PORT};
pub use error::ReplicateError;
pub use parts::Spread;
pub use server::{CLIENT_SILENCE, ServerConfig, ServerEvent, serve};
pub use verify::{Checked, Difference};
pub use workload::{Pattern, Workload};
pub use writer::{DEPTH_MAX, Pace, Target, Writer, Written};
