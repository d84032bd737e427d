//! What Castnet calls in DPDK: a shim over what is inline in its headers, and the few functions that are plain.
//!
//! Hand-written, so no libclang is needed: the shim (`shim/shim.c`) asserts every offset that `rte_mbuf` relies on when it
//! is compiled, and everything that differs from release to release stays on its side. Errors are negative `errno`
//! values, or -1 or a null pointer with the reason in `cn_errno`; `castnet-dpdk` makes types of them.
//!
//! Built only with the feature `dpdk`; without it the crate is empty, and nothing of DPDK is needed.
#![cfg(feature = "dpdk")]
// The fence: declarations of foreign functions, which are unsafe by nature, and nothing else.
#![allow(unsafe_code)]
#![allow(non_camel_case_types)]

use core::ffi::{c_char, c_int, c_uint};
use core::sync::atomic::{AtomicU16, AtomicU32};

/// The fields of a buffer's header that are used on this side; all others are reached through the shim.
#[repr(C, align(64))]
pub struct rte_mbuf {
    /// Where its memory begins.
    pub buf_addr: *mut u8,
    _iova_or_next: u64,
    /// Bytes from there to the frame's first.
    pub data_off: u16,
    /// Who uses its memory: itself, and one for each mbuf that is attached to it.
    pub refcnt: AtomicU16,
    /// Segments of the frame.
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
    /// Whoever has the frame may keep a word here; a received one has the device's there, if any.
    pub usr: AtomicU32,
    _hash: u32,
    _vlan_outer: u16,
    /// Bytes of its memory.
    pub buf_len: u16,
    _rest: [u64; 9],
}

const _: () = assert!(size_of::<rte_mbuf>() == 128);

/// A pool of buffers; only ever behind a pointer.
#[repr(C)]
pub struct rte_mempool {
    _opaque: [u8; 0],
}

/// A rule of a device; only ever behind a pointer.
#[repr(C)]
pub struct rte_flow {
    _opaque: [u8; 0],
}

/// In [`rte_mbuf::ol_flags`]: what the device says of the IPv4 header's checksum, and that it is right.
pub const RX_IP_CKSUM_MASK: u64 = 1 << 4 | RX_IP_CKSUM_GOOD;
/// See [`RX_IP_CKSUM_MASK`].
pub const RX_IP_CKSUM_GOOD: u64 = 1 << 7;
/// In [`rte_mbuf::ol_flags`]: its bytes are in another mbuf's buffer, or in one of no mbuf.
pub const NOT_ITS_OWN: u64 = 3 << 61;

/// What a device is and can do.
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

/// How a device is to be set up. Its send queues, descriptors and last three fields come back as they have become.
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

/// Takes what DPDK logs, piece by piece, from any thread.
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

    // These are plain functions of DPDK's own, the same in all releases.
    pub fn rte_eal_init(argc: c_int, argv: *mut *mut c_char) -> c_int;
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
    pub fn rte_pktmbuf_free_bulk(mbufs: *mut *mut rte_mbuf, count: c_uint);
    pub fn rte_dev_probe(devargs: *const c_char) -> c_int;
    pub fn rte_eth_dev_get_port_by_name(name: *const c_char, port: *mut u16) -> c_int;
}
