use std::collections::VecDeque;

use castnet_collective::path::WORDS_MAX;
use castnet_collective::{Effects, translated};
use castnet_endpoint::Endpoint;
use castnet_reduce::prefetch;
use castnet_wire::Nanos;

use crate::config::EngineConfig;
use crate::observe::events::Events;
use crate::output::Output;
use crate::tables::wheel::{FINE_TICK, TICK, Wheel};

/// Room for a payload, or for a frame of a terminated connection.
const ROOM: usize = Endpoint::FRAME_MAX;

/// Output, timers, events and scratch memory for groups of all kinds. A group is borrowed beside them.
#[derive(Debug)]
pub(crate) struct Services {
    pub(crate) output: Output,
    pub(crate) timers: Timers,
    pub(crate) events: Events,
    pub(crate) scratch: Scratch,
    /// What is left of the work that groups may do beside handling frames, in bytes of messages that are combined. Each iteration gives it
    /// twice: with its frames, and with its timers.
    /// Emissions and timers stop at 0; what they leave stays queued or due.
    pub(crate) work: usize,
}

/// Some tenths of a millisecond.
pub(crate) const WORK_MAX: usize = 1 << 20;
/// The part of it that timers may use, so that they do not delay emissions.
pub(crate) const TIMERS_WORK: usize = WORK_MAX / 2;
/// To send a frame takes as long as to combine so many bytes.
pub(crate) const FRAME: usize = 1 << 10;

/// The work of a walk over so many endpoints: it looks at 64 in the time of one frame.
pub(crate) const fn looks(endpoints: usize) -> usize {
    let frames = endpoints.div_ceil(64);
    if frames == 0 { FRAME } else { frames * FRAME }
}

impl Services {
    pub(crate) fn new(config: &EngineConfig) -> Self {
        Self {
            output: Output::new(config),
            timers: Timers {
                coarse: Wheel::new(config.groups_max, TICK),
                fine: Wheel::new(config.groups_max, FINE_TICK),
                emitting: VecDeque::with_capacity(config.groups_max),
            },
            events: Events::new(config.events_max),
            work: WORK_MAX,
            scratch: Scratch {
                effects: Effects::new(),
                collective: CollectiveEffects::default(),
                room: Box::new([0; ROOM]),
            },
        }
    }
}

#[derive(Debug)]
pub(crate) struct Timers {
    /// Stall timers of multicast groups.
    pub(crate) coarse: Wheel,
    /// Timers of collective groups.
    pub(crate) fine: Wheel,
    /// Groups with more to send than the limit of one iteration.
    pub(crate) emitting: VecDeque<u32>,
}

/// What of a collective group is armed and queued in [`Timers`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Scheduled {
    pub(crate) armed_for: Nanos,
    /// The group is queued because it has more to send.
    pub(crate) emitting: bool,
}

impl Timers {
    /// Queues the group if it has more to send, and arms its timer.
    #[inline]
    pub(crate) fn schedule(
        &mut self,
        (now, slot): (Nanos, u32),
        scheduled: &mut Scheduled,
        due: Option<Nanos>,
        more: bool,
    ) {
        if more && !scheduled.emitting {
            scheduled.emitting = true;
            self.emitting.push_back(slot);
        }
        let Some(at) = due else { return };
        if at < scheduled.armed_for || !self.fine.is_armed(slot) {
            self.fine.disarm(slot);
            self.fine.arm(now, slot, at);
            scheduled.armed_for = at;
        }
    }

    pub(crate) fn disarm(&mut self, slot: u32) {
        self.coarse.disarm(slot);
        self.fine.disarm(slot);
        self.emitting.retain(|other| *other != slot);
    }

    /// Prefetches what [`Timers::poll`] reads without timers.
    pub(crate) fn prefetch(&self) {
        self.coarse.prefetch_armed();
        self.fine.prefetch_armed();
        prefetch(&self.emitting);
    }

    /// Pending emissions are due immediately.
    pub(crate) fn poll(&self) -> Option<Nanos> {
        let emission = (!self.emitting.is_empty()).then_some(Nanos::ZERO);
        [self.coarse.poll(), self.fine.poll(), emission]
            .into_iter()
            .flatten()
            .min()
    }
}

#[derive(Debug)]
pub(crate) struct Scratch {
    pub(crate) effects: Effects,
    pub(crate) collective: CollectiveEffects,
    /// Buffer for a payload in several segments, or for a frame to send.
    pub(crate) room: Box<[u8; ROOM]>,
}

/// Effects of collective machines, for each width of endpoint sets.
#[derive(Debug, Default)]
pub(crate) struct CollectiveEffects {
    narrow: translated::Effects<1>,
    wide: translated::Effects<WORDS_MAX>,
}

pub(crate) trait EffectsOfWidth<const W: usize> {
    fn of(&mut self) -> &mut translated::Effects<W>;
}

impl EffectsOfWidth<1> for CollectiveEffects {
    #[inline(always)]
    fn of(&mut self) -> &mut translated::Effects<1> {
        &mut self.narrow
    }
}

impl EffectsOfWidth<WORDS_MAX> for CollectiveEffects {
    fn of(&mut self) -> &mut translated::Effects<WORDS_MAX> {
        &mut self.wide
    }
}
