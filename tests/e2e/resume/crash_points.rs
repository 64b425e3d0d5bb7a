//! Crashes at chosen points: between what is written to the file, what is sent, what arrives, and what is answered. A
//! proxy holds a message until the process has ended.

use super::*;

use crate::harness::{Class, Fault, Proxy};
use crate::support::until_free;

/// Held back for longer than it takes to kill a process and start another.
const LATE: Duration = Duration::from_secs(4);

/// A node whose sidecar reaches the API server through a proxy.
async fn behind_a_proxy(about: &str) -> Result<(Node, Proxy)> {
    let mut node = Node::new(about).await?;
    let cluster = Cluster::shared(TakeOver::Peer).await?;
    let proxy = Proxy::start(&cluster).await?;
    node.pod = node.pod.through(&proxy.url)?;
    Ok((node, proxy))
}

async fn until_seen(proxy: &Proxy, class: Class) -> Result<()> {
    eventually("the message to be on its way", LIMIT, async || {
        (proxy.count(class) > 0).then_some(())
    })
    .await
}

/// The end is on file before the release is sent: whether that arrives or not, the lease is over and
/// the lock is given back.
#[tokio::test(flavor = "multi_thread")]
async fn crash_while_a_release_is_under_way() -> Result<()> {
    for fault in [
        Fault::RequestLost,
        Fault::RequestLate(LATE),
        Fault::AnswerLate(LATE),
    ] {
        let (node, proxy) = behind_a_proxy("releasing").await?;
        let a = node.start().await?;
        let (lease, kept) = (acquire(&a, "res").await?.0, acquire(&a, "kept").await?.0);
        let rule = proxy.fail(Class::Release, 100, fault);
        let (id, agent) = (lease.id.clone(), a.url.clone());
        // No client waits for its answer.
        let _asked = tokio::spawn(async move {
            let url = format!("{agent}/v1/locks/{id}");
            reqwest::Client::new().delete(url).send().await
        });
        until_seen(&proxy, Class::Release).await?;
        kill(a).await?;
        proxy.lift(rule);
        let a = node.start().await?;
        renewed(&a, &kept).await?.granted()?;
        a.renew(&lease.id).await?.problem(410, "lease_lost")?;
        until_free(&node.namespace, "res").await?;
        let next = a.acquire("res").await?.granted()?;
        ensure!(
            next.token > lease.token,
            "{fault:?}: {next:?} after {lease:?}"
        );
        // A late release ends no other grant.
        tokio::time::sleep(LATE).await;
        a.renew(&next.id).await?.granted()?;
    }
    Ok(())
}

/// What the API server answered to the first release that came by; none before it has.
fn answered(proxy: &Proxy) -> Option<u16> {
    let exchanges = proxy.exchanges();
    let mut releases = exchanges.iter().filter(|e| e.class == Class::Release);
    releases.next()?.status
}

/// Exactly between two steps: the end is on file, and the write has not arrived; or it has landed, and no caller
/// knows.
#[tokio::test(flavor = "multi_thread")]
async fn crash_between_the_recorded_end_and_the_release_response() -> Result<()> {
    for held in [Fault::RequestHeld, Fault::AnswerHeld] {
        let has_landed = held == Fault::AnswerHeld;
        let (node, proxy) = behind_a_proxy("between").await?;
        let (a, b) = (node.start().await?, node.other().await?);
        let (lease, kept) = (acquire(&a, "res").await?.0, acquire(&a, "kept").await?.0);
        let rule = proxy.fail(Class::Release, 100, held);
        let (id, agent) = (lease.id.clone(), a.url.clone());
        let _asked = tokio::spawn(async move {
            let url = format!("{agent}/v1/locks/{id}");
            reqwest::Client::new().delete(url).send().await
        });
        until_seen(&proxy, Class::Release).await?;
        if has_landed {
            until_free(&node.namespace, "res").await?;
        }
        kill(a).await?;
        let file = String::from_utf8_lossy(&std::fs::read(node.file())?).into_owned();
        let is_end = |line: &&str| line.contains("\"ended\"") && line.contains(&lease.id);
        ensure!(file.lines().any(|line| is_end(&line)), "{held:?}: {file}");
        let lock = node.namespace.lock("res").await?.context("a lock")?;
        ensure!(lock["status"]["holder"].is_null() == has_landed, "{lock}");
        proxy.lift(rule);
        let a = node.start().await?;
        renewed(&a, &kept).await?.granted()?;
        a.renew(&lease.id).await?.problem(410, "lease_lost")?;
        until_free(&node.namespace, "res").await?;
        eventually("the release to be confirmed", LIMIT, async || {
            let released = a.release(&lease.id).await.ok()?;
            (released.status == 204).then_some(())
        })
        .await?;
        let next = b.acquire("res").await?.granted()?;
        ensure!(
            next.token > lease.token,
            "{held:?}: {next:?} after {lease:?}"
        );
        // The one that was held comes late, and ends no other grant.
        proxy.resume_held();
        let answer = eventually("the release to be answered", LIMIT, async || {
            answered(&proxy)
        });
        ensure!(answer.await? == if has_landed { 200 } else { 409 });
        b.renew(&next.id).await?.granted()?;
        let lock = node.namespace.lock("res").await?.context("a lock")?;
        ensure!(lock["status"]["token"] == next.token, "{lock}");
    }
    Ok(())
}

