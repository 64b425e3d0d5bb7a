#!/usr/bin/env bash
# Builds a static, optimized binary. The build is reproducible: the same commit and toolchain give the same bytes on
# every machine.
#
#   scripts/binary.sh BIN ARCH FILE     BIN: leasehold, kubectl-leasehold; ARCH: amd64, arm64
#   scripts/binary.sh --triple ARCH     prints Rust's name of the architecture
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target=${CARGO_TARGET_DIR:-$PWD/target}

die() {
  printf 'binary.sh: %s\n' "$*" >&2
  exit 1
}

triple() {
  case $1 in
    amd64) echo x86_64-unknown-linux-musl ;;
    arm64) echo aarch64-unknown-linux-musl ;;
    *) die "unknown architecture: $1 (amd64, arm64)" ;;
  esac
}

# The binary contains no paths of the build machine. Packed relocations save half a megabyte.
build() {
  local bin=$1 arch=$2 file=$3 triple
  triple=$(triple "$arch")
  if ! rustup target list --installed | grep -qx "$triple"; then rustup target add "$triple"; fi
  local flags=(
    "--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo"
    "--remap-path-prefix=$PWD=/leasehold"
    "--remap-path-prefix=$target=/target"
  )
  if [ "$arch" = arm64 ] && [ "$(uname -m)" != aarch64 ]; then
    # Debian has no musl for other architectures. Rust ships its own musl and a linker. The C code of `ring` needs only
    # a compiler; it must not call functions of that compiler's runtime library (-mno-outline-atomics).
    export CC_aarch64_unknown_linux_musl=aarch64-linux-gnu-gcc CFLAGS_aarch64_unknown_linux_musl=-mno-outline-atomics
    flags+=("-Clinker=rust-lld" "-Clink-self-contained=yes" "-Clink-arg=-zpack-relative-relocs")
  else
    flags+=("-Clink-arg=-Wl,-z,pack-relative-relocs")
  fi
  local encoded
  encoded=$(printf '%s\037' "${flags[@]}")
  CARGO_ENCODED_RUSTFLAGS=${encoded%$'\037'} \
    cargo build --locked --release --bin "$bin" --target "$triple"
  mkdir -p "$(dirname "$file")"
  cp "$target/$triple/release/$bin" "$file"
  chmod 755 "$file"
}

case $# in
  2) [ "$1" = --triple ] || die "see the usage in this file"; triple "$2" ;;
  3) build "$@" ;;
  *) die "see the usage in this file" ;;
esac
