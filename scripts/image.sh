#!/usr/bin/env bash
# Builds the container image: one static binary, from scratch. Without a daemon, and the same bytes
# wherever it is built from the same commit with the same toolchain and buildah.
#
#   scripts/image.sh        (make image)
#
# Lays into target/image: leasehold.tar, an OCI archive under the name that the chart uses by default;
# leasehold, the binary; sbom.cdx.json, what it is made of (CycloneDX).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly TRIPLE=x86_64-unknown-linux-musl
# What nodes pull is smaller; this is the layer unpacked, which is the binary.
readonly BYTES_MAX=15000000

target=${CARGO_TARGET_DIR:-$PWD/target}
work=''

die() {
  printf 'image.sh: %s\n' "$*" >&2
  exit 1
}

main() {
  command -v buildah >/dev/null || die "buildah is missing: scripts/need.sh image"
  mkdir -p "$target/image"
  trap 'rm -rf "$work"' EXIT
  build_binary
  scripts/sbom.sh "$TRIPLE" >"$target/image/sbom.cdx.json"
  pack
  report
}

# No path of this machine gets into the binary. Packed relocations save half a megabyte.
build_binary() {
  if ! rustup target list --installed | grep -qx "$TRIPLE"; then rustup target add "$TRIPLE"; fi
  local flags=(
    "--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo"
    "--remap-path-prefix=$PWD=/leasehold"
    "--remap-path-prefix=$target=/target"
    "-Clink-arg=-Wl,-z,pack-relative-relocs"
  )
  local encoded
  encoded=$(printf '%s\037' "${flags[@]}")
  CARGO_ENCODED_RUSTFLAGS=${encoded%$'\037'} \
    cargo build --locked --release --bin leasehold --target "$TRIPLE"
}

# The folder that buildah sees has nothing but what goes into the image, with the times of the commit.
pack() {
  local version name time
  time=$(commit_time)
  version=$(awk -F '"' '/^version = / { print $2; exit }' Cargo.toml)
  name=ghcr.io/leasehold/leasehold:$version
  work=$(mktemp -d)
  mkdir "$work/context"
  cp "$target/$TRIPLE/release/leasehold" "$work/context/leasehold"
  # With the feature `seeded-bugs` the variable's name is in the binary.
  if grep --text --quiet LEASEHOLD_SEEDED_BUG "$work/context/leasehold"; then
    die "the binary has bugs on purpose: build it without the feature seeded-bugs"
  fi
  chmod 755 "$work/context/leasehold"
  # A storage of its own: images of whoever runs this are not touched, nor is a cache believed.
  local buildah=(buildah --storage-driver vfs --root "$work/storage" --runroot "$work/run")
  "${buildah[@]}" build --quiet --isolation chroot --format oci --timestamp "$time" \
    --label "org.opencontainers.image.version=$version" \
    --label "org.opencontainers.image.licenses=Apache-2.0" \
    --tag "$name" --file Dockerfile "$work/context" >/dev/null
  # Packed by tar: an archive of buildah's has the time of its making in it.
  "${buildah[@]}" push --quiet "$name" "oci:$work/layout:$name"
  tar --create --file "$target/image/leasehold.tar" --directory "$work/layout" --format ustar --sort name \
    --mtime "@$time" --owner 0 --group 0 --numeric-owner --mode a+rX,u+w,go-w blobs index.json oci-layout
  cp "$work/context/leasehold" "$target/image/leasehold"
}

# In a tree without git's history, such as a release's archive, it is given.
commit_time() { echo "${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}"; }

report() {
  local binary archive
  binary=$(stat -c %s "$target/image/leasehold")
  archive=$(stat -c %s "$target/image/leasehold.tar")
  echo "measured: image $binary bytes unpacked, $archive bytes packed"
  [ "$binary" -lt "$BYTES_MAX" ] || die "the image has $binary bytes; it must have less than $BYTES_MAX"
}

main
