//! What the app's role can do, and what the trigger refuses: the statements of docs/fencing-sql.md.

use sqlx::raw_sql;

use super::*;

/// The app's role with the grants of the guide, and a table that the trigger guards.
const APP: &str = "
    CREATE ROLE app LOGIN;
    GRANT USAGE ON SCHEMA leasehold TO app;
    GRANT EXECUTE ON FUNCTION leasehold.fence TO app;
    GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON body TO app;
    CREATE TRIGGER fenced BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON body
        FOR EACH STATEMENT EXECUTE FUNCTION leasehold.require_fence('report');";

/// The same trigger, for writes that pass the fence in a condition.
const AFTER: &str = "
    DROP TRIGGER fenced ON body;
    CREATE TRIGGER fenced AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON body
        FOR EACH STATEMENT EXECUTE FUNCTION leasehold.require_fence('report');";

/// Statements in which PostgreSQL does not call the function.
const LEFT_OUT: [&str; 7] = [
    "WITH fence AS (SELECT leasehold.fence('report', 1000)) UPDATE body SET text = 'stale'",
    "UPDATE body SET text = 'stale' WHERE EXISTS (SELECT leasehold.fence('report', 1000))",
    "UPDATE body SET text = 'stale' WHERE text <> '' OR (SELECT leasehold.fence('report', 1000))",
    "INSERT INTO body VALUES ('stale') ON CONFLICT (text) DO UPDATE SET text = 'stale'
            WHERE leasehold.fence('report', 1000)",
    "INSERT INTO body SELECT 'stale' FROM body AS old LEFT JOIN body AS new
            ON new.text = old.text AND leasehold.fence('report', 1000)",
    "MERGE INTO body USING (VALUES ('stale')) AS new (text)
            ON body.text = new.text AND leasehold.fence('report', 1000)
            WHEN NOT MATCHED THEN INSERT VALUES (new.text)",
    "UPDATE body SET text = 'stale' WHERE text = NULL AND (SELECT leasehold.fence('report', 1000))",
];

