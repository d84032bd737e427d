//! What the checks run on: one device whose QPs talk to each other, or two with a link between.

use std::time::Duration;

use castnet_port::{MemLink, MemLinkConfig, MemPort, Pool, PoolConfig, Sides};
use std::net::Ipv4Addr;

use crate::error::RnicError;
use crate::rnic::Rnic;
use crate::soft::{SoftRnic, SoftRnicConfig};

/// How long one of two devices sleeps before the other is looked at.
const NAP: Duration = Duration::from_millis(1);

/// Two ends, 0 and 1, whose RNICs reach each other.
pub trait Bench {
    /// The RNIC of an end.
    fn rnic(&mut self, end: usize) -> &mut dyn Rnic;

    /// Polls, and sleeps where there was nothing to do: until an event of the device, for `at_most`. Two devices take turns,
    /// so each sleeps a moment only. Returns whether it slept.
    ///
    /// # Errors
    /// A device failed.
    fn turn(&mut self, at_most: Duration) -> Result<bool, RnicError>;
}

/// Both ends on one device.
pub struct OneDevice<'a>(pub &'a mut dyn Rnic);

impl Bench for OneDevice<'_> {
    fn rnic(&mut self, _end: usize) -> &mut dyn Rnic {
        self.0
    }

    fn turn(&mut self, at_most: Duration) -> Result<bool, RnicError> {
        let now = self.0.now();
        let idle = !self.0.poll(now)?;
        if idle {
            self.0.wait(at_most)?;
        }
        Ok(idle)
    }
}

/// An end on each of two devices.
pub struct TwoDevices<A, B>(pub A, pub B);

impl<A: Rnic, B: Rnic> Bench for TwoDevices<A, B> {
    fn rnic(&mut self, end: usize) -> &mut dyn Rnic {
        if end == 0 { &mut self.0 } else { &mut self.1 }
    }

    fn turn(&mut self, at_most: Duration) -> Result<bool, RnicError> {
        let (now, also) = (self.0.now(), self.1.now());
        let (a, b) = (self.0.poll(now)?, self.1.poll(also)?);
        let idle = !a && !b;
        if idle {
            self.0.wait(at_most.min(NAP))?;
        }
        Ok(idle)
    }
}

/// Two software RNICs on a link in memory, of this MTU.
///
/// # Errors
/// The MTU is too small, or the process has no file descriptor left.
pub fn software(mtu: usize) -> Result<TwoDevices<SoftRnic<MemPort>, SoftRnic<MemPort>>, RnicError> {
    let pool = Pool::new(PoolConfig {
        buffers: 1024,
        bodies: 1024,
        frame_max: mtu + 18,
    });
    let (a, b) = MemLink::pair(&MemLinkConfig::between("left", "right").mtu(mtu));
    let rnic = |end: castnet_port::MemEnd, last| {
        let config = SoftRnicConfig::new(Ipv4Addr::new(10, 0, 0, last));
        SoftRnic::new(end.open(&pool, Sides::Both), pool.clone(), config)
    };
    Ok(TwoDevices(rnic(a, 1)?, rnic(b, 2)?))
}
