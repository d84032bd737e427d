//! What a program sees: all ranks of a job, on whichever path is the faster one.

use std::fs;
use std::os::unix::fs::MetadataExt;

use castnet_comm::machine::Collective;
use castnet_comm::{
    Buffers, CallLayout, Collectives, CommConfig, CommError, Element, Operation, OwnedBuffers, RankName,
};

use crate::choice::{PathChoice, RankPath, choose};
use crate::engine::{Call, Engine, Memory};
use crate::layout::{Layout, Offer, hash};
use crate::network::Network;
use crate::numa;
use crate::segment::{Key, RANKS_MAX, Segment, Shape};

/// Bytes of a piece, unless [`Options`] has others.
const PIECE: usize = 256 << 10;
const PIECE_MIN: usize = 4 << 10;
const PIECE_MAX: usize = 16 << 20;

/// How ranks of one host work together. The same at all ranks, but for `numa_node`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The paths that are allowed.
    pub path: PathChoice,
    /// Bytes that are reduced, sent and copied at once: a power of two from 4 KiB to 16 MiB. The memory of a host has four
    /// pieces for each of its ranks, and four more.
    pub piece_bytes: usize,
    /// NUMA node of the RNIC, see [`numa::node_of_interface`]. The leader places the memory of the host there, and its own thread.
    pub numa_node: Option<u32>,
}

impl Options {
    /// These paths, and pieces of 256 KiB.
    pub fn new(path: PathChoice) -> Self {
        Self {
            path,
            piece_bytes: PIECE,
            numa_node: None,
        }
    }

    /// A word that differs if the options do.
    fn word(self) -> u64 {
        let path = match self.path {
            PathChoice::Direct => 1,
            PathChoice::Hierarchical => 2,
            PathChoice::Auto => 3,
        };
        path << 32 | self.piece_bytes as u64
    }
}

/// Calls and bytes of each path, of this rank. Bytes are those of the call: of all ranks' blocks together for ReduceScatter
/// and AllGather.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct PathCounters {
    pub direct_calls: u64,
    pub direct_bytes: u64,
    pub hierarchical_calls: u64,
    pub hierarchical_bytes: u64,
}

impl PathCounters {
    fn count(&mut self, path: RankPath, bytes: u64) {
        let (calls, total) = match path {
            RankPath::Direct => (&mut self.direct_calls, &mut self.direct_bytes),
            RankPath::Hierarchical => (&mut self.hierarchical_calls, &mut self.hierarchical_bytes),
        };
        *calls += 1;
        *total += bytes;
    }
}

/// One rank of a job whose ranks may share hosts. All ranks make the same calls in the same order.
///
/// A call takes one of two paths, the same one at all ranks. On the direct path each rank takes part in the network. On the
/// hierarchical path the ranks of a host reduce over shared memory, their leader takes part in the network, and they copy
/// the result from shared memory. See [`choose`]. Non-blocking calls are direct.
///
/// After an error on the hierarchical path every further call fails: all ranks make the communicator again. Dropped, it is
/// noticed by the other ranks of the host.
#[derive(Debug)]
pub struct Hierarchical<N> {
    config: CommConfig,
    options: Options,
    /// `None` after an error on the hierarchical path.
    network: Option<Networks<N>>,
    shared: Result<Shared, String>,
    last: RankPath,
    counters: PathCounters,
}

#[derive(Debug)]
struct Networks<N> {
    /// All ranks.
    world: N,
    /// At a leader, if there are several hosts.
    leaders: Option<N>,
}

#[derive(Debug)]
struct Shared {
    layout: Layout,
    engine: Engine,
}

