//! Threads that simulate hosts. Each opens its ports, and plays its hosts in each run.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use castnet_console::exit::{Failure, Outcome};
use castnet_port::{Memory, MemoryPort, OpenError, Pool, PoolConfig, PortLink, PortSpec, Sides};
use castnet_traffic::drive::{Live, Played, Seat, Stage, play};
use castnet_traffic::{Host, Plan, PlanError};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

/// Shared by the threads of one run.
#[derive(Clone)]
pub(super) struct Part {
    pub(super) plan: Arc<Plan>,
    pub(super) stage: Arc<Stage>,
    /// By place.
    pub(super) lives: Vec<Arc<Live>>,
}

impl Part {
    pub(super) fn new(plan: Plan) -> Self {
        Self {
            lives: plan.hosts.iter().map(|_| Live::new()).collect(),
            stage: Arc::new(Stage::new()),
            plan: Arc::new(plan),
        }
    }

    /// Into the order of the hosts' places.
    pub(super) fn sort(&self, played: &mut [Played]) {
        let place = |name: &str| self.plan.hosts.iter().position(|h| h.name == name);
        played.sort_by_key(|p| place(&p.host.name));
    }
}

type Answer = Result<Vec<Played>, PlanError>;

struct Player {
    parts: Sender<Part>,
    answers: Receiver<Answer>,
    ready: Receiver<Result<(), PlanError>>,
    thread: JoinHandle<()>,
}

/// Threads with ports, which play one run after the other. On drop they close their ports and end.
pub(super) struct Players {
    players: Vec<Player>,
    links: Vec<PortLink>,
}

/// With their places.
type Ports = Vec<(usize, PortSpec)>;
type Opened<M> = Vec<(usize, MemoryPort<M>)>;

/// Channels and parts of a new thread.
struct Birth {
    ports: Ports,
    core: Option<usize>,
    opened: Sender<Result<Vec<(usize, PortLink)>, OpenError>>,
    parts: Receiver<Part>,
    ready: Sender<Result<(), PlanError>>,
    answers: Sender<Answer>,
}

impl Players {
    /// Opens `ports`, spread over one thread per entry of `cores` (`None`: any core), with buffers of `pool`.
    pub(super) fn open(ports: Vec<PortSpec>, cores: &[Option<usize>], pool: PoolConfig) -> Outcome<Self> {
        Self::open_in(ports, cores, move || Ok(Pool::new(pool)))
    }

    /// [`Self::open`] with memory of another kind: `make` is called on each thread.
    pub(super) fn open_in<M: Memory>(
        ports: Vec<PortSpec>,
        cores: &[Option<usize>],
        make: impl Fn() -> Result<M, OpenError> + Send + Sync + 'static,
    ) -> Outcome<Self> {
        let count = ports.len();
        let threads = cores.len().clamp(1, count.max(1));
        let make = Arc::new(make);
        let mut shares: Vec<Ports> = (0..threads).map(|_| Vec::new()).collect();
        for (place, spec) in ports.into_iter().enumerate() {
            shares[place % threads].push((place, spec));
        }
        let (mut players, mut waiting) = (Vec::new(), Vec::new());
        for (number, ports) in shares.into_iter().enumerate() {
            let (opened, opened_here) = channel();
            let (parts, parts_there) = channel();
            let (ready, ready_here) = channel();
            let (answers, answers_here) = channel();
            let birth = Birth {
                ports,
                core: cores.get(number).copied().flatten(),
                opened,
                parts: parts_there,
                ready,
                answers,
            };
            let make = make.clone();
            let thread = thread::Builder::new()
                .name(format!("bench-h{number}"))
                .spawn(move || live(birth, &*make))?;
            players.push(Player {
                parts,
                answers: answers_here,
                ready: ready_here,
                thread,
            });
            waiting.push(opened_here);
        }
        let mut links: Vec<Option<PortLink>> = vec![None; count];
        let mut failed = None;
        for opened in waiting {
            match opened.recv() {
                Ok(Ok(opened)) => opened
                    .into_iter()
                    .for_each(|(place, link)| links[place] = Some(link)),
                Ok(Err(error)) => failed = Some(Failure::failed(error).next("castnet doctor --for switch")),
                Err(_) => failed = Some(died()),
            }
        }
        let all = Self {
            players,
            links: links.into_iter().flatten().collect(),
        };
        match failed {
            None => Ok(all),
            Some(failure) => Err(failure),
        }
    }

