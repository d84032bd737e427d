//! What a port that receives has of its interface, beside sockets.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::thread;
use std::time::Duration;

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

/// How often a claim is tried again, and after how long: a switch that has just been killed, or a process that was begun with its descriptors, may
/// still have it.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(10);

/// Claims an interface for a switch: a name that is bound once. It is one of the network namespace, as the interface is, and ends with the process.
fn claimed(spec: &AfPacketSpec, index: u32) -> Result<UnixDatagram, OpenError> {
    let bind = || {
        let name = SocketAddr::from_abstract_name(format!("castnet/port/{index}"))?;
        UnixDatagram::bind_addr(&name)
    };
    let is_taken = |error: &io::Error| error.kind() == io::ErrorKind::AddrInUse;
    let mut bound = bind();
    for _ in 0..TRIES {
        if !bound.as_ref().is_err_and(is_taken) {
            break;
        }
        thread::sleep(PAUSE);
        bound = bind();
    }
    bound.map_err(|error| match is_taken(&error) {
        true => OpenError::HasSwitch {
            interface: spec.interface.clone(),
            index,
        },
        false => failed(spec, "claim it", "are Unix sockets in this kernel?")(error),
    })
}
