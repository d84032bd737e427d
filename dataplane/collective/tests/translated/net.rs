//! The network: switches, hosts and links under virtual time, checked at each event.

use crate::check;
use crate::host::{Answer, Host, HostConfig, Repeats};
use crate::paths::handle;
use crate::program::{self, Payload};
use crate::tree::{Peer, Tree};
use castnet_collective::translated::{CollectiveMode, Effect, Effects, Event, Refusal};
use castnet_collective::{
    EndpointConfig, EndpointId, EndpointKind, LossPolicy, PacketShape, StragglerPolicy, Translated,
    TranslatedConfig,
};
use castnet_wire::{Call, Control, DropReason, Nanos, Psn, Syndrome};
use std::collections::{BTreeMap, BTreeSet};

/// A small generator of pseudo-random numbers.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }
}

/// A frame on a link.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Frame {
    Data {
        psn: Psn,
        shape: PacketShape,
        payload: Payload,
        ack_request: bool,
    },
    Control {
        psn: Psn,
        control: Control,
    },
    Ack {
        psn: Psn,
        msn: u32,
        syndrome: Syndrome,
    },
    Request {
        psn: Psn,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Node {
    Host(usize),
    Switch(usize),
}

#[derive(Clone, Copy, Debug)]
enum Happening {
    Arrive { to: Node, endpoint: usize, frame: Frame },
    Wake(Node),
}

#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) seed: u64,
    pub(crate) tree: Tree,
    pub(crate) calls: Vec<Call>,
    /// Different calls of single ranks.
    pub(crate) odd: BTreeMap<u16, Vec<Call>>,
    /// Packets of a full message of single ranks, who do not keep to `message_packets`.
    pub(crate) odd_cuts: BTreeMap<u16, u16>,
    pub(crate) message_packets: u16,
    pub(crate) window: u64,
    pub(crate) slots: u16,
    pub(crate) collectives: u16,
    pub(crate) mode: CollectiveMode,
    pub(crate) loss: LossPolicy,
    pub(crate) straggler: StragglerPolicy,
    pub(crate) timeout: Nanos,
    pub(crate) retries: u32,
    /// Hosts as the software RNIC, and not as rxe.
    pub(crate) soft: bool,
    pub(crate) starts: BTreeMap<u16, Nanos>,
    pub(crate) receives: BTreeMap<u16, Nanos>,
    pub(crate) start_psn: Psn,
    /// Per mille of frames lost, doubled, held back.
    pub(crate) lost: u64,
    pub(crate) doubled: u64,
    pub(crate) late: u64,
    /// Virtual time within which all must end.
    pub(crate) patience: Nanos,
}

impl Setting {
    pub(crate) fn new(tree: Tree, calls: Vec<Call>) -> Self {
        Self {
            seed: 1,
            tree,
            calls,
            odd: BTreeMap::new(),
            odd_cuts: BTreeMap::new(),
            message_packets: 8,
            window: 64,
            slots: 128,
            collectives: 32,
            mode: CollectiveMode::Translated,
            loss: LossPolicy::Repair,
            straggler: StragglerPolicy::KeepAlive,
            timeout: Nanos::from_micros(67_109),
            retries: 7,
            soft: false,
            starts: BTreeMap::new(),
            receives: BTreeMap::new(),
            start_psn: Psn::new(Psn::MODULUS - 3),
            lost: 0,
            doubled: 0,
            late: 0,
            patience: Nanos::from_secs(300),
        }
    }
}

pub(crate) struct Switch {
    pub(crate) machine: Translated,
    /// The initial state.
    fresh: Translated,
    pub(crate) slots: Vec<Option<Payload>>,
}

/// Returns true for a frame that must be lost.
pub(crate) type Filter = Box<dyn FnMut(Node, Node, &Frame) -> bool>;

pub(crate) struct Net {
    pub(crate) setting: Setting,
    pub(crate) now: Nanos,
    pub(crate) hosts: Vec<Host>,
    pub(crate) switches: Vec<Switch>,
    /// Where each host is: its switch and the endpoint there.
    at: Vec<(usize, usize)>,
    queue: BTreeMap<(Nanos, u64), Happening>,
    /// When each node is woken next: one entry of the queue for each time.
    wakes: BTreeSet<(Node, Nanos)>,
    number: u64,
    random: Random,
    pub(crate) filter: Option<Filter>,
    pub(crate) drops: BTreeMap<DropReason, u64>,
    pub(crate) conflicts: Vec<(usize, Control)>,
    pub(crate) refused: Vec<(u16, Refusal)>,
    pub(crate) stalls: u64,
    pub(crate) frames: u64,
    /// Data frames that went over a link from one node to another.
    pub(crate) data: BTreeMap<(Node, Node), u64>,
    pub(crate) acks: BTreeMap<(Node, Node), u64>,
    /// By host, its packets that its switch has accepted.
    pub(crate) accepted: Vec<BTreeSet<u64>>,
}

