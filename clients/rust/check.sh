#!/usr/bin/env bash
# Checks the crate's format, rules, tests and documentation, and builds the driver and the examples: check.sh <directory>
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
work=$(cd "$1" && pwd)

cd "$here"
cargo fmt --check
cargo clippy --locked --all-targets --features kube -- -D warnings
cargo test --locked --quiet --features kube
# The documentation of kube would be built for its own version of Kubernetes, once more.
RUSTDOCFLAGS='-D warnings' cargo doc --locked --no-deps --quiet
cargo build --locked --examples
built=${CARGO_TARGET_DIR:-$here/../../target}/debug/examples
for example in conformance block task leader; do cp "$built/$example" "$work/"; done
