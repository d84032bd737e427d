#!/usr/bin/env bash
# A lab on one machine: a switch, a controller and hosts, each in its own network namespace, connected by veth pairs.
#
#   netns.sh up            builds it with four hosts at four ports of the switch, starts switch and controller, and prints examples
#   netns.sh up one-armed  eight hosts at an ordinary switch (a bridge of the kernel), and the Castnet switch at one port of that
#   netns.sh up tree       three switches in two tiers: a spine, and two leaves with half of the hosts each
#   netns.sh up relays     no Castnet switch in the network: an ordinary one (a bridge of the kernel), and a switch at each host that passes
#                          data on to those of others: GROUP="--tree chain --repair switch" netns.sh send FILE
#   netns.sh up --memif    connects the hosts to the switch by shared memory (memif) instead of veth pairs
#   netns.sh up --hosts N  with N hosts, 2 to 32
#   netns.sh up --controllers N   with N controllers, one of which leads; their store is an etcd server
#   netns.sh kill-leader   kills the controller that leads (kill -9); another one goes on
#   netns.sh send FILE     sends a file from h1 to all others (OP=write for RDMA WRITE), and compares what arrived. GROUP="FLAGS" are flags
#                          of castnet group create
#   netns.sh allreduce [FLAGS]   an AllReduce of all hosts in the switch (or another collective: reduce, broadcast, ...);
#                          RANKS=N: number of ranks, also more than hosts
#   netns.sh bench [--mpi] [FLAGS]   all collectives over many sizes, in the switch and between hosts; with --mpi also by Open MPI
#                          over TCP between the same hosts, with and without segmentation offload. --svg FILE, --json FILE
#   netns.sh calibrate [FLAGS]   the times between h1 and h2 from which trees of relays are computed: castnet host calibrate
#   netns.sh replicate [FLAGS]   replicated block writes as in Table I of Cepheus: from h1 to one server, to three (h2, h3, h4) over
#                          connections of their own, and to three by multicast. SIZE=N: bytes of each server's memory
#   netns.sh status        shows the switch's ports and groups
#   netns.sh down          stops everything, and removes the namespaces and all files
#
# Needs root and `ip` (iproute2); for several controllers etcd (etcd-server); for Open MPI openmpi-bin, libopenmpi-dev and ethtool.
# CASTNET is the binary; FAULT injects faults on all ports (FAULT=loss=1%,seed=42); LAB=NAME is another lab beside the first;
# FLAGS are more flags of the switch (of the spine), as for groups without a controller: FLAGS="--mrp-pool 10.0.0.200/30 --mrp-port h1".
set -euo pipefail

lab=/run/castnet-${LAB:-lab}
prefix=castnet-${LAB:-lab}
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

# The interface of a host.
interface() { if [ -e "$lab/memif" ]; then echo "memif:$lab/$1.sock"; else echo eth0; fi; }

# A switch, and where its agent listens: the one that is there in each lab is called lab.
agent() { if [ "$1" = switch ]; then echo "lab=unix:$lab/switch.sock"; else echo "$1=unix:$lab/$1.sock"; fi; }

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
    local n try name all=()
    command -v etcd >/dev/null || die "several controllers need etcd: install etcd-server"
    (cd "$lab" && exec etcd --listen-client-urls unix://etcd:0 --advertise-client-urls unix://etcd:0 \
        --listen-peer-urls unix://peer:0 --auto-compaction-mode revision --auto-compaction-retention 1000 \
        >"$lab/etcd.log" 2>&1) &
    echo $! >"$lab/etcd.pid"
    for n in $(seq "$1"); do
        cat >"$lab/controller$n.toml" <<END
