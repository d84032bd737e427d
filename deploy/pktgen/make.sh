#!/bin/sh
# Writes the packet files of this folder anew, here or into the folder given. For other sizes, groups and receivers: castnet bench --help.
set -eu
castnet=${CASTNET:-castnet}
to=${1:-$(dirname "$0")}

for size in 64 1024 4096; do
    # About 32 KiB each, so that the folder stays small; a generator sends a file over and over.
    frames=$((32768 / size)); [ "$frames" -le 64 ] || frames=64
    "$castnet" bench multicast --size "$size" --as tx --frames "$frames" --write "$to/multicast-$size.pcap"
done
# One data frame opens PSNs 0 to 127, and every receiver acknowledges each of them.
"$castnet" bench ack --as tx --frames 1 --write "$to/ack-tx.pcap"
for receiver in 1 2; do
    "$castnet" bench ack --as "rx$receiver" --frames 128 --write "$to/ack-rx$receiver.pcap"
done
