//! Members before they join: their queue pairs and memory, and the ways into a group.

use castnet_proto::v1 as api;
use castnet_rnic::messages::{MessageReceiver, Messages};
use castnet_rnic::stream::{ReceiverConfig, StreamReceiver};
use castnet_rnic::{DeviceAttributes, MemoryRegion, QpOptions, Rnic};
use castnet_wire::{McstId, MrpMember, MrpMemory, Qpn};

use super::{Member, Source};
use crate::config::{Group, GroupAddress, MemberConfig};
use crate::controller::{Lease, has_any_source};
use crate::error::MemberError;
use crate::host::{Host, SLEEP_MAX};
use crate::registration::{Carrier, Registered, Registration};

/// Makes the side of a member for its QPs, and the memory of each lane that the source may write.
pub(super) type Make<T> =
    Box<dyn Fn(&mut dyn Rnic, &MemberConfig, &[Qpn]) -> Result<(T, Vec<MemoryRegion>), MemberError> + Send>;

/// A member that has its QPs and memory, and is not in its group yet.
pub struct Prepared<'r, T> {
    pub(super) host: Host<'r>,
    qpns: Vec<Qpn>,
    role: api::Role,
    make: Make<T>,
    side: T,
    rings: Vec<MemoryRegion>,
    /// Whether the memory is this member's, and not its caller's.
    pub(super) owns_rings: bool,
    connection: api::Connection,
}

/// Prepares the source of a group. Fails if the controller cannot be reached or does not know the group, this host is
/// not its source, or the RNIC cannot create the QPs.
pub fn source(config: MemberConfig, rnic: &mut dyn Rnic) -> Result<Prepared<'_, Source>, MemberError> {
    let make = |_: &mut dyn Rnic, _: &MemberConfig, _: &[Qpn]| Ok((Source, Vec::new()));
    Prepared::new(Host::new(rnic, config)?, api::Role::Source, Box::new(make))
}

/// Prepares a receiver of streams. Fails as [`source`], or if the RNIC has no capacity for the ring.
pub fn receiver(
    config: MemberConfig,
    rnic: &mut dyn Rnic,
) -> Result<Prepared<'_, StreamReceiver>, MemberError> {
    let make = |rnic: &mut dyn Rnic, config: &MemberConfig, qpns: &[Qpn]| {
        let config = ReceiverConfig {
            by_write: config.by_write,
            message_size: config.message_size,
            slots: config.slots,
        };
        let side = StreamReceiver::new(rnic, config, qpns)?;
        let rings = side.rings().collect();
        Ok((side, rings))
    };
    Prepared::new(Host::new(rnic, config)?, api::Role::Receiver, Box::new(make))
}

/// Prepares a receiver of [`Messages`], for checks. Fails as [`receiver`].
pub fn message_receiver(
    config: MemberConfig,
    rnic: &mut dyn Rnic,
    messages: Messages,
) -> Result<Prepared<'_, MessageReceiver>, MemberError> {
    let make = move |rnic: &mut dyn Rnic, config: &MemberConfig, qpns: &[Qpn]| {
        let mut side = MessageReceiver::new(rnic, qpns, config.by_write, messages, config.slots)?;
        if config.from_next_message {
            side = side.from_any();
        }
        let rings = side.rings().collect();
        Ok((side, rings))
    };
    Prepared::new(Host::new(rnic, config)?, api::Role::Receiver, Box::new(make))
}

/// Prepares a receiver whose memory the source writes at any offset, in all lanes. Nothing is received: the source uses WRITE without
/// immediate. The region is the caller's, and stays when the membership ends. Fails as [`receiver`].
pub fn region(
    config: MemberConfig,
    rnic: &mut dyn Rnic,
    region: MemoryRegion,
) -> Result<Prepared<'_, MemoryRegion>, MemberError> {
    let config = MemberConfig {
        by_write: true,
        ..config
    };
    let make = move |_: &mut dyn Rnic, _: &MemberConfig, qpns: &[Qpn]| {
        let rings = vec![region; qpns.len()];
        Ok((region, rings))
    };
    let prepared = Prepared::new(Host::new(rnic, config)?, api::Role::Receiver, Box::new(make))?;
    Ok(Prepared {
        owns_rings: false,
        ..prepared
    })
}

impl<'r, T> Prepared<'r, T> {
    /// Creates the QPs, as many as the group has lanes, and what is made for them.
    pub(super) fn new(mut host: Host<'r>, role: api::Role, make: Make<T>) -> Result<Self, MemberError> {
        let (mut lanes, mut qpn) = (1, None);
        match host.config.group {
            Group::Named { wait, .. } => {
                if let Some(call) = host.start(|controller| controller.lanes(role, wait)) {
                    lanes = host.await_call(call)??;
                }
            }
            Group::Fixed { qpn: fixed, .. } | Group::InBand { qpn: fixed, .. } => qpn = fixed,
        }
        let options = QpOptions {
            qpn,
            ..QpOptions::default()
        };
        let qpns = (0..lanes).map(|_| host.rnic.create_qp(&options));
        let qpns = qpns.collect::<Result<Vec<_>, _>>()?;
        let (side, rings) = make(host.rnic, &host.config, &qpns)?;
        let remote = if host.config.by_write { &rings[..] } else { &[] };
        let lanes = qpns.iter().enumerate().map(|(lane, qpn)| api::LaneConnection {
            qpn: qpn.value(),
            memory: remote.get(lane).map(|ring| api::RemoteMemory {
                va: ring.va,
                rkey: ring.rkey,
                length: ring.length as u64,
            }),
        });
        let device = host.rnic.attributes();
        let connection = api::Connection::new(device.ip, device.mac, lanes);
        Ok(Self {
            host,
            qpns,
            role,
            make,
            side,
            rings,
            owns_rings: true,
            connection,
        })
    }

