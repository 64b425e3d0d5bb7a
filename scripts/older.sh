#!/usr/bin/env bash
# Builds the binary of an older version from the repository's history.
#
#   scripts/older.sh REVISION DIRECTORY        writes DIRECTORY/leasehold
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

revision=${1:-}
[ -n "$revision" ] || { echo "older.sh: which version? make upgrade OLDER=REVISION, a tag or a commit" >&2; exit 2; }
directory=${2:?the directory to write to}
commit=$(git rev-parse --verify --quiet "$revision^{commit}") || {
  echo "older.sh: $revision is no revision of this repository; give a tag or a commit: make upgrade OLDER=REVISION" >&2
  exit 2
}
tree=$directory/tree
mkdir -p "$directory"
git worktree prune
[ ! -e "$tree" ] || git worktree remove --force "$tree"
git worktree add --quiet --detach "$tree" "$commit"
trap 'git worktree remove --force "$tree"' EXIT
(cd "$tree" && CARGO_TARGET_DIR=$directory/target cargo build --locked --bin leasehold)
cp "$directory/target/debug/leasehold" "$directory/leasehold"
