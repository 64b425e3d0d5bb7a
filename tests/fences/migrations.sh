#!/usr/bin/env bash
# Installs and removes the fences of PostgreSQL, MariaDB and SQLite by golang-migrate, Flyway and Alembic, each from the
# files in fences/ as they are: migrations.sh <directory>
#
# The tools are installed in the directory. In between, each fence must refuse a stale token. sqlx runs in the tests of
# `make fences`.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
fences=$(cd "$here/../../fences" && pwd)
mkdir -p "$1"
work=$(cd "$1" && pwd)
# shellcheck source=tests/fences/servers.sh
. "$here/servers.sh"

scratch=$(mktemp -d)
chmod 755 "$scratch"
trap 'stop_servers; rm -rf "$scratch"' EXIT
databases=(postgresql mariadb sqlite)

fail() {
  printf 'FAILED: %s\n' "$*" >&2
  exit 1
}

# Runs a command that prints only if it fails.
quietly() {
  "$@" >"$scratch/output" 2>&1 || {
    cat "$scratch/output" >&2
    fail "$*"
  }
}

# Runs SQL from the input: sql <database> <name>
sql() {
  case $1 in
    postgresql)
      psql --no-psqlrc --quiet --host 127.0.0.1 --port "$postgresql" --username postgres --dbname "$2" \
        --set ON_ERROR_STOP=1
      ;;
    mariadb) mariadb --no-defaults --host 127.0.0.1 --port "$mariadb" --user root "$2" ;;
    sqlite) sqlite3 -init /dev/null -bail "$scratch/$2.db" ;;
  esac
}

# Prints how a token passes the fence: pass <database> <token>
pass() {
  case $1 in
    postgresql) echo "SELECT leasehold.fence('report', $2);" ;;
    mariadb) echo "CALL leasehold_fence('report', $2);" ;;
    sqlite) echo "INSERT INTO leasehold_fence VALUES ('report', $2);" ;;
  esac
}

# must_refuse <database> <name>: the fence accepts a token and refuses an older one.
must_refuse() {
  pass "$1" 2000 | quietly sql "$1" "$2"
  if pass "$1" 1000 | sql "$1" "$2" >"$scratch/output" 2>&1; then fail "$2 on $1: an older token was accepted"; fi
  grep -qE 'stale.fencing.token' "$scratch/output" || fail "$2 on $1: $(cat "$scratch/output")"
}

# must_be_removed <database> <name>
must_be_removed() {
  local tables
  case $1 in
    postgresql | mariadb) tables="SELECT table_name FROM information_schema.tables WHERE table_name LIKE '%fence%';" ;;
    sqlite) tables="SELECT name FROM sqlite_schema WHERE name LIKE '%fence%';" ;;
  esac
  sql "$1" "$2" <<<"$tables" >"$scratch/output"
  ! grep -q fence "$scratch/output" || fail "$2 on $1: $(cat "$scratch/output")"
}

# new_database <name>: creates it on each server. SQLite creates its file.
new_database() {
  echo "CREATE DATABASE $1;" | sql postgresql postgres
  echo "CREATE DATABASE $1;" | sql mariadb mysql
}

# url <database> <name>, as golang-migrate writes it.
url() {
  case $1 in
    postgresql) echo "postgres://postgres@127.0.0.1:$postgresql/$2?sslmode=disable" ;;
    mariadb) echo "mysql://root@tcp(127.0.0.1:$mariadb)/$2" ;;
    sqlite) echo "sqlite3://$scratch/$2.db" ;;
  esac
}

golang_migrate() {
  local database
  (cd "$here/migrate" && GOWORK=off quietly go vet -mod=readonly . &&
    GOWORK=off quietly go build -mod=readonly -buildvcs=false -o "$work/migrate" .)
  new_database migrate
  for database in "${databases[@]}"; do
    quietly "$work/migrate" "$fences/$database" "$(url "$database" migrate)" up
    must_refuse "$database" migrate
    quietly "$work/migrate" "$fences/$database" "$(url "$database" migrate)" down
    must_be_removed "$database" migrate
  done
}

# Flyway Community has no undo: .down.sql runs without it.
flyway() {
  local database
  new_database flyway
  quietly mvn --file "$here/flyway/pom.xml" --batch-mode --no-transfer-progress \
    "-Dfences=$fences" "-Dpostgresql=jdbc:postgresql://127.0.0.1:$postgresql/flyway" \
    "-Dmariadb=jdbc:mariadb://127.0.0.1:$mariadb/flyway" "-Dsqlite=jdbc:sqlite:$scratch/flyway.db" \
    flyway:migrate@postgresql flyway:migrate@mariadb flyway:migrate@sqlite
  for database in "${databases[@]}"; do
    must_refuse "$database" flyway
    quietly sql "$database" flyway <"$fences/$database/20261128000000_leasehold_fence.down.sql"
    must_be_removed "$database" flyway
  done
}

# Copies the revision into the project that `alembic init` creates.
alembic() {
  local database urls
  "$here/../../scripts/python.sh" "$here/requirements.txt" "$work"
  declare -A urls=(
    [postgresql]="postgresql+psycopg://postgres@127.0.0.1:$postgresql/alembic"
    [mariadb]="mariadb+pymysql://root@127.0.0.1:$mariadb/alembic"
    [sqlite]="sqlite:///$scratch/alembic.db"
  )
  new_database alembic
  for database in "${databases[@]}"; do
    cd "$scratch"
    quietly "$work/venv/bin/alembic" init "$database-project"
    cp "$fences/$database"/alembic/*.py "$database-project/versions"
    sed -i "s|^sqlalchemy.url = .*|sqlalchemy.url = ${urls[$database]}|" alembic.ini
    quietly "$work/venv/bin/alembic" upgrade head
    must_refuse "$database" alembic
    quietly "$work/venv/bin/alembic" downgrade base
    must_be_removed "$database" alembic
    rm alembic.ini
  done
}

postgresql=$(free_port)
mariadb=$(free_port)
start_postgresql "$scratch/postgresql" "$postgresql" -F
start_mariadb "$scratch/mariadb" "$mariadb"
golang_migrate
flyway
alembic
echo "migrations: golang-migrate, Flyway and Alembic install and remove the fences of ${databases[*]}"
