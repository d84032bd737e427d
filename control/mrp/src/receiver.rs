//! The machine of a receiver.

use core::net::Ipv4Addr;

use castnet_wire::{McstId, MrpBody, MrpCall, MrpMember, MrpMemory, MrpPacket, Nanos};

/// How long a receiver whose group was withdrawn waits to be called by its leader.
const CALL_GRACE: Nanos = Nanos::from_secs(3);

/// Why a receiver is not in the group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum ReceiverError {
    /// The leader has not registered this receiver.
    #[error("the leader has not registered this host within {} ms", .after.0 / 1_000_000)]
    NotRegistered { after: Nanos },
    /// The leader has withdrawn the registration.
    #[error("the leader has withdrawn the group")]
    Withdrawn,
    /// The leader goes on from host to host, with this receiver.
    #[error("the leader goes on from host to host: {}", .0.reason)]
    Called(MrpCall),
}

/// The machine of a receiver: gives its connection to the leader until the switches send its record, and confirms each one.
#[derive(Debug)]
pub struct Receiver {
    mcst_id: McstId,
    leader: Ipv4Addr,
    member: MrpMember,
    memory: Option<MrpMemory>,
    repeat: Nanos,
    patience: Nanos,
    next: Nanos,
    deadline: Nanos,
    registered: Option<u32>,
    withdrawn: bool,
    withdrawn_at: Option<Nanos>,
    /// That of its JOINs; 0: it takes no call.
    key: u32,
    called: Option<MrpCall>,
}

impl Receiver {
    /// A receiver that sends its connection to its leader at once and every `repeat`, and gives up after `patience`.
    pub fn new(
        now: Nanos,
        (mcst_id, leader): (McstId, Ipv4Addr),
        (member, memory): (MrpMember, Option<MrpMemory>),
        (repeat, patience): (Nanos, Nanos),
    ) -> Self {
        Self {
            mcst_id,
            leader,
            member,
            memory,
            repeat,
            patience,
            next: now,
            deadline: now + patience,
            registered: None,
            withdrawn: false,
            withdrawn_at: None,
            key: 0,
            called: None,
        }
    }

    /// A receiver that its leader may call to go on from host to host. Only the leader gets the key, so nobody else can call it.
    pub fn with_key(self, key: u32) -> Self {
        Self { key, ..self }
    }

    /// Handles a packet to this host with its source address. Returns the answer to the leader. Switches, too, send to a receiver in the
    /// name of its leader: packets from others change nothing.
    pub fn handle(&mut self, from: Ipv4Addr, packet: &MrpPacket) -> Option<MrpPacket> {
        if from != self.leader {
            return None;
        }
        let number = packet.number;
        match &packet.body {
            // Only the switch next to this host sends its record alone; the queue pair tells the group.
            MrpBody::Members(_, members) if members.contains(&self.member) => {
                self.registered = self.registered.max(Some(number));
                let body = MrpBody::Confirm(self.mcst_id, self.member);
                Some(MrpPacket { number, body })
            }
            // The leader has taken a late packet of an earlier queue pair of this host for the newest.
            MrpBody::Members(_, members) if members.iter().any(|m| m.ip == self.member.ip) => {
                Some(self.join())
            }
            MrpBody::Withdraw if self.registered == Some(number) => {
                self.withdrawn = true;
                None
            }
            MrpBody::Call(mcst_id, call)
                if *mcst_id == self.mcst_id && self.key != 0 && number == self.key =>
            {
                self.called = Some(call.clone());
                None
            }
            _ => None,
        }
    }

    /// When [`Receiver::handle_timeout`] is due. `None` once this receiver is registered.
    pub fn poll_timeout(&self) -> Option<Nanos> {
        self.registered.is_none().then_some(self.next)
    }

    /// The packet to be sent to the leader now.
    ///
    /// # Errors
    /// The group does not have this receiver: not in time, or not any more; or its leader has called it. A call may follow the withdrawal
    /// by some seconds.
    pub fn handle_timeout(&mut self, now: Nanos) -> Result<Option<MrpPacket>, ReceiverError> {
        if let Some(call) = self.called.take() {
            return Err(ReceiverError::Called(call));
        }
        if self.withdrawn {
            let since = *self.withdrawn_at.get_or_insert(now);
            return match self.key == 0 || now >= since + CALL_GRACE {
                true => Err(ReceiverError::Withdrawn),
                false => Ok(None),
            };
        }
        if self.registered.is_some() || now < self.next {
            return Ok(None);
        }
        if now >= self.deadline {
            let after = self.patience;
            return Err(ReceiverError::NotRegistered { after });
        }
        self.next = now + self.repeat;
        Ok(Some(self.join()))
    }

    const fn join(&self) -> MrpPacket {
        MrpPacket {
            number: self.key,
            body: MrpBody::Join(self.mcst_id, self.member, self.memory),
        }
    }

    /// Whether all switches between the leader and this receiver have the group.
    pub const fn is_registered(&self) -> bool {
        self.registered.is_some()
    }
}