impl Net {
    pub(crate) fn new(setting: Setting) -> Self {
        let mut random = Random(setting.seed);
        let tree = &setting.tree;
        let configs: Vec<_> = (0..tree.ranks)
            .map(|rank| HostConfig {
                rank,
                sq_psn: start_psn(&mut random),
                rq_psn: start_psn(&mut random),
                window: setting.window,
                collectives: usize::from(setting.collectives) / 2 - 1,
                timeout: setting.timeout,
                retries: setting.retries,
                repeats: match (setting.mode, setting.loss) {
                    _ if !setting.soft => Repeats::All,
                    (CollectiveMode::Augmented, _) | (_, LossPolicy::Repair) => Repeats::Requested,
                    _ => Repeats::All,
                },
                starts: setting.starts.get(&rank).copied().unwrap_or_default(),
                receives: setting.receives.get(&rank).copied().unwrap_or_default(),
            })
            .collect();
        let hosts = configs.iter().map(|config| {
            let rank = config.rank;
            let calls = setting.odd.get(&rank).unwrap_or(&setting.calls);
            let m = setting.message_packets;
            let own = setting.odd_cuts.get(&rank).copied().unwrap_or(m);
            Host::new(
                config.clone(),
                program::items(calls, |c, index| program::sends(c, rank, index), own.into()),
                program::items(calls, |c, index| program::receives(c, rank, index), m.into()),
            )
        });
        let hosts: Vec<_> = hosts.collect();
        let ranks = tree.ranks;
        let mut at = vec![(0, 0); hosts.len()];
        let mut switches = Vec::new();
        for (switch, peers) in tree.endpoints.iter().enumerate() {
            let endpoints = peers.iter().enumerate().map(|(e, peer)| EndpointConfig {
                kind: match peer {
                    Peer::Host(h) => {
                        at[*h] = (switch, e);
                        EndpointKind::Rank {
                            rank: *h as u16,
                            sq_psn: configs[*h].sq_psn,
                            rq_psn: configs[*h].rq_psn,
                            is_host: true,
                        }
                    }
                    Peer::Switch { .. } => EndpointKind::Switch,
                },
                ranks: tree.behind(switch, e).into_iter().collect(),
            });
            let machine = Translated::new(TranslatedConfig {
                endpoints: endpoints.collect(),
                parent: tree.parent[switch].map(endpoint),
                start_psn: setting.start_psn,
                slots: setting.slots,
                message_packets: setting.message_packets,
                pmtu: 256,
                reproducible: false,
                collectives_max: setting.collectives,
                mode: setting.mode,
                loss: setting.loss,
                straggler: setting.straggler,
                tick: Nanos(setting.timeout.0 / 4),
                stall_timeout: Nanos::from_secs(5),
            });
            switches.push(Switch {
                slots: vec![None; usize::from(machine.slots())],
                fresh: machine.clone(),
                machine,
            });
        }
        let mut net = Self {
            setting,
            now: Nanos::ZERO,
            hosts,
            switches,
            at,
            queue: BTreeMap::new(),
            wakes: BTreeSet::new(),
            number: 0,
            random,
            filter: None,
            drops: BTreeMap::new(),
            conflicts: Vec::new(),
            refused: Vec::new(),
            stalls: 0,
            frames: 0,
            data: BTreeMap::new(),
            acks: BTreeMap::new(),
            accepted: vec![BTreeSet::new(); usize::from(ranks)],
        };
        for host in 0..net.hosts.len() {
            net.wake(Node::Host(host), Some(Nanos::ZERO));
        }
        net
    }

    /// Runs until everything is finished and idle, or until a host dies. Panics if it does not end.
    pub(crate) fn run(&mut self) {
        while self.step() {
            assert!(
                self.now < self.setting.patience,
                "seed {}: no end: {}",
                self.setting.seed,
                self.story()
            );
        }
    }

