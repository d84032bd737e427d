//! An endless source, and receivers that acknowledge now and then, as RNICs do that coalesce ACKs. The frames of a file
//! repeat, so each received frame gets the next PSN and its ICRC. The cost counts as the switch's.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use castnet_dpdk_tests::frames::ack;
use castnet_dpdk_tests::gate::PSN;
use castnet_dpdk_tests::wrap::{Wrap, receiving};
use castnet_port::{Batch, FrameBuf, Memory, MemoryPort, PortSpec, Sides};
use castnet_wire::icrc::{HeaderDelta, Shift};
use castnet_wire::{Psn, Syndrome};

const EVERY: u32 = 4096;
/// Frames that may be inside the switch, which are not acknowledged yet.
const LAG: u32 = 1024;

#[derive(Debug)]
pub(crate) struct Stream {
    /// The group, as in [`ack`].
    pub(crate) group: usize,
    /// The PSN is its lower 24 bits.
    pub(crate) sent: AtomicU32,
    pub(crate) end: Option<u32>,
}

#[derive(Clone, Debug)]
pub(crate) enum Role {
    /// The source of a group, and the bytes of payload of its packets, which have PSN 0 in the file.
    Source(Arc<Stream>, usize),
    /// Of these groups at this port of the switch.
    Receiver(usize, Vec<Arc<Stream>>),
}

/// Roles by device name. No frame is received before `open`.
#[derive(Debug, Default)]
pub(crate) struct Roles {
    pub(crate) roles: BTreeMap<String, Role>,
    pub(crate) open: AtomicBool,
}

#[derive(Clone)]
pub(crate) struct Endless(pub(crate) Arc<Roles>);

impl<M: Memory> Wrap<M> for Endless {
    fn wrap(&self, inner: MemoryPort<M>, memory: &M, spec: &PortSpec, sides: Sides) -> MemoryPort<M> {
        let role = spec.dpdk().and_then(|spec| self.0.roles.get(&spec.device));
        match role.filter(|_| sides.receives()) {
            None => inner,
            Some(Role::Source(stream, payload)) => {
                let mut source = Source {
                    stream: stream.clone(),
                    roles: self.0.clone(),
                    change: 0,
                    steps: steps(*payload),
                };
                receiving::<M>(inner, move |inner, batch| source.receive::<M>(inner, batch))
            }
            Some(Role::Receiver(port, streams)) => {
                let mut receiver = Receiver {
                    memory: memory.clone(),
                    port: *port,
                    streams: streams.iter().map(|stream| (stream.clone(), 0)).collect(),
                };
                receiving::<M>(inner, move |inner, batch| receiver.receive(inner, batch))
            }
        }
    }
}

struct Source {
    stream: Arc<Stream>,
    roles: Arc<Roles>,
    /// Difference (XOR) of the ICRC with the next PSN to the ICRC with PSN 0.
    change: u32,
    steps: [u32; 24],
}

/// Difference of the ICRC between a PSN with `i` trailing ones and the next, in which these bits and the one before
/// flip. This takes little time of the switch's core.
fn steps(payload: usize) -> [u32; 24] {
    let after = Shift::by_bytes(payload);
    std::array::from_fn(|ones| {
        let flipped = Psn::new((2 << ones) - 1);
        after.apply(HeaderDelta::psn(Psn::new(0), flipped).at_bth())
    })
}

impl Source {
    fn receive<M: Memory>(&mut self, inner: &mut MemoryPort<M>, batch: &mut Batch<M::Buf>) {
        // Only this source writes it.
        let mut sent = self.stream.sent.load(Ordering::Relaxed);
        if !self.roles.open.load(Ordering::Relaxed) || self.stream.end.is_some_and(|end| sent >= end) {
            return;
        }
        let before = batch.len();
        inner.receive(batch);
        for frame in &mut batch[before..] {
            let psn = Psn::new(sent & 0xFF_FFFF);
            if let Some(bytes) = frame.head_mut().get_mut(PSN) {
                bytes.copy_from_slice(&psn.value().to_be_bytes()[1..]);
            }
            let icrc = u32::from_le_bytes(frame.trailer()) ^ self.change;
            frame.set_trailer(icrc.to_le_bytes());
            let ones = psn.value().trailing_ones() as usize;
            self.change ^= self.steps[ones.min(self.steps.len() - 1)];
            sent = sent.wrapping_add(1);
        }
        self.stream.sent.store(sent, Ordering::Relaxed);
    }
}

struct Receiver<M: Memory> {
    memory: M,
    port: usize,
    /// Each with the number of acknowledged frames.
    streams: Vec<(Arc<Stream>, u32)>,
}

impl<M: Memory> Receiver<M> {
    fn receive(&mut self, inner: &mut MemoryPort<M>, batch: &mut Batch<M::Buf>) {
        inner.receive(batch);
        for (stream, acknowledged) in &mut self.streams {
            let sent = stream.sent.load(Ordering::Relaxed);
            if sent.wrapping_sub(*acknowledged) < EVERY + LAG || batch.is_full() {
                continue;
            }
            let upto = sent.wrapping_sub(LAG);
            let bytes = ack(
                stream.group,
                self.port,
                upto.wrapping_sub(1) & 0xFF_FFFF,
                Syndrome::Ack,
            );
            if let Some(frame) = self.memory.gather(&[&bytes]) {
                batch.push(frame);
                *acknowledged = upto;
            }
        }
    }
}