impl<N: Network> Hierarchical<N> {
    /// Finds out which ranks share a host, and lets them share memory. A collective of all ranks of `world`, which was made
    /// with `config`. With [`PathChoice::Direct`] it does nothing.
    ///
    /// Ranks share a host if they have the same name of a host, are of one user, and are in one PID namespace.
    ///
    /// # Errors
    /// Any error of a collective. [`CommError::NoHierarchy`] if ranks have other options, and, with
    /// [`PathChoice::Hierarchical`], if the ranks of a host cannot share memory. With [`PathChoice::Auto`] all calls are
    /// direct then.
    pub fn new(mut world: N, config: &CommConfig, options: Options) -> Result<Self, CommError> {
        let pieces = PIECE_MIN..=PIECE_MAX;
        if !options.piece_bytes.is_power_of_two() || !pieces.contains(&options.piece_bytes) {
            return Err(castnet_comm::CommError::NoHierarchy {
                reason: format!(
                    "a piece of {} bytes: it must be a power of two from {PIECE_MIN} to {PIECE_MAX}",
                    options.piece_bytes
                ),
            });
        }
        let mut config = config.clone();
        (config.rank, config.size) = (world.rank(), world.size());
        let (shared, leaders) = match options.path {
            PathChoice::Direct => (Err("only the direct path is allowed".to_owned()), None),
            PathChoice::Hierarchical | PathChoice::Auto => share(&mut world, &config, options)?,
        };
        if let (PathChoice::Hierarchical, Err(reason)) = (options.path, &shared) {
            let reason = reason.clone();
            return Err(CommError::NoHierarchy { reason });
        }
        if let Err(reason) = &shared
            && options.path == PathChoice::Auto
        {
            tracing::debug!(
                job = config.job,
                rank = config.rank,
                reason,
                "all calls are direct"
            );
        }
        Ok(Self {
            config,
            options,
            network: Some(Networks { world, leaders }),
            shared,
            last: RankPath::Direct,
            counters: PathCounters::default(),
        })
    }

    /// The communicator of all ranks. `None` after an error on the hierarchical path.
    pub fn world(&self) -> Option<&N> {
        self.network.as_ref().map(|network| &network.world)
    }

    /// Which ranks share a host, or why no memory is shared.
    pub fn layout(&self) -> Result<&Layout, &str> {
        self.shared
            .as_ref()
            .map(|shared| &shared.layout)
            .map_err(String::as_str)
    }

    /// The path of the last call.
    pub fn last_path(&self) -> RankPath {
        self.last
    }

    /// Calls and bytes so far.
    pub fn counters(&self) -> PathCounters {
        self.counters
    }

    /// The path that a call takes. `bytes` are those of all ranks' blocks together for ReduceScatter and AllGather.
    ///
    /// # Errors
    /// Only the hierarchical path is allowed, and it does not keep the rank order that was asked for.
    pub fn path_of(
        &self,
        collective: Collective,
        operation: Operation,
        data_type: castnet_comm::DataType,
        bytes: u64,
    ) -> Result<RankPath, CommError> {
        let Ok(Shared { layout, .. }) = &self.shared else {
            return Ok(RankPath::Direct);
        };
        let reduces = matches!(
            collective,
            Collective::AllReduce | Collective::Reduce { .. } | Collective::ReduceScatter
        );
        let depends_on_order = matches!(operation, Operation::Sum | Operation::Prod)
            && (data_type.is_float() || self.config.saturate);
        let keeps_order =
            !(self.config.reproducible && reduces && depends_on_order) || layout.keeps_rank_order();
        match self.options.path {
            PathChoice::Direct => Ok(RankPath::Direct),
            PathChoice::Hierarchical if keeps_order => Ok(RankPath::Hierarchical),
            PathChoice::Hierarchical => Err(CommError::NoHierarchy {
                reason: format!(
                    "{operation} of {data_type} in rank order: the ranks of a host would be reduced first; \
                     only the direct path keeps the order of these ranks"
                ),
            }),
            PathChoice::Auto if keeps_order => Ok(choose(collective, bytes, layout)),
            PathChoice::Auto => Ok(RankPath::Direct),
        }
    }

