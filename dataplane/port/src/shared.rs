//! Memory that another process reads and writes at any time.
//!
//! The peer may be hostile, or have gone wrong. So this file holds to these rules:
//!
//! - No reference to bytes of a region is ever made, because `&[u8]` and `&mut [u8]` promise that nobody else writes
//!   them. Single fields are accessed as atomics, one access per use. Other bytes are copied between a region
//!   and private memory by `copy_in` and `copy_out`.
//! - Each access is checked against the size of the mapping, which the peer cannot change: the file is sealed against
//!   shrinking, and is of ordinary memory. An access behind the end of a file ends the process (SIGBUS), and so can an
//!   access to hugepages that the peer has removed.
//! - A value that was read is a copy, so that it cannot change between its check and its use.
#![allow(unsafe_code)]

use std::fs::{File, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

use libc::c_void;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};

use crate::retired::Retired;

/// Why a memory file cannot be mapped.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages show what the variants and fields are")]
pub enum BadRegion {
    #[error("it says {said} bytes, and its file has {actual}")]
    Short { said: u64, actual: u64 },
    #[error("its file can shrink: it has no F_SEAL_SHRINK (seals=unchecked accepts it)")]
    Unsealed,
    #[error("its file is not of ordinary memory, such as hugepages (seals=unchecked accepts it)")]
    NotMemory,
    #[error("its file cannot be mapped: {0}")]
    Io(#[from] io::Error),
}

/// A mapped region. It is unmapped when it and its rings are dropped.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    size: usize,
    /// `None`: the thread that drops it unmaps it.
    retired: Option<Retired>,
}

impl Region {
    /// A new memory file of `size` zero bytes, for this user alone, sealed against changes of its size, and its mapping.
    /// The name is only for people who look at the process.
    pub fn create(name: &str, size: usize) -> io::Result<(Self, OwnedFd)> {
        let fd = memfd_create(name, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
        let file = File::from(fd);
        file.set_permissions(Permissions::from_mode(0o600))?;
        file.set_len(size as u64)?;
        let fd = OwnedFd::from(file);
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&fd, FcntlArg::F_ADD_SEALS(seals))?;
        Ok((Self::map_file(&fd, size)?, fd))
    }

    /// Maps `size` bytes of a peer's file. `checked`: the file must be of ordinary memory and sealed.
    pub fn map(file: OwnedFd, size: u64, checked: bool) -> Result<Self, BadRegion> {
        if checked {
            // Also an error for files that cannot have seals.
            let seals = fcntl(&file, FcntlArg::F_GET_SEALS).map_err(|_| BadRegion::Unsealed)?;
            if !SealFlag::from_bits_retain(seals).contains(SealFlag::F_SEAL_SHRINK) {
                return Err(BadRegion::Unsealed);
            }
            let filesystem = fstatfs(&file).map_err(io::Error::from)?.filesystem_type();
            if filesystem != TMPFS_MAGIC {
                return Err(BadRegion::NotMemory);
            }
        }
        let file = File::from(file);
        // The file can no longer shrink, so this is the least that it will have.
        let actual = file.metadata()?.len();
        let said = size;
        let size = usize::try_from(size).ok().filter(|_| size <= actual);
        let size = size.ok_or(BadRegion::Short { said, actual })?;
        Ok(Self::map_file(&file.into(), size)?)
    }

    fn map_file(file: &OwnedFd, size: usize) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses; existing memory is not touched. The descriptor
        // is open, and the result is checked. A size of zero is refused by the kernel.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size,
                protection,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        Ok(Self {
            base,
            size,
            retired: None,
        })
    }

    /// Another thread unmaps the region.
    pub(crate) fn unmapped_by(mut self, retired: &Retired) -> Self {
        self.retired = Some(retired.clone());
        self
    }

    /// Bytes of the mapping.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The start of `length` bytes at `offset`, if they are inside the mapping.
    #[inline]
    pub(crate) fn at(&self, offset: usize, length: usize) -> Option<NonNull<u8>> {
        let end = offset.checked_add(length)?;
        // SAFETY: the offset is inside the mapping, which is one object of less than isize::MAX bytes.
        (end <= self.size).then(|| unsafe { self.base.add(offset) })
    }

    /// True if the region has these bytes.
    #[inline]
    pub fn contains(&self, offset: usize, length: usize) -> bool {
        self.at(offset, length).is_some()
    }

    /// Copies bytes of the region. False, with nothing copied, if they are not all inside it.
    #[inline]
    pub fn read(&self, offset: usize, to: &mut [u8]) -> bool {
        let Some(from) = self.at(offset, to.len()) else {
            return false;
        };
        // SAFETY: `from` has as many bytes, inside the mapping, which exists as long as `self`. Private memory and the
        // mapping do not overlap.
        unsafe { copy_out(from, to) };
        true
    }

    /// Copies bytes into the region. False, with nothing copied, if they do not all fit inside it.
    #[inline]
    pub fn write(&self, offset: usize, from: &[u8]) -> bool {
        let Some(to) = self.at(offset, from.len()) else {
            return false;
        };
        // SAFETY: as in `read`.
        unsafe { copy_in(from, to) };
        true
    }
}

