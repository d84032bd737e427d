#!/usr/bin/env bash
# A lab on one machine: a switch, a controller and four hosts, each in a network namespace of its own, joined by veth pairs.
#
#   netns.sh up            builds it, starts the switch and the controller, and says what to try
#   netns.sh send FILE     sends a file from h1 to h2, h3 and h4 (OP=write for RDMA WRITE), and compares what arrived
#   netns.sh allreduce [FLAGS]   an AllReduce of all four, added up in the switch (any collective: reduce, broadcast, ...)
#   netns.sh status        shows the switch's ports and groups
#   netns.sh down          stops what runs, and takes the namespaces and all files away
#
# Needs root and `ip` (iproute2). CASTNET is the binary; FAULT injects faults on all ports (FAULT=loss=1%,seed=42).
set -euo pipefail

lab=/run/castnet-lab
prefix=castnet-lab
hosts=(h1 h2 h3 h4)
mtu=4200
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

die() { printf 'netns.sh: %s\n' "$*" >&2; exit 1; }

find_castnet() {
    local found
    for found in "${CASTNET:-}" "$here/../../target/release/castnet" "$here/../../target/debug/castnet" castnet; do
        if [ -n "$found" ] && found=$(command -v "$found"); then
            printf '%s\n' "$found"
            return
        fi
    done
    die "no binary: cargo build --release, or CASTNET=/path/to/castnet"
}

inside() { ip netns exec "$prefix-$1" "${@:2}"; }

# Starts "$@" in the background; its output goes to NAME.log, and the lab is ready when NAME.ready is there.
start() {
    local name=$1
    shift
    "$@" --ready-file "$lab/$name.ready" >"$lab/$name.log" 2>&1 &
    local pid=$!
    echo "$pid" >"$lab/$name.pid"
    local turn
    for turn in $(seq 200); do
        [ -e "$lab/$name.ready" ] && return
        kill -0 "$pid" 2>/dev/null || { cat "$lab/$name.log" >&2; die "$name ended before it was ready"; }
        sleep 0.05
    done
    die "$name is not ready after 10 s: see $lab/$name.log"
}

up() {
    [ -e "$lab" ] && die "the lab is there already: netns.sh down"
    mkdir -m 700 "$lab"
    trap 'down >/dev/null 2>&1' ERR
    local host ports=()
    ip netns add "$prefix-switch"
    for host in "${hosts[@]}"; do
        ip netns add "$prefix-$host"
        ip link add "$host" netns "$prefix-switch" type veth peer name eth0 netns "$prefix-$host"
        ip -n "$prefix-switch" link set "$host" mtu $mtu up
        ip -n "$prefix-$host" link set lo up
        ip -n "$prefix-$host" link set eth0 mtu $mtu up
        ports+=(--port "$host=af_packet:$host")
    done
    start switch ip netns exec "$prefix-switch" "$castnet" switch --name lab --listen "unix:$lab/switch.sock" \
        "${ports[@]}" ${FAULT:+--fault "$FAULT"}
    start controller "$castnet" controller --listen "unix:$lab/controller.sock" --store "$lab/controller.redb" \
        --switch "lab=unix:$lab/switch.sock"
    trap - ERR
    cat <<END
The lab is up. In this shell:

  export CASTNET_AGENT=unix:$lab/switch.sock CASTNET_CONTROLLER=unix:$lab/controller.sock

  $castnet port                            # the switch's four ports
  $0 send FILE                             # one file from h1 to h2, h3 and h4
  $0 allreduce --type f32 --bytes 4K..4M      # sums of all four, made in the switch
  $castnet trace --group lab-file          # beside a transfer: what the switch does with its next frame, and why
  $castnet counters --watch
  ip netns exec $prefix-h1 bash            # a shell at a host
  $0 down                                  # takes everything away
END
}

send() {
    local file=${1:-} op=${OP:-send} host pids=() failed=0
    [ -r "$file" ] || die "send FILE: a file that can be read"
    [ -e "$lab/switch.ready" ] || die "the lab is not up: netns.sh up"
    export CASTNET_CONTROLLER="unix:$lab/controller.sock"
    "$castnet" group create lab-file --source h1 --members h2,h3,h4 --pmtu 4096
    for host in h2 h3 h4; do
        inside "$host" "$castnet" host receive --interface eth0 --ip "10.0.0.${host#h}/24" --name "$host" \
            --group lab-file --op "$op" --out "$lab/$host.out" &
        pids+=($!)
    done
    inside h1 "$castnet" host send --interface eth0 --ip 10.0.0.1/24 --name h1 --group lab-file --op "$op" \
        --file "$file" || failed=1
    local pid
    for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
    "$castnet" group destroy lab-file
    for host in h2 h3 h4; do
        if cmp "$file" "$lab/$host.out"; then echo "$host has every byte"; else failed=1; fi
        rm -f "$lab/$host.out"
    done
    return $failed
}

# One rank at each host; the table is rank 0's. FLAGS are those of `castnet host allreduce`.
collective() {
    local primitive=$1 rank pids=() failed=0 pid
    shift
    [ -e "$lab/switch.ready" ] || die "the lab is not up: netns.sh up"
    for rank in 3 2 1 0; do
        inside "h$((rank + 1))" "$castnet" host "$primitive" --controller "unix:$lab/controller.sock" --interface eth0 \
            --ip "10.0.0.$((rank + 1))/24" --name "h$((rank + 1))" --job "lab-$primitive" --rank "$rank" --size 4 \
            --pmtu 4096 "$@" &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
    return $failed
}

status() {
    export CASTNET_AGENT="unix:$lab/switch.sock" CASTNET_CONTROLLER="unix:$lab/controller.sock"
    "$castnet" port
    echo
    "$castnet" group list
}

down() {
    local name pid turn
    for name in controller switch; do
        [ -r "$lab/$name.pid" ] || continue
        pid=$(cat "$lab/$name.pid")
        kill "$pid" 2>/dev/null || continue
        for turn in $(seq 100); do
            kill -0 "$pid" 2>/dev/null || break
            sleep 0.05
        done
        kill -9 "$pid" 2>/dev/null || true
    done
    for name in switch "${hosts[@]}"; do
        ip netns del "$prefix-$name" 2>/dev/null || true
    done
    rm -rf "$lab"
    echo "The lab is gone."
}

[ "$(id -u)" = 0 ] || die "needs root: sudo $0 ${*:-up}"
command -v ip >/dev/null || die "needs the command ip: install iproute2"
case "${1:-}" in
up | send | status) castnet=$(find_castnet) && "$@" ;;
allreduce | reduce | broadcast | barrier | reducescatter | allgather) castnet=$(find_castnet) && collective "$@" ;;
down) down ;;
*) sed -n '2,10s/^# \{0,1\}//p' "$0" && exit 2 ;;
esac
