//! Announces a host to switches without a raw socket.

use std::ffi::OsString;
use std::io;
use std::net::{Ipv4Addr, UdpSocket};

use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{BindToDevice, DontRoute};

/// An address that no host uses (RFC 5737, TEST-NET-1).
const UNUSED_ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// UDP's discard service (RFC 863). The datagram is never sent, because the address cannot be resolved.
const DISCARD: u16 = 9;

/// Makes the kernel send an ARP request: sends a datagram to an unused address that is treated as on the link.
pub(super) fn announce(interface: &str, ip: Ipv4Addr) -> io::Result<()> {
    let socket = UdpSocket::bind((ip, 0))?;
    socket.set_nonblocking(true)?;
    setsockopt(&socket, BindToDevice, &OsString::from(interface))?;
    setsockopt(&socket, DontRoute, &true)?;
    socket.send_to(&[], (UNUSED_ADDRESS, DISCARD)).map(drop)
}
