//! What the device gives out, each thing with its owner: who drops it gives it back, and what it stands on stays until then.
//!
//! A QP holds its completion queues and its protection domain, a region its memory and its domain, a completion queue its
//! channel, and all of them the open device. None can be copied, so each is given back once, after all that use it.
#![allow(unsafe_code)] // Fence: every call into libibverbs is in this file.

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};

use super::library::Api;
use super::sys;
use crate::error::RnicError;

/// The error of a call that failed.
fn io_error(what: &'static str, source: io::Error) -> RnicError {
    RnicError::Io { what, source }
}

/// The error of a call that returns null and sets errno.
fn made<T>(what: &'static str, raw: *mut T) -> Result<NonNull<T>, RnicError> {
    NonNull::new(raw).ok_or_else(|| io_error(what, io::Error::last_os_error()))
}

/// The error of a call that returns an errno, or -1 and sets it.
fn done(code: c_int) -> io::Result<()> {
    match code {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        errno => Err(io::Error::from_raw_os_error(errno.abs())),
    }
}

/// Lets reads of a descriptor return at once, and gives a second one of the same file for those who sleep on it.
fn unblock(fd: c_int) -> Result<Arc<OwnedFd>, RnicError> {
    // SAFETY: the descriptor is open as long as the caller's handle, which outlives this call.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let failed = |e: nix::Error| io_error("making an event descriptor non-blocking", e.into());
    let flags = OFlag::from_bits_truncate(fcntl(fd, FcntlArg::F_GETFL).map_err(failed)?);
    fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK)).map_err(failed)?;
    let own = fd
        .try_clone_to_owned()
        .map_err(|e| io_error("doubling an event descriptor", e))?;
    Ok(Arc::new(own))
}

/// The names of the RDMA devices that the library finds, each with a driver for it.
pub(super) fn device_names(api: &Api) -> Result<Vec<String>, RnicError> {
    let list = DeviceList::new(api)?;
    Ok(list.iter().map(|(name, _)| name).collect())
}

/// The devices; what they point to lives as long as the list.
struct DeviceList<'a> {
    api: &'a Api,
    /// `None`: the kernel has nothing of RDMA.
    raw: Option<NonNull<*mut sys::Device>>,
    length: usize,
}

impl<'a> DeviceList<'a> {
    fn new(api: &'a Api) -> Result<Self, RnicError> {
        let mut length = 0;
        // SAFETY: the argument is a place for an int.
        let raw = unsafe { (api.get_device_list)(&raw mut length) };
        let raw = match made("listing RDMA devices", raw) {
            Ok(raw) => Some(raw),
            Err(RnicError::Io { source, .. }) if source.raw_os_error() == Some(libc::ENOSYS) => None,
            Err(error) => return Err(error),
        };
        let length = usize::try_from(length).unwrap_or(0);
        Ok(Self { api, raw, length })
    }

    fn iter(&self) -> impl Iterator<Item = (String, *mut sys::Device)> {
        let list = self.raw.map(|raw| (0..self.length).map(move |i| (raw, i)));
        list.into_iter().flatten().filter_map(|(raw, i)| {
            // SAFETY: the library has put `length` pointers there, good as long as the list; a name is text that ends
            // with zero inside the device.
            unsafe {
                let device = *raw.as_ptr().add(i);
                let name = NonNull::new((self.api.get_device_name)(device).cast_mut())?;
                let name = CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned();
                Some((name, device))
            }
        })
    }
}

impl Drop for DeviceList<'_> {
    fn drop(&mut self) {
        if let Some(raw) = self.raw {
            // SAFETY: made by `get_device_list`, freed once.
            unsafe { (self.api.free_device_list)(raw.as_ptr()) };
        }
    }
}

/// An open device.
pub(super) struct Context {
    api: Arc<Api>,
    raw: NonNull<sys::Context>,
    /// Readable when there is an asynchronous event.
    pub(super) events: Arc<OwnedFd>,
}

// SAFETY: libibverbs allows every call from every thread (ibv_* man pages: "thread-safe"), and nothing here is bound to
// the thread that made it.
unsafe impl Send for Context {}
// SAFETY: as above; the library has locks of its own.
unsafe impl Sync for Context {}

