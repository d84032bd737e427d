//! Text below the flags.

pub(crate) const BENCH_HELP: &str = "Each collective and size is measured in the network and between hosts, in turn. The times are medians over calls. Each rank runs
the same command with its own --name, --rank and device. Rank 0 prints the table.

Examples:
  castnet-lab bench --interface eth0 --ip 10.0.0.1/24 --name h1 --job j --rank 0 --size 4 --svg sweep.svg
  castnet-lab bench ... --collectives allreduce,broadcast --bytes 4..64M --budget 1s
  castnet-lab bench ... --output json                         one JSON object per line: collective, size and path";

pub(crate) const CALIBRATE_HELP: &str =
    "Two hosts send each other messages over the network between them, past all groups: a hop is the time of a short message, a copy that of
one more full packet. The controller needs their ratio, the latency, for groups created with --distribution edge:auto. Rank 0 prints it, and the times in
which relays at the edge have a message in trees of each shape (docs/decisions/0022).

Examples:
  castnet-lab calibrate --interface eth0 --ip 10.0.0.1/24 --name h1 --job c --rank 0 --size 2     at one host
  castnet-lab calibrate --interface eth0 --ip 10.0.0.2/24 --name h2 --job c --rank 1 --size 2     at another one
  castnet controller ... --relay-latency 12.5                                       then
  castnet group create NAME ... --distribution edge:auto:65536";

pub(crate) const SKEW_HELP: &str =
    "Figures 6 to 8 of NIC-based multicast over Myrinet. In each call all ranks leave a barrier; then each but rank 0 is late by a time between -max/2 and
max/2, if that is above 0, where max is three times the average skew. While it is late, its RNIC works, and it has not called. Measured is the
time in the call: over the multicast group, where rank 0 posts an RDMA WRITE and a receiver finds it in its memory and copies it; and by
CommLib's broadcast between hosts (binomial tree, or chain), where a late host delays those that it passes the data on to. Both ways take turns, with the same
skews. Rank 0 prints the mean of all processes and calls, and the median over calls of the process that takes longest (LAST).

Examples:
  castnet group create b --source h1 --members h2,h3 --distribution edge:auto:4096
  castnet-lab skew --interface eth0 --ip 10.0.0.1/24 --name h1 --group b --job s --rank 0 --size 3     at the source
  castnet-lab skew --interface eth0 --ip 10.0.0.2/24 --name h2 --group b --job s --rank 1 --size 3     at each receiver
  castnet-lab skew ... --skew 0 --bytes 1..16K                  no skew: the latency of a broadcast";