    /// By place.
    pub(super) fn links(&self) -> &[PortLink] {
        &self.links
    }

    /// Makes the hosts of a run. They wait for the stage.
    pub(super) fn begin(&self, part: &Part) -> Outcome {
        for player in &self.players {
            player.parts.send(part.clone()).map_err(|_| died())?;
        }
        for player in &self.players {
            let ready = player.ready.recv().map_err(|_| died())?;
            ready.map_err(Failure::failed)?;
        }
        Ok(())
    }

    /// Ends the run. Returns the counts of each host, by place.
    pub(super) fn end(&self, part: &Part) -> Outcome<Vec<Played>> {
        part.stage.end();
        let mut all = Vec::new();
        for player in &self.players {
            let played = player.answers.recv().map_err(|_| died())?;
            all.extend(played.map_err(Failure::failed)?);
        }
        part.sort(&mut all);
        Ok(all)
    }
}

impl Drop for Players {
    fn drop(&mut self) {
        for player in self.players.drain(..) {
            drop(player.parts);
            // A panic is already on stderr.
            let _ = player.thread.join();
        }
    }
}

fn died() -> Failure {
    Failure::failed("a thread that simulated hosts has died")
}

fn live<M: Memory>(birth: Birth, make: &dyn Fn() -> Result<M, OpenError>) {
    if let Some(core) = birth.core {
        pin(core);
    }
    let open = || -> Result<(M, Opened<M>), OpenError> {
        let memory = make()?;
        let mut ports = Vec::new();
        for (place, spec) in &birth.ports {
            ports.push((*place, memory.open(spec, Sides::Both, 0)?));
        }
        Ok((memory, ports))
    };
    let (memory, mut ports) = match open() {
        Ok(opened) => opened,
        Err(error) => return drop(birth.opened.send(Err(error))),
    };
    let links = ports.iter().map(|(place, port)| (*place, port.info())).collect();
    let _ = birth.opened.send(Ok(links));
    while let Ok(part) = birth.parts.recv() {
        let (mut seats, mut places, mut others) = (Vec::<Seat<M>>::new(), Vec::new(), Vec::new());
        let mut failed = None;
        for (place, port) in ports.drain(..) {
            // A scenario may need fewer hosts than there are ports.
            if place >= part.plan.hosts.len() {
                others.push((place, port));
                continue;
            }
            match Host::new(&part.plan, place, |bytes| memory.gather(&[bytes])) {
                Ok(host) => {
                    places.push(place);
                    seats.push(Seat {
                        host,
                        port,
                        live: part.lives[place].clone(),
                    });
                }
                Err(error) => failed = Some(error),
            }
        }
        let _ = birth.ready.send(failed.clone().map_or(Ok(()), Err));
        if let Some(error) = failed {
            let _ = birth.answers.send(Err(error));
            return;
        }
        let played = play(&memory, &mut seats, &part.stage);
        let _ = birth.answers.send(Ok(played));
        ports = others;
        ports.extend(places.into_iter().zip(seats.into_iter().map(|s| s.port)));
    }
}

/// A failure is ignored.
fn pin(core: usize) {
    let mut set = CpuSet::new();
    if set.set(core).is_ok()
        && let Err(error) = sched_setaffinity(Pid::from_raw(0), &set)
    {
        tracing::warn!(core, %error, "hosts are not pinned");
    }
}

/// Cores that this process may use.
pub(super) fn cores() -> Vec<usize> {
    let all = nix::sched::sched_getaffinity(Pid::from_raw(0)).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::count())
        .filter(|core| all.is_set(*core).unwrap_or(false))
        .collect()
}
