//! The switches and their links: a spine, two leaves, and two ranks at each leaf.

use super::fault::{Fault, apply_fault};
use super::host::Part;
use super::message::{Content, Message};
use super::messages::{BYTES, MessageSwitch};
use super::shared::{Reactions, SharedSwitch};
use super::{Config, RANKS};
use castnet_collective::translated::{
    CollectiveMode, Effect, Effects, EndpointConfig, EndpointId, EndpointKind, EndpointSet, Event,
    PacketShape, RankSet, Translated, TranslatedConfig,
};
use castnet_wire::{Nanos, Opcode, Psn, Syndrome};

/// Number of switches: the spine, then the leaves.
pub const SWITCHES: usize = 3;
/// Number of links: two for each of six edges.
pub const LINKS: usize = 12;
/// Most slots of a switch: enough for two collectives of three packets, or for one in each pipe of Mode-III.
pub const SLOTS: usize = 8;
/// Endpoint of a leaf towards the spine. Endpoints of the spine lead to the leaves, the first two of a leaf to its
/// ranks.
pub(super) const UP: usize = 2;
/// PSN of the control message in the group. Data begins behind the wrap.
pub const START: Psn = Psn::new(Psn::MODULUS - 1);

/// A switch of Mode-II or Mode-III: the machine, and the contributions instead of payloads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PacketSwitch {
    pub(super) machine: Translated,
    pub(super) contents: [Content; SLOTS],
}

/// A switch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Switch {
    /// Of Mode-II or Mode-III.
    Packets(Box<PacketSwitch>),
    /// Of Mode-I.
    Messages(Box<MessageSwitch>),
}

impl Switch {
    /// Returns true if something is in flight.
    pub fn is_active(&self) -> bool {
        match self {
            Self::Packets(switch) => switch.machine.poll_timeout().is_some(),
            Self::Messages(switch) => switch.is_active(),
        }
    }
}

/// Notable events of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// A switch has sent a NAK to a rank.
    pub nak_to_rank: bool,
    /// A switch has sent a NAK to another switch.
    pub nak_to_switch: bool,
    /// A rank has timed out.
    pub timed_out: bool,
    /// Ranks disagree.
    pub conflict: bool,
}

/// Result of a step of a switch.
#[derive(Clone, Debug, Default)]
pub struct Step {
    /// Messages sent, with their links.
    pub sent: Vec<(usize, Message)>,
    /// Notable events.
    pub seen: Seen,
    /// A switch of Mode-I has refused the message.
    pub refused: bool,
}

/// The tree.
#[derive(Clone, Debug)]
pub struct Nodes;

impl Nodes {
    /// The switches in their initial state.
    pub fn switches(&self, config: &Config, parts: &[Part; RANKS]) -> [SharedSwitch; SWITCHES] {
        std::array::from_fn(|index| {
            let leaf = |l: usize| (2 * l as u16..2 * l as u16 + 2).collect::<RankSet>();
            let to_rank = |rank: usize| EndpointConfig {
                kind: EndpointKind::Rank {
                    rank: rank as u16,
                    sq_psn: parts[rank].sq_psn,
                    rq_psn: parts[rank].rq_psn,
                    is_host: true,
                },
                ranks: RankSet::only(rank as u16),
            };
            // An edge between two modes is an RC connection for both its ends (decision 20).
            let to_switch = |other: usize, ranks: RankSet| EndpointConfig {
                kind: match ranks.as_slice() {
                    [rank, ..]
                        if config.modes[index] != config.modes[other] && config.fault != Fault::OneMode =>
                    {
                        EndpointKind::Rank {
                            rank: *rank,
                            sq_psn: START,
                            rq_psn: START,
                            is_host: false,
                        }
                    }
                    _ => EndpointKind::Switch,
                },
                ranks,
            };
            let (endpoints, parent) = match index {
                0 => (vec![to_switch(1, leaf(0)), to_switch(2, leaf(1))], None),
                _ => {
                    let first = 2 * (index - 1);
                    let others = leaf(2 - index);
                    let endpoints = vec![to_rank(first), to_rank(first + 1), to_switch(0, others)];
                    (endpoints, EndpointId::new(UP))
                }
            };
            let config = TranslatedConfig {
                endpoints,
                parent,
                start_psn: START,
                slots: config.slots,
                message_packets: 0,
                pmtu: 0,
                reproducible: false,
                collectives_max: 2,
                mode: config.modes[index],
                loss: config.loss,
                straggler: config.straggler,
                // Time stands still: each tick is due, and nothing is measured.
                tick: Nanos::ZERO,
                stall_timeout: Nanos::ZERO,
            };
            SharedSwitch::new(match config.mode {
                CollectiveMode::Terminated => Switch::Messages(Box::new(MessageSwitch::new(config))),
                _ => Switch::Packets(Box::new(PacketSwitch {
                    machine: Translated::new(config),
                    contents: [Content::NONE; SLOTS],
                })),
            })
        })
    }

