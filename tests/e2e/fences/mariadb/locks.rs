//! What others can do while a transaction is open that has passed a fence: only writers of the same resource wait. The
//! server can also lock the gaps beside a row, where a new resource gets its row.

use anyhow::Context as _;
use sqlx::AssertSqlSafe;

use super::*;

/// The server's error for a lock that was not granted in time.
const WAITED: u16 = 1205;

async fn pass(
    connection: &mut MySqlConnection,
    form: Form,
    number: u64,
    token: u64,
) -> Result<(), Error> {
    let statement = match form {
        Form::Procedure => format!("CALL leasehold_fence('{number}', {token})"),
        Form::Column => format!(
            "UPDATE report SET fencing_token = {token} WHERE id = {number} AND fencing_token <= {token}"
        ),
        Form::None => unreachable!("each writer passes the fence"),
    };
    let pass = query(AssertSqlSafe(statement)).execute(connection);
    pass.await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn writers_of_other_resources_do_not_wait() -> Result<()> {
    let fenced = Fenced::start(Form::Procedure).await?;
    let mut root = fenced.connect_as("root", "app").await?;
    let rows = query("INSERT INTO report (id, entries) SELECT seq, '' FROM seq_10_to_30");
    rows.execute(&mut root).await?;
    let (mut open, mut other) = (fenced.connect().await?, fenced.connect().await?);
    let limit = query("SET innodb_lock_wait_timeout = 1");
    limit.execute(&mut other).await?;
    for form in [Form::Procedure, Form::Column] {
        pass(&mut open, form, 10, 1000).await?;
        // The fence has no row for 20 at first, and none for the others but 10.
        for others in [[10, 15, 25], [10, 18, 22]] {
            query("START TRANSACTION").execute(&mut open).await?;
            pass(&mut open, form, 20, 1000).await?;
            for number in others {
                let passed = pass(&mut other, form, number, 2000).await;
                passed.with_context(|| format!("{number} by {form:?}"))?;
            }
            let waited = pass(&mut other, form, 20, 2000).await.unwrap_err();
            let waited = waited.into_database_error().context("the server's error")?;
            let waited = waited.downcast::<MySqlDatabaseError>();
            assert_eq!(waited.number(), WAITED, "{form:?}: {waited}");
            query("COMMIT").execute(&mut open).await?;
        }
    }
    Ok(())
}
