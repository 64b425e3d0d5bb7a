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
CREATE SCHEMA leasehold
""",
    """
CREATE TABLE leasehold.fences (
    -- Compared as bytes, so that a new version of the system's collations cannot damage the index.
    resource text COLLATE "C" PRIMARY KEY,
    token bigint NOT NULL,
    -- The transaction that passed the fence last, for require_fence. The row is locked until it ends.
    passed_by xid8 NOT NULL
) WITH (fillfactor = 50)
""",
    """
DO $$
DECLARE
    role text;
BEGIN
    FOR role IN
        SELECT DISTINCT CASE acl.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(acl.grantee)) END
        FROM pg_class, aclexplode(relacl) AS acl
        WHERE pg_class.oid = 'leasehold.fences'::regclass AND acl.grantee <> relowner
    LOOP
        EXECUTE 'REVOKE ALL ON leasehold.fences FROM ' || role;
    END LOOP;
END $$
""",
    """
CREATE FUNCTION leasehold.fence(resource text, token bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_column
DECLARE
    newest bigint;
BEGIN
    UPDATE leasehold.fences SET token = fence.token, passed_by = pg_catalog.pg_current_xact_id()
    WHERE fences.resource OPERATOR(pg_catalog.=) fence.resource COLLATE pg_catalog."C"
        AND fences.token OPERATOR(pg_catalog.<=) fence.token
        AND fence.token OPERATOR(pg_catalog.<=) 9007199254740991;
    IF FOUND THEN
        RETURN true;
    END IF;
    IF (fence.resource OPERATOR(pg_catalog.<>) '' AND fence.token OPERATOR(pg_catalog.>=) 1
        AND fence.token OPERATOR(pg_catalog.<=) 9007199254740991) IS NOT TRUE THEN
        RAISE EXCEPTION 'the resource "%" or its fencing token % is not valid', fence.resource, fence.token
            USING ERRCODE = 'check_violation', HINT = 'Pass the name of the lock, and the token of the lease.';
    END IF;
    -- The first token of the resource, or a stale one. Another transaction may record the first token meanwhile.
    INSERT INTO leasehold.fences VALUES (fence.resource, fence.token, pg_catalog.pg_current_xact_id())
    ON CONFLICT (resource) DO UPDATE SET token = EXCLUDED.token, passed_by = EXCLUDED.passed_by
    WHERE fences.token OPERATOR(pg_catalog.<=) EXCLUDED.token;
    IF NOT FOUND THEN
        SELECT fences.token INTO newest FROM leasehold.fences
        WHERE fences.resource OPERATOR(pg_catalog.=) fence.resource COLLATE pg_catalog."C";
        RAISE EXCEPTION 'stale fencing token % for %: the newest is %', fence.token, fence.resource, newest
            USING ERRCODE = 'LH001', HINT = 'The lock was granted again. Roll back, and stop working.';
    END IF;
    RETURN true;
END $$
""",
    """
CREATE FUNCTION leasehold.require_fence() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM leasehold.fences
                   WHERE resource OPERATOR(pg_catalog.=) TG_ARGV[0]
                       AND passed_by OPERATOR(pg_catalog.=) pg_catalog.pg_current_xact_id()) THEN
        RAISE EXCEPTION 'call leasehold.fence(''%'', token) first', TG_ARGV[0] USING ERRCODE = 'LH002',
            HINT = 'Call it in the same transaction. The trigger''s argument is the resource.';
    END IF;
    RETURN NULL;
END $$
""",
    """
REVOKE ALL ON FUNCTION leasehold.fence FROM PUBLIC
""",
]

DOWN = [
    """
DROP FUNCTION leasehold.require_fence()
""",
    """
DROP FUNCTION leasehold.fence(text, bigint)
""",
    """
DROP TABLE leasehold.fences
""",
    """
DROP SCHEMA leasehold
""",
]


def upgrade() -> None:
    for statement in UP:
        op.execute(statement)


def downgrade() -> None:
    for statement in DOWN:
        op.execute(statement)
