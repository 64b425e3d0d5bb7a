#!/usr/bin/env bash
# Runs a command of cargo's that tests, and fails where it ran no test: one that was renamed would else be
# green for ever.
#
#   scripts/ran.sh cargo test …
set -euo pipefail

said=$(mktemp)
trap 'rm -f "$said"' EXIT
"$@" | tee "$said"
if ! grep -qE '^test result: ok\. [1-9][0-9]* passed' "$said"; then
  echo "no test ran: $*" >&2
  exit 1
fi
