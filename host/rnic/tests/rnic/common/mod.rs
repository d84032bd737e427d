//! Two software RNICs on a link, in one thread and in virtual time.
#![allow(dead_code, unreachable_pub)]

use castnet_port::{FaultControl, Faults, Faulty, MemLink, MemLinkConfig, MemPort, Pool, PoolConfig, Sides};
use castnet_rnic::{QpOptions, QpRemote, Resolution, Rnic, SoftRnic, SoftRnicConfig};
use castnet_wire::{Nanos, Psn, Qpn};
use std::net::Ipv4Addr;
use std::time::Duration;

pub const IPS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];
pub const NO_WAIT: Duration = Duration::ZERO;

pub type Soft = SoftRnic<Faulty<MemPort>>;

/// Two RNICs on a link whose ends may drop, duplicate, reorder and damage frames.
pub struct Net {
    pub rnics: [Soft; 2],
    pub now: Nanos,
}

impl Net {
    pub fn new(mtu: usize, faults: Faults, seed: u64) -> Self {
        let pool = Pool::new(PoolConfig {
            buffers: 1024,
            bodies: 1024,
            frame_max: mtu + 18,
        });
        let (a, b) = MemLink::pair(&MemLinkConfig::between("left", "right").mtu(mtu));
        let mut ends = [Some(a), Some(b)];
        let rnics = [0, 1].map(|i| {
            let control = FaultControl::new(seed + i as u64).with(faults, Faults::NONE);
            let port = ends[i].take().unwrap().open(&pool, Sides::Both);
            let config = SoftRnicConfig::new(IPS[i]);
            SoftRnic::new(control.wrap(port, 0), pool.clone(), config).unwrap()
        });
        Self {
            rnics,
            now: Nanos::from_millis(1),
        }
    }

    pub fn quiet() -> Self {
        Self::new(1500, Faults::NONE, 0)
    }

    /// One iteration of both RNICs, some microseconds apart.
    pub fn step(&mut self) {
        self.now += Nanos::from_micros(5);
        for rnic in &mut self.rnics {
            rnic.poll(self.now).unwrap();
        }
    }

    pub fn iterate(&mut self, count: usize) {
        (0..count).for_each(|_| self.step());
    }

    /// Connects a QP at each end to the other. ARP is resolved afterwards.
    pub fn connect(&mut self, change: impl Fn(&mut QpRemote)) -> [Qpn; 2] {
        for i in 0..2 {
            self.rnics[i].resolve(self.now, IPS[1 - i]);
        }
        while (0..2).any(|i| {
            !matches!(
                self.rnics[i].resolve(self.now, IPS[1 - i]),
                Resolution::Reachable(_)
            )
        }) {
            self.step();
        }
        let qpns = [0, 1].map(|i| self.rnics[i].create_qp(&QpOptions::default()).unwrap());
        for i in 0..2 {
            let psns = [Psn::new(0xFF_FFF0), Psn::new(77)];
            let mut remote = QpRemote {
                sq_psn: psns[i],
                rq_psn: psns[1 - i],
                timeout: 10,
                ..QpRemote::new(IPS[1 - i], qpns[1 - i])
            };
            change(&mut remote);
            self.rnics[i].connect_qp(qpns[i], &remote, NO_WAIT).unwrap();
        }
        qpns
    }
}
