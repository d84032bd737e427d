//! What a program sees: one rank among the others, its collectives, and the communicators that it is split into.

use std::marker::PhantomData;
use std::rc::Rc;
use std::time::Instant;

use castnet_rnic::Rnic;
use castnet_wire::control::{DataType, Operation};

use crate::buffers::{Buffers, LentBytes, OwnedBuffers};
use crate::collectives::Collectives;
use crate::config::{CommConfig, CommPath};
use crate::element::Element;
use crate::error::{CommError, ControllerError, RankName};
use crate::group::{Group, GroupRef};
use crate::job::{Job, OWN_GROUP};
use crate::machine::{Collective, TaskId};
use crate::shared::SharedRnic;
use crate::split::{self, Offer};

/// A running non-blocking collective. The communicator keeps its memory until [`Collectives::wait`].
#[must_use = "a running collective must be waited for"]
#[derive(Debug)]
pub struct Request<T> {
    pub(crate) running: Running,
    pub(crate) _type: PhantomData<T>,
}

/// A running collective over lent memory, see [`Communicator::begin`].
#[must_use = "the memory is lent until the collective has ended"]
#[derive(Debug)]
pub struct Running {
    pub(crate) task: TaskId,
    pub(crate) collective: Collective,
    /// The value of `Group::attempt` when it was started.
    pub(crate) attempt: u64,
    pub(crate) start: Instant,
    /// When the group was found lost, and why.
    pub(crate) lost: Option<(Instant, CommError)>,
}

/// One rank of a job, connected with all others, or with those of a sub-communicator. All ranks call the same collectives
/// in the same order, each from one thread, over all communicators of the job. Collectives progress only during a call at
/// any communicator of the job: a blocking collective, [`Collectives::wait`], [`Collectives::test`] or
/// [`Communicator::progress`]. A hardware RNIC also moves posted work between calls.
pub struct Communicator {
    job: Rc<Job>,
    group: GroupRef,
    /// With the rank and size of this communicator.
    config: CommConfig,
    /// The ranks of the job that are in it, in the order of its own ranks.
    members: Rc<[u16]>,
    rnic: SharedRnic,
}

impl Communicator {
    /// Connects this rank with all others of its job over `rnic`. Waits until all have joined.
    ///
    /// # Errors
    /// A value is out of bounds; the controller cannot be reached or refuses; not all ranks join in time; with
    /// [`crate::Fallback::Forbidden`] the network cannot provide the group.
    pub fn connect(config: CommConfig, rnic: Box<dyn Rnic>) -> Result<Self, CommError> {
        config.check()?;
        let rnic = SharedRnic::new(rnic);
        let members: Rc<[u16]> = (0..config.size).collect();
        let job = Rc::new(Job::default());
        let group = job.add(Group::own(
            Rc::downgrade(&job),
            config.clone(),
            members.clone(),
            rnic.clone(),
        ));
        group.borrow_mut().establish()?;
        Ok(Self {
            job,
            group,
            config,
            members,
            rnic,
        })
    }

    /// The ranks of the job that are in this communicator, in the order of its own ranks.
    pub fn members(&self) -> &[u16] {
        &self.members
    }

    /// The path that its collectives take, and the reason. A sub-communicator has none before its first collective.
    pub fn path(&self) -> CommPath {
        self.group.borrow().path.clone()
    }

    /// The configuration that it was created with. A sub-communicator has the rank and size of its own.
    pub fn config(&self) -> &CommConfig {
        &self.config
    }

    /// The RNIC, for its attributes.
    pub fn rnic(&self) -> &dyn Rnic {
        &self.rnic
    }

    /// The RNIC, for other queue pairs on it. Collectives do not progress meanwhile.
    pub fn rnic_mut(&mut self) -> &mut dyn Rnic {
        &mut self.rnic
    }

    /// Makes sub-communicators of the ranks that give the same colour, as MPI_Comm_split. Their order is that of their
    /// keys, and for equal keys that of their ranks here. A rank without colour gets `None`. A collective of this
    /// communicator: all its ranks call it. The group of a sub-communicator is made by its first collective, if none has
    /// the same members in the same order.
    ///
    /// # Errors
    /// At all ranks: [`CommError::TooManyGroups`] if a rank would have more groups than [`CommConfig::groups_max`].
    /// [`CommError::NotASplit`] if a rank calls AllGather with as many bytes. Any error of a collective.
    pub fn split(&mut self, colour: Option<u32>, key: i32) -> Result<Option<Self>, CommError> {
        if self.config.rendezvous.is_some() {
            let what = "a job without a controller has no sub-communicators".into();
            return Err(ControllerError::Invalid { what }.into());
        }
        self.job.tidy();
        let (rank, size) = (usize::from(self.rank()), usize::from(self.size()));
        let own = Offer {
            colour,
            key,
            next: self.job.next(),
            in_use: self.job.in_use(),
            max: self.config.groups_max.into(),
        };
        let mut words = vec![0; size * Offer::WORDS];
        self.allgather((&own.to_words()[..], &mut words[..]))?;
        let offer = |(of, words)| {
            let rank = self.name(of as u16);
            Offer::from_words(words).ok_or(CommError::NotASplit { rank })
        };
        let offers = words.chunks_exact(Offer::WORDS).enumerate().map(offer);
        let offers = offers.collect::<Result<Vec<_>, _>>()?;
        let parts = split::parts(&offers);
        let part = colour.and_then(|colour| parts.get(&colour));
        let members: Option<Rc<[u16]>> =
            part.map(|part| part.iter().map(|&rank| self.members[usize::from(rank)]).collect());
        let held = members.as_ref().map_or(0, |members| self.job.number_of(members));
        let mut all_held = vec![0; size];
        self.allgather((&[held][..], &mut all_held[..]))?;
        let number = split::next(&offers);
        self.job.advance(number);
        if let Some(full) = split::without_room(&offers, &parts, &all_held) {
            return Err(CommError::TooManyGroups {
                rank: self.name(full),
                job: self.config.job.clone(),
                max: offers[usize::from(full)].max as u16,
            });
        }
        let (Some(part), Some(members)) = (part, members) else {
            return Ok(None);
        };
        let own = part
            .iter()
            .position(|of| usize::from(*of) == rank)
            .unwrap_or_default() as u16;
        let mut config = CommConfig {
            rank: own,
            size: members.len() as u16,
            ..self.config.clone()
        };
        let group = match split::shared(part, &all_held).and_then(|held| self.job.find(held)) {
            Some(group) => group,
            None => {
                if config.lanes == 0
                    && let CommPath::InNetwork { lanes, .. } = self.path()
                {
                    config.lanes = lanes;
                }
                self.job.make_room(&members, self.config.groups_max);
                let group = self.group.borrow().sub(config.clone(), members.clone(), number);
                self.job.add(group)
            }
        };
        Ok(Some(Self {
            job: self.job.clone(),
            group,
            config,
            members,
            rnic: self.rnic.clone(),
        }))
    }

