//! State files that are refused, each with its reason: the log names it, the next acquire has a new session and
//! larger tokens, and no other app gets the old lock before its deadline.

use std::path::Path;

use super::*;

/// The defect of what a sidecar finds.
struct Case {
    name: &'static str,
    /// What the log says.
    reason: &'static str,
    /// What the old lease is answered with.
    answer: (u16, &'static str),
    /// Whether a person or another pod ended the session, so that others may follow at once.
    is_ended: bool,
}

/// Takes a lock, kills the sidecar, lets the world change, and starts it again.
async fn resumes_nothing(
    case: Case,
    meanwhile: impl AsyncFnOnce(&Node, &str) -> Result<()>,
) -> Result<()> {
    let node = Node::new(case.name).await?;
    let b = node.other().await?;
    let a = node.start().await?;
    let (lease, told_until) = acquire(&a, "res").await?;
    b.acquire("res").await?.problem(409, "lock_held")?;
    let session = node.session_of("res").await?;
    kill(a).await?;
    meanwhile(&node, &session).await?;
    let a = node.start().await?;
    let (status, code) = case.answer;
    renewed(&a, &lease).await?.problem(status, code)?;
    let said = lines(&a, STARTS_NEW_SESSION);
    ensure!(said.len() == 1, "one line says so: {}", a.log());
    let reason = said[0]["reason"].as_str().unwrap_or_default();
    ensure!(reason.contains(case.reason), "{reason:?}");
    ensure!(said[0]["advice"].is_string(), "{}", said[0]);
    let old = said[0]["file"].as_str();
    ensure!(old.is_some() == (case.answer == UNKNOWN), "{}", said[0]);
    ensure!(old.is_none_or(|old| Path::new(old) == node.state.join("state.refused")));
    ensure!(old.is_none_or(|old| Path::new(old).exists()), "{old:?}");

    let fresh = acquire(&a, "fresh").await?.0;
    ensure!(
        node.session_of("fresh").await? != session,
        "a session of its own"
    );
    let next = acquire_in_time(&b, "res", LIMIT).await?;
    ensure!(
        case.is_ended || now() >= told_until,
        "it was given on too early"
    );
    ensure!(next.token > lease.token, "{next:?} after {lease:?}");
    // From here on the file is good for the next death.
    kill(a).await?;
    let a = node.start().await?;
    renewed(&a, &fresh).await?.granted()?;
    ensure!(lines(&a, STARTS_NEW_SESSION).is_empty(), "{}", a.log());
    Ok(())
}

const UNKNOWN: (u16, &str) = (404, "lease_unknown");
const LOST: (u16, &str) = (410, "lease_lost");

fn case(name: &'static str, reason: &'static str, answer: (u16, &'static str)) -> Case {
    Case {
        name,
        reason,
        answer,
        is_ended: false,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn file_of_another_boot_is_refused() -> Result<()> {
    let case = case("other-boot", "the machine was rebooted", UNKNOWN);
    resumes_nothing(case, async |node, _| {
        node.rewrite(|records| {
            records[0]["agent"]["bootId"] = "3c2e9c1e-0000-4000-8000-000000000000".into();
        })
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn file_of_another_pod_is_refused() -> Result<()> {
    let case = case("other-pod", "it belongs to the pod with uid", UNKNOWN);
    resumes_nothing(case, async |node, _| {
        // Its file comes to be in this one's place.
        let c = node.namespace.pod("c").await?;
        let own = std::fs::read(node.file())?;
        std::fs::remove_file(node.file())?;
        let its = node.launch(&c).start().await?;
        acquire(&its, "its").await?;
        kill(its).await?;
        ensure!(std::fs::read(node.file())? != own);
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn truncated_file_is_refused() -> Result<()> {
    let case = case("truncated", "it is cut", UNKNOWN);
    resumes_nothing(case, async |node, _| {
        // At the end of a line, where every checksum is right.
        let text = std::fs::read_to_string(node.file())?;
        let mut lines: Vec<&str> = text.lines().collect();
        lines.pop();
        std::fs::write(node.file(), lines.join("\n") + "\n")?;
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn altered_file_is_refused() -> Result<()> {
    let case = case("doctored", "is damaged", UNKNOWN);
    resumes_nothing(case, async |node, _| {
        let text = std::fs::read_to_string(node.file())?;
        std::fs::write(node.file(), text.replace("\"token\":", "\"token\":9"))?;
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn file_of_another_format_is_refused() -> Result<()> {
    let case = case("other-format", "it has the format", UNKNOWN);
    resumes_nothing(case, async |node, _| {
        let text = std::fs::read_to_string(node.file())?;
        std::fs::write(node.file(), text.replacen("state 1 ", "state 2 ", 1))?;
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn revoked_session_is_not_resumed() -> Result<()> {
    let case = Case {
        is_ended: true,
        ..case("revoked", "the session was revoked", LOST)
    };
    resumes_nothing(case, async |node, session| {
        let revoked = json!({"status": {"revoked": {
            "at": "2026-01-01T00:00:00.000000Z", "by": "operator", "reason": "PodEnded"}}});
        let path = format!("locksessions/{session}/status");
        node.namespace.patch(&path, &revoked).await?;
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn deadline_in_the_past_is_refused() -> Result<()> {
    let case = case("too-late", "validity of its leases had passed", LOST);
    resumes_nothing(case, async |node, _| {
        // Until the session's own deadline, whether or not another pod took over by then.
        tokio::time::sleep(Duration::from_secs(TTL_SECONDS)).await;
        ensure!(node.file().exists());
        Ok(())
    })
    .await
}

/// A renewal of the killed process is under way when the next one asks.
#[tokio::test(flavor = "multi_thread")]
async fn session_renewed_since_is_not_resumed() -> Result<()> {
    let case = case("renewed-since", "the session was written after", LOST);
    resumes_nothing(case, async |node, session| {
        let path = format!("locksessions/{session}/status");
        node.namespace
            .patch(&path, &json!({"status": {"renewals": 77}}))
            .await?;
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn force_released_lock_is_lost_and_other_leases_are_resumed() -> Result<()> {
    let node = Node::new("forced").await?;
    let (a, b) = (node.start().await?, node.other().await?);
    let (lease, kept) = (acquire(&a, "res").await?.0, acquire(&a, "kept").await?.0);
    kill(a).await?;
    let free = json!({"status": {"holder": null, "lease": null}});
    node.namespace
        .patch("distributedlocks/res/status", &free)
        .await?;
    let next = b.acquire("res").await?.granted()?;
    ensure!(next.token > lease.token);
    let a = node.start().await?;
    let lost = renewed(&a, &lease).await?.problem(410, "lease_lost")?;
    ensure!(lost.json["reason"] == "grant_gone", "{lost:?}");
    let said = lines(&a, "lease lost");
    ensure!(
        said.len() == 1 && said[0]["reason"] == "grant_gone",
        "{said:?}"
    );
    a.renew(&kept.id).await?.granted()?;
    b.renew(&next.id).await?.granted()?;
    Ok(())
}
