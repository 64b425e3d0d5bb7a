#!/usr/bin/env bash
# Runs the tests of the node on two machines beside each other: those that idle for minutes, or take away what
# the others need, on the second one. Nothing of the two meets: each has its own cgroup, folder and namespaces
# (enter.sh). What the second says is shown when the first is done, so that their lines do not mix.
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
  # Both in the background: a trap that is set off runs at once, not when they have ended.
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

# By exec, so that the process that is started is the one to be told to stop.
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
