#!/usr/bin/env bash
# Runs a command on a machine of its own, as far as a node can observe: with separate processes,
# mounts, network, names, /run, /var/lib and /var/log. Needs root. Everything ends with the command,
# however it ends. Only the command's writes to its own files remain on the host.
#
#   tests/node/enter.sh COMMAND [ARGUMENT…]
#
# LEASEHOLD_NODE_STATE is a folder for its files, LEASEHOLD_NODE_CGROUP the cgroup for its pods. The
# network has the loopback, and `lh0` with the node's address 10.99.0.1; no route leads outside.
set -euo pipefail

die() {
  printf 'enter.sh: %s\n' "$*" >&2
  exit 1
}

# The pods' cgroups cannot be in a namespace that ends automatically, so this script removes their
# folder.
readonly CGROUPS=/sys/fs/cgroup

main() {
  [ $# -gt 0 ] || die "usage: enter.sh COMMAND [ARGUMENT…]"
  [ "$(id -u)" = 0 ] || die "a node needs root"
  # A tmpfs for the containers' files would cost memory. An overlay needs a file system below it
  # that is not an overlay.
  state=$(mktemp -d "${TMPDIR:-/var/tmp}/lh-node.XXXXXX")
  export LEASEHOLD_NODE_CGROUP=leasehold-node-$$ LEASEHOLD_NODE_STATE=$state
  trap clean_up EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  make_cgroups
  # The command runs in the background: a trap then runs immediately, and not only after it has
  # ended.
  unshare --fork --kill-child --pid --mount-proc --mount --net --uts --ipc \
    bash "$(readlink -f "${BASH_SOURCE[0]}")" --inside "$@" &
  wait $!
}

make_cgroups() {
  local folder
  for folder in $(cgroup_folders); do
    # A cpuset accepts no process until its processors are set, and does not inherit them by
    # default.
    if [ -e "$folder/cgroup.clone_children" ]; then echo 1 >"$folder/cgroup.clone_children"; fi
    mkdir -p "$folder/$LEASEHOLD_NODE_CGROUP"
  done
}

# cgroup v1 has a tree per controller, v2 has one tree.
cgroup_folders() {
  if [ -e "$CGROUPS/cgroup.controllers" ]; then
    echo "$CGROUPS"
  else
    find "$CGROUPS" -mindepth 1 -maxdepth 1 -type d
  fi
}

clean_up() {
  local folder
  # A process group may be interrupted more than once.
  trap '' INT TERM HUP
  # unshare ignores SIGTERM while it has a child. The child is killed with it.
  kill -KILL "$(jobs -p)" 2>/dev/null || true
  wait || true
  for folder in $(cgroup_folders); do
    [ -d "$folder/$LEASEHOLD_NODE_CGROUP" ] || continue
    # The kernel takes a moment to release the last process.
    for _ in 1 2 3 4 5 6 7 8 9 10; do
      find "$folder/$LEASEHOLD_NODE_CGROUP" -depth -type d -exec rmdir {} + 2>/dev/null && break
      sleep 0.2
    done
  done
  rm -rf --one-file-system "$state"
}

inside() {
  hostname node-1
  mount --make-rprivate /
  local folder
  for folder in /run /var/lib /var/log; do
    mkdir -p "$state$folder"
    mount --bind "$state$folder" "$folder"
  done
  # The pods must see the mounts in the kubelet's folder.
  mount --make-rshared /

  ip link set lo up
  ip link add lh0 type veth peer name lh1
  ip addr add 10.99.0.1/24 dev lh0
  ip link set lh0 up
  ip link set lh1 up
  # A packet to a Service's address needs a route before kube-proxy's rules redirect it.
  ip route add default dev lh0
  sysctl --quiet --write net.ipv4.ip_forward=1
  if [ -e /proc/sys/net/bridge/bridge-nf-call-iptables ]; then
    sysctl --quiet --write net.bridge.bridge-nf-call-iptables=1
  fi
  # Without exec: this shell is the first process here, and reaps the orphans.
  "$@" &
  wait $!
}

if [ "${1:-}" = --inside ]; then
  shift
  state=$LEASEHOLD_NODE_STATE
  inside "$@"
else
  main "$@"
fi
