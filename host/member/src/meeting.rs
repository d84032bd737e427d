//! How the members of a group that is registered in the band meet when its switches do not carry it: the machine of `castnet-mrp` over
//! datagrams of the RNIC, on a thread of its own, so that late hosts get their answers while this one goes on.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use castnet_mrp::{Meeting, Roll, TooMuch};
use castnet_rnic::Rnic;
use castnet_wire::datagram::PAYLOAD_MAX;
use castnet_wire::{McstId, MrpPacket};

use crate::config::{Group, MemberConfig};
use crate::error::MemberError;
use crate::registration::{Carrier, REPEAT, nanos};

/// Those that go on from host to host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts {
    /// Their names, the source first. In a group without a controller a receiver knows only its own name and that of the source.
    pub names: Vec<String>,
    /// How they meet. `None`: at the controller.
    pub roll: Option<Roll>,
}

impl Hosts {
    /// Those that meet at the controller.
    pub(crate) const fn named(names: Vec<String>) -> Self {
        Self { names, roll: None }
    }

    pub(crate) fn of_roll(roll: Roll, own: &str) -> Self {
        let names = match &roll {
            Roll::Leader(keys) => [own.to_owned()]
                .into_iter()
                .chain(keys.keys().map(Ipv4Addr::to_string))
                .collect(),
            Roll::Receiver { leader, .. } => (0..roll.size())
                .map(|rank| match rank {
                    0 => leader.to_string(),
                    rank if rank == usize::from(roll.rank()) => own.to_owned(),
                    rank => format!("receiver {rank}"),
                })
                .collect(),
        };
        let roll = Some(roll);
        Self { names, roll }
    }

    /// The rank of the host with this name. `None`: it is not one of them.
    pub fn rank(&self, own: &str) -> Option<u16> {
        match &self.roll {
            Some(roll) => Some(roll.rank()),
            None => self
                .names
                .iter()
                .position(|name| name == own)
                .map(|rank| rank as u16),
        }
    }
}

/// A host in the meeting of its group, until it is dropped. The RNIC must be polled.
#[derive(Debug)]
pub struct MeetingPoint {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    meeting: Mutex<Meeting>,
    rank: u16,
    started: Instant,
    stop: AtomicBool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Meeting> {
        self.meeting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, carrier: &Carrier, udp_port: u16) {
        let mut buffer = [0; PAYLOAD_MAX];
        let send = |packets: Vec<(Ipv4Addr, MrpPacket)>| {
            for (ip, packet) in packets {
                carrier.send(SocketAddrV4::new(ip, udp_port), &packet);
            }
        };
        while !self.stop.load(Ordering::Relaxed) {
            let due = self.lock().handle_timeout(nanos(self.started.elapsed()));
            send(due);
            if let Some((from, packet)) = carrier.receive(&mut buffer) {
                let answers = self.lock().handle(from, &packet);
                send(answers);
            }
        }
    }
}

impl MeetingPoint {
    /// Opens the UDP port of the registration again, and calls the others if this is the leader.
    ///
    /// # Errors
    /// The group is not registered in the band, or the port is in use.
    pub fn open(
        rnic: &mut dyn Rnic,
        config: &MemberConfig,
        roll: &Roll,
        reason: &str,
    ) -> Result<Self, MemberError> {
        let Group::InBand {
            address,
            registration,
            ..
        } = &config.group
        else {
            let what = "a meeting without registration".to_owned();
            return Err(MemberError::Invalid { what });
        };
        let udp_port = registration.udp_port;
        let carrier = Carrier::open(rnic, udp_port)?;
        let started = Instant::now();
        let mcst_id = McstId(address.mcst_ids[0]);
        let shared = Arc::new(Shared {
            meeting: Mutex::new(Meeting::new(
                nanos(started.elapsed()),
                mcst_id,
                roll,
                reason,
                REPEAT,
            )),
            rank: roll.rank(),
            started,
            stop: AtomicBool::new(false),
        });
        let thread = std::thread::Builder::new().name("castnet-meeting".into());
        let thread = thread.spawn({
            let shared = shared.clone();
            move || shared.run(&carrier, udp_port)
        });
        let thread = Some(thread.map_err(MemberError::Thread)?);
        Ok(Self { shared, thread })
    }

    /// Begins a round, as [`Meeting::begin`].
    ///
    /// # Errors
    /// The gift or the wanted ranks are too many.
    pub fn begin(&self, round: u8, gift: Vec<u8>, wanted: &[u16]) -> Result<(), TooMuch> {
        let now = nanos(self.shared.started.elapsed());
        self.shared
            .lock()
            .begin(now, (round, self.shared.rank), gift, wanted)
    }

    /// What was asked for, once all is there, as [`Meeting::take`].
    pub fn take(&self) -> Option<Vec<Vec<u8>>> {
        self.shared.lock().take()
    }

    /// The ranks that have not given anything, as [`Meeting::missing`].
    pub fn missing(&self) -> Vec<u16> {
        self.shared.lock().missing()
    }
}

impl Drop for MeetingPoint {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