/// The file lost the end: an older copy of it is in its place.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_is_not_on_file() -> Result<()> {
    let (node, proxy) = behind_a_proxy("not-on-file").await?;
    let a = node.start().await?;
    let lease = acquire(&a, "res").await?.0;
    let older = std::fs::read(node.file())?;
    let rule = proxy.fail(Class::Release, 100, Fault::RequestLate(LATE));
    let asked = now();
    a.release(&lease.id).await?.expect(202)?;
    kill(a).await?;
    proxy.lift(rule);
    std::fs::write(node.file(), older)?;
    let a = node.start().await?;
    let again = renewed(&a, &lease).await?;
    if now().since(asked) < LATE {
        again.granted()?;
    }
    // It lands, and another pod follows; the lease is lost as soon as the watch reports that.
    let b = node.other().await?;
    let next = acquire_in_time(&b, "res", LIMIT).await?;
    ensure!(next.token > lease.token, "{next:?} after {lease:?}");
    let lost = eventually("the lease to be lost", LIMIT, async || {
        let answer = a.renew(&lease.id).await.ok()?;
        (answer.status != 200).then_some(answer)
    });
    let lost = lost.await?.problem(410, "lease_lost")?;
    ensure!(lost.json["reason"] == "grant_gone", "{lost:?}");
    b.renew(&next.id).await?.granted()?;
    Ok(())
}

/// The same, and it had landed before the restart.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_is_not_on_file_and_landed() -> Result<()> {
    let node = Node::new("landed").await?;
    let (a, b) = (node.start().await?, node.other().await?);
    let lease = acquire(&a, "res").await?.0;
    let older = std::fs::read(node.file())?;
    a.release_for_good(&lease.id).await?;
    kill(a).await?;
    std::fs::write(node.file(), older)?;
    let next = b.acquire("res").await?.granted()?;
    let a = node.start().await?;
    let lost = renewed(&a, &lease).await?.problem(410, "lease_lost")?;
    ensure!(lost.json["reason"] == "grant_gone", "{lost:?}");
    ensure!(next.token > lease.token, "{next:?} after {lease:?}");
    b.renew(&next.id).await?.granted()?;
    Ok(())
}

/// Tokens were returned that are not on file: they are never repeated, and no other lease follows before their
/// promise is over.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_not_on_file() -> Result<()> {
    let node = Node::new("unknown-token").await?;
    let (a, b) = (node.start().await?, node.other().await?);
    let kept = acquire(&a, "kept").await?.0;
    let older = std::fs::read(node.file())?;
    let (lease, told_until) = acquire(&a, "res").await?;
    kill(a).await?;
    std::fs::write(node.file(), older)?;
    let a = node.start().await?;
    renewed(&a, &kept).await?.granted()?;
    a.renew(&lease.id).await?.problem(404, "lease_unknown")?;
    // In this pod no caller has it before either.
    let own = a.wait_for("res", 60).await?;
    let next = acquire_in_time(&b, "res", LIMIT).await;
    let own = own.answer().await?;
    ensure!(now() >= told_until, "it was given on too early");
    let tokens = [own.granted().map(|l| l.token), next.map(|l| l.token)];
    let given: Vec<u64> = tokens.into_iter().flatten().collect();
    ensure!(
        !given.is_empty() && given.iter().all(|token| *token > lease.token),
        "{given:?}"
    );
    Ok(())
}

/// The lock is acquired, and the process crashes before it can write that down: no caller knows of it, and its token
/// is never returned.
#[tokio::test(flavor = "multi_thread")]
async fn crash_before_a_grant_is_on_file() -> Result<()> {
    let (node, proxy) = behind_a_proxy("unwritten").await?;
    let a = node.start().await?;
    let kept = acquire(&a, "kept").await?.0;
    let before = std::fs::read(node.file())?;
    proxy.fail(Class::Acquire, 1, Fault::AnswerLate(LATE));
    let url = format!("{}/v1/locks/acquire", a.url);
    let _asked = tokio::spawn(async move {
        let body = json!({"resource": "res", "ttlSeconds": 60});
        reqwest::Client::new().post(url).json(&body).send().await
    });
    let granted = eventually("the lock to be had", LIMIT, async || {
        let lock = node.namespace.lock("res").await.ok().flatten()?;
        lock["status"]["holder"]
            .is_object()
            .then(|| lock["status"]["token"].as_u64())?
    })
    .await?;
    kill(a).await?;
    ensure!(std::fs::read(node.file())? == before, "it was not on file");
    let a = node.start().await?;
    renewed(&a, &kept).await?.granted()?;
    let b = node.other().await?;
    let next = acquire_in_time(&b, "res", LIMIT).await?;
    ensure!(next.token > granted, "{next:?} after {granted}");
    a.renew(&kept.id).await?.granted()?;
    Ok(())
}

/// No answer comes: the apps receive that, releases are accepted, and after the deadline the leases are over.
#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_is_away_at_the_restart() -> Result<()> {
    let (node, proxy) = behind_a_proxy("away").await?;
    let a = node.start().await?;
    let (lease, other) = (acquire(&a, "res").await?.0, acquire(&a, "other").await?.0);
    kill(a).await?;
    proxy.pause();
    let a = node.start().await?;
    for answer in [a.renew(&lease.id).await?, a.get(&lease.id).await?] {
        let unclear = answer.problem(503, "resuming")?;
        ensure!(unclear.retry_after.is_some(), "{unclear:?}");
    }
    a.release(&other.id).await?.expect(202)?;
    let waited = a.acquire("third").await?.problem(503, "resuming")?;
    ensure!(waited.retry_after.is_some(), "{waited:?}");
    let lost = renewed(&a, &lease).await?.problem(410, "lease_lost")?;
    ensure!(lost.json["reason"] == "session_expired", "{lost:?}");
    a.release_for_good(&other.id).await?;
    let said = lines(&a, STARTS_NEW_SESSION);
    ensure!(said.len() == 1, "{}", a.log());
    ensure!(
        said[0].to_string().contains("the store did not respond"),
        "{said:?}"
    );
    proxy.resume();
    acquire(&a, "third").await?;
    Ok(())
}