// SAFETY: it owns its mapping, which any thread may use and unmap. All accesses are atomics or copies by instructions, so
// that other processes, and other mappings of this one, may access the same bytes meanwhile.
unsafe impl Send for Region {}

impl Region {
    /// Four bytes as an atomic. `None` if they are not inside the region, or not aligned.
    #[inline]
    pub fn word(&self, offset: usize) -> Option<&AtomicU32> {
        let at = self.at(offset, 4).filter(|_| offset.is_multiple_of(4))?;
        // SAFETY: inside the mapping, which `self` keeps, and aligned, as the mapping is to a page. All other accesses are
        // atomics of the same size, or copies by instructions.
        Some(unsafe { AtomicU32::from_ptr(at.cast().as_ptr()) })
    }

    /// Eight bytes as an atomic. `None` if they are not inside the region, or not aligned.
    #[inline]
    pub fn long(&self, offset: usize) -> Option<&AtomicU64> {
        let at = self.at(offset, 8).filter(|_| offset.is_multiple_of(8))?;
        // SAFETY: as in `word`.
        Some(unsafe { AtomicU64::from_ptr(at.cast().as_ptr()) })
    }
}

impl Region {
    /// Pages that the file gets from now on are of this NUMA node, as long as it has free ones. Holds for all that map the file.
    pub fn prefer_node(&self, node: u32) -> io::Result<()> {
        const PREFERRED: usize = 1;
        const BITS: usize = 1024;
        let mut mask = [0_u64; BITS / 64];
        let word = mask
            .get_mut(node as usize / 64)
            .ok_or(io::ErrorKind::InvalidInput)?;
        *word |= 1 << (node % 64);
        // SAFETY: the kernel reads the mask, of as many bits, and changes only where pages of the mapping will come from.
        let result = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.base.as_ptr(),
                self.size,
                PREFERRED,
                mask.as_ptr(),
                // The kernel reads one bit less.
                BITS + 1,
                0,
            )
        };
        if result == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }
}

/// Sleeps until another process or thread calls [`wake_all`] for the same word, but for at most `timeout`, and not if the
/// word has another value. May return early.
pub fn sleep_on(word: &AtomicU32, value: u32, timeout: Duration) {
    let time = libc::timespec {
        tv_sec: timeout.as_secs().min(1 << 30) as libc::time_t,
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // SAFETY: the kernel reads an aligned word and a time, both of which live until the call returns.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            value,
            &raw const time,
        );
    }
}

/// Wakes all that sleep on the word.
pub fn wake_all(word: &AtomicU32) {
    // SAFETY: the kernel looks up who sleeps on the address, and accesses no memory.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

impl Drop for Region {
    fn drop(&mut self) {
        let mapping = Mapping {
            base: self.base,
            size: self.size,
        };
        if let Some(retired) = &self.retired {
            retired.put(mapping);
        }
    }
}

/// The mapping of a region that was dropped.
struct Mapping {
    base: NonNull<u8>,
    size: usize,
}

// SAFETY: as for `Region`.
unsafe impl Send for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this size. Rings hold a reference to their region, so none is left.
        unsafe { libc::munmap(self.base.as_ptr().cast::<c_void>(), self.size) };
    }
}

/// Copies shared bytes into private memory.
///
/// The copy is by instructions that the compiler does not see into: to the language each loads bytes as relaxed
/// atomics, so a peer that writes at the same time is no data race, only a frame of mixed bytes. A copy by
/// `ptr::copy` would be one. On other processors each byte is loaded as an atomic.
///
/// # Safety
/// `from` must be valid for reads of `to.len()` bytes, and the two must not overlap.
#[inline]
unsafe fn copy_out(from: NonNull<u8>, to: &mut [u8]) {
    // SAFETY: the caller's promise; `to` is exclusive.
    unsafe { copy_shared(from.as_ptr(), to.as_mut_ptr(), to.len()) };
}

