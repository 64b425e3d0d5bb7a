#!/usr/bin/env bash
# Installs Python packages in an environment of their own: python.sh <requirements.txt> <directory>
#
# The interpreter is <directory>/venv/bin/python. It is created again when the file changes.
set -euo pipefail
requirements=$1
mkdir -p "$2"
work=$(cd "$2" && pwd)

python3 -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))' || {
  echo "Python 3.10 or later with venv and pip is missing (Debian: apt-get install python3-venv)" >&2
  exit 1
}
if ! cmp -s "$requirements" "$work/requirements.txt"; then
  python3 -m venv --clear "$work/venv"
  for attempt in 1 2 3; do
    "$work/venv/bin/python" -m pip install --quiet --timeout 30 --requirement "$requirements" && break
    [ $attempt -lt 3 ]
  done
  # This comes last: an environment without this file is created again.
  cp "$requirements" "$work/requirements.txt"
fi
