#!/usr/bin/env bash
# The fence of MariaDB with two primaries (Galera): galera.sh
#
# A stale transaction passes the fence at one node. The new holder's transaction is committed at the other one, and
# acknowledged, before the first node has applied it. Then the stale one commits. It must fail; with a procedure that
# leaves the row unchanged, which is the control, its write lands.
set -euo pipefail
shopt -s inherit_errexit
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/fences/servers.sh
. "$here/servers.sh"
fence=$here/../../fences/mariadb/20261128000000_leasehold_fence.up.sql
# Applying them takes a second or more, in which the fence's row is not applied.
ROWS=500000

work=$(mktemp -d)
chmod 755 "$work"
trap 'stop_servers; rm -rf "$work"' EXIT

fail() {
  printf 'FAILED: %s\n' "$*" >&2
  exit 1
}

# start_node <number> <address of the cluster>
start_node() {
  local directory=$work/$1 group
  new_directory "$directory"
  "${unprivileged[@]}" mariadb-install-db --no-defaults --auth-root-authentication-method=normal --skip-test-db \
    --datadir="$directory/data" >"$directory/log" 2>&1
  group=$(free_port)
  [ "$1" != 1 ] || first=$group
  "${unprivileged[@]}" mariadbd --no-defaults --datadir="$directory/data" --socket="$directory/socket" \
    --bind-address=127.0.0.1 --port="$(free_port)" --binlog-format=ROW --innodb-autoinc-lock-mode=2 \
    --wsrep-on=ON --wsrep-provider=/usr/lib/galera/libgalera_smm.so --wsrep-cluster-name=fences \
    --wsrep-cluster-address="$2" --wsrep-node-name="$1" --wsrep-node-address="127.0.0.1:$group" \
    --wsrep-sst-method=rsync --wsrep-sst-receive-address="127.0.0.1:$(free_port)" \
    --wsrep-provider-options="base_port=$group;ist.recv_addr=127.0.0.1:$(free_port)" >>"$directory/log" 2>&1 &
  servers+=($!)
  wait_until "$directory/log" is_ready "$1"
}

is_ready() { sql "$1" mysql "SHOW STATUS LIKE 'wsrep_ready'" | grep -q ON; }

# Runs statements: sql <node> <database> <statements>
sql() { mariadb --no-defaults --socket="$work/$1/socket" --user root --batch --skip-column-names "$2" --execute "$3"; }

# Waits until both nodes have applied the same: the second one's rows are visible at the first.
applied() { sql 1 app "SET SESSION wsrep_sync_wait = 1; SELECT COUNT(*) FROM ledger" >/dev/null; }

# Prints how the commit of a stale transaction ends: stale_commit <SQL of the fence>
stale_commit() {
  sql 1 mysql 'DROP DATABASE IF EXISTS app; CREATE DATABASE app'
  mariadb --no-defaults --socket="$work/1/socket" --user root app <"$1"
  sql 1 app 'CREATE TABLE ledger (value INT PRIMARY KEY); CREATE TABLE other (number INT PRIMARY KEY, text CHAR(200));
    CALL leasehold_fence("report", 1000)'
  sql 2 app 'SET SESSION wsrep_sync_wait = 1; SELECT COUNT(*) FROM leasehold_fences' >/dev/null
  coproc stale { mariadb --no-defaults --socket="$work/1/socket" --user root --batch --skip-column-names --unbuffered app 2>&1; }
  # bash forgets the coprocess when it ends.
  local pid=$stale_PID to from line
  exec {to}>&"${stale[1]}" {from}<&"${stale[0]}"
  exec {stale[1]}>&- {stale[0]}<&-
  echo "START TRANSACTION; CALL leasehold_fence('report', 1000); INSERT INTO ledger VALUES (1); SELECT 'open';" >&"$to"
  read -r line <&"$from"
  [ "$line" = open ] || fail "the stale transaction: $line"
  sql 2 app "INSERT INTO other SELECT seq, REPEAT('a', 200) FROM seq_1_to_$ROWS;
    START TRANSACTION; CALL leasehold_fence('report', 2000); INSERT INTO ledger VALUES (2); COMMIT"
  [ "$(sql 1 app 'SELECT token FROM leasehold_fences')" = 1000 ] || fail "node 1 had applied the newer token already"
  echo "COMMIT; SELECT 'committed';" >&"$to"
  exec {to}>&-
  cat <&"$from"
  exec {from}<&-
  wait "$pid" || true
  applied
}

start_node 1 gcomm://
start_node 2 "gcomm://127.0.0.1:$first"

outcome=$(stale_commit "$fence")
grep -q '^ERROR 1213 ' <<<"$outcome" || fail "the stale transaction was not refused: $outcome"
[ "$(sql 1 app 'SELECT value FROM ledger')" = 2 ] || fail "the stale write landed"

sed 's/, passes = passes + 1//' "$fence" >"$work/control.sql"
outcome=$(stale_commit "$work/control.sql")
[ "$outcome" = committed ] || fail "the control is refused, so this test shows nothing: $outcome"
[ "$(sql 1 app 'SELECT token, GROUP_CONCAT(value ORDER BY value) FROM leasehold_fences, ledger')" = $'2000\t1,2' ] ||
  fail "the control has no newer token"
echo "galera: a stale transaction at one node fails after a newer token was committed at the other; the control commits"
