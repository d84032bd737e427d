//! What happens in a run: groups come and go, while controllers, etcd, agents, switches, links, hosts and the network fail.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use castnet_controller::store::Table;
use castnet_controller::store::memory::MemoryStore;
use castnet_controller::{Config, SwitchConfig};
use castnet_proto::transport::{Address, memory};
use castnet_proto::v1;
use castnet_proto::v1::GroupPhase;
use castnet_proto::v1::controller_event::Event;
use castnet_topology::{LinkId, Topology};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout};
use tonic::{Code, Status};

use crate::controllers::{Candidates, Client, client};
use crate::etcd::EtcdModel;
use crate::frames::{Frames, Stream};
use crate::jobs::{Job, connection};
use crate::log::Log;
use crate::panics;
use crate::random::Random;
use crate::store::FaultyStore;
use crate::switch::{Service, Switch};

mod faults;
mod links;
mod members;
mod quotas;
mod registrations;

/// Longest duration of a fault, in milliseconds: another controller leads before it ends.
const FAULT_MS_MAX: u64 = 4000;
/// After the last fault all is as it should be within this time.
const PATIENCE: Duration = Duration::from_secs(120);
/// Pause between looks.
const LOOK: Duration = Duration::from_millis(50);
/// By then controllers have looked at all switches, and removed what they can explain.
const LOOKED: Duration = Duration::from_secs(5);
/// Pause between two messages of the group that always runs.
const PAUSE: Duration = Duration::from_millis(20);
/// While no switch stops and no link of it is down, the group that always runs makes progress within this time.
const FLOWS_WITHIN: Duration = Duration::from_millis(500);
/// Jobs at a time.
const JOBS_MAX: usize = 2;
/// The name of that group, and its members, the first of which sends.
const ALWAYS: &str = "always";
const MEMBERS: [&str; 3] = ["h0", "h1", "h2"];
/// A job fails with a link that is down for so long. Another path is looked for again after this time.
const LINK_PATIENCE: Duration = Duration::from_secs(30);

/// A run.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// It decides what happens and when.
    pub seed: u64,
    /// Each has some calls and a fault, a host that dies, a tenant that takes all that it may have, or a group that a host registers.
    pub steps: u64,
}

/// What came of a run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// What happened, with times.
    pub log: Vec<String>,
    /// What must not happen, and did.
    pub violation: Option<String>,
}

impl Scenario {
    /// Runs it in this thread.
    pub fn run(self) -> Outcome {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        // What tokio draws, such as whom of several a `watch` channel wakes first, has a seed with this flag only.
        #[cfg(tokio_unstable)]
        builder.rng_seed(tokio::runtime::RngSeed::from_bytes(&self.seed.to_be_bytes()));
        let Ok(runtime) = builder.enable_all().start_paused(true).build() else {
            let violation = Some("no runtime".into());
            return Outcome {
                violation,
                ..Outcome::default()
            };
        };
        let run = async {
            let network = memory::Network::join();
            network.draw_from(self.seed);
            let log = Log::new();
            let end = match World::start(self.seed, &log).await {
                Ok(mut world) => world.go(self.steps).await,
                Err(error) => Err(error),
            };
            Outcome {
                violation: log.check().and(end).err(),
                log: log.lines(),
            }
        };
        let (outcome, panics) = panics::caught(|| runtime.block_on(run));
        let mut outcome = outcome.unwrap_or_default();
        outcome.violation = outcome.violation.or(panics);
        outcome
    }
}

/// What a fault takes from the data plane.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Loss {
    Nothing,
    /// The group that always runs may stand still until the fault ends.
    Frames,
    /// The same, and what a switch has added up is lost for good.
    State,
}

/// A call of a client, and whether it was done as it asked.
struct Call {
    name: String,
    /// The queue pairs of the group that it creates; `None`: it destroys one.
    creates: Option<u32>,
    end: tokio::task::JoinHandle<Result<(), Status>>,
}

