//! What a port that receives has of its interface, beside sockets.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use super::AfPacketSpec;
use super::offload::DisabledReceive;
use super::sockets::{Interface, failed};
use crate::port::Sides;
use crate::spec::OpenError;

/// The receive offload is disabled, and no other switch has the interface. Both end on drop.
#[derive(Debug)]
pub(super) struct Held {
    index: u32,
    claim: Option<UnixDatagram>,
    disabled: Option<DisabledReceive>,
}

impl Held {
    /// `known`: what the port had before.
    pub(super) fn new(
        spec: &AfPacketSpec,
        sides: Sides,
        interface: &Interface,
        known: Option<Self>,
    ) -> Result<Self, OpenError> {
        let index = interface.index;
        let known = known.filter(|known| known.index == index);
        let (claim, disabled) = known.map_or((None, None), |known| (known.claim, known.disabled));
        let claim = match claim {
            None if sides.receives() && spec.is_exclusive => Some(claimed(spec, index)?),
            known => known,
        };
        Ok(Self {
            index,
            claim,
            disabled: DisabledReceive::new(spec, sides, interface, disabled),
        })
    }
}

/// Claims an interface for a switch: a name that is bound once. It is one of the network namespace, as the interface is, and ends with the process.
fn claimed(spec: &AfPacketSpec, index: u32) -> Result<UnixDatagram, OpenError> {
    let name = SocketAddr::from_abstract_name(format!("castnet/port/{index}"));
    name.and_then(|name| UnixDatagram::bind_addr(&name))
        .map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => OpenError::HasSwitch {
                interface: spec.interface.clone(),
                index,
            },
            _ => failed(spec, "claim it", "are Unix sockets in this kernel?")(error),
        })
}
