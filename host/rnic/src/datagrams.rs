//! UDP datagrams beside RoCEv2, for registration (MRP): the software RNIC sends and receives them itself, so its host needs no address
//! in a kernel.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::time::Duration;

use castnet_port::Waker;
use castnet_wire::{Datagram, MacAddr};
use crossbeam::channel::{Receiver, Sender, TryRecvError, bounded};

/// Datagrams that wait in one direction: all 255 packets of the largest registration. Further ones are dropped.
const QUEUE: usize = 256;

type Sent = (SocketAddrV4, Box<[u8]>);
/// With the address that the sender has given.
type Received = (Ipv4Addr, Box<[u8]>);

/// A UDP port of an RNIC ([`crate::Rnic::datagrams`]), for any thread. The thread of the RNIC carries the datagrams while it polls, also after
/// this is dropped. Datagrams may be lost.
#[derive(Debug)]
pub struct Datagrams {
    to: Sender<Sent>,
    from: Receiver<Received>,
    waker: Waker,
}

impl Datagrams {
    /// Sends a payload of at most [`castnet_wire::datagram::PAYLOAD_MAX`] bytes once the next hop has answered ARP. It is dropped if that
    /// does not answer, or if too many datagrams wait.
    pub fn send(&self, to: SocketAddrV4, payload: &[u8]) {
        if self.to.try_send((to, payload.into())).is_ok() {
            self.waker.wake();
        }
    }

    /// The next payload that was sent to this address and port, with right checksums, and its source address. `None` after `timeout`.
    pub fn receive(&self, timeout: Duration) -> Option<(Ipv4Addr, Box<[u8]>)> {
        self.from.recv_timeout(timeout).ok()
    }
}

/// The RNIC's side of a UDP port.
#[derive(Debug)]
pub(crate) struct UdpPort {
    port: u16,
    sent: Receiver<Sent>,
    received: Sender<Received>,
    /// Their next hops have not answered yet.
    waiting: VecDeque<Sent>,
    /// Keeps the kernel from answering with ICMP errors. Never read.
    _kernel_port: Option<UdpSocket>,
}

impl UdpPort {
    pub(crate) fn open(port: u16, kernel_port: Option<UdpSocket>, waker: Waker) -> (Self, Datagrams) {
        let (to, sent) = bounded(QUEUE);
        let (received, from) = bounded(QUEUE);
        let waiting = VecDeque::new();
        let own = Self {
            port,
            sent,
            received,
            waiting,
            _kernel_port: kernel_port,
        };
        (own, Datagrams { to, from, waker })
    }

    /// Whether a datagram was handed over that has not been taken yet.
    pub(crate) fn has_work(&self) -> bool {
        !self.sent.is_empty()
    }

    /// Moves what was handed over to what waits. Returns false once the user has gone and nothing waits: nothing will.
    pub(crate) fn collect(&mut self) -> bool {
        while self.waiting.len() < QUEUE {
            match self.sent.try_recv() {
                Ok(sent) => self.waiting.push_back(sent),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return !self.waiting.is_empty(),
            }
        }
        true
    }

    /// Removes and returns each datagram that waits and for which `next_hop` has a result, as a frame from these addresses. A next hop
    /// that is `Some(None)` does not answer: its datagram is dropped.
    pub(crate) fn due(
        &mut self,
        (mac, ip): (MacAddr, Ipv4Addr),
        mut next_hop: impl FnMut(Ipv4Addr) -> Option<Option<MacAddr>>,
        mut send: impl FnMut(Vec<u8>),
    ) {
        let port = self.port;
        self.waiting.retain(|(to, payload)| {
            let Some(next_hop) = next_hop(*to.ip()) else {
                return true;
            };
            let frame = |next_hop| {
                let datagram = Datagram {
                    macs: (next_hop, mac),
                    from: (ip, port),
                    to: (*to.ip(), to.port()),
                    payload,
                };
                datagram.to_frame()
            };
            next_hop.map(frame).into_iter().for_each(&mut send);
            false
        });
    }
}

/// Gives a frame to all users of its UDP port. Returns false if it is not for one of these ports.
pub(crate) fn receive(ports: &[UdpPort], ip: Ipv4Addr, frame: &[u8]) -> bool {
    if !ports.iter().any(|open| is_to(frame, open.port)) {
        return false;
    }
    let Some(datagram) = Datagram::parse(frame).ok().filter(|datagram| datagram.to.0 == ip) else {
        return true;
    };
    for open in ports.iter().filter(|open| open.port == datagram.to.1) {
        // A user that does not keep up gets the repetition.
        let _ = open.received.try_send((datagram.from.0, datagram.payload.into()));
    }
    true
}

/// Whether a frame is an untagged IPv4 packet to this UDP port, if its headers are right.
fn is_to(frame: &[u8], port: u16) -> bool {
    let options = || Some(usize::from(frame.get(14)? & 0xF).checked_sub(5)? * 4);
    frame.get(12..14) == Some(&[0x08, 0x00])
        && frame.get(23) == Some(&castnet_wire::ipv4::PROTOCOL_UDP)
        && options().is_some_and(|more| frame.get(36 + more..38 + more) == Some(&port.to_be_bytes()))
}
