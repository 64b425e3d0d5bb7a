#!/usr/bin/env bash
# Runs the tests of the node on three machines in parallel. Two of them run the tests that idle for
# minutes, or that remove what the other tests need. They share nothing: each has its own cgroup,
# folder and namespaces (enter.sh). The output of these two is shown after the first has finished,
# so that their lines do not mix.
#
#   tests/node/all.sh        (make node-e2e)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# Modules of tests/node.
readonly OUTAGE=(outage:: uninstall::) IDLE=(docs:: fence:: freeze::)

main() {
  local others=() module failed=''
  for module in "${OUTAGE[@]}" "${IDLE[@]}"; do others+=(--skip "$module"); done
  logs=$(mktemp -d)
  trap clean_up EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  # All run in the background: a trap then runs immediately, and not only after they have ended.
  on_a_node "${OUTAGE[@]}" >"$logs/outage" 2>&1 &
  running=$!
  local outage=$!
  on_a_node "${IDLE[@]}" >"$logs/idle" 2>&1 &
  running+=" $!"
  local idle=$!
  on_a_node "${others[@]}" &
  running+=" $!"
  wait $! || failed+=' first'
  wait "$outage" || failed+=' outage'
  wait "$idle" || failed+=' idle'
  running=''
  show_logs
  [ -z "$failed" ] || {
    echo "all.sh: tests failed on this node:$failed" >&2
    exit 1
  }
}

show_logs() { tail --lines +1 "$logs"/*; }

# With exec, so that the signal reaches the process that was started.
on_a_node() {
  exec tests/node/enter.sh cargo test --offline --locked --test node -- --nocapture --test-threads 1 "$@"
}

clean_up() {
  local one
  for one in $running; do kill "$one" 2>/dev/null || true; done
  for one in $running; do wait "$one" 2>/dev/null || true; done
  [ -z "$running" ] || show_logs
  rm -rf "$logs"
}

running=''
main
