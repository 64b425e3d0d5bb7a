//! The operator with a fleet: its cost while all sessions are alive, and how soon it has freed the
//! locks of an expired session that held many.
//!
//! `LEASEHOLD_BENCH_SECONDS` sets how long the cost is measured.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::StreamExt as _;
use kube::api::WatchEvent;
use leasehold::protocol::time::Moment;
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::aims;
use crate::fleet::{Fleet, Size};
use crate::harness::{Namespace, OPERATOR_NAMESPACE, Operator, Requests, eventually, now};

const SIZE: Size = Size {
    sessions: 2_000,
    held: 8_000,
    first: 1_000,
    free: 2_000,
};
/// How long the cost is measured by default.
const LISTENED: Duration = Duration::from_secs(180);
/// The limit for each wait.
const LIMIT: Duration = Duration::from_secs(180);
/// The API server counts a request shortly after it answered.
const COUNTED: Duration = Duration::from_millis(500);

/// The counters at a moment without requests in flight.
struct Counts {
    computed: Duration,
    renewed: u64,
    refused: u64,
    /// The renewals of the operator's own session.
    own: u64,
    requests: Requests,
    reconciled: f64,
}

/// Measures and prints the results.
#[allow(clippy::print_stdout, reason = "a bench prints what it measured")]
pub(crate) async fn measure(ours: &str, namespace: &Namespace) -> Result<()> {
    let fleet = Fleet::make(namespace, SIZE).await?;
    let pod = namespace.cluster.operator_pod("operator").await?;
    let watches = Requests::open_watches(&namespace.client).await?;
    let operator = Operator::start(ours, &pod, &[]).await?;
    operator.until_active().await?;
    let listed = operator.rss_kib()?;
    let before = Counts::now(&fleet, namespace, &operator).await?;
    tokio::time::sleep(listened()?).await;
    let after = Counts::now(&fleet, namespace, &operator).await?;
    let open = Requests::open_watches(&namespace.client).await?;
    println!();
    println!(
        "operator over {} locks, {} of them held by {} sessions:",
        SIZE.held + SIZE.free,
        SIZE.held,
        SIZE.sessions
    );
    println!(
        "  resident: {:.1} MiB ({:.1} after the first listing, {:.1} at most), aim under 150 MiB",
        aims::mebibytes(operator.rss_kib()?),
        aims::mebibytes(listed),
        aims::mebibytes(operator.peak_rss_kib()?),
    );
    after.print_since(&before, "; aim: none");
    println!("its watches:\n{}", open.since(&watches));
    reclaim(&fleet, namespace, &operator).await
}

fn listened() -> Result<Duration> {
    match std::env::var("LEASEHOLD_BENCH_SECONDS") {
        Ok(seconds) => Ok(Duration::from_secs(seconds.parse()?)),
        Err(_) => Ok(LISTENED),
    }
}

impl Counts {
    async fn now(fleet: &Fleet, namespace: &Namespace, operator: &Operator) -> Result<Self> {
        let still = fleet.still().await;
        tokio::time::sleep(COUNTED).await;
        let (renewed, refused) = fleet.renewed();
        let counts = Self {
            computed: operator.cpu_time()?,
            renewed,
            refused,
            own: own_renewals(namespace).await?,
            requests: Requests::counted_with_others(&namespace.client).await?,
            reconciled: reconciled(operator).await?,
        };
        drop(still);
        Ok(counts)
    }

    #[allow(clippy::print_stdout, reason = "a bench prints what it measured")]
    fn print_since(&self, before: &Self, aim: &str) {
        let renewed = self.renewed - before.renewed;
        let own = self.own - before.own;
        let computed = self.computed.saturating_sub(before.computed);
        let each = computed.as_secs_f64() * 1e6 / precise(renewed.max(1));
        println!(
            "  CPU: {:.2} s, {each:.0} us for each of {renewed} renewals ({} refused), all else in it",
            computed.as_secs_f64(),
            self.refused - before.refused
        );
        let requests = self.requests.since(&before.requests);
        println!(
            "  actions: {}; writes that the API server counted, less {renewed} renewals and {own} of \
             its own session: {}{aim}",
            self.reconciled - before.reconciled,
            i128::from(requests.writes()) - i128::from(renewed) - i128::from(own)
        );
        println!("asked meanwhile:\n{requests}");
    }
}

