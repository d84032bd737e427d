//! The memory that the ranks of a host share.
//!
//! It is a memory file without a name: the leader makes it, the other ranks open it by the leader's process and descriptor
//! number, and it is gone with its last process. So no job can find a segment of an earlier one. The file is sealed, so that
//! nobody can change its size.
//!
//! Each rank writes its own line of counters, its own slots, and its share of the results. No rank uses a value of another
//! rank as an index or a length. A rank that does not follow the protocol can spoil results, and nothing else.
//!
//! Each rank holds a lock on one byte of the file, by a descriptor of its own. The kernel releases the lock when the process
//! ends, however it ends; so the other ranks notice that. This holds for threads of one process, too, and does not depend on
//! process numbers.

use std::fs::OpenOptions;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use castnet_port::shared::{Region, sleep_on, wake_all};
use nix::fcntl::{FallocateFlags, FcntlArg, fallocate, fcntl};

/// Pieces that are in the segment at once.
pub(crate) const DEPTH: u64 = 4;
/// Most ranks of a host.
pub(crate) const RANKS_MAX: usize = 256;

/// Offsets in the header.
const NONCE_AT: usize = 0;
const SHAPE_AT: usize = 8;
const FAILURE_AT: usize = 16;
/// The bit of a failure from which on it has the first step of the call that failed.
pub(crate) const FAILURE_STEP: u32 = 24;
const EVENT_AT: usize = 64;
const SLEEPERS_AT: usize = 128;
/// The lines of the ranks begin here.
const LINES_AT: usize = 192;
/// Bytes of a line: counters, then the calls.
const LINE: usize = 192;
const CALLS_AT: usize = 64;
/// Words of a call.
pub(crate) const CALL_WORDS: usize = 2;
const PAGE: usize = 4096;

/// What a rank has done. Steps are counted from the first call on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counter {
    /// Steps whose contribution it has written.
    Written,
    /// Steps of which it has reduced its share.
    Reduced,
    /// Steps whose result it has taken. After that it does not access their memory.
    Taken,
    /// Of the leader: steps whose result is in the segment.
    Published,
    /// Calls that it has made on the direct path.
    Direct,
}

impl Counter {
    pub(crate) const COUNT: usize = 5;
}

/// Number of ranks and sizes of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// At most [`RANKS_MAX`].
    pub(crate) ranks: usize,
    /// Bytes of a piece: a multiple of the page size.
    pub(crate) piece: usize,
}

impl Shape {
    fn data_at(self) -> usize {
        (LINES_AT + self.ranks * LINE).next_multiple_of(PAGE)
    }

    fn bytes(self) -> usize {
        self.data_at() + (self.ranks + 1) * DEPTH as usize * self.piece
    }

    /// Memory of a step: the contribution of a rank, or, for number `ranks`, the result.
    fn slot(self, owner: usize, step: u64) -> usize {
        self.data_at() + (owner * DEPTH as usize + (step % DEPTH) as usize) * self.piece
    }

    fn word(self) -> u64 {
        (self.ranks as u64) << 48 | self.piece as u64
    }
}

/// A lock of one byte, for a rank.
fn lock(rank: usize) -> libc::flock {
    libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: rank as libc::off_t,
        l_len: 1,
        l_pid: 0,
    }
}

#[derive(Debug)]
pub(crate) struct Segment {
    region: Region,
    file: OwnedFd,
    shape: Shape,
}

/// How another rank of the host finds a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    /// Process of the leader.
    pub(crate) pid: u32,
    pub(crate) descriptor: u32,
    pub(crate) nonce: u64,
}

impl Segment {
    /// Makes the segment, as rank 0 of its host. Its pages are reserved: later there could be none, which ends a process.
    /// They are of NUMA node `node`, as long as it has any.
    pub(crate) fn create(shape: Shape, node: Option<u32>) -> io::Result<(Self, Key)> {
        let (region, file) = Region::create("castnet-ranks", shape.bytes())?;
        if let Some(node) = node
            && let Err(error) = region.prefer_node(node)
        {
            tracing::debug!(%error, node, "shared memory cannot be placed");
        }
        fallocate(&file, FallocateFlags::empty(), 0, shape.bytes() as libc::off_t)?;
        let nonce = RandomState::new().build_hasher().finish();
        let key = Key {
            pid: std::process::id(),
            descriptor: file.as_raw_fd() as u32,
            nonce,
        };
        let segment = Self { region, file, shape };
        segment.long(NONCE_AT).store(nonce, Ordering::Relaxed);
        segment.long(SHAPE_AT).store(shape.word(), Ordering::Relaxed);
        segment.hold(0)?;
        Ok((segment, key))
    }