/// Copies private bytes into shared memory, as [`copy_out`].
///
/// # Safety
/// `to` must be valid for writes of `from.len()` bytes, and the two must not overlap.
#[inline]
unsafe fn copy_in(from: &[u8], to: NonNull<u8>) {
    // SAFETY: the caller's promise; `from` is not written while it is borrowed.
    unsafe { copy_shared(from.as_ptr(), to.as_ptr(), from.len()) };
}

/// From this length on, one instruction for all bytes is faster than one for each 16.
#[cfg(target_arch = "x86_64")]
const STRING: usize = 512;

/// # Safety
/// `from` must be valid for reads and `to` for writes of `length` bytes, and the two must not overlap.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn copy_shared(mut from: *const u8, mut to: *mut u8, mut length: usize) {
    use std::arch::asm;
    if length >= STRING {
        // SAFETY: the caller's promise. The direction flag is clear at the start of each `asm!`, and the instruction
        // changes no flag.
        unsafe {
            asm!(
                "rep movsb",
                inout("rcx") length => _,
                inout("rsi") from => _,
                inout("rdi") to => _,
                options(nostack, preserves_flags),
            );
        }
        return;
    }
    while length >= 16 {
        // SAFETY: at least 16 bytes are left at both, which need no alignment.
        unsafe {
            asm!(
                "movdqu {bytes}, [{from}]",
                "movdqu [{to}], {bytes}",
                bytes = out(xmm_reg) _,
                from = in(reg) from,
                to = in(reg) to,
                options(nostack, preserves_flags),
            );
            (from, to) = (from.add(16), to.add(16));
        }
        length -= 16;
    }
    for size in [8_usize, 4, 2, 1] {
        if length & size == 0 {
            continue;
        }
        // SAFETY: at least `size` bytes are left at both, which need no alignment.
        unsafe {
            match size {
                8 => {
                    asm!("mov {b}, [{f}]", "mov [{t}], {b}", b = out(reg) _, f = in(reg) from, t = in(reg) to,
                        options(nostack, preserves_flags));
                }
                4 => {
                    asm!("mov {b:e}, [{f}]", "mov [{t}], {b:e}", b = out(reg) _, f = in(reg) from, t = in(reg) to,
                        options(nostack, preserves_flags));
                }
                2 => {
                    asm!("mov {b:x}, [{f}]", "mov [{t}], {b:x}", b = out(reg) _, f = in(reg) from, t = in(reg) to,
                        options(nostack, preserves_flags));
                }
                _ => {
                    asm!("mov {b}, [{f}]", "mov [{t}], {b}", b = out(reg_byte) _, f = in(reg) from, t = in(reg) to,
                        options(nostack, preserves_flags));
                }
            }
            (from, to) = (from.add(size), to.add(size));
        }
    }
}

/// # Safety
/// As above.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_shared(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: the caller's promise.
    unsafe { copy_bytewise(from, to, length) };
}

