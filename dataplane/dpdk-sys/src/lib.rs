//! The part of DPDK that Castnet uses: a C shim over its inline functions, and some plain functions.
//!
//! The shim (`shim/shim.c`) asserts every offset of [`rte_mbuf`] at compile time and hides what differs between DPDK
//! releases. An error is a negative `errno` value, or -1 or a null pointer with the reason in `cn_errno`.
//! `castnet-dpdk` converts errors to types. Without the feature `dpdk` the crate is empty and needs nothing of DPDK.
#![cfg(feature = "dpdk")]
// Only declarations of foreign functions, which are unsafe by nature.
#![allow(unsafe_code)]
#![allow(non_camel_case_types)]

use core::ffi::{c_char, c_int, c_uint};
use core::sync::atomic::{AtomicU16, AtomicU32};

/// With the fields that Rust code uses. The shim accesses all others.
#[repr(C, align(64))]
pub struct rte_mbuf {
    /// Start of the buffer's memory.
    pub buf_addr: *mut u8,
    _iova_or_next: u64,
    /// Offset of the frame's first byte in that memory.
    pub data_off: u16,
    /// Reference count: the buffer itself, and one per mbuf attached to it.
    pub refcnt: AtomicU16,
    /// The number of segments of the frame.
    pub nb_segs: u16,
    _port: u16,
    /// `RTE_MBUF_F_*`.
    pub ol_flags: u64,
    _packet_type: u32,
    /// Bytes of the frame, all segments together.
    pub pkt_len: u32,
    /// Bytes of this segment.
    pub data_len: u16,
    _vlan: u16,
    /// A word for the owner of the frame. In a received frame the device may have written it.
    pub usr: AtomicU32,
    _hash: u32,
    _vlan_outer: u16,
    /// Bytes of the buffer's memory.
    pub buf_len: u16,
    _rest: [u64; 9],
}

const _: () = assert!(size_of::<rte_mbuf>() == 128);

/// A pool of buffers. Used only behind a pointer.
#[repr(C)]
pub struct rte_mempool {
    _opaque: [u8; 0],
}

/// A flow rule of a device. Used only behind a pointer.
#[repr(C)]
pub struct rte_flow {
    _opaque: [u8; 0],
}

/// Bits in [`rte_mbuf::ol_flags`]: the device's result of checking the IPv4 header checksum; and that it is correct.
pub const RX_IP_CKSUM_MASK: u64 = 1 << 4 | RX_IP_CKSUM_GOOD;
/// See [`RX_IP_CKSUM_MASK`].
pub const RX_IP_CKSUM_GOOD: u64 = 1 << 7;
/// Bits in [`rte_mbuf::ol_flags`]: the bytes are in another mbuf's buffer or in external memory.
pub const NOT_ITS_OWN: u64 = 3 << 61;

/// Properties of a device.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct cn_info {
    pub driver: [c_char; 32],
    pub mac: [u8; 6],
    pub rx_queues_max: u16,
    pub tx_queues_max: u16,
    pub mtu_min: u16,
    pub mtu_max: u16,
    pub socket: i32,
    pub multi_segment: u8,
    pub rss: u8,
}

/// The shim updates the number of send queues, the descriptors and the last three fields to the actual values.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct cn_setup {
    pub pool: *mut rte_mempool,
    pub rss_key: *mut u8,
    pub rx_queues: u16,
    pub tx_queues: u16,
    pub rx_descriptors: u16,
    pub tx_descriptors: u16,
    pub mtu: u16,
    pub rss_key_length: u8,
    pub promiscuous: u8,
    pub multi_segment: u8,
    pub rss: u8,
    pub rx_checksum: u8,
}

/// Receives DPDK's log in pieces, from any thread.
pub type LogSink = extern "C" fn(text: *const c_char, length: usize);

#[allow(missing_docs)]
unsafe extern "C" {
    pub fn cn_errno() -> c_int;
    pub fn cn_version() -> *const c_char;
    pub fn cn_log_to(sink: LogSink) -> c_int;
    pub fn cn_headroom() -> u16;
    pub fn cn_alloc_bulk(pool: *mut rte_mempool, mbufs: *mut *mut rte_mbuf, count: c_uint) -> c_int;
    pub fn cn_free(mbuf: *mut rte_mbuf);
    pub fn cn_next(mbuf: *const rte_mbuf) -> *mut rte_mbuf;
    pub fn cn_share(
        head: *mut rte_mbuf,
        body: *mut rte_mbuf,
        tail: *mut rte_mbuf,
        original: *mut rte_mbuf,
        private_head: u16,
        private_tail: u16,
    );
    pub fn cn_lend(head: *mut rte_mbuf, body: *mut rte_mbuf, original: *mut rte_mbuf, private_head: u16);
    pub fn cn_rx_burst(port: u16, queue: u16, mbufs: *mut *mut rte_mbuf, count: u16) -> u16;
    pub fn cn_tx_burst(port: u16, queue: u16, mbufs: *mut *mut rte_mbuf, count: u16) -> u16;
    pub fn cn_rx_waiting(port: u16, queue: u16) -> c_int;
    pub fn cn_info(port: u16, out: *mut cn_info) -> c_int;
    pub fn cn_setup(port: u16, setup: *mut cn_setup, step: *mut *const c_char) -> c_int;
    pub fn cn_flow_create(
        port: u16,
        dst: u32,
        queue: u16,
        narrow: c_int,
        why: *mut c_char,
        room: usize,
    ) -> *mut rte_flow;
    pub fn cn_flow_destroy(port: u16, flow: *mut rte_flow) -> c_int;
    pub fn cn_flow_text(dst: u32, queue: u16, narrow: c_int, out: *mut c_char, room: usize) -> c_int;
    pub fn cn_link(port: u16, mbps: *mut u32) -> c_int;
    pub fn cn_missed(port: u16) -> u64;
    pub fn cn_remove(port: u16) -> c_int;
    pub fn cn_softrss(tuple: *mut u32, words: u32, key: *const u8) -> u32;

    // Plain functions of DPDK, the same in all releases.
    pub fn rte_eal_init(argc: c_int, argv: *mut *mut c_char) -> c_int;
    pub fn rte_eal_get_runtime_dir() -> *const c_char;
    pub fn rte_strerror(errnum: c_int) -> *const c_char;
    pub fn rte_thread_register() -> c_int;
    pub fn rte_thread_unregister();
    pub fn rte_pktmbuf_pool_create(
        name: *const c_char,
        count: c_uint,
        cache_size: c_uint,
        private_size: u16,
        data_room: u16,
        socket: c_int,
    ) -> *mut rte_mempool;
    pub fn rte_mempool_avail_count(pool: *const rte_mempool) -> c_uint;
    pub fn rte_dev_probe(devargs: *const c_char) -> c_int;
    pub fn rte_eth_dev_get_port_by_name(name: *const c_char, port: *mut u16) -> c_int;
}
