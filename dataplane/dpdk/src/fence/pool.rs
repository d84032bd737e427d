//! Pools are never freed, because a buffer may outlive the owner of its pool. They are reused when all buffers are
//! free.

use std::ffi::CString;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use castnet_dpdk_sys as sys;
use castnet_port::Batch;

use super::eal::{self, Eal};
use super::mbuf::Mbuf;
use crate::error::DpdkError;

/// Per thread and pool.
pub(crate) const CACHE: usize = 256;
/// Bytes per buffer.
const HEADER: usize = 128;

#[derive(Debug)]
struct Pool {
    raw: NonNull<sys::rte_mempool>,
    count: usize,
    capacity: usize,
    leased: bool,
}

// SAFETY: any thread may use DPDK's pools at any time. The other fields are guarded by a lock.
unsafe impl Send for Pool {}
static POOLS: Mutex<Vec<Pool>> = Mutex::new(Vec::new());

/// New buffers are allocated only through a lease.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) raw: NonNull<sys::rte_mempool>,
    pub(crate) count: usize,
    /// Bytes for a frame in each buffer.
    pub(crate) capacity: usize,
}

// SAFETY: see `Pool`; a lease is immutable.
unsafe impl Send for Lease {}
// SAFETY: see `Send`.
unsafe impl Sync for Lease {}

impl Lease {
    /// Leases at least `count` buffers, each with `capacity` bytes for a frame, and DPDK's headroom before them.
    pub(crate) fn new(_running: Eal, count: usize, capacity: usize) -> Result<Self, DpdkError> {
        let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
        let free = pools.iter_mut().find(|pool| {
            // SAFETY: the pool exists forever.
            let available = unsafe { sys::rte_mempool_avail_count(pool.raw.as_ptr()) } as usize;
            !pool.leased
                && available == pool.count
                && pool.capacity == capacity
                && (count..=count * 2).contains(&pool.count)
        });
        if let Some(pool) = free {
            pool.leased = true;
            return Ok(Self {
                raw: pool.raw,
                count: pool.count,
                capacity,
            });
        }
        let count = count.max(2 * CACHE);
        let fail = |code| DpdkError::Buffers {
            count,
            capacity,
            reason: eal::reason(code),
        };
        eal::forget_log();
        // SAFETY: reads a constant.
        let data_room = capacity + usize::from(unsafe { sys::cn_headroom() });
        let (Ok(buffers), Ok(data_room)) = (u32::try_from(count), u16::try_from(data_room)) else {
            return Err(fail(-nix::libc::E2BIG));
        };
        // The name has only digits and letters and fits DPDK's limit of 26 characters.
        let name = CString::new(format!("castnet_{}", pools.len())).unwrap_or_default();
        // SAFETY: the name is zero-terminated and copied. All numbers are valid or checked. -1 means any NUMA node.
        let raw =
            unsafe { sys::rte_pktmbuf_pool_create(name.as_ptr(), buffers, CACHE as u32, 0, data_room, -1) };
        let raw = NonNull::new(raw).ok_or_else(|| fail(-1))?;
        pools.push(Pool {
            raw,
            count,
            capacity,
            leased: true,
        });
        Ok(Self { raw, count, capacity })
    }

    /// Approximate.
    pub(crate) fn bytes(count: usize, capacity: usize) -> usize {
        // Header, headroom, and the overhead of the pool per buffer.
        count.max(2 * CACHE) * (capacity + HEADER + 256)
    }

    /// Including those in thread caches.
    pub(crate) fn available(&self) -> usize {
        // SAFETY: the pool exists forever.
        unsafe { sys::rte_mempool_avail_count(self.raw.as_ptr()) as usize }
    }

    /// Fills `stash` with new, empty buffers. Takes all or none.
    #[inline]
    pub(crate) fn refill(&self, stash: &mut Batch<Mbuf>) -> bool {
        let (length, capacity) = (stash.len(), stash.remaining_capacity());
        // SAFETY: an `Mbuf` is a pointer, and the array has space for this many after the first `length`. On success
        // DPDK has written each of them with a new buffer of one segment and no other owner; on failure none.
        unsafe {
            let free_entries = stash.as_mut_ptr().add(length).cast();
            let failed = sys::cn_alloc_bulk(self.raw.as_ptr(), free_entries, capacity as u32);
            if failed == 0 {
                stash.set_len(length + capacity);
            }
            failed == 0
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = pools.iter_mut().find(|pool| pool.raw == self.raw) {
            pool.leased = false;
        }
    }
}
