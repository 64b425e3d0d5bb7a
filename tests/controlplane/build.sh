#!/usr/bin/env bash
# Builds the control plane that the tests run against: kube-apiserver, kube-controller-manager,
# kubectl and etcd, from their published Go modules at the versions that the go.mod files beside
# this script pin. And promtool, which tries the alerts; Helm 4 and 3, which install the chart; and what
# makes a node of this machine: kubelet, kube-scheduler, kube-proxy, containerd, runc and CNI plugins.
#
#   tests/controlplane/build.sh [PART…]     (no argument: v1.36 and etcd)
#
# The binaries land in target/controlplane/<part>/ (CARGO_TARGET_DIR is honoured). A part is
# built only when its stamp differs. Binaries and stamp come into place together, by one rename,
# so an interrupted build leaves nothing that counts as built. README.md has the rest.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
building=''  # the folder of the build under way, for the trap
builder=''   # the process id of that build
# What Go says where a proxy, or the way to it, was in trouble for a moment.
NETWORK_TROUBLE='stream error|unexpected EOF|connection re(set|fused)|i/o timeout|TLS handshake timeout|: 5[0-9][0-9] '
assets=no    # whether KUBEBUILDER_ASSETS names a usable set of envtest's binaries

say() { printf '%s\n' "$*"; }
note() { printf '%s\n' "$*" >&2; }
die() {
  note "build.sh: $*"
  exit 1
}

main() {
  [ $# -gt 0 ] || set -- v1.36 etcd
  local part
  for part in "$@"; do
    case $part in
      v1.36 | v1.33 | etcd | promtool | helm | helm3) ;;
      v1.36-node | containerd | runc | cni) ;;
      *) die "unknown part '$part'; the parts are in README.md" ;;
    esac
  done

  local target=${CARGO_TARGET_DIR:-$here/../../target}
  mkdir -p "$target/controlplane"
  out=$(cd "$target/controlplane" && pwd)

  trap clean_up EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  take_lock
  if has_assets; then assets=yes; fi
  for part in "$@"; do make_part "$part"; done
}

# Two runs at once would do the same work twice on the same cores: the second one waits, and then
# finds everything up to date. Without flock both build; the renames keep the result whole.
take_lock() {
  command -v flock >/dev/null || return 0
  exec 9>"$out/.lock"
  if ! flock --nonblock 9; then
    note "waiting for another build.sh to finish"
    flock 9
  fi
  # What a killed run left behind; under the lock it can belong to no live one.
  rm -rf "$out"/.building.*
}

# The build is a process group of its own, so that no compiler outlives an interrupted run. What one
# of them still writes while we delete is left to the next run's sweep.
clean_up() {
  if [ -n "$builder" ]; then
    kill -- "-$builder" 2>/dev/null || true
    wait "$builder" 2>/dev/null || true
  fi
  [ -z "$building" ] || rm -rf "$building" || true
}

# make_part PART: decides what is wanted of this part and brings it up to date.
make_part() {
  local part=$1 programs
  case $part in
    v1.36) programs='kube-apiserver kube-controller-manager kubectl' ;;
    v1.33) programs='kube-apiserver kubectl' ;;
    etcd) programs='etcd etcdctl etcdutl' ;;
    promtool) programs=promtool ;;
    helm | helm3) programs=helm ;;
    v1.36-node) programs='kubelet kube-scheduler kube-proxy' ;;
    containerd) programs='containerd containerd-shim-runc-v2 ctr' ;;
    runc) programs=runc ;;
    cni) programs='bridge host-local loopback' ;;
  esac

  if [ "$assets" = yes ] && [ "$part" != v1.33 ]; then
    # envtest's assets have neither etcdctl nor etcdutl, which backup and restore tests need, and no
    # kube-controller-manager, which makes the endpoints of services.
    case $part in
      v1.36)
        say "v1.36: kube-apiserver and kubectl are taken from KUBEBUILDER_ASSETS"
        programs='kube-controller-manager'
        ;;
      etcd) say "etcd: etcd is taken from KUBEBUILDER_ASSETS" && programs='etcdctl etcdutl' ;;
    esac
  fi

  need_go
  local stamp
  stamp=$(stamp_of "$part" "$programs")
  if [ "$(cat "$out/$part/.stamp" 2>/dev/null)" = "$stamp" ]; then
    say "$part: up to date"
    return
  fi

  local started=$SECONDS
  note "$part: building $programs (minutes, the first time)"
  building=$(mktemp -d "$out/.building.XXXXXX")
  build "$part" "$programs"
  printf '%s\n' "$stamp" >"$building/bin/.stamp"
  publish "$part"
  say "$part: built in $((SECONDS - started)) s"
}

has_assets() {
  [ -n "${KUBEBUILDER_ASSETS:-}" ] || return 1
  local program
  for program in kube-apiserver etcd kubectl; do
    if [ ! -x "$KUBEBUILDER_ASSETS/$program" ]; then
      note "KUBEBUILDER_ASSETS is set but has no $program: not used"
      return 1
    fi
  done
}

