#!/bin/sh
# Prepares a machine for DPDK ports: hugepages, and NICs bound to vfio-pci.
# `castnet doctor --for dpdk` shows what the machine has, `castnet doctor --config FILE` what a switch needs.
set -eu

SYS=${CASTNET_SYS:-/sys}        # tests set another folder

usage() {
    cat >&2 <<END
usage: dpdk.sh hugepages PAGES [NODE]   reserve at least PAGES of 2 MiB, on one NUMA node or on all together; it releases none
       dpdk.sh restore                  release those that the unit has reserved, by its folder RUNTIME_DIRECTORY
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
    before=$(cat "$folder/nr_hugepages")
    if [ "$before" -ge "$pages" ]; then
        # Others have reserved them.
        echo "hugepages of 2 MiB: $before, which is enough, so they stay"
        return 0
    fi
    echo "$pages" >"$folder/nr_hugepages"
    # The kernel reserves what it finds, and reports no error if that is less.
    got=$(cat "$folder/nr_hugepages")
    if [ -n "${RUNTIME_DIRECTORY-}" ]; then
        echo "$before $got $folder" >"$RUNTIME_DIRECTORY/hugepages"
    fi
    [ "$got" -ge "$pages" ] || fail "only $got of $pages hugepages could be had: memory is in pieces; reserve them early after the start"
    echo "hugepages of 2 MiB: $got"
}

# Sets the former number of hugepages, unless somebody has changed it since.
restore() {
    [ -n "${RUNTIME_DIRECTORY-}" ] || fail "RUNTIME_DIRECTORY is not set: restore is for the unit"
    [ -f "$RUNTIME_DIRECTORY/hugepages" ] || return 0
    read -r before reserved folder <"$RUNTIME_DIRECTORY/hugepages"
    got=$(cat "$folder/nr_hugepages")
    if [ "$got" -eq "$reserved" ]; then
        echo "$before" >"$folder/nr_hugepages"
        echo "hugepages of 2 MiB: $(cat "$folder/nr_hugepages")"
    else
        echo "hugepages of 2 MiB: $got, and not $reserved as this unit has set, so they stay"
    fi
    rm "$RUNTIME_DIRECTORY/hugepages"
}

device() {
    folder=$SYS/bus/pci/devices/$1
    [ -d "$folder" ] || fail "no device $1 on the PCI bus (lspci -D lists those there are)"
}

# The driver that has the device.
driver() {
    [ ! -e "$folder/driver" ] || basename "$(readlink -f "$folder/driver")"
}

# Gives a device to a driver, or to the kernel's own one.
hand_over() {
    echo "${2-}" >"$folder/driver_override"
    if [ -e "$folder/driver" ]; then
        echo "$1" >"$folder/driver/unbind"
    fi
    # What the driver says to it is seen by whether it has the device.
    echo "$1" >"$SYS/bus/pci/drivers_probe" || true
}

bind() {
    [ $# -gt 0 ] || return 0
    if [ ! -d "$SYS/bus/pci/drivers/vfio-pci" ]; then
        modprobe vfio-pci || fail "the kernel has no vfio-pci"
    fi
    # All of them are looked at before the kernel loses the first.
    for address; do
        device "$address"
        # That of a virtio device is one folder deeper. Not every driver says that its link is up: the flag is IFF_UP.
        for interface in "$folder"/net/* "$folder"/*/net/*; do
            [ -d "$interface" ] || continue
            flags=$(cat "$interface/flags" 2>/dev/null || echo 0)
            [ $((flags & 1)) -eq 0 ] || fail "$address: its interface $(basename "$interface") is in use: ip link set $(basename "$interface") down"
        done
    done
    for address; do
        device "$address"
        # A switch may use it.
        if [ "$(driver)" != vfio-pci ]; then
            hand_over "$address" vfio-pci
            if [ "$(driver)" != vfio-pci ]; then
                hand_over "$address"
                fail "$address: vfio-pci has not taken it, so the kernel has it again: dmesg says why (often there is no IOMMU: start Linux with intel_iommu=on or amd_iommu=on)"
            fi
        fi
        echo "$address: vfio-pci"
    done
}

release() {
    for address; do
        device "$address"
        # The kernel keeps what it has.
        case $(driver) in '' | vfio-pci) hand_over "$address" ;; esac
        echo "$address: the kernel's"
    done
}

[ $# -ge 1 ] || usage
verb=$1
shift
case $verb in
hugepages | restore | bind | release) "$verb" "$@" ;;
*) usage ;;
esac