    /// Opens the segment of a leader, as number `own` of its host.
    pub(crate) fn open(key: Key, shape: Shape, own: usize) -> io::Result<Self> {
        let path = format!("/proc/{}/fd/{}", key.pid, key.descriptor);
        // The key comes from another rank: whatever it names, opening it neither blocks nor takes a terminal.
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(flags)
            .open(path)?;
        let (owner, user) = (file.metadata()?.uid(), nix::unistd::geteuid().as_raw());
        if owner != user {
            let what = format!("it belongs to user {owner}, and this rank to {user}");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
        }
        let file = OwnedFd::from(file);
        let region = Region::map(file.try_clone()?, shape.bytes() as u64, true).map_err(io::Error::other)?;
        let segment = Self { region, file, shape };
        let found = [NONCE_AT, SHAPE_AT].map(|at| segment.long(at).load(Ordering::Relaxed));
        if found != [key.nonce, shape.word()] {
            return Err(io::Error::other("it is not the segment of this job"));
        }
        segment.hold(own)?;
        Ok(segment)
    }

    /// Holds the lock of a rank until this segment is dropped.
    fn hold(&self, own: usize) -> io::Result<()> {
        fcntl(&self.file, FcntlArg::F_OFD_SETLK(&lock(own)))?;
        Ok(())
    }

    /// Whether another rank still has the segment.
    pub(crate) fn is_alive(&self, other: usize) -> bool {
        let mut lock = lock(other);
        fcntl(&self.file, FcntlArg::F_OFD_GETLK(&mut lock)).is_err()
            || lock.l_type != libc::F_UNLCK as libc::c_short
    }

    /// Another mapping of all its bytes, as a hostile process has.
    #[cfg(test)]
    pub(crate) fn bytes_for_tests(&self) -> Region {
        let file = self.file.try_clone().expect("a descriptor");
        Region::map(file, self.shape.bytes() as u64, true).expect("a mapping")
    }

    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    fn long(&self, offset: usize) -> &AtomicU64 {
        self.region
            .long(offset)
            .expect("an offset in the header or in a line")
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        self.region.word(offset).expect("an offset in the header")
    }

    fn counter(&self, rank: usize, counter: Counter) -> &AtomicU64 {
        debug_assert!(rank < self.shape.ranks);
        self.long(LINES_AT + rank * LINE + 8 * counter as usize)
    }

    /// What the rank has written before is visible.
    pub(crate) fn get(&self, rank: usize, counter: Counter) -> u64 {
        self.counter(rank, counter).load(Ordering::Acquire)
    }

    pub(crate) fn set(&self, rank: usize, counter: Counter, value: u64) {
        self.counter(rank, counter).store(value, Ordering::Release);
    }

    /// The call whose first step is `first`, as its rank describes it.
    pub(crate) fn call(&self, rank: usize, first: u64) -> [u64; CALL_WORDS] {
        let at = self.call_at(rank, first);
        std::array::from_fn(|word| self.long(at + 8 * word).load(Ordering::Relaxed))
    }

    /// Visible with the next change of a counter.
    pub(crate) fn set_call(&self, rank: usize, first: u64, call: [u64; CALL_WORDS]) {
        let at = self.call_at(rank, first);
        for (word, value) in call.into_iter().enumerate() {
            self.long(at + 8 * word).store(value, Ordering::Relaxed);
        }
    }

    fn call_at(&self, rank: usize, first: u64) -> usize {
        LINES_AT + rank * LINE + CALLS_AT + (first % DEPTH) as usize * 8 * CALL_WORDS
    }

    /// Copies bytes of the contribution of a rank to a step.
    pub(crate) fn read_contribution(&self, rank: usize, step: u64, offset: usize, to: &mut [u8]) {
        self.read(rank, step, offset, to);
    }

    pub(crate) fn write_contribution(&self, rank: usize, step: u64, offset: usize, from: &[u8]) {
        self.write(rank, step, offset, from);
    }

    /// Copies bytes of the result of a step.
    pub(crate) fn read_result(&self, step: u64, offset: usize, to: &mut [u8]) {
        self.read(self.shape.ranks, step, offset, to);
    }

    pub(crate) fn write_result(&self, step: u64, offset: usize, from: &[u8]) {
        self.write(self.shape.ranks, step, offset, from);
    }

    fn read(&self, owner: usize, step: u64, offset: usize, to: &mut [u8]) {
        debug_assert!(offset + to.len() <= self.shape.piece);
        let is_inside = self.region.read(self.shape.slot(owner, step) + offset, to);
        debug_assert!(is_inside);
    }

