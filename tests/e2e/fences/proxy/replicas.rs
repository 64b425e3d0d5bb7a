//! Two fences in front of one service, of which one leads: leaders that are killed, one that is suspended with its sidecar
//! for longer than its lease, and one whose sidecar no longer reaches the API server.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use http::StatusCode;
use reqwest::Client;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use super::service::Service;
use super::{answers, append};
use crate::fences::random::run;
use crate::fences::store::{Append, Store, Written};
use crate::harness::{
    Exec, Namespace, PATIENCE, Proxy, Sidecar, TakeOver, eventually, is_dead, own_file, own_port,
    signal,
};
use crate::history::Entry;
use crate::support::{BINARY, complete, sidecar};

/// How long a client waits for a fence that may be suspended.
const LIMIT: Duration = Duration::from_secs(5);
/// How many entries the next leader accepts while the last one is suspended.
const MORE: usize = 20;

/// A sidecar that only verifies tokens, against the newest one that was granted.
struct Locks {
    url: String,
    newest: Arc<AtomicU64>,
    _server: AbortOnDropHandle<()>,
}

impl Locks {
    async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let newest = Arc::new(AtomicU64::new(0));
        let router = Router::new()
            .route("/v1/fencing/verify", post(verify))
            .with_state(newest.clone());
        let server = tokio::spawn(async move {
            let _stopped = axum::serve(listener, router).await;
        });
        Ok(Self {
            url,
            newest,
            _server: AbortOnDropHandle::new(server),
        })
    }
}

async fn verify(
    State(newest): State<Arc<AtomicU64>>,
    Json(asked): Json<Value>,
) -> (StatusCode, Json<Value>) {
    let newest = newest.load(Ordering::SeqCst);
    let code = match asked["fencingToken"].as_u64().unwrap_or_default() {
        token if token == newest => return (StatusCode::OK, Json(json!({"current": true}))),
        token if token < newest => "stale_token",
        _ => "unknown_token",
    };
    let refusal = json!({"code": code, "latestFencingToken": newest});
    (StatusCode::CONFLICT, Json(refusal))
}

/// A pod of a fence: its sidecar, and the way to the API server.
struct FencePod {
    sidecar: Sidecar,
    way: Proxy,
    port: u16,
}

impl FencePod {
    async fn start(namespace: &Namespace, name: &str) -> Result<Self> {
        let way = Proxy::start(&namespace.cluster).await?;
        let pod = namespace.pod(name).await?.through(&way.url)?;
        Ok(Self {
            sidecar: sidecar(&pod, 15).await?,
            way,
            port: own_port()?,
        })
    }
}

/// The fences.
struct Replicas {
    service: Service,
    locks: Locks,
    pods: [FencePod; 2],
    /// The exec that runs each fence.
    execs: RefCell<Vec<Exec>>,
    /// Whether only one of them forwards. Otherwise each trusts the tokens that it gets.
    elect: bool,
    accepted: Cell<usize>,
    crashes: Cell<usize>,
}

impl Replicas {
    async fn start(elect: bool) -> Result<Self> {
        let cluster = complete(TakeOver::Peer).await?;
        let namespace = cluster.namespace("fence-replicas").await?;
        let replicas = Self {
            service: Service::start().await?,
            locks: Locks::start().await?,
            pods: [
                FencePod::start(&namespace, "a").await?,
                FencePod::start(&namespace, "b").await?,
            ],
            execs: RefCell::default(),
            elect,
            accepted: Cell::new(0),
            crashes: Cell::new(0),
        };
        let both = [replicas.launch(0)?, replicas.launch(1)?];
        replicas.execs.replace(both.into());
        Ok(replicas)
    }

    fn url(&self, number: usize) -> String {
        format!("http://127.0.0.1:{}", self.pods[number].port)
    }

    fn launch(&self, number: usize) -> Result<Exec> {
        let lock = if self.elect {
            "fence".to_owned()
        } else {
            format!("fence-{number}")
        };
        let flags = if self.elect {
            format!("--leader --url {}", self.locks.url)
        } else {
            let directory = own_file("fence-state")?;
            format!("--trust-tokens --state-dir {}", directory.display())
        };
        let script = format!(
            "exec {BINARY} fence {flags} --settle 3 --upstream {} --listen 127.0.0.1:{} --admin-listen none",
            self.service.url, self.pods[number].port,
        );
        Exec::start(
            BINARY,
            &self.pods[number].sidecar,
            &["--lock", &lock],
            &script,
        )
    }

    /// Returns a fence that answers.
    async fn leader(&self) -> Result<usize> {
        for number in if fastrand::bool() { [0, 1] } else { [1, 0] } {
            let url = self.url(number);
            let answered = tokio::time::timeout(LIMIT, answers(&url)).await;
            if matches!(answered, Ok(Ok(()))) {
                return Ok(number);
            }
        }
        anyhow::bail!("no fence answers")
    }