struct World {
    random: Random,
    log: Log,
    topology: Topology,
    frames: Arc<Frames>,
    switches: BTreeMap<String, Switch>,
    backing: Backing,
    candidates: Candidates,
    always: Arc<Mutex<Stream>>,
    /// Members of etcd that were killed.
    killed: Vec<usize>,
    /// A switch has stopped, or a link was down. The group that always runs has not gone on since, after so many messages.
    stands_at: Option<u64>,
    /// Switches that stand still, and those whose agents cannot be reached.
    stopped: Vec<String>,
    silent: Vec<String>,
    /// Links that are down until the fault ends.
    cut: Vec<LinkId>,
    /// Groups that were confirmed, and not asked to end, with the number of their queue pairs.
    there: BTreeMap<String, u32>,
    /// Groups that are there or not.
    unknown: BTreeSet<String>,
    /// Groups whose end was confirmed.
    gone: BTreeSet<String>,
    jobs: Vec<Job>,
    /// The number of the next queue pair.
    qpn: u32,
}

fn socket(name: &str) -> Address {
    Address::Unix(format!("agents/{name}").into())
}

/// The calls of a switch end soon, so that runs are short.
fn config(topology: &Topology) -> Config {
    let switch = |switch: &castnet_topology::Switch| SwitchConfig {
        name: switch.name.clone(),
        agent: socket(&switch.name),
    };
    let mut config = Config::new(topology.switches().map(switch).collect());
    config.topology = Some(topology.clone());
    config.tenants = quotas::tenants();
    config.timeouts.switch = Duration::from_secs(1);
    config.timeouts.reconcile = Duration::from_secs(1);
    config.timeouts.link = LINK_PATIENCE;
    config.timeouts.backoff = (Duration::from_millis(5), Duration::from_millis(20));
    config
}

/// Where the controllers have their groups.
enum Backing {
    /// etcd, and the number of its members.
    Etcd(EtcdModel, usize),
    Store(FaultyStore),
}

/// Whether a group has ever been stored.
type Stored = Arc<dyn Fn(&str) -> bool + Send + Sync>;

impl Backing {
    fn stored(&self) -> Stored {
        match self {
            Self::Etcd(etcd, _) => {
                let history = etcd.history();
                Arc::new(move |name| history.has_had(Table::Groups, name))
            }
            Self::Store(store) => {
                let store = store.clone();
                Arc::new(move |name| store.has_had(Table::Groups, name))
            }
        }
    }

    fn slow(&self, delay: Duration) {
        match self {
            Self::Etcd(etcd, _) => etcd.slow(delay),
            Self::Store(store) => store.slow(delay),
        }
    }
}

/// S5: what a controller tells of is stored. A member is put out only if the policy of its group says so.
async fn watch(address: Address, stored: Stored, log: Log) {
    let mut known: Option<Client> = None;
    loop {
        if known.is_none() {
            known = client(&address).await;
        }
        let request = v1::WatchControllerEventsRequest { differences: false };
        let events = match &mut known {
            Some(client) => client.watch_events(request).await.ok(),
            None => None,
        };
        if let Some(events) = events {
            let mut events = events.into_inner();
            while let Ok(Some(event)) = events.message().await {
                let Some(Event::Group(group)) = event.event else {
                    continue;
                };
                let name = &group.name;
                if !stored(name) {
                    log.violation(format_args!("S5: {address} tells of {name}, which is not stored"));
                }
                if let Some(host) = members::wrongly_put_out(&group) {
                    log.violation(format_args!(
                        "{host} is put out of {name}, which waits or fails by its policy"
                    ));
                }
            }
        }
        sleep(LOOK).await;
    }
}

