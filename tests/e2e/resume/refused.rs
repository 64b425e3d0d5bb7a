//! A state file that is refused: the log gives the reason and the advice, the next acquire has a new session and a
//! larger token, and no other app gets the old lock before its deadline. The other reasons to refuse one are in
//! `it agent::resume::refusals` and beside `src/state_file.rs`.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn truncated_file_is_refused() -> Result<()> {
    let node = Node::new("truncated").await?;
    let b = node.other().await?;
    let a = node.start().await?;
    let (lease, valid_until) = acquire(&a, "res").await?;
    b.acquire("res").await?.problem(409, "lock_held")?;
    let session = node.session_of("res").await?;
    kill(a).await?;
    // At the end of a line, where every checksum is right.
    let text = std::fs::read_to_string(node.file())?;
    let mut kept: Vec<&str> = text.lines().collect();
    kept.pop();
    std::fs::write(node.file(), kept.join("\n") + "\n")?;

    let a = node.start().await?;
    renewed(&a, &lease).await?.problem(404, "lease_unknown")?;
    let refusals = lines(&a, STARTS_NEW_SESSION);
    ensure!(refusals.len() == 1, "{}", a.log());
    let refusal = &refusals[0];
    let reason = refusal["reason"].as_str().unwrap_or_default();
    ensure!(reason.contains("it is cut"), "{refusal}");
    ensure!(refusal["advice"].is_string(), "{refusal}");
    let moved = node.state.join("state.refused");
    ensure!(refusal["file"] == json!(moved), "{refusal}");
    ensure!(moved.exists(), "{moved:?}");

    let fresh = acquire(&a, "fresh").await?.0;
    ensure!(node.session_of("fresh").await? != session);
    let next = acquire_in_time(&b, "res", LIMIT).await?;
    ensure!(now() >= valid_until, "b acquired the lock too early");
    ensure!(next.token > lease.token, "{next:?} after {lease:?}");
    // The new file survives the next crash.
    kill(a).await?;
    let a = node.start().await?;
    renewed(&a, &fresh).await?.granted()?;
    ensure!(lines(&a, STARTS_NEW_SESSION).is_empty(), "{}", a.log());
    Ok(())
}