    /// Checks a call. Returns what its buffers mean, and the bytes of [`Hierarchical::path_of`].
    fn check<T: Element>(
        &self,
        collective: Collective,
        operation: Operation,
        lengths: (usize, Option<usize>),
    ) -> Result<(CallLayout, u64), CommError> {
        let (rank, size) = (self.config.rank, self.config.size);
        let layout = CallLayout::new(collective, operation, T::DATA_TYPE, lengths, rank, size)?;
        let bytes = (layout.elements * size_of::<T>()) as u64;
        match collective {
            Collective::ReduceScatter | Collective::AllGather => Ok((layout, bytes * u64::from(size))),
            _ => Ok((layout, bytes)),
        }
    }

    /// As [`castnet_comm::Communicator::close`].
    pub fn close(mut self) -> Result<(), CommError> {
        let Some(Networks { world, leaders }) = self.network.take() else {
            return Ok(());
        };
        let left = leaders.map_or(Ok(()), N::close);
        world.close().and(left)
    }
}

impl<N: Network> Collectives for Hierarchical<N> {
    type Request<T: Element> = N::Request<T>;

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
        let (layout, all_bytes) = self.check::<T>(collective, operation, buffers.lengths())?;
        let path = self.path_of(collective, operation, T::DATA_TYPE, all_bytes)?;
        let Networks { world, leaders } = networks(&mut self.network)?;
        self.last = path;
        self.counters.count(path, all_bytes);
        let CallLayout {
            elements,
            input,
            output,
            reduces,
        } = layout;
        let Ok(Shared { layout, engine }) = &mut self.shared else {
            return world.call(collective, operation, buffers);
        };
        if path == RankPath::Direct {
            engine.count_direct();
            return world.call(collective, operation, buffers);
        }
        let memory = match buffers {
            Buffers::InPlace(all) => Memory::InPlace(bytemuck::cast_slice_mut(all), input, output),
            Buffers::Apart(from, to) => {
                Memory::Apart(bytemuck::cast_slice(from), bytemuck::cast_slice_mut(to))
            }
            Buffers::From(from) => Memory::Apart(bytemuck::cast_slice(from), &mut []),
        };
        let call = Call {
            layout,
            config: &self.config,
            collective,
            operation: if reduces { operation } else { Operation::Sum },
            bytes: elements * size_of::<T>(),
        };
        let result = engine.run::<T, N>(&call, memory, world, leaders.as_mut());
        if result.is_err() {
            // The other hosts notice that their leaders wait in vain.
            self.network = None;
        }
        result
    }

    /// On the direct path. Fails with [`CommError::NoHierarchy`] if only the hierarchical one is allowed.
    fn icall<T: Element>(
        &mut self,
        collective: Collective,
        operation: Operation,
        buffers: OwnedBuffers<T>,
    ) -> Result<N::Request<T>, CommError> {
        if self.options.path == PathChoice::Hierarchical {
            return Err(CommError::NoHierarchy {
                reason: "a non-blocking call takes the direct path, which is not allowed".to_owned(),
            });
        }
        let (_, all_bytes) = self.check::<T>(collective, operation, buffers.lengths())?;
        let Networks { world, .. } = networks(&mut self.network)?;
        self.last = RankPath::Direct;
        self.counters.count(RankPath::Direct, all_bytes);
        if let Ok(Shared { engine, .. }) = &mut self.shared {
            engine.count_direct();
        }
        world.icall(collective, operation, buffers)
    }

    fn wait<T: Element>(&mut self, request: N::Request<T>) -> Result<Vec<T>, CommError> {
        networks(&mut self.network)?.world.wait::<T>(request)
    }

    fn test<T: Element>(&mut self, request: &N::Request<T>) -> Result<bool, CommError> {
        networks(&mut self.network)?.world.test::<T>(request)
    }
}

/// The communicators, unless an earlier call has failed.
fn networks<N>(network: &mut Option<Networks<N>>) -> Result<&mut Networks<N>, CommError> {
    network.as_mut().ok_or_else(|| CommError::NoHierarchy {
        reason: "an earlier call has failed; all ranks must connect again".to_owned(),
    })
}

/// What ranks that can share memory have in common.
fn host_key(config: &CommConfig) -> u128 {
    let boot = fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino());
    let user = nix::unistd::geteuid().as_raw();
    hash(&[
        config.host.as_bytes(),
        &boot,
        &namespace.to_le_bytes(),
        &user.to_le_bytes(),
    ])
}

