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
    -- Bytes: a collation would treat different resources as equal.
    resource VARBINARY(512) NOT NULL PRIMARY KEY CHECK (resource <> ''),
    token BIGINT NOT NULL CHECK (token BETWEEN 1 AND 9007199254740991),
    -- Changes with each pass: the nodes of Galera compare changed rows only.
    passes BIGINT UNSIGNED NOT NULL DEFAULT 1,
    -- Never has a value: the constraint is how one statement refuses a stale token.
    refused BIGINT NULL,
    CONSTRAINT stale_fencing_token CHECK (refused IS NULL)
) ENGINE = InnoDB
""",
    """
CREATE PROCEDURE leasehold_fence(IN locked LONGTEXT CHARACTER SET utf8mb4, IN given LONGTEXT CHARACTER SET utf8mb4)
MODIFIES SQL DATA SQL SECURITY DEFINER
-- A session can turn constraints off.
SET STATEMENT check_constraint_checks = 1 FOR
INSERT INTO leasehold_fences (resource, token) VALUES (locked, IF(given REGEXP '^[1-9][0-9]{0,15}$', given, 0))
ON DUPLICATE KEY UPDATE refused = IF(VALUES(token) < token, 1, NULL), token = GREATEST(token, VALUES(token)), passes = passes + 1
""",
]

DOWN = [
    """
DROP PROCEDURE leasehold_fence
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
