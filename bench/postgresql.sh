#!/usr/bin/env bash
# What the fence of PostgreSQL costs: transactions with and without it, on a server of their own that syncs its log. In
# each run of pgbench every transaction is one of the kinds that are compared, by chance: the machine changes its speed
# from second to second. It prints medians in ms: an average would depend on a few slow syncs.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/fences/servers.sh
. "$here/../tests/fences/servers.sh"
SECONDS_EACH=${SECONDS_EACH:-30}
programs=$(dirname "$(find /usr/lib/postgresql -name initdb | sort -V | tail -1)")
directory=$(mktemp -d)
chmod 755 "$directory"
port=$(free_port)
connect=(--host "$directory/server" --port "$port" --username postgres)

start() {
  start_postgresql "$directory/server" "$port"
  psql "${connect[@]}" --quiet --no-psqlrc --single-transaction --set ON_ERROR_STOP=1 \
    --file "$here/../fences/postgresql/20261128000000_leasehold_fence.up.sql"
  psql "${connect[@]}" --quiet --no-psqlrc --command 'CREATE TABLE account (id bigint PRIMARY KEY,
    balance bigint NOT NULL, fencing_token bigint NOT NULL DEFAULT 1) WITH (fillfactor = 50);
    INSERT INTO account SELECT number, 0 FROM generate_series(1, 64) AS number'
  "$programs/pgbench" "${connect[@]}" --initialize --quiet --scale 10 postgres >/dev/null 2>&1
  # Otherwise the first kinds of transactions would share the disk with what this has written.
  psql "${connect[@]}" --quiet --no-psqlrc --command CHECKPOINT
}

# An update by a single statement, by a transaction that is one pipeline, and by a transaction with a round trip for each
# statement, and the five statements of pgbench's own transaction (TPC-B): each with and without a fence.
write_scripts() {
  local row='UPDATE account SET balance = balance + 1 WHERE id = 1;'
  echo "$row" >"$directory/statement"
  echo "${row/WHERE/WHERE (SELECT leasehold.fence(\'account\', 1000)) AND}" >"$directory/statement-condition"
  echo 'UPDATE account SET balance = balance + 1, fencing_token = 1000 WHERE id = 1 AND fencing_token <= 1000;' \
    >"$directory/statement-column"
  printf 'BEGIN;\n%s\nEND;\n' "$row" >"$directory/row"
  cat >"$directory/all" <<'SQL'
\set aid random(1, 1000000)
\set bid random(1, 10)
\set tid random(1, 100)
\set delta random(-5000, 5000)
BEGIN;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;
SELECT abalance FROM pgbench_accounts WHERE aid = :aid;
UPDATE pgbench_tellers SET tbalance = tbalance + :delta WHERE tid = :tid;
UPDATE pgbench_branches SET bbalance = bbalance + :delta WHERE bid = :bid;
INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (:tid, :bid, :aid, :delta, CURRENT_TIMESTAMP);
END;
SQL
  # The function with a round trip of its own, or in that of BEGIN.
  local kind begin="BEGIN;\\nSELECT leasehold.fence('account', 1000);"
  for kind in row all; do
    sed "s/^BEGIN;/$begin/" "$directory/$kind" >"$directory/$kind-apart"
    sed "s/^BEGIN;/\\\\startpipeline\\n$begin\\n\\\\endpipeline/" "$directory/$kind" >"$directory/$kind-together"
  done
  pipeline row pipeline
  pipeline row-apart pipeline-function
}

# pipeline KIND PIPELINE: writes the same transaction, sent as one pipeline.
pipeline() {
  { echo '\startpipeline' && cat "$directory/$1" && echo '\endpipeline'; } >"$directory/$2"
}

# compare WITHOUT WITH...: prints the median of each kind of transaction, and its ratio to the first. The third field of
# pgbench's log is the latency in µs, the fourth the number of the file.
compare() {
  local files=() kind
  for kind in "$@"; do files+=(--file "$directory/$kind"); done
  "$programs/pgbench" "${connect[@]}" --no-vacuum --protocol prepared --time "$SECONDS_EACH" "${files[@]}" \
    --log --log-prefix "$directory/log" postgres >/dev/null 2>&1
  local number=0 without='' median
  for kind in "$@"; do
    median=$(awk -v number="$number" '$4 == number { print $3 }' "$directory"/log.* | median)
    without=${without:-$median}
    awk -v kind="$kind" -v median="$median" -v without="$without" \
      'BEGIN { printf "%s %.3f %.2f\n", kind, median / 1000, median / without }'
    number=$((number + 1))
  done
  rm "$directory"/log.*
}

median() { sort -n | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'; }

trap 'stop_servers; rm -rf "$directory"' EXIT
start
write_scripts
compare statement statement-condition statement-column
compare pipeline pipeline-function
compare row row-together row-apart
compare all all-together all-apart