type Sharing<N> = (Result<Shared, String>, Option<N>);

/// Three AllGathers and a split of all ranks: who shares a host, where each leader's segment is, and whether all have it.
fn share<N: Network>(world: &mut N, config: &CommConfig, options: Options) -> Result<Sharing<N>, CommError> {
    let (rank, size) = (config.rank, usize::from(config.size));
    let own = Offer {
        host: host_key(config),
        pid: std::process::id(),
        settings: options.word(),
    };
    let words = gather(world, &own.to_words())?;
    let offers: Vec<_> = words.chunks_exact(Offer::WORDS).map(Offer::from_words).collect();
    let same = |offer: &Option<Offer>| offer.is_some_and(|offer| offer.settings == own.settings);
    if let Some(other) = offers.iter().position(|offer| !same(offer)) {
        let rank = name(other, config);
        return Err(CommError::NoHierarchy {
            reason: format!("{rank} has other options than this rank"),
        });
    }
    let offers: Vec<_> = offers.into_iter().flatten().collect();
    let layout = Layout::new(offers.iter().map(|offer| offer.host));
    if layout.most_ranks() <= 1 {
        return Ok((Err("no host has several ranks".to_owned()), None));
    }
    if layout.most_ranks() > RANKS_MAX {
        let reason = format!("a host has {} ranks, of at most {RANKS_MAX}", layout.most_ranks());
        return Ok((Err(reason), None));
    }
    let (host, place) = layout.place(rank);
    let shape = Shape {
        ranks: layout.ranks_of(host).len(),
        piece: options.piece_bytes,
    };
    let made = (place == 0).then(|| {
        if let Some(node) = options.numa_node {
            let is_placed = numa::place_thread(numa::SYS.as_ref(), node);
            tracing::debug!(node, is_placed, "the thread of a leader");
        }
        Segment::create(shape, options.numa_node)
    });
    let key = match &made {
        Some(Ok((_, key))) => [u64::from(key.descriptor) + 1, key.nonce],
        _ => [0, 0],
    };
    let keys = gather(world, &key)?;
    let leader = usize::from(layout.ranks_of(host)[0]);
    let segment = match made {
        Some(made) => made
            .map(|(segment, _)| segment)
            .map_err(|error| error.to_string()),
        None => match keys[2 * leader].checked_sub(1).map(u32::try_from) {
            Some(Ok(descriptor)) => {
                let key = Key {
                    pid: offers[leader].pid,
                    descriptor,
                    nonce: keys[2 * leader + 1],
                };
                Segment::open(key, shape, place).map_err(|error| format!("that of rank {leader}: {error}"))
            }
            _ => Err(format!("rank {leader} could not make any")),
        },
    };
    let failed = gather(world, &[u64::from(segment.is_err())])?;
    let segment = match (segment, failed.iter().position(|failed| *failed != 0)) {
        (Ok(segment), None) => segment,
        (Err(error), _) => return Ok((Err(format!("no shared memory: {error}")), None)),
        (Ok(_), Some(other)) => {
            let reason = format!("{} has no shared memory", name(other, config));
            return Ok((Err(reason), None));
        }
    };
    debug_assert_eq!(size, layout.ranks());
    let leaders = match layout.hosts() {
        1 => None,
        _ => world.part(place == 0)?,
    };
    let engine = Engine::new(segment, place, config);
    Ok((Ok(Shared { layout, engine }), leaders))
}

fn gather<N: Network>(world: &mut N, own: &[u64]) -> Result<Vec<u64>, CommError> {
    let mut all = vec![0; own.len() * usize::from(world.size())];
    world.call(Collective::AllGather, Operation::Sum, (own, &mut all[..]).into())?;
    Ok(all)
}

fn name(rank: usize, config: &CommConfig) -> RankName {
    let host = match rank == usize::from(config.rank) {
        true => config.host.clone(),
        false => String::new(),
    };
    RankName {
        rank: rank as u16,
        host,
    }
}
