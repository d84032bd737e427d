//! A source that goes on and on, and receivers that acknowledge. A file begins again after its last frame, and a switch must not
//! take that for the same packets once more: so each frame gets the next PSN, and the ICRC that belongs to it, as it is received.
//! Now and then each receiver acknowledges, as RNICs do that coalesce. What that costs counts as the switch's.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use castnet_dpdk_tests::frames::ack;
use castnet_dpdk_tests::gate::PSN;
use castnet_dpdk_tests::wrap::{Wrap, receiving};
use castnet_port::{Batch, FrameBuf, Memory, MemoryPort, PortSpec, Sides};
use castnet_wire::icrc::{HeaderDelta, Shift};
use castnet_wire::{Psn, Syndrome};

/// A receiver acknowledges once in so many frames.
const EVERY: u32 = 4096;
/// Frames that may be on their way inside the switch: those are not acknowledged yet.
const LAG: u32 = 1024;

/// What a source has sent to its group.
#[derive(Debug)]
pub(crate) struct Stream {
    /// The group, as in [`ack`].
    pub(crate) group: usize,
    /// Frames so far; the PSN is the lower 24 bits.
    pub(crate) sent: AtomicU32,
    /// It ends there, where it is to end.
    pub(crate) end: Option<u32>,
}

/// What sits at a port.
#[derive(Clone, Debug)]
pub(crate) enum Role {
    /// The source of a group, whose packets have so many bytes of payload, and PSN 0 in the file.
    Source(Arc<Stream>, usize),
    /// The receiver at port N of the switch, of these groups.
    Receiver(usize, Vec<Arc<Stream>>),
}

/// Who is where, by the names of devices. Nothing comes in before `open`.
#[derive(Debug, Default)]
pub(crate) struct Roles {
    pub(crate) roles: BTreeMap<String, Role>,
    pub(crate) open: AtomicBool,
}

/// Ports that play these roles.
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
    /// What the next PSN adds (XOR) to the ICRC of a frame with PSN 0.
    change: u32,
    steps: [u32; 24],
}

/// What a PSN whose last `i` bits are ones, and the next one, differ by in the ICRC: counting flips these bits and the one before.
/// So the source takes as little of the switch's core as may be.
fn steps(payload: usize) -> [u32; 24] {
    let after = Shift::by_bytes(payload);
    std::array::from_fn(|ones| {
        let flipped = Psn::new((2 << ones) - 1);
        after.apply(HeaderDelta::psn(Psn::new(0), flipped).at_bth())
    })
}

impl Source {
    fn receive<M: Memory>(&mut self, inner: &mut MemoryPort<M>, batch: &mut Batch<M::Buf>) {
        // Nobody else writes it.
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
    /// With what is acknowledged of each.
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