need_go() {
  command -v go >/dev/null ||
    die "'go' is not on the PATH: install Go 1.26 or later." \
      "(KUBEBUILDER_ASSETS with envtest's binaries spares kube-apiserver, kubectl and etcd, no others.)"
}

stamp_of() {
  local part=$1 programs=$2
  {
    say "$programs"
    (cd "$here/$(module_of "$part")" && go version)
    cat "$here/$(module_of "$part")"/go.{mod,sum} "$here/build.sh"
  } | sha256
}

sha256() {
  if command -v sha256sum >/dev/null; then sha256sum; else shasum -a 256; fi | cut -d ' ' -f 1
}

# build PART PROGRAMS: into $building/bin. The module's own go.mod decides every version, whatever
# workspace or vendoring the caller's environment has.
build() {
  local part=$1 programs=$2 program packages=()
  for program in $programs; do packages+=("$(package_of "$program" "$part")"); done
  mkdir "$building/bin" "$building/tmp"
  set -m  # the process group that clean_up ends
  (
    set +m
    cd "$here/$(module_of "$part")"
    export CGO_ENABLED=0
    # Before Go's runtime starts, runc enters namespaces in C.
    if [ "$part" = runc ]; then export CGO_ENABLED=1; fi
    export GOWORK=off GOTMPDIR="$building/tmp"
    # Go fetches a module once and no more. What was fetched stays, so another try goes on from there.
    for try in 1 2 3; do
      if go build -mod=readonly -buildvcs=false -trimpath -tags "$(tags "$part")" \
        -ldflags "-s -w $(version_flags "$part")" -o "$building/bin/" "${packages[@]}"; then
        exit 0
      fi
      grep -qE "$NETWORK_TROUBLE" "$building/log" || exit 1
      sleep "$((try * 5))"
    done
    exit 1
  ) >"$building/log" 2>&1 9>&- &
  builder=$!
  set +m
  if ! wait "$builder"; then
    builder=''
    cat "$building/log" >&2
    die "$part: go build failed"
  fi
  builder=''
  # The server's package is called just that; everybody else calls it etcd.
  [ ! -e "$building/bin/server" ] || mv "$building/bin/server" "$building/bin/etcd"
}

# The folder of the go.mod.
module_of() { case $1 in v1.36-node) say v1.36 ;; *) say "$1" ;; esac; }

# package_of PROGRAM PART
package_of() {
  case $1 in
    etcd) say go.etcd.io/etcd/server/v3 ;;
    etcdctl | etcdutl) say "go.etcd.io/etcd/$1/v3" ;;
    promtool) say github.com/prometheus/prometheus/cmd/promtool ;;
    helm) say "$(helm_module "$2")/cmd/helm" ;;
    containerd | containerd-shim-runc-v2 | ctr) say "github.com/containerd/containerd/v2/cmd/$1" ;;
    runc) say github.com/opencontainers/runc ;;
    bridge | loopback) say "github.com/containernetworking/plugins/plugins/main/$1" ;;
    host-local) say "github.com/containernetworking/plugins/plugins/ipam/$1" ;;
    *) say "k8s.io/kubernetes/cmd/$1" ;;
  esac
}

# promtool would compile the clients of some thirty clouds, to find there what to scrape. Pods whose
# seccomp profile is RuntimeDefault need a runc that knows seccomp.
tags() {
  case $1 in
    promtool) say remove_all_sd ;;
    containerd) say no_btrfs,no_devmapper,no_zfs ;;
    runc) say seccomp ;;
  esac
}

helm_module() { case $1 in helm) say helm.sh/helm/v4 ;; helm3) say helm.sh/helm/v3 ;; esac; }

# Without these Kubernetes' programs call themselves v0.0.0-master, and Helm any patch release. The others
# know their versions.
version_flags() {
  local part=$1 version major minor package
  case $part in
    helm | helm3)
      package=$(helm_module "$part")
      version=$(awk -v module="$package" '$1 == module { print $2; exit }' "$here/$part/go.mod")
      say "-X $package/internal/version.version=$version"
      return 0
      ;;
    v1.*) ;;
    *) return 0 ;;
  esac
  version=$(awk '$1 == "k8s.io/kubernetes" { print $2; exit }
    $1 == "require" && $2 == "k8s.io/kubernetes" { print $3; exit }' "$here/$(module_of "$part")/go.mod")
  IFS=. read -r major minor _ <<<"${version#v}"
  for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    printf -- '-X %s.gitVersion=%s ' "$package" "$version"
    printf -- '-X %s.gitMajor=%s -X %s.gitMinor=%s ' "$package" "$major" "$package" "$minor"
  done
}

# publish PART: the old folder steps aside first, since a folder cannot be renamed onto a full one.
# Killed between the two renames, the part is simply missing and is built again.
publish() {
  local part=$1
  if [ -e "$out/$part" ]; then mv "$out/$part" "$building/old"; fi
  mv "$building/bin" "$out/$part"
  rm -rf "$building"
  building=''
}

main "$@"