    /// Another communicator of the same ranks, as MPI_Comm_dup. It shares the group, and needs no communication.
    pub fn dup(&self) -> Self {
        Self {
            job: self.job.clone(),
            group: self.group.clone(),
            config: self.config.clone(),
            members: self.members.clone(),
            rnic: self.rnic.clone(),
        }
    }

    fn name(&self, rank: u16) -> RankName {
        self.group.borrow().name(rank)
    }

    /// Progresses all collectives without waiting. Returns true if there was work. Fails if the RNIC or group failed.
    pub fn progress(&mut self) -> Result<bool, CommError> {
        self.group.borrow_mut().progress()
    }

    /// Starts a collective over memory that is lent until [`Communicator::try_end`] has returned its result, or this
    /// communicator and all others of its job are dropped: for runners, and for programs in other languages.
    ///
    /// # Errors
    /// As for the blocking calls. Then nothing accesses the memory any more.
    pub fn begin(
        &mut self,
        collective: Collective,
        operation: Operation,
        data_type: DataType,
        memory: LentBytes,
    ) -> Result<Running, CommError> {
        self.group
            .borrow_mut()
            .begin_lent(collective, operation, data_type, memory)
    }

    /// Progresses all collectives of the job without waiting, and does not look whether their groups are lost: see
    /// [`Communicator::check`]. Returns true if there was work. Fails if the RNIC failed.
    pub fn poll(&mut self) -> Result<bool, CommError> {
        self.group.borrow_mut().poll_driver()
    }

    /// The result of a collective of this communicator, once it has ended. Progresses nothing: call
    /// [`Communicator::poll`] too.
    pub fn try_end(&mut self, running: &Running) -> Option<Result<(), CommError>> {
        let end = self.group.borrow_mut().take_end(running);
        end.map(|end| end.map(drop))
    }

    /// Ends a collective whose group is lost, which is interrupted, or which has lasted too long. To be called every few
    /// milliseconds while a collective runs.
    ///
    /// # Errors
    /// The collective has ended with this error. Then nothing accesses its memory any more.
    pub fn check(&mut self, running: &mut Running) -> Result<(), CommError> {
        self.group.borrow_mut().check_task(running)
    }

    /// Waits until all ranks close, so that each receives its last messages, then leaves. If not all close in time or the
    /// RNIC fails, it leaves too, and returns the error. While other communicators share the group, it does nothing. The
    /// communicator of the whole job also leaves the groups that no communicator uses any more.
    pub fn close(self) -> Result<(), CommError> {
        if self.is_shared() {
            return Ok(());
        }
        let result = self.group.borrow_mut().close();
        self.job.remove(&self.group);
        if self.group.borrow().number == OWN_GROUP {
            self.job.close();
        }
        result
    }

    /// Whether another communicator uses its group.
    fn is_shared(&self) -> bool {
        Rc::strong_count(&self.group) > 2
    }
}

impl Collectives for Communicator {
    type Request<T: Element> = Request<T>;

    fn rank(&self) -> u16 {
        self.config.rank
    }

    fn size(&self) -> u16 {
        self.config.size
    }

    fn call<T: Element>(
        &mut self,
        collective: Collective,
        operation: Operation,
        buffers: Buffers<'_, T>,
    ) -> Result<(), CommError> {
        self.group.borrow_mut().blocking(collective, operation, buffers)
    }

    fn icall<T: Element>(
        &mut self,
        collective: Collective,
        operation: Operation,
        buffers: OwnedBuffers<T>,
    ) -> Result<Request<T>, CommError> {
        self.group.borrow_mut().begin(collective, operation, buffers)
    }

    fn wait<T: Element>(&mut self, request: Request<T>) -> Result<Vec<T>, CommError> {
        self.group.borrow_mut().wait(request)
    }

    fn test<T: Element>(&mut self, request: &Request<T>) -> Result<bool, CommError> {
        self.group.borrow_mut().test(request)
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        // Until the job is closed, the group is kept for the next communicator of the same members.
        if self.job.is_closed() && !self.is_shared() {
            self.job.remove(&self.group);
            self.group.borrow_mut().leave();
        }
    }
}
