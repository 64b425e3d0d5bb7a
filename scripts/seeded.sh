#!/usr/bin/env bash
# Seeded bugs: tests/seeded/bugs.patch adds them to a copy of the tree (tests/seeded-bugs.md). Shipped code has none.
#
#   scripts/seeded.sh copy           updates the copy, target/seeded/tree: the files of the tree, with the patch
#   scripts/seeded.sh cargo test …   updates the copy and runs cargo in it
#   scripts/seeded.sh save           rewrites the patch from the copy, after the copy was edited
#   scripts/seeded.sh check          fails if the patch does not apply to the tree
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly patch=tests/seeded/bugs.patch
mkdir -p "${CARGO_TARGET_DIR:-target}/seeded"
target=$(cd "${CARGO_TARGET_DIR:-target}" && pwd)
readonly target copy=$target/seeded/tree git=$target/seeded/git
# Contains the blobs that the patch was created from: the base of a three-way merge.
objects=$(git rev-parse --git-path objects 2>/dev/null || true)
[ ! -d "$objects" ] || objects=$(cd "$objects" && pwd)

die() {
  printf 'seeded.sh: %s\n' "$*" >&2
  exit 1
}

# The copy has its own repository, with an index for each state. git writes only files that differ, so cargo rebuilds
# only what changed.
run_git() (
  export GIT_DIR=$git GIT_WORK_TREE=$2 GIT_INDEX_FILE=$git/$1
  cd "$2"
  git "${@:3}"
)
in_tree() { run_git tree "$PWD" "$@"; }
in_patched() { run_git patched "$PWD" "$@"; }
in_copy() { run_git copy "$copy" "$@"; }
in_edited() { run_git edited "$copy" "$@"; }

main() {
  mkdir -p "$copy"
  if [ "${1:-}" != check ]; then
    # One run at a time, because all runs write the same indexes. A remaining git lock file is from a killed run.
    exec 9>"$target/seeded/lock"
    flock 9
    [ -e "$git" ] || in_tree init --quiet
    rm -f "$git"/*.lock
    mkdir -p "$git/info"
    # A target directory inside the tree is excluded from the tree's files.
    printf '/%s\n' "${target#"$PWD"/}" >"$git/info/exclude"
  fi
  case ${1:-} in
    copy) update_copy ;;
    cargo)
      [ $# -ge 2 ] || usage
      update_copy
      exec 9>&-
      cd "$copy"
      # Both trees build in one directory, so dependencies are built once. Cargo distinguishes the trees only by their
      # profiles: the copy has no debug information, and a number of codegen units that no other profile sets. Tests
      # find the control plane by CARGO_TARGET_DIR.
      CARGO_TARGET_DIR=$target CARGO_BUILD_BUILD_DIR=$target exec cargo "$2" --target-dir "$target/seeded" \
        --config profile.dev.package.leasehold.debug=false \
        --config profile.dev.package.leasehold.codegen-units=255 "${@:3}"
      ;;
    save) save ;;
    check)
      # Without the variable, git skips all files where the tree lies inside another repository.
      GIT_CEILING_DIRECTORIES=$(dirname "$PWD") git apply --check "$patch" ||
        die "$patch does not apply: run scripts/seeded.sh copy"
      ;;
    *) usage ;;
  esac
}

usage() { die "usage: seeded.sh copy|cargo COMMAND …|save|check"; }

# Reads the tree's files into the index `tree`. The index `patched` starts with the same files; `apply` adds the patch.
read_tree() {
  in_tree add --all
  cp "$git/tree" "$git/patched"
}
apply() { in_patched apply --cached "$patch"; }

update_copy() {
  [ ! -e "$git/copy" ] || [ -z "$(in_copy ls-files --modified --others --exclude-standard)" ] ||
    die "$copy has edits: keep them by scripts/seeded.sh save, or remove $target/seeded"
  local applies=yes
  read_tree
  apply || applies=no
  in_tree write-tree >"$git/base"
  if [ "$applies" = no ]; then
    merge
    die "$patch does not apply. It was merged into $copy:" \
      "resolve conflict markers and *.rej files there, then run scripts/seeded.sh save"
  fi
  in_copy read-tree --reset -u "$(in_patched write-tree)"
}

# Leaves conflict markers, or *.rej files if git does not have the blobs that the patch was created from.
merge() {
  in_copy read-tree --reset -u "$(cat "$git/base")"
  GIT_ALTERNATE_OBJECT_DIRECTORIES=$objects in_copy apply --3way "$PWD/$patch" ||
    [ -n "$(in_copy ls-files --unmerged)" ] ||
    in_copy apply --reject "$PWD/$patch" || true
}

save() {
  [ -e "$git/base" ] || die "there is no copy yet: run scripts/seeded.sh copy first"
  [ -z "$(find "$copy" -name '*.rej')" ] || die "$copy has *.rej files"
  local base
  base=$(cat "$git/base")
  cp "$git/copy" "$git/edited"
  in_edited add --all
  in_edited diff-index --cached --check "$base" || die "$copy has conflict markers"
  in_edited diff-index --cached --patch --full-index "$base" >"$patch"
  mv "$git/edited" "$git/copy"
  read_tree
  apply || die "the tree has changed since the copy was made: run scripts/seeded.sh copy"
}

main "$@"
