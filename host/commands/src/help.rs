//! Text below the flags in `castnet host COLLECTIVE --help`.

macro_rules! collective_help {
    ($about:literal, $($example:literal),+) => {
        concat!(
            $about,
            "\n\nEach rank runs the same command with its own --name, --rank and device. Rank 0 prints the table.\n\nExamples:",
            $("\n  castnet host ", $example),+
        )
    };
}

pub(super) const ALL_REDUCE_HELP: &str = collective_help!(
    "The switches add up what the ranks send. Each link carries each byte once in each direction.",
    "allreduce --interface eth0 --ip 10.0.0.1/24 --name h1 --job j --rank 0 --size 4",
    "allreduce ... --rnic verbs --device mlx5_0      on an RNIC of this machine, instead of --interface and --ip",
    "allreduce ... --bytes 1K..1G --factor 2 --type bf16 --op max --in-place",
    "allreduce ... --fallback only                   between hosts (ring), for comparison",
    "allreduce ... --output json                     one JSON object per line and size"
);

pub(super) const REDUCE_HELP: &str = collective_help!(
    "The switches add up what the ranks send. Only the root receives the result.",
    "reduce --interface eth0 --ip 10.0.0.1/24 --name h1 --job j --rank 0 --size 4 --root 3",
    "reduce ... --type i32 --op bitor --bytes 64K,1M"
);

pub(super) const BROADCAST_HELP: &str = collective_help!(
    "The switches copy what the root sends. Any rank of the group may be the root.",
    "broadcast --interface eth0 --ip 10.0.0.1/24 --name h1 --job j --rank 0 --size 4 --root 2",
    "broadcast ... --bytes 1M..1G"
);

pub(super) const BARRIER_HELP: &str = collective_help!(
    "All ranks send a message without data, and the switches add these up. The time is the latency of a collective.",
    "barrier --interface eth0 --ip 10.0.0.1/24 --name h1 --job j --rank 0 --size 4 --iters 1000"
);

pub(super) const REDUCE_SCATTER_HELP: &str = collective_help!(
    "The switches add up what the ranks send. Each rank receives one block of the result.",
    "reducescatter --interface eth0 --ip 10.0.0.1/24 --name h1 --job j --rank 0 --size 4",
    "reducescatter ... --bytes 1M..64M --in-place"
);

pub(super) const ALL_GATHER_HELP: &str = collective_help!(
    "The switches copy what each rank sends to all others.",
    "allgather --interface eth0 --ip 10.0.0.1/24 --name h1 --job j --rank 0 --size 4",
    "allgather ... --bytes 1M..64M --type u8"
);

/// How to read the table; for `--help`, not for `-h`.
pub(super) const TABLE_HELP: &str = "

The table has a line for each size, as in nccl-tests and the OSU benchmarks:
  size, count   bytes and elements; for reducescatter and allgather the bytes of all ranks' blocks, the elements of one
  root          the rank that has or receives the data, for reduce and broadcast
  avg, min, max time of a call: mean over calls and ranks, the fastest rank's mean, the slowest rank's mean
  algbw         size divided by mean time
  busbw         algbw times how often each byte crosses each link of a ring, to compare with a link's rate: 2(n-1)/n for
                allreduce, (n-1)/n for reducescatter and allgather, 1 for the others; n is the number of ranks
  #wrong        wrong elements at all ranks; - if not checked
  path          direct: each rank took part in the network; hierarchical: one rank of each host, over shared memory (--path)

Exit code 0: every rank has every element. 1: it failed, or elements are wrong. 2: the flags are wrong. 3: the controller or a switch
refused. 4: the controller did not answer, or ranks are missing.";
