#!/bin/sh
# Prepares a machine for DPDK ports: hugepages, and NICs bound to vfio-pci.
# `castnet doctor --for dpdk` shows what the machine has, `castnet doctor --config FILE` what a switch needs.
set -eu

SYS=${CASTNET_SYS:-/sys}        # tests set another folder

usage() {
    cat >&2 <<END
usage: dpdk.sh hugepages PAGES [NODE]   reserve PAGES of 2 MiB, on one NUMA node or on all together; 0 releases them
       dpdk.sh bind [ADDRESS...]        bind NICs to vfio-pci: the kernel loses their interfaces
       dpdk.sh release [ADDRESS...]     bind NICs to the kernel's own drivers
ADDRESS is a PCI address with its domain, such as 0000:3b:00.0
END
    exit 2
}

fail() {
    echo "dpdk.sh: $1" >&2
    exit 1
}

hugepages() {
    pages=${1-}
    case $pages in '' | *[!0-9]*) usage ;; esac
    if [ $# -gt 1 ]; then
        folder=$SYS/devices/system/node/node$2/hugepages/hugepages-2048kB
    else
        folder=$SYS/kernel/mm/hugepages/hugepages-2048kB
    fi
    [ -d "$folder" ] || fail "$folder is not there: no such NUMA node, or a kernel without hugepages of 2 MiB"
    echo "$pages" >"$folder/nr_hugepages"
    # The kernel reserves what it finds, and reports no error if that is less.
    got=$(cat "$folder/nr_hugepages")
    [ "$got" -ge "$pages" ] || fail "only $got of $pages hugepages could be had: memory is in pieces; reserve them early after the start"
    echo "hugepages of 2 MiB: $got"
}

device() {
    folder=$SYS/bus/pci/devices/$1
    [ -d "$folder" ] || fail "no device $1 on the PCI bus (lspci -D lists those there are)"
}

unbind() {
    if [ -e "$folder/driver" ]; then
        echo "$1" >"$folder/driver/unbind"
    fi
}

bind() {
    [ $# -gt 0 ] || return 0
    if [ ! -d "$SYS/bus/pci/drivers/vfio-pci" ]; then
        modprobe vfio-pci || fail "the kernel has no vfio-pci"
    fi
    for address; do
        device "$address"
        for interface in "$folder"/net/*; do
            [ -d "$interface" ] || continue
            state=$(cat "$interface/operstate" 2>/dev/null || true)
            [ "$state" != up ] || fail "$address: its interface $(basename "$interface") is in use: ip link set $(basename "$interface") down"
        done
        echo vfio-pci >"$folder/driver_override"
        unbind "$address"
        echo "$address" >"$SYS/bus/pci/drivers_probe"
        echo "$address: vfio-pci"
    done
}

release() {
    for address; do
        device "$address"
        echo >"$folder/driver_override"
        unbind "$address"
        echo "$address" >"$SYS/bus/pci/drivers_probe"
        echo "$address: the kernel's"
    done
}

[ $# -ge 1 ] || usage
verb=$1
shift
case $verb in
hugepages | bind | release) "$verb" "$@" ;;
*) usage ;;
esac
