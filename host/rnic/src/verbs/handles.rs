//! Owned handles to objects of the device. A handle keeps the objects that it depends on, and releases its own when it
//! is dropped: a QP holds its completion queues and its protection domain, a region its memory and its domain, a
//! completion queue its channel, and all of them the open device. Handles cannot be cloned, so each object is released
//! once, after all its users.
#![allow(unsafe_code)] // Fence: every call into libibverbs is in this file.

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::io;
use std::ops::{Deref, Range};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};

use super::library::Api;
use super::sys;
use crate::error::RnicError;

struct Raw<T>(NonNull<T>);

// SAFETY: libibverbs allows every call from every thread (ibv_* man pages: "thread-safe"), and nothing here
// is bound to the thread that created it.
unsafe impl<T> Send for Raw<T> {}
// SAFETY: as above; the library has its own locks.
unsafe impl<T> Sync for Raw<T> {}

impl<T> Deref for Raw<T> {
    type Target = NonNull<T>;

    fn deref(&self) -> &NonNull<T> {
        &self.0
    }
}

/// Checks the result of a call that returns null and sets errno on failure.
fn check_pointer<T>(what: &'static str, raw: *mut T) -> Result<Raw<T>, RnicError> {
    let raw = NonNull::new(raw).ok_or_else(|| RnicError::io(what)(io::Error::last_os_error()))?;
    Ok(Raw(raw))
}

/// Checks the result of a call that returns an errno, or -1 and sets errno.
fn check_code(code: c_int) -> io::Result<()> {
    match code {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        errno => Err(io::Error::from_raw_os_error(errno.abs())),
    }
}

/// Makes reads of a descriptor non-blocking. Returns a duplicate to sleep on.
fn unblock(fd: c_int) -> Result<Arc<OwnedFd>, RnicError> {
    // SAFETY: the descriptor is open as long as the caller's handle, which outlives this call.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let failed = RnicError::io("making an event descriptor non-blocking");
    let flags = OFlag::from_bits_truncate(fcntl(fd, FcntlArg::F_GETFL).map_err(failed)?);
    fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK)).map_err(failed)?;
    let own = fd
        .try_clone_to_owned()
        .map_err(RnicError::io("duplicating an event descriptor"))?;
    Ok(Arc::new(own))
}

/// The names of the RDMA devices for which the library has drivers.
pub(super) fn device_names(api: &Api) -> Result<Vec<String>, RnicError> {
    let list = DeviceList::new(api)?;
    Ok(list.iter().map(|(name, _)| name).collect())
}

/// The devices exist as long as the list.
struct DeviceList<'a> {
    api: &'a Api,
    /// `None` if the kernel has no RDMA support.
    raw: Option<NonNull<*mut sys::Device>>,
    length: usize,
}

impl<'a> DeviceList<'a> {
    fn new(api: &'a Api) -> Result<Self, RnicError> {
        let mut length = 0;
        // SAFETY: the argument points to an int.
        let raw = unsafe { (api.get_device_list)(&raw mut length) };
        let raw = match check_pointer("listing RDMA devices", raw) {
            Ok(raw) => Some(raw.0),
            Err(RnicError::Io { source, .. }) if source.raw_os_error() == Some(libc::ENOSYS) => None,
            Err(error) => return Err(error),
        };
        let length = usize::try_from(length).unwrap_or(0);
        Ok(Self { api, raw, length })
    }

    fn iter(&self) -> impl Iterator<Item = (String, *mut sys::Device)> {
        let list = self.raw.map(|raw| (0..self.length).map(move |i| (raw, i)));
        list.into_iter().flatten().filter_map(|(raw, i)| {
            // SAFETY: the library has written `length` pointers, valid as long as the list. A name is a
            // zero-terminated string in the device.
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
            // SAFETY: created by `get_device_list`, freed once.
            unsafe { (self.api.free_device_list)(raw.as_ptr()) };
        }
    }
}

pub(super) struct Context {
    api: Arc<Api>,
    raw: Raw<sys::Context>,
    /// Readable when there is an asynchronous event.
    pub(super) events: Arc<OwnedFd>,
}

impl Context {
    /// `None` if the library does not know the device.
    pub(super) fn open(api: &Arc<Api>, name: &str) -> Result<Option<Arc<Self>>, RnicError> {
        let list = DeviceList::new(api)?;
        let Some((_, device)) = list.iter().find(|(known, _)| known == name) else {
            return Ok(None);
        };
        // SAFETY: the list, and so the device, exists. An open device may outlive the list.
        let raw = unsafe { (api.open_device)(device) };
        let raw = Raw(NonNull::new(raw).ok_or_else(|| RnicError::VerbsOpen {
            device: name.to_owned(),
            source: io::Error::last_os_error(),
        })?);
        // SAFETY: the library has just created it. The layout test verifies the position of the field.
        let async_fd = unsafe { (*raw.as_ptr()).async_fd };
        match unblock(async_fd) {
            Ok(events) => Ok(Some(Arc::new(Self {
                api: api.clone(),
                raw,
                events,
            }))),
            Err(error) => {
                // SAFETY: open, without users, closed once.
                unsafe { (api.close_device)(raw.as_ptr()) };
                Err(error)
            }
        }
    }

