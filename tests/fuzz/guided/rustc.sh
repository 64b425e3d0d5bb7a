#!/usr/bin/env bash
# The compiler for the crates of this workspace, with libFuzzer's coverage counters. A stable
# compiler supports them. Only sanitizers need a nightly one, and there is no unsafe code here for
# them to check.
set -euo pipefail
case " $* " in
  *" --crate-name leasehold"*) ;;
  *) exec "$@" ;;
esac
exec "$@" -Cpasses=sancov-module -Ccodegen-units=1 \
  -Cllvm-args=-sanitizer-coverage-level=4 \
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
  -Cllvm-args=-sanitizer-coverage-pc-table \
  -Cllvm-args=-sanitizer-coverage-trace-compares
