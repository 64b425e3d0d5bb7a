#!/usr/bin/env bash
# Compares what the OpenAPI document allows with what `leasehold dev` accepts: run.sh <leasehold> <directory>
#
# It installs Schemathesis in the directory, at the versions of requirements.txt.
# EXAMPLES=… is the number of random requests to each call, in addition to those for each bound.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
leasehold=$1
mkdir -p "$2"
work=$(cd "$2" && pwd)

"$here/../../scripts/python.sh" "$here/requirements.txt" "$work"

data=$(mktemp -d)
: >"$work/dev.log"
"$leasehold" dev --data-dir "$data" --listen 127.0.0.1:0 --admin-listen none >"$work/dev.log" 2>&1 &
dev=$!
trap 'kill $dev; wait $dev || true; rm -rf "$data"' EXIT
url=
until [ -n "$url" ]; do
  kill -0 $dev || { cat "$work/dev.log" >&2; exit 1; }
  url=$(sed -nE 's#.*(http://127\.0\.0\.1:[0-9]+).*#\1#p' "$work/dev.log" | head -1)
  sleep 0.1
done

cd "$work"
LEASEHOLD_URL=$url LEASEHOLD_EXAMPLES=${EXAMPLES:-100} NO_PROXY=127.0.0.1 no_proxy=127.0.0.1 \
  timeout 300 "$work/venv/bin/python" -B -m pytest -q --tb=short -p no:cacheprovider "$here/test_schema.py"
