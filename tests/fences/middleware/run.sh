#!/usr/bin/env bash
# Starts a guarded service in each language on real stores, and writes to it as two holders:
# run.sh <directory> <directory of the clients> [language…]
#
# The services are those of docs/fencing-http.md. What they need is installed in the directories.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
repository=$(cd "$here/../../.." && pwd)
mkdir -p "$1" "$2"
work=$(cd "$1" && pwd)
clients=$(cd "$2" && pwd)
shift 2
# shellcheck source=tests/fences/servers.sh
. "$here/../servers.sh"

scratch=$(mktemp -d)
chmod 755 "$scratch"
trap 'stop_servers; rm -rf "$scratch"' EXIT

# Each build_LANGUAGE leaves a service, and each start_LANGUAGE becomes it.
build_go() { (cd "$here/go" && export GOWORK=off && go vet -mod=readonly . && go build -mod=readonly -buildvcs=false -o "$work/go" .); }

start_go() {
  export DATABASE=postgres://postgres@127.0.0.1:$postgresql/go ADDRESS=127.0.0.1:$1
  exec "$work/go"
}

build_python() { "$repository/scripts/python.sh" "$here/python/requirements.txt" "$work/python"; }

start_python() { start_asgi python service "$1"; }

build_django() { build_python; }

start_django() { start_asgi django django_service "$1"; }

# start_asgi <database> <module> <port>
start_asgi() {
  export DATABASE=postgres://postgres@127.0.0.1:$postgresql/$1
  export PYTHONPATH=$repository/clients/python/src PYTHONDONTWRITEBYTECODE=1
  exec "$work/python/venv/bin/python" -m uvicorn --app-dir "$here/python" --port "$3" --log-level warning "$2:app"
}

build_express() {
  "$repository/clients/typescript/check.sh" "$clients/typescript"
  mkdir -p "$work/express"
  cp "$here"/express/* "$work/express"
  cd "$work/express"
  export npm_config_update_notifier=false npm_config_audit=false npm_config_fund=false
  npm ci --silent --ignore-scripts
  npm install --silent --offline --no-save --ignore-scripts "$clients"/typescript/leasehold-*.tgz
}

start_express() {
  export REDIS=redis://127.0.0.1:$redis PORT=$1
  exec node "$work/express/service.mjs"
}

# One run of Maven builds the client and its user.
build_spring() {
  mkdir -p "$work/spring"
  cat >"$work/spring/pom.xml" <<END
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>dev.leasehold</groupId>
  <artifactId>middleware</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <modules>
    <module>$(realpath --relative-to="$work/spring" "$repository/clients/java")</module>
    <module>$(realpath --relative-to="$work/spring" "$here/spring")</module>
  </modules>
</project>
END
  mvn --file "$work/spring" --batch-mode --quiet --no-transfer-progress -Dstyle.color=never -Dmaven.test.skip \
    -DbuildDirectory="$work/spring/client" -DserviceDirectory="$work/spring/service" package
}

start_spring() {
  exec java -cp "$work/spring/service/classes:$work/spring/service/dependency/*" example.Service "--server.port=$1" \
    "--spring.datasource.url=jdbc:postgresql://127.0.0.1:$postgresql/spring?user=postgres" --spring.main.banner-mode=off
}

# new_database <name>: a guarded row, and a table that only a transaction behind the fence can write.
new_database() {
  local psql=(psql --no-psqlrc --quiet --host 127.0.0.1 --port "$postgresql" --username postgres --set ON_ERROR_STOP=1)
  "${psql[@]}" --command "CREATE DATABASE $1"
  "${psql[@]}" --dbname "$1" --single-transaction \
    --file "$repository/fences/postgresql/20261128000000_leasehold_fence.up.sql" \
    --command "CREATE TABLE report (body text)" --command "INSERT INTO report VALUES ('')" \
    --command "CREATE TABLE payout (amount bigint)" \
    --command "CREATE TRIGGER fenced BEFORE UPDATE ON payout EXECUTE FUNCTION leasehold.require_fence('payouts')"
}

story() {
  local language=$1 port read
  "build_$language"
  case $language in
    express) read="redis-cli -p $redis GET {report}:body" ;;
    *)
      new_database "$language"
      read="psql --no-psqlrc --host 127.0.0.1 --port $postgresql --username postgres --dbname $language --no-align \
        --tuples-only --command 'SELECT body FROM report'"
      ;;
  esac
  port=$(free_port)
  ("start_$language" "$port") >"$scratch/$language.log" 2>&1 &
  servers+=($!)
  wait_until "$scratch/$language.log" curl --silent "http://127.0.0.1:$port/"
  python3 "$here/story.py" "$language" "http://127.0.0.1:$port" "$read" || {
    cat "$scratch/$language.log" >&2
    return 1
  }
}

postgresql=$(free_port)
redis=$(free_port)
start_postgresql "$scratch/postgresql" "$postgresql" -F
start_redis "$scratch/redis" "$redis"
redis-cli -p "$redis" -e -x FUNCTION LOAD REPLACE <"$repository/fences/redis/leasehold.lua" >"$scratch/redis/library"
[ $# -gt 0 ] || set -- go python django express spring
for language in "$@"; do story "$language"; done
