//! The multicast machine: any events from any path, held against its slow twin, and against what each path has said.

use crate::driver::{reached, tell};
use castnet_collective::{Effect, Effects, Event, Multicast, MulticastConfig, PathId};
use castnet_wire::{NakCode, Nanos, Psn, RnrTimer, Syndrome};
use std::collections::BTreeMap;
use std::mem::discriminant;
use twin::{Step, Told, Twin, wrap};

// The twin of the machine's own tests.
#[path = "../../../dataplane/collective/tests/multicast/common/twin.rs"]
#[allow(missing_docs, dead_code, unreachable_pub)]
mod twin;

/// Bytes of a record: the first is the group, each other one an event or some time.
pub const RECORD: usize = 6;

const STALL: Nanos = Nanos::from_millis(5);

fn path(index: u8) -> PathId {
    PathId::new(index.into()).expect("below the most")
}

/// Takes `data` for a group and what happens to it.
pub fn multicast(data: &[u8]) {
    let (records, _) = data.as_chunks::<RECORD>();
    let Some((setting, steps)) = records.split_first() else {
        return;
    };
    let mut world = World::new(setting);
    for step in steps {
        world.step(step);
    }
}

struct World {
    machine: Multicast,
    twin: Twin,
    now: Nanos,
    paths: u8,
    source: u8,
    /// By path, the highest position that it has acknowledged.
    told: BTreeMap<u8, i64>,
}

impl World {
    fn new(&[paths, source, start, told, ..]: &[u8; RECORD]) -> Self {
        let paths = 2 + paths % 6;
        let source = source % paths;
        let start = [0, Psn::MODULUS as i64 - 3, (1 << 23) - 5][usize::from(start) % 3];
        let start = (told % 4 != 0).then_some(start);
        let machine = Multicast::new(MulticastConfig {
            paths: paths.into(),
            source: path(source),
            start_psn: start.map(wrap),
            stall_timeout: STALL,
        });
        Self {
            machine,
            twin: Twin::new(paths, source, start),
            now: Nanos::from_secs(1),
            paths,
            source,
            told: BTreeMap::new(),
        }
    }

    fn step(&mut self, &[kind, from, delta, scale, syndrome, code]: &[u8; RECORD]) {
        let newest = self.twin.newest.unwrap_or(0);
        let delta = match scale / 64 {
            3 => i64::from(delta as i8) << 17,
            2 => i64::from(delta as i8),
            _ => i64::from(delta as i8) / 16,
        };
        let ack_request = scale & 1 != 0;
        let near = |from| match scale / 2 % 4 {
            0 => newest,
            1 => self.twin.aggregated,
            _ => self.twin.acked.get(&from).copied().unwrap_or(newest),
        };
        // One index more than there are paths: a stranger.
        let from = from % (self.paths + 1);
        match kind % 8 {
            0 | 1 => self.data(self.source, newest + 1 + delta, ack_request),
            2 => self.data(from, newest + delta, ack_request),
            3..=6 => {
                let syndrome = match syndrome % 8 {
                    0..=3 => Syndrome::Ack,
                    4 | 5 => Syndrome::Nak(NakCode::PsnSequenceError),
                    6 => Syndrome::RnrNak(RnrTimer::new(code)),
                    _ => Syndrome::Nak(NakCode::RemoteAccessError),
                };
                self.feedback(from, near(from) + delta, syndrome);
            }
            _ => self.time(code),
        }
        self.check_state();
    }

    /// The position that the machine takes the PSN of `at` for.
    fn seen(&self, at: i64) -> i64 {
        match self.twin.newest {
            Some(_) => self.twin.aggregated + i64::from(wrap(at).diff(wrap(self.twin.aggregated))),
            None => at,
        }
    }

