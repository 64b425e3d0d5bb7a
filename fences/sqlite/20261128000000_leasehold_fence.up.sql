-- The fence of docs/fencing-sql.md for SQLite 3.37 or newer. Run it once in your database:
--
--   sqlite3 -bail FILE < 20261128000000_leasehold_fence.up.sql

-- One row for each resource, with the largest token seen. Do not delete a row: its token would be forgotten.
CREATE TABLE leasehold_fences (
    resource TEXT NOT NULL PRIMARY KEY CHECK (resource <> ''),
    token INTEGER NOT NULL CHECK (token BETWEEN 1 AND 9007199254740991)
) STRICT, WITHOUT ROWID;

-- An INSERT into this view passes the fence, or fails with the trigger's error and changes nothing.
CREATE VIEW leasehold_fence AS SELECT resource, token FROM leasehold_fences;

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
END;
