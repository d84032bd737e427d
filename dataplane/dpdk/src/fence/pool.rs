//! Pools of buffers. They live as long as the process, since any buffer may outlive whoever made the pool; one to which
//! all buffers have come back is used again.

use std::ffi::CString;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use castnet_dpdk_sys as sys;
use castnet_port::Batch;

use super::eal::{self, Eal};
use super::mbuf::Mbuf;
use crate::error::DpdkError;

/// Buffers that a thread keeps for itself, by DPDK's cache.
pub(crate) const CACHE: usize = 256;
/// Bytes of a buffer's header.
const HEADER: usize = 128;

#[derive(Debug)]
struct Pool {
    raw: NonNull<sys::rte_mempool>,
    count: usize,
    /// Bytes for a frame.
    room: usize,
    leased: bool,
}

// SAFETY: DPDK's pools may be used by any thread at any time; the rest of the structure is guarded by a lock.
unsafe impl Send for Pool {}

static POOLS: Mutex<Vec<Pool>> = Mutex::new(Vec::new());

/// A pool, for as long as somebody takes new buffers from it.
#[derive(Debug)]
pub(crate) struct Lease {
    raw: NonNull<sys::rte_mempool>,
    count: usize,
    room: usize,
}

// SAFETY: see `Pool`; nothing here changes.
unsafe impl Send for Lease {}
// SAFETY: as above.
unsafe impl Sync for Lease {}

impl Lease {
    /// A pool of at least `count` buffers, each with `room` bytes for a frame and DPDK's headroom before them.
    ///
    /// # Errors
    /// [`DpdkError::Buffers`].
    pub(crate) fn new(_running: Eal, count: usize, room: usize) -> Result<Self, DpdkError> {
        let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
        let free = pools.iter_mut().find(|pool| {
            // SAFETY: the pool lives for ever.
            let home = unsafe { sys::rte_mempool_avail_count(pool.raw.as_ptr()) } as usize;
            !pool.leased
                && home == pool.count
                && pool.room == room
                && (count..=count * 2).contains(&pool.count)
        });
        if let Some(pool) = free {
            pool.leased = true;
            return Ok(Self {
                raw: pool.raw,
                count: pool.count,
                room,
            });
        }
        let count = count.max(2 * CACHE);
        let fail = |code| DpdkError::Buffers {
            count,
            room,
            reason: eal::reason(code),
        };
        eal::forget_log();
        // SAFETY: reads a constant.
        let data_room = room + usize::from(unsafe { sys::cn_headroom() });
        let (Ok(buffers), Ok(data_room)) = (u32::try_from(count), u16::try_from(data_room)) else {
            return Err(fail(-nix::libc::E2BIG));
        };
        // Digits and letters alone, and short enough for DPDK's 26 characters.
        let name = CString::new(format!("castnet_{}", pools.len())).unwrap_or_default();
        // SAFETY: the name ends in a zero and is copied; any numbers are allowed and checked. -1 is any NUMA node.
        let raw =
            unsafe { sys::rte_pktmbuf_pool_create(name.as_ptr(), buffers, CACHE as u32, 0, data_room, -1) };
        let raw = NonNull::new(raw).ok_or_else(|| fail(-1))?;
        pools.push(Pool {
            raw,
            count,
            room,
            leased: true,
        });
        Ok(Self { raw, count, room })
    }

    /// Bytes that `count` buffers of `room` take, roughly.
    pub(crate) fn bytes(count: usize, room: usize) -> usize {
        // Header and headroom, and what the pool puts around each buffer.
        count.max(2 * CACHE) * (room + HEADER + 256)
    }

    pub(crate) fn raw(&self) -> *mut sys::rte_mempool {
        self.raw.as_ptr()
    }

    /// All its buffers.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Bytes for a frame in each.
    pub(crate) fn room(&self) -> usize {
        self.room
    }

    /// Buffers that nobody has, other threads' caches included.
    pub(crate) fn available(&self) -> usize {
        // SAFETY: the pool lives for ever.
        unsafe { sys::rte_mempool_avail_count(self.raw.as_ptr()) as usize }
    }

    /// Fills `stash` up with fresh, empty buffers: all or none.
    #[inline]
    pub(crate) fn refill(&self, stash: &mut Batch<Mbuf>) -> bool {
        let (length, room) = (stash.len(), stash.remaining_capacity());
        // SAFETY: an `Mbuf` is a pointer to one, and there are `room` places after the first `length`. On success DPDK has
        // written each of them with a fresh buffer of one segment that nobody else has; on failure none.
        unsafe {
            let places = stash.as_mut_ptr().add(length).cast();
            let failed = sys::cn_alloc_bulk(self.raw.as_ptr(), places, room as u32);
            if failed == 0 {
                stash.set_len(length + room);
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
