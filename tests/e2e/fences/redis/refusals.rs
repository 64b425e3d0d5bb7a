//! What the fence answers, and that a refused call writes nothing. The script and the function behave the same.

use super::*;
use crate::harness::{PATIENCE, eventually};

/// The keys, the arguments, and how the answer begins.
type Call = (
    &'static [&'static str],
    &'static [&'static str],
    &'static str,
);

const NO_TOKEN: &str = "ERR \"\" is not a fencing token, an integer from 1 to 9007199254740991. \
     Pass the fencingToken of your lease as the first argument: 2 {report}:fence";

/// Calls without a valid token, key or command.
const INVALID: &[Call] = &[
    (
        &[],
        &["5", "SET", "b", "x"],
        "ERR name the key of the fence",
    ),
    (&["f", "b"], &[], NO_TOKEN),
    (&["f", "b"], &["", "SET", "b", "x"], NO_TOKEN),
    (&["f", "b"], &["5"], "ERR pass the command"),
    (&["f", "b"], &["SET", "b", "x"], "ERR \"SET\" is not a"),
    (&["f", "b"], &["0", "SET", "b", "x"], "ERR \"0\" is not a"),
    (&["f", "b"], &["-5", "SET", "b", "x"], "ERR \"-5\" is not a"),
    (&["f", "b"], &["+5", "SET", "b", "x"], "ERR \"+5\" is not a"),
    (&["f", "b"], &["05", "SET", "b", "x"], "ERR \"05\" is not a"),
    (
        &["f", "b"],
        &["5.0", "SET", "b", "x"],
        "ERR \"5.0\" is not a",
    ),
    (
        &["f", "b"],
        &["5e3", "SET", "b", "x"],
        "ERR \"5e3\" is not a",
    ),
    (
        &["f", "b"],
        &["0x5", "SET", "b", "x"],
        "ERR \"0x5\" is not a",
    ),
    (&["f", "b"], &["5 ", "SET", "b", "x"], "ERR \"5 \" is not a"),
    (
        &["f", "b"],
        &["9007199254740992", "SET", "b", "x"],
        "ERR \"9007199254740992\" is not a",
    ),
    (
        &["f", "b"],
        &["1000000000000000000000", "SET", "b", "x"],
        "ERR \"10000000000000000000\" is not a",
    ),
];

/// Calls one after another.
const CALLS: &[Call] = &[
    (&["f", "b"], &["999", "SET", "b", "first"], "OK"),
    (&["f", "b"], &["1000", "SET", "b", "equal"], "OK"),
    (&["f", "b"], &["1000", "SET", "b", "again"], "OK"),
    (
        &["f", "b"],
        &["999", "SET", "b", "stale"],
        "STALETOKEN stale fencing token 999 for f: the newest is 1000. The lock was granted again",
    ),
    (&["f", "b"], &["999", "GET", "b"], "STALETOKEN "),
    (&["f", "b"], &["1001", "GET", "b"], "again"),
    (&["f", "b"], &["1000", "SET", "b", "stale"], "STALETOKEN "),
    // A failed command leaves its token.
    (&["f", "b"], &["1002", "RPUSH", "b", "x"], "WRONGTYPE "),
    (&["f", "b"], &["1001", "SET", "b", "stale"], "STALETOKEN "),
    (&["f", "b"], &["1002", "NOSUCHCOMMAND", "b"], "ERR "),
    (&["f", "b"], &["1002", "GET", "b"], "again"),
    // Doubles have no integer between these two and the next ones.
    (&["f"], &["9007199254740990", "GET", "b"], "again"),
    (
        &["f"],
        &["9007199254740991", "GET", "f"],
        "9007199254740991",
    ),
    (&["f"], &["9007199254740990", "GET", "b"], "STALETOKEN "),
    (&["other"], &["5", "GET", "other"], "5"),
];

