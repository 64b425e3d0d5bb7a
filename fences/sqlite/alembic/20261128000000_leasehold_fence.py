"""The fence of Leasehold. Set down_revision to your newest revision.

Generated from 20261128000000_leasehold_fence.up.sql, which says how to use it.
"""

from alembic import op

revision = "20261128000000"
down_revision = None
branch_labels = None
depends_on = None

UP = [
    """
CREATE TABLE leasehold_fences (
    resource TEXT NOT NULL PRIMARY KEY CHECK (resource <> ''),
    token INTEGER NOT NULL CHECK (token BETWEEN 1 AND 9007199254740991)
) STRICT, WITHOUT ROWID
""",
    """
CREATE VIEW leasehold_fence AS SELECT resource, token FROM leasehold_fences
""",
    """
CREATE TRIGGER leasehold_fence_pass INSTEAD OF INSERT ON leasehold_fence
BEGIN
    -- INSERT OR IGNORE would turn off the constraints of the table, and not these errors.
    SELECT RAISE(ABORT, 'not a fencing token, or no resource')
    WHERE ifnull(NEW.resource, '') = '' OR NEW.token IS NULL
       OR CAST(CAST(NEW.token AS INTEGER) AS TEXT) IS NOT CAST(NEW.token AS TEXT)
       -- Drivers of JavaScript send each number as REAL.
      AND (typeof(NEW.token) <> 'real' OR NEW.token <> CAST(NEW.token AS INTEGER))
       OR CAST(NEW.token AS INTEGER) NOT BETWEEN 1 AND 9007199254740991;
    SELECT RAISE(ABORT, 'stale fencing token')
    WHERE EXISTS (SELECT 1 FROM leasehold_fences WHERE resource = NEW.resource AND token > NEW.token);
    INSERT INTO leasehold_fences VALUES (NEW.resource, NEW.token)
    ON CONFLICT (resource) DO UPDATE SET token = excluded.token;
END
""",
]

DOWN = [
    """
DROP VIEW leasehold_fence
""",
    """
DROP TABLE leasehold_fences
""",
]


def upgrade() -> None:
    for statement in UP:
        op.execute(statement)


def downgrade() -> None:
    for statement in DOWN:
        op.execute(statement)
