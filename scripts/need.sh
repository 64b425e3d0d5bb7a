#!/usr/bin/env bash
# Checks that the Debian packages of a make target are installed. It installs the missing ones as root, and otherwise
# prints their names and fails.
#
#   scripts/need.sh image      what `make image` needs
#   scripts/need.sh plugin     what `make plugin` and `make crowd` need
#   scripts/need.sh release    what `make release` needs
#   scripts/need.sh node       what `make node-e2e` needs in addition to `image`
#   scripts/need.sh fault      what `make fault` needs
#   scripts/need.sh e2e        what `make e2e` needs besides Rust and Go: the shells whose completion is tested
#   scripts/need.sh clients    what `make clients` needs besides Rust and Go
#   scripts/need.sh page       what `make page` needs
#   scripts/need.sh fences     what `make fences` needs: the stores that fences are tried on
#   scripts/need.sh galera     what `make galera` needs
#   scripts/need.sh bench-fences   what `make bench-fences` needs
set -euo pipefail

# Pairs PROGRAM=PACKAGE or FILE=PACKAGE: the package is installed if the program or the file exists.
needs() {
  case $1 in
    plugin) echo 'musl-gcc=musl-tools' ;;
    e2e) echo 'zsh=zsh /usr/share/bash-completion/bash_completion=bash-completion' ;;
    image) echo 'buildah=buildah musl-gcc=musl-tools' ;;
    release)
      echo 'buildah=buildah musl-gcc=musl-tools aarch64-linux-gnu-gcc=gcc-aarch64-linux-gnu' \
        '/usr/aarch64-linux-gnu/include/stdlib.h=libc6-dev-arm64-cross'
      ;;
    clients) echo 'python3=python3-venv node=nodejs npm=npm javac=openjdk-17-jdk-headless mvn=maven' ;;
    page) echo 'chromium=chromium chromedriver=chromium-driver npm=npm' ;;
    fences)
      echo 'pg_ctlcluster=postgresql mariadbd=mariadb-server redis-server=redis-server sqlite3=sqlite3' \
        'python3=python3-venv setpriv=util-linux curl=curl jq=jq nginx=nginx-light'
      ;;
    galera) echo 'mariadbd=mariadb-server /usr/lib/galera/libgalera_smm.so=galera-4 rsync=rsync setpriv=util-linux python3=python3' ;;
    bench-fences)
      echo 'pg_ctlcluster=postgresql setpriv=util-linux curl=curl nginx=nginx-light haproxy=haproxy wrk=wrk'
      ;;
    fault) echo 'faketime=faketime ip=iproute2 unshare=util-linux' ;;
    node)
      echo 'curl=curl jq=jq busybox=busybox-static ip=iproute2 nft=nftables sysctl=procps' \
        'unshare=util-linux mount=mount pkg-config=pkg-config' \
        '/usr/include/seccomp.h=libseccomp-dev'
      ;;
    *)
      echo "usage: need.sh plugin|image|release|node|fault|e2e|clients|page|fences|galera|bench-fences" >&2
      return 1
      ;;
  esac
}

is_there() { case $1 in /*) [ -e "$1" ] ;; *) command -v "$1" >/dev/null ;; esac; }

main() {
  local all need missing=()
  all=$(needs "${1:-}")
  for need in $all; do
    is_there "${need%=*}" || missing+=("${need#*=}")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "missing: ${missing[*]} (Debian: apt-get install --no-install-recommends ${missing[*]})" >&2
    return 1
  fi
  echo "installing ${missing[*]}"
  # Two targets of one `make --jobs` may run this at the same time.
  exec 9>/run/leasehold-need.lock
  flock 9
  apt-get -qq update
  DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 install --no-install-recommends --yes "${missing[@]}" >/dev/null
}

main "$@"