    pub(super) fn query(&self) -> Result<sys::DeviceAttr, RnicError> {
        // SAFETY: all zero bytes are valid for this plain structure.
        let mut attr: sys::DeviceAttr = unsafe { std::mem::zeroed() };
        // SAFETY: the device is open and the structure has the header's size.
        let code = unsafe { (self.api.query_device)(self.raw.as_ptr(), &raw mut attr) };
        check_code(code).map_err(RnicError::io("querying the attributes of an RDMA device"))?;
        Ok(attr)
    }

    /// Attributes of a port. The exported function does not fill the last field, which stays 0.
    pub(super) fn query_port(&self, port: u8) -> Result<sys::PortAttr, RnicError> {
        let mut attr = sys::PortAttr::default();
        // SAFETY: the device is open and the structure is not smaller than what the function fills.
        let code = unsafe { (self.api.query_port)(self.raw.as_ptr(), port, &raw mut attr) };
        check_code(code).map_err(RnicError::io("querying a port of an RDMA device"))?;
        Ok(attr)
    }

    /// The next asynchronous event: its type and the QP that it concerns. Fails if the device is gone.
    pub(super) fn next_event(&self) -> io::Result<Option<(c_uint, Option<u32>)>> {
        let mut event = sys::AsyncEvent::default();
        // SAFETY: the device is open. Its descriptor is non-blocking, so this call does not block.
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
            // SAFETY: an event of these types refers to a QP, which cannot be destroyed before the event is
            // acknowledged below.
            unsafe { (*event.element.cast::<sys::Qp>()).qp_num }
        });
        // SAFETY: read above, acknowledged once.
        unsafe { (self.api.ack_async_event)(&raw mut event) };
        Ok(Some((event.event_type, qpn)))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: open, and all objects created from it are gone, because each holds it.
        unsafe { (self.api.close_device)(self.raw.as_ptr()) };
    }
}

pub(super) struct Domain {
    context: Arc<Context>,
    raw: Raw<sys::Pd>,
}

impl Domain {
    pub(super) fn new(context: &Arc<Context>) -> Result<Arc<Self>, RnicError> {
        // SAFETY: the device is open.
        let raw = unsafe { (context.api.alloc_pd)(context.raw.as_ptr()) };
        let raw = check_pointer("allocating a protection domain", raw)?;
        Ok(Arc::new(Self {
            context: context.clone(),
            raw,
        }))
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: created above. Its QPs and regions are gone, because each holds it.
        unsafe { (self.context.api.dealloc_pd)(self.raw.as_ptr()) };
    }
}

/// The channel on which completion queues send events.
pub(super) struct Channel {
    context: Arc<Context>,
    raw: Raw<sys::CompChannel>,
    pub(super) events: Arc<OwnedFd>,
}

impl Channel {
    pub(super) fn new(context: &Arc<Context>) -> Result<Arc<Self>, RnicError> {
        // SAFETY: the device is open.
        let raw = unsafe { (context.api.create_comp_channel)(context.raw.as_ptr()) };
        let raw = check_pointer("creating a completion channel", raw)?;
        // SAFETY: the library has just created it.
        let fd = unsafe { raw.as_ref().fd };
        match unblock(fd) {
            Ok(events) => Ok(Arc::new(Self {
                context: context.clone(),
                raw,
                events,
            })),
            Err(error) => {
                // SAFETY: created above, without users.
                unsafe { (context.api.destroy_comp_channel)(raw.as_ptr()) };
                Err(error)
            }
        }
    }

    /// The token of the next completion queue with an event. Acknowledged at once, so that the queue can be destroyed.
    pub(super) fn next_event(&self) -> Option<usize> {
        let (mut cq, mut token) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is open and non-blocking. The kernel drops unread events of destroyed queues,
        // so the returned queue exists.
        let code = unsafe { (self.context.api.get_cq_event)(self.raw.as_ptr(), &raw mut cq, &raw mut token) };
        if code != 0 {
            return None;
        }
        // SAFETY: one event of this queue was read, and one is acknowledged.
        unsafe { (self.context.api.ack_cq_events)(cq, 1) };
        Some(token.addr())
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: its queues are gone, because each holds it.
        unsafe { (self.context.api.destroy_comp_channel)(self.raw.as_ptr()) };
    }
}

