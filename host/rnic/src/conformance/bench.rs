//! The setup of the checks: one device whose QPs are connected to each other, or two connected devices.

use std::time::Duration;

use castnet_port::{MemLink, MemLinkConfig, MemPort, Pool, PoolConfig, Sides};
use std::net::Ipv4Addr;

use crate::error::RnicError;
use crate::rnic::Rnic;
use crate::soft::{SoftRnic, SoftRnicConfig};

/// Time for which one of two devices sleeps before the other is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Two ends, 0 and 1, whose RNICs can reach each other.
pub trait Bench {
    /// The RNIC of an end.
    fn rnic(&mut self, end: usize) -> &mut dyn Rnic;

    /// Polls. Without work, sleeps until an event or for `at_most`; of two devices, each sleeps only briefly. Returns
    /// true if it slept.
    fn poll_or_wait(&mut self, at_most: Duration) -> Result<bool, RnicError>;
}

/// Both ends on one device.
pub struct OneDevice<'a>(pub &'a mut dyn Rnic);

impl Bench for OneDevice<'_> {
    fn rnic(&mut self, _end: usize) -> &mut dyn Rnic {
        self.0
    }

    fn poll_or_wait(&mut self, at_most: Duration) -> Result<bool, RnicError> {
        Ok(!self.0.poll_or_wait(at_most)?)
    }
}

/// One end on each of two devices.
pub struct TwoDevices<A, B>(pub A, pub B);

impl<A: Rnic, B: Rnic> Bench for TwoDevices<A, B> {
    fn rnic(&mut self, end: usize) -> &mut dyn Rnic {
        if end == 0 { &mut self.0 } else { &mut self.1 }
    }

    fn poll_or_wait(&mut self, at_most: Duration) -> Result<bool, RnicError> {
        let (now, also) = (self.0.now(), self.1.now());
        let (a, b) = (self.0.poll(now)?, self.1.poll(also)?);
        let idle = !a && !b;
        if idle {
            self.0.wait(at_most.min(POLL_INTERVAL))?;
        }
        Ok(idle)
    }
}

/// Creates two software RNICs on a memory link with this MTU. Fails if it is too small or no descriptor is free.
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