    fn data(&mut self, from: u8, at: i64, ack_request: bool) {
        let (at, psn) = (self.seen(at), wrap(at));
        let event = Event::Data {
            from: path(from),
            psn,
            ack_request,
        };
        let (before, mut short) = (self.machine.clone(), self.machine.clone());
        let by_short = from == self.source && short.next_data(self.now, psn);
        let effects = self.handle(
            event,
            Step::Data {
                from,
                at,
                ack_request,
            },
        );
        if by_short {
            let to: Vec<usize> = self.machine.lacking(psn).map(PathId::index).collect();
            let same = effects == [Told::Replicate(to)] && short == self.machine;
            assert!(same, "by the fast path");
        } else {
            assert!(short == before, "the fast path refuses and changes something");
        }
        for effect in effects {
            if let Told::Replicate(to) = effect {
                for path in to {
                    let told = self.told.get(&(path as u8));
                    assert!(told.is_none_or(|&told| told < at), "M3: {path} has {at}");
                    assert_ne!(path as u8, self.source);
                }
            }
        }
    }

    fn feedback(&mut self, from: u8, at: i64, syndrome: Syndrome) {
        let (at, psn) = (self.seen(at), wrap(at));
        if self.twin.newest.is_some_and(|newest| at <= newest) {
            let upto = at - i64::from(syndrome != Syndrome::Ack);
            let told = self.told.entry(from).or_insert(upto);
            *told = upto.max(*told);
        }
        let event = Event::Feedback {
            from: path(from),
            psn,
            msn: 7,
            syndrome,
        };
        self.handle(
            event,
            Step::Feedback {
                from,
                at,
                msn: 7,
                syndrome,
            },
        );
    }

    fn handle(&mut self, event: Event, step: Step) -> Vec<Told> {
        tell(|| format!("{step:?}"));
        let mut effects = Effects::new();
        self.machine.handle(self.now, event, &mut effects);
        tell(|| format!("    {effects:?}"));
        let told: Vec<Told> = effects.iter().map(|e| Told::of(&self.machine, *e)).collect();
        assert_eq!(told, self.twin.handle(step), "as the slow twin: {:?}", self.twin);
        for effect in &effects {
            if let Effect::Acknowledge { psn, syndrome, .. } = *effect {
                self.acknowledged(psn, syndrome);
            }
        }
        let kinds: Vec<_> = effects.iter().map(discriminant).collect();
        let drop = effects.iter().find(|e| matches!(e, Effect::Drop(_))).copied();
        reached((discriminant(&event), kinds, drop, self.twin.newest.is_some()));
        told
    }

    /// M1, M2: the source is told of nothing that some receiver has not acknowledged.
    fn acknowledged(&self, psn: Psn, syndrome: Syndrome) {
        let at = self.seen(psn.value().into()) - i64::from(syndrome != Syndrome::Ack);
        for receiver in (0..self.paths).filter(|p| *p != self.source) {
            let told = self.told.get(&receiver).copied();
            // Where counting began nothing was acknowledged; a NAK may name what comes right after.
            let baseline = syndrome != Syndrome::Ack && self.machine.status().agg_ack_psn.is_none();
            assert!(
                baseline || told.is_some_and(|told| told >= at),
                "M1: {at} of {receiver}: {:?}",
                self.told
            );
        }
    }

    fn time(&mut self, code: u8) {
        match self.machine.poll_timeout() {
            Some((at, _)) if code & 1 == 0 => self.now = self.now.max(at),
            _ => self.now += Nanos::from_micros(u64::from(code) * 100),
        }
        tell(|| format!("time {}", self.now));
        let mut effects = Effects::new();
        self.machine.handle_timeout(self.now, &mut effects);
        assert!(effects.len() <= 1);
        reached(("time", effects.len()));
    }

    fn check_state(&self) {
        if let Some((at, _)) = self.machine.poll_timeout() {
            assert!(at <= self.now + STALL, "a timer that is too late");
        }
        let status = self.machine.status();
        assert_eq!(status.newest_psn, self.twin.newest.map(wrap));
        assert_eq!(status.waiting_for.is_some(), status.since.is_some());
        let ahead = |psn: Option<Psn>| {
            psn.zip(status.newest_psn)
                .map(|(psn, newest)| newest.diff(psn).min(3))
        };
        reached((
            ahead(status.agg_ack_psn),
            ahead(status.me_psn),
            status.nak_sent,
            status.waiting_for.is_some(),
        ));
        for path in &status.paths {
            reached((
                self.paths,
                ahead(path.ack_psn),
                path.refusal.as_ref().map(discriminant),
                status.nak_sent,
            ));
        }
    }
}