impl Context {
    /// Opens the device of that name; `None` where the library knows none.
    pub(super) fn open(api: &Arc<Api>, name: &str) -> Result<Option<Arc<Self>>, RnicError> {
        let list = DeviceList::new(api)?;
        let Some((_, device)) = list.iter().find(|(known, _)| known == name) else {
            return Ok(None);
        };
        // SAFETY: the list, and so the device, lives; an open device outlives the list by itself.
        let raw = unsafe { (api.open_device)(device) };
        let raw = NonNull::new(raw).ok_or_else(|| RnicError::VerbsOpen {
            device: name.to_owned(),
            source: io::Error::last_os_error(),
        })?;
        // SAFETY: just made by the library; the field is behind `ops`, as the test of the layout holds.
        let async_fd = unsafe { (*raw.as_ptr()).async_fd };
        match unblock(async_fd) {
            Ok(events) => Ok(Some(Arc::new(Self {
                api: api.clone(),
                raw,
                events,
            }))),
            Err(error) => {
                // SAFETY: open, used by nobody, closed once.
                unsafe { (api.close_device)(raw.as_ptr()) };
                Err(error)
            }
        }
    }

    /// What the device can do.
    pub(super) fn query(&self) -> Result<sys::DeviceAttr, RnicError> {
        // SAFETY: all zero bytes are a value of this plain structure.
        let mut attr: sys::DeviceAttr = unsafe { std::mem::zeroed() };
        // SAFETY: the device is open, the place has the header's size.
        let code = unsafe { (self.api.query_device)(self.raw.as_ptr(), &raw mut attr) };
        done(code).map_err(|e| io_error("asking an RDMA device for its attributes", e))?;
        Ok(attr)
    }

    /// What a port is. The exported function fills all but the last field, which stays 0.
    pub(super) fn query_port(&self, port: u8) -> Result<sys::PortAttr, RnicError> {
        let mut attr = sys::PortAttr::default();
        // SAFETY: the device is open, the place is no smaller than what the function fills.
        let code = unsafe { (self.api.query_port)(self.raw.as_ptr(), port, &raw mut attr) };
        done(code).map_err(|e| io_error("asking an RDMA device for its port", e))?;
        Ok(attr)
    }

    /// The next asynchronous event: its type and, where it is about a QP, that QP's number. An error where the device is
    /// gone.
    pub(super) fn next_event(&self) -> io::Result<Option<(c_uint, Option<u32>)>> {
        let mut event = sys::AsyncEvent {
            element: ptr::null_mut(),
            event_type: 0,
        };
        // SAFETY: the device is open; its descriptor does not block, so neither does this.
        if unsafe { (self.api.get_async_event)(self.raw.as_ptr(), &raw mut event) } != 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(error),
            };
        }
        let is_of_qp = matches!(
            event.event_type,
            sys::EVENT_QP_FATAL
                | sys::EVENT_QP_REQ_ERR
                | sys::EVENT_QP_ACCESS_ERR
                | sys::EVENT_COMM_EST
                | sys::EVENT_SQ_DRAINED
                | sys::EVENT_PATH_MIG
                | sys::EVENT_PATH_MIG_ERR
                | sys::EVENT_QP_LAST_WQE_REACHED
        );
        let qpn = (is_of_qp && !event.element.is_null()).then(|| {
            // SAFETY: an event of one of these types names a QP; it cannot be destroyed before the event is
            // acknowledged below.
            unsafe { (*event.element.cast::<sys::Qp>()).qp_num }
        });
        // SAFETY: got above, acknowledged once.
        unsafe { (self.api.ack_async_event)(&raw mut event) };
        Ok(Some((event.event_type, qpn)))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: open, and all that was made from it is gone, as each such thing holds it.
        unsafe { (self.api.close_device)(self.raw.as_ptr()) };
    }
}

/// A protection domain.
pub(super) struct Domain {
    context: Arc<Context>,
    raw: NonNull<sys::Pd>,
}

// SAFETY: as for `Context`.
unsafe impl Send for Domain {}
// SAFETY: as for `Context`.
unsafe impl Sync for Domain {}

impl Domain {
    pub(super) fn new(context: &Arc<Context>) -> Result<Arc<Self>, RnicError> {
        // SAFETY: the device is open.
        let raw = unsafe { (context.api.alloc_pd)(context.raw.as_ptr()) };
        let raw = made("allocating a protection domain", raw)?;
        Ok(Arc::new(Self {
            context: context.clone(),
            raw,
        }))
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: made above; QPs and regions of it are gone, as each holds it.
        unsafe { (self.context.api.dealloc_pd)(self.raw.as_ptr()) };
    }
}

