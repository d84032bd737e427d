//! A port that plays a host inside the worker, without a thread or ring: frames are made when the worker receives,
//! and counted when it sends.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;

use castnet_port::{
    Backend, Batch, BoxPort, FrameBuf, Memory, OpenError, Pool, PoolBuf, Port, PortLink, PortSpec, PortStats,
    Sides, Sleeper,
};
use castnet_wire::{MacAddr, Nanos};

use super::{Live, Played, Stage};
use crate::host::Host;
use crate::plan::Plan;
use crate::template::HEADER;

/// A host of a plan, as a port of the switch.
#[derive(Clone)]
pub struct InCore {
    plan: Arc<Plan>,
    place: usize,
    mtu: usize,
    mac: MacAddr,
    stage: Arc<Stage>,
    live: Arc<Live>,
    report_to: Sender<Played>,
}

impl InCore {
    /// The host at index `place`. When the switch closes the port, its report is sent to `report_to`.
    pub fn new(
        plan: Arc<Plan>,
        place: usize,
        mac: MacAddr,
        stage: Arc<Stage>,
        live: Arc<Live>,
        report_to: Sender<Played>,
    ) -> Self {
        Self {
            plan,
            place,
            mtu: 4200,
            mac,
            stage,
            live,
            report_to,
        }
    }
}

impl From<InCore> for PortSpec {
    fn from(port: InCore) -> Self {
        Self::Custom(Arc::new(port))
    }
}

impl fmt::Debug for InCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}

impl Backend for InCore {
    fn open(&self, pool: &Pool, sides: Sides) -> Result<BoxPort, OpenError> {
        let host = Host::new(&self.plan, self.place, |bytes| pool.copy_from(bytes));
        let host = host.map_err(|e| OpenError::Other {
            name: self.text(),
            reason: e.to_string(),
        })?;
        Ok(Box::new(InCorePort {
            host,
            pool: pool.clone(),
            spec: self.clone(),
            receives: sides.receives(),
            stopped: false,
            now: Nanos::ZERO,
            stats: PortStats::default(),
        }))
    }

    fn text(&self) -> String {
        format!("bench:{}", self.place)
    }
}

struct InCorePort {
    host: Host<PoolBuf>,
    pool: Pool,
    spec: InCore,
    receives: bool,
    stopped: bool,
    now: Nanos,
    stats: PortStats,
}

impl Port for InCorePort {
    type Buf = PoolBuf;

    fn receive(&mut self, batch: &mut Batch<PoolBuf>) {
        if !self.receives || !self.spec.stage.go.load(Ordering::Acquire) {
            return;
        }
        if !self.stopped && self.spec.stage.stop.load(Ordering::Acquire) {
            self.stopped = true;
            self.host.stop();
        }
        let (frames, bytes) = (self.host.counts().sent, self.host.counts().sent_bytes);
        let pool = &self.pool;
        self.host
            .fill(self.now, batch, |original| pool.replicate(original, HEADER, true));
        self.stats.rx_frames += self.host.counts().sent - frames;
        self.stats.rx_bytes += self.host.counts().sent_bytes - bytes;
        self.spec.live.publish(self.host.counts());
    }

    fn send(&mut self, batch: &mut Batch<PoolBuf>) {
        for frame in batch.drain(..) {
            self.stats.tx_frames += 1;
            self.stats.tx_bytes += frame.length() as u64;
            self.host.take(self.now, &frame);
        }
    }

    fn info(&self) -> PortLink {
        PortLink {
            name: self.spec.text(),
            mac: self.spec.mac,
            mtu: self.spec.mtu,
            up: true,
            device: Default::default(),
        }
    }

    fn is_up(&self) -> bool {
        true
    }

    fn stats(&self) -> PortStats {
        self.stats
    }

    fn ready(&self) -> bool {
        self.receives
    }

    fn attach(&mut self, _: &mut Sleeper) -> io::Result<()> {
        Ok(())
    }

    fn poll(&mut self, now: Nanos) {
        self.now = now;
    }
}

impl Drop for InCorePort {
    fn drop(&mut self) {
        if self.receives {
            // The receiver may be gone.
            let _ = self.spec.report_to.send(Played {
                host: self.host.report(),
                port: PortStats::default(),
            });
        }
    }
}