    /// This member's end of the connection: what a rule file or the controller must know.
    pub fn connection(&self) -> &api::Connection {
        &self.connection
    }

    /// Properties of the RNIC.
    pub fn attributes(&self) -> &DeviceAttributes {
        self.host.rnic.attributes()
    }

    /// Joins the group, waits until it is active, and connects the QPs. If the group ends before that, waits again.
    ///
    /// # Errors
    /// The controller refuses, the switches cannot install the group, this host has another role in it, or no switch
    /// answers ARP for its McstID. If the group ends before this member is connected: [`MemberError::Diverted`] if it goes on from host to host,
    /// and [`MemberError::Ended`] where any member sends, as the others may not come back.
    pub fn join(mut self) -> Result<Member<'r, T>, MemberError> {
        loop {
            let mut member = self.wait_for_group()?;
            let Err(error) = member.connect() else {
                let (qpns, group) = (&member.qpns, &member.group);
                tracing::info!(host = member.host.config.host, ?qpns, mcst_ids = ?group.mcst_ids, start_psn = %group.start_psn, "connected");
                return Ok(member);
            };
            if let Some(lease) = member.lease.as_ref().filter(|lease| lease.has_ended()) {
                let all_send = has_any_source(&lease.state());
                let call = member.host.start(|controller| controller.missed(all_send));
                let missed = call.map(|call| member.host.await_call(call));
                if let Some(Ok(Some(missed))) = missed {
                    member.release()?;
                    return Err(missed);
                }
                tracing::warn!(%error, "the group has ended before this member was connected: joining again");
                self = member.again()?;
                continue;
            }
            // The group must not wait for this member.
            if let Err(error) = member.give_up(0, &error.to_string()) {
                tracing::warn!(%error, "not left");
            }
            return Err(error);
        }
    }

    /// Releases the QPs and memory if it fails.
    fn wait_for_group(mut self) -> Result<Member<'r, T>, MemberError> {
        let (group, lease) = self.group().inspect_err(|_| {
            let rings = self.rings.iter().filter(|_| self.owns_rings);
            self.host.release(&self.qpns, rings);
        })?;
        Ok(Member {
            host: self.host,
            qpns: self.qpns,
            role: self.role,
            make: self.make,
            side: self.side,
            rings: self.rings,
            owns_rings: self.owns_rings,
            group,
            has_all: false,
            lease,
            received: None,
            passing: None,
            whole: None,
            outside_stream: None,
            came_from: Vec::new(),
            psns: None,
            late: None,
            called: None,
        })
    }

    fn group(&mut self) -> Result<(GroupAddress, Option<Lease>), MemberError> {
        match &self.host.config.group {
            Group::Fixed { address, .. } => Ok((address.clone(), None)),
            Group::InBand {
                address,
                registration,
                ..
            } => {
                let (address, registration) = (address.clone(), registration.clone());
                self.register(&address, &registration)?;
                Ok((address, None))
            }
            Group::Named { wait, .. } => {
                let (wait, role, connection) = (*wait, self.role, self.connection.clone());
                let call = self
                    .host
                    .start(|controller| controller.join(role, connection, wait));
                let (state, lease) = match call {
                    Some(call) => self
                        .host
                        .await_call_within(self.host.config.join_within, call)??,
                    None => return Err(MemberError::Interrupted),
                };
                Ok((GroupAddress::try_from(&state)?, lease))
            }
        }
    }

    /// Registers the group in the band, or this receiver at its leader, and waits until the switches have the group.
    fn register(&mut self, address: &GroupAddress, how: &Registration) -> Result<(), MemberError> {
        let (ip, qpn) = (self.host.rnic.attributes().ip, self.qpns[0]);
        let member = MrpMember {
            ip,
            qpn,
            source: false,
        };
        let ring = self.rings.first().filter(|_| self.host.config.by_write);
        let memory = ring.map(|ring| MrpMemory {
            ip,
            rkey: ring.rkey,
            va: ring.va,
            length: ring.length as u64,
        });
        let group = (McstId(address.mcst_ids[0]), address.pmtu);
        let carrier = Carrier::open(self.host.rnic, how.udp_port)?;
        let name = self.host.config.host.clone();
        let registered = Registered::start(carrier, how, group, (&name, member, memory))?;
        let results = registered.results();
        self.host.registered = Some(registered);
        let mut result = None;
        self.host.poll_until(SLEEP_MAX, &mut |_| {
            result = results.try_recv().ok();
            result.is_some()
        })?;
        self.host.roll = result.ok_or(MemberError::Interrupted)??;
        Ok(())
    }
}
