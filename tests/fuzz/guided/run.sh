#!/usr/bin/env bash
# Runs the fuzz targets one after the other, guided by coverage.
#
#   tests/fuzz/guided/run.sh SECONDS [TARGET…]        (make fuzz)
#
# Inputs that cover something new are kept under target/fuzz/corpus, and the next run starts with
# them. An input that fails is reported, and kept under target/fuzz/found.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."

[ $# -ge 1 ] || { echo "usage: run.sh SECONDS [TARGET…]" >&2; exit 1; }
command -v c++ >/dev/null || { echo "a C++ compiler is missing, for libFuzzer: apt-get install g++" >&2; exit 1; }
seconds=$1
shift
[ $# -ge 1 ] || set -- $(ls tests/fuzz/corpus)

target=${CARGO_TARGET_DIR:-$PWD/target}
RUSTC_WORKSPACE_WRAPPER=$PWD/tests/fuzz/guided/rustc.sh cargo build --locked --package leasehold-fuzz

mkdir -p "$target/fuzz/found"
for name in "$@"; do
  corpus=$target/fuzz/corpus/$name
  mkdir -p "$corpus"
  echo "== $name, for $seconds s"
  LEASEHOLD_FUZZ=$name LEASEHOLD_FUZZ_SEEDS=$corpus "$target/debug/leasehold-fuzz" \
    "$corpus" "tests/fuzz/corpus/$name" -max_total_time="$seconds" -max_len=24576 -timeout=30 \
    -rss_limit_mb=4096 -print_final_stats=1 -artifact_prefix="$target/fuzz/found/$name-"
done
