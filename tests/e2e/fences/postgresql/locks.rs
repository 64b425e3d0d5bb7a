//! What others can do while a transaction is open that has passed a fence: only writers of the same resource wait.

use super::*;

/// How each form passes the fence of a number.
const FORMS: [&str; 3] = [
    "SELECT leasehold.fence($1::bigint::text, $2)",
    "UPDATE report SET entries = entries || 'new'::text
        WHERE (SELECT leasehold.fence($1::bigint::text, $2)) AND id = $1",
    "UPDATE report SET fencing_token = $2 WHERE id = $1 AND fencing_token <= $2",
];

async fn pass(
    connection: &mut PgConnection,
    form: &'static str,
    number: i64,
    token: i64,
) -> Result<(), Error> {
    let pass = query(form).bind(number).bind(token);
    pass.execute(connection).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn writers_of_other_resources_do_not_wait() -> Result<()> {
    let server = Server::start().await?;
    let rows = "INSERT INTO report (id) SELECT generate_series(10, 30)";
    server.execute(rows).await?;
    let (mut open, mut other) = (server.connect().await?, server.connect().await?);
    let limit = query("SET lock_timeout = '500ms'");
    limit.execute(&mut other).await?;
    for form in FORMS {
        server.execute("DELETE FROM leasehold.fences").await?;
        pass(&mut open, form, 10, 1000).await?;
        // The fence has no row for 20 at first, and none for the others but 10.
        for others in [[10, 15, 25], [10, 18, 22]] {
            query("BEGIN").execute(&mut open).await?;
            pass(&mut open, form, 20, 1000).await?;
            for number in others {
                let passed = pass(&mut other, form, number, 2000).await;
                passed.with_context(|| format!("{number} by {form}"))?;
            }
            let waited = pass(&mut other, form, 20, 2000).await.unwrap_err();
            assert_eq!(code(&waited).as_deref(), Some("55P03"), "{form}: {waited}");
            query("COMMIT").execute(&mut open).await?;
        }
    }
    Ok(())
}
