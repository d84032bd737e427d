//! One RNIC for several communicators of a thread.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use castnet_rnic::{
    Access, Completion, Datagrams, DeviceAttributes, Lent, MemoryKey, MemoryRegion, QpOptions, QpRemote,
    QpState, RecvWr, Rnic, RnicError, SendWr, Traffic, Waker,
};
use castnet_wire::{Nanos, Qpn};

/// An RNIC that several communicators of one thread share; each holds a clone. Polling any clone moves the traffic of
/// all. The collectives of a communicator progress when that communicator is called.
#[derive(Clone)]
pub struct SharedRnic {
    attributes: Rc<DeviceAttributes>,
    inner: Rc<RefCell<Box<dyn Rnic>>>,
}

impl SharedRnic {
    /// Shares an RNIC.
    pub fn new(rnic: Box<dyn Rnic>) -> Self {
        Self {
            attributes: Rc::new(rnic.attributes().clone()),
            inner: Rc::new(RefCell::new(rnic)),
        }
    }
}

impl Rnic for SharedRnic {
    fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }

    fn traffic(&self) -> Traffic {
        self.inner.borrow().traffic()
    }

    fn now(&self) -> Nanos {
        self.inner.borrow().now()
    }

    fn register_memory(&mut self, length: usize, access: Access) -> Result<MemoryRegion, RnicError> {
        self.inner.borrow_mut().register_memory(length, access)
    }

    fn deregister_memory(&mut self, key: MemoryKey) -> Result<(), RnicError> {
        self.inner.borrow_mut().deregister_memory(key)
    }

    fn lend_memory(&mut self, memory: Lent) -> Result<MemoryKey, (Lent, RnicError)> {
        self.inner.borrow_mut().lend_memory(memory)
    }

    fn end_lending(&mut self, key: MemoryKey) -> Result<Lent, RnicError> {
        self.inner.borrow_mut().end_lending(key)
    }

    fn read_memory(&self, key: MemoryKey, offset: u64, out: &mut [u8]) -> Result<(), RnicError> {
        self.inner.borrow().read_memory(key, offset, out)
    }

    fn write_memory(&mut self, key: MemoryKey, offset: u64, bytes: &[u8]) -> Result<(), RnicError> {
        self.inner.borrow_mut().write_memory(key, offset, bytes)
    }

    fn create_qp(&mut self, options: &QpOptions) -> Result<Qpn, RnicError> {
        self.inner.borrow_mut().create_qp(options)
    }

    fn connect_qp(&mut self, qpn: Qpn, remote: &QpRemote, timeout: Duration) -> Result<(), RnicError> {
        self.inner.borrow_mut().connect_qp(qpn, remote, timeout)
    }

    fn qp_state(&self, qpn: Qpn) -> Result<QpState, RnicError> {
        self.inner.borrow().qp_state(qpn)
    }

    fn reset_qp(&mut self, qpn: Qpn) -> Result<(), RnicError> {
        self.inner.borrow_mut().reset_qp(qpn)
    }

    fn fail_qp(&mut self, qpn: Qpn) -> Result<(), RnicError> {
        self.inner.borrow_mut().fail_qp(qpn)
    }

    fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), RnicError> {
        self.inner.borrow_mut().destroy_qp(qpn)
    }

    fn post_send(&mut self, qpn: Qpn, wr: SendWr) -> Result<(), RnicError> {
        self.inner.borrow_mut().post_send(qpn, wr)
    }

    fn post_recv(&mut self, qpn: Qpn, wr: RecvWr) -> Result<(), RnicError> {
        self.inner.borrow_mut().post_recv(qpn, wr)
    }

    fn poll(&mut self, now: Nanos) -> Result<bool, RnicError> {
        self.inner.borrow_mut().poll(now)
    }

    fn poll_send_completion(&mut self, qpn: Qpn) -> Option<Completion> {
        self.inner.borrow_mut().poll_send_completion(qpn)
    }

    fn poll_recv_completion(&mut self, qpn: Qpn) -> Option<Completion> {
        self.inner.borrow_mut().poll_recv_completion(qpn)
    }

    fn datagrams(&mut self, port: u16) -> Option<Datagrams> {
        self.inner.borrow_mut().datagrams(port)
    }

    fn announce(&mut self) -> Result<(), RnicError> {
        self.inner.borrow_mut().announce()
    }

    fn wait_unless(&mut self, timeout: Duration, ready: &dyn Fn() -> bool) -> Result<(), RnicError> {
        self.inner.borrow_mut().wait_unless(timeout, ready)
    }

    fn waker(&self) -> Waker {
        self.inner.borrow().waker()
    }
}
