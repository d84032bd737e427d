//! [`DpdkPort`]: a thread's queues of a DPDK device.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use castnet_port::{
    Batch, FlowTable, FrameBuf, Memory, Port, PortDevice, PortLink, PortStats, RingUse, Sides, Sleeper,
    Steering, fits, frame_max,
};
use castnet_wire::{DropReason, Nanos};

use crate::error::DpdkError;
use crate::fence::device::{Device, RxQueue, SendRing, TxQueue};
use crate::fence::mbuf::Mbuf;
use crate::flow::DeviceFlowTable;
use crate::memory::DpdkMemory;

const SEND_ATTEMPTS: usize = 3;

#[derive(Debug)]
enum Tx {
    /// On its own queue, which also sends the frames that other threads put into the ring.
    Own(TxQueue, Option<Arc<SendRing>>),
    /// Through the thread that reads this ring, because the device has no further send queue.
    Through(Arc<SendRing>),
}

/// One thread's queues of a device.
#[derive(Debug)]
pub struct DpdkPort {
    // Queues are dropped before the device, which stops with its last owner.
    rx: Vec<RxQueue>,
    tx: Tx,
    next_queue: usize,
    /// True if this thread reports the counters of the whole device.
    first: bool,
    mtu: usize,
    multi_segment: bool,
    device: Arc<Device>,
    memory: DpdkMemory,
    stats: PortStats,
}

impl DpdkPort {
    /// Takes the send queue with index `rank`, if there is one, and this thread's share of the receive queues.
    pub(crate) fn open(
        device: Arc<Device>,
        memory: &DpdkMemory,
        sides: Sides,
        rank: usize,
        threads: usize,
        queues: usize,
    ) -> Result<Self, DpdkError> {
        let mine = (rank..queues).step_by(threads.max(1));
        let rx = match sides {
            Sides::Both => mine
                .map(|queue| RxQueue::new(&device, queue))
                .collect::<Result<_, _>>()?,
            Sides::Send => Vec::new(),
        };
        let tx = match device.send_ring(rank) {
            Some(send_ring) => Tx::Through(send_ring.clone()),
            None => Tx::Own(TxQueue::new(&device, rank)?, device.send_rings.get(rank).cloned()),
        };
        Ok(Self {
            rx,
            tx,
            next_queue: 0,
            first: rank == 0,
            mtu: device.mtu,
            multi_segment: device.multi_segment,
            device,
            memory: memory.clone(),
            stats: PortStats::default(),
        })
    }

    fn check(&self, frame: &Mbuf) -> Result<(), DropReason> {
        if frame.length() < frame_max(0) - 4 {
            Err(DropReason::Malformed)
        } else if !fits(frame, self.mtu) {
            Err(DropReason::TooLong)
        } else {
            Ok(())
        }
    }

    /// Drops frames that cannot be sent, and copies frames that must have one segment.
    #[cold]
    fn drop_unsendable(&mut self, batch: &mut Batch<Mbuf>) {
        for mut frame in std::mem::take(batch) {
            let mut fate = self.check(&frame);
            if fate.is_ok() && frame.segment_count() > 1 && !self.multi_segment {
                match self.memory.gather(&frame.segments()) {
                    Some(whole) => frame = whole,
                    None => fate = Err(DropReason::TxFull),
                }
            }
            match fate {
                Ok(()) => batch.push(frame),
                Err(reason) => self.count_drops(reason, 1),
            }
        }
    }

    fn count_drops(&mut self, reason: DropReason, frames: usize) {
        self.stats.drops[reason] += frames as u64;
    }

    fn send_or_drop(&mut self, batch: &mut Batch<Mbuf>) {
        self.send_some(batch);
        if !batch.is_empty() {
            self.drop_unsent(batch);
        }
    }

    /// Frames that the device has no capacity for stay in the batch.
    fn send_some(&mut self, batch: &mut Batch<Mbuf>) {
        let (frames, all) = (batch.len(), bytes(batch));
        let Tx::Own(queue, _) = &mut self.tx else { return };
        for _ in 0..SEND_ATTEMPTS {
            if batch.is_empty() {
                break;
            }
            queue.send(batch);
        }
        self.stats.tx_frames += (frames - batch.len()) as u64;
        self.stats.tx_bytes += all - bytes(batch);
    }

    /// The thread that sends for this one counts the frames as sent.
    fn queue_for_sender(&mut self, batch: &mut Batch<Mbuf>) {
        let Tx::Through(send_ring) = &self.tx else { return };
        let mut lost = 0;
        for frame in batch.drain(..) {
            lost += usize::from(send_ring.push((), frame).is_err());
        }
        send_ring.wake();
        self.count_drops(DropReason::TxFull, lost);
    }