impl World {
    async fn start(seed: u64, log: &Log) -> Result<Self, String> {
        let mut random = Random(seed);
        let spines = 1 + random.below(2) as usize;
        let topology = Topology::leaf_spine(2, spines, 2).map_err(|e| e.to_string())?;
        let frames = Arc::new(Frames::new(&topology, seed).map_err(|e| e.to_string())?);
        let mut switches = BTreeMap::new();
        for switch in topology.switches() {
            let started = Switch::start(&switch.name, socket(&switch.name), &frames, log).await;
            switches.insert(switch.name.clone(), started);
        }
        let (config, folder) = (config(&topology), PathBuf::from("controllers"));
        let (backing, candidates) = if random.below(3) == 0 {
            log.line(format_args!("{spines} spines, one controller"));
            let store = FaultyStore::new(Arc::new(MemoryStore::default()));
            let alone = Candidates::alone(&config, &folder, Arc::new(store.clone())).await;
            (Backing::Store(store), alone)
        } else {
            let (members, count) = (*random.one(&[1, 3]), 1 + random.below(3) as usize);
            log.line(format_args!(
                "{spines} spines, {count} controllers on {members} members of etcd"
            ));
            let etcd = EtcdModel::start(members).await;
            let candidates = Candidates::start(&config, &folder, &etcd, count).await;
            (Backing::Etcd(etcd, members), candidates)
        };
        for address in &candidates.addresses {
            tokio::spawn(watch(address.clone(), backing.stored(), log.clone()));
        }
        let first = Self::request(&topology, ALWAYS, &MEMBERS, 17);
        let state = create(&candidates, &first).await?;
        let always = Stream::open(&mut frames.lock(), &state, 17)?;
        let always = Arc::new(Mutex::new(always));
        let services: Vec<Service> = switches.values().map(|switch| switch.service.clone()).collect();
        tokio::spawn(go_on(frames.clone(), always.clone(), services, log.clone()));
        Ok(Self {
            random,
            log: log.clone(),
            topology,
            frames,
            switches,
            backing,
            candidates,
            always,
            killed: Vec::new(),
            stands_at: None,
            stopped: Vec::new(),
            silent: Vec::new(),
            cut: Vec::new(),
            there: BTreeMap::new(),
            unknown: BTreeSet::new(),
            gone: BTreeSet::new(),
            jobs: Vec::new(),
            qpn: 100,
        })
    }

    /// A group of these hosts, the first of which sends.
    fn request(topology: &Topology, name: &str, hosts: &[&str], qpn: u32) -> v1::CreateGroupRequest {
        let member = |host: &&str| v1::NewMember {
            host: (*host).into(),
            connection: connection(topology, host, qpn),
        };
        v1::CreateGroupRequest {
            name: name.into(),
            source: hosts[0].into(),
            members: hosts.iter().map(member).collect(),
            ..Default::default()
        }
    }

    async fn go(&mut self, steps: u64) -> Result<(), String> {
        for step in 0..steps {
            self.step(step).await?;
            self.log.check()?;
        }
        self.log.line(format_args!("no more faults"));
        self.all_is_as_it_should_be().await
    }

    /// A client begins to create a group, or to destroy one.
    fn call(&mut self, mut leader: Client, name: String) -> Call {
        let (mut creates, mut random) = (None, self.random.clone());
        let end = if !self.there.contains_key(&name) {
            let mut hosts = ["h0", "h1", "h2", "h3"];
            hosts.rotate_left(random.below(4) as usize);
            let count = 2 + random.below(3) as usize;
            self.qpn += 1;
            creates = Some(self.qpn);
            let request = Self::request(&self.topology, &name, &hosts[..count], self.qpn);
            tokio::spawn(async move { leader.create_group(request).await.map(drop) })
        } else {
            let request = v1::DestroyGroupRequest {
                group: name.clone(),
                ..Default::default()
            };
            tokio::spawn(async move {
                match leader.destroy_group(request).await?.into_inner().complete {
                    true => Ok(()),
                    false => Err(Status::unavailable("some switches still have it")),
                }
            })
        };
        self.random = random;
        Call { name, creates, end }
    }

    async fn step(&mut self, step: u64) -> Result<(), String> {
        match self.random.below(16) {
            0 => self.lose_host(step).await?,
            1 => self.fill_quota(step).await?,
            2 => self.register(step).await?,
            _ => self.call_and_fail(step).await?,
        }
        self.check_quotas().await
    }

