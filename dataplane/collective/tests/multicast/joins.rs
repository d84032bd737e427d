//! Receivers that join a running stream, leave it and come back, in trees of machines in an unfair network. Rules are installed in any
//! order, switches lose their state, and the reports of first packets are lost and repeated.
//!
//! What holds: a receiver gets all packets from the first one of a message on, the others lose nothing, and the source gets no
//! acknowledgement of what one that is in lacks.

use crate::common::hosts::{Receiver, Source};
use crate::common::path;
use castnet_collective::{Effect, Effects, Event, Multicast, MulticastConfig, PathId};
use castnet_wire::{DropReason, Nanos, Psn, Syndrome};
use proptest::prelude::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Source,
    Host(usize),
    Switch(usize),
    Controller,
}

#[derive(Clone, Copy, Debug)]
enum Packet {
    Data {
        at: i64,
    },
    Feedback {
        at: i64,
        syndrome: Syndrome,
    },
    /// The first packet of a host by the rules of a generation.
    Joined {
        host: usize,
        generation: u64,
        at: i64,
    },
}

#[derive(Clone, Copy, Debug)]
struct InFlight {
    from: Place,
    to: Place,
    packet: Packet,
    /// The queue pair of a host that data is for.
    qp: u64,
}

/// What the controller knows of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Out,
    Waiting,
    In,
}

struct Host {
    switch: usize,
    state: State,
    /// Its present queue pair.
    qp: u64,
    /// Its receiver, once connected.
    receiver: Option<Receiver>,
}

/// A neighbour of a switch in a rule: path 0 leads to the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Endpoint {
    place: Place,
    qp: u64,
    joining: bool,
}

struct Installed {
    generation: u64,
    machine: Multicast,
    endpoints: Vec<Endpoint>,
}

/// What the network or the controller does next; `pick` chooses.
#[derive(Clone, Copy, Debug)]
enum Chance {
    Send,
    Deliver(usize),
    Lose(usize),
    Duplicate(usize),
    TimeOut,
    /// A host comes with a new queue pair.
    Join(usize),
    /// A host is put out.
    Evict(usize),
    /// A switch gets its present rule.
    Install(usize),
    /// A switch loses its state, and what is on its links.
    Restart(usize),
}

struct Net {
    start: Psn,
    source: Source,
    message: i64,
    ack_every: i64,
    /// The switch above each; the first is the source's.
    above: Vec<Option<usize>>,
    switches: Vec<Option<Installed>>,
    hosts: Vec<Host>,
    flying: Vec<InFlight>,
    generation: u64,
    qps: u64,
    joins: usize,
}

impl Net {
    /// Switch `i + 1` is below switch `above[i]`; a host is at each of `at`, and is in from the start if so said.
    fn new(
        above: &[usize],
        at: &[(usize, bool)],
        start: Psn,
        (total, message, ack_every): (i64, i64, i64),
    ) -> Self {
        let above: Vec<_> = [None]
            .into_iter()
            .chain(above.iter().enumerate().map(|(i, up)| Some(up % (i + 1))))
            .collect();
        let host = |(i, (switch, is_in)): (usize, &(usize, bool))| {
            // One receiver is always in.
            let is_in = *is_in || i == 0;
            Host {
                switch: switch % above.len(),
                state: if is_in { State::In } else { State::Out },
                qp: 0,
                receiver: is_in.then(Receiver::default),
            }
        };
        let mut net = Self {
            start,
            source: Source::new(total),
            message,
            ack_every,
            switches: above.iter().map(|_| None).collect(),
            hosts: at.iter().enumerate().map(host).collect(),
            above,
            flying: Vec::new(),
            generation: 1,
            qps: 0,
            joins: 0,
        };
        (0..net.switches.len()).for_each(|switch| net.install(switch));
        net
    }

    /// The rule of a switch: its endpoints, or none if nobody is below it.
    fn rule(&self, switch: usize) -> Vec<Endpoint> {
        let up = self.above[switch].map_or(Place::Source, Place::Switch);
        let plain = |place| Endpoint {
            place,
            qp: 0,
            joining: false,
        };
        let hosts = self.hosts.iter().enumerate();
        let hosts = hosts.filter(|(_, h)| h.switch == switch && h.state != State::Out);
        let hosts = hosts.map(|(i, h)| Endpoint {
            place: Place::Host(i),
            qp: h.qp,
            joining: h.state == State::Waiting,
        });
        let below = (0..self.above.len()).filter(|i| self.above[*i] == Some(switch));
        let below = below.filter(|i| !self.rule(*i).is_empty());
        let mut children: Vec<_> = hosts.chain(below.map(|i| plain(Place::Switch(i)))).collect();
        if !children.is_empty() {
            children.insert(0, plain(up));
        }
        children
    }

