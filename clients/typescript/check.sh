#!/usr/bin/env bash
# Checks the package's format, rules and types, and installs it: check.sh <directory>
#
# <directory>/app has it as a user gets it, with the driver and the examples. <directory>/package is a copy of this one
# with what npm installs.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
work=$(cd "$1" && pwd)

node -e 'process.exit(Number.parseInt(process.versions.node) < 20 ? 1 : 0)' 2>/dev/null && command -v npm >/dev/null || {
  echo "Node 20 or later with npm is missing (https://nodejs.org)" >&2
  exit 1
}

# The same files were checked before.
checked=$(cd "$here" && find . \( -path ./node_modules -o -path ./dist -o -path ./docs \) -prune -o -type f -print0 |
  LC_ALL=C sort -z | xargs -0 sha256sum && node --version)
[ "$checked" != "$(cat "$work/checked.txt" 2>/dev/null)" ] || exit 0
rm -f "$work/checked.txt"

# What has been removed here must not stay in the copy.
mkdir -p "$work/package"
find "$work/package" -mindepth 1 -maxdepth 1 ! -name node_modules -exec rm -rf {} +
tar -C "$here" --exclude ./node_modules --exclude ./dist --exclude ./docs --exclude '*.tgz' -cf - . | tar -C "$work/package" -xf -
cd "$work/package"
export npm_config_update_notifier=false npm_config_audit=false npm_config_fund=false
if ! cmp -s package-lock.json "$work/installed.json"; then
  for attempt in 1 2 3; do
    npm ci --loglevel=error --ignore-scripts >/dev/null && break
    [ $attempt -lt 3 ]
  done
  # This comes last: without this file the packages are installed again.
  cp package-lock.json "$work/installed.json"
fi
export PATH=$work/package/node_modules/.bin:$PATH

biome ci --colors=off --vcs-enabled=false --error-on-warnings --log-level=warn .
npm run --silent build
archive=$(npm pack --silent --ignore-scripts --pack-destination "$work")
typedoc --emit none --treatWarningsAsErrors --logLevel Warn
# The declarations with those of Node, and without.
tsc --pretty false --project tsconfig.users.json
tsc --pretty false --project tsconfig.bare.json
node --test --test-reporter=spec test/*.test.mjs >"$work/test.log" || {
  cat "$work/test.log" >&2
  exit 1
}

# As a user gets it: a file that the package lacks is noticed.
rm -rf "$work/app"
mkdir "$work/app"
cp -r conformance/driver.mjs examples "$work/app"
cd "$work/app"
echo '{ "private": true }' >package.json
npm install --silent --offline --no-save "$work/$archive"
esbuild --log-level=warning --target=node20 examples/dispose.mts --outfile=examples/dispose.mjs
for format in mjs=esm cjs=cjs; do
  esbuild --log-level=warning --platform=node --bundle --minify examples/leader.mjs \
    --format=${format#*=} --outfile=bundled/leader.${format%=*}
done
echo "$checked" >"$work/checked.txt"
