#!/usr/bin/env bash
# Checks the rules and types of the page's scripts, and installs axe-core for the tests: check.sh <directory>
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
page=$here/../../../src/cli/kubectl/ui/page
mkdir -p "$1"
cd "$1"

cp "$here/package.json" "$here/package-lock.json" "$here/biome.jsonc" .
export npm_config_update_notifier=false npm_config_audit=false npm_config_fund=false
if ! cmp -s package-lock.json installed.json; then
  for attempt in 1 2 3; do
    npm ci --loglevel=error --ignore-scripts >/dev/null && break
    [ $attempt -lt 3 ]
  done
  # This comes last: without this file the packages are installed again.
  cp package-lock.json installed.json
fi
export PATH=$PWD/node_modules/.bin:$PATH

# What has been removed there must not stay here.
rm -rf checked
mkdir checked
cp "$page"/*.js "$page"/*.css checked
biome ci --colors=off --vcs-enabled=false --error-on-warnings --log-level=warn .
tsc --pretty false --noEmit --strict --checkJs --target es2024 --lib es2024,dom,dom.iterable \
  --module esnext --moduleResolution bundler checked/main.js