    fn install(&mut self, switch: usize) {
        let endpoints = self.rule(switch);
        let old = self.switches[switch].take();
        // No frame stays on a link from one rule of a switch to the next, if the switch has nothing of the group in between.
        if old.is_none() || endpoints.is_empty() {
            self.clear_links(switch);
        }
        if endpoints.is_empty() {
            return;
        }
        let joining = endpoints.iter().enumerate().filter(|(_, e)| e.joining);
        let config = MulticastConfig {
            paths: endpoints.len() as u16,
            source: path(0),
            start_psn: (self.generation == 1 && self.source.sent == 0).then_some(self.start),
            stall_timeout: Nanos::ZERO,
        };
        let mut machine = Multicast::new(config).with_joining(joining.map(|(i, _)| path(i as u8)));
        if let Some(old) = &old {
            let same = |a: &Endpoint, b: &Endpoint| (a.place, a.qp) == (b.place, b.qp);
            let at = |e: &Endpoint| old.endpoints.iter().position(|b| same(e, b));
            let kept = endpoints.iter().enumerate();
            let kept = kept.filter_map(|(i, e)| Some((path(i as u8), path(at(e)? as u8))));
            machine.carry_on(&old.machine, kept);
        }
        self.switches[switch] = Some(Installed {
            generation: self.generation,
            machine,
            endpoints,
        });
    }

    fn is_outdated(&self, switch: usize) -> bool {
        match &self.switches[switch] {
            Some(installed) => installed.generation != self.generation,
            None => !self.rule(switch).is_empty(),
        }
    }

    fn step(&mut self, chance: Chance) -> Result<(), String> {
        let flying = self.flying.len();
        match chance {
            Chance::Send => self.send(),
            Chance::TimeOut => self.source.time_out(),
            Chance::Deliver(pick) if flying > 0 => {
                let next = self.flying.remove(pick % flying);
                return self.deliver(next);
            }
            Chance::Lose(pick) if flying > 0 => drop(self.flying.remove(pick % flying)),
            Chance::Duplicate(pick) if flying > 0 => self.flying.push(self.flying[pick % flying]),
            Chance::Join(pick) => {
                let host = pick % self.hosts.len();
                // The controller lets nobody join before the change before is made.
                let settled = !(0..self.switches.len()).any(|i| self.is_outdated(i));
                if self.hosts[host].state == State::Out && settled {
                    self.qps += 1;
                    self.hosts[host].qp = self.qps;
                    self.hosts[host].state = State::Waiting;
                    self.generation += 1;
                }
            }
            Chance::Evict(pick) => {
                let host = pick % self.hosts.len();
                let others = self.hosts.iter().enumerate();
                let mut others = others.filter(|(i, h)| *i != host && h.state == State::In);
                if self.hosts[host].state != State::Out && others.next().is_some() {
                    self.hosts[host].state = State::Out;
                    self.hosts[host].receiver = None;
                    self.generation += 1;
                }
            }
            Chance::Install(pick) => {
                let outdated: Vec<usize> = (0..self.switches.len())
                    .filter(|i| self.is_outdated(*i))
                    .collect();
                if !outdated.is_empty() {
                    self.install(outdated[pick % outdated.len()]);
                }
            }
            Chance::Restart(pick) => {
                let switch = pick % self.switches.len();
                self.switches[switch] = None;
                self.clear_links(switch);
            }
            _ => {}
        }
        Ok(())
    }

    /// From here on nothing is lost and all rules are installed.
    fn finish(&mut self) -> Result<(), String> {
        for _ in 0..1_000_000 {
            for switch in 0..self.switches.len() {
                if self.is_outdated(switch) {
                    self.install(switch);
                }
            }
            if !self.flying.is_empty() {
                let next = self.flying.remove(0);
                self.deliver(next)?;
            } else if self.source.unacked == self.source.total {
                return Ok(());
            } else {
                self.send();
                if self.flying.is_empty() {
                    self.source.time_out();
                }
            }
        }
        Err("it never ends".into())
    }

    fn clear_links(&mut self, switch: usize) {
        let here = Place::Switch(switch);
        self.flying.retain(|f| f.from != here && f.to != here);
    }

    fn fly(&mut self, from: Place, to: Place, packet: Packet) {
        let qp = 0;
        self.flying.push(InFlight { from, to, packet, qp });
    }

    fn send(&mut self) {
        if let Some(at) = self.source.send() {
            self.fly(Place::Source, Place::Switch(0), Packet::Data { at });
        }
    }

    fn asks(&self, at: i64) -> bool {
        (at + 1) % self.ack_every == 0 || (at + 1) % self.message == 0 || at + 1 == self.source.total
    }

