#!/usr/bin/env bash
# Builds the container image: one static binary, from scratch. Without a daemon, and the same bytes
# wherever it is built from the same commit with the same toolchain and buildah.
#
#   scripts/image.sh [ARCH...]        amd64 (default), arm64      (make image, make release)
#
# Lays into target/image: leasehold.tar, an OCI archive under the name that the chart uses by default, with an image
# for each ARCH; for each of them leasehold-linux-ARCH, the binary, and sbom-ARCH.cdx.json, what it is made of (CycloneDX).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# What nodes pull is smaller; this is the layer unpacked, which is the binary.
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

# No path of this machine gets into the binary. Packed relocations save half a megabyte.
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
    # Debian has no musl for another architecture. Rust brings its own, with a linker; the C code of `ring` needs a
    # compiler alone, and no functions of that compiler's library.
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

# The folder that buildah sees has nothing but what goes into the image, with the times of the commit.
pack() {
  local version name time arch
  time=$(commit_time)
  version=$(awk -F '"' '/^version = / { print $2; exit }' Cargo.toml)
  name=ghcr.io/leasehold/leasehold:$version
  # A storage of its own: it does not touch the user's images, and trusts no cache.
  local buildah=(buildah --storage-driver vfs --root "$work/storage" --runroot "$work/run")
  for arch in "$@"; do
    mkdir -p "$work/$arch"
    cp "$target/image/leasehold-linux-$arch" "$work/$arch/leasehold"
    "${buildah[@]}" build --quiet --isolation chroot --format oci --timestamp "$time" --platform "linux/$arch" \
      --label "org.opencontainers.image.version=$version" \
      --label "org.opencontainers.image.licenses=Apache-2.0" \
      --manifest "$name" --file Dockerfile "$work/$arch" >/dev/null
  done
  # Packed by tar: an archive of buildah's has the time of its making in it.
  "${buildah[@]}" manifest push --quiet --all --format oci "$name" "oci:$work/layout:$name"
  tar --create --file "$target/image/leasehold.tar" --directory "$work/layout" --format ustar --sort name \
    --mtime "@$time" --owner 0 --group 0 --numeric-owner --mode a+rX,u+w,go-w blobs index.json oci-layout
}

# In a tree without git's history, such as a release's archive, it is given.
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
