//! A round of our locks: the holder's sidecar is behind a proxy, and the waiters' sidecars are not.
//! The holder's app acts for as long as it was promised, and renews once a second.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use serde_json::json;

use crate::harness::{
    Answer, Class, Fault, Namespace, Proxy, Sidecar, eventually, now, target_directory,
};
use crate::history::{Event, History, HistoryFile, Op, Process, check_linearizable};
use crate::{LIMIT, Luck, kept_in};

const BINARY: &str = env!("CARGO_BIN_EXE_leasehold");
/// The number of waiters.
const WAITERS: usize = 2;
/// An app and its part of the history.
struct App {
    sidecar: Sidecar,
    process: Process,
    file: HistoryFile,
    resource: String,
}

/// Runs from the beginning of one lease until another app has the lock and the first lease is over.
pub(crate) async fn round(namespace: &Namespace, name: String, luck: Luck) -> Result<History> {
    let kept = kept_in(&name)?;
    let proxy = Proxy::start(&namespace.cluster).await?;
    let app = async |pod: &str, behind: Option<&Proxy>| {
        let mut made = namespace.pod(&format!("{name}-{pod}")).await?;
        if let Some(proxy) = behind {
            made = made.through(&proxy.url)?;
        }
        anyhow::Ok(App {
            sidecar: Sidecar::start(BINARY, &made).await?,
            process: Process::new(pod),
            file: HistoryFile::open(&kept.join(format!("{pod}.jsonl")))?,
            resource: name.clone(),
        })
    };
    let mut holder = app("holder", Some(&proxy)).await?;
    let names: Vec<_> = (0..WAITERS)
        .map(|number| format!("waiter-{number}"))
        .collect();
    let mut waiters = try_join_all(names.iter().map(|name| app(name, None))).await?;
    let (lease, until) = holder.acquire(0).await?.context("the lock was free")?;
    let is_taken = &AtomicBool::new(false);
    let holding = holder.hold(&lease, until, is_taken);
    let waiting = waiters.iter_mut().map(|waiter| async move {
        // A waiter without a grant is also in the history, and another waiter may have the lock.
        let granted = waiter.acquire(80).await?;
        granted.context("the waiter did not get the lock")?;
        is_taken.store(true, Ordering::Relaxed);
        anyhow::Ok(())
    });
    let first = futures::future::select_ok(waiting.map(Box::pin));
    let (injected, held, taken) = tokio::join!(inject(&proxy, luck), holding, first);
    taken?;
    injected.and(held)?;
    // A renewal that never arrived at the API server would show nothing.
    let exchanges = proxy.exchanges();
    let mut injected = exchanges.iter();
    let is_done = injected.any(|it| {
        let is_late = matches!(it.fault, Some(Fault::AnswerLate(_)));
        is_late && it.status == Some(200)
    });
    ensure!(is_done, "no renewal succeeded with a late answer");
    check_linearizable(&target_directory().join("porcupine"), &kept)?;
    History::read_directory(&kept)
}

/// Delays the answer of the next renewal, and stops all later renewals, requests and watch events.
async fn inject(proxy: &Proxy, luck: Luck) -> Result<()> {
    proxy.fail(Class::Renew, 1, Fault::AnswerLate(luck.answer_late));
    proxy.fail(Class::Renew, usize::MAX, Fault::RequestLost);
    eventually("a renewal", LIMIT, async || {
        let exchanges = proxy.exchanges();
        exchanges.iter().any(|it| it.fault.is_some()).then_some(())
    })
    .await?;
    // Renewals already have their own rule.
    for class in Class::ALL
        .into_iter()
        .filter(|class| *class != Class::Renew)
    {
        proxy.fail(class, usize::MAX, Fault::RequestLost);
    }
    proxy.stall_watches();
    Ok(())
}

impl App {
    fn begin(&mut self, op: Op) -> Result<Event> {
        let begun = self.process.invoke(nanos(), op);
        self.file.append(&begun)?;
        Ok(begun)
    }

    async fn acquire(&mut self, wait_seconds: u64) -> Result<Option<(String, u64)>> {
        let body = json!({"resource": self.resource, "ownerId": self.process.name(),
            "ttlSeconds": 60, "waitSeconds": wait_seconds});
        let begun = self.begin(Op::acquire(&self.resource))?;
        let answer = self.sidecar.acquire_with(&body).await?;
        let (at, operation) = (nanos(), begun.operation);
        if answer.status != 200 {
            let refused = Op::acquire(&self.resource);
            self.file
                .append(&self.process.fail(at, operation, refused))?;
            return Ok(None);
        }
        let until = believes_until(begun.at, &answer)?;
        let lease = answer.granted()?;
        let granted = Op::granted(&self.resource, &lease.id, lease.token, until);
        self.file.append(&self.process.ok(at, operation, granted))?;
        Ok(Some((lease.id, until)))
    }

    /// Renews once a second, until the lease is over and another app has the lock.
    async fn hold(&mut self, lease: &str, mut until: u64, is_taken: &AtomicBool) -> Result<()> {
        let begun = nanos();
        while nanos() < until || !is_taken.load(Ordering::Relaxed) {
            ensure!(
                Duration::from_nanos(nanos() - begun) < LIMIT,
                "no other app got the lock"
            );
            tokio::time::sleep(Duration::from_secs(1)).await;
            let begun = self.begin(Op::renew(lease))?;
            let operation = begun.operation;
            let answer = self.sidecar.renew(lease).await?;
            let outcome = match answer.status {
                200 => {
                    let told = believes_until(begun.at, &answer)?;
                    until = until.max(told);
                    self.process
                        .ok(nanos(), operation, Op::renewed(lease, told))
                }
                410 => self.process.fail(nanos(), operation, Op::renew(lease)),
                _ => self.process.unknown(nanos(), operation, Op::renew(lease)),
            };
            self.file.append(&outcome)?;
        }
        Ok(())
    }
}

fn nanos() -> u64 {
    let now = now().since(leasehold::protocol::time::Moment::default());
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// The deadline in an answer, counted from before its request was sent.
fn believes_until(sent: u64, answer: &Answer) -> Result<u64> {
    let valid_for = answer.json["validForMs"].as_u64().context("validForMs")?;
    Ok(sent + valid_for * 1_000_000)
}
