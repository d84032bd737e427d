//! A switch of Mode-I beside switches of other modes: messages of one packet, over RC connections that end at the switch. It has buffers
//! for all messages, so none is refused.

use super::connection::Connection;
use super::message::{Content, Message};
use super::nodes::START;
use castnet_collective::terminated::{self, Effect, Inbox};
use castnet_collective::{EndpointId, EndpointKind, Terminated, TranslatedConfig};
use castnet_wire::{Control, Nanos, Psn};

/// Bytes of a data packet.
pub const BYTES: u16 = 1024;

/// The connection of an endpoint, and what passes over it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct End {
    connection: Connection,
    /// The first PSNs that the neighbour sends, and expects.
    starts: (Psn, Psn),
    /// The slots of all sent messages, and the control message of those that are one.
    sent: Vec<(u16, Option<Control>)>,
    /// By buffer: the received message.
    buffers: Vec<Option<(terminated::Message, Content)>>,
}

/// A switch of Mode-I: the machine, and the contributions instead of payloads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MessageSwitch {
    machine: Terminated,
    contents: Vec<Content>,
    ends: Vec<End>,
}

struct Received<'a>(&'a [End]);

impl Inbox for Received<'_> {
    fn message(&self, from: EndpointId, buffer: u16) -> terminated::Message {
        let buffer = &self.0[from.index()].buffers[usize::from(buffer)];
        buffer.map_or(terminated::Message::Invalid, |(message, _)| message)
    }
}

impl MessageSwitch {
    /// A switch in its initial state.
    pub fn new(config: TranslatedConfig) -> Self {
        let kinds: Vec<_> = config.endpoints.iter().map(|endpoint| endpoint.kind).collect();
        let machine = Terminated::new(TranslatedConfig {
            message_packets: 1,
            pmtu: BYTES,
            ..config
        });
        let ring = usize::from(machine.slots());
        let end = |kind| End {
            connection: Connection::default(),
            starts: match kind {
                EndpointKind::Rank { sq_psn, rq_psn, .. } => (sq_psn, rq_psn),
                EndpointKind::Switch => (START, START),
            },
            sent: Vec::new(),
            buffers: vec![None; ring],
        };
        Self {
            machine,
            contents: vec![Content::NONE; 2 * ring],
            ends: kinds.into_iter().map(end).collect(),
        }
    }

    /// Returns true if a message that was sent is not acknowledged.
    pub fn is_active(&self) -> bool {
        let is_active = |end: &End| usize::from(end.connection.unacked) < end.sent.len();
        self.ends.iter().any(is_active)
    }

    /// A message arrives. Returns what is sent, by endpoint; `None` if the switch refuses the message.
    pub fn arrive(&mut self, from: EndpointId, message: &Message) -> Option<Vec<(usize, Message)>> {
        let mut out = Vec::new();
        match *message {
            Message::Feedback { psn, syndrome } => {
                let end = &mut self.ends[from.index()];
                let (before, sent) = (end.connection.unacked, end.sent.len() as u8);
                let again = end.connection.feedback(psn.diff(end.starts.1), syndrome, sent);
                for (slot, _) in &end.sent[before.into()..end.connection.unacked.into()] {
                    self.machine.acknowledged(Nanos::ZERO, from, *slot);
                }
                again.for_each(|index| self.transmit(from.index(), index, &mut out));
            }
            Message::Control { psn, control } => {
                let message = (terminated::Message::Control(control), Content::NONE);
                self.receive(from, psn, true, message, &mut out)?;
            }
            Message::Data { psn, ask, content } => {
                let message = (terminated::Message::Data(BYTES.into()), content);
                self.receive(from, psn, ask, message, &mut out)?;
            }
        }
        self.work(&mut out)?;
        Some(out)
    }

    /// The retransmission timers of all connections expire.
    pub fn tick(&mut self) -> Vec<(usize, Message)> {
        let mut out = Vec::new();
        for endpoint in 0..self.ends.len() {
            let End { connection, sent, .. } = &mut self.ends[endpoint];
            let again = connection.go_back(sent.len() as u8);
            again.for_each(|index| self.transmit(endpoint, index, &mut out));
        }
        out
    }

    fn receive(
        &mut self,
        from: EndpointId,
        psn: Psn,
        ask: bool,
        message: (terminated::Message, Content),
        out: &mut Vec<(usize, Message)>,
    ) -> Option<()> {
        let End {
            connection,
            starts: (start, _),
            buffers,
            ..
        } = &mut self.ends[from.index()];
        let at = psn.diff(*start);
        let is_next = at == i32::from(connection.expected);
        if let Some((at, syndrome)) = connection.receive(at, ask) {
            let psn = start.add(at);
            out.push((from.index(), Message::Feedback { psn, syndrome }));
        }
        if is_next {
            let ring = buffers.len();
            let before = buffers[at as usize % ring].replace(message);
            self.machine.arrived(Nanos::ZERO, from);
            return before.is_none().then_some(());
        }
        Some(())
    }

    fn work(&mut self, out: &mut Vec<(usize, Message)>) -> Option<()> {
        while let Some(effect) = self.machine.poll(Nanos::ZERO, &Received(&self.ends)) {
            match effect {
                Effect::Take {
                    slot,
                    from,
                    buffer,
                    first,
                    ..
                } => {
                    let (_, content) = self.ends[from.index()].buffers[usize::from(buffer)]?;
                    let slot = &mut self.contents[usize::from(slot)];
                    *slot = if first { content } else { slot.plus(content) };
                }
                Effect::Send { slot, to, .. } => {
                    for endpoint in to {
                        self.send(endpoint.index(), (slot, None), out);
                    }
                }
                Effect::SendControl { slot, to, control } => {
                    for endpoint in to {
                        self.send(endpoint.index(), (slot, Some(control)), out);
                    }
                }
                Effect::Receive { from, buffer } => {
                    self.ends[from.index()].buffers[usize::from(buffer)] = None;
                }
                Effect::Conflict { .. } => {}
                Effect::Refused { .. } | Effect::Stalled { .. } => return None,
            }
        }
        Some(())
    }

    fn send(&mut self, endpoint: usize, what: (u16, Option<Control>), out: &mut Vec<(usize, Message)>) {
        let sent = &mut self.ends[endpoint].sent;
        sent.push(what);
        let index = sent.len() - 1;
        self.transmit(endpoint, index as u8, out);
    }

    fn transmit(&self, endpoint: usize, index: u8, out: &mut Vec<(usize, Message)>) {
        let end = &self.ends[endpoint];
        let psn = end.starts.1.add(index.into());
        let (slot, control) = end.sent[usize::from(index)];
        let message = match control {
            Some(control) => Message::Control { psn, control },
            None => Message::Data {
                psn,
                ask: true,
                content: self.contents[usize::from(slot)],
            },
        };
        out.push((endpoint, message));
    }
}