/// Runs statements in one message, and returns the SQLSTATE of their error, if any.
async fn run(connection: &mut PgConnection, statements: &'static str) -> Option<String> {
    let outcome = raw_sql(statements).execute(&mut *connection).await;
    // A transaction that failed stays open, and refuses what comes next.
    let rolled_back = raw_sql("ROLLBACK").execute(connection).await;
    rolled_back.expect("a rollback must succeed");
    outcome.err().map(|error| {
        let code = code(&error);
        code.unwrap_or_else(|| panic!("{statements}: {error}"))
    })
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn app_cannot_lower_a_token_or_disable_the_trigger() -> Result<()> {
    let server = Server::start().await?;
    server.execute(APP).await?;
    let app = &mut server.connect_as("app").await?;
    assert_eq!(
        run(app, "SELECT leasehold.fence('report', 2000)").await,
        None
    );
    for statement in [
        "UPDATE leasehold.fences SET token = 1",
        "DELETE FROM leasehold.fences",
        "TRUNCATE leasehold.fences",
        "SELECT * FROM leasehold.fences",
        "ALTER TABLE body DISABLE TRIGGER fenced",
        "DROP TRIGGER fenced ON body",
        "SET session_replication_role = replica",
        "CREATE FUNCTION leasehold.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    ] {
        let refused = run(app, statement).await;
        assert_eq!(refused.as_deref(), Some("42501"), "{statement}");
    }
    let stale = run(app, "SELECT leasehold.fence('report', 1999)").await;
    assert_eq!(stale.as_deref(), Some("LH001"));
    Ok(())
}

/// The functions run with their owner's rights, so no name in them may depend on the caller.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn search_path_of_the_app_has_no_effect() -> Result<()> {
    const OWN: &str = "
        CREATE SCHEMA own;
        CREATE FUNCTION own.yes(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT true';
        CREATE FUNCTION own.yes(bigint, bigint) RETURNS boolean LANGUAGE sql AS 'SELECT true';
        CREATE FUNCTION own.yes(xid8, xid8) RETURNS boolean LANGUAGE sql AS 'SELECT true';
        CREATE OPERATOR own.= (FUNCTION = own.yes, LEFTARG = text, RIGHTARG = text);
        CREATE OPERATOR own.<= (FUNCTION = own.yes, LEFTARG = bigint, RIGHTARG = bigint);
        CREATE OPERATOR own.= (FUNCTION = own.yes, LEFTARG = xid8, RIGHTARG = xid8);
        CREATE FUNCTION own.pg_current_xact_id() RETURNS xid8 LANGUAGE sql AS $$SELECT '1'::xid8$$;
        CREATE TEMPORARY TABLE fences (resource text, token bigint, passed_by xid8);
        SET search_path = pg_temp, own, pg_catalog";

    let server = Server::start().await?;
    server.execute(APP).await?;
    server
        .execute("GRANT CREATE, TEMPORARY ON DATABASE postgres TO app")
        .await?;
    let app = &mut server.connect_as("app").await?;
    assert_eq!(run(app, OWN).await, None);
    for (statements, code) in [
        ("SELECT leasehold.fence('report', 2000)", None),
        ("SELECT leasehold.fence('report', 1999)", Some("LH001")),
        ("SELECT leasehold.fence('other', 1000)", None),
        ("UPDATE public.body SET text = 'stale'", Some("LH002")),
        (
            "BEGIN; SELECT leasehold.fence('report', 2000); UPDATE public.body SET text = 'new'; COMMIT",
            None,
        ),
        // A text with a collation of its own.
        (
            "SELECT leasehold.fence('report' COLLATE \"POSIX\", 2000)",
            None,
        ),
    ] {
        assert_eq!(run(app, statements).await.as_deref(), code, "{statements}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn role_without_the_grants_cannot_pass() -> Result<()> {
    let server = Server::start().await?;
    server.execute("CREATE ROLE app LOGIN").await?;
    let app = &mut server.connect_as("app").await?;
    let no_schema = run(app, "SELECT leasehold.fence('report', 2000)").await;
    assert_eq!(no_schema.as_deref(), Some("42501"));
    server
        .execute("GRANT USAGE ON SCHEMA leasehold TO app")
        .await?;
    let no_function = run(app, "SELECT leasehold.fence('report', 2000)").await;
    assert_eq!(no_function.as_deref(), Some("42501"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn trigger_refuses_each_write_without_the_fence() -> Result<()> {
    let server = Server::start().await?;
    server.execute(APP).await?;
    let app = &mut server.connect_as("app").await?;
    let passed = "BEGIN; SELECT leasehold.fence('report', 2000);
        UPDATE body SET text = 'new'; COMMIT";
    let writes = [
        "INSERT INTO body VALUES ('stale')",
        "UPDATE body SET text = 'stale'",
        "DELETE FROM body",
        "TRUNCATE body",
        // Another resource's fence, and a fence of another transaction.
        "BEGIN; SELECT leasehold.fence('other', 2000); UPDATE body SET text = 'stale'; COMMIT",
        "SELECT leasehold.fence('report', 2000); COMMIT; UPDATE body SET text = 'stale'",
        // A fence that was undone.
        "BEGIN; SAVEPOINT s; SELECT leasehold.fence('report', 2000); ROLLBACK TO s;
            UPDATE body SET text = 'stale'; COMMIT",
        // A refusal that was caught, as `ON_ERROR_ROLLBACK` does it, and in PL/pgSQL.
        "DO $$ BEGIN
            BEGIN PERFORM leasehold.fence('report', 1000);
            EXCEPTION WHEN OTHERS THEN NULL; END;
            UPDATE body SET text = 'stale';
        END $$",
    ];
    for trigger in ["", AFTER] {
        server.execute(trigger).await?;
        assert_eq!(run(app, passed).await, None);
        for statements in writes {
            let refused = run(app, statements).await;
            assert_eq!(refused.as_deref(), Some("LH002"), "{statements}");
        }
    }
    for statement in LEFT_OUT {
        let refused = run(app, statement).await;
        assert_eq!(refused.as_deref(), Some("LH002"), "{statement}");
    }
    let text: String = sqlx::query_scalar("SELECT text FROM body")
        .fetch_one(app)
        .await?;
    assert_eq!(text, "new");
    Ok(())
}

/// The statements of the page that pass the fence in a condition, without a transaction.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn fence_in_a_condition_comes_first() -> Result<()> {
    let server = Server::start().await?;
    server.execute(APP).await?;
    let app = &mut server.connect_as("app").await?;
    let update = "UPDATE body SET text = 'new' WHERE (SELECT leasehold.fence('report', 1000))";
    let before = run(app, update).await;
    assert_eq!(
        before.as_deref(),
        Some("LH002"),
        "a BEFORE trigger is first"
    );
    server.execute(AFTER).await?;
    for (accepted, stale) in [
        (
            update,
            "UPDATE body SET text = 'stale' WHERE (SELECT leasehold.fence('report', 999))",
        ),
        (
            "INSERT INTO body SELECT 'more' WHERE (SELECT leasehold.fence('report', 2000))",
            "INSERT INTO body SELECT 'stale' WHERE (SELECT leasehold.fence('report', 1999))",
        ),
        (
            "INSERT INTO body SELECT 'more' WHERE (SELECT leasehold.fence('report', 3000))
                ON CONFLICT (text) DO UPDATE SET text = 'most'",
            "INSERT INTO body SELECT 'most' WHERE (SELECT leasehold.fence('report', 2999))
                ON CONFLICT (text) DO UPDATE SET text = 'stale'",
        ),
        // No row matches, and another condition is false: the token is recorded nevertheless.
        (
            "DELETE FROM body WHERE (SELECT leasehold.fence('report', 4000)) AND text = 'none'",
            "DELETE FROM body WHERE (SELECT leasehold.fence('report', 3999)) AND text = 'none'",
        ),
        (
            "DELETE FROM body WHERE (SELECT leasehold.fence('report', 5000)) AND (SELECT false)",
            "DELETE FROM body WHERE (SELECT leasehold.fence('report', 4999)) AND (SELECT false)",
        ),
        (
            "DELETE FROM body WHERE (SELECT leasehold.fence('report', 6000)) AND text = 'new'",
            "DELETE FROM body WHERE (SELECT leasehold.fence('report', 5999)) AND text = 'most'",
        ),
    ] {
        assert_eq!(run(app, accepted).await, None, "{accepted}");
        assert_eq!(run(app, stale).await.as_deref(), Some("LH001"), "{stale}");
    }
    let texts: Vec<String> = sqlx::query_scalar("SELECT text FROM body")
        .fetch_all(app)
        .await?;
    assert_eq!(texts, ["most"]);
    Ok(())
}

/// A function in a subquery, as in the page's statements, is called once for all rows.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn condition_is_evaluated_once() -> Result<()> {
    const COUNTED: &str = "
        INSERT INTO body VALUES ('one'), ('two');
        CREATE SEQUENCE calls;
        CREATE FUNCTION called() RETURNS boolean LANGUAGE sql AS $$SELECT nextval('calls') > 0$$;
        UPDATE body SET text = text || ' more' WHERE (SELECT called()) AND text <> ''";
    let server = Server::start().await?;
    server.execute(COUNTED).await?;
    let calls: i64 = sqlx::query_scalar("SELECT nextval('calls') - 1")
        .fetch_one(&mut server.connect().await?)
        .await?;
    assert_eq!(calls, 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn default_privileges_give_no_right_on_tokens() -> Result<()> {
    let server = Server::start().await?;
    let migrations = Migrator::new(migrations("postgresql")).await?;
    let mut owner = server.connect().await?;
    migrations.undo(&mut owner, 0).await?;
    let defaults = "CREATE ROLE \"the team\"; CREATE ROLE app LOGIN IN ROLE \"the team\";
        ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO PUBLIC, \"the team\", app;
        ALTER DEFAULT PRIVILEGES GRANT USAGE ON SCHEMAS TO app";
    server.execute(defaults).await?;
    migrations.run(&mut owner).await?;
    fence(&mut owner, 2000).await?;
    let app = &mut server.connect_as("app").await?;
    let lowered = run(app, "UPDATE leasehold.fences SET token = 1").await;
    assert_eq!(lowered.as_deref(), Some("42501"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn wrong_arguments_are_refused() -> Result<()> {
    let server = Server::start().await?;
    let connection = &mut server.connect().await?;
    let calls = [
        ("SELECT leasehold.fence('report', 0)", "23514"),
        ("SELECT leasehold.fence('report', -1)", "23514"),
        (
            "SELECT leasehold.fence('report', 9007199254740992)",
            "23514",
        ),
        ("SELECT leasehold.fence('', 1000)", "23514"),
        ("SELECT leasehold.fence('report', NULL)", "23514"),
        ("SELECT leasehold.fence(NULL, 1000)", "23514"),
        ("SELECT leasehold.fence('report', '')", "22P02"),
    ];
    // Without a recorded token, and with one.
    for recorded in [vec![], vec![5_i64]] {
        for (call, code) in calls {
            let refused = run(connection, call).await;
            assert_eq!(refused.as_deref(), Some(code), "{call}");
        }
        let tokens: Vec<i64> = sqlx::query_scalar("SELECT token FROM leasehold.fences")
            .fetch_all(&mut *connection)
            .await?;
        assert_eq!(tokens, recorded);
        query("SELECT leasehold.fence('report', 5)")
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}
