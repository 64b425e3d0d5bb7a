//! State files that a restarted agent refuses: each with its reason, with a new session from then on, larger tokens,
//! and the old session unchanged.

use leasehold::agent::Past;

use super::*;

/// Kills a sidecar with one lease, changes the world, starts it, and checks that it resumes nothing.
async fn resumes_nothing(
    what: &str,
    meanwhile: impl FnOnce(&Node),
    adjust: impl FnOnce(&mut Config),
    change: impl FnOnce(&mut Memory),
    expected: LeaseError,
) {
    let mut node = Node::new();
    let pod = node.start();
    let lease = pod.lease("r").await;
    let session = node.store.session_of("r").unwrap();
    let renewals = node.store.session(&session).unwrap().renewals;
    node.kill(&pod);
    meanwhile(&node);
    let renewals = node
        .store
        .session(&session)
        .map_or(renewals, |s| s.renewals);
    let pod = node.start_with(adjust, change);
    assert_eq!(renewed(&pod, &lease).await, Err(expected), "{what}");
    // It acquires free locks, under a new session.
    let other = pod.lease("s").await;
    assert_ne!(node.store.session_of("s"), Some(session.clone()), "{what}");
    // The old one is left alone, and so is its grant: it has to be proven dead first.
    if let Some(old) = node.store.session(&session) {
        assert_eq!(old.renewals, renewals, "{what}");
    }
    if let Some(lock) = node.store.lock("r").filter(|lock| lock.grant.is_some()) {
        assert_eq!(lock.token, lease.token, "{what}");
        let is_dead = node
            .store
            .session(&session)
            .is_none_or(|s| s.revoked.is_some());
        let answer = pod.acquire("r").await;
        if !is_dead {
            assert!(
                matches!(answer, Ok(Acquired::Held { .. })),
                "{what}: {answer:?}"
            );
            node.clock.advance(Duration::from_secs(16));
        }
    }
    let again = match pod.acquire("r").await {
        Ok(Acquired::Granted { lease, .. }) => lease.token,
        _ => node.token("r"),
    };
    assert!(again > lease.token, "{what}");
    assert!(other.token > Token::from_raw(0));
    // And that is recorded in a new file.
    let records = fs::read_to_string(node.file()).unwrap();
    assert!(records.contains("\"session\""), "{what}: {records}");
}

fn nothing(_: &Node) {}
fn same(_: &mut Config) {}
fn as_it_is(_: &mut Memory) {}

#[tokio::test]
async fn file_of_another_boot_is_refused() {
    let change = |memory: &mut Memory| memory.boot_id = "another".into();
    resumes_nothing("boot", nothing, same, change, LeaseError::Unknown).await;
}

#[tokio::test]
async fn file_of_another_pod_is_refused() {
    let adjust = |config: &mut Config| config.pod.uid = "another".into();
    resumes_nothing("pod", nothing, adjust, as_it_is, LeaseError::Unknown).await;
}

#[tokio::test]
async fn file_of_another_namespace_is_refused() {
    let change = |memory: &mut Memory| memory.namespace = "another".into();
    resumes_nothing("namespace", nothing, same, change, LeaseError::Unknown).await;
}

#[tokio::test]
async fn file_with_another_session_ttl_is_refused() {
    let adjust = |config: &mut Config| {
        config.session_ttl = leasehold::protocol::time::SessionTtl::clamped(16);
    };
    let lost = LeaseError::Lost(Loss::AgentRestarted);
    resumes_nothing("ttl", nothing, adjust, as_it_is, lost).await;
}

/// The clock since boot cannot go back, so no session has this deadline.
#[tokio::test]
async fn impossible_deadline_is_refused() {
    let change = |memory: &mut Memory| {
        let Past::Records(records) = &mut memory.past else {
            panic!("there are records");
        };
        for record in records {
            let text = String::from_utf8(record.clone()).unwrap();
            *record = text.replace("Ns\":10", "Ns\":20").into_bytes();
        }
    };
    let lost = LeaseError::Lost(Loss::AgentRestarted);
    resumes_nothing("future", nothing, same, change, lost).await;
}

#[tokio::test]
async fn damaged_file_is_set_aside() {
    let cut = |node: &Node| {
        let mut text = fs::read(node.file()).unwrap();
        text.truncate(text.len() - 10);
        fs::write(node.file(), text).unwrap();
    };
    resumes_nothing("cut", cut, same, as_it_is, LeaseError::Unknown).await;
}

#[tokio::test]
async fn deadline_in_the_past_is_refused() {
    let later = |node: &Node| node.clock.advance(Duration::from_millis(14_250));
    let lost = LeaseError::Lost(Loss::SessionExpired);
    resumes_nothing("deadline", later, same, as_it_is, lost).await;
}

#[tokio::test]
async fn revoked_session_is_not_resumed() {
    let revoke = |node: &Node| {
        let session = node.store.session_of("r").unwrap();
        node.store.revoke_session(&session);
    };
    let lost = LeaseError::Lost(Loss::SessionRevoked);
    resumes_nothing("revoked", revoke, same, as_it_is, lost).await;
}

/// The file is an older copy: the session was renewed since, with unknown promises.
#[tokio::test]
async fn session_renewed_since_is_not_resumed() {
    let renew = |node: &Node| {
        let store = node.store.clone();
        let session = store.session_of("r").unwrap();
        store.renew_session(&session);
    };
    let lost = LeaseError::Lost(Loss::AgentRestarted);
    resumes_nothing("renewed", renew, same, as_it_is, lost).await;
}

/// A renewal that was sent before the process crashed lands between the read and the renewal.
#[tokio::test]
async fn outrun_renewal_resumes_nothing() {
    let mut node = Node::new();
    let pod = node.start();
    let lease = pod.lease("r").await;
    let session = node.store.session_of("r").unwrap();
    node.kill(&pod);
    let gate = node
        .store
        .hold(Call::RenewSession, crate::memory_store::Half::Request);
    let pod = node.start();
    eventually("the renewal is sent", || gate.arrived() > 0).await;
    node.store.renew_session(&session);
    gate.open();
    assert_eq!(renewed(&pod, &lease).await, lost(Loss::AgentRestarted));
    assert_eq!(node.store.session(&session).unwrap().renewals, 1);
}

/// It is unknown whether the own renewal landed, so the agent does not rely on it.
#[tokio::test(start_paused = true)]
async fn unanswered_renewal_resumes_nothing() {
    let mut node = Node::in_paused_time();
    let pod = node.start();
    let lease = pod.lease("r").await;
    node.kill(&pod);
    node.store.lose_answer(Call::RenewSession);
    let pod = node.start();
    assert_eq!(renewed(&pod, &lease).await, lost(Loss::AgentRestarted));
}

#[tokio::test]
async fn lease_of_a_refused_session_can_be_released() {
    let mut node = Node::new();
    let pod = node.start();
    let lease = pod.lease("r").await;
    node.kill(&pod);
    node.store.fail_all(StoreError::Unavailable("away".into()));
    let pod = node.start();
    assert_eq!(pod.agent.release(&lease.lease).await, Ok(Released::Pending));
    node.clock.advance(Duration::from_secs(15));
    let is_over = || {
        let released = pod.agent.release(&lease.lease);
        futures::FutureExt::now_or_never(released) == Some(Ok(Released::Done))
    };
    eventually("it is over", is_over).await;
}