/// Returns how many times the operator's own agent renewed its session.
async fn own_renewals(namespace: &Namespace) -> Result<u64> {
    let path = format!("/apis/leasehold.dev/v1alpha1/namespaces/{OPERATOR_NAMESPACE}/locksessions");
    let list: Value = namespace.client.request(get(&path)?).await?;
    let sessions = list["items"].as_array().context("a list has items")?;
    let renewals = sessions
        .iter()
        .map(|session| &session["status"]["renewals"]);
    Ok(renewals.filter_map(Value::as_u64).sum())
}

/// Returns the number of reconciles in the operator's metrics, of all kinds and outcomes.
async fn reconciled(operator: &Operator) -> Result<f64> {
    let (_, text) = operator.admin("/metrics").await?;
    let lines = text.lines();
    let lines = lines.filter(|line| line.starts_with("leasehold_operator_reconciles_total{"));
    Ok(lines
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum())
}

/// Stops the renewals of the session with many locks, and measures until all its locks are free.
#[allow(clippy::print_stdout, reason = "a bench prints what it measured")]
async fn reclaim(fleet: &Fleet, namespace: &Namespace, operator: &Operator) -> Result<()> {
    let session = &fleet.first;
    let revoked = revocation(namespace, session).await?;
    let gone = ends(namespace, session, SIZE.first).await?;
    let before = Counts::now(fleet, namespace, operator).await?;
    fleet.silence_the_first();
    let revoked = tokio::time::timeout(LIMIT, revoked).await???;
    let gone = tokio::time::timeout(LIMIT, gone).await???;
    let took = gone.since(revoked);
    let told = async || (operator.audit().len() >= SIZE.first).then_some(());
    eventually("a line of the audit log for each lock", LIMIT, told).await?;
    let audited = now().since(revoked);
    let after = Counts::now(fleet, namespace, operator).await?;
    println!(
        "a session with {} locks dies: from its revocation to the last lock free {:.2} s, {:.0} \
         writes a second; aim: 10 s at most",
        SIZE.first,
        took.as_secs_f64(),
        precise(SIZE.first as u64) / took.as_secs_f64()
    );
    println!(
        "  all lines of the audit log after {:.2} s; resident {:.1} MiB ({:.1} at most)",
        audited.as_secs_f64(),
        aims::mebibytes(operator.rss_kib()?),
        aims::mebibytes(operator.peak_rss_kib()?)
    );
    after.print_since(&before, "");
    Ok(())
}

type Seen = JoinHandle<Result<Moment>>;

/// Returns the time at which a watch shows that the session is revoked.
async fn revocation(namespace: &Namespace, session: &str) -> Result<Seen> {
    watch(namespace, "locksessions", &format!("metadata.name%3D{session}"), |event| {
        matches!(event, WatchEvent::Modified(object) if !object["status"]["revoked"].is_null())
    }, 1)
    .await
}

/// Returns the time at which a watch shows that the session has lost `times` locks.
async fn ends(namespace: &Namespace, session: &str, times: usize) -> Result<Seen> {
    let selector = format!("status.holder.session%3D{session}");
    let is_end = |event: &WatchEvent<Value>| matches!(event, WatchEvent::Deleted(_));
    watch(namespace, "distributedlocks", &selector, is_end, times).await
}

/// Returns the time of the last of `times` matching events.
async fn watch(
    namespace: &Namespace,
    kind: &str,
    selector: &str,
    is_one: fn(&WatchEvent<Value>) -> bool,
    times: usize,
) -> Result<Seen> {
    let path = format!(
        "/apis/leasehold.dev/v1alpha1/namespaces/{}/{kind}",
        namespace.name
    );
    let list: Value = namespace
        .client
        .request(get(&format!("{path}?limit=1"))?)
        .await?;
    let version = list["metadata"]["resourceVersion"].as_str();
    let version = version.context("a list has a version")?;
    let path = format!("{path}?watch=true&fieldSelector={selector}&resourceVersion={version}");
    let events = namespace
        .client
        .request_events::<Value>(get(&path)?)
        .await?;
    Ok(tokio::spawn(async move {
        let mut events = events.boxed();
        let mut seen = 0;
        while let Some(event) = events.next().await {
            seen += usize::from(is_one(&event?));
            if seen == times {
                return Ok(now());
            }
        }
        bail!("the watch ended after {seen} of {times} events")
    }))
}

fn get(path: &str) -> Result<http::Request<Vec<u8>>> {
    Ok(http::Request::get(path).body(vec![])?)
}

#[allow(clippy::cast_precision_loss, reason = "counts far below 2^53")]
fn precise(count: u64) -> f64 {
    count as f64
}
