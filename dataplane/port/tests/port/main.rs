//! All tests of this crate form one program, so that shared code is compiled once.

mod af_packet;
mod bridge;
mod faulty;
mod interfaces;
mod marking;
mod memif;
mod memory;
mod obeying;
mod pcap;
mod pool;
mod ring;
mod superframes;
mod tap;
mod testpmd;
