#!/usr/bin/env bash
# Builds the programs that the tests need, from their published Go modules. The go.mod files in this directory pin the
# versions. The programs are:
#
# - the control plane: kube-apiserver, kube-controller-manager, kubectl and etcd;
# - promtool, which tests the alerts, and Helm 4 and 3, which install the chart;
# - versitygw, an S3-compatible server that the fence of object stores is tried on;
# - h2spec, which tests how the proxy of fences speaks HTTP/2;
# - the programs of a node: kubelet, kube-scheduler, kube-proxy, containerd, runc and CNI plugins.
#
#   tests/controlplane/build.sh [PART…]     (no argument: v1.36 and etcd)
#
# It writes the binaries to target/controlplane/<part>/ (or below CARGO_TARGET_DIR). A part is built only when its stamp
# differs. One rename moves binaries and stamp into place together, so an interrupted build never counts as complete.
# README.md has the rest.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
building=''  # the directory of the current build, for the trap
builder=''   # the process id of that build
# Go's messages for temporary errors of the module proxy or of the network.
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
      v1.36 | v1.33 | etcd | promtool | helm | helm3 | versitygw | h2spec) ;;
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

# Two concurrent runs would do the same work twice on the same cores. So the second run waits, and then finds all parts
# up to date. Without flock both runs build; the renames keep the result complete.
take_lock() {
  command -v flock >/dev/null || return 0
  exec 9>"$out/.lock"
  if ! flock --nonblock 9; then
    note "waiting for another build.sh to finish"
    flock 9
  fi
  # Directories of killed runs: while this run has the lock, they cannot belong to a live run.
  rm -rf "$out"/.building.*
}

# The build has its own process group, so that no compiler outlives an interrupted run. The next run deletes files that
# a compiler still writes during this clean-up.
clean_up() {
  if [ -n "$builder" ]; then
    kill -- "-$builder" 2>/dev/null || true
    wait "$builder" 2>/dev/null || true
  fi
  [ -z "$building" ] || rm -rf "$building" || true
}

# make_part PART: selects the programs of the part, and builds them unless they are up to date.
make_part() {
  local part=$1 programs
  case $part in
    v1.36) programs='kube-apiserver kube-controller-manager kubectl' ;;
    v1.33) programs='kube-apiserver kubectl' ;;
    etcd) programs='etcd etcdctl etcdutl' ;;
    promtool | versitygw | h2spec) programs=$part ;;
    helm | helm3) programs=helm ;;
    v1.36-node) programs='kubelet kube-scheduler kube-proxy' ;;
    containerd) programs='containerd containerd-shim-runc-v2 ctr' ;;
    runc) programs=runc ;;
    cni) programs='bridge host-local loopback' ;;
  esac

  if [ "$assets" = yes ] && [ "$part" != v1.33 ]; then
    # envtest's assets do not have etcdctl and etcdutl, which backup and restore tests need. They also do not have
    # kube-controller-manager, which creates the endpoints of Services.
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

# build PART PROGRAMS: builds into $building/bin. Only the module's go.mod determines the versions; a workspace or
# vendoring in the caller's environment has no effect.
build() {
  local part=$1 programs=$2 program packages=()
  for program in $programs; do packages+=("$(package_of "$program" "$part")"); done
  mkdir "$building/bin" "$building/tmp"
  set -m  # the build gets a process group, which clean_up kills
  (
    set +m
    cd "$here/$(module_of "$part")"
    export CGO_ENABLED=0
    # runc needs cgo: before Go's runtime starts, it enters namespaces in C.
    if [ "$part" = runc ]; then export CGO_ENABLED=1; fi
    export GOWORK=off GOTMPDIR="$building/tmp"
    # Go does not retry the download of a module. Downloaded modules stay in the cache, so the next try continues there.
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
  # etcd's package is named `server`, so its binary is, too. Everything else expects the name `etcd`.
  [ ! -e "$building/bin/server" ] || mv "$building/bin/server" "$building/bin/etcd"
}

# Prints the directory of the part's go.mod.
module_of() { case $1 in v1.36-node) say v1.36 ;; *) say "$1" ;; esac; }

# package_of PROGRAM PART
package_of() {
  case $1 in
    etcd) say go.etcd.io/etcd/server/v3 ;;
    etcdctl | etcdutl) say "go.etcd.io/etcd/$1/v3" ;;
    promtool) say github.com/prometheus/prometheus/cmd/promtool ;;
    versitygw) say github.com/versity/versitygw/cmd/versitygw ;;
    h2spec) say github.com/summerwind/h2spec/cmd/h2spec ;;
    helm) say "$(helm_module "$2")/cmd/helm" ;;
    containerd | containerd-shim-runc-v2 | ctr) say "github.com/containerd/containerd/v2/cmd/$1" ;;
    runc) say github.com/opencontainers/runc ;;
    bridge | loopback) say "github.com/containernetworking/plugins/plugins/main/$1" ;;
    host-local) say "github.com/containernetworking/plugins/plugins/ipam/$1" ;;
    *) say "k8s.io/kubernetes/cmd/$1" ;;
  esac
}

# Prints the part's build tags. Without its tag, promtool would compile the service discovery clients of about thirty
# clouds. Pods with the seccomp profile RuntimeDefault need a runc with seccomp support.
tags() {
  case $1 in
    promtool) say remove_all_sd ;;
    containerd) say no_btrfs,no_devmapper,no_zfs ;;
    runc) say seccomp ;;
  esac
}

helm_module() { case $1 in helm) say helm.sh/helm/v4 ;; helm3) say helm.sh/helm/v3 ;; esac; }

# Prints linker flags that set the version. Without them, Kubernetes' programs report v0.0.0-master, and Helm does not
# report its patch release. The other programs know their versions.
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

# publish PART: moves the old directory away first, because a directory cannot be renamed onto a non-empty one. If this
# run is killed between the two renames, the part is missing and the next run builds it again.
publish() {
  local part=$1
  if [ -e "$out/$part" ]; then mv "$out/$part" "$building/old"; fi
  mv "$building/bin" "$out/$part"
  rm -rf "$building"
  building=''
}

main "$@"