    fn deliver(&mut self, next: InFlight) -> Result<(), String> {
        match (next.to, next.packet) {
            (Place::Source, Packet::Feedback { at, syndrome }) => {
                let below = if syndrome == Syndrome::Ack { at + 1 } else { at };
                if below > self.source.sent {
                    return Err(format!("{syndrome:?} {at} before it was sent"));
                }
                let lacks = |h: &Host| h.receiver.as_ref().is_some_and(|r| r.expected < below);
                if let Some(host) = self.hosts.iter().position(lacks) {
                    return Err(format!(
                        "M1/M2: {syndrome:?} {at} at the source, host {host} lacks it"
                    ));
                }
                self.source.feedback(at, syndrome);
            }
            (Place::Host(host), Packet::Data { at }) => {
                let asks = self.asks(at);
                let Host {
                    switch, qp, receiver, ..
                } = &mut self.hosts[host];
                // A queue pair that is gone, or not connected yet.
                let Some(receiver) = receiver.as_mut().filter(|_| *qp == next.qp) else {
                    return Ok(());
                };
                let to = Place::Switch(*switch);
                if let Some((at, syndrome)) = receiver.data(at, asks) {
                    self.fly(Place::Host(host), to, Packet::Feedback { at, syndrome });
                }
            }
            (Place::Controller, Packet::Joined { host, generation, at }) => {
                if generation == self.generation && self.hosts[host].state == State::Waiting {
                    if self.source.unacked > at {
                        return Err(format!(
                            "host {host} joins at {at}, which the source takes for delivered"
                        ));
                    }
                    if at % self.message != 0 {
                        return Err(format!("host {host} joins at {at}, inside a message"));
                    }
                    self.joins += 1;
                    self.hosts[host].state = State::In;
                    let mut receiver = Receiver::default();
                    receiver.expected = at;
                    self.hosts[host].receiver = Some(receiver);
                }
            }
            (Place::Switch(switch), packet) => self.switch(switch, next.from, packet)?,
            (to, packet) => return Err(format!("{packet:?} to {to:?}")),
        }
        Ok(())
    }

    fn switch(&mut self, switch: usize, from: Place, packet: Packet) -> Result<(), String> {
        let (start, message) = (self.start, self.message);
        let asks = matches!(packet, Packet::Data { at } if self.asks(at));
        let psn = |at: i64| start.add(at as i32);
        let Some(Installed {
            generation,
            machine,
            endpoints,
        }) = &mut self.switches[switch]
        else {
            return Ok(());
        };
        let Some(from) = endpoints
            .iter()
            .position(|e| e.place == from)
            .map(|i| path(i as u8))
        else {
            return Ok(());
        };
        let event = match packet {
            Packet::Data { at } => {
                if at % message == 0 {
                    machine.handle_message(from, psn(at));
                }
                Event::Data {
                    from,
                    psn: psn(at),
                    ack_request: asks,
                }
            }
            Packet::Feedback { at, syndrome } => Event::Feedback {
                from,
                psn: psn(at),
                msn: 0,
                syndrome,
            },
            Packet::Joined { .. } => return Err("a report to a switch".into()),
        };
        let mut twin = machine.clone();
        let mut out = Effects::new();
        machine.handle(Nanos::ZERO, event, &mut out);
        // The fast path does the same, and nothing else.
        if let Event::Data { psn, .. } = event
            && twin.next_data(Nanos::ZERO, psn)
            && (&twin != machine || !matches!(out.as_slice(), [Effect::Replicate { .. }]))
        {
            return Err(format!("the fast path of {event:?} differs: {out:?}"));
        }
        let here = Place::Switch(switch);
        let mut sent = Vec::new();
        for effect in out {
            match effect {
                Effect::Replicate { psn } => {
                    let to: Vec<PathId> = machine.lacking(psn).collect();
                    if to.is_empty() {
                        return Err(format!("{event:?} is replicated to nobody"));
                    }
                    sent.extend(to.iter().map(|p| (endpoints[p.index()], packet)));
                }
                Effect::Acknowledge { psn, syndrome, .. } => {
                    let at = psn.diff(start) as i64;
                    sent.push((endpoints[0], Packet::Feedback { at, syndrome }));
                }
                Effect::Absorb | Effect::Drop(DropReason::AckAhead) => {}
                other => return Err(format!("{other:?} for {event:?}")),
            }
        }
        if let (Event::Data { psn, .. }, Packet::Data { at }) = (event, packet) {
            for joined in machine.joined_with(psn) {
                let endpoint = endpoints[joined.index()];
                if let Place::Host(host) = endpoint.place {
                    let generation = *generation;
                    let report = Packet::Joined { host, generation, at };
                    let place = Place::Controller;
                    sent.push((Endpoint { place, ..endpoint }, report));
                }
            }
        }
        self.flying
            .extend(sent.into_iter().map(|(endpoint, packet)| InFlight {
                from: here,
                to: endpoint.place,
                packet,
                qp: endpoint.qp,
            }));
        Ok(())
    }
}

