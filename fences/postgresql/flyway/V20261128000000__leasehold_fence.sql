-- The fence of docs/fencing-sql.md for PostgreSQL 13 or newer. Run it once in your database, as the owner of the
-- tables that it guards, and not as the app's role:
--
--   psql --dbname DATABASE --single-transaction --set ON_ERROR_STOP=1 --file 20261128000000_leasehold_fence.up.sql
--   psql --dbname DATABASE --command 'GRANT USAGE ON SCHEMA leasehold TO APP_ROLE' \
--     --command 'GRANT EXECUTE ON FUNCTION leasehold.fence TO APP_ROLE'

CREATE SCHEMA leasehold;

-- One row for each resource, with the largest token seen. Do not delete a row: its token would be forgotten. The function
-- checks the values: a CHECK costs each passage more than all comparisons.
CREATE TABLE leasehold.fences (
    -- Compared as bytes, so that a new version of the system's collations cannot damage the index.
    resource text COLLATE "C" PRIMARY KEY,
    token bigint NOT NULL,
    -- The transaction that passed the fence last, for require_fence. The row is locked until it ends.
    passed_by xid8 NOT NULL
) WITH (fillfactor = 50); -- Space for new versions of a row beside the old ones: no index is written.

-- Default privileges may have granted rights on the new table. With one of them a role could lower a token.
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
END $$;

-- Passes the fence and returns true, for use in a condition, or raises LH001 if the token is stale. It runs with its
-- owner's rights, so the app's role needs no right on the table and cannot lower a token. Each name has its schema, so the
-- caller's search_path has no effect: to set one for the call costs more than the check.
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
END $$;

-- For a trigger, before or after each statement: raises LH002 in a transaction that has not passed the fence of the
-- trigger's argument.
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
END $$;

-- By default, every role may call a function. A role that may call this one can also record a token that no lease has,
-- and so refuse all other writers.
REVOKE ALL ON FUNCTION leasehold.fence FROM PUBLIC;
