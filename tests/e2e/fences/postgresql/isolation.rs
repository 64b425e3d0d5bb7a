//! The table of isolation levels in docs/fencing-sql.md: what a stale and a newer transaction get when they meet.

use super::*;
use crate::harness::{PATIENCE, eventually};

const LEVELS: [&str; 3] = [
    "BEGIN ISOLATION LEVEL READ COMMITTED",
    "BEGIN ISOLATION LEVEL REPEATABLE READ",
    "BEGIN ISOLATION LEVEL SERIALIZABLE",
];

/// What a transaction gets when it passes the fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passed {
    Accepted,
    Stale,
    /// SQLSTATE 40001: the whole transaction can be repeated.
    Repeat,
}

/// A case of the table: a fence of its own, and two transactions of one isolation level.
struct Case {
    form: Form,
    number: i64,
    begin: &'static str,
    first: PgConnection,
    second: PgConnection,
    observer: PgConnection,
}

impl Case {
    async fn new(server: &Server, form: Form, number: usize, begin: &'static str) -> Result<Self> {
        let number = i64::try_from(number)?;
        let mut observer = server.connect().await?;
        let row = query("INSERT INTO report (id) VALUES ($1)").bind(number);
        row.execute(&mut observer).await?;
        let (first, second) = (server.connect().await?, server.connect().await?);
        Ok(Self {
            form,
            number,
            begin,
            first,
            second,
            observer,
        })
    }

    /// The second transaction passes the fence while the first one, which has passed it, is open. Returns what the
    /// second one gets once the first one has ended.
    async fn overlap(&mut self, first: i64, second: i64, end: &'static str) -> Result<Passed> {
        let (form, number) = (self.form, self.number);
        query(self.begin).execute(&mut self.first).await?;
        assert_eq!(
            pass(&mut self.first, form, number, first).await?,
            Passed::Accepted
        );
        query(self.begin).execute(&mut self.second).await?;
        let waits = async {
            let count = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
            eventually("the second transaction to wait", PATIENCE, async || {
                let count = sqlx::query_scalar(count).fetch_one(&mut self.observer);
                let count: i64 = count.await.ok()?;
                (count == 1).then_some(())
            })
            .await?;
            query(end).execute(&mut self.first).await?;
            anyhow::Ok(())
        };
        let (passed, ()) = tokio::try_join!(pass(&mut self.second, form, number, second), waits)?;
        query("COMMIT").execute(&mut self.second).await?;
        Ok(passed)
    }

    /// The first transaction commits after the second one has begun, and has read if that is requested.
    async fn one_after_the_other(&mut self, second_reads: bool) -> Result<Passed> {
        let (form, number) = (self.form, self.number);
        query(self.begin).execute(&mut self.second).await?;
        if second_reads {
            let read = query("SELECT * FROM report");
            read.execute(&mut self.second).await?;
        }
        query(self.begin).execute(&mut self.first).await?;
        assert_eq!(
            pass(&mut self.first, form, number, 2000).await?,
            Passed::Accepted
        );
        query("COMMIT").execute(&mut self.first).await?;
        let passed = pass(&mut self.second, form, number, 1000).await;
        query("ROLLBACK").execute(&mut self.second).await?;
        passed
    }
}

/// Passes the fence of a number, and writes.
async fn pass(
    connection: &mut PgConnection,
    form: Form,
    number: i64,
    token: i64,
) -> Result<Passed> {
    let passed = if form == Form::Column {
        let update = "UPDATE report SET fencing_token = $2 WHERE id = $1 AND fencing_token <= $2";
        query(update)
            .bind(number)
            .bind(token)
            .execute(connection)
            .await
    } else {
        let fence = query("SELECT leasehold.fence($1::text, $2)");
        fence
            .bind(number.to_string())
            .bind(token)
            .execute(connection)
            .await
    };
    match passed {
        Ok(done) if done.rows_affected() == 0 => Ok(Passed::Stale),
        Ok(_) => Ok(Passed::Accepted),
        Err(error) if is_stale(&error) => Ok(Passed::Stale),
        Err(error) if code(&error).as_deref() == Some("40001") => Ok(Passed::Repeat),
        Err(error) => Err(error.into()),
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn stale_transaction_never_passes_at_any_isolation_level() -> Result<()> {
    let server = Server::start().await?;
    let mut numbers = 100..;
    for form in [Form::Function, Form::Column] {
        for begin in LEVELS {
            let mut case = async || {
                let number = numbers.next().context("a number")?;
                Case::new(&server, form, number, begin).await
            };
            let levels = |committed, repeatable| {
                if begin == LEVELS[0] {
                    committed
                } else {
                    repeatable
                }
            };
            let what = format!("{begin}, with the function: {}", form == Form::Function);

            let passed = case().await?.one_after_the_other(false).await?;
            assert_eq!(passed, Passed::Stale, "after the newer one, {what}");
            let passed = case().await?.one_after_the_other(true).await?;
            let expected = levels(Passed::Stale, Passed::Repeat);
            assert_eq!(passed, expected, "read before the newer one, {what}");
            let passed = case().await?.overlap(2000, 1000, "COMMIT").await?;
            assert_eq!(passed, expected, "while the newer one is open, {what}");
            let passed = case().await?.overlap(2000, 1000, "ROLLBACK").await?;
            assert_eq!(
                passed,
                Passed::Accepted,
                "the newer one rolled back, {what}"
            );
            let passed = case().await?.overlap(1000, 2000, "COMMIT").await?;
            let expected = levels(Passed::Accepted, Passed::Repeat);
            assert_eq!(passed, expected, "the newer one comes second, {what}");
            let passed = case().await?.overlap(1000, 1000, "COMMIT").await?;
            assert_eq!(passed, expected, "equal tokens, {what}");
        }
    }
    Ok(())
}
