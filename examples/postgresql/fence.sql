-- The tables and functions of docs/fencing.md, to try its recipes with two sessions:
--
--   createdb fencing
--   psql --dbname fencing --file examples/postgresql/fence.sql

\set ON_ERROR_STOP on
BEGIN;

-- Recipe A: a fence has one row for each resource, with the largest token seen.

CREATE TABLE fence (
    resource text PRIMARY KEY,
    token    bigint NOT NULL
);

CREATE TABLE ledger (
    id     bigint PRIMARY KEY,
    amount numeric NOT NULL
);

-- Recipe B: the written row has a column for the largest token seen.

CREATE TABLE report (
    id            bigint PRIMARY KEY,
    body          text NOT NULL,
    fencing_token bigint NOT NULL DEFAULT 0
);

INSERT INTO report (id, body) VALUES (1, 'empty');

-- Recipe C: a trigger refuses every write of a transaction that has not passed the fence.

CREATE TABLE payout (
    id     bigint PRIMARY KEY,
    amount numeric NOT NULL
);

-- The transaction that passed the fence last. The fence's row is locked until it ends.
ALTER TABLE fence ADD COLUMN passed_by xid8;

-- Runs with its owner's rights, so the app's role needs no right on `fence` and cannot lower a token.
CREATE FUNCTION pass_fence(locked text, given bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO public.fence VALUES (locked, given, pg_current_xact_id())
    ON CONFLICT (resource) DO UPDATE SET token = EXCLUDED.token, passed_by = EXCLUDED.passed_by
    WHERE fence.token <= EXCLUDED.token;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'stale fencing token % for %', given, locked USING ERRCODE = 'LH001';
    END IF;
END $$;

CREATE FUNCTION require_fence() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM public.fence
                   WHERE resource = TG_ARGV[0] AND passed_by = pg_current_xact_id()) THEN
        RAISE EXCEPTION 'call pass_fence(''%'', token) first', TG_ARGV[0] USING ERRCODE = 'LH002';
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER fenced BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON payout
    FOR EACH STATEMENT EXECUTE FUNCTION require_fence('payouts');

COMMIT;
