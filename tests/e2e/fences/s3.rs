//! The fence of S3-compatible object stores, by the recipes that users get. Each writer is a process with boto3.

mod conditions;
mod server;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::random::{run, run_with_violation};
use super::server::new_directory;
use super::store::{Append, Store, Written};
use super::story::{Story, stale_writer_is_refused};
use crate::history::Entry;
use server::{Server, python};

/// The object that the random writers append to.
const LOG: &str = "log";

/// A guarded object.
#[derive(Debug, Deserialize)]
struct Guarded<T> {
    token: u64,
    value: T,
}

/// A server. Without a fence, its writers send conditional writes that do not compare tokens.
struct Fenced {
    server: Server,
    mode: &'static str,
}

/// A process that appends.
struct Writer {
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    _process: Child,
}

impl Store for Fenced {
    type Connection = Writer;

    async fn connect(&self) -> Result<Writer> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/fences/s3/writer.py");
        let mut command = Command::new(python()?);
        command
            .arg(script)
            .args(["bucket", LOG, self.mode])
            .envs(self.server.environment())
            .kill_on_drop(true)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut process = command.spawn()?;
        let output = process.stdout.take().context("the output")?;
        Ok(Writer {
            input: process.stdin.take().context("the input")?,
            output: BufReader::new(output).lines(),
            _process: process,
        })
    }

    async fn append(&self, writer: &mut Writer, append: &Append) -> Result<Written> {
        let (token, value) = (append.token, &append.value);
        let line = format!("{token} {value} {}\n", append.pause.as_secs_f64());
        writer.input.write_all(line.as_bytes()).await?;
        match writer.output.next_line().await?.as_deref() {
            Some("accepted") => Ok(Written::Accepted),
            Some("stale") => Ok(Written::Stale),
            other => bail!("the outcome is unknown: {other:?}"),
        }
    }

    /// A new process takes so long that the other writers have newer tokens when it could repeat an append.
    fn repeats(&self) -> bool {
        false
    }

    async fn entries(&self) -> Result<Vec<Entry>> {
        let log = self.server.get(LOG).await?.context("the log")?;
        let log: Guarded<Vec<(u64, String)>> = log.json().await?;
        let entry = |(token, value)| Entry { token, value };
        Ok(log.value.into_iter().map(entry).collect())
    }

    async fn crash(&self) -> Result<()> {
        self.server.kill()?;
        self.server.restart().await
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn no_older_token_passes_after_a_newer_one() -> Result<()> {
    let server = Server::start().await?;
    let mode = "fenced";
    run(&Fenced { server, mode }, 2).await?;
    Ok(())
}

/// The control: conditional writes alone do not compare tokens.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn run_without_fence_is_noticed() -> Result<()> {
    let server = Server::start().await?;
    let mode = "unfenced";
    run_with_violation(&Fenced { server, mode }, 0, "back to token").await
}

/// Plays the story with a command that writes `$VALUE` with `$TOKEN` to the object `report`.
async fn play(server: &Server, command: &str) -> Result<()> {
    let variables = server.environment().into_iter();
    let variables: Vec<_> = variables
        .map(|(name, value)| format!("{name}='{value}'"))
        .collect();
    let variables = variables.join(" ");
    let url = server.url("report");
    let content = r#""{\"token\":$TOKEN,\"value\":\"$VALUE\"}""#;
    stale_writer_is_refused(&Story {
        prepare: "",
        fenced: format!("export {variables}\n{command}"),
        unfenced: format!("curl --silent --fail --request PUT --data {content} {url}"),
        read: format!("curl --silent --fail {url} | jq --raw-output .value"),
        refusal: "stale fencing token",
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn stale_worker_cannot_write_with_python() -> Result<()> {
    let server = Server::start().await?;
    let python = python()?;
    let script = "import boto3, fence, sys; \
                  fence.write(boto3.client('s3'), 'bucket', 'report', int(sys.argv[1]), lambda _: sys.argv[2])";
    let command = format!("{} -c \"{script}\" $TOKEN $VALUE", python.display());
    play(&server, &command).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn stale_worker_cannot_write_with_curl() -> Result<()> {
    let server = Server::start().await?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("fences/s3/fence.sh");
    let url = server.url("report");
    let command = format!("LEASEHOLD_TOKEN=$TOKEN {} {url} $VALUE", script.display());
    play(&server, &command).await
}

/// A newer token comes between the script's read and its write: the condition refuses the write.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn script_is_refused_by_a_write_after_its_read() -> Result<()> {
    let server = Server::start().await?;
    let url = server.url("report");
    let path = new_directory("curl")?;
    let curl = format!(
        "#!/bin/bash
        if [[ \" $* \" == *' --request PUT '* && ! -e {path}/written ]]; then
          touch {path}/written
          /usr/bin/curl --silent --fail --request PUT --data '{{\"token\": 2000, \"value\": \"newer\"}}' {url}
        fi
        exec /usr/bin/curl \"$@\"",
        path = path.display()
    );
    std::fs::write(path.join("curl"), curl)?;
    std::fs::set_permissions(path.join("curl"), Permissions::from_mode(0o755))?;
    for (token, expected) in [
        ("1000", "stale fencing token 1000"),
        ("0", "not a fencing token"),
    ] {
        let mut script =
            Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("fences/s3/fence.sh"));
        let script = script.args([&url, "stale"]).envs(server.environment());
        let search = format!("{}:{}", path.display(), std::env::var("PATH")?);
        let script = script.env("LEASEHOLD_TOKEN", token).env("PATH", search);
        let ended = script.output().await?;
        let error = String::from_utf8(ended.stderr)?;
        assert!(
            !ended.status.success() && error.contains(expected),
            "{error}"
        );
    }
    let object = server.get("report").await?.context("the object")?;
    let object: Guarded<String> = object.json().await?;
    assert_eq!((object.token, object.value.as_str()), (2000, "newer"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn values_that_are_no_tokens_write_nothing() -> Result<()> {
    let server = Server::start().await?;
    for token in [
        "0",
        "-1",
        "True",
        "'1000'",
        "1e3",
        "float('nan')",
        "None",
        "2**53",
    ] {
        let mut python = Command::new(python()?);
        let script = format!(
            "import boto3, fence; fence.write(boto3.client('s3'), 'bucket', 'report', {token}, str)"
        );
        let ended = python.args(["-c", &script]).envs(server.environment());
        let ended = ended.output().await?;
        let error = String::from_utf8(ended.stderr)?;
        assert!(error.contains("is not a fencing token"), "{token}: {error}");
    }
    assert!(server.get("report").await?.is_none());
    Ok(())
}
