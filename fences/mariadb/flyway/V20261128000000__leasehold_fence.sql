-- The fence of docs/fencing-sql.md for MariaDB 10.11 or newer. Run it once in your database, as the owner of the
-- tables that it guards. Not as the app's user, and not as root: the procedure would write on a read-only replica, as root may.
--
--   mariadb DATABASE < 20261128000000_leasehold_fence.up.sql
--   mariadb DATABASE --execute 'GRANT EXECUTE ON PROCEDURE leasehold_fence TO APP_USER'

-- One row for each resource, with the largest token seen. Do not delete a row: its token would be forgotten.
CREATE TABLE leasehold_fences (
    -- Bytes: a collation would treat different resources as equal.
    resource VARBINARY(512) NOT NULL PRIMARY KEY CHECK (resource <> ''),
    token BIGINT NOT NULL CHECK (token BETWEEN 1 AND 9007199254740991),
    -- Changes with each pass: the nodes of Galera compare changed rows only.
    passes BIGINT UNSIGNED NOT NULL DEFAULT 1,
    -- Never has a value: the constraint is how one statement refuses a stale token.
    refused BIGINT NULL,
    CONSTRAINT stale_fencing_token CHECK (refused IS NULL)
) ENGINE = InnoDB;

-- Passes the fence, or fails with error 4025, which names stale_fencing_token. It runs with its owner's rights, so the
-- app's user needs no right on the table and cannot lower a token. It is one statement, so that no client needs DELIMITER.
-- The arguments are text, so that they are converted here: by the rules of the session that created the procedure, and
-- with one character set for all.
CREATE PROCEDURE leasehold_fence(IN locked LONGTEXT CHARACTER SET utf8mb4, IN given LONGTEXT CHARACTER SET utf8mb4)
MODIFIES SQL DATA SQL SECURITY DEFINER
-- A session can turn constraints off.
SET STATEMENT check_constraint_checks = 1 FOR
INSERT INTO leasehold_fences (resource, token) VALUES (locked, IF(given REGEXP '^[1-9][0-9]{0,15}$', given, 0))
ON DUPLICATE KEY UPDATE refused = IF(VALUES(token) < token, 1, NULL), token = GREATEST(token, VALUES(token)), passes = passes + 1;