pub(super) struct CompletionQueue {
    channel: Arc<Channel>,
    raw: Raw<sys::Cq>,
}

impl CompletionQueue {
    pub(super) fn status_text(&self, status: c_uint) -> Option<&'static str> {
        self.channel.context.api.status_text(status)
    }

    /// Creates a queue for at least `depth` completions. Its events carry `token`.
    pub(super) fn new(channel: &Arc<Channel>, depth: c_int, token: usize) -> Result<Self, RnicError> {
        let context = &channel.context;
        // SAFETY: device and channel are open. The token is never used as a pointer.
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
            raw: check_pointer("creating a completion queue", raw)?,
        })
    }

    pub(super) fn poll(&mut self, out: &mut [sys::Wc]) -> Result<usize, RnicError> {
        let capacity = c_int::try_from(out.len()).unwrap_or(c_int::MAX);
        // SAFETY: the queue and its device with the provider's functions exist. The slice has this capacity.
        let count = unsafe {
            match (*self.raw.as_ref().context).ops.poll_cq {
                Some(poll) => poll(self.raw.as_ptr(), capacity, out.as_mut_ptr()),
                None => -libc::ENOSYS,
            }
        };
        usize::try_from(count).map_err(|_| {
            let error = io::Error::from_raw_os_error(count.saturating_neg());
            RnicError::io("polling a completion queue")(error)
        })
    }

    /// Requests an event for the next completion.
    pub(super) fn arm(&mut self) -> Result<(), RnicError> {
        // SAFETY: as for `poll`.
        let code = unsafe {
            match (*self.raw.as_ref().context).ops.req_notify_cq {
                Some(arm) => arm(self.raw.as_ptr(), 0),
                None => libc::ENOSYS,
            }
        };
        check_code(code).map_err(RnicError::io("arming a completion queue"))
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: its QP is gone, because the QP holds it. All events are acknowledged, so this call does not wait.
        unsafe { (self.channel.context.api.destroy_cq)(self.raw.as_ptr()) };
    }
}

pub(super) struct QueuePair {
    domain: Arc<Domain>,
    raw: Raw<sys::Qp>,
    pub(super) send_queue: CompletionQueue,
    pub(super) recv_queue: CompletionQueue,
}

impl QueuePair {
    pub(super) fn new(
        domain: &Arc<Domain>,
        send_queue: CompletionQueue,
        recv_queue: CompletionQueue,
        cap: sys::QpCap,
    ) -> Result<Self, RnicError> {
        let mut init = sys::QpInitAttr {
            send_cq: send_queue.raw.as_ptr(),
            recv_cq: recv_queue.raw.as_ptr(),
            cap,
            qp_type: sys::QPT_RC,
            ..sys::QpInitAttr::default()
        };
        // SAFETY: domain and queues exist, and the QP holds them.
        let raw = unsafe { (domain.context.api.create_qp)(domain.raw.as_ptr(), &raw mut init) };
        Ok(Self {
            domain: domain.clone(),
            raw: check_pointer("creating a QP", raw)?,
            send_queue,
            recv_queue,
        })
    }

    pub(super) fn number(&self) -> u32 {
        // SAFETY: the QP exists and its number never changes.
        unsafe { (*self.raw.as_ptr()).qp_num }
    }

    pub(super) fn modify(&mut self, mut attr: sys::QpAttr, mask: c_uint) -> io::Result<()> {
        // SAFETY: the QP exists and the structure has the header's layout.
        check_code(unsafe {
            (self.domain.context.api.modify_qp)(self.raw.as_ptr(), &raw mut attr, mask.cast_signed())
        })
    }

    /// The state of the QP, IBV_QPS_*.
    pub(super) fn state(&self) -> io::Result<c_uint> {
        let mut attr = sys::QpAttr::default();
        let mut init = sys::QpInitAttr::default();
        // SAFETY: the QP exists and both structures have the header's layout.
        check_code(unsafe {
            (self.domain.context.api.query_qp)(
                self.raw.as_ptr(),
                &raw mut attr,
                sys::QP_STATE.cast_signed(),
                &raw mut init,
            )
        })?;
        Ok(attr.qp_state)
    }

