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
    scripts/binary.sh leasehold "$arch" "$target/image/leasehold-linux-$arch"
    scripts/sbom.sh "$(scripts/binary.sh --triple "$arch")" >"$target/image/sbom-$arch.cdx.json"
  done
  pack "${archs[@]}"
  report "${archs[@]}"
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