    /// Clients call, and something fails meanwhile.
    async fn call_and_fail(&mut self, step: u64) -> Result<(), String> {
        let (leads, leader) = self.candidates.leader(None).await;
        let mut calls: Vec<Call> = Vec::new();
        for n in 0..1 + self.random.below(3) {
            let victim = self.random.below(4) as usize;
            let busy = |name: &&String| calls.iter().all(|call| call.name != **name);
            let victim = self.there.keys().filter(busy).nth(victim).cloned();
            let name = victim.unwrap_or_else(|| format!("g{step}.{n}"));
            let call = self.call(leader.clone(), name);
            let what = call.creates.map_or("destroy", |_| "create");
            self.log.line(format_args!("c{leads}: {what} {}", call.name));
            calls.push(call);
        }
        self.begin_job(step);
        self.pass(30).await;
        let mark = self.mark()?;
        let loss = self.fail(leads).await?;
        self.pass(30).await;
        if self.random.below(2) == 0 {
            self.pass(FAULT_MS_MAX).await;
        }
        self.heal().await?;
        for Call { name, creates, end } in calls {
            let ended = timeout(PATIENCE, end).await;
            let ended = ended.map_err(|_| format!("the call of {name} does not end"))?;
            let done = ended.map_err(|e| e.to_string())?;
            let said = done.as_ref().map_or_else(ToString::to_string, |()| "done".into());
            self.log.line(format_args!("{name}: {said}"));
            self.there.remove(&name);
            match (done, creates) {
                (Ok(()), Some(qpn)) => drop(self.there.insert(name, qpn)),
                (Ok(()), None) => drop(self.gone.insert(name)),
                (Err(_), _) => drop(self.unknown.insert(name)),
            }
        }
        self.check_since(mark, loss)?;
        if self.random.below(4) == 0 && !self.jobs.is_empty() {
            let job = self.jobs.remove(0);
            self.log.line(format_args!("{}: all ranks leave", job.name));
            job.end(&self.candidates.addresses).await;
        }
        Ok(())
    }

    /// Ranks join a new job, now and then.
    fn begin_job(&mut self, step: u64) {
        if self.jobs.len() < JOBS_MAX && self.random.below(3) == 0 {
            let size = 2 + self.random.below(3) as u32;
            self.qpn += 1;
            let name = format!("job{step}");
            self.log.line(format_args!("{name}: {size} ranks join"));
            let around = (&self.topology, &*self.candidates.addresses, &self.log);
            self.jobs.push(Job::start(name, size, self.qpn, around));
        }
    }

    /// The time, and the messages of the group that always runs.
    fn mark(&self) -> Result<(Instant, u64), String> {
        Ok((Instant::now(), self.messages()?))
    }

    /// S10: running traffic and jobs outlive faults of control.
    fn check_since(&mut self, (began, before): (Instant, u64), loss: Loss) -> Result<(), String> {
        let after = self.messages()?;
        if loss != Loss::Nothing {
            self.stands_at = Some(after);
        }
        self.stands_at = self.stands_at.filter(|stands| after <= *stands);
        if self.stands_at.is_none() && after == before && began.elapsed() > FLOWS_WITHIN {
            return Err(format!("S10: {ALWAYS} has stood still for {:?}", began.elapsed()));
        }
        let mut goes_on = Vec::new();
        for job in &mut self.jobs {
            job.may_fail |= loss == Loss::State;
            goes_on.push(job.check()?);
        }
        let mut goes_on = goes_on.into_iter();
        self.jobs.retain(|_| goes_on.next() == Some(true));
        Ok(())
    }

    /// Messages of the group that always runs.
    fn messages(&self) -> Result<u64, String> {
        let frames = self.frames.lock();
        self.always.lock().done(&frames)
    }

    /// Some time passes, less than so many milliseconds.
    async fn pass(&mut self, milliseconds: u64) {
        let passes = self.random.below(milliseconds);
        sleep(Duration::from_millis(passes)).await;
    }

