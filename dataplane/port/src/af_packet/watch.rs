//! Watches the interfaces of ports through rtnetlink, and moves ports to the interfaces that have their names.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use castnet_wire::Nanos;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket,
};

use super::attachment::{Attachment, Detached, Sight};
use super::reattach::Reattach;
use crate::sleep::{Sleeper, Waker};
use crate::spec::OpenError;

/// The longest sleep: without messages of the kernel, and with them.
const UNTOLD_INTERVAL: Duration = Duration::from_secs(1);
const SLEEP_MAX: Duration = Duration::from_secs(3600);
/// Most readings of an interface that changes meanwhile.
const READINGS: usize = 16;
/// Messages read at once. What they say is not needed: any of them leads to a reading of all ports' interfaces.
const MESSAGES_MAX: usize = 4096;

/// Watches the interfaces of ports. A port whose interface is deleted or renamed is detached: its sockets are closed. When there
/// is an interface with its name again, it gets sockets on that one. Ports also get the speed of their interfaces from here.
///
/// It belongs to a thread of the same network namespace as the ports', and not to one that forwards frames: sockets are opened
/// and closed here.
#[derive(Debug)]
pub struct InterfaceWatch {
    netlink: Option<Arc<OwnedFd>>,
    sleeper: Sleeper,
    ports: Vec<WatchedPort>,
}

#[derive(Debug)]
struct WatchedPort {
    sides: Vec<Arc<Reattach>>,
    attachment: Attachment,
}

impl InterfaceWatch {
    /// `ports`: for each port the sides that threads have opened, none if it has no interface.
    ///
    /// # Errors
    /// The process has no free file descriptor. Without permission for netlink sockets, interfaces are read once per second.
    pub fn new(ports: Vec<Vec<Arc<Reattach>>>) -> io::Result<Self> {
        let mut sleeper = Sleeper::new()?;
        let netlink = match link_messages() {
            Ok(file) => Some(Arc::new(file)),
            Err(error) => {
                tracing::warn!(%error, "no netlink socket: changes of interfaces are noticed within a second");
                None
            }
        };
        if let Some(file) = &netlink {
            sleeper.add_file(file.clone())?;
        }
        for side in ports.iter().flatten() {
            side.wake_with(sleeper.waker());
        }
        let ports = ports.into_iter().map(|sides| WatchedPort {
            attachment: Attachment::new(sides.iter().any(|side| side.bound_to().is_some())),
            sides,
        });
        Ok(Self {
            netlink,
            sleeper,
            ports: ports.collect(),
        })
    }

    /// Ends a [`InterfaceWatch::sleep`].
    pub fn waker(&self) -> Waker {
        self.sleeper.waker()
    }

    /// Reads the interfaces, and detaches and attaches ports. Calls `changed` with the position of each port that is detached,
    /// with the reason, or attached again.
    pub fn poll(&mut self, now: Nanos, changed: &mut dyn FnMut(usize, Option<&Detached>)) {
        if let Some(file) = &self.netlink {
            take_messages(file);
        }
        for (position, port) in self.ports.iter_mut().enumerate() {
            port.poll(now, &mut |detached| changed(position, detached));
        }
        // Last, because the kernel may take long to answer.
        self.ports.iter().for_each(WatchedPort::read_speed);
    }

    /// Sleeps until an interface may have changed, or the waker is used. `ready` is as that of [`Sleeper::sleep`].
    pub fn sleep(&mut self, now: Nanos, ready: impl FnOnce() -> bool) {
        let longest = match self.netlink {
            Some(_) => SLEEP_MAX,
            None => UNTOLD_INTERVAL,
        };
        let due = self
            .ports
            .iter()
            .filter_map(|port| port.attachment.poll_timeout());
        let timeout = due
            .min()
            .map_or(longest, |at| Duration::from_nanos(at.since(now).0).min(longest));
        let ports = &self.ports;
        let mut sides = ports.iter().flat_map(|port| &port.sides);
        self.sleeper
            .sleep(timeout, || ready() || sides.any(|side| side.has_retired()));
    }
}

impl WatchedPort {
    fn poll(&mut self, now: Nanos, changed: &mut dyn FnMut(Option<&Detached>)) {
        self.sides.iter().for_each(|side| side.close_retired());
        let Some(sight) = self.sight() else { return };
        let before = self.attachment.detached().cloned();
        let wanted = self.attachment.handle_sight(now, &sight);
        let detached = self.attachment.detached();
        if detached != before.as_ref() {
            if before.is_none() {
                self.close();
            }
            changed(detached);
        }
        let Some(index) = wanted else { return };
        let before = detached.cloned();
        let opened = self.open().map_err(|error| match error {
            OpenError::NoSuchInterface(_) => Detached::Gone,
            _ => Detached::Refused {
                reason: error.to_string(),
            },
        });
        self.attachment.handle_opened(now, index, opened);
        let detached = self.attachment.detached();
        if detached != before.as_ref() {
            changed(detached);
        }
    }

    /// Reads the kernel's state.
    fn sight(&self) -> Option<Sight> {
        let first = self.sides.first()?;
        let name_of = |index| Some((index, first.name_of(index)?));
        let read = || {
            let bound = first.bound_to();
            let is_one = self.sides.iter().all(|side| side.bound_to() == bound);
            let bound = bound.filter(|_| is_one).and_then(name_of);
            let named = first.named();
            Sight { bound, named }
        };
        // It has had the port's name a moment ago, and is deleted or renamed since.
        let is_past = |sight: &Sight| match &sight.bound {
            Some((index, name)) => name == first.name() && sight.named != Some(*index),
            None => false,
        };
        let now = (0..READINGS).map(|_| read()).find(|sight| !is_past(sight));
        Some(now.unwrap_or_else(|| Sight {
            bound: None,
            named: first.named(),
        }))
    }

    fn read_speed(&self) {
        if let (Some(first), None) = (self.sides.first(), self.attachment.detached()) {
            let speed = first.read_speed();
            self.sides.iter().for_each(|side| side.set_speed(speed));
        }
    }

    fn close(&self) {
        self.sides.iter().for_each(|side| side.offer(None));
    }

    /// Opens sockets for all sides, or for none.
    fn open(&self) -> Result<(), OpenError> {
        let opened: Result<Vec<_>, _> = self.sides.iter().map(|side| side.open()).collect();
        for (side, sockets) in self.sides.iter().zip(opened?) {
            side.offer(Some(sockets));
        }
        Ok(())
    }
}

/// A socket on which the kernel reports each change of an interface of this network namespace.
fn link_messages() -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let file = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        flags,
        SockProtocol::NetlinkRoute,
    )?;
    let groups = libc::RTMGRP_LINK.cast_unsigned();
    bind(file.as_raw_fd(), &NetlinkAddr::new(0, groups))?;
    Ok(file)
}

/// Messages are cut to a few bytes. An overflow of the socket (ENOBUFS) is no failure: something has changed.
fn take_messages(file: &OwnedFd) {
    let mut start = [0; 16];
    for _ in 0..MESSAGES_MAX {
        if recv(file.as_raw_fd(), &mut start, MsgFlags::MSG_DONTWAIT) == Err(Errno::EAGAIN) {
            return;
        }
    }
}
