#!/usr/bin/env bash
# Runs a `cargo test` command, and fails if one of its binaries ran no test. Otherwise, a filter that matches nothing
# after a test was renamed would always pass.
#
#   scripts/ran.sh cargo test …
set -euo pipefail

said=$(mktemp)
trap 'rm -f "$said"' EXIT
"$@" | tee "$said"
if ! grep -q '^test result: ok' "$said" || grep -q '^test result: ok\. 0 passed' "$said"; then
  echo "no test ran: $*" >&2
  exit 1
fi
