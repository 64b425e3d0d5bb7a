-- The fence of docs/fencing.md: one table and two functions, for your database. Run it as the owner of the tables
-- that the fence guards, and not as the app's role:
--
--   psql --dbname DATABASE --file examples/postgresql/fence.sql
--   psql --dbname DATABASE --command 'GRANT EXECUTE ON FUNCTION pass_fence TO APP_ROLE'
--
-- The functions name the schema `public`. For another one, replace it in this file.

\set ON_ERROR_STOP on
BEGIN;

-- One row for each resource, with the largest token seen. Never delete a row: its token would be forgotten.
CREATE TABLE public.fence (
    resource  text PRIMARY KEY,
    token     bigint NOT NULL,
    -- The transaction that passed the fence last, for require_fence. The row is locked until it ends.
    passed_by xid8
);

-- Passes the fence, or raises LH001 if the token is stale. It runs with its owner's rights, so the app's role needs no
-- right on `fence` and cannot lower a token.
CREATE FUNCTION public.pass_fence(locked text, given bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO public.fence VALUES (locked, given, pg_current_xact_id())
    ON CONFLICT (resource) DO UPDATE SET token = EXCLUDED.token, passed_by = EXCLUDED.passed_by
    WHERE fence.token <= EXCLUDED.token;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'stale fencing token % for %', given, locked USING ERRCODE = 'LH001';
    END IF;
END $$;

-- By default, every role may call a function. A role that may call this one can also set an arbitrarily high token.
-- Then the fence refuses all other writers.
REVOKE ALL ON FUNCTION public.pass_fence FROM PUBLIC;

-- For a trigger (recipe C): raises LH002 in a transaction that has not passed the fence of the trigger's argument.
CREATE FUNCTION public.require_fence() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM public.fence
                   WHERE resource = TG_ARGV[0] AND passed_by = pg_current_xact_id()) THEN
        RAISE EXCEPTION 'call pass_fence(''%'', token) first', TG_ARGV[0] USING ERRCODE = 'LH002';
    END IF;
    RETURN NULL;
END $$;

COMMIT;