    /// Runs to the end. All hosts are alive, there are no errors, and all switches are idle.
    pub(crate) fn finish(&mut self) {
        self.run();
        assert!(
            self.hosts.iter().all(Host::is_done),
            "seed {}: stuck: {}",
            self.setting.seed,
            self.story()
        );
        for host in &self.hosts {
            assert!(
                !host.dead,
                "seed {}: rank {} died",
                self.setting.seed, host.config.rank
            );
        }
        for switch in &self.switches {
            assert_eq!(switch.machine.poll_timeout(), None, "{}", self.story());
            let status = switch.machine.status();
            let total = program::starts(&self.setting.calls).last().copied().unwrap();
            assert_eq!(status.finished, total, "{}", self.story());
            assert!(status.collectives.is_empty());
        }
    }

    pub(crate) fn story(&self) -> String {
        use std::fmt::Write;
        let mut text = format!("at {}\n", self.now);
        for host in &self.hosts {
            let (into, out) = (host.into.len(), host.out.len());
            writeln!(
                text,
                "host {}: received {}/{into} acked {}/{out} next {} posted {} dead {}",
                host.config.rank,
                host.received.len(),
                host.acked,
                host.next,
                host.posted,
                host.dead
            )
            .unwrap();
        }
        for (i, switch) in self.switches.iter().enumerate() {
            let s = switch.machine.status();
            writeln!(
                text,
                "switch {i}: finished {} next {} waits {:?} timeout {:?}",
                s.finished,
                s.next_sequence,
                s.waiting_for,
                switch.machine.poll_timeout()
            )
            .unwrap();
            for e in s.endpoints {
                writeln!(text, "   {e:?}").unwrap();
            }
        }
        text
    }

    /// Handles the next event. Returns false if there is none.
    pub(crate) fn step(&mut self) -> bool {
        let Some(((at, _), happening)) = self.queue.pop_first() else {
            return false;
        };
        self.now = at;
        match happening {
            Happening::Wake(node) => {
                self.wakes.remove(&(node, at));
                match node {
                    Node::Host(host) => {
                        self.hosts[host].on_time(at);
                        self.pump(host);
                    }
                    Node::Switch(switch) => self.timeout(switch),
                }
            }
            Happening::Arrive {
                to: Node::Host(host),
                frame,
                ..
            } => self.at_host(host, frame),
            Happening::Arrive {
                to: Node::Switch(switch),
                endpoint,
                frame,
            } => self.at_switch(switch, endpoint, frame),
        }
        true
    }

    fn at_host(&mut self, host: usize, frame: Frame) {
        let now = self.now;
        if let Frame::Data { psn, .. } | Frame::Control { psn, .. } = frame
            && let Some(missing) = self.hosts[host].keep(psn, frame)
        {
            let (switch, endpoint) = self.at[host];
            for psn in missing {
                self.send(
                    Node::Host(host),
                    Node::Switch(switch),
                    endpoint,
                    Frame::Request { psn },
                );
            }
            return;
        }
        let answer = match frame {
            Frame::Ack { psn, syndrome, .. } => {
                let news = self.hosts[host].on_feedback(now, psn, syndrome);
                check::acknowledged(self, host, news);
                None
            }
            Frame::Request { psn } => {
                self.hosts[host].on_repair_request(psn);
                None
            }
            Frame::Data {
                psn,
                shape,
                payload,
                ack_request,
            } => {
                let before = self.hosts[host].received.len();
                let answer = self.hosts[host].on_request(now, psn, Some(payload), ack_request);
                if self.hosts[host].received.len() > before {
                    check::received_data(self, host, before, payload, shape);
                }
                answer
            }
            Frame::Control { psn, control } => {
                let before = self.hosts[host].received.len();
                let answer = self.hosts[host].on_request(now, psn, None, true);
                if self.hosts[host].received.len() > before {
                    check::received_control(self, host, before, &control);
                }
                answer
            }
        };
        if let Some(Answer { psn, syndrome }) = answer {
            let (switch, endpoint) = self.at[host];
            let frame = Frame::Ack {
                psn,
                msn: 0,
                syndrome,
            };
            self.send(Node::Host(host), Node::Switch(switch), endpoint, frame);
        }
        if let Some(kept) = self.hosts[host].take_kept() {
            return self.at_host(host, kept);
        }
        self.pump(host);
    }

