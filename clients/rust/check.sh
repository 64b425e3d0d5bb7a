#!/usr/bin/env bash
# Checks the crate as its users build it, runs its tests, and builds the driver and the examples: check.sh <directory>
#
# Its format, rules and unit tests with the feature `kube` are checked by `make lint unit`, with those of the agent.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
work=$(cd "$1" && pwd)

cd "$here"
cargo clippy --locked --lib -- -D warnings
# The documentation of kube would be built for its own version of Kubernetes, once more.
RUSTDOCFLAGS='-D warnings' cargo doc --locked --no-deps --quiet
# Alone, the crate would need its dependencies once more, with fewer features.
with_agent=(--locked --package leasehold --package leasehold-client)
cargo test --quiet "${with_agent[@]}" --test false_server
cargo test --quiet "${with_agent[@]}" --doc
examples=(conformance block task leader)
cargo build "${with_agent[@]}" "${examples[@]/#/--example=}"
built=${CARGO_TARGET_DIR:-$here/../../target}/debug/examples
for example in "${examples[@]}"; do cp "$built/$example" "$work/"; done