    /// Posts a send. `sge` is `None` for an empty message.
    pub(super) fn post_send(&mut self, mut wr: sys::SendWr, mut sge: Option<sys::Sge>) -> io::Result<()> {
        if let Some(sge) = &mut sge {
            (wr.sg_list, wr.num_sge) = (&raw mut *sge, 1);
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the QP exists. Request and list live for the call, which copies them. The bytes are in a
        // region, otherwise the device refuses them, because it checks its regions.
        check_code(unsafe {
            match (*self.raw.as_ref().context).ops.post_send {
                Some(post) => post(self.raw.as_ptr(), &raw mut wr, &raw mut bad),
                None => libc::ENOSYS,
            }
        })
    }

    /// Posts a receive. `sge` is `None` for a receive without a buffer.
    pub(super) fn post_recv(&mut self, wr_id: u64, mut sge: Option<sys::Sge>) -> io::Result<()> {
        let mut wr = sys::RecvWr {
            wr_id,
            ..sys::RecvWr::default()
        };
        if let Some(sge) = &mut sge {
            (wr.sg_list, wr.num_sge) = (&raw mut *sge, 1);
        }
        let mut bad = ptr::null_mut();
        // SAFETY: as for `post_send`.
        check_code(unsafe {
            match (*self.raw.as_ref().context).ops.post_recv {
                Some(post) => post(self.raw.as_ptr(), &raw mut wr, &raw mut bad),
                None => libc::ENOSYS,
            }
        })
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: created above, destroyed once, before its queues and domain are released. Its events are
        // acknowledged when they are read, so this call does not wait.
        unsafe { (self.domain.context.api.destroy_qp)(self.raw.as_ptr()) };
    }
}

/// Pages that the device may read and write at any time: accessed only by copies, never by reference.
struct Pages {
    start: Raw<c_void>,
    length: usize,
    mapped: std::num::NonZeroUsize,
}

impl Pages {
    fn new(length: usize) -> Result<Self, RnicError> {
        let failed = RnicError::io("allocating memory");
        let mapped = std::num::NonZeroUsize::new(length).unwrap_or(std::num::NonZeroUsize::MIN);
        // SAFETY: a new mapping; existing memory is not touched.
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
            start: Raw(start),
            length,
            mapped,
        };
        // A child process that shared the pages would take them from the device at its first write.
        // SAFETY: this function created the mapping.
        unsafe { madvise(start, mapped.get(), MmapAdvise::MADV_DONTFORK) }.map_err(failed)?;
        Ok(pages)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped above, unmapped once. The device has released it, as `Region` ensures.
        let _ = unsafe { munmap(*self.start, self.mapped.get()) };
    }
}

pub(super) struct Region {
    domain: Arc<Domain>,
    raw: Raw<sys::Mr>,
    pages: std::mem::ManuallyDrop<Pages>,
}

impl Region {
    /// Registers `length` zero bytes with the rights IBV_ACCESS_*.
    pub(super) fn new(domain: &Arc<Domain>, length: usize, access: c_uint) -> Result<Self, RnicError> {
        let pages = Pages::new(length)?;
        // SAFETY: the domain exists. The pages are mapped until the region is released.
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
            raw: check_pointer("registering memory", raw)?,
            pages: std::mem::ManuallyDrop::new(pages),
        })
    }

    /// The keys for local and remote use.
    pub(super) fn keys(&self) -> (u32, u32) {
        // SAFETY: the region exists and its keys never change.
        let mr = unsafe { self.raw.as_ref() };
        (mr.lkey, mr.rkey)
    }

    pub(super) fn va(&self) -> u64 {
        self.pages.start.as_ptr().expose_provenance() as u64
    }

    pub(super) fn length(&self) -> usize {
        self.pages.length
    }

    /// Copies the bytes in `range` into `out`, which has the same length.
    pub(super) fn read(&self, range: Range<usize>, out: &mut [u8]) {
        assert!(range.end <= self.pages.length && range.len() == out.len());
        // SAFETY: inside the mapping. The device may write at the same time; then the copy has old and new
        // bytes, as with any memory shared with hardware. `out` has no other user.
        unsafe {
            let from = self.pages.start.as_ptr().cast::<u8>().add(range.start);
            ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len());
        }
    }

    /// Copies `bytes` into the region at `range`, which has the same length.
    pub(super) fn write(&mut self, range: Range<usize>, bytes: &[u8]) {
        assert!(range.end <= self.pages.length && range.len() == bytes.len());
        // SAFETY: as for `read`, in the other direction.
        unsafe {
            let to = self.pages.start.as_ptr().cast::<u8>().add(range.start);
            ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: registered above, released once. The pages may be unmapped only if the device has released
        // them. Otherwise they stay mapped forever, because the device may still write to them.
        unsafe {
            if (self.domain.context.api.dereg_mr)(self.raw.as_ptr()) == 0 {
                std::mem::ManuallyDrop::drop(&mut self.pages);
            }
        }
    }
}
