//! A DPDK device in the thread that uses it.

use std::io;
use std::sync::Arc;

use castnet_port::{
    Batch, FlowTable, FrameBuf, Memory, Port, PortDevice, PortLink, PortStats, RingUse, Sides, Sleeper,
    Steering, fits, frame_max,
};
use castnet_wire::{DropReason, Nanos};

use crate::error::DpdkError;
use crate::fence::device::{Device, Lane, RxQueue, TxQueue};
use crate::fence::mbuf::Mbuf;
use crate::flow::DeviceFlows;
use crate::memory::DpdkMemory;

/// How often the rest of a batch that the device did not take is offered again.
const OFFERS: usize = 3;

/// How a thread sends.
#[derive(Debug)]
enum Tx {
    /// On a queue of its own, and what others put down for it there.
    Own(TxQueue, Option<Arc<Lane>>),
    /// By the thread that takes from here, as the device has no queue left.
    Lane(Arc<Lane>),
}

/// One thread's queues of a device.
#[derive(Debug)]
pub struct DpdkPort {
    // Queues go before the device, which stops when nobody has it.
    rx: Vec<RxQueue>,
    tx: Tx,
    /// The receive queue that is asked first the next time.
    turn: usize,
    /// Whether this is the thread that tells what the device as a whole counts.
    first: bool,
    mtu: usize,
    multi_segment: bool,
    device: Arc<Device>,
    memory: DpdkMemory,
    stats: PortStats,
}

impl DpdkPort {
    /// Takes the queues of the thread that is the `rank`th of `threads`: the send queue of that number, if there is one, and
    /// the receive queues whose turn it is.
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
        let tx = match device.lane(rank) {
            Some(lane) => Tx::Lane(lane.clone()),
            None => Tx::Own(TxQueue::new(&device, rank)?, device.lanes.get(rank).cloned()),
        };
        Ok(Self {
            rx,
            tx,
            turn: 0,
            first: rank == 0,
            mtu: device.mtu,
            multi_segment: device.multi_segment,
            device,
            memory: memory.clone(),
            stats: PortStats::default(),
        })
    }

    /// Whether the device checks the IPv4 checksum of what it receives.
    pub fn has_rx_checksum(&self) -> bool {
        self.device.rx_checksum
    }

    /// Whether this thread sends through another's queue, as the device has fewer than there are threads.
    pub fn sends_through_another(&self) -> bool {
        matches!(self.tx, Tx::Lane(_))
    }

    fn check(&self, frame: &Mbuf) -> Result<(), DropReason> {
        if frame.length() < frame_max(0) - 4 {
            return Err(DropReason::Malformed);
        }
        if !fits(frame, self.mtu) {
            return Err(DropReason::TooLong);
        }
        Ok(())
    }

    /// Takes out of the batch what cannot go, and makes whole what must be.
    #[cold]
    fn sort_out(&mut self, batch: &mut Batch<Mbuf>) {
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

    /// Gives the device what it takes, and gives up the rest.
    fn offer(&mut self, batch: &mut Batch<Mbuf>) {
        let (frames, all) = (batch.len(), bytes(batch));
        let Tx::Own(queue, _) = &mut self.tx else { return };
        for _ in 0..OFFERS {
            if batch.is_empty() {
                break;
            }
            queue.send(batch);
        }
        self.stats.tx_frames += frames as u64;
        self.stats.tx_bytes += all;
        if !batch.is_empty() {
            self.stats.tx_frames -= batch.len() as u64;
            self.stats.tx_bytes -= bytes(batch);
            self.give_up(batch);
        }
    }

    /// Leaves the batch to the thread that sends for this one, which counts it as sent.
    fn put_down(&mut self, batch: &mut Batch<Mbuf>) {
        let Tx::Lane(lane) = &self.tx else { return };
        let mut lost = 0;
        for frame in batch.drain(..) {
            lost += usize::from(lane.push((), frame).is_err());
        }
        lane.wake();
        self.count_drops(DropReason::TxFull, lost);
    }

    #[cold]
    fn give_up(&mut self, batch: &mut Batch<Mbuf>) {
        let reason = if self.is_up() {
            DropReason::TxFull
        } else {
            DropReason::PortDown
        };
        self.count_drops(reason, batch.len());
        batch.clear();
    }
}

fn bytes(batch: &Batch<Mbuf>) -> u64 {
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
            let at = (self.turn + offset) % self.rx.len();
            let lost = self.rx[at].receive(batch, |parts| memory.gather(parts));
            self.stats.drops[DropReason::TooLong] += lost;
        }
        if self.rx.len() > 1 {
            self.turn = (self.turn + 1) % self.rx.len();
        }
        let received = batch.get(before..).unwrap_or_default();
        self.stats.rx_frames += received.len() as u64;
        self.stats.rx_bytes += received.iter().map(|f| f.length() as u64).sum::<u64>();
    }

    fn multi_segment(&self) -> bool {
        self.multi_segment
    }

    #[inline]
    fn send(&mut self, batch: &mut Batch<Mbuf>) {
        let can_go = |f: &Mbuf| self.check(f).is_ok() && (self.multi_segment || f.segment_count() == 1);
        if !batch.iter().all(can_go) {
            self.sort_out(batch);
        }
        match &self.tx {
            Tx::Own(..) => self.offer(batch),
            Tx::Lane(_) => self.put_down(batch),
        }
    }

    /// Sends what threads without a queue have put down here.
    fn poll(&mut self, _now: Nanos) {
        let Tx::Own(_, Some(lane)) = &self.tx else { return };
        let lane = lane.clone();
        let mut batch = Batch::new();
        // What comes meanwhile is the next round's.
        for _ in 0..lane.len() {
            let Some(((), frame)) = lane.pop() else { break };
            batch.push(frame);
            if batch.is_full() {
                self.offer(&mut batch);
            }
        }
        self.offer(&mut batch);
    }

    /// Frames that nobody has taken out of the ring yet.
    fn pending(&self) -> usize {
        match &self.tx {
            Tx::Lane(lane) => lane.len(),
            Tx::Own(..) => 0,
        }
    }

    fn info(&self) -> PortLink {
        PortLink {
            name: self.device.name().to_owned(),
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
        self.rx.iter().any(RxQueue::ready) || matches!(&self.tx, Tx::Own(_, Some(lane)) if !lane.is_empty())
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
        if self.device.rules() > 0 {
            Steering::FlowRules
        } else if self.device.rss {
            Steering::Rss
        } else {
            Steering::None
        }
    }

    fn flow_table(&self) -> Option<Arc<dyn FlowTable>> {
        DeviceFlows::of(&self.device)
    }

    /// Nothing wakes who waits for a device: it is polled. Who sends for others is woken by them.
    fn attach(&mut self, sleeper: &mut Sleeper) -> io::Result<()> {
        match &self.tx {
            Tx::Own(_, Some(lane)) => lane.attach(sleeper),
            _ => Ok(()),
        }
    }
}
