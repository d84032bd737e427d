//! The multicast machine: any events from any path, compared with its slow twin and with the feedback of each path.

use crate::driver::{print_step, reached};
use castnet_collective::{Effect, Effects, Event, Multicast, MulticastConfig, PathId};
use castnet_wire::{NakCode, Nanos, Psn, RnrTimer, Syndrome};
use std::collections::BTreeMap;
use std::mem::discriminant;
use twin::{Step, Told, Twin, wrap};

// The twin of the machine's own tests.
#[path = "../../../dataplane/collective/tests/multicast/common/twin.rs"]
#[allow(missing_docs, dead_code, unreachable_pub)]
mod twin;

/// Bytes of a record: the first one describes the group, each other one an event or time.
pub const RECORD: usize = 6;

const STALL: Nanos = Nanos::from_millis(5);

fn path(index: u8) -> PathId {
    PathId::new(index.into()).expect("below the most")
}

/// Runs `data` as a group and its events.
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
    acknowledged_by: BTreeMap<u8, i64>,
}

impl World {
    fn new(&[paths, source, start, start_code, ..]: &[u8; RECORD]) -> Self {
        let paths = 2 + paths % 6;
        let source = source % paths;
        let start = [0, Psn::MODULUS as i64 - 3, (1 << 23) - 5][usize::from(start) % 3];
        let start = (start_code % 4 != 0).then_some(start);
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
            acknowledged_by: BTreeMap::new(),
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
        // One index more than there are paths: an unknown sender.
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

    /// The position that the machine derives from the PSN of `at`.
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
            assert!(same, "the fast path differs");
        } else {
            assert!(short == before, "the fast path refuses a frame and changes state");
        }
        for effect in effects {
            if let Told::Replicate(to) = effect {
                for path in to {
                    let highest = self.acknowledged_by.get(&(path as u8));
                    assert!(highest.is_none_or(|&highest| highest < at), "M3: {path} has {at}");
                    assert_ne!(path as u8, self.source);
                }
            }
        }
    }

    fn feedback(&mut self, from: u8, at: i64, syndrome: Syndrome) {
        let (at, psn) = (self.seen(at), wrap(at));
        let newest = self.twin.newest.unwrap_or(i64::MIN);
        // A path that is ahead has all that has passed.
        let upto = match at - i64::from(syndrome != Syndrome::Ack) {
            upto if at <= newest => Some(upto),
            _ if self.twin.went_back && at - newest <= twin::AHEAD => Some(newest),
            _ => None,
        };
        if let Some(upto) = upto {
            let highest = self.acknowledged_by.entry(from).or_insert(upto);
            *highest = upto.max(*highest);
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
        print_step(|| format!("{step:?}"));
        let mut effects = Effects::new();
        self.machine.handle(self.now, event, &mut effects);
        print_step(|| format!("    {effects:?}"));
        let reported: Vec<Told> = effects.iter().map(|e| Told::of(&self.machine, *e)).collect();
        assert_eq!(
            reported,
            self.twin.handle(step),
            "differs from the slow twin: {:?}",
            self.twin
        );
        for effect in &effects {
            if let Effect::Acknowledge { psn, syndrome, .. } = *effect {
                self.acknowledged(psn, syndrome);
            }
        }
        let kinds: Vec<_> = effects.iter().map(discriminant).collect();
        let drop = effects.iter().find(|e| matches!(e, Effect::Drop(_))).copied();
        reached((discriminant(&event), kinds, drop, self.twin.newest.is_some()));
        reported
    }

    /// M1, M2: the source receives no acknowledgement that a receiver has not sent.
    fn acknowledged(&self, psn: Psn, syndrome: Syndrome) {
        let at = self.seen(psn.value().into()) - i64::from(syndrome != Syndrome::Ack);
        for receiver in (0..self.paths).filter(|p| *p != self.source) {
            let highest = self.acknowledged_by.get(&receiver).copied();
            // Before the first packet nothing was acknowledged; a NAK may name the first one.
            let baseline = syndrome != Syndrome::Ack && self.machine.status().agg_ack_psn.is_none();
            assert!(
                baseline || highest.is_some_and(|highest| highest >= at),
                "M1: {at} of {receiver}: {:?}",
                self.acknowledged_by
            );
        }
    }

    fn time(&mut self, code: u8) {
        match self.machine.poll_timeout() {
            Some((at, _)) if code & 1 == 0 => self.now = self.now.max(at),
            _ => self.now += Nanos::from_micros(u64::from(code) * 100),
        }
        print_step(|| format!("time {}", self.now));
        let mut effects = Effects::new();
        self.machine.handle_timeout(self.now, &mut effects);
        assert!(effects.len() <= 1);
        reached(("time", effects.len()));
    }

    fn check_state(&self) {
        if let Some((at, _)) = self.machine.poll_timeout() {
            assert!(at <= self.now + STALL, "a timer is too late");
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