async fn check(connection: &mut MultiplexedConnection, form: Form, calls: &[Call]) {
    for (keys, arguments, expected) in calls {
        let answer = match form.call(connection, keys, arguments).await {
            Ok(Value::Okay) => "OK".to_owned(),
            Ok(Value::BulkString(bytes)) => String::from_utf8_lossy(&bytes).into_owned(),
            Ok(value) => format!("{value:?}"),
            Err(error) => {
                let code = error.code().unwrap_or_default();
                format!("{code} {}", error.detail().unwrap_or_default())
            }
        };
        assert!(
            answer.starts_with(expected),
            "{form:?} {keys:?} {arguments:?}: {answer}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn refused_call_writes_nothing() -> Result<()> {
    let server = Server::start(&[]).await?;
    let mut connection = server.connect().await?;
    for form in Form::ALL {
        check(&mut connection, form, INVALID).await;
        let keys: u64 = call(&mut connection, &["DBSIZE"]).await?;
        assert_eq!(keys, 0, "{form:?}");
        check(&mut connection, form, CALLS).await;
        call::<()>(&mut connection, &["FLUSHALL"]).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn key_with_other_data_is_no_fence() -> Result<()> {
    const REFUSED: &[Call] = &[(
        &["f", "b"],
        &["5", "SET", "b", "x"],
        "ERR cannot read the fence f: ",
    )];
    let contents: [&[&str]; 5] = [
        &["SET", "f", "text"],
        &["SET", "f", ""],
        &["SET", "f", "9007199254740992"],
        &["RPUSH", "f", "5"],
        &["HSET", "f", "token", "5"],
    ];
    let server = Server::start(&[]).await?;
    let mut connection = server.connect().await?;
    for content in contents {
        for form in Form::ALL {
            call::<()>(&mut connection, &["FLUSHALL"]).await?;
            call::<Value>(&mut connection, content).await?;
            check(&mut connection, form, REFUSED).await;
            let keys: u64 = call(&mut connection, &["DBSIZE"]).await?;
            assert_eq!(keys, 1, "{form:?} {content:?}");
        }
    }
    Ok(())
}

/// The keys of a call must be in one slot. A server that has all slots behaves like three that share them.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn cluster_needs_a_hash_tag() -> Result<()> {
    let server = Server::start(&["--cluster-enabled", "yes"]).await?;
    let slots = ["CLUSTER", "ADDSLOTSRANGE", "0", "16383"];
    server.call::<()>(&slots).await?;
    eventually("the cluster", PATIENCE, async || {
        let info: String = server.call(&["CLUSTER", "INFO"]).await.ok()?;
        info.contains("cluster_state:ok").then_some(())
    })
    .await?;
    let mut connection = server.connect().await?;
    for form in Form::ALL {
        check(
            &mut connection,
            form,
            &[
                (
                    &["{report}:fence", "{report}:body"],
                    &["5", "SET", "{report}:body", "x"],
                    "OK",
                ),
                (
                    &["report:fence", "report:body"],
                    &["5", "SET", "report:body", "x"],
                    "CROSSSLOT ",
                ),
            ],
        )
        .await;
    }
    Ok(())
}

/// A right to call the fence is not enough: the command runs with the rights of the caller.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn caller_needs_rights_for_fence_and_command() -> Result<()> {
    let server = Server::start(&[]).await?;
    let mut connection = server.connect().await?;
    let all = "ACL SETUSER app on nopass ~{report}:* +fcall +eval +get +set";
    let fewer = "ACL SETUSER reader on nopass ~{report}:* +fcall +eval +get";
    for user in [all, fewer] {
        let words: Vec<_> = user.split(' ').collect();
        call::<()>(&mut connection, &words).await?;
    }
    let keys: &[&str] = &["{report}:fence", "{report}:body"];
    let write: &[&str] = &["5", "SET", "{report}:body", "x"];
    for form in Form::ALL {
        call::<()>(&mut connection, &["AUTH", "reader", ""]).await?;
        let refused = form.call(&mut connection, keys, write).await;
        assert!(refused.is_err(), "{form:?}: {refused:?}");
        call::<()>(&mut connection, &["AUTH", "app", ""]).await?;
        check(
            &mut connection,
            form,
            &[(&["other:fence"], &["5", "GET", "other:fence"], "NOPERM ")],
        )
        .await;
        form.call(&mut connection, keys, write).await?;
        // So the app could also lower its token.
        call::<()>(&mut connection, &["SET", "{report}:fence", "1"]).await?;
    }
    Ok(())
}
