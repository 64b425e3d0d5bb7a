# Functions that start a PostgreSQL, a MariaDB and a Redis server in directories of their own, on 127.0.0.1. Their owners
# need no password. stop_servers stops them. This file is sourced by bash, with `set -euo pipefail`.
# shellcheck shell=bash

servers=()

# PostgreSQL and MariaDB refuse to run as root. A function would be a process of its own in the background, and `$!` its number.
unprivileged=()
[ "$(id -u)" != 0 ] || unprivileged=(setpriv --reuid nobody --regid nogroup --clear-groups)

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# Waits until a command succeeds: wait_until <log> <command…>
wait_until() {
  local log=$1
  shift
  for _ in $(seq 300); do
    "$@" >/dev/null 2>&1 && return
    sleep 0.1
  done
  cat "$log" >&2
  return 1
}

new_directory() {
  mkdir "$1"
  [ "$(id -u)" != 0 ] || chown nobody:nogroup "$1"
}

# start_postgresql <new directory> <port> [argument…]; the owner is `postgres`.
start_postgresql() {
  local bin
  bin=$(dirname "$(find /usr/lib/postgresql -name initdb | sort -V | tail -1)")
  new_directory "$1"
  "${unprivileged[@]}" "$bin/initdb" --no-sync --auth trust --username postgres --encoding UTF8 --pgdata "$1/data" >"$1/log"
  "${unprivileged[@]}" "$bin/postgres" -D "$1/data" -k "$1" -h 127.0.0.1 -p "$2" "${@:3}" >>"$1/log" 2>&1 &
  servers+=($!)
  wait_until "$1/log" psql --host 127.0.0.1 --port "$2" --username postgres --command 'SELECT 1'
}

# start_mariadb <new directory> <port>; the owner is `root`.
start_mariadb() {
  new_directory "$1"
  "${unprivileged[@]}" mariadb-install-db --no-defaults --auth-root-authentication-method=normal --skip-test-db \
    --datadir="$1/data" >"$1/log" 2>&1
  "${unprivileged[@]}" mariadbd --no-defaults --datadir="$1/data" --socket="$1/socket" --bind-address=127.0.0.1 --port="$2" \
    --innodb-buffer-pool-size=32M >>"$1/log" 2>&1 &
  servers+=($!)
  wait_until "$1/log" mariadb --no-defaults --host 127.0.0.1 --port "$2" --user root --execute 'SELECT 1'
}

# start_redis <new directory> <port>
start_redis() {
  new_directory "$1"
  "${unprivileged[@]}" redis-server --bind 127.0.0.1 --port "$2" --dir "$1" --save '' >"$1/log" 2>&1 &
  servers+=($!)
  wait_until "$1/log" redis-cli -p "$2" -e PING
}

# Stops all before it waits for one: PostgreSQL ends after its clients.
stop_servers() {
  local server
  for server in "${servers[@]}"; do kill "$server" 2>/dev/null || true; done
  for server in "${servers[@]}"; do wait "$server" || true; done
}
