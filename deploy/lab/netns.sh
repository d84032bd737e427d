#!/usr/bin/env bash
# A lab on one machine: a switch, a controller and hosts, each in its own network namespace, connected by veth pairs.
#
#   netns.sh up            builds it with four hosts at four ports of the switch, starts switch and controller, and prints examples
#   netns.sh up one-armed  eight hosts at an ordinary switch (a bridge of the kernel), and the Castnet switch at one port of that
#   netns.sh up [one-armed] --controllers N   with N controllers, one of which leads; their store is an etcd server
#   netns.sh kill-leader   kills the controller that leads (kill -9); another one goes on
#   netns.sh send FILE     sends a file from h1 to all others (OP=write for RDMA WRITE), and compares what arrived
#   netns.sh allreduce [FLAGS]   an AllReduce of all hosts in the switch (or another collective: reduce, broadcast, ...);
#                          RANKS=N: number of ranks, also more than hosts
#   netns.sh bench [FLAGS] all collectives over many sizes, in the switch and between hosts
#   netns.sh status        shows the switch's ports and groups
#   netns.sh down          stops everything, and removes the namespaces and all files
#
# Needs root and `ip` (iproute2); for several controllers etcd (etcd-server). CASTNET is the binary; FAULT injects faults on all ports (FAULT=loss=1%,seed=42).
set -euo pipefail

lab=/run/castnet-lab
prefix=castnet-lab
mtu=4200
# The hosts of the running lab.
read -ra hosts 2>/dev/null <"$lab/hosts" || hosts=(h1 h2 h3 h4)
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

# Starts "$@" in the background with its output in NAME.log, and waits for NAME.ready.
start() {
    local name=$1
    shift
    "$@" --ready-file "$lab/$name.ready" >"$lab/$name.log" 2>&1 &
    local pid=$!
    echo "$pid" >"$lab/$name.pid"
    local try
    for try in $(seq 200); do
        [ -e "$lab/$name.ready" ] && return
        kill -0 "$pid" 2>/dev/null || { cat "$lab/$name.log" >&2; die "$name ended before it was ready"; }
        sleep 0.05
    done
    die "$name is not ready after 10 s: see $lab/$name.log"
}

# Connects interface $2 of namespace $1 with interface $4 of namespace $3.
wire() {
    ip link add "$2" netns "$prefix-$1" type veth peer name "$4" netns "$prefix-$3"
    ip -n "$prefix-$1" link set "$2" mtu $mtu up
    ip -n "$prefix-$3" link set "$4" mtu $mtu up
}

# Starts an etcd server and $1 controllers that store in it, and waits until one of them leads.
start_controllers() {
    local n try all=()
    command -v etcd >/dev/null || die "several controllers need etcd: install etcd-server"
    (cd "$lab" && exec etcd --listen-client-urls unix://etcd:0 --advertise-client-urls unix://etcd:0 \
        --listen-peer-urls unix://peer:0 --auto-compaction-mode revision --auto-compaction-retention 1000 \
        >"$lab/etcd.log" 2>&1) &
    echo $! >"$lab/etcd.pid"
    for n in $(seq "$1"); do
        cat >"$lab/controller$n.toml" <<END
listen = "unix:$lab/controller$n.sock"
store = { etcd = ["unix:$lab/etcd:0"] }
[[switches]]
name = "lab"
agent = "unix:$lab/switch.sock"
END
        start "controller$n" "$castnet" controller --config "$lab/controller$n.toml"
        all+=("unix:$lab/controller$n.sock")
    done
    (IFS=,; echo "${all[*]}") >"$lab/controllers"
    for try in $(seq 100); do
        leader >/dev/null && return
        sleep 0.1
    done
    die "no controller leads after 10 s: see $lab/controller*.log"
}

# The name of the controller that leads.
leader() {
    local pid name
    for pid in "$lab"/controller*.pid; do
        name=$(basename "$pid" .pid)
        kill -0 "$(cat "$pid")" 2>/dev/null || continue
        if grep 'this controller' "$lab/$name.log" | tail -1 | grep -q 'this controller leads'; then
            echo "$name"
            return
        fi
    done
    return 1
}

kill-leader() {
    local name
    name=$(leader) || die "no controller leads: netns.sh up --controllers 3"
    kill -9 "$(cat "$lab/$name.pid")"
    echo "$name is killed."
}

