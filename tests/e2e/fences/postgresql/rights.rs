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
    assert_eq!(run(app, passed).await, None);
    for statements in [
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
    ] {
        let refused = run(app, statements).await;
        assert_eq!(refused.as_deref(), Some("LH002"), "{statements}");
    }
    let text: String = sqlx::query_scalar("SELECT text FROM body")
        .fetch_one(app)
        .await?;
    assert_eq!(text, "new");
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
        ("SELECT leasehold.fence('report', NULL)", "23502"),
        ("SELECT leasehold.fence(NULL, 1000)", "23502"),
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