    /// Edges 0 and 1: spine to leaf; edge 2 + r: leaf to rank `r`. Link 2e leads down, 2e + 1 up.
    pub fn link_to_rank(&self, rank: usize) -> usize {
        2 * (2 + rank)
    }

    /// The outgoing link of a rank.
    pub fn link_from_rank(&self, rank: usize) -> usize {
        self.link_to_rank(rank) + 1
    }

    /// Returns true if the spine sends on a link.
    pub fn is_from_spine(&self, link: usize) -> bool {
        link < 4 && link.is_multiple_of(2)
    }

    /// The rank that a link leads to.
    pub fn rank_at(&self, link: usize) -> Option<usize> {
        (link.is_multiple_of(2) && link >= 4).then(|| link / 2 - 2)
    }

    /// The switch and endpoint that a link leads to.
    fn end(&self, link: usize) -> (usize, usize) {
        match (link / 2, link % 2) {
            (edge @ 0..2, 0) => (1 + edge, UP),
            (edge @ 0..2, _) => (0, edge),
            (edge, _) => (1 + (edge - 2) / 2, (edge - 2) % 2),
        }
    }

    /// The outgoing link of an endpoint.
    fn away(&self, switch: usize, endpoint: usize) -> usize {
        match switch {
            0 => 2 * endpoint,
            leaf if endpoint == UP => 2 * (leaf - 1) + 1,
            leaf => self.link_to_rank(2 * (leaf - 1) + endpoint),
        }
    }

    /// A message arrives at a switch.
    pub fn arrive(
        &self,
        (switches, reactions): (&mut [SharedSwitch; SWITCHES], &Reactions),
        link: usize,
        message: &Message,
        fault: Fault,
    ) -> Step {
        let (index, endpoint) = self.end(link);
        let before = (&switches[index], link, message);
        let (after, step) = reactions.get(before, |switch| {
            let from = EndpointId::new(endpoint).expect("at most three endpoints");
            self.react(index, switch, (from, message), fault)
        });
        switches[index] = after;
        step
    }

    fn react(
        &self,
        index: usize,
        switch: &mut Switch,
        (from, message): (EndpointId, &Message),
        fault: Fault,
    ) -> Step {
        let mut step = Step::default();
        let switch = match switch {
            Switch::Packets(switch) => switch,
            Switch::Messages(switch) => {
                let sent = switch.arrive(from, message);
                step.refused = sent.is_none();
                self.put_on_links(index, sent.unwrap_or_default(), &mut step);
                return step;
            }
        };
        let mut effects = Effects::new();
        let (event, content) = match *message {
            Message::Control { psn, control } => {
                let ack_request = true;
                (
                    Event::Control {
                        from,
                        psn,
                        control,
                        ack_request,
                    },
                    None,
                )
            }
            Message::Data { psn, ask, content } => (
                Event::Data {
                    from,
                    psn,
                    shape: PacketShape {
                        opcode: Opcode::SendOnly,
                        payload: BYTES,
                        pad: 0,
                    },
                    ack_request: ask,
                },
                Some(content),
            ),
            Message::Feedback { psn, syndrome } => (
                Event::Feedback {
                    from,
                    psn,
                    msn: 0,
                    syndrome,
                },
                None,
            ),
        };
        switch.machine.handle(Nanos::ZERO, event, &mut effects);
        if fault != Fault::Nothing
            && let Message::Data { psn, .. } = *message
        {
            apply_fault(fault, switch, (index, from), psn, &mut effects);
        }
        self.carry_out(index, switch, &effects, content, &mut step);
        self.send_pending(index, switch, &mut step);
        step
    }

    /// Returns true if an ACK has no information for the switch at the end of a link. It never will: acknowledged
    /// counts only increase.
    pub fn is_stale(
        &self,
        (switches, reactions): (&[SharedSwitch; SWITCHES], &Reactions),
        link: usize,
        message: &Message,
        fault: Fault,
    ) -> bool {
        if !matches!(
            message,
            Message::Feedback {
                syndrome: Syndrome::Ack,
                ..
            }
        ) {
            return false;
        }
        let mut after = switches.clone();
        let step = self.arrive((&mut after, reactions), link, message, fault);
        step.sent.is_empty() && after == *switches
    }

