//! All of this crate's tests are one program, so that what they share is compiled once.

mod af_packet;
mod bridge;
mod faulty;
mod memory;
mod pcap;
mod pool;
mod ring;