/// Where completion queues report that they have something.
pub(super) struct Channel {
    context: Arc<Context>,
    raw: NonNull<sys::CompChannel>,
    /// Readable when there is an event.
    pub(super) events: Arc<OwnedFd>,
}

// SAFETY: as for `Context`.
unsafe impl Send for Channel {}
// SAFETY: as for `Context`.
unsafe impl Sync for Channel {}

impl Channel {
    pub(super) fn new(context: &Arc<Context>) -> Result<Arc<Self>, RnicError> {
        // SAFETY: the device is open.
        let raw = unsafe { (context.api.create_comp_channel)(context.raw.as_ptr()) };
        let raw = made("making a completion channel", raw)?;
        // SAFETY: just made by the library.
        let fd = unsafe { raw.as_ref().fd };
        match unblock(fd) {
            Ok(events) => Ok(Arc::new(Self {
                context: context.clone(),
                raw,
                events,
            })),
            Err(error) => {
                // SAFETY: made above, used by nobody.
                unsafe { (context.api.destroy_comp_channel)(raw.as_ptr()) };
                Err(error)
            }
        }
    }

    /// The token of the next completion queue that reports; its event is acknowledged at once, so that the queue can be
    /// destroyed at any time.
    pub(super) fn next_event(&self) -> Option<usize> {
        let (mut cq, mut token) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is open and does not block. The kernel drops unread events of queues that are destroyed, so
        // the queue that is named exists.
        let code = unsafe { (self.context.api.get_cq_event)(self.raw.as_ptr(), &raw mut cq, &raw mut token) };
        if code != 0 {
            return None;
        }
        // SAFETY: one event of this queue was got, and one is acknowledged.
        unsafe { (self.context.api.ack_cq_events)(cq, 1) };
        Some(token.addr())
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: its queues are gone, as each holds it.
        unsafe { (self.context.api.destroy_comp_channel)(self.raw.as_ptr()) };
    }
}

/// A completion queue.
pub(super) struct CompletionQueue {
    channel: Arc<Channel>,
    raw: NonNull<sys::Cq>,
}

// SAFETY: as for `Context`.
unsafe impl Send for CompletionQueue {}

impl CompletionQueue {
    /// What the device's library says of a completion's status.
    pub(super) fn status_text(&self, status: c_uint) -> Option<&'static str> {
        self.channel.context.api.status_text(status)
    }

    /// A queue of at least `depth` completions, whose events carry `token`.
    pub(super) fn new(channel: &Arc<Channel>, depth: c_int, token: usize) -> Result<Self, RnicError> {
        let context = &channel.context;
        // SAFETY: device and channel are open; the token is never used as a pointer.
        let raw = unsafe {
            (context.api.create_cq)(
                context.raw.as_ptr(),
                depth,
                ptr::without_provenance_mut::<c_void>(token),
                channel.raw.as_ptr(),
                0,
            )
        };
        Ok(Self {
            channel: channel.clone(),
            raw: made("making a completion queue", raw)?,
        })
    }

    /// Takes completions; returns how many.
    pub(super) fn poll(&mut self, out: &mut [sys::Wc]) -> Result<usize, RnicError> {
        let room = c_int::try_from(out.len()).unwrap_or(c_int::MAX);
        // SAFETY: the queue exists, and so does its device with the provider's functions; there is room for so many.
        let count = unsafe {
            match (*self.raw.as_ref().context).ops.poll_cq {
                Some(poll) => poll(self.raw.as_ptr(), room, out.as_mut_ptr()),
                None => -libc::ENOSYS,
            }
        };
        usize::try_from(count).map_err(|_| {
            io_error(
                "polling a completion queue",
                io::Error::from_raw_os_error(count.saturating_neg()),
            )
        })
    }

    /// Asks for an event at the next completion.
    pub(super) fn arm(&mut self) -> Result<(), RnicError> {
        // SAFETY: as for `poll`.
        let code = unsafe {
            match (*self.raw.as_ref().context).ops.req_notify_cq {
                Some(arm) => arm(self.raw.as_ptr(), 0),
                None => libc::ENOSYS,
            }
        };
        done(code).map_err(|e| io_error("arming a completion queue", e))
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: its QP is gone, as that holds it; all its events are acknowledged, so this does not wait.
        unsafe { (self.channel.context.api.destroy_cq)(self.raw.as_ptr()) };
    }
}

