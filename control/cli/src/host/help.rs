//! What `castnet host COLLECTIVE --help` says below its flags.

pub(super) const ALL_REDUCE_HELP: &str = "\
The switches add up what the ranks send, and each link carries each byte once in each direction.

Each rank runs the same command, but for --name, --rank and its device. Rank 0 prints the table.

Examples:
  castnet host allreduce --interface eth0 --ip 10.0.0.1/24 --name h1 --job j --rank 0 --size 4
  castnet host allreduce ... --rnic verbs --device mlx5_0      on an RNIC of this machine, in place of interface and address
  castnet host allreduce ... --bytes 1K..1G --factor 2 --type bf16 --op max --in-place
  castnet host allreduce ... --fallback only                   between hosts (ring), for comparison
  castnet host allreduce ... --output json                     one object a line, one line a size";

pub(super) const REDUCE_HELP: &str = "\
The switches add up what the ranks send, and only the root gets it.

Each rank runs the same command, but for --name, --rank and its device. Rank 0 prints the table.

Examples:
  castnet host reduce --interface eth0 --ip 10.0.0.1/24 --name h1 --job j --rank 0 --size 4 --root 3
  castnet host reduce ... --type i32 --op bitor --bytes 64K,1M";

pub(super) const BROADCAST_HELP: &str = "\
The switches copy what the root sends. Any rank may be it, in one group.

Each rank runs the same command, but for --name, --rank and its device. Rank 0 prints the table.

Examples:
  castnet host broadcast --interface eth0 --ip 10.0.0.1/24 --name h1 --job j --rank 0 --size 4 --root 2
  castnet host broadcast ... --bytes 1M..1G";

pub(super) const BARRIER_HELP: &str = "\
A message without data, that all send and the switches add up: its time is the latency of a collective.

Each rank runs the same command, but for --name, --rank and its device. Rank 0 prints the table.

Examples:
  castnet host barrier --interface eth0 --ip 10.0.0.1/24 --name h1 --job j --rank 0 --size 4 --iters 1000";

pub(super) const REDUCE_SCATTER_HELP: &str = "\
The switches add up what the ranks send, and each rank gets one block of it.

Each rank runs the same command, but for --name, --rank and its device. Rank 0 prints the table.

Examples:
  castnet host reducescatter --interface eth0 --ip 10.0.0.1/24 --name h1 --job j --rank 0 --size 4
  castnet host reducescatter ... --bytes 1M..64M --in-place";

pub(super) const ALL_GATHER_HELP: &str = "\
The switches copy what each rank sends to all others.

Each rank runs the same command, but for --name, --rank and its device. Rank 0 prints the table.

Examples:
  castnet host allgather --interface eth0 --ip 10.0.0.1/24 --name h1 --job j --rank 0 --size 4
  castnet host allgather ... --bytes 1M..64M --type u8";

/// How the table is read; for `--help`, not for `-h`.
pub(super) const TABLE_HELP: &str = "

The table has a line for each size, as nccl-tests and the OSU benchmarks have it:
  size, count   bytes and elements; for reducescatter and allgather the bytes of all ranks' blocks, the elements of one
  root          the rank that has or gets the data, where it is one
  avg, min, max time of a call: mean over calls and ranks, the fastest rank's mean, the slowest rank's mean
  algbw         size over mean time
  busbw         algbw times what each link of a ring would carry of each byte, to be compared with a link's rate: 2(n-1)/n for
                allreduce, (n-1)/n for reducescatter and allgather, 1 for the others; n is the number of ranks
  #wrong        elements, at all ranks, that are not as they must be; - where nobody looked

Exit code 0: every rank had every element. 1: it failed, or elements are wrong. 2: the flags are wrong. 3: the controller or a switch
refused. 4: the controller did not answer, or ranks did not come.";
