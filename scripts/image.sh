#!/usr/bin/env bash
# Builds the container image: one static binary, from scratch. It needs no daemon. The build is reproducible: the same
# commit, toolchain and buildah give the same bytes on every machine.
#
#   scripts/image.sh [ARCH...]        amd64 (default), arm64      (make image, make release)
#
# Writes to target/image:
#   leasehold.tar           an OCI archive with an image for each ARCH, named as in the chart's defaults
#   leasehold-linux-ARCH    the binary for each ARCH
#   sbom-ARCH.cdx.json      its SBOM (CycloneDX)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The limit for the unpacked layer, which is the binary. Nodes pull a smaller, compressed one.
readonly BYTES_MAX=15000000

target=${CARGO_TARGET_DIR:-$PWD/target}
work=''

die() {
  printf 'image.sh: %s\n' "$*" >&2
  exit 1
}

main() {
  local archs=("${@:-amd64}") arch
  command -v buildah >/dev/null || die "buildah is missing: scripts/need.sh image"
  mkdir -p "$target/image"
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  for arch in "${archs[@]}"; do
    build_binary "$arch"
    scripts/sbom.sh "$(triple "$arch")" >"$target/image/sbom-$arch.cdx.json"
  done
  pack "${archs[@]}"
  report "${archs[@]}"
}

triple() {
  case $1 in
    amd64) echo x86_64-unknown-linux-musl ;;
    arm64) echo aarch64-unknown-linux-musl ;;
    *) die "unknown architecture: $1 (amd64, arm64)" ;;
  esac
}

# The binary contains no paths of the build machine. Packed relocations save half a megabyte.
build_binary() {
  local triple
  triple=$(triple "$1")
  if ! rustup target list --installed | grep -qx "$triple"; then rustup target add "$triple"; fi
  local flags=(
    "--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo"
    "--remap-path-prefix=$PWD=/leasehold"
    "--remap-path-prefix=$target=/target"
  )
  if [ "$1" = arm64 ] && [ "$(uname -m)" != aarch64 ]; then
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
    cargo build --locked --release --bin leasehold --target "$triple"
  cp "$target/$triple/release/leasehold" "$target/image/leasehold-linux-$1"
  chmod 755 "$target/image/leasehold-linux-$1"
}

# Buildah's context directory contains only the image's files. All timestamps are the commit's.
pack() {
  local version name time arch
  time=$(commit_time)
  version=$(awk -F '"' '/^version = / { print $2; exit }' Cargo.toml)
  name=ghcr.io/leasehold/leasehold:$version
  # A separate storage keeps the user's images untouched and uses no cached layers.
  local buildah=(buildah --storage-driver vfs --root "$work/storage" --runroot "$work/run")
  for arch in "$@"; do
    mkdir -p "$work/$arch"
    cp "$target/image/leasehold-linux-$arch" "$work/$arch/leasehold"
    "${buildah[@]}" build --quiet --isolation chroot --format oci --timestamp "$time" --platform "linux/$arch" \
      --label "org.opencontainers.image.version=$version" \
      --label "org.opencontainers.image.licenses=Apache-2.0" \
      --manifest "$name" --file Dockerfile "$work/$arch" >/dev/null
  done
  # tar packs the archive, because buildah's own archives contain the time of the build.
  "${buildah[@]}" manifest push --quiet --all --format oci "$name" "oci:$work/layout:$name"
  tar --create --file "$target/image/leasehold.tar" --directory "$work/layout" --format ustar --sort name \
    --mtime "@$time" --owner 0 --group 0 --numeric-owner --mode a+rX,u+w,go-w blobs index.json oci-layout
}

# In a tree without git history, such as a release archive, SOURCE_DATE_EPOCH must be set.
commit_time() { echo "${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}"; }

report() {
  local binary archive arch
  archive=$(stat -c %s "$target/image/leasehold.tar")
  for arch in "$@"; do
    binary=$(stat -c %s "$target/image/leasehold-linux-$arch")
    echo "measured: $arch $binary bytes unpacked, the archive has $archive bytes"
    [ "$binary" -lt "$BYTES_MAX" ] || die "the binary for $arch has $binary bytes; it must have less than $BYTES_MAX"
  done
}

main "$@"