fn chance(restarts: bool) -> impl Strategy<Value = Chance> {
    prop_oneof![
        8 => Just(Chance::Send),
        20 => prop_oneof![4 => Just(0usize), 1 => 0usize..64].prop_map(Chance::Deliver),
        2 => (0usize..64).prop_map(Chance::Lose),
        2 => (0usize..64).prop_map(Chance::Duplicate),
        1 => Just(Chance::TimeOut),
        1 => (0usize..8).prop_map(Chance::Join),
        1 => (0usize..8).prop_map(Chance::Evict),
        4 => (0usize..8).prop_map(Chance::Install),
        u32::from(restarts) => (0usize..8).prop_map(Chance::Restart),
    ]
}

fn start() -> impl Strategy<Value = Psn> {
    prop_oneof![Just(0u32), Psn::MODULUS - 30..Psn::MODULUS, any::<u32>()].prop_map(Psn::new)
}

fn net() -> impl Strategy<Value = Net> {
    let above = prop::collection::vec(0usize..4, 0..4);
    let at = prop::collection::vec((0usize..5, any::<bool>()), 1..6);
    (above, at, start(), (20i64..60, 1i64..6, 1i64..9))
        .prop_map(|(above, at, start, sizes)| Net::new(&above, &at, start, sizes))
}

fn run(mut net: Net, chances: Vec<Chance>) -> Result<(), TestCaseError> {
    for chance in chances {
        net.step(chance).map_err(TestCaseError::fail)?;
    }
    net.finish().map_err(TestCaseError::fail)?;
    for host in &net.hosts {
        let all = host
            .receiver
            .as_ref()
            .is_none_or(|r| r.expected == net.source.total);
        prop_assert!(all, "a receiver lacks packets");
        prop_assert_eq!(host.receiver.is_some(), host.state == State::In);
    }
    Ok(())
}

impl core::fmt::Debug for Net {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let hosts: Vec<_> = self.hosts.iter().map(|h| (h.switch, h.state)).collect();
        write!(
            f,
            "switches below {:?}, hosts {hosts:?}, start {}, {} packets, messages of {}, ACKs every {}",
            self.above, self.start, self.source.total, self.message, self.ack_every
        )
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6000))]

    #[test]
    fn who_joins_gets_all_from_one_message_on(net in net(), chances in prop::collection::vec(chance(false), 0..500)) {
        run(net, chances)?;
    }

    #[test]
    fn switches_may_lose_their_state_meanwhile(net in net(), chances in prop::collection::vec(chance(true), 0..500)) {
        run(net, chances)?;
    }
}

/// In a network that loses nothing a receiver joins with the next message, whether its switch has others or none.
#[test]
fn the_next_message_is_the_first_of_who_joins() {
    for at in [
        [(0, true), (0, false)],
        [(0, true), (1, false)],
        [(1, true), (2, false)],
    ] {
        let mut net = Net::new(&[0, 0], &at, Psn::new(Psn::MODULUS - 6), (40, 4, 4));
        for _ in 0..10 {
            net.step(Chance::Send).unwrap();
            while !net.flying.is_empty() {
                net.step(Chance::Deliver(0)).unwrap();
            }
        }
        net.step(Chance::Join(1)).unwrap();
        net.finish().unwrap();
        assert_eq!(net.joins, 1, "{at:?}");
        let expected = net.hosts[1].receiver.as_ref().map(|r| r.expected);
        assert_eq!(expected, Some(40), "{at:?}");
    }
}

/// One that is not connected yet holds up the source at the first packet that it is to get, and no earlier.
#[test]
fn a_switch_acknowledges_what_comes_before_the_first_message() {
    let mut out = Effects::new();
    let config = MulticastConfig {
        paths: 2,
        source: path(0),
        start_psn: None,
        stall_timeout: Nanos::ZERO,
    };
    let mut machine = Multicast::new(config).with_joining([path(1)]);
    for (psn, begins, acknowledged) in [
        (5, false, true),
        (6, false, true),
        (7, true, false),
        (8, false, false),
    ] {
        let psn = Psn::new(psn);
        if begins {
            machine.handle_message(path(0), psn);
        }
        let event = Event::Data {
            from: path(0),
            psn,
            ack_request: true,
        };
        machine.handle(Nanos::ZERO, event, &mut out);
        let acks = out
            .iter()
            .any(|e| matches!(e, Effect::Acknowledge { psn: p, .. } if *p == psn));
        assert_eq!(
            (acks, machine.lacks(path(1), psn)),
            (acknowledged, !acknowledged),
            "{psn}"
        );
    }
    assert!(machine.joined_with(Psn::new(7)).eq([path(1)]));
    assert_eq!(machine.joined_with(Psn::new(8)).count(), 0);
}