listen = "unix:$lab/controller$n.sock"
store = { etcd = ["unix:$lab/etcd:0"] }
END
        for name in "${switches[@]}"; do
            name=$(agent "$name")
            printf '[[switches]]\nname = "%s"\nagent = "%s"\n' "${name%%=*}" "${name#*=}" >>"$lab/controller$n.toml"
        done
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
    local host ports=() leaves=() agents=() switches=(switch) at=switch what="the switch's ports" controllers=0 count= flags=()
    while [ $# -gt 0 ]; do
        case "$1" in
        one-armed | tree | relays | --memif)
            [ $at = switch ] || die "up takes one of one-armed, tree, relays and --memif"
            at=${1#--}
            ;;
        --hosts)
            shift
            count=${1:-}
            [[ $count =~ ^[1-9][0-9]?$ ]] && [ "$count" -ge 2 ] && [ "$count" -le 32 ] || die "--hosts takes 2 to 32, not \"$count\""
            ;;
        --controllers)
            shift
            controllers=${1:-}
            [[ $controllers =~ ^[1-9]$ ]] || die "--controllers takes 1 to 9, not \"$controllers\""
            ;;
        *) die "up takes one-armed, tree, relays or --memif, --hosts N and --controllers N, not $1" ;;
        esac
        shift
    done
    if [ $at = one-armed ]; then at=bridge count=${count:-8}; fi
    count=${count:-4}
    hosts=()
    for ((host = 1; host <= count; host++)); do hosts+=("h$host"); done
    mkdir -m 700 "$lab"
    trap 'down >/dev/null 2>&1' ERR
    echo "${hosts[@]}" >"$lab/hosts"
    if [ $at = bridge ] || [ $at = relays ]; then
        ip netns add "$prefix-bridge"
        ip -n "$prefix-bridge" link add bridge0 type bridge
        ip -n "$prefix-bridge" link set bridge0 mtu $mtu up
    fi
    if [ $at = relays ]; then
        relays
        return
    fi
    ip netns add "$prefix-switch"
    if [ $at = bridge ]; then
        what="the switch's only port"
        wire switch eth0 bridge switch
        ip -n "$prefix-bridge" link set switch master bridge0
        ports=(--port wire=af_packet:eth0)
    fi
    if [ $at = tree ]; then
        what="the spine's ports"
        switches+=(leaf1 leaf2)
        for host in leaf1 leaf2; do
            ip netns add "$prefix-$host"
            wire switch "$host" "$host" spine
            ports+=(--port "$host=af_packet:$host")
        done
    fi
    for host in "${hosts[@]}"; do
        ip netns add "$prefix-$host"
        ip -n "$prefix-$host" link set lo up
        if [ $at = tree ]; then at=leaf$((1 + (${host#h} > (count + 1) / 2))); fi
        if [ $at = memif ]; then
            touch "$lab/memif"
            ports+=(--port "$host=$(interface "$host")")
            continue
        fi
        wire "$at" "$host" "$host" eth0
        # castnet host finds interface and address by itself.
        ip -n "$prefix-$host" addr add "10.0.0.${host#h}/24" dev eth0
        case $at in
        bridge) ip -n "$prefix-bridge" link set "$host" master bridge0 ;;
        leaf*)
            leaves[${at#leaf}]+=" --port $host=af_packet:$host"
            at=tree
            ;;
        *) ports+=(--port "$host=af_packet:$host") ;;
        esac
    done
    start switch ip netns exec "$prefix-switch" "$castnet" switch --name lab --listen "unix:$lab/switch.sock" \
        "${ports[@]}" ${FAULT:+--fault "$FAULT"} ${FLAGS:-}
    for host in "${switches[@]:1}"; do
        # Each flag is a word of its own.
        start "$host" ip netns exec "$prefix-$host" "$castnet" switch --name "$host" --listen "unix:$lab/$host.sock" \
            --port spine=af_packet:spine ${leaves[${host#leaf}]} ${FAULT:+--fault "$FAULT"}
    done
    control
    trap - ERR
    examples switch
}

# Starts the controllers of "${switches[@]}", with "${flags[@]}".
control() {
    if [ "$controllers" -gt 0 ]; then
        start_controllers "$controllers"
    else
        for host in "${switches[@]}"; do agents+=(--switch "$(agent "$host")"); done
        start controller "$castnet" controller --listen "unix:$lab/controller.sock" --store "$lab/controller.redb" "${agents[@]}" "${flags[@]}"
        echo "unix:$lab/controller.sock" >"$lab/controllers"
    fi
}

# A switch at each host, between the interface of its RNIC (eth0) and that of the network (nic).
relays() {
    local number
    what="the ports of the switch at h1"
    switches=() flags=(--topology "$lab/topology.toml")
    printf '[[switches]]\nname = "ethernet"\nkind = "plain"\nports = %d\n' "${#hosts[@]}" >"$lab/topology.toml"
    for host in "${hosts[@]}"; do
        number=${host#h}
        ip netns add "$prefix-$host"
        ip -n "$prefix-$host" link set lo up
        wire bridge "$host" "$host" nic
        ip -n "$prefix-bridge" link set "$host" master bridge0
        wire "$host" relay "$host" eth0
        ip -n "$prefix-$host" addr add "10.0.0.$number/24" dev eth0
        # Only the interface with the address answers for it.
        inside "$host" sh -c 'echo 1 >/proc/sys/net/ipv4/conf/all/arp_ignore'
        start "relay$number" ip netns exec "$prefix-$host" "$castnet" switch --name "relay$number" --listen "unix:$lab/relay$number.sock" \
            --port host=af_packet:relay --port net=af_packet:nic ${FAULT:+--fault "$FAULT"} ${FLAGS:-}
        cat >>"$lab/topology.toml" <<END
[[switches]]
name = "relay$number"
ports = ["$(inside "$host" cat /sys/class/net/relay/address)", "$(inside "$host" cat /sys/class/net/nic/address)"]
[[hosts]]
name = "$host"
ip = "10.0.0.$number"
[[links]]
a = "relay$number:0"
b = "$host"
mtu = $mtu
[[links]]
a = "relay$number:1"
b = "ethernet:$((number - 1))"
mtu = $mtu
END
        switches+=("relay$number")
    done
    control
    trap - ERR
    examples relay1
}

# Commands to begin with; $1 is the switch whose agent they ask.
examples() {
    cat <<END
The lab is up. In this shell:

  export CASTNET_AGENT=unix:$lab/$1.sock CASTNET_CONTROLLER=$(cat "$lab/controllers")

  $castnet port                               # $what
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
    [ -e "$lab/controllers" ] || die "the lab is not up: netns.sh up"
    export CASTNET_CONTROLLER=$(cat "$lab/controllers")
    "$castnet" group create lab-file --source h1 --pmtu 4096 ${GROUP:-} \
        --members "$(IFS=,; echo "${receivers[*]}")"
    for host in "${receivers[@]}"; do
        inside "$host" "$castnet" host receive --interface "$(interface "$host")" --ip "10.0.0.${host#h}/24" --name "$host" \
            --group lab-file --op "$op" --out "$lab/$host.out" &
        pids+=($!)
    done
    inside h1 "$castnet" host send --interface "$(interface h1)" --ip 10.0.0.1/24 --name h1 --group lab-file --op "$op" \
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
    [ -e "$lab/controllers" ] || die "the lab is not up: netns.sh up"
    [ ! -e "$lab/memif" ] || [ "$size" -le ${#hosts[@]} ] || die "over memif a host has one rank: netns.sh up --memif --hosts $size"
    for ((rank = size - 1; rank >= 0; rank--)); do
        number=$((rank % ${#hosts[@]} + 1))
        inside "h$number" "$castnet" host "$primitive" --controller "$(cat "$lab/controllers")" \
            --interface "$(interface "h$number")" --ip "10.0.0.$number/24" --name "h$number" --job "lab-$primitive" --rank "$rank" --size "$size" \
            --pmtu 4096 "$@" &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
    return $failed
}

# A `castnet host bench`, whose rank 0 measures Open MPI afterwards.
bench() {
    local arguments=() argument program script side label missing=() mpi=no
    for argument in "$@"; do
        if [ "$argument" = --mpi ]; then mpi=yes; else arguments+=("$argument"); fi
    done
    if [ "${RANKS:-0}" -gt ${#hosts[@]} ] && [[ " ${arguments[*]} " != *" --only"* ]]; then
        echo "netns.sh: in the network only: between hosts, each rank needs a host (netns.sh up --hosts $RANKS)" >&2
        arguments+=(--only network)
    fi
    if [ $mpi = yes ]; then
        for program in mpirun:openmpi-bin mpicc:libopenmpi-dev ethtool:ethtool; do
            command -v "${program%:*}" >/dev/null || missing+=("${program#*:}")
        done
        if [ ${#missing[@]} -gt 0 ]; then
            echo "netns.sh: without Open MPI, which needs the packages: ${missing[*]}" >&2
        else
            [ -e "$lab/controllers" ] || die "the lab is not up: netns.sh up"
            prepare_mpi
            script=$here/$(basename "${BASH_SOURCE[0]}")
            for side in on off; do
                label="Open MPI"
                [ $side = on ] || label+=", gso off"
                arguments+=(--beside "$label=LAB=${LAB:-lab} RANKS=${RANKS:-} '$script' mpi $side \"\$@\"")
            done
        fi
    fi
    collective bench "${arguments[@]}"
}

# Connects all hosts by a bridge for Open MPI, and makes its program and the command that it calls instead of ssh.
prepare_mpi() {
    local host
    [ -e "$lab/mpi" ] && return
    ip netns add "$prefix-mpi"
    ip -n "$prefix-mpi" link add bridge0 type bridge
    ip -n "$prefix-mpi" link set bridge0 mtu $mtu up
    for host in "${hosts[@]}"; do
        wire mpi "$host" "$host" eth1
        ip -n "$prefix-mpi" link set "$host" master bridge0
        ip -n "$prefix-$host" addr add "10.1.0.${host#h}/24" dev eth1
    done
    cat >"$lab/mpi-agent" <<END
#!/bin/sh
number=\${1##*.}
shift
exec ip netns exec $prefix-h\$number unshare --uts sh -c "hostname node-\$number; \$*"
END
    chmod +x "$lab/mpi-agent"
    mpicc -O2 -o "$lab/mpi" "$here/collectives.c" || die "mpicc cannot compile $here/collectives.c"
}

# Open MPI's times of the calls "${@:2}" (deploy/lab/collectives.c), with segmentation offload $1.
mpi() {
    local host size=${RANKS:-${#hosts[@]}} n slots=() where=()
    for host in "${hosts[@]}"; do
        inside mpi ethtool -K "$host" tso "$1" gso "$1" gro "$1" 2>/dev/null || true
        inside "$host" ethtool -K eth1 tso "$1" gso "$1" gro "$1" 2>/dev/null || true
    done
    for ((n = 0; n < size; n++)); do slots[n % ${#hosts[@]}]=$((${slots[n % ${#hosts[@]}]:-0} + 1)); done
    for n in "${!slots[@]}"; do where+=("10.1.0.$((n + 1)):${slots[n]}"); done
    # The hosts differ by name for Open MPI, and do not share memory, so that their ranks use TCP.
    inside h1 unshare --uts sh -c 'hostname node-1; exec mpirun "$@"' mpirun --allow-run-as-root -np "$size" \
        --host "$(IFS=,; echo "${where[*]}")" --map-by node --bind-to none \
        --mca btl tcp,self --mca pml ob1 --mca btl_tcp_if_include eth1 --mca oob_tcp_if_include eth1 \
        --mca mpi_yield_when_idle 1 --mca plm_rsh_agent "$lab/mpi-agent" "$lab/mpi" "${@:2}"
}

# Servers at the first three hosts beside h1, and a `castnet host replicate compare` at h1.
replicate() {
    local host at addresses=() members=("${hosts[@]:1:3}") failed=0 pid
    [ -e "$lab/controllers" ] || die "the lab is not up: netns.sh up"
    export CASTNET_CONTROLLER=$(cat "$lab/controllers")
    trap stop_servers EXIT
    for host in "${members[@]}"; do
        # Without interface the kernel has no address there.
        if [ -e "$lab/memif" ]; then at=unix:$lab/$host.blocks; else at=10.0.0.${host#h}; fi
        addresses+=("$at")
        rm -f "$lab/serve-$host.ready"
        start "serve-$host" ip netns exec "$prefix-$host" "$castnet" host replicate serve --interface "$(interface "$host")" \
            --ip "10.0.0.${host#h}/24" --name "$host" --size "${SIZE:-256M}" --listen "$at"
    done
    "$castnet" group create lab-blocks --source h1 --members "$(IFS=,; echo "${members[*]}")" --pmtu 4096 >/dev/null
    inside h1 "$castnet" host replicate compare --interface "$(interface h1)" --ip 10.0.0.1/24 --name h1 \
        --servers "$(IFS=,; echo "${addresses[*]}")" --group lab-blocks "$@" || failed=1
    "$castnet" group destroy lab-blocks >/dev/null
    return $failed
}

stop_servers() {
    local file
    for file in "$lab"/serve-*.pid; do
        if [ -e "$file" ]; then kill "$(cat "$file")" 2>/dev/null || true; fi
        rm -f "$file"
    done
}

status() {
    export CASTNET_AGENT="unix:$lab/switch.sock" CASTNET_CONTROLLER=$(cat "$lab/controllers")
    "$castnet" port
    echo
    "$castnet" group list
}

down() {
    local name pid try
    stop_servers
    for pid in "$lab"/controller*.pid "$lab/etcd.pid" "$lab/switch.pid" "$lab"/leaf*.pid "$lab"/relay*.pid; do
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
    for name in switch leaf1 leaf2 bridge mpi "${hosts[@]}"; do
        ip netns del "$prefix-$name" 2>/dev/null || true
    done
    rm -rf "$lab"
    echo "The lab is gone."
}

[ "$(id -u)" = 0 ] || die "needs root: sudo $0 ${*:-up}"
command -v ip >/dev/null || die "needs the command ip: install iproute2"
case "${1:-}" in
up | send | bench | replicate | status | kill-leader) castnet=$(find_castnet) && "$@" ;;
allreduce | reduce | broadcast | barrier | reducescatter | allgather) castnet=$(find_castnet) && collective "$@" ;;
calibrate) castnet=$(find_castnet) && RANKS=2 collective "$@" ;;
mpi | down) "$@" ;;
*) sed -n '2,27s/^# \{0,1\}//p' "$0" && exit 2 ;;
esac