    fn write(&self, owner: usize, step: u64, offset: usize, from: &[u8]) {
        debug_assert!(offset + from.len() <= self.shape.piece);
        let is_inside = self.region.write(self.shape.slot(owner, step) + offset, from);
        debug_assert!(is_inside);
    }

    /// The failure of the earliest call that ranks have reported; 0: none.
    pub(crate) fn failure(&self) -> u64 {
        self.long(FAILURE_AT).load(Ordering::Acquire)
    }

    /// Reports a failure to all ranks. That of the earliest call counts, and the first one of a call.
    pub(crate) fn fail(&self, failure: u64) {
        let is_earlier = |known: u64| known == 0 || failure >> FAILURE_STEP < known >> FAILURE_STEP;
        let earliest = |known| is_earlier(known).then_some(failure);
        let _ = self
            .long(FAILURE_AT)
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, earliest);
        self.notify();
    }

    /// Wakes the ranks that sleep: a counter or the failure has changed.
    pub(crate) fn notify(&self) {
        let event = self.word(EVENT_AT);
        event.fetch_add(1, Ordering::SeqCst);
        if self.word(SLEEPERS_AT).load(Ordering::SeqCst) > 0 {
            wake_all(event);
        }
    }

    /// Number of notifications so far.
    pub(crate) fn events(&self) -> u32 {
        self.word(EVENT_AT).load(Ordering::SeqCst)
    }

    /// Sleeps until a notification after number `events`, or for `timeout`.
    pub(crate) fn sleep(&self, events: u32, timeout: Duration) {
        let sleepers = self.word(SLEEPERS_AT);
        sleepers.fetch_add(1, Ordering::SeqCst);
        sleep_on(self.word(EVENT_AT), events, timeout);
        sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape {
        ranks: 3,
        piece: PAGE,
    };

    #[test]
    fn a_rank_that_is_gone_is_noticed() {
        let (leader, key) = Segment::create(SHAPE, None).expect("a segment");
        let other = Segment::open(key, SHAPE, 1).expect("the same");
        assert!(leader.is_alive(1) && other.is_alive(0) && !leader.is_alive(2));
        assert!(Segment::open(key, SHAPE, 1).is_err(), "two ranks of one number");
        drop(other);
        assert!(!leader.is_alive(1));
    }

    #[test]
    fn ranks_see_what_the_others_write() {
        let (leader, key) = Segment::create(SHAPE, None).expect("a segment");
        let other = Segment::open(key, SHAPE, 2).expect("the same");
        leader.write_contribution(0, 5, PAGE - 4, &[1, 2, 3, 4]);
        leader.set_call(0, 5, [7, 8]);
        leader.set(0, Counter::Written, 6);
        assert_eq!((other.get(0, Counter::Written), other.call(0, 5)), (6, [7, 8]));
        let mut bytes = [0; 4];
        other.read_contribution(0, 5, PAGE - 4, &mut bytes);
        assert_eq!(bytes, [1, 2, 3, 4]);
        other.read_contribution(0, 6, PAGE - 4, &mut bytes);
        assert_eq!(bytes, [0; 4]);
        other.write_result(DEPTH - 1, PAGE - 4, &[9; 4]);
        leader.read_result(DEPTH - 1, PAGE - 4, &mut bytes);
        assert_eq!(bytes, [9; 4]);
        other.fail(11);
        leader.fail(12);
        assert_eq!(leader.failure(), 11);
        let at = |step: u64| step << FAILURE_STEP | 7;
        let (_leader, key) = Segment::create(SHAPE, None).expect("a segment");
        let other = Segment::open(key, SHAPE, 1).expect("the same");
        for (step, earliest) in [(5, 5), (6, 5), (4, 4), (4, 4)] {
            other.fail(at(step));
            assert_eq!(other.failure(), at(earliest));
        }
    }

    #[test]
    fn another_file_is_refused() {
        let (_leader, key) = Segment::create(SHAPE, None).expect("a segment");
        let wrong = [
            Key {
                nonce: !key.nonce,
                ..key
            },
            Key { descriptor: 0, ..key },
            Key {
                descriptor: u32::MAX,
                ..key
            },
            Key { pid: 0, ..key },
        ];
        for key in wrong {
            assert!(Segment::open(key, SHAPE, 1).is_err(), "{key:?}");
        }
        for shape in [
            Shape { ranks: 2, ..SHAPE },
            Shape {
                ranks: RANKS_MAX,
                ..SHAPE
            },
        ] {
            assert!(Segment::open(key, shape, 1).is_err(), "{shape:?}");
        }
    }
}
