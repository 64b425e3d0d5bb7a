#!/usr/bin/env bash
# Builds all files of a release, for the version in Cargo.toml. It publishes nothing: the workflow
# .github/workflows/release.yaml publishes these files.
#
#   scripts/release.sh        (make release)
#
# Writes to target/dist: the binaries, the multi-arch image (an OCI archive), an SBOM for each architecture, the
# kubectl plugin with its manifest for krew, the packaged chart, the same installation as plain YAML, and SHA256SUMS.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly ARCHS=(amd64 arm64)
# The oldest version that the chart supports. Plain YAML cannot query a cluster's version.
readonly KUBE_VERSION=1.33

target=${CARGO_TARGET_DIR:-$PWD/target}
dist=$target/dist
helm=$target/controlplane/helm/helm

die() {
  printf 'release.sh: %s\n' "$*" >&2
  exit 1
}

version_of() { awk -F "$2" -v key="$3" '$0 ~ "^" key { gsub(/[" ]/, "", $2); print $2; exit }' "$1"; }

main() {
  [ -x "$helm" ] || die "Helm is missing: make helm"
  local version arch
  version=$(version_of Cargo.toml = version)
  [ "$(version_of charts/leasehold/Chart.yaml : version)" = "$version" ] ||
    die "charts/leasehold/Chart.yaml has another version than Cargo.toml ($version)"
  rm -rf "$dist"
  mkdir -p "$dist"
  scripts/image.sh "${ARCHS[@]}"
  for arch in "${ARCHS[@]}"; do
    cp "$target/image/leasehold-linux-$arch" "$dist/leasehold-$version-linux-$arch"
    plugin_archive "$version" "$arch"
    cp "$target/image/sbom-$arch.cdx.json" "$dist/leasehold-$version-sbom-$arch.cdx.json"
  done
  cp "$target/image/leasehold.tar" "$dist/leasehold-$version-image.tar"
  krew_manifest "$version" >"$dist/kubectl-leasehold-$version-krew.yaml"
  "$helm" package charts/leasehold --destination "$dist" >/dev/null
  plain_yaml >"$dist/leasehold-$version-install.yaml"
  (cd "$dist" && sha256sum -- * >SHA256SUMS)
  echo "release $version:"
  (cd "$dist" && ls -l)
}

# Packs the kubectl plugin: the binary, its manual pages and the licence. krew wants an archive.
plugin_archive() {
  local folder=$target/plugin/$2 time
  rm -rf "$folder"
  mkdir -p "$folder/man"
  scripts/binary.sh kubectl-leasehold "$2" "$folder/kubectl-leasehold"
  # By a debug build: this machine cannot run the binary of another architecture.
  cargo run --locked --quiet --bin kubectl-leasehold -- manual "$folder/man"
  cp LICENSE "$folder/"
  time=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
  tar --create --directory "$folder" --format ustar --sort name --mtime "@$time" --owner 0 --group 0 --numeric-owner \
    --mode a+rX,u+w,go-w . | gzip --no-name >"$dist/kubectl-leasehold-$1-linux-$2.tar.gz"
}

# Prints the manifest for krew, of the archives in dist.
krew_manifest() {
  local arch sum
  cat <<EOF_MANIFEST
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: leasehold
spec:
  version: v$1
  homepage: https://github.com/leasehold/leasehold
  shortDescription: Show locks, why a pod waits, and end grants
  description: |
    Shows the distributed locks of Leasehold, says why a pod waits for one, checks an installation, and ends grants on
    the record.
  platforms:
EOF_MANIFEST
  for arch in "${ARCHS[@]}"; do
    sum=$(sha256sum "$dist/kubectl-leasehold-$1-linux-$arch.tar.gz")
    cat <<EOF_MANIFEST
  - selector:
      matchLabels:
        os: linux
        arch: $arch
    uri: https://github.com/leasehold/leasehold/releases/download/v$1/kubectl-leasehold-$1-linux-$arch.tar.gz
    sha256: ${sum%% *}
    bin: kubectl-leasehold
EOF_MANIFEST
  done
}

# Prints the namespace and the chart rendered with its defaults. `kubectl apply --server-side -f` installs it.
plain_yaml() {
  printf 'apiVersion: v1\nkind: Namespace\nmetadata:\n  name: leasehold-system\n'
  printf '  labels:\n    pod-security.kubernetes.io/enforce: restricted\n'
  "$helm" template leasehold charts/leasehold --namespace leasehold-system --include-crds --skip-tests --no-hooks \
    --kube-version "$KUBE_VERSION"
}

main
