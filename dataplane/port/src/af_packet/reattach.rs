//! Hands sockets to a port while its thread runs. Another thread opens and closes them, because both wait for the kernel. The
//! port's thread only exchanges a pointer.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use castnet_wire::MacAddr;

use super::AfPacketSpec;
use super::held::Held;
use super::sockets::{Interface, Sockets};
use super::sys;
use crate::port::Sides;
use crate::sleep::Waker;
use crate::spec::OpenError;

/// Moves one side of a port to another interface: [`InterfaceWatch`](super::InterfaceWatch).
#[derive(Debug)]
pub struct Reattach {
    spec: AfPacketSpec,
    sides: Sides,
    /// MTU and address of the port, which stay.
    mtu: usize,
    mac: MacAddr,
    /// Of the interface in Mb/s by the last reading; 0 if unknown.
    speed_mbps: AtomicU32,
    is_offered: AtomicBool,
    has_retired: AtomicBool,
    mail: Mutex<Mail>,
    /// Wakes the thread that opens and closes sockets.
    waker: OnceLock<Waker>,
}

#[derive(Debug)]
struct Mail {
    /// Of the sockets opened last.
    control: Arc<OwnedFd>,
    /// `Some(None)`: close the sockets.
    offered: Option<Option<Box<Sockets>>>,
    /// To be closed. `None` while sockets are offered, so the port's thread closes none.
    retired: Option<Box<Sockets>>,
    /// Of the interface that was attached last.
    held: Option<Held>,
}

/// For the port's thread. Nothing here blocks, allocates or closes a socket.
impl Reattach {
    /// The speed of the interface by the last reading.
    pub(super) fn speed_mbps(&self) -> Option<u32> {
        Some(self.speed_mbps.load(Ordering::Relaxed)).filter(|mbps| *mbps > 0)
    }

    /// Whether there is a thread that reads the speed.
    pub(super) fn is_watched(&self) -> bool {
        self.waker.get().is_some()
    }

    pub(super) fn is_offered(&self) -> bool {
        self.is_offered.load(Ordering::Acquire)
    }

    /// Passes offered sockets to `swap`, which returns the old ones. Does nothing while the other thread has the lock.
    pub(super) fn exchange(&self, swap: impl FnOnce(Option<Box<Sockets>>) -> Option<Box<Sockets>>) {
        let mut mail = match self.mail.try_lock() {
            Ok(mail) => mail,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let Some(offered) = mail.offered.take() else {
            return;
        };
        mail.retired = swap(offered);
        self.is_offered.store(false, Ordering::Relaxed);
        self.has_retired.store(true, Ordering::Release);
        drop(mail);
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
    }
}

/// For the thread that opens and closes sockets.
impl Reattach {
    /// `control` is that of the sockets in use, and `held` of their interface.
    pub(super) fn new(
        spec: AfPacketSpec,
        sides: Sides,
        (mtu, mac): (usize, MacAddr),
        control: Arc<OwnedFd>,
        held: Option<Held>,
    ) -> Self {
        Self {
            spec,
            sides,
            mtu,
            mac,
            speed_mbps: AtomicU32::new(0),
            is_offered: AtomicBool::new(false),
            has_retired: AtomicBool::new(false),
            mail: Mutex::new(Mail {
                control,
                offered: None,
                retired: None,
                held,
            }),
            waker: OnceLock::new(),
        }
    }

    fn mail(&self) -> MutexGuard<'_, Mail> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn wake_with(&self, waker: Waker) {
        let _ = self.waker.set(waker);
    }

    /// Opens sockets on the interface that has the port's name now.
    pub(super) fn open(&self) -> Result<Box<Sockets>, OpenError> {
        let interface = Interface::find(&self.spec)?;
        // Not while the port waits for the lock.
        let known = self.mail().held.take();
        let held = Held::new(&self.spec, self.sides, &interface, known)?;
        self.mail().held = Some(held);
        let sockets =
            Sockets::open(&self.spec, self.sides, interface, self.mtu, self.mac).inspect_err(|_| {
                // The port does not have the interface.
                let unused = self.mail().held.take();
                drop(unused);
            })?;
        match sockets.are_on(self.name()) {
            true => Ok(Box::new(sockets)),
            false => Err(OpenError::NoSuchInterface(self.spec.interface.clone())),
        }
    }

    /// Offers sockets to the port, or none, so that it closes those that it has.
    pub(super) fn offer(&self, sockets: Option<Box<Sockets>>) {
        let (mut mail, is_left) = (self.mail(), sockets.is_none());
        let control = sockets
            .as_ref()
            .map(|new| std::mem::replace(&mut mail.control, new.control.clone()));
        let unused = mail.offered.replace(sockets);
        let retired = mail.retired.take();
        let held = match is_left {
            true => mail.held.take(),
            false => None,
        };
        self.is_offered.store(true, Ordering::Release);
        drop(mail);
        // Closing them takes long.
        drop((control, unused, retired, held));
    }

    /// True if the port has returned sockets that must be closed.
    pub(super) fn has_retired(&self) -> bool {
        self.has_retired.load(Ordering::Acquire)
    }

    pub(super) fn close_retired(&self) {
        if self.has_retired.swap(false, Ordering::Acquire) {
            let retired = self.mail().retired.take();
            drop(retired);
        }
    }

    /// Asks the kernel for the speed of the interface.
    pub(super) fn read_speed(&self) -> Option<u32> {
        let control = self.mail().control.clone();
        sys::speed_mbps(&control, &self.spec.interface)
    }

    /// Passes a reading to the port.
    pub(super) fn set_speed(&self, mbps: Option<u32>) {
        self.speed_mbps.store(mbps.unwrap_or(0), Ordering::Relaxed);
    }

    /// Index of the interface that the sockets opened last are bound to.
    pub(super) fn bound_to(&self) -> Option<u32> {
        sys::bound_to(&self.mail().control)
    }

    /// The name of an interface. Needs no further file descriptor, as that of the C library does.
    pub(super) fn name_of(&self, index: u32) -> Option<String> {
        sys::name(&self.mail().control, index)
    }

    pub(super) fn name(&self) -> &str {
        &self.spec.interface
    }

    /// Index of the interface that has the port's name.
    pub(super) fn named(&self) -> Option<u32> {
        sys::index(&self.mail().control, &self.spec.interface).ok()
    }
}
