#!/usr/bin/env bash
# Installs the operator's binary of a release build, stripped, with its debug information beside it, where gdb and perf find it.
#
#   cargo build --release && sudo deploy/install.sh [DESTDIR]
#
# DESTDIR, an argument or a variable, is the root of the file system that it goes to (/). PREFIX is /usr/local: the units of deploy/systemd
# start what is there. Needs objcopy and strip (binutils).
set -euo pipefail
root=${1:-${DESTDIR:-}}
case "$root" in -*) echo "usage: [PREFIX=/usr/local] deploy/install.sh [DESTDIR]" >&2 && exit 2 ;; esac
built=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
built=${CARGO_TARGET_DIR:-$built/target}/release/castnet
bin=$root${PREFIX:-/usr/local}/bin debug=$root/usr/lib/debug${PREFIX:-/usr/local}/bin

[ -e "$built" ] || { echo "install.sh: no $built: cargo build --release" >&2 && exit 1; }
for program in objcopy strip; do
    command -v $program >/dev/null || { echo "install.sh: needs $program: install binutils" >&2 && exit 1; }
done
install -d "$bin" "$debug"
objcopy --only-keep-debug "$built" "$debug/castnet.debug"
# A running binary cannot be written, but replaced.
strip -o "$bin/castnet.new" "$built"
objcopy --add-gnu-debuglink="$debug/castnet.debug" "$bin/castnet.new"
chmod 755 "$bin/castnet.new" && chmod 644 "$debug/castnet.debug"
mv "$bin/castnet.new" "$bin/castnet"
# What the units name as their documentation.
install -D -m 644 "$(dirname "${BASH_SOURCE[0]}")/README.md" "$root${PREFIX:-/usr/local}/share/doc/castnet/README.md"
ls -lh "$bin/castnet" "$debug/castnet.debug"