    fn replace(&self, number: usize, exec: Exec) -> Exec {
        std::mem::replace(&mut self.execs.borrow_mut()[number], exec)
    }

    /// Suspends the pod of the leader, and returns its processes: first exec's, last the fence.
    fn suspend(&self, number: usize) -> Result<Vec<i32>> {
        self.pods[number].sidecar.freeze()?;
        self.execs.borrow()[number].stop()
    }

    /// Continues it. Its exec then ends the fence.
    async fn resume(&self, number: usize, pids: &[i32]) -> Result<()> {
        for pid in pids.iter().rev() {
            signal(*pid, Signal::CONT)?;
        }
        self.pods[number].sidecar.thaw()?;
        let dead = async || pids.iter().all(|pid| is_dead(*pid)).then_some(());
        eventually("the end of the former leader", PATIENCE, dead).await
    }

    async fn until_next_accepts(&self) -> Result<()> {
        let before = self.accepted.get();
        let more = async || (self.accepted.get() >= before + MORE).then_some(());
        eventually("entries of the next leader", PATIENCE, more).await
    }

    async fn until_one_leads(&self) -> Result<usize> {
        let leads = async || self.leader().await.ok();
        eventually("a fence that leads", PATIENCE, leads).await
    }

    /// Appends once, by a client of its own.
    async fn append_once(&self, number: usize, token: u64) -> Result<Written> {
        let append = Append {
            token,
            value: format!("once-{token}"),
            pause: Duration::ZERO,
        };
        super::append(&Client::new(), &self.url(number), &append).await
    }
}

impl Store for Replicas {
    /// The client, and the fence that answered last.
    type Connection = (Client, String);

    async fn grant(&self, token: u64) -> Result<()> {
        self.locks.newest.store(token, Ordering::SeqCst);
        Ok(())
    }

    async fn connect(&self) -> Result<(Client, String)> {
        let leader = self.leader().await?;
        let client = Client::builder().timeout(LIMIT).build()?;
        Ok((client, self.url(leader)))
    }

    async fn append(&self, (client, url): &mut (Client, String), one: &Append) -> Result<Written> {
        let written = append(client, url, one).await?;
        if written == Written::Accepted {
            self.accepted.set(self.accepted.get() + 1);
        }
        Ok(written)
    }

    async fn entries(&self) -> Result<Vec<Entry>> {
        Ok(self.service.entries())
    }

    /// Kills the leader, suspends it, or cuts its sidecar's way to the API server, in turn. The last two end when the
    /// next leader has accepted entries.
    async fn crash(&self) -> Result<()> {
        let leader = self.until_one_leads().await?;
        let crashes = self.crashes.get();
        self.crashes.set(crashes + 1);
        match crashes % 3 {
            1 => {
                let pids = self.suspend(leader)?;
                self.until_next_accepts().await?;
                self.resume(leader, &pids).await?;
            }
            2 => {
                self.pods[leader].way.pause();
                self.until_next_accepts().await?;
                self.pods[leader].way.resume();
            }
            _ => {}
        }
        drop(self.replace(leader, self.launch(leader)?));
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn no_older_token_passes_while_leaders_change() -> Result<()> {
    let replicas = Replicas::start(true).await?;
    run(&replicas, 4).await?;
    ensure!(replicas.crashes.get() == 4);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn fence_suspended_past_its_lease_forwards_nothing() -> Result<()> {
    let replicas = Replicas::start(true).await?;
    let former = replicas.until_one_leads().await?;
    replicas.grant(1000).await?;
    let written = replicas.append_once(former, 1000).await?;
    ensure!(written == Written::Accepted, "{written:?}");
    let pids = replicas.suspend(former)?;
    let next = replicas.until_one_leads().await?;
    ensure!(next != former);
    replicas.grant(2000).await?;
    let written = replicas.append_once(next, 2000).await?;
    ensure!(written == Written::Accepted, "{written:?}");
    // Only the fence continues, so nothing ends it.
    let fence = pids.last().context("the fence")?;
    signal(*fence, Signal::CONT)?;
    let refused = Client::new()
        .post(format!("{}/log", replicas.url(former)))
        .header("x-fencing-token", 1000)
        .header("x-fencing-resource", "log")
        .send()
        .await?
        .text()
        .await?;
    ensure!(refused.contains("\"not_leading\""), "{refused}");
    replicas.resume(former, &pids).await
}

/// The control: two fences that both forward do not see each other's tokens.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn stale_write_passes_two_fences_that_both_forward() -> Result<()> {
    let replicas = Replicas::start(false).await?;
    for (number, token) in [(0, 2000), (1, 1000)] {
        let appended = async || replicas.append_once(number, token).await.ok();
        let written = eventually("a fence that forwards", PATIENCE, appended).await?;
        ensure!(written == Written::Accepted, "{written:?}");
    }
    let tokens: Vec<_> = replicas
        .service
        .entries()
        .into_iter()
        .map(|one| one.token)
        .collect();
    ensure!(tokens == [2000, 1000], "{tokens:?}");
    Ok(())
}