    /// After the last fault: what was confirmed runs, and carries messages; what ends leaves nothing.
    async fn all_is_as_it_should_be(&mut self) -> Result<(), String> {
        self.a_leader_writes().await?;
        let (_, mut leader) = self.candidates.leader(None).await;
        for name in &self.gone {
            if found(&mut leader, name).await.is_ok() {
                return Err(format!("S5: {name} was destroyed, and is there"));
            }
        }
        let confirmed: Vec<(String, u32)> = std::mem::take(&mut self.there).into_iter().collect();
        let mut addresses = BTreeSet::new();
        for (name, qpn) in &confirmed {
            let state = self.runs_well(name).await?;
            if !addresses.insert(state.mcst_id.clone()) {
                return Err(format!("{name}: another group has {} too", state.mcst_id));
            }
            self.carries(&state, *qpn).await?;
        }
        for job in std::mem::take(&mut self.jobs) {
            let began = Instant::now();
            while !job.runs() && job.check()? {
                if began.elapsed() > PATIENCE {
                    return Err(format!("{} has all its ranks, and does not run", job.name));
                }
                sleep(LOOK).await;
            }
            job.end(&self.candidates.addresses).await;
        }
        let before = self.messages()?;
        sleep(FLOWS_WITHIN).await;
        if self.messages()? == before {
            return Err(format!("{ALWAYS} does not carry messages any more"));
        }
        self.runs_well(ALWAYS).await?;
        let unknown = std::mem::take(&mut self.unknown);
        let confirmed = confirmed.into_iter().map(|(name, _)| name);
        for name in unknown.into_iter().chain(confirmed) {
            self.ends(&name).await?;
        }
        // Of all groups one is left.
        self.switches_have(|groups| groups.iter().all(|group| group.ends_with(ALWAYS)))
            .await?;
        self.log.check()?;
        let messages = self.messages()?;
        self.log
            .line(format_args!("{ALWAYS} has carried {messages} messages"));
        self.ends(ALWAYS).await?;
        self.switches_have(<[String]>::is_empty).await
    }

    /// A group that was confirmed runs, and its state says nothing of what it lacks.
    async fn runs_well(&self, name: &str) -> Result<v1::GroupState, String> {
        let (began, mut last) = (Instant::now(), None);
        while began.elapsed() < PATIENCE {
            let (_, mut leader) = self.candidates.leader(None).await;
            last = found(&mut leader, name).await.ok();
            if let Some(state) = last.take_if(|state| is_running(state) && state.reason.is_empty()) {
                return Ok(state);
            }
            sleep(LOOK).await;
        }
        let said = last.map(|state| format!("{:?}, {:?}", state.phase(), state.reason));
        Err(format!("{name} was confirmed, and does not run well: {said:?}"))
    }

    /// Controllers that believe that they lead have lost the lead.
    async fn a_leader_writes(&mut self) -> Result<(), String> {
        let written = timeout(PATIENCE, async {
            loop {
                let (_, mut leader) = self.candidates.leader(None).await;
                self.qpn += 1;
                let name = format!("last{}", self.qpn);
                let request = Self::request(&self.topology, &name, &["h1", "h3"], self.qpn);
                let created = leader.create_group(request).await;
                self.unknown.insert(name);
                if created.is_ok() {
                    return;
                }
                sleep(LOOK).await;
            }
        });
        written.await.map_err(|_| "no controller writes".into())
    }

    /// Messages of the source reach all receivers.
    async fn carries(&self, group: &v1::GroupState, qpn: u32) -> Result<(), String> {
        let mut stream = Stream::open(&mut self.frames.lock(), group, qpn)?;
        self.goes_on(&mut stream, &group.name).await?;
        stream.close(&mut self.frames.lock());
        Ok(())
    }

    /// A stream carries messages: more than the one that may have been on its way.
    async fn goes_on(&self, stream: &mut Stream, name: &str) -> Result<(), String> {
        let (began, before) = (Instant::now(), stream.done(&self.frames.lock())?);
        while stream.done(&self.frames.lock())? < before + 2 {
            stream.go_on(&mut self.frames.lock())?;
            if began.elapsed() > PATIENCE {
                return Err(format!("{name} runs, and does not carry messages"));
            }
            sleep(LOOK).await;
        }
        Ok(())
    }

