//! Showing switches where a host is, without a raw socket.

use std::ffi::OsString;
use std::io;
use std::net::{Ipv4Addr, UdpSocket};

use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{BindToDevice, DontRoute};

/// An address that no host has (RFC 5737, TEST-NET-1).
const NOBODY: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// UDP's discard service (RFC 863): the datagram never leaves, as nobody answers for its address.
const DISCARD: u16 = 9;

/// Has the kernel ask by ARP, on this interface and from this address, for somebody who is not there: a datagram to an
/// address that is to be taken as on the link.
pub(super) fn announce(interface: &str, ip: Ipv4Addr) -> io::Result<()> {
    let socket = UdpSocket::bind((ip, 0))?;
    socket.set_nonblocking(true)?;
    setsockopt(&socket, BindToDevice, &OsString::from(interface))?;
    setsockopt(&socket, DontRoute, &true)?;
    socket.send_to(&[], (NOBODY, DISCARD)).map(drop)
}
