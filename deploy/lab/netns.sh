#!/usr/bin/env bash
# A lab on one machine: a switch, a controller and hosts, each in its own network namespace, connected by veth pairs.
#
#   netns.sh up            builds it with four hosts at four ports of the switch, starts switch and controller, and prints examples
#   netns.sh up one-armed  eight hosts at an ordinary switch (a bridge of the kernel), and the Castnet switch at one port of that
#   netns.sh up tree       three switches in two tiers: a spine, and two leaves with half of the hosts each
#   netns.sh up relays     no Castnet switch in the network: an ordinary one (a bridge of the kernel), and a switch at each host that passes
#                          data on to those of others: GROUP="--distribution edge:chain --repair switch" netns.sh send FILE
#   netns.sh up shufflecast   eight ToRs of a 2,2-Shufflecast with a host each, and a router between them as the ordinary network. What is
#                          sent to a splitter is emulated by a link for each copy
#   netns.sh up pods       two pods, each a router with two ToRs and four hosts, and a programmable router above both: a core without state for PEEL.
#                          GROUP="--distribution static" netns.sh send FILE
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
#   netns.sh calibrate [FLAGS]   the times between h1 and h2 from which trees of relays are computed: castnet-lab calibrate
#   netns.sh replicate [FLAGS]   replicated block writes as in Table I of Cepheus: from h1 to one server, to three (h2, h3, h4) over
#                          connections of their own, and to three by multicast. SIZE=N: bytes of each server's memory
#   netns.sh consensus [FLAGS]   figure 8(d) of Shufflecast: 1-byte values from h1 to 3, 5 and 7 acceptors, one after the other, over connections
#                          of their own and by multicast over the splitters. FLAGS are those of castnet-lab consensus
#   netns.sh model [MB]    figure 8(a) of Shufflecast: so many MB (64) from h1 to seven readers: to each of them, along a chain of hosts,
#                          and by multicast over the splitters; 735 is the paper's model
#   netns.sh multisend     figure 4 of NIC-based multicast over Myrinet, after up relays: messages from h1 to 3, 4 and 8 hosts, by one request
#                          whose copies its relay makes, and by a request for each host. COUNT=N messages (500) of each size
#   netns.sh multicast     figure 5 likewise: to all other hosts, over the postal tree of the relays, and in a tree or chain of the hosts
#   netns.sh skew [FLAGS]  figures 6 to 8 likewise: broadcasts from h1 to processes that are late by average skews, over the postal tree of the relays
#                          and in a tree of the hosts. RANKS=N: of so many hosts; FLAGS are those of castnet-lab skew
#   netns.sh status        shows the switch's ports and groups
#   netns.sh down          stops everything, and removes the namespaces and all files
#
# Needs root and `ip` (iproute2); for several controllers etcd (etcd-server); for Open MPI openmpi-bin, libopenmpi-dev and ethtool.
# CASTNET is the binary, and castnet-lab, which bench, calibrate, consensus and skew need, stands beside it; FAULT injects faults on all ports (FAULT=loss=1%,seed=42); LAB=NAME is another lab beside the first;
# FLAGS are more flags of the switch (of the spine), as for groups without a controller: FLAGS="--mrp-pool 10.0.0.200/30 --mrp-port h1".
# LINK=RATE netns.sh up limits each veth pair to a rate (LINK=100mbit), by tc (iproute2).
set -euo pipefail

lab=/run/castnet-${LAB:-lab}
# All processes of the lab have it.
export CASTNET_LAB=$lab
prefix=castnet-${LAB:-lab}
mtu=4200
# The hosts of the running lab.
read -ra hosts 2>/dev/null <"$lab/hosts" || hosts=(h1 h2 h3 h4)
# What a verb has started, which does not outlive it: processes, groups, and whether there are servers.
pids=() groups=() serves=
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

die() { printf 'netns.sh: %s\n' "$*" >&2; exit 1; }

# Whether process $1 runs and is one of this lab. One that has ended may have left its number to another, which must not be killed.
is_ours() { grep -qzxF "CASTNET_LAB=$lab" "/proc/$1/environ" 2>/dev/null; }

