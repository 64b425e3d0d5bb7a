#!/usr/bin/env bash
# Checks the package's format, rules and types, installs it and runs its tests: check.sh <directory>
#
# The interpreter that has it is <directory>/venv/bin/python.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
"$here/../../scripts/python.sh" "$here/requirements-dev.txt" "$1"
work=$(cd "$1" && pwd)
python=$work/venv/bin/python

cd "$here"
export PYTHONDONTWRITEBYTECODE=1
"$python" -m ruff format --check --quiet --no-cache .
"$python" -m ruff check --quiet --no-cache .
MYPYPATH=src "$python" -m mypy --cache-dir "$work/mypy"
# As a user gets it: a wheel, so a file that the package lacks is noticed.
"$python" -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$work/wheel" .
"$python" -m pip install --quiet --no-deps --force-reinstall "$work"/wheel/leasehold-*.whl
"$python" -m pytest -qq -p no:cacheprovider tests