up() {
    [ -e "$lab" ] && die "the lab is there already: netns.sh down"
    local host ports=() at=switch what="the switch's four ports" controllers=0
    while [ $# -gt 0 ]; do
        case "$1" in
        one-armed) hosts=(h1 h2 h3 h4 h5 h6 h7 h8) at=bridge what="the switch's only port" ;;
        --controllers)
            shift
            controllers=${1:-}
            [[ $controllers =~ ^[1-9]$ ]] || die "--controllers takes 1 to 9, not \"$controllers\""
            ;;
        *) die "up takes one-armed and --controllers N, not $1" ;;
        esac
        shift
    done
    mkdir -m 700 "$lab"
    trap 'down >/dev/null 2>&1' ERR
    echo "${hosts[@]}" >"$lab/hosts"
    ip netns add "$prefix-switch"
    if [ $at = bridge ]; then
        ip netns add "$prefix-bridge"
        ip -n "$prefix-bridge" link add bridge0 type bridge
        ip -n "$prefix-bridge" link set bridge0 mtu $mtu up
        wire switch eth0 bridge switch
        ip -n "$prefix-bridge" link set switch master bridge0
        ports=(--port wire=af_packet:eth0)
    fi
    for host in "${hosts[@]}"; do
        ip netns add "$prefix-$host"
        ip -n "$prefix-$host" link set lo up
        wire "$at" "$host" "$host" eth0
        # castnet host finds interface and address by itself.
        ip -n "$prefix-$host" addr add "10.0.0.${host#h}/24" dev eth0
        case $at in
        bridge) ip -n "$prefix-bridge" link set "$host" master bridge0 ;;
        *) ports+=(--port "$host=af_packet:$host") ;;
        esac
    done
    start switch ip netns exec "$prefix-switch" "$castnet" switch --name lab --listen "unix:$lab/switch.sock" \
        "${ports[@]}" ${FAULT:+--fault "$FAULT"}
    if [ "$controllers" -gt 0 ]; then
        start_controllers "$controllers"
    else
        start controller "$castnet" controller --listen "unix:$lab/controller.sock" --store "$lab/controller.redb" \
            --switch "lab=unix:$lab/switch.sock"
        echo "unix:$lab/controller.sock" >"$lab/controllers"
    fi
    trap - ERR
    cat <<END
The lab is up. In this shell:

  export CASTNET_AGENT=unix:$lab/switch.sock CASTNET_CONTROLLER=$(cat "$lab/controllers")

  $castnet port                            # $what
  $0 send FILE                             # one file from h1 to all others
  $0 allreduce --type f32 --bytes 4K..4M      # sums of all hosts, computed in the switch
  $castnet trace --group lab-file          # beside a transfer: what the switch does with its next frame, and why
  $castnet counters --watch
  ip netns exec $prefix-h1 bash            # a shell at a host
  $0 down                                  # removes everything
END
}

send() {
    local file=${1:-} op=${OP:-send} host pids=() failed=0 receivers=("${hosts[@]:1}")
    [ -r "$file" ] || die "send FILE: a file that can be read"
    [ -e "$lab/switch.ready" ] || die "the lab is not up: netns.sh up"
    export CASTNET_CONTROLLER=$(cat "$lab/controllers")
    "$castnet" group create lab-file --source h1 --pmtu 4096 \
        --members "$(IFS=,; echo "${receivers[*]}")"
    for host in "${receivers[@]}"; do
        inside "$host" "$castnet" host receive --interface eth0 --ip "10.0.0.${host#h}/24" --name "$host" \
            --group lab-file --op "$op" --out "$lab/$host.out" &
        pids+=($!)
    done
    inside h1 "$castnet" host send --interface eth0 --ip 10.0.0.1/24 --name h1 --group lab-file --op "$op" \
        --file "$file" || failed=1
    local pid
    for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
    "$castnet" group destroy lab-file
    for host in "${receivers[@]}"; do
        if cmp "$file" "$lab/$host.out"; then echo "$host has every byte"; else failed=1; fi
        rm -f "$lab/$host.out"
    done
    return $failed
}

# One rank per host, or RANKS ranks. Rank 0 prints the table. FLAGS are those of `castnet host allreduce`.
collective() {
    local primitive=$1 rank size=${RANKS:-${#hosts[@]}} number pids=() failed=0 pid
    shift
    [ -e "$lab/switch.ready" ] || die "the lab is not up: netns.sh up"
    for ((rank = size - 1; rank >= 0; rank--)); do
        number=$((rank % ${#hosts[@]} + 1))
        inside "h$number" "$castnet" host "$primitive" --controller "$(cat "$lab/controllers")" --interface eth0 \
            --ip "10.0.0.$number/24" --name "h$number" --job "lab-$primitive" --rank "$rank" --size "$size" \
            --pmtu 4096 "$@" &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
    return $failed
}

status() {
    export CASTNET_AGENT="unix:$lab/switch.sock" CASTNET_CONTROLLER=$(cat "$lab/controllers")
    "$castnet" port
    echo
    "$castnet" group list
}

down() {
    local name pid try
    for pid in "$lab"/controller*.pid "$lab/etcd.pid" "$lab/switch.pid"; do
        name=$(basename "$pid" .pid)
        [ -r "$lab/$name.pid" ] || continue
        pid=$(cat "$lab/$name.pid")
        kill "$pid" 2>/dev/null || continue
        for try in $(seq 100); do
            kill -0 "$pid" 2>/dev/null || break
            sleep 0.05
        done
        kill -9 "$pid" 2>/dev/null || true
    done
    for name in switch bridge "${hosts[@]}"; do
        ip netns del "$prefix-$name" 2>/dev/null || true
    done
    rm -rf "$lab"
    echo "The lab is gone."
}

[ "$(id -u)" = 0 ] || die "needs root: sudo $0 ${*:-up}"
command -v ip >/dev/null || die "needs the command ip: install iproute2"
case "${1:-}" in
up | send | status | kill-leader) castnet=$(find_castnet) && "$@" ;;
allreduce | reduce | broadcast | barrier | reducescatter | allgather | bench) castnet=$(find_castnet) && collective "$@" ;;
down) down ;;
*) sed -n '2,15s/^# \{0,1\}//p' "$0" && exit 2 ;;
esac
