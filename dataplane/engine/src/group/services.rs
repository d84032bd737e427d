//! What groups of all kinds use.

use std::collections::VecDeque;

use castnet_collective::path::WORDS_MAX;
use castnet_collective::{Effects, translated};
use castnet_wire::Nanos;

use crate::config::EngineConfig;
use crate::observe::events::Events;
use crate::output::Output;
use crate::tables::wheel::{FINE_TICK, TICK, Wheel};

/// Bytes of the largest path MTU.
const PAYLOAD_MAX: usize = 4096;

/// Output, timers, events and scratch memory. A group is borrowed beside them.
#[derive(Debug)]
pub(crate) struct Services {
    pub(crate) output: Output,
    pub(crate) timers: Timers,
    pub(crate) events: Events,
    pub(crate) scratch: Scratch,
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
            scratch: Scratch {
                effects: Effects::new(),
                collective: AllEffects::default(),
                payload: Box::new([0; PAYLOAD_MAX]),
            },
        }
    }
}

/// When groups come up, by their slots.
#[derive(Debug)]
pub(crate) struct Timers {
    /// Reports of stalls.
    pub(crate) coarse: Wheel,
    /// Timers of collective groups.
    pub(crate) fine: Wheel,
    /// Groups that have more to send than one turn lets them.
    pub(crate) emitting: VecDeque<u32>,
}

impl Timers {
    /// Nothing is due for a slot any more.
    pub(crate) fn disarm(&mut self, slot: u32) {
        self.coarse.disarm(slot);
        self.fine.disarm(slot);
        self.emitting.retain(|other| *other != slot);
    }

    /// When the next group comes up. What could not be sent in one turn is due at once.
    pub(crate) fn poll(&self) -> Option<Nanos> {
        let emission = (!self.emitting.is_empty()).then_some(Nanos::ZERO);
        [self.coarse.poll(), self.fine.poll(), emission]
            .into_iter()
            .flatten()
            .min()
    }
}

/// Memory for one frame at a time.
#[derive(Debug)]
pub(crate) struct Scratch {
    /// Of multicast machines.
    pub(crate) effects: Effects,
    /// Of collective machines.
    pub(crate) collective: AllEffects,
    /// Where a payload is put together.
    pub(crate) payload: Box<[u8; PAYLOAD_MAX]>,
}

/// Effects of machines of each width.
#[derive(Debug, Default)]
pub(crate) struct AllEffects {
    narrow: translated::Effects<1>,
    wide: translated::Effects<WORDS_MAX>,
}

/// The effects of machines of this width.
pub(crate) trait EffectsOf<const W: usize> {
    fn of(&mut self) -> &mut translated::Effects<W>;
}

impl EffectsOf<1> for AllEffects {
    #[inline(always)]
    fn of(&mut self) -> &mut translated::Effects<1> {
        &mut self.narrow
    }
}

impl EffectsOf<WORDS_MAX> for AllEffects {
    fn of(&mut self) -> &mut translated::Effects<WORDS_MAX> {
        &mut self.wide
    }
}