/// An RC QP with its two completion queues.
pub(super) struct QueuePair {
    domain: Arc<Domain>,
    raw: NonNull<sys::Qp>,
    pub(super) send_queue: CompletionQueue,
    pub(super) recv_queue: CompletionQueue,
}

// SAFETY: as for `Context`.
unsafe impl Send for QueuePair {}

/// A work request's bytes.
#[derive(Clone, Copy)]
pub(super) struct Bytes {
    pub(super) addr: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
}

impl Bytes {
    fn sge(self) -> sys::Sge {
        sys::Sge {
            addr: self.addr,
            length: self.length,
            lkey: self.lkey,
        }
    }
}

impl QueuePair {
    pub(super) fn new(
        domain: &Arc<Domain>,
        send_queue: CompletionQueue,
        recv_queue: CompletionQueue,
        cap: sys::QpCap,
    ) -> Result<Self, RnicError> {
        let mut init = sys::QpInitAttr {
            qp_context: ptr::null_mut(),
            send_cq: send_queue.raw.as_ptr(),
            recv_cq: recv_queue.raw.as_ptr(),
            srq: ptr::null_mut(),
            cap,
            qp_type: sys::QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: domain and queues exist, and are held as long as the QP.
        let raw = unsafe { (domain.context.api.create_qp)(domain.raw.as_ptr(), &raw mut init) };
        Ok(Self {
            domain: domain.clone(),
            raw: made("making a QP", raw)?,
            send_queue,
            recv_queue,
        })
    }

    /// Its number.
    pub(super) fn number(&self) -> u32 {
        // SAFETY: the QP exists; its number never changes.
        unsafe { (*self.raw.as_ptr()).qp_num }
    }

    /// Changes what `mask` names.
    pub(super) fn modify(&mut self, mut attr: sys::QpAttr, mask: c_uint) -> io::Result<()> {
        // SAFETY: the QP exists, the structure is the header's.
        done(unsafe {
            (self.domain.context.api.modify_qp)(self.raw.as_ptr(), &raw mut attr, mask.cast_signed())
        })
    }

    /// The state that it is in, IBV_QPS_*.
    pub(super) fn state(&self) -> io::Result<c_uint> {
        let mut attr = sys::QpAttr::default();
        let mut init = sys::QpInitAttr {
            qp_context: ptr::null_mut(),
            send_cq: ptr::null_mut(),
            recv_cq: ptr::null_mut(),
            srq: ptr::null_mut(),
            cap: sys::QpCap::default(),
            qp_type: 0,
            sq_sig_all: 0,
        };
        // SAFETY: the QP exists, both places are the header's structures.
        done(unsafe {
            (self.domain.context.api.query_qp)(
                self.raw.as_ptr(),
                &raw mut attr,
                sys::QP_STATE.cast_signed(),
                &raw mut init,
            )
        })?;
        Ok(attr.qp_state)
    }

    /// Posts a send; `bytes` is `None` for an empty message.
    pub(super) fn post_send(&mut self, mut wr: sys::SendWr, bytes: Option<Bytes>) -> io::Result<()> {
        let mut sge = bytes.map(Bytes::sge).unwrap_or_default();
        if bytes.is_some() {
            (wr.sg_list, wr.num_sge) = (&raw mut sge, 1);
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the QP exists; request and list live for the call, which copies them. The bytes are those of a region,
        // or the device refuses them: it knows its regions itself.
        done(unsafe {
            match (*self.raw.as_ref().context).ops.post_send {
                Some(post) => post(self.raw.as_ptr(), &raw mut wr, &raw mut bad),
                None => libc::ENOSYS,
            }
        })
    }

    /// Posts a receive; `bytes` is `None` for one without room.
    pub(super) fn post_recv(&mut self, wr_id: u64, bytes: Option<Bytes>) -> io::Result<()> {
        let mut sge = bytes.map(Bytes::sge).unwrap_or_default();
        let mut wr = sys::RecvWr {
            wr_id,
            next: ptr::null_mut(),
            sg_list: ptr::null_mut(),
            num_sge: 0,
        };
        if bytes.is_some() {
            (wr.sg_list, wr.num_sge) = (&raw mut sge, 1);
        }
        let mut bad = ptr::null_mut();
        // SAFETY: as for `post_send`.
        done(unsafe {
            match (*self.raw.as_ref().context).ops.post_recv {
                Some(post) => post(self.raw.as_ptr(), &raw mut wr, &raw mut bad),
                None => libc::ENOSYS,
            }
        })
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: made above, destroyed once, before its queues and its domain are let go. Its events are acknowledged as
        // they are read, so this does not wait.
        unsafe { (self.domain.context.api.destroy_qp)(self.raw.as_ptr()) };
    }
}

/// Pages of this process that the device may read and write at any time: they are looked at through copies alone, and no
/// reference to them is ever made.
struct Pages {
    start: NonNull<c_void>,
    length: usize,
    mapped: std::num::NonZeroUsize,
}

impl Pages {
    fn new(length: usize) -> Result<Self, RnicError> {
        let failed = |e: nix::Error| io_error("getting memory", e.into());
        let mapped = std::num::NonZeroUsize::new(length).unwrap_or(std::num::NonZeroUsize::MIN);
        // SAFETY: a new mapping, of nothing that exists.
        let start = unsafe {
            mmap_anonymous(
                None,
                mapped,
                ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
                MapFlags::MAP_PRIVATE,
            )
        }
        .map_err(failed)?;
        let pages = Self {
            start,
            length,
            mapped,
        };
        // A child process that shared the pages would take them from the device at the first write.
        // SAFETY: the mapping is ours.
        unsafe { madvise(start, mapped.get(), MmapAdvise::MADV_DONTFORK) }.map_err(failed)?;
        Ok(pages)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped above, unmapped once; the device has given it up, as `Region` sees to.
        let _ = unsafe { munmap(self.start, self.mapped.get()) };
    }
}

/// A memory region: pages that are registered.
pub(super) struct Region {
    domain: Arc<Domain>,
    raw: NonNull<sys::Mr>,
    pages: std::mem::ManuallyDrop<Pages>,
}

// SAFETY: as for `Context`; the pages belong to the region alone.
unsafe impl Send for Region {}

impl Region {
    /// Registers `length` zero bytes with these rights, IBV_ACCESS_*.
    pub(super) fn new(domain: &Arc<Domain>, length: usize, access: c_uint) -> Result<Self, RnicError> {
        let pages = Pages::new(length)?;
        // SAFETY: the domain exists; the pages are mapped, and stay so until the region is given back.
        let raw = unsafe {
            (domain.context.api.reg_mr)(
                domain.raw.as_ptr(),
                pages.start.as_ptr(),
                pages.mapped.get(),
                access.cast_signed(),
            )
        };
        Ok(Self {
            domain: domain.clone(),
            raw: made("registering memory", raw)?,
            pages: std::mem::ManuallyDrop::new(pages),
        })
    }

    /// The keys for local and for remote use.
    pub(super) fn keys(&self) -> (u32, u32) {
        // SAFETY: the region exists; its keys never change.
        let mr = unsafe { self.raw.as_ref() };
        (mr.lkey, mr.rkey)
    }

    /// The address of its first byte.
    pub(super) fn va(&self) -> u64 {
        self.pages.start.as_ptr().expose_provenance() as u64
    }

    pub(super) fn length(&self) -> usize {
        self.pages.length
    }

    /// Copies bytes from `offset` on into `out`; `false` where they are not all there.
    pub(super) fn read(&self, offset: usize, out: &mut [u8]) -> bool {
        if offset
            .checked_add(out.len())
            .is_none_or(|end| end > self.pages.length)
        {
            return false;
        }
        // SAFETY: inside the mapping. The device may be writing there: then the copy has some old and some new bytes, as
        // with any memory that is shared with hardware; `out` is ours alone.
        unsafe {
            let from = self.pages.start.as_ptr().cast::<u8>().add(offset);
            ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len());
        }
        true
    }

    /// Copies `bytes` into it from `offset` on; `false` where there is no room.
    pub(super) fn write(&mut self, offset: usize, bytes: &[u8]) -> bool {
        if offset
            .checked_add(bytes.len())
            .is_none_or(|end| end > self.pages.length)
        {
            return false;
        }
        // SAFETY: as for `read`, the other way.
        unsafe {
            let to = self.pages.start.as_ptr().cast::<u8>().add(offset);
            ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
        true
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: registered above, given back once. Only where the device has let go may the pages be unmapped: else they
        // stay for ever, as it may still write there.
        unsafe {
            if (self.domain.context.api.dereg_mr)(self.raw.as_ptr()) == 0 {
                std::mem::ManuallyDrop::drop(&mut self.pages);
            }
        }
    }
}
