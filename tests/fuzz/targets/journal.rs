//! Arbitrary records of an undamaged state file, one per line. An agent that starts with them
//! serves no lease that the store does not have. It returns no validity beyond its session's TTL,
//! and serves new callers afterwards.
//!
//! A process that can write the file can compute its checksums, so the records may contain
//! anything. `$SESSION`, `$VERSION`, `$GRANT0`, `$TOKEN0` and so on stand for the values of the
//! previous process.

mod world;

use std::collections::BTreeSet;
use std::time::Duration;

use leasehold::agent::{AcquireError, Acquired, Agent, LeaseError, LeaseView};
use leasehold::protocol::ids::LeaseId;
use leasehold::protocol::token::Token;
use serde_json::Value;

use super::{Outcome, Target};
use world::{TTL, World};

pub(crate) const TARGET: Target = Target {
    name: "journal",
    run: |input| target(input, |view| view),
    broken: |input| target(input, told_by_the_file),
    seeds: world::seeds,
    words: &[
        "{\"agent\":",
        "{\"session\":",
        "\"sessionOver\"",
        "{\"lease\":",
        "{\"ttl\":",
        "{\"ended\":",
        "{\"unheard\":",
        "$SESSION",
        "$VERSION",
        "$GRANT0",
        "$GRANT1",
        "$GRANT2",
        "$TOKEN0",
        "$TOKEN1",
        "$TOKEN2",
        ".0",
        ".1",
        ".999",
        "bootId",
        "podUid",
        "namespace",
        "ttlSeconds",
        "validUntilNs",
        "life",
        "ttlMs",
        "maxHoldMs",
        "campaign",
        "keepMs",
        "givesBack",
        "heldBack",
        "lost",
        "request",
        "requestId",
        "acquiredAtUs",
        "resource",
        "token",
        "grant",
        "id",
        "owner",
        "asked",
        "\n",
        "election:jobs",
        "kept",
        "released",
        "1015000000000",
    ],
    tries: 250,
};

fn target(input: &[u8], change: fn(LeaseView) -> LeaseView) -> Outcome {
    let world = World::left_behind();
    let text = world.filled_in(&String::from_utf8_lossy(input));
    let runtime = world::runtime();
    runtime.block_on(async {
        let agent = world.start(text.lines().map(|line| line.as_bytes().to_vec()).collect());
        let named = leases_in(&text);
        let told = told(&agent, &named).await;
        let ends = told.iter().filter_map(|told| told.as_ref().err());
        let ends: BTreeSet<_> = ends.map(|end| format!("{end:?}")).collect();
        let ends = Vec::from_iter(ends).join(" ");
        let is_read = told.iter().any(|told| *told != Err(LeaseError::Unknown));
        let served: Vec<_> = told.into_iter().flatten().map(change).collect();
        for view in &served {
            assert!(named.contains(&view.lease), "{view:?} was in no record");
            world.assert_held(view).await;
        }
        let later = assert_works(&agent, &world, &served).await;
        let told = format!("{} go on, {ends}, {later}", served.len());
        if is_read {
            Outcome::Taken(told)
        } else {
            Outcome::Refused(told)
        }
    })
}

/// Returns everything in the records that looks like a lease's id.
fn leases_in(text: &str) -> BTreeSet<LeaseId> {
    let mut found = BTreeSet::new();
    for line in text.lines() {
        let record: Value = serde_json::from_str(line).unwrap_or_default();
        for member in record
            .as_object()
            .into_iter()
            .flat_map(|members| members.values())
        {
            for name in ["id", "lease"] {
                found.extend(member[name].as_str().map(LeaseId::from));
            }
        }
    }
    found
}

/// Returns the state of each lease, once it is known which ones continue.
async fn told(agent: &Agent, named: &BTreeSet<LeaseId>) -> Vec<Result<LeaseView, LeaseError>> {
    let mut all = Vec::new();
    for lease in named {
        let mut told = agent.lease(lease, agent.now());
        for _ in 0..200 {
            if told != Err(LeaseError::Resuming) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
            told = agent.lease(lease, agent.now());
        }
        assert!(
            told != Err(LeaseError::Resuming),
            "it is not known for 20 s"
        );
        all.push(told);
    }
    all
}

/// Asserts that an agent serves new callers, whatever its state file contains. It grants a free
/// lock and, after their time is over, the previous process's locks.
async fn assert_works(agent: &Agent, world: &World, served: &[LeaseView]) -> String {
    let granted = world::acquire(agent, "fresh", Duration::from_secs(5)).await;
    assert!(
        matches!(granted, Ok(Acquired::Granted { .. })),
        "{granted:?}"
    );
    // By then the validity that the previous process returned has passed.
    let goes_on = served
        .iter()
        .any(|view| view.resource.as_str() == world::FIRST);
    let patience = if goes_on { Duration::ZERO } else { TTL * 2 };
    match world::acquire(agent, world::FIRST, patience).await {
        Ok(Acquired::Granted { lease, .. }) => {
            let own = served.iter().filter(|view| view.resource == lease.resource);
            let told = own.map(|view| view.token).chain([world.tokens[0]]);
            let before = told.max().unwrap_or(Token::NONE);
            assert!(lease.token > before, "{lease:?} comes after {before}");
            "again".to_owned()
        }
        // A lease that continues without its app keeps the lock until its TTL passes.
        Ok(Acquired::Held { .. }) | Err(AcquireError::Store(_)) if goes_on => "held".to_owned(),
        Err(AcquireError::TokenExhausted(_)) => "exhausted".to_owned(),
        other => panic!("free, and not granted within {patience:?}: {other:?}"),
    }
}

/// Planted fault: trusts the deadline in the file.
fn told_by_the_file(view: LeaseView) -> LeaseView {
    LeaseView {
        valid_for: TTL * 3,
        ..view
    }
}
