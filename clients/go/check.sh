#!/usr/bin/env bash
# Checks the module's format, rules and tests, and builds the driver and the examples: check.sh <directory>
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
work=$(cd "$1" && pwd)
# Pinned here, and not in go.mod: what uses the module does not need it.
staticcheck=honnef.co/go/tools/cmd/staticcheck@v0.8.2

cd "$here"
export GOWORK=off
unformatted=$(gofmt -l .)
[ -z "$unformatted" ] || {
  echo "not formatted: $unformatted; run gofmt -w" >&2
  exit 1
}
go vet -mod=readonly ./...
GOBIN="$work/bin" go install "$staticcheck"
"$work/bin/staticcheck" ./...
# The suite runs a driver that notices data races.
go test -mod=readonly -race ./...
go build -mod=readonly -buildvcs=false -race -o "$work/driver" ./conformance
go build -mod=readonly -buildvcs=false -o "$work/examples/" ./examples/...