    /// The tick of a switch.
    pub fn tick(&self, switches: &mut [SharedSwitch; SWITCHES], index: usize) -> Step {
        let mut step = Step::default();
        let mut after = switches[index].get().clone();
        match &mut after {
            Switch::Packets(switch) => {
                let mut effects = Effects::new();
                // One call handles the ticks of three endpoints.
                switch.machine.handle_timeout(Nanos::ZERO, &mut effects);
                self.carry_out(index, switch, &effects, None, &mut step);
                self.send_pending(index, switch, &mut step);
            }
            Switch::Messages(switch) => self.put_on_links(index, switch.tick(), &mut step),
        }
        switches[index] = SharedSwitch::new(after);
        step
    }

    /// A switch asks, as after a silence. One of Mode-I does not: the connections that end there have the timers of ranks.
    pub fn ask(&self, switches: &mut [SharedSwitch; SWITCHES], index: usize) -> Step {
        let mut step = Step::default();
        let mut after = switches[index].get().clone();
        if let Switch::Packets(switch) = &mut after {
            let mut effects = Effects::new();
            // One call asks three endpoints.
            switch.machine.ask_all(&mut effects);
            self.carry_out(index, switch, &effects, None, &mut step);
            self.send_pending(index, switch, &mut step);
        }
        switches[index] = SharedSwitch::new(after);
        step
    }

    fn put_on_links(&self, index: usize, sent: Vec<(usize, Message)>, step: &mut Step) {
        let sent = sent.into_iter();
        step.sent
            .extend(sent.map(|(endpoint, message)| (self.away(index, endpoint), message)));
    }

    fn send_pending(&self, index: usize, switch: &mut PacketSwitch, step: &mut Step) {
        let mut effects = Effects::new();
        while switch.machine.poll_emit(Nanos::ZERO, &mut effects) || switch.machine.catch_up() {
            self.carry_out(index, switch, &effects, None, step);
        }
    }

    fn carry_out(
        &self,
        index: usize,
        switch: &mut PacketSwitch,
        effects: &Effects,
        content: Option<Content>,
        step: &mut Step,
    ) {
        let send =
            |to: EndpointSet, make: &dyn Fn(Psn) -> Message, g: Psn, out: &mut Vec<(usize, Message)>| {
                for endpoint in to {
                    let psn = switch.machine.header(g).psn(endpoint);
                    out.push((self.away(index, endpoint.index()), make(psn)));
                }
            };
        let Step { sent, seen, .. } = step;
        let mut contents = switch.contents;
        for effect in effects {
            match *effect {
                Effect::Aggregate { slot, first, .. } => {
                    let slot = &mut contents[usize::from(slot)];
                    let before = if first { Content::NONE } else { *slot };
                    *slot = before.plus(content.unwrap_or_default());
                }
                Effect::HandOver { from, to } => contents[usize::from(to)] = contents[usize::from(from)],
                Effect::Store { slot } => contents[usize::from(slot)] = content.unwrap_or_default(),
                Effect::Emit {
                    slot,
                    g,
                    to,
                    ack_request: ask,
                } => {
                    let content = contents[usize::from(slot)];
                    send(to, &|psn| Message::Data { psn, ask, content }, g, sent);
                }
                Effect::EmitControl { g, to, control } => {
                    send(to, &|psn| Message::Control { psn, control }, g, sent);
                }
                Effect::Acknowledge {
                    to, psn, syndrome, ..
                } => {
                    let nak = syndrome != Syndrome::Ack;
                    let to_rank = index > 0 && to.index() != UP;
                    seen.nak_to_rank |= nak && to_rank;
                    seen.nak_to_switch |= nak && !to_rank;
                    let message = Message::Feedback { psn, syndrome };
                    sent.push((self.away(index, to.index()), message));
                }
                Effect::Conflict { .. } => seen.conflict = true,
                // The model's ranks are as rxe: they go back at a NAK, and know no request. They have no probes either.
                Effect::Request { .. } => {}
                Effect::Complete { .. }
                | Effect::Merged
                | Effect::Cnp { .. }
                | Effect::Absorb
                | Effect::Drop(_)
                | Effect::Stalled { .. }
                | Effect::Refused { .. }
                | Effect::MemberFailed { .. } => {}
            }
        }
        switch.contents = contents;
    }
}