    #[cold]
    fn drop_unsent(&mut self, batch: &mut Batch<Mbuf>) {
        let reason = if self.is_up() {
            DropReason::TxFull
        } else {
            DropReason::PortDown
        };
        self.count_drops(reason, batch.len());
        batch.clear();
    }
}

fn bytes(batch: &[Mbuf]) -> u64 {
    batch.iter().map(|f| f.length() as u64).sum()
}

impl Port for DpdkPort {
    type Buf = Mbuf;

    #[inline]
    fn receive(&mut self, batch: &mut Batch<Mbuf>) {
        let (before, memory) = (batch.len(), &self.memory);
        for offset in 0..self.rx.len() {
            if batch.is_full() {
                break;
            }
            let at = (self.next_queue + offset) % self.rx.len();
            let lost = self.rx[at].receive(batch, |parts| memory.gather(parts));
            self.stats.drops[DropReason::TooLong] += lost;
        }
        if self.rx.len() > 1 {
            self.next_queue = (self.next_queue + 1) % self.rx.len();
        }
        let received = batch.get(before..).unwrap_or_default();
        self.stats.rx_frames += received.len() as u64;
        self.stats.rx_bytes += bytes(received);
    }

    fn multi_segment(&self) -> bool {
        self.multi_segment
    }

    #[inline]
    fn send(&mut self, batch: &mut Batch<Mbuf>) {
        self.offer(batch);
        if !batch.is_empty() {
            self.drop_unsent(batch);
        }
    }

    /// A thread without a send queue hands all over.
    fn offer(&mut self, batch: &mut Batch<Mbuf>) {
        let can_go = |f: &Mbuf| self.check(f).is_ok() && (self.multi_segment || f.segment_count() == 1);
        if !batch.iter().all(can_go) {
            self.drop_unsendable(batch);
        }
        match &self.tx {
            Tx::Own(..) => self.send_some(batch),
            Tx::Through(_) => self.queue_for_sender(batch),
        }
        if !batch.is_empty() && !self.is_up() {
            self.drop_unsent(batch);
        }
    }

    /// Sends the frames of threads without a send queue.
    fn poll(&mut self, _now: Nanos) {
        let Tx::Own(_, Some(send_ring)) = &self.tx else {
            return;
        };
        let send_ring = send_ring.clone();
        let mut batch = Batch::new();
        for _ in 0..send_ring.len() {
            let Some(((), frame)) = send_ring.pop() else { break };
            batch.push(frame);
            if batch.is_full() {
                self.send_or_drop(&mut batch);
            }
        }
        self.send_or_drop(&mut batch);
    }

    fn pending(&self) -> usize {
        match &self.tx {
            Tx::Through(send_ring) => send_ring.len(),
            Tx::Own(..) => 0,
        }
    }

    fn info(&self) -> PortLink {
        PortLink {
            name: self.device.probed.name.clone(),
            mac: self.device.info.mac,
            mtu: self.mtu,
            up: self.is_up(),
            device: PortDevice {
                driver: self.device.info.driver.clone(),
                speed_mbps: self.speed_mbps(),
                rx_queues: self.device.rx_queues,
                tx_queues: Some(self.device.tx_queues),
                steering: self.steering(),
                multi_segment: self.multi_segment,
                numa_node: self.device.info.numa_node,
                ..PortDevice::default()
            },
        }
    }

    fn mtu(&self) -> usize {
        self.mtu
    }

    fn is_up(&self) -> bool {
        self.device.link().0
    }

    fn stats(&self) -> PortStats {
        let rx_missed = if self.first { self.device.missed() } else { 0 };
        PortStats {
            rx_missed,
            ..self.stats
        }
    }

    fn ready(&self) -> bool {
        self.rx.iter().any(RxQueue::ready)
            || matches!(&self.tx, Tx::Own(_, Some(send_ring)) if !send_ring.is_empty())
    }

    fn receive_ring(&self) -> Option<RingUse> {
        let mut sum = RingUse::default();
        for queue in &self.rx {
            sum.used += queue.waiting()?;
            sum.size += queue.size();
        }
        (sum.size > 0).then_some(sum)
    }

    fn speed_mbps(&self) -> Option<u32> {
        Some(self.device.link().1).filter(|mbps| *mbps > 0)
    }

    fn steering(&self) -> Steering {
        if self.device.rules.load(Ordering::Relaxed) > 0 {
            Steering::FlowRules
        } else if self.device.rss {
            Steering::Rss
        } else {
            Steering::None
        }
    }

    fn flow_table(&self) -> Option<Arc<dyn FlowTable>> {
        DeviceFlowTable::of(&self.device)
    }

    /// A device cannot wake a thread; it is polled. A thread that sends for others is woken by them.
    fn attach(&mut self, sleeper: &mut Sleeper) -> io::Result<()> {
        match &self.tx {
            Tx::Own(_, Some(send_ring)) => send_ring.attach(sleeper),
            _ => Ok(()),
        }
    }
}
