//! `leasehold fence` in front of a service that cannot compare tokens.

mod authorize;
mod h2spec;
mod memory;
mod replicas;
mod service;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use reqwest::{Client, StatusCode};
use serde_json::json;

use super::random::{run, run_with_violation};
use super::server::{Daemon, new_directory};
use super::store::{Append, Store, Written};
use super::story::{Story, stale_writer_is_refused_by};
use crate::harness::{PATIENCE, Process, TakeOver, eventually, own_port};
use crate::history::Entry;
use crate::support::Pair;
use service::Service;

/// `--settle` of the fences.
const SETTLE: Duration = Duration::from_secs(1);

/// A service, and the fence in front of it.
struct Fenced {
    service: Service,
    fence: Daemon,
    /// Of the fence, or of the proxy that asks it.
    url: String,
    front: Option<Process>,
}

/// Returns the command of a fence in front of a service.
fn fence(directory: &Path, upstream: &str, port: u16) -> Command {
    let mut command = fence_command(directory, port);
    command.args(["--upstream", upstream]);
    command
}

/// Returns what all fences have in common, with a state directory.
fn fence_command(directory: &Path, port: u16) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    command
        .arg("fence")
        .args(["--listen", &format!("127.0.0.1:{port}")])
        .args(["--admin-listen", "none"])
        .args(["--settle", &SETTLE.as_secs().to_string()])
        .arg("--state-dir")
        .arg(directory.join("state"));
    command
}

async fn answers(url: &str) -> Result<()> {
    let response = reqwest::get(format!("{url}/log")).await?;
    ensure!(response.status().is_success(), "{response:?}");
    Ok(())
}

impl Fenced {
    async fn start() -> Result<Self> {
        let service = Service::start().await?;
        let (upstream, port) = (service.url.clone(), own_port()?);
        let fence = Daemon::new(new_directory("proxy")?, move |directory| {
            let mut command = fence(directory, &upstream, port);
            command.arg("--trust-tokens");
            Ok(command)
        });
        let url = format!("http://127.0.0.1:{port}");
        fence.start(async || answers(&url).await).await?;
        Ok(Self {
            service,
            fence,
            url,
            front: None,
        })
    }
}

/// Appends through a URL: of the fence, or of the service itself.
async fn append(client: &Client, url: &str, append: &Append) -> Result<Written> {
    let response = client
        .post(format!("{url}/log"))
        .header("x-fencing-token", append.token)
        .header("x-fencing-resource", "log")
        // Long enough for the next process to have started, and shorter than [`SETTLE`].
        .header(
            "x-pause-micros",
            (append.pause.as_micros() * 15).to_string(),
        )
        .body(append.value.clone())
        .send()
        .await?;
    match response.status() {
        StatusCode::OK => Ok(Written::Accepted),
        StatusCode::PRECONDITION_FAILED => {
            let problem = response.text().await?;
            ensure!(!problem.contains("unknown_token"), "{problem}");
            Ok(Written::Stale)
        }
        other => bail!("the outcome is unknown: {other}"),
    }
}

impl Store for Fenced {
    type Connection = Client;

    /// Longer than `--settle`, which a fence behind a proxy waits.
    fn lease(&self) -> Duration {
        match self.front {
            Some(_) => SETTLE * 3 / 2,
            None => Duration::ZERO,
        }
    }

    async fn connect(&self) -> Result<Client> {
        answers(&self.url).await?;
        Ok(Client::new())
    }

    async fn append(&self, client: &mut Client, one: &Append) -> Result<Written> {
        append(client, &self.url, one).await
    }

    async fn entries(&self) -> Result<Vec<Entry>> {
        Ok(self.service.entries())
    }

    async fn crash(&self) -> Result<()> {
        self.fence.kill()?;
        self.fence.start(async || answers(&self.url).await).await
    }
}

/// The service without its fence.
struct Unfenced(Service);

impl Store for Unfenced {
    type Connection = Client;

    async fn connect(&self) -> Result<Client> {
        Ok(Client::new())
    }

    async fn append(&self, client: &mut Client, one: &Append) -> Result<Written> {
        append(client, &self.0.url, one).await
    }

