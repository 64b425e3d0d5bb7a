#!/usr/bin/env bash
# Rewrites what is generated from the .up.sql and .down.sql of each database: flyway/V….sql and alembic/….py. They are in
# directories of their own, because sqlx rejects a version that begins with V.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")"

version=20261128000000

# Prints the statements of a file as a Python list, because many drivers run one statement at a time. A statement ends with
# a semicolon in a line that is not indented.
python_list() {
  echo "$1 = ["
  awk '
    !inside && (/^--/ || /^$/) { next }
    !inside { printf "    \"\"\"\n"; inside = 1 }
    { ends = /^[^ ]/ && sub(/;( --.*)?$/, ""); print }
    ends { print "\"\"\","; inside = 0 }
    END { if (inside) { print FILENAME ": the last statement has no end" > "/dev/stderr"; exit 1 } }
  ' "$2"
  echo "]"
}

alembic() {
  local up down
  up=$(python_list UP "$1/${version}_leasehold_fence.up.sql")
  down=$(python_list DOWN "$1/${version}_leasehold_fence.down.sql")
  cat <<PYTHON
"""The fence of Leasehold. Set down_revision to your newest revision.

Generated from ${version}_leasehold_fence.up.sql, which says how to use it.
"""

from alembic import op

revision = "$version"
down_revision = None
branch_labels = None
depends_on = None

$up

$down


def upgrade() -> None:
    for statement in UP:
        op.execute(statement)


def downgrade() -> None:
    for statement in DOWN:
        op.execute(statement)
PYTHON
}

for database in postgresql mariadb sqlite; do
  mkdir -p "$database/flyway" "$database/alembic"
  cp "$database/${version}_leasehold_fence.up.sql" "$database/flyway/V${version}__leasehold_fence.sql"
  alembic "$database" >"$database/alembic/${version}_leasehold_fence.py"
done
