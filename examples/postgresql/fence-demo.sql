-- Tables to try the recipes of docs/fencing.md with two sessions, in a separate database:
--
--   createdb fencing
--   psql --dbname fencing --file examples/postgresql/fence.sql --file examples/postgresql/fence-demo.sql

\set ON_ERROR_STOP on
BEGIN;

-- Recipe A guards several tables; this is one of them.
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

CREATE TRIGGER fenced BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON payout
    FOR EACH STATEMENT EXECUTE FUNCTION require_fence('payouts');

COMMIT;
