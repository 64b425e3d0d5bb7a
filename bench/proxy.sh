#!/usr/bin/env bash
# What `leasehold fence` costs, beside nginx and HAProxy as plain reverse proxies in front of the same service: POST
# requests with five bytes and a token that is known. The argument is the binary. Prints medians of RUNS runs: the latency of one
# connection, in µs, and the requests per second of 50 connections. The generator and the service share the machine.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/fences/servers.sh
. "$here/../tests/fences/servers.sh"
leasehold=$1
RUNS=${RUNS:-5} SECONDS_EACH=${SECONDS_EACH:-3}
directory=$(mktemp -d)
chmod 755 "$directory"

# nginx <name> <port> <location>: with two processes, without a log.
start_nginx() {
  new_directory "$directory/$1"
  cat >"$directory/$1/conf" <<CONF
worker_processes 2; daemon off; pid $directory/$1/pid; error_log stderr;
events { worker_connections 1024; }
http {
  access_log off; keepalive_requests 1000000000;
  client_body_temp_path $directory/$1/a; proxy_temp_path $directory/$1/b; fastcgi_temp_path $directory/$1/c;
  uwsgi_temp_path $directory/$1/d; scgi_temp_path $directory/$1/e;
  upstream service { server 127.0.0.1:$service; keepalive 128; keepalive_requests 1000000000; }
  server { listen 127.0.0.1:$2; location / { $3 } }
}
CONF
  "${unprivileged[@]}" nginx -c "$directory/$1/conf" >"$directory/$1/log" 2>&1 &
  servers+=($!)
  wait_until "$directory/$1/log" curl --silent "http://127.0.0.1:$2/"
}

start_haproxy() {
  cat >"$directory/haproxy.conf" <<CONF
global
  nbthread 2
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  http-reuse always
frontend clients
  bind 127.0.0.1:$haproxy
  default_backend service
backend service
  server service 127.0.0.1:$service
CONF
  haproxy -f "$directory/haproxy.conf" >"$directory/haproxy.log" 2>&1 &
  servers+=($!)
  wait_until "$directory/haproxy.log" curl --silent "http://127.0.0.1:$haproxy/"
}

start_fence() {
  "$leasehold" fence --upstream "http://127.0.0.1:$service" --listen "127.0.0.1:$fence" --admin-listen none \
    --state-dir "$directory/state" --trust-tokens --settle 0 >"$directory/fence.log" 2>&1 &
  servers+=($!)
  wait_until "$directory/fence.log" curl --silent "http://127.0.0.1:$fence/"
}

# measure <connections> <port>: prints the median latency in µs and the requests per second.
measure() {
  wrk --threads 1 --connections "$1" --duration "${SECONDS_EACH}s" --script "$directory/post.lua" "http://127.0.0.1:$2/" |
    tail -1 | grep '^[0-9]'
}

median() { sort -n | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'; }

trap 'stop_servers; rm -rf "$directory"' EXIT
service=$(free_port) nginx=$(free_port) haproxy=$(free_port) fence=$(free_port)
cat >"$directory/post.lua" <<'LUA'
wrk.method = "POST"
wrk.body = "hello"
wrk.headers["X-Fencing-Token"] = "1843000"
wrk.headers["X-Fencing-Resource"] = "report"
done = function(summary, latency)
  local errors = summary.errors
  local failed = errors.connect + errors.read + errors.write + errors.status + errors.timeout
  if failed > 0 then
    print("failed: " .. failed)
  else
    print(string.format("%d %d", latency:percentile(50), summary.requests / summary.duration * 1e6))
  end
end
LUA
start_nginx service "$service" 'return 200 "ok\n";'
start_nginx nginx "$nginx" 'proxy_pass http://service; proxy_http_version 1.1; proxy_set_header Connection "";'
start_haproxy
start_fence
for ((run = 0; run < RUNS; run++)); do
  for server in service nginx haproxy fence; do
    measure 1 "${!server}" | cut -d ' ' -f 1 >>"$directory/latency-$server"
    measure 50 "${!server}" | cut -d ' ' -f 2 >>"$directory/rate-$server"
  done
done
for server in service nginx haproxy fence; do
  echo "$server: $(median <"$directory/latency-$server") µs, $(median <"$directory/rate-$server") requests/s"
done