/// The slow twin of the copy by instructions.
///
/// # Safety
/// As above.
#[cfg(any(test, not(target_arch = "x86_64")))]
unsafe fn copy_bytewise(from: *const u8, to: *mut u8, length: usize) {
    use std::sync::atomic::{AtomicU8, Ordering};
    for i in 0..length {
        // SAFETY: both bytes are valid by the caller's promise, and a byte needs no alignment.
        unsafe {
            let byte = AtomicU8::from_ptr(from.add(i).cast_mut()).load(Ordering::Relaxed);
            AtomicU8::from_ptr(to.add(i)).store(byte, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use proptest::prelude::*;

    #[test]
    fn accesses_end_at_the_end_of_the_region() {
        let (region, _) = Region::create("test", 8192).unwrap();
        let mut bytes = [7; 16];
        assert!(region.write(8176, &[9; 16]) && region.read(8176, &mut bytes) && bytes == [9; 16]);
        for offset in [8177, 8192, 8193, usize::MAX] {
            assert!(
                !region.write(offset, &[1; 16]) && !region.read(offset, &mut bytes),
                "{offset}"
            );
        }
        assert!(bytes == [9; 16] && region.contains(0, 8192) && !region.contains(1, 8192));
    }

    #[test]
    fn files_that_can_shrink_or_are_short_are_refused() {
        let open = |flags| {
            let file = File::from(memfd_create("test", flags).unwrap());
            file.set_len(4096).unwrap();
            file
        };
        let seal = |file: &File| fcntl(file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).unwrap();
        let sealed = open(MFdFlags::MFD_ALLOW_SEALING);
        seal(&sealed);
        let map = |file: &File, size, checked| Region::map(file.try_clone().unwrap().into(), size, checked);
        assert!(map(&sealed, 4096, true).is_ok());
        assert!(matches!(
            map(&sealed, 4097, true),
            Err(BadRegion::Short {
                said: 4097,
                actual: 4096
            })
        ));
        assert!(matches!(
            map(&sealed, u64::MAX, true),
            Err(BadRegion::Short { .. })
        ));
        assert!(matches!(map(&sealed, 0, true), Err(BadRegion::Io(_))));

        let unsealed = open(MFdFlags::MFD_ALLOW_SEALING);
        assert!(matches!(map(&unsealed, 4096, true), Err(BadRegion::Unsealed)));
        assert!(map(&unsealed, 4096, false).is_ok());
        let file = tempfile::tempfile().unwrap();
        assert!(matches!(map(&file, 0, true), Err(BadRegion::Unsealed)));
        let (_, own) = Region::create("test", 4096).unwrap();
        assert!(Region::map(own, 4096, true).is_ok());

        let Ok(huge) = memfd_create("test", MFdFlags::MFD_ALLOW_SEALING | MFdFlags::MFD_HUGETLB) else {
            return;
        };
        let huge = File::from(huge);
        seal(&huge);
        assert!(matches!(map(&huge, 0, true), Err(BadRegion::NotMemory)));
    }

    #[test]
    fn fields_are_inside_and_aligned_and_wake_who_sleeps_on_them() {
        let (region, _) = Region::create("test", 4096).unwrap();
        assert!(region.word(4092).is_some() && region.long(4088).is_some());
        for offset in [1, 2, 4093, 4096, usize::MAX - 3] {
            assert!(region.word(offset).is_none(), "{offset}");
        }
        for offset in [4, 4092, 4096, usize::MAX - 7] {
            assert!(region.long(offset).is_none(), "{offset}");
        }
        let word = region.word(8).unwrap();
        // Returns at once: the value differs.
        sleep_on(word, 1, Duration::from_secs(3600));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while word.load(Ordering::Relaxed) == 0 {
                    sleep_on(word, 0, Duration::from_secs(3600));
                }
            });
            word.store(1, Ordering::Relaxed);
            wake_all(word);
        });
    }

    #[test]
    fn a_region_is_unmapped_by_another_thread() {
        let is_mapped = || {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            maps.contains("memfd:castnet-unmapped-late")
        };
        let (retired, busy) = (Retired::new(), crate::retired::tests::keep_busy());
        let (region, file) = Region::create("castnet-unmapped-late", 4096).unwrap();
        drop((region.unmapped_by(&retired), file));
        assert!(is_mapped() && !retired.is_empty());
        drop(busy);
        while !retired.is_empty() {
            std::thread::yield_now();
        }
        assert!(!is_mapped());
    }

    #[test]
    fn pages_can_be_of_a_node() {
        let (region, _) = Region::create("test", 4096).unwrap();
        // Containers may forbid it.
        let is_forbidden =
            |error: io::Error| matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS));
        assert!(region.prefer_node(0).map_or_else(is_forbidden, |()| true));
        for node in [1023, 1024, u32::MAX] {
            assert!(region.prefer_node(node).is_err(), "{node}");
        }
    }

    proptest! {
        #[test]
        fn both_copies_are_equal(bytes in prop::collection::vec(any::<u8>(), 0..3000), from in 0usize..40, to in 0usize..40) {
            let from = from.min(bytes.len());
            let length = bytes.len() - from;
            let (mut fast, mut slow) = (vec![0; to + length + 9], vec![0; to + length + 9]);
            // SAFETY: both vectors have `to + length` bytes and more, and are distinct.
            unsafe {
                copy_shared(bytes[from..].as_ptr(), fast[to..].as_mut_ptr(), length);
                copy_bytewise(bytes[from..].as_ptr(), slow[to..].as_mut_ptr(), length);
            }
            prop_assert_eq!(&fast, &slow);
            prop_assert_eq!(&fast[to..to + length], &bytes[from..]);
        }
    }
}