    /// Sends all packets that a host may send.
    fn pump(&mut self, host: usize) {
        self.hosts[host].post(self.now);
        while let Some((psn, item, ack_request)) = self.hosts[host].transmit(self.now) {
            let rank = self.hosts[host].config.rank;
            let calls = self.setting.odd.get(&rank).unwrap_or(&self.setting.calls);
            let frame = match item.index {
                None => Frame::Control {
                    psn,
                    control: program::control(item.collective, rank, calls[item.collective]),
                },
                Some(index) => Frame::Data {
                    psn,
                    shape: item.shape(),
                    payload: Payload {
                        collective: item.collective,
                        index,
                        ranks: 1 << rank,
                    },
                    ack_request,
                },
            };
            let (switch, endpoint) = self.at[host];
            self.send(Node::Host(host), Node::Switch(switch), endpoint, frame);
        }
        let deadline = self.hosts[host].deadline();
        self.wake(Node::Host(host), deadline);
    }

    fn at_switch(&mut self, switch: usize, from: usize, frame: Frame) {
        let event = match frame {
            Frame::Data {
                psn,
                shape,
                ack_request,
                ..
            } => Event::Data {
                from: endpoint(from),
                psn,
                shape,
                ack_request,
            },
            Frame::Control { psn, control } => Event::Control {
                from: endpoint(from),
                psn,
                control,
                ack_request: true,
            },
            Frame::Ack { psn, msn, syndrome } => Event::Feedback {
                from: endpoint(from),
                psn,
                msn,
                syndrome,
            },
            Frame::Request { psn } => Event::Request {
                from: endpoint(from),
                psn,
            },
        };
        let mut effects = Effects::new();
        handle(&mut self.switches[switch].machine, self.now, event, &mut effects);
        assert!(!effects.is_empty());
        if let (Peer::Host(host), Frame::Data { psn, .. } | Frame::Control { psn, .. }) =
            (self.setting.tree.endpoints[switch][from], frame)
            && !effects.iter().any(|e| matches!(e, Effect::Drop(_)))
        {
            let index = psn.diff(self.hosts[host].config.sq_psn);
            self.accepted[host].insert(index as u64);
        }
        let alone = effects.len() == 1;
        for effect in effects {
            assert!(effect != Effect::Absorb || alone);
            self.carry_out(switch, effect, Some(&frame));
        }
        self.drain(switch);
    }

    fn timeout(&mut self, switch: usize) {
        let mut calls = 0;
        while self.switches[switch]
            .machine
            .poll_timeout()
            .is_some_and(|(at, _)| at <= self.now)
        {
            let mut effects = Effects::new();
            self.switches[switch]
                .machine
                .handle_timeout(self.now, &mut effects);
            for effect in effects {
                self.carry_out(switch, effect, None);
            }
            self.drain(switch);
            calls += 1;
            assert!(calls < 100, "a timer that is always due");
        }
        if self.switches[switch].machine.catch_up() {
            self.drain(switch);
        }
        self.arm(switch);
    }

    fn drain(&mut self, switch: usize) {
        let mut effects = Effects::new();
        while self.switches[switch].machine.poll_emit(self.now, &mut effects) {
            for effect in effects.drain(..) {
                self.carry_out(switch, effect, None);
            }
        }
        self.arm(switch);
    }

    fn arm(&mut self, switch: usize) {
        let Switch { machine, fresh, .. } = &self.switches[switch];
        let mut copy = fresh.clone();
        copy.copy_state(machine);
        assert!(copy == *machine, "{copy:?} is no copy of {machine:?}");
        let at = self.switches[switch].machine.poll_timeout().map(|(at, _)| at);
        self.wake(Node::Switch(switch), at);
        if self.switches[switch].machine.is_behind() {
            // Other frames come first.
            self.wake(Node::Switch(switch), Some(self.now + Nanos(1000)));
        }
    }

    fn wake(&mut self, node: Node, at: Option<Nanos>) {
        let Some(at) = at else { return };
        let at = at.max(self.now);
        if self.wakes.insert((node, at)) {
            self.number += 1;
            self.queue.insert((at, self.number), Happening::Wake(node));
        }
    }

