#!/usr/bin/env bash
# Runs the tests of the node on two machines in parallel. The second one runs the tests that idle
# for minutes, or that remove what the other tests need. The two share nothing: each has its own
# cgroup, folder and namespaces (enter.sh). The output of the second is shown after the first has
# finished, so that their lines do not mix.
#
#   tests/node/both.sh        (make node-e2e)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# Modules of tests/node.
readonly APART=(outage:: uninstall::)

main() {
  local others=() module failed=''
  for module in "${APART[@]}"; do others+=(--skip "$module"); done
  log=$(mktemp)
  trap clean_up EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  # Both run in the background: a trap then runs immediately, and not only after they have ended.
  on_a_node "${APART[@]}" >"$log" 2>&1 &
  running=$!
  on_a_node "${others[@]}" &
  local second=$running first=$!
  running="$second $first"
  wait "$first" || failed+=' first'
  wait "$second" || failed+=' second'
  running=''
  echo "--- on the second node: ${APART[*]}"
  cat "$log"
  [ -z "$failed" ] || {
    echo "both.sh: tests failed on this node:$failed" >&2
    exit 1
  }
}

# With exec, so that the signal reaches the process that was started.
on_a_node() {
  exec tests/node/enter.sh cargo test --offline --locked --test node -- --nocapture --test-threads 1 "$@"
}

clean_up() {
  local one
  for one in $running; do kill "$one" 2>/dev/null || true; done
  for one in $running; do wait "$one" 2>/dev/null || true; done
  [ -z "$running" ] || cat "$log"
  rm -f "$log"
}

running=''
main
