#!/usr/bin/env bash
# Runs a command of cargo's that tests, and fails where one of its binaries ran no test: a filter that matches
# nothing any more, because a test was renamed, would else be green for ever.
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