    async fn ends(&self, name: &str) -> Result<(), String> {
        let began = Instant::now();
        let ends = timeout(PATIENCE, async {
            loop {
                if began.elapsed() > LOOKED {
                    self.purge().await;
                }
                let (_, mut leader) = self.candidates.leader(None).await;
                let found = found(&mut leader, name).await;
                if found.is_err_and(|status| status.code() == Code::NotFound) {
                    return;
                }
                let request = v1::DestroyGroupRequest {
                    group: name.into(),
                    ..Default::default()
                };
                let _ = leader.destroy_group(request).await;
                sleep(LOOK).await;
            }
        });
        ends.await.map_err(|_| format!("{name} does not end"))
    }

    /// A call that was held may have installed a group after it was removed, and the controller that knew it may be gone. What the next one
    /// cannot explain stays until an operator purges it.
    async fn purge(&self) {
        let (_, mut leader) = self.candidates.leader(None).await;
        let all = v1::PurgeGroupsRequest::default();
        let Ok(found) = leader.purge_groups(all).await else {
            return;
        };
        let switches = found.into_inner().switches.into_iter();
        let groups = switches.flat_map(|left| left.groups);
        let own = groups.filter(|group| group.owner.starts_with("controller-"));
        let owners: BTreeSet<String> = own.map(|group| group.owner).collect();
        for owner in owners {
            self.log
                .line(format_args!("what {owner} cannot explain is purged"));
            let owner = Some(owner);
            let remove = true;
            let _ = leader
                .purge_groups(v1::PurgeGroupsRequest { owner, remove })
                .await;
        }
    }

    /// A call that was held may have installed a group after it was removed: until the next look at the switch.
    async fn switches_have(&self, wanted: impl Fn(&[String]) -> bool) -> Result<(), String> {
        for (name, switch) in &self.switches {
            let began = Instant::now();
            while !wanted(&switch.groups()) || switch.routes() > 0 {
                if began.elapsed() > PATIENCE {
                    let (groups, routes) = (switch.groups(), switch.routes());
                    return Err(format!("{name} has {groups:?} and {routes} routes at the end"));
                }
                if began.elapsed() > LOOKED {
                    self.purge().await;
                }
                sleep(LOOK).await;
            }
        }
        Ok(())
    }
}

/// The group that always runs goes on, and agents hear of what engines see.
async fn go_on(frames: Arc<Frames>, always: Arc<Mutex<Stream>>, switches: Vec<Service>, log: Log) {
    loop {
        sleep(PAUSE).await;
        let gone_on = always.lock().go_on(&mut frames.lock());
        if let Err(error) = gone_on {
            log.violation(format_args!("{ALWAYS}: {error}"));
            return;
        }
        switches.iter().for_each(Service::report);
    }
}

/// Creates a group, again and again until it runs.
async fn create(candidates: &Candidates, request: &v1::CreateGroupRequest) -> Result<v1::GroupState, String> {
    let runs = timeout(PATIENCE, async {
        loop {
            let (_, mut leader) = candidates.leader(None).await;
            let _ = leader.create_group(request.clone()).await;
            if let Some(state) = running(&mut leader, &request.name).await {
                return state;
            }
            sleep(LOOK).await;
        }
    });
    let name = &request.name;
    runs.await
        .map_err(|_| format!("{name} is created again and again, and does not run"))
}

async fn found(client: &mut Client, group: &str) -> Result<v1::GroupState, Status> {
    let request = v1::GetGroupRequest { group: group.into() };
    let found = client.get_group(request).await?.into_inner();
    found.state.ok_or_else(|| Status::not_found("no multicast group"))
}

async fn running(client: &mut Client, group: &str) -> Option<v1::GroupState> {
    found(client, group).await.ok().filter(is_running)
}

fn is_running(state: &v1::GroupState) -> bool {
    state.phase() == GroupPhase::Active
}
