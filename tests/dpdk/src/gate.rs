//! Ports that receive nothing until a gate opens: files begin to flow when the switch opens them, and its groups must be
//! there before.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use castnet_port::{FrameBuf, Memory, MemoryPort, PortSpec, Sides};

use crate::wrap::{Wrap, receiving};

/// The gate, for the ports of one worker.
#[derive(Clone)]
pub struct Gate {
    gate: Arc<AtomicBool>,
    /// Whether the gate was open when this worker's round began, and its first receiving port asked: all ports begin in the
    /// same round, so that what happens does not depend on when that is.
    open: Rc<Cell<Option<bool>>>,
    /// The next PSN, where frames are numbered.
    psn: Option<Rc<Cell<u32>>>,
}

/// Where the PSN of a RoCEv2 frame over IPv4 is, without a VLAN tag.
pub const PSN: std::ops::Range<usize> = 51..54;

impl Gate {
    /// Frames are received while `gate` is set.
    pub fn new(gate: Arc<AtomicBool>) -> Self {
        Self {
            gate,
            open: Rc::default(),
            psn: None,
        }
    }

    /// Numbers received frames from 0 on, as a source does that goes on and on, where a file would begin again. Their ICRC
    /// is wrong from here on, and goes through as wrong as it is.
    pub fn numbered(mut self) -> Self {
        self.psn = Some(Rc::default());
        self
    }
}

impl<M: Memory> Wrap<M> for Gate {
    fn wrap(&self, inner: MemoryPort<M>, _: &M, _: &PortSpec, sides: Sides) -> MemoryPort<M> {
        // The first one that receives.
        let asks = sides.receives() && self.open.replace(Some(false)).is_none();
        let Self { gate, open, psn } = self.clone();
        receiving::<M>(inner, move |inner, batch| {
            if asks {
                open.set(Some(gate.load(Ordering::Relaxed)));
            }
            if open.get() == Some(true) {
                inner.receive(batch);
            }
            let Some(psn) = &psn else { return };
            for frame in batch {
                if let Some(bytes) = frame.head_mut().get_mut(PSN) {
                    bytes.copy_from_slice(&psn.get().to_be_bytes()[1..]);
                    psn.set((psn.get() + 1) & 0xFF_FFFF);
                }
            }
        })
    }
}
