//! What several tests of the machine share.
#![allow(dead_code, unreachable_pub)] // Each test binary uses its part.

pub mod hosts;
pub mod tree;
pub mod twin;

use castnet_collective::path::Paths;
use castnet_collective::{Effect, Effects, Event, Multicast, MulticastConfig, MulticastStatus, PathId};
pub use twin::Told;

use castnet_wire::{NakCode, Nanos, Psn, RnrTimer, Syndrome};

/// The path `index`.
pub fn path(index: u8) -> PathId {
    PathId::new(index.into()).expect("below the most")
}

/// The paths with these indices.
pub fn paths(indices: impl Iterator<Item = usize>) -> Paths {
    indices
        .filter_map(PathId::new)
        .map(Paths::only)
        .fold(Paths::EMPTY, Paths::or)
}

/// Feedback by its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feedback {
    pub psn: Psn,
    pub msn: u32,
    pub syndrome: Syndrome,
}

impl Feedback {
    pub fn msn(self, msn: u32) -> Self {
        Self { msn, ..self }
    }

    /// As the effect that sends it to the source by path `to`.
    pub fn up(self, to: u8) -> Effect {
        Effect::Acknowledge {
            to: path(to),
            psn: self.psn,
            msn: self.msn,
            syndrome: self.syndrome,
        }
    }
}

pub fn ack(psn: u32) -> Feedback {
    Feedback {
        psn: Psn::new(psn),
        msn: 0,
        syndrome: Syndrome::Ack,
    }
}

pub fn nak(psn: u32) -> Feedback {
    Feedback {
        syndrome: Syndrome::Nak(NakCode::PsnSequenceError),
        ..ack(psn)
    }
}

pub fn rnr(psn: u32, timer: u8) -> Feedback {
    Feedback {
        syndrome: Syndrome::RnrNak(RnrTimer::new(timer)),
        ..ack(psn)
    }
}

pub fn fatal(psn: u32) -> Feedback {
    Feedback {
        syndrome: Syndrome::Nak(NakCode::RemoteAccessError),
        ..ack(psn)
    }
}

pub fn replicate(to: &[u8]) -> Told {
    Told::Replicate(to.iter().map(|i| usize::from(*i)).collect())
}

/// A machine with a clock and short names for its events.
pub struct Switch {
    pub machine: Multicast,
    pub now: Nanos,
}

impl Switch {
    /// `paths` paths, the source's is 0, the first PSN is 0, no stall time-out.
    pub fn config(paths: u8) -> MulticastConfig {
        MulticastConfig {
            paths: paths.into(),
            source: path(0),
            start_psn: Some(Psn::new(0)),
            stall_timeout: Nanos::ZERO,
        }
    }

    pub fn new(paths: u8, start: u32) -> Self {
        Self::with(MulticastConfig {
            start_psn: Some(Psn::new(start)),
            ..Self::config(paths)
        })
    }

    pub fn with(config: MulticastConfig) -> Self {
        Self {
            machine: Multicast::new(config),
            now: Nanos::ZERO,
        }
    }

    pub fn event(&mut self, event: Event) -> Vec<Told> {
        let mut out = Effects::new();
        self.machine.handle(self.now, event, &mut out);
        assert!(!out.is_empty(), "an event without an effect: {event:?}");
        out.iter()
            .map(|effect| Told::of(&self.machine, *effect))
            .collect()
    }

    /// `count` packets from `psn` on, without AckReq; the effects of the last.
    pub fn data(&mut self, psn: u32, count: u32) -> Vec<Told> {
        (psn..psn + count)
            .map(|psn| self.retransmit(psn))
            .last()
            .expect("at least one")
    }

    pub fn retransmit(&mut self, psn: u32) -> Vec<Told> {
        let from = self.machine.status().source;
        self.event(Event::Data {
            from,
            psn: Psn::new(psn),
            ack_request: false,
        })
    }

    pub fn retransmit_asking(&mut self, psn: u32) -> Vec<Told> {
        let from = self.machine.status().source;
        self.event(Event::Data {
            from,
            psn: Psn::new(psn),
            ack_request: true,
        })
    }

    pub fn feedback(&mut self, from: u8, feedback: Feedback) -> Vec<Told> {
        let Feedback { psn, msn, syndrome } = feedback;
        self.event(Event::Feedback {
            from: path(from),
            psn,
            msn,
            syndrome,
        })
    }

    pub fn timeout(&mut self, now: Nanos) -> Vec<Told> {
        let mut out = Effects::new();
        self.machine.handle_timeout(now, &mut out);
        out.iter()
            .map(|effect| Told::of(&self.machine, *effect))
            .collect()
    }

    pub fn status(&self) -> MulticastStatus {
        self.machine.status()
    }
}