    async fn entries(&self) -> Result<Vec<Entry>> {
        Ok(self.0.entries())
    }

    async fn crash(&self) -> Result<()> {
        bail!("it never crashes")
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn no_older_token_passes_while_the_fence_is_killed() -> Result<()> {
    let fenced = Fenced::start().await?;
    run(&fenced, 8).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn killed_fence_still_refuses_an_older_token() -> Result<()> {
    let fenced = Fenced::start().await?;
    let with = |token| Append {
        token,
        value: format!("of-{token}"),
        pause: Duration::ZERO,
    };
    let mut client = fenced.connect().await?;
    for token in [1000, 1002, 1003] {
        let written = fenced.append(&mut client, &with(token)).await?;
        ensure!(written == Written::Accepted, "{token}: {written:?}");
        fenced.crash().await?;
        let written = fenced.append(&mut client, &with(token - 1)).await?;
        ensure!(written == Written::Stale, "before {token}: {written:?}");
    }
    Ok(())
}

/// The control: the service alone does not compare tokens.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn run_without_fence_is_noticed() -> Result<()> {
    let service = Service::start().await?;
    run_with_violation(&Unfenced(service), 0, "back to token").await
}

/// Plays the story with a service behind a URL. Tokens are verified with the lock in the API server, by the sidecar of
/// the second worker, for the fence that this command starts at a port.
async fn stale_worker_is_refused(
    url: &str,
    service: &Service,
    port: u16,
    fence: impl Fn(&Path) -> Command,
) -> Result<()> {
    let write = |url: &str| {
        format!(
            "curl --silent --show-error --retry 9 --fail-with-body {url}/log --data \"$VALUE\" \
             --header \"X-Fencing-Token: $TOKEN\" --header 'X-Fencing-Resource: report'"
        )
    };
    let story = Story {
        prepare: "",
        fenced: write(url),
        unfenced: write(&service.url),
        read: format!("curl --silent {}/log", service.url),
        refusal: "stale_token",
    };
    stale_writer_is_refused_by(&story, async |sidecar| {
        let directory = new_directory("proxy")?;
        let mut command = fence(&directory);
        command.args(["--url", sidecar]);
        let fence = Process::spawn("fence", &mut command, &directory.join("log"))?;
        let address = format!("http://127.0.0.1:{port}");
        let started = async || answers(&address).await.ok();
        eventually("the fence", PATIENCE, started).await?;
        Ok(fence)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn stale_worker_cannot_write() -> Result<()> {
    let service = Service::start().await?;
    let port = own_port()?;
    let url = format!("http://127.0.0.1:{port}");
    let fence = |directory: &Path| fence(directory, &service.url, port);
    stale_worker_is_refused(&url, &service, port, fence).await
}

/// The control believes each token, as a fence without verification does.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn fence_that_lost_its_state_asks_the_lock() -> Result<()> {
    let pair = Pair::start("fences", TakeOver::Peer, 5).await?;
    let body = json!({"resource": "log", "ttlSeconds": 1});
    let old = pair.a.acquire_with(&body).await?.granted()?.token;
    let body = json!({"resource": "log", "ttlSeconds": 30, "waitSeconds": 60});
    let new = pair.b.acquire_with(&body).await?.granted()?.token;
    ensure!(new > old, "{new} after {old}");

    let service = Service::start().await?;
    let client = Client::new();
    let port = own_port()?;
    let url = format!("http://127.0.0.1:{port}");
    for (token, verification, expected) in [
        (new, &["--url", &pair.b.url][..], Written::Accepted),
        (old, &["--url", &pair.b.url], Written::Stale),
        (old, &["--trust-tokens"], Written::Accepted),
    ] {
        let directory = new_directory("proxy")?;
        let mut command = fence(&directory, &service.url, port);
        command.args(verification);
        let _fence = Process::spawn("fence", &mut command, &directory.join("log"))?;
        let started = async || answers(&url).await.ok();
        eventually("the fence", PATIENCE, started).await?;
        let one = Append {
            token,
            value: format!("{token} {}", verification[0]),
            pause: Duration::ZERO,
        };
        let written = append(&client, &url, &one).await?;
        ensure!(written == expected, "{one:?}: {written:?}");
    }
    Ok(())
}