# At the end of a verb, however it ends.
tidy() {
    [ -z "$serves" ] || stop_servers
    [ ${#pids[@]} = 0 ] || kill "${pids[@]}" 2>/dev/null || true
    wait
    [ ${#groups[@]} = 0 ] || destroy_groups || true
}

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

# The program of experiments, which stands beside the binary.
find_lab() { command -v "$castnet-lab" || die "no $castnet-lab: cargo build --release -p castnet-lab"; }

# The interface of a host.
interface() { if [ -e "$lab/memif" ]; then echo "memif:$lab/$1.sock"; else echo "af_packet:eth0$(cat "$lab/bypass")"; fi; }

# The flag of a switch for port $1 at interface $2.
port() { echo "--port $1=af_packet:$2$(cat "$lab/bypass")"; }

# A switch, and where its agent listens: the one that is there in each lab is called lab.
agent() { if [ "$1" = switch ]; then echo "lab=unix:$lab/switch.sock"; else echo "$1=unix:$lab/$1.sock"; fi; }

inside() { ip netns exec "$prefix-$1" "${@:2}"; }

# Likewise in the background: $! is the program itself.
become_inside() { exec ip netns exec "$prefix-$1" "${@:2}"; }

# Waits until the command "${@:2}" succeeds. After two minutes, dies with the message $1.
await() {
    local try
    for try in {1..2400}; do
        "${@:2}" && return
        sleep 0.05
    done
    # They go with the lab.
    tail -n 20 "$lab"/*.log >&2 || true
    die "$1"
}

# What runs on has no descriptors of the caller, such as a lock.
close_inherited() {
    local fd
    for fd in /proc/"$BASHPID"/fd/*; do
        fd=${fd##*/}
        [ "$fd" -le 2 ] || eval "exec $fd>&-"
    done
}

# Starts "$@" in the background with its output in NAME.log, and waits for NAME.ready.
start() {
    local name=$1
    shift
    (close_inherited && exec "$@" --ready-file "$lab/$name.ready" >"$lab/$name.log" 2>&1) &
    local pid=$!
    echo "$pid" >"$lab/$name.pid"
    await "$name is not ready: see $lab/$name.log" is_ready "$name" "$pid"
}

is_ready() {
    [ -e "$lab/$1.ready" ] && return
    kill -0 "$2" 2>/dev/null || { cat "$lab/$1.log" >&2; die "$1 ended before it was ready"; }
    return 1
}

# Starts switch $1 in namespace $2 with the flags "${@:3}".
start_switch() {
    start "$1" ip netns exec "$prefix-$2" "$castnet" switch --name "$1" --listen "unix:$lab/$1.sock" "${@:3}" ${FAULT:+--fault "$FAULT"}
}

# Connects interface $2 of namespace $1 with interface $4 of namespace $3.
wire() {
    ip link add "$2" netns "$prefix-$1" type veth peer name "$4" netns "$prefix-$3"
    local end
    for end in "$1 $2" "$3 $4"; do
        ip -n "$prefix-${end% *}" link set "${end#* }" mtu $mtu up
        [ -z "${LINK:-}" ] || tc -n "$prefix-${end% *}" qdisc add dev "${end#* }" root tbf rate "$LINK" burst 64kb limit 4mb
    done
}

add_namespace() {
    ip netns add "$prefix-$1"
    ip -n "$prefix-$1" link set lo up
}

mac() { inside "$1" cat "/sys/class/net/$2/address"; }

# Adds host $1 (its namespace is there if it is $2), whose eth0 is connected with interface $3 of namespace $2.
add_host() {
    [ "$1" = "$2" ] || add_namespace "$1"
    wire "$2" "$3" "$1" eth0
    # castnet host finds interface and address by itself.
    ip -n "$prefix-$1" addr add "10.0.0.${1#h}/24" dev eth0
}

# Writes switch $1 into the topology file: $2 is a further line, and its ports are the interfaces "${@:4}" of namespace $3.
describe_switch() {
    local interface macs=()
    for interface in "${@:4}"; do macs+=("\"$(mac "$3" "$interface")\""); done
    printf '[[switches]]\nname = "%s"\n%s\nports = [%s]\n' "$1" "$2" "$(IFS=,; echo "${macs[*]}")" >>"$lab/topology.toml"
}

describe_link() { printf '[[links]]\na = "%s"\nb = "%s"\nmtu = %d\n' "$1" "$2" $mtu >>"$lab/topology.toml"; }

# Writes host $1 at port $2 into it.
describe_host() {
    printf '[[hosts]]\nname = "%s"\nip = "10.0.0.%d"\n' "$1" "${1#h}" >>"$lab/topology.toml"
    describe_link "$2" "$1"
}

# Starts an etcd server and $1 controllers that store in it, and waits until one of them leads.
start_controllers() {
    local n name all=()
    command -v etcd >/dev/null || die "several controllers need etcd: install etcd-server"
    (close_inherited && cd "$lab" && exec etcd --listen-client-urls unix://etcd:0 --advertise-client-urls unix://etcd:0 \
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
    await "no controller leads: see $lab/controller*.log" leader >/dev/null
}

# The name of the controller that leads.
leader() {
    local pid name
    for pid in "$lab"/controller*.pid; do
        name=$(basename "$pid" .pid)
        is_ours "$(cat "$pid")" || continue
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
        one-armed | tree | relays | shufflecast | pods | --memif)
            [ $at = switch ] || die "up takes one of one-armed, tree, relays, shufflecast, pods and --memif"
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
        *) die "up takes one-armed, tree, relays, shufflecast, pods or --memif, --hosts N and --controllers N, not $1" ;;
        esac
        shift
    done
    if [ $at = shufflecast ] || [ $at = pods ]; then [ "${count:-8}" = 8 ] || die "$at has 8 hosts, not $count"; fi
    if [ $at = one-armed ]; then at=bridge; fi
    case $at in bridge | shufflecast | pods) count=${count:-8} ;; esac
    count=${count:-4}
    hosts=()
    for ((host = 1; host <= count; host++)); do hosts+=("h$host"); done
    mkdir -m 700 "$lab"
    trap 'down >/dev/null 2>&1' EXIT
    echo "${hosts[@]}" >"$lab/hosts"
    # Only what passes the queueing discipline of an interface keeps to the rate of the link.
    echo "${LINK:+,bypass=no}" >"$lab/bypass"
    if [ $at = bridge ] || [ $at = relays ]; then
        ip netns add "$prefix-bridge"
        ip -n "$prefix-bridge" link add bridge0 type bridge
        ip -n "$prefix-bridge" link set bridge0 mtu $mtu up
    fi
    case $at in relays | shufflecast | pods)
        $at
        return
        ;;
    esac
    ip netns add "$prefix-switch"
    if [ $at = bridge ]; then
        what="the switch's only port"
        wire switch eth0 bridge switch
        ip -n "$prefix-bridge" link set switch master bridge0
        ports=($(port wire eth0))
    fi
    if [ $at = tree ]; then
        what="the spine's ports"
        switches+=(leaf1 leaf2)
        for host in leaf1 leaf2; do
            ip netns add "$prefix-$host"
            wire switch "$host" "$host" spine
            ports+=($(port "$host" "$host"))
        done
    fi
    for host in "${hosts[@]}"; do
        if [ $at = tree ]; then at=leaf$((1 + (${host#h} > (count + 1) / 2))); fi
        if [ $at = memif ]; then
            touch "$lab/memif"
            add_namespace "$host"
            ports+=(--port "$host=$(interface "$host")")
            continue
        fi
        add_host "$host" "$at" "$host"
        case $at in
        bridge) ip -n "$prefix-bridge" link set "$host" master bridge0 ;;
        leaf*)
            leaves[${at#leaf}]+=" $(port "$host" "$host")"
            at=tree
            ;;
        *) ports+=($(port "$host" "$host")) ;;
        esac
    done
    start switch ip netns exec "$prefix-switch" "$castnet" switch --name lab --listen "unix:$lab/switch.sock" \
        "${ports[@]}" ${FAULT:+--fault "$FAULT"} ${FLAGS:-}
    for host in "${switches[@]:1}"; do
        # Each flag is a word of its own.
        start_switch "$host" "$host" $(port spine spine) ${leaves[${host#leaf}]}
    done
    control
    trap - EXIT
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
        add_namespace "$host"
        wire bridge "$host" "$host" nic
        ip -n "$prefix-bridge" link set "$host" master bridge0
        add_host "$host" "$host" relay
        # Only the interface with the address answers for it.
        inside "$host" sh -c 'echo 1 >/proc/sys/net/ipv4/conf/all/arp_ignore'
        start_switch "relay$number" "$host" $(port host relay) $(port net nic) ${FLAGS:-}
        describe_switch "relay$number" "" "$host" relay nic
        describe_host "$host" "relay$number:0"
        describe_link "relay$number:1" "ethernet:$((number - 1))"
        switches+=("relay$number")
    done
    control
    trap - EXIT
    examples relay1
}

# A route of switch $1 to prefix $2 by its port $3, to interface $5 of namespace $4.
route() {
    printf '[[routes]]\nprefix = "%s"\nnext_hops = [{ port = %d, mac = "%s" }]\n' "$2" "$3" "$(mac "$4" "$5")" >>"$lab/core/$1.toml"
}

# The ToRs of a 2,2-Shufflecast, a host at each, and a router between them as the ordinary network. Each output of a splitter is emulated by a
# link of its own, into which the ToR sends a copy.
shufflecast() {
    local n to port links ports=() arguments
    # The ToRs behind the splitter of each ToR, and those whose splitters lead to it (3.1.1).
    local behind=([1]="5 6" [2]="7 8" [3]="5 6" [4]="7 8" [5]="1 2" [6]="3 4" [7]="1 2" [8]="3 4")
    local before=([1]="5 7" [2]="5 7" [3]="6 8" [4]="6 8" [5]="1 3" [6]="1 3" [7]="2 4" [8]="2 4")
    what="the ports of the ToR of h1"
    switches=() flags=(--topology "$lab/core/topology.toml")
    add_namespace core
    for n in {1..8}; do
        add_namespace "tor$n"
        wire "tor$n" core core "tor$n"
        add_host "h$n" "tor$n" "h$n"
    done
    for n in {1..8}; do
        for to in ${behind[n]}; do wire "tor$n" "to$to" "tor$to" "from$n"; done
    done
    describe_switch core 'kind = "router"' core tor{1..8}
    for n in {1..8}; do
        ports[n]="h$n core $(printf 'to%s ' ${behind[n]})$(printf 'from%s ' ${before[n]})"
        describe_switch "tor$n" "mcst_prefix = \"10.21$n.0.192/26\"" "tor$n" ${ports[n]}
        describe_host "h$n" "tor$n:0"
        describe_link "tor$n:1" "core:$((n - 1))"
        links=()
        for to in ${behind[n]}; do
            # At the other end, the port from the first or from the second ToR before that.
            if [ "${before[to]% *}" = "$n" ]; then port=4; else port=5; fi
            links+=("{ port = $((2 + ${#links[@]})), to = \"tor$to:$port\" }")
        done
        printf '[[splitters]]\nfrom = "tor%d"\nlinks = [%s]\n' "$n" "$(IFS=,; echo "${links[*]}")" >>"$lab/topology.toml"
    done
    "$castnet" rules core "$lab/topology.toml" --out "$lab/core" >/dev/null
    for n in {1..8}; do
        route core "10.21$n.0.192/26" $((n - 1)) "tor$n" core
        route "tor$n" 0.0.0.0/0 1 core "tor$n"
    done
    start_switch core core --rules "$lab/core/core.toml" $(for n in tor{1..8}; do port "$n" "$n"; done)
    for n in {1..8}; do
        arguments=()
        for port in ${ports[n]}; do
            arguments+=($(port "$port" "$port"))
            case $port in to* | from*) arguments+=(--no-flood "$port") ;; esac
            case $port in from*) arguments+=(--core-port "$port") ;; esac
        done
        start_switch "tor$n" "tor$n" --rules "$lab/core/tor$n.toml" "${arguments[@]}"
        switches+=("tor$n")
    done
    control
    await_links 8
    trap - EXIT
    examples tor1
}

# Waits until the links of all ToRs to routers are known: a group that is installed before may lack hosts.
await_links() {
    await "not all links are up: castnet topology" links_are_up "$1"
}

links_are_up() {
    [ "$("$castnet" topology --controller "$(cat "$lab/controllers")" | grep -cE '^tor.* (core|pod[12]) .* up$')" = "$1" ]
}

# Two pods, each a router with two ToRs of two hosts, and a programmable router above both.
pods() {
    local n pod tor own block
    what="the ports of the ToR of h1 and h2"
    switches=(core) flags=(--topology "$lab/core/topology.toml")
    echo 'group_addresses = "239.200.0.0/16"' >"$lab/topology.toml"
    add_namespace core
    for pod in 1 2; do
        add_namespace "pod$pod"
        wire "pod$pod" core core "pod$pod"
        for n in $((2 * pod - 1)) $((2 * pod)); do
            add_namespace "tor$n"
            wire "tor$n" "pod$pod" "pod$pod" "tor$n"
            add_host "h$((2 * n - 1))" "tor$n" "h$((2 * n - 1))"
            add_host "h$((2 * n))" "tor$n" "h$((2 * n))"
        done
    done
    describe_switch core $'kind = "router"\nprogrammable = true' core pod1 pod2
    for pod in 1 2; do
        own=("tor$((2 * pod - 1))" "tor$((2 * pod))")
        describe_switch "pod$pod" 'kind = "router"' "pod$pod" "${own[@]}" core
        describe_link "pod$pod:2" "core:$((pod - 1))"
        for n in 0 1; do
            tor=${own[n]#tor}
            describe_switch "tor$tor" "mcst_prefix = \"10.21$tor.0.192/26\"" "tor$tor" "h$((2 * tor - 1))" "h$((2 * tor))" "pod$pod"
            describe_host "h$((2 * tor - 1))" "tor$tor:0"
            describe_host "h$((2 * tor))" "tor$tor:1"
            describe_link "tor$tor:2" "pod$pod:$n"
        done
    done
    "$castnet" rules core "$lab/topology.toml" --out "$lab/core" >/dev/null
    for tor in {1..4}; do
        pod=$(((tor + 1) / 2)) block="10.21$tor.0.192/26"
        route "tor$tor" 0.0.0.0/0 2 "pod$pod" "tor$tor"
        route "pod$pod" "$block" $(((tor + 1) % 2)) "tor$tor" "pod$pod"
        route "pod$((3 - pod))" "$block" 2 core "pod$((3 - pod))"
        route core "$block" $((pod - 1)) "pod$pod" core
    done
    start_switch core core --rules "$lab/core/core.toml" $(port pod1 pod1) $(port pod2 pod2)
    for pod in 1 2; do
        start_switch "pod$pod" "pod$pod" --rules "$lab/core/pod$pod.toml" $(for n in "tor$((2 * pod - 1))" "tor$((2 * pod))" core; do port "$n" "$n"; done)
    done
    for tor in {1..4}; do
        start_switch "tor$tor" "tor$tor" --rules "$lab/core/tor$tor.toml" $(for n in "h$((2 * tor - 1))" "h$((2 * tor))" "pod$(((tor + 1) / 2))"; do port "$n" "$n"; done)
        switches+=("tor$tor")
    done
    control
    await_links 4
    trap - EXIT
    examples tor1
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
    local file=${1:-} op=${OP:-send} host pid failed=0 receivers=("${hosts[@]:1}")
    [ -f "$file" ] && [ -r "$file" ] || die "send FILE: a file that can be read"
    [ -e "$lab/controllers" ] || die "the lab is not up: netns.sh up"
    export CASTNET_CONTROLLER=$(cat "$lab/controllers")
    "$castnet" group create lab-file --source h1 --pmtu 4096 ${GROUP:-} \
        --members "$(IFS=,; echo "${receivers[*]}")"
    groups=(lab-file)
    for host in "${receivers[@]}"; do
        become_inside "$host" "$castnet" host receive --interface "$(interface "$host")" --ip "10.0.0.${host#h}/24" --name "$host" \
            --group lab-file --op "$op" --out "$lab/$host.out" &
        pids+=($!)
    done
    become_inside h1 "$castnet" host send --interface "$(interface h1)" --ip 10.0.0.1/24 --name h1 --group lab-file --op "$op" \
        --file "$file" &
    pids+=($!)
    # Receivers join again and wait for the source, which does not come again.
    wait "${pids[-1]}" || { failed=1; kill "${pids[@]::${#receivers[@]}}" 2>/dev/null || true; }
    for pid in "${pids[@]::${#receivers[@]}}"; do wait "$pid" || failed=1; done
    pids=()
    destroy_groups
    for host in "${receivers[@]}"; do
        if cmp "$file" "$lab/$host.out"; then echo "$host has every byte"; else failed=1; fi
        rm -f "$lab/$host.out"
    done
    return $failed
}

# One rank per host, or RANKS ranks. Rank 0 prints the table. FLAGS are those of `castnet host allreduce`.
collective() {
    local primitive=$1 rank size=${RANKS:-${#hosts[@]}} number failed=0 pid program=("$castnet" host)
    shift
    case "$primitive" in
    bench | calibrate | skew) program=("$(find_lab)") || return ;;
    esac
    [ -e "$lab/controllers" ] || die "the lab is not up: netns.sh up"
    [ ! -e "$lab/memif" ] || [ "$size" -le ${#hosts[@]} ] || die "over memif a host has one rank: netns.sh up --memif --hosts $size"
    for ((rank = size - 1; rank >= 0; rank--)); do
        number=$((rank % ${#hosts[@]} + 1))
        become_inside "h$number" "${program[@]}" "$primitive" --controller "$(cat "$lab/controllers")" \
            --interface "$(interface "h$number")" --ip "10.0.0.$number/24" --name "h$number" --job "lab-$primitive" --rank "$rank" --size "$size" \
            --pmtu 4096 "$@" &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
    pids=()
    return $failed
}

# A `castnet-lab bench`, whose rank 0 measures Open MPI afterwards.
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
    mpicc -O2 -o "$lab/mpi.part" "$here/collectives.c" || die "mpicc cannot compile $here/collectives.c"
    # What an earlier attempt has left, with the other ends of its wires.
    ! ip netns list | grep -q "^$prefix-mpi\b" || ip netns del "$prefix-mpi"
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
    mv "$lab/mpi.part" "$lab/mpi"
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

# Starts servers of $1 bytes at the hosts "${@:2}", whose addresses are then in $servers.
serve() {
    local host at addresses=()
    [ -e "$lab/controllers" ] || die "the lab is not up: netns.sh up"
    export CASTNET_CONTROLLER=$(cat "$lab/controllers")
    serves=yes
    for host in "${@:2}"; do
        # Without interface the kernel has no address there.
        if [ -e "$lab/memif" ]; then at=unix:$lab/$host.blocks; else at=10.0.0.${host#h}; fi
        addresses+=("$at")
        rm -f "$lab/serve-$host.ready"
        start "serve-$host" ip netns exec "$prefix-$host" "$castnet" host replicate serve --interface "$(interface "$host")" \
            --ip "10.0.0.${host#h}/24" --name "$host" --size "$1" --listen "$at"
    done
    servers=$(IFS=,; echo "${addresses[*]}")
}

# A `castnet host replicate $1`, or a `castnet-lab consensus`, at h1 for these servers.
at_servers() {
    local program=("$castnet" host replicate)
    if [ "$1" = consensus ]; then program=("$(find_lab)") || return; fi
    inside h1 "${program[@]}" "$1" --interface "$(interface h1)" --ip 10.0.0.1/24 --name h1 --servers "$servers" "${@:2}"
}

# Creates the group $1 from h1 to the hosts "${@:2}".
create_group() {
    "$castnet" group create "$1" --source h1 --members "$(IFS=,; echo "${*:2}")" --pmtu 4096 ${GROUP:-} >/dev/null
    groups+=("$1")
}

# Destroys all groups that this verb has created.
destroy_groups() {
    local group
    for group in "${groups[@]}"; do "$castnet" group destroy "$group" >/dev/null || [ $? = 4 ]; done
    groups=()
}

replicate() {
    local failed=0 servers
    serve "${SIZE:-256M}" "${hosts[@]:1:3}"
    create_group lab-blocks "${hosts[@]:1:3}"
    at_servers compare --group lab-blocks "$@" || failed=1
    destroy_groups
    return $failed
}

# What bounds the figures of a lab beside those of a testbed.
remark_bounds() {
    [ ! -e "$lab/core" ] || echo "Splitters are emulated: a ToR sends a copy for each output." >&2
    echo "All hosts and switches share $(nproc) processors, which bound each way." >&2
}

consensus() {
    local n failed=0 servers GROUP=${GROUP---distribution static}
    serve 16M "${hosts[@]:1}"
    for ((n = 1; n < ${#hosts[@]}; n++)); do
        create_group "lab-values-$n" "${hosts[@]:1:n}"
    done
    at_servers consensus --group lab-values "$@" || failed=1
    destroy_groups
    remark_bounds
    return $failed
}

# Of each block that is written, the servers' SHA-256 is compared with that of what was sent; of the chain, each element.
model() {
    local mb=${1:-64} way seed=0 failed=0 slow servers GROUP=${GROUP---distribution static}
    [[ $mb =~ ^[1-9][0-9]{0,3}$ ]] || die "model takes a number of MB, 1 to 9999, not \"$mb\""
    [ $# -le 1 ] || [ "${*:2}" = "--output json" ] || die "model takes a number of MB and --output json, not ${*:2}"
    # What waits in front of a slow link for more than the usual time-out is not lost.
    slow=$(cat "$lab/bypass")
    serve "${mb}MB" "${hosts[@]:1}"
    create_group lab-model "${hosts[@]:1}"
    # The first time, the readers' memory is touched, which takes a time of its own. Other data follows.
    for way in multicast unicasts multicast; do
        seed=$((seed + 1))
        at_servers write --by $way --group lab-model --size 1MB --pattern sequential --count "$mb" --depth 4 --seed $seed \
            ${slow:+--qp-timeout 17} --output json >"$lab/model$seed.json" || failed=1
    done
    destroy_groups
    stop_servers
    [ $failed = 0 ] || return 1
    collective broadcast --fallback only --type f32 --bytes "${mb}MB" --iters 1 --warmup 1 --timeout 10m \
        --output json >"$lab/chain.json" 2>"$lab/chain.log" || { cat "$lab/chain.log" >&2 && return 1; }
    remark_bounds
    if [ $# -gt 1 ]; then
        cat "$lab"/model[23].json "$lab/chain.json"
        return
    fi
    awk -v mb="$mb" -v readers=$((${#hosts[@]} - 1)) -F '[:,]+ *' '
        function row(what, seconds, paper) {
            printf "%-24s  %7.2f  %6.1f  %14.2f  %s\n", what, seconds, mb / seconds, seconds / time["\"multicast\""], paper
        }
        /"by"/ { by = $2 }
        /"seconds"/ { time[by] = $2 }
        /"time_max_us"/ { for (i = 1; i < NF; i++) if ($i == "\"time_max_us\"") chain = $(i + 1) / 1e6 }
        END {
            printf "%-24s  %7s  %6s  %14s  %s\n", mb " MB TO " readers " READERS", "SECONDS", "MB/S", "OF MULTICAST", "PAPER"
            row("repeated unicast", time["\"unicasts\""], "6.24 (HTTP)")
            row("chain of hosts", chain, "3.25 (Cornet)")
            row("multicast", time["\"multicast\""], "1")
        }' "$lab"/model[23].json "$lab/chain.json"
}

# The median in microseconds of messages from h1 to the first $2 servers of a group, each when all have the one before.
median_to() {
    local all=$servers
    local servers=$(cut -d, -f"1-$2" <<<"$all")
    at_servers write --by "$1" --group "$3" --size "$4" --count "${COUNT:-500}" --depth 1 --output json |
        awk -F '[:,]+ *' '/"p50"/ { print $2 }'
}

# A row: hosts, bytes, the two times in microseconds, and the factor of the paper, if it gives one.
factor() {
    awk -v n="$1" -v bytes="$2" -v relay="$3" -v host="$4" -v paper="${5:-}" 'BEGIN {
        if (relay <= 0 || host <= 0) exit 1
        printf "%-5s  %7s  %8.1f  %8.1f  %6.2f  %s\n", n, bytes, relay, host, host / relay, paper
    }'
}

multisend() {
    local n size paper failed=0 servers
    [ $# = 0 ] || die "multisend takes no arguments; COUNT=N messages of each size"
    [ ${#hosts[@]} -ge 4 ] || die "multisend needs four hosts: netns.sh up relays"
    serve 1M "${hosts[@]:1}"
    printf '%-5s  %7s  %8s  %8s  %6s  %s\n' HOSTS BYTES "RELAY US" "HOST US" FACTOR PAPER
    for n in 3 4 8; do
        [ "$n" -lt ${#hosts[@]} ] || continue
        for size in 1 128 512 1024 4096 16384; do
            GROUP="--distribution edge:star" create_group lab-multisend "${hosts[@]:1:n}"
            paper=
            if [ "$size" -le 128 ]; then paper="at most 2.05"; elif [ "$size" = 16384 ]; then paper="a little below 1"; fi
            factor "$n" "$size" "$(median_to multicast "$n" lab-multisend "$size")" \
                "$(median_to unicasts "$n" lab-multisend "$size")" "$paper" || failed=1
            destroy_groups
        done
    done
    [ $failed = 0 ] || tail -qn 3 "$lab"/serve-*.log >&2
    remark_bounds
    return $failed
}

multicast() {
    local n=$((${#hosts[@]} - 1)) size paper failed=0 servers between
    [ $# = 0 ] || die "multicast takes no arguments; COUNT=N messages of each size"
    collective broadcast --fallback only --type u8 --bytes 1,128,512,1024,4096,16384 --output json >"$lab/hosts.json" 2>"$lab/hosts.log" ||
        { cat "$lab/hosts.log" >&2 && return 1; }
    mapfile -t between < <(grep -o '"time_median_us": *[0-9.]*' "$lab/hosts.json" | grep -o '[0-9.]*$')
    serve 1M "${hosts[@]:1}"
    printf '%-5s  %7s  %8s  %8s  %6s  %s\n' NODES BYTES "RELAY US" "HOST US" FACTOR "PAPER, 16 NODES"
    for size in 1 128 512 1024 4096 16384; do
        paper=
        if [ "$size" -le 512 ]; then paper="at most 1.48"; elif [ "$size" = 16384 ]; then paper=1.86; fi
        GROUP="--distribution edge:auto:$size" create_group lab-multicast "${hosts[@]:1}"
        factor "${#hosts[@]}" "$size" "$(median_to multicast "$n" lab-multicast "$size")" "${between[0]:-0}" "$paper" || failed=1
        between=("${between[@]:1}")
        destroy_groups
    done
    [ $failed = 0 ] || tail -qn 3 "$lab"/serve-*.log >&2
    remark_bounds
    return $failed
}

skew() {
    local n=${RANKS:-${#hosts[@]}} failed=0
    [ -e "$lab/controllers" ] || die "the lab is not up: netns.sh up relays"
    [[ $n =~ ^[0-9]+$ ]] && [ "$n" -ge 2 ] && [ "$n" -le ${#hosts[@]} ] || die "RANKS=$n: the lab has ${#hosts[@]} hosts, and a broadcast at least 2"
    export CASTNET_CONTROLLER=$(cat "$lab/controllers")
    GROUP=${GROUP:---distribution edge:auto:4096} create_group lab-skew "${hosts[@]:1:n-1}"
    RANKS=$n collective skew --group lab-skew "$@" || failed=1
    # It has ended if its source has left.
    destroy_groups 2>/dev/null || true
    [ $failed = 1 ] || remark_bounds
    return $failed
}

stop_servers() {
    local file pid
    for file in "$lab"/serve-*.pid; do
        [ -e "$file" ] || continue
        pid=$(cat "$file")
        rm -f "$file"
        # The next server listens at the same address.
        if is_ours "$pid" && kill "$pid"; then wait "$pid" 2>/dev/null || true; fi
    done
}

status() {
    local name
    export CASTNET_CONTROLLER=$(cat "$lab/controllers")
    for name in switch relay1 tor1; do
        if [ -e "$lab/$name.sock" ]; then export CASTNET_AGENT="unix:$lab/$name.sock"; fi
    done
    "$castnet" port
    echo
    "$castnet" group list
}

down() {
    local name file pid all=() try found=
    [ ! -e "$lab" ] || found=yes
    for file in $(grep -lzxF "CASTNET_LAB=$lab" /proc/[0-9]*/environ 2>/dev/null); do
        pid=${file//[^0-9]/}
        if [ "$pid" != $$ ] && kill "$pid" 2>/dev/null; then all+=("$pid"); fi
    done
    for pid in "${all[@]}"; do
        for try in {1..100}; do
            is_ours "$pid" || continue 2
            sleep 0.05
        done
        kill -9 "$pid" 2>/dev/null || true
    done
    for name in switch leaf1 leaf2 bridge mpi core pod1 pod2 tor{1..8} "${hosts[@]}"; do
        if ip netns del "$prefix-$name" 2>/dev/null; then found=yes; fi
    done
    rm -rf "$lab"
    if [ -n "$found${all[*]}" ]; then
        echo "The lab is gone."
    else
        echo "netns.sh: no lab ${LAB:-lab}" >&2
    fi
}

# It is a part of paths that down removes.
[[ ${LAB:-lab} =~ ^[A-Za-z0-9_-]+$ ]] || die "LAB=$LAB: a name has letters, digits, - and _ only"
[[ ${RANKS:-1} =~ ^[1-9][0-9]{0,3}$ ]] || die "RANKS is a number of ranks, 1 to 9999, not \"$RANKS\""
case ${LAB:-} in switch | controller) die "LAB=$LAB: $lab is the folder of a service: give the lab another name" ;; esac
trap 'exit 130' INT
trap 'exit 143' TERM
trap tidy EXIT
[ "$(id -u)" = 0 ] || die "needs root: sudo $0 ${*:-up}"
command -v ip >/dev/null || die "needs the command ip: install iproute2"
case "${1:-}" in
up | send | bench | replicate | consensus | model | multisend | multicast | skew | status | kill-leader) castnet=$(find_castnet) && "$@" ;;
allreduce | reduce | broadcast | barrier | reducescatter | allgather) castnet=$(find_castnet) && collective "$@" ;;
calibrate) castnet=$(find_castnet) && RANKS=2 collective "$@" ;;
mpi | down) "$@" ;;
*) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" && exit 2 ;;
esac
