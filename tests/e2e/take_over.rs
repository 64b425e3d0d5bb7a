//! A holder that crashes or hangs, and which agents may take its lock over.

use std::time::Duration;

use anyhow::Result;
use jiff::Timestamp;

use crate::harness::{Cluster, TakeOver, eventually, now};
use crate::support::{Pair, acquire_in_time, milliseconds, until_renewed};

/// Long enough for an answer on a busy machine to be short beside a tenth of it.
const TTL_SECONDS: u64 = 6;
const TTL: Duration = Duration::from_secs(TTL_SECONDS);
/// A measured window around a part of the TTL has to be wide compared with such an answer.
const LONG_TTL_SECONDS: u64 = 20;
const LONG_TTL: Duration = Duration::from_secs(LONG_TTL_SECONDS);

#[tokio::test(flavor = "multi_thread")]
async fn expired_holders_lock_is_taken_over_within_1_to_1_2_ttl() -> Result<()> {
    let Pair { namespace, a, b } = Pair::start("killed", TakeOver::Peer, LONG_TTL_SECONDS).await?;
    let first = a.acquire("res").await?.granted()?;
    until_renewed(&namespace, "res", 1).await?;
    b.acquire("res").await?.problem(409, "lock_held")?;
    let session = namespace.holding_session("res").await?.unwrap_or_default();
    let asked = now();
    let told_until = asked.after(a.renew(&first.id).await?.granted()?.valid_for);
    a.kill9()?;

    let second = acquire_in_time(&b, "res", LONG_TTL * 2).await?;
    assert!(
        now() > told_until,
        "the dead app could still believe in its lease"
    );
    let taken_at = Timestamp::now().as_millisecond();
    // A renewal may have landed between the read and the kill.
    let name = session["metadata"]["name"].as_str().unwrap_or_default();
    let session = namespace.session(name).await?.unwrap_or_default();
    let since_renewal = taken_at - milliseconds(&session["status"]["renewedAt"])?;
    let ttls = f64::from(i32::try_from(since_renewal)?) / 1000.0 / LONG_TTL.as_secs_f64();
    println!("taken over {since_renewal} ms after the last renewal: {ttls:.3} TTL");
    assert!((1.0..=1.2).contains(&ttls), "{ttls} TTL");

    assert!(second.token > first.token);
    b.verify("res", first.token)
        .await?
        .problem(409, "stale_token")?;
    assert_eq!(session["status"]["revoked"]["reason"], "Expired");
    assert_eq!(session["status"]["revoked"]["by"], "b");
    let lock = namespace.lock("res").await?.unwrap_or_default();
    let incident = &lock["status"]["incidents"][0];
    assert_eq!(incident["kind"], "Expired");
    assert_eq!(incident["token"], first.token);
    assert_eq!(incident["pod"], "a");
    assert_eq!(incident["actor"], "b");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn holder_frozen_for_two_ttls_wakes_without_its_lock() -> Result<()> {
    let Pair { a, b, .. } = Pair::start("hung", TakeOver::Peer, TTL_SECONDS).await?;
    let first = a.acquire("res").await?.granted()?;
    a.freeze()?;
    let woken = async {
        tokio::time::sleep(TTL * 2).await;
        a.thaw()
    };
    // Asked while it hangs: its first word after waking must not be a yes.
    let (second, asked, woken) = tokio::join!(
        acquire_in_time(&b, "res", TTL * 2),
        a.renew(&first.id),
        woken
    );
    woken?;
    asked?.problem(410, "lease_lost")?;
    a.get(&first.id).await?.problem(410, "lease_lost")?;
    a.release(&first.id).await?.problem(410, "lease_lost")?;
    let second = second?;
    assert!(second.token > first.token);
    a.verify("res", first.token)
        .await?
        .problem(409, "stale_token")?;
    // What the woken one clears away behind itself is not the new holder's.
    a.acquire("other").await?.granted()?;
    assert_eq!(b.renew(&second.id).await?.granted()?.token, second.token);
    b.verify("res", second.token).await?.expect(200)?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn in_strict_mode_a_refusal_points_to_the_operator() -> Result<()> {
    // One that has no operator: it would take the lock over while the refusal is awaited.
    let cluster = Cluster::shared(TakeOver::Strict).await?;
    let Pair { namespace, a, b } = Pair::start_in(&cluster, "strict", 3).await?;
    let first = a.acquire("res").await?.granted()?;
    let session = namespace.holding_session("res").await?.unwrap_or_default();
    a.kill9()?;
    let what = "a refusal with a hint";
    let hint = eventually(what, Duration::from_secs(20), async || {
        let answer = b
            .acquire("res")
            .await
            .ok()?
            .problem(409, "lock_held")
            .ok()?;
        answer.json["hint"].as_str().map(str::to_owned)
    });
    assert!(hint.await?.contains("only the operator"));

    let again = b.acquire("res").await?.problem(409, "lock_held")?;
    assert_eq!(again.json["holder"]["fencingToken"], first.token);
    let name = session["metadata"]["name"].as_str().unwrap_or_default();
    let session = namespace.session(name).await?.unwrap_or_default();
    assert!(session["status"].get("revoked").is_none(), "{session}");
    Ok(())
}