    /// Executes an effect on sets of ranks.
    fn carry_out(&mut self, switch: usize, effect: Effect, frame: Option<&Frame>) {
        let payload = match frame {
            Some(Frame::Data { payload, .. }) => Some(*payload),
            _ => None,
        };
        match effect {
            Effect::Aggregate { slot, first, .. } => {
                let added = payload.expect("aggregation of a data frame");
                let slot = &mut self.switches[switch].slots[usize::from(slot)];
                if first {
                    *slot = Some(added);
                } else {
                    let sum = slot.as_mut().expect("something to add to");
                    let alike = (sum.collective, sum.index) == (added.collective, added.index);
                    if !alike && !self.setting.odd.is_empty() {
                        // Before it is known that ranks disagree, their data may meet. No rank may get what comes of it.
                        sum.collective = usize::MAX;
                        return;
                    }
                    assert!(alike, "{sum:?} with {added:?}");
                    assert_eq!(sum.ranks & added.ranks, 0, "C1: a contribution is added twice");
                    sum.ranks |= added.ranks;
                }
            }
            Effect::Store { slot } => {
                self.switches[switch].slots[usize::from(slot)] =
                    Some(payload.expect("a data frame to store"));
            }
            Effect::HandOver { from, to } => {
                let slots = &mut self.switches[switch].slots;
                slots[usize::from(to)] = slots[usize::from(from)];
            }
            Effect::Emit {
                slot,
                g,
                to,
                ack_request,
            } => {
                let payload = self.switches[switch].slots[usize::from(slot)].expect("something to send");
                let shape = self.switches[switch].machine.shape(slot);
                assert!(!to.is_empty());
                for e in to {
                    let psn = self.switches[switch].machine.header(g).psn(e);
                    self.send_from(
                        switch,
                        e,
                        Frame::Data {
                            psn,
                            shape,
                            payload,
                            ack_request,
                        },
                    );
                }
            }
            Effect::EmitControl { g, to, control } => {
                assert!(!to.is_empty());
                for e in to {
                    let psn = self.switches[switch].machine.header(g).psn(e);
                    self.send_from(switch, e, Frame::Control { psn, control });
                }
            }
            Effect::Acknowledge {
                to,
                psn,
                msn,
                syndrome,
            } => self.send_from(switch, to, Frame::Ack { psn, msn, syndrome }),
            Effect::Request { to, psn } => self.send_from(switch, to, Frame::Request { psn }),
            Effect::Drop(reason) => *self.drops.entry(reason).or_default() += 1,
            Effect::Conflict { control } => self.conflicts.push((switch, control)),
            Effect::Refused { from, why, .. } => {
                let Peer::Host(host) = self.setting.tree.endpoints[switch][from.index()] else {
                    panic!("no rank: {from:?} {why:?}");
                };
                self.refused.push((host as u16, why));
            }
            Effect::Stalled { waiting_for, .. } => {
                assert!(!waiting_for.is_empty());
                self.stalls += 1;
            }
            Effect::MemberFailed { .. }
            | Effect::Complete { .. }
            | Effect::Merged
            | Effect::Cnp { .. }
            | Effect::Absorb => {}
        }
    }

    fn send_from(&mut self, switch: usize, e: EndpointId, frame: Frame) {
        let (to, endpoint) = match self.setting.tree.endpoints[switch][e.index()] {
            Peer::Host(host) => (Node::Host(host), 0),
            Peer::Switch { switch, endpoint } => (Node::Switch(switch), endpoint),
        };
        if let (Node::Host(host), Frame::Ack { psn, msn, syndrome }) = (to, &frame) {
            check::message_count(self, host, *psn, *msn, *syndrome);
        }
        self.send(Node::Switch(switch), to, endpoint, frame);
    }

    fn send(&mut self, from: Node, to: Node, endpoint: usize, frame: Frame) {
        self.frames += 1;
        assert!(
            self.frames < 3_000_000,
            "seed {}: a storm: {}",
            self.setting.seed,
            self.story()
        );
        let count = if matches!(frame, Frame::Ack { .. } | Frame::Request { .. }) {
            &mut self.acks
        } else {
            &mut self.data
        };
        *count.entry((from, to)).or_default() += 1;
        if self.filter.as_mut().is_some_and(|f| f(from, to, &frame)) || self.random.chance(self.setting.lost)
        {
            return;
        }
        let copies = 1 + u64::from(self.random.chance(self.setting.doubled));
        for _ in 0..copies {
            let mut at = self.now + Nanos(2_000);
            if self.random.chance(self.setting.late) {
                at += Nanos(self.random.below(20_000));
            }
            self.number += 1;
            self.queue
                .insert((at, self.number), Happening::Arrive { to, endpoint, frame });
        }
    }
}

pub(crate) fn endpoint(index: usize) -> EndpointId {
    EndpointId::new(index).unwrap()
}

/// Anywhere, but often just before the wrap.
fn start_psn(random: &mut Random) -> Psn {
    let value = random.next();
    Psn::new(if value & 1 == 0 {
        (value >> 8) as u32
    } else {
        0u32.wrapping_sub((value >> 8) as u32 % 300)
    })
}
