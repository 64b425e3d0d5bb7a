//! The table of isolation levels in docs/fencing-sql.md: what a stale and a newer transaction get when they meet.

use anyhow::ensure;

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
        let ends = async {
            until_one_waits(&mut self.observer).await?;
            query(end).execute(&mut self.first).await?;
            anyhow::Ok(())
        };
        let (passed, ()) = tokio::try_join!(pass(&mut self.second, form, number, second), ends)?;
        query("COMMIT").execute(&mut self.second).await?;
        let committed = (end == "COMMIT").then_some(first);
        let accepted = (passed == Passed::Accepted).then_some(second);
        let expected: Vec<String> = committed
            .iter()
            .chain(&accepted)
            .map(i64::to_string)
            .collect();
        assert_eq!(self.entries().await?, expected);
        Ok(passed)
    }

    /// Returns what has been written.
    async fn entries(&mut self) -> Result<Vec<String>> {
        let entries = sqlx::query_scalar("SELECT entries FROM report WHERE id = $1");
        let entries = entries.bind(self.number).fetch_one(&mut self.observer);
        Ok(entries.await?)
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
        query("COMMIT").execute(&mut self.second).await?;
        assert_eq!(self.entries().await?, ["2000"]);
        passed
    }
}

async fn until_one_waits(observer: &mut PgConnection) -> Result<()> {
    let count = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    eventually("the second transaction to wait", PATIENCE, async || {
        let count = sqlx::query_scalar(count).fetch_one(&mut *observer);
        let count: i64 = count.await.ok()?;
        (count == 1).then_some(())
    })
    .await
}

/// Passes the fence of a number, and writes.
async fn pass(
    connection: &mut PgConnection,
    form: Form,
    number: i64,
    token: i64,
) -> Result<Passed> {
    let statements: &[&'static str] = match form {
        Form::Function => &[
            "SELECT leasehold.fence($1::bigint::text, $2)",
            "UPDATE report SET entries = entries || $2::bigint::text WHERE id = $1",
        ],
        Form::Condition => &["UPDATE report SET entries = entries || $2::bigint::text
            WHERE (SELECT leasehold.fence($1::bigint::text, $2)) AND id = $1"],
        Form::Column => &[
            "UPDATE report SET entries = entries || $2::bigint::text, fencing_token = $2
            WHERE id = $1 AND fencing_token <= $2",
        ],
        Form::None => unreachable!("every case has a fence"),
    };
    for statement in statements {
        let statement = query(*statement).bind(number).bind(token);
        match statement.execute(&mut *connection).await {
            Ok(done) if form == Form::Column && done.rows_affected() == 0 => {
                return Ok(Passed::Stale);
            }
            Ok(done) => ensure!(done.rows_affected() == 1, "{form:?}: {done:?}"),
            Err(error) if is_stale(&error) => return Ok(Passed::Stale),
            Err(error) if code(&error).as_deref() == Some("40001") => return Ok(Passed::Repeat),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Passed::Accepted)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn stale_transaction_never_passes_at_any_isolation_level() -> Result<()> {
    let server = Server::start().await?;
    let mut numbers = 100..;
    for form in [Form::Function, Form::Condition, Form::Column] {
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
            let what = format!("{begin}, {form:?}");

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

/// Returns how many rows the last statement of the new holder's transaction writes. It begins while the previous holder's
/// is open, which has inserted row 200, and commits once the new one waits.
async fn rows_of_new_holder(statements: &[&'static str]) -> Result<u64> {
    let server = Server::start().await?;
    let mut case = Case::new(&server, Form::Function, 100, LEVELS[0]).await?;
    query(case.begin).execute(&mut case.first).await?;
    fence(&mut case.first, 1000).await?;
    let insert = query("INSERT INTO report (id) VALUES (200)");
    insert.execute(&mut case.first).await?;
    query(case.begin).execute(&mut case.second).await?;
    let writes = async {
        let mut rows = 0;
        for statement in statements {
            let done = query(*statement).execute(&mut case.second).await?;
            rows = done.rows_affected();
        }
        anyhow::Ok(rows)
    };
    let commits = async {
        until_one_waits(&mut case.observer).await?;
        query("COMMIT").execute(&mut case.first).await?;
        anyhow::Ok(())
    };
    Ok(tokio::try_join!(writes, commits)?.0)
}

/// Why the page limits one statement to values that the app has and to rows that exist: it reads the state when it began.
/// After the fence, a statement sees what the previous holder committed.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn only_a_later_statement_sees_new_rows() -> Result<()> {
    const ONE: &str = "DELETE FROM report WHERE (SELECT leasehold.fence('log', 2000)) AND id = 200";
    const FENCE: &str = "SELECT leasehold.fence('log', 2000)";
    const LATER: &str = "DELETE FROM report WHERE id = 200";
    assert_eq!(rows_of_new_holder(&[ONE]).await?, 0);
    assert_eq!(rows_of_new_holder(&[ONE, ONE]).await?, 1, "repeated");
    assert_eq!(rows_of_new_holder(&[FENCE, LATER]).await?, 1);
    Ok(())
}
