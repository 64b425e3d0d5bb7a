//! The time in which a restarted agent does not know yet which leases continue: nothing is confirmed, nothing is
//! granted, and releases are accepted.

use super::*;
use crate::memory_store::Half;

fn away(node: &mut Node, pod: &Pod) -> Pod {
    node.kill(pod);
    node.store.fail_all(StoreError::Unavailable("away".into()));
    node.start()
}

#[tokio::test(start_paused = true)]
async fn no_lease_is_confirmed_during_an_outage() {
    let mut node = Node::in_paused_time();
    let pod = node.start();
    let lease = pod.lease("r").await;
    let pod = away(&mut node, &pod);
    let unsure = Err(LeaseError::Resuming);
    for _ in 0..20 {
        assert_eq!(pod.agent.renew(&lease.lease, None, pod.now()), unsure);
        assert_eq!(pod.agent.lease(&lease.lease, pod.now()), unsure);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let never = leasehold::protocol::ids::LeaseId::from("never");
    assert_eq!(pod.agent.lease(&never, pod.now()), Err(LeaseError::Unknown));
    node.store.heal();
    renewed(&pod, &lease).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn renewal_alone_confirms_no_lease() {
    let mut node = Node::in_paused_time();
    let pod = node.start();
    let lease = pod.lease("r").await;
    let session = node.store.session_of("r").unwrap();
    node.kill(&pod);
    node.store
        .fail(Call::ListHeldLocks, StoreError::Unavailable("away".into()));
    let pod = node.start();
    eventually("the session is renewed", || {
        node.store.session(&session).unwrap().renewals == 1
    })
    .await;
    let unsure = Err(LeaseError::Resuming);
    assert_eq!(pod.agent.renew(&lease.lease, None, pod.now()), unsure);
    node.store.heal();
    renewed(&pod, &lease).await.unwrap();
}

/// A list of thousands of locks takes its time; it has all that is left.
#[tokio::test(start_paused = true)]
async fn slow_list_may_take_all_the_time_left() {
    let mut node = Node::in_paused_time();
    let pod = node.start();
    let lease = pod.lease("r").await;
    node.kill(&pod);
    let gate = node.store.hold(Call::ListHeldLocks, Half::Answer);
    // A bit more than four seconds are left when it is asked, and it takes more than half of that.
    tokio::time::sleep(Duration::from_secs(10)).await;
    let pod = node.start();
    eventually("the list is asked for", || gate.arrived() > 0).await;
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    gate.open();
    assert_eq!(renewed(&pod, &lease).await.unwrap().token, lease.token);
    assert_eq!(gate.arrived(), 1, "it was asked for once");
}

/// A call that panics gives no answer. The renewal panics before it is applied.
#[tokio::test(start_paused = true)]
async fn resumption_continues_after_a_call_that_panicked() {
    for call in [Call::GetSession, Call::RenewSession, Call::ListHeldLocks] {
        let mut node = Node::in_paused_time();
        let pod = node.start();
        let lease = pod.lease("r").await;
        node.kill(&pod);
        let mut dies = Some(call);
        node.store.on_call(move |asked| {
            assert!(dies.take_if(|call| *call == asked).is_none(), "on purpose");
            None
        });
        let pod = node.start();
        let again = renewed(&pod, &lease).await.unwrap();
        assert_eq!(again.token, lease.token);
        // And it serves as ever.
        pod.lease("s").await;
    }
}

#[tokio::test]
async fn resumption_ends_at_the_deadline_without_an_answer() {
    let mut node = Node::new();
    let pod = node.start();
    let lease = pod.lease("r").await;
    let pod = away(&mut node, &pod);
    node.clock.advance(Duration::from_secs(15));
    assert_eq!(renewed(&pod, &lease).await, lost(Loss::SessionExpired));
    node.store.heal();
    pod.lease("s").await;
}

#[tokio::test(start_paused = true)]
async fn acquire_during_a_resumption_waits_and_then_asks_to_retry() {
    let store = MemoryStore::default();
    let directory = tempfile::tempdir().unwrap();
    let start = |directory: &Path| {
        let over = store.over_a_connection();
        let (locks, sessions) = (Arc::new(over.clone()), Arc::new(over.clone()));
        let config = Config::new(pod_ref("a"));
        let clock = Arc::new(PausedClock::start());
        let memory = memory(directory).unwrap();
        let agent = Agent::with_memory(config, locks, sessions, clock, memory);
        Pod {
            agent,
            store: over,
            clock: ManualClock::default(),
        }
    };
    let pod = start(directory.path());
    let lease = pod.lease("r").await;
    pod.store.cut_off();
    let next = tempfile::tempdir().unwrap();
    fs::copy(directory.path().join(FILE), next.path().join(FILE)).unwrap();
    store.fail_all(StoreError::Unavailable("away".into()));
    let pod = start(next.path());
    let began = pod.now();
    assert_eq!(pod.acquire("s").await, Err(AcquireError::Resuming));
    let waited = pod.now().since(began);
    assert!((5..6).contains(&waited.as_secs()), "{waited:?}");
    assert!(store.lock("s").is_none());
    store.heal();
    // One that comes while it becomes known has its answer.
    let held = pod.acquire("r").await;
    assert!(matches!(held, Ok(Acquired::Held { .. })), "{held:?}");
    pod.agent.renew(&lease.lease, None, pod.now()).unwrap();
}

#[tokio::test(start_paused = true)]
async fn release_during_a_resumption_takes_effect_with_it() {
    let mut node = Node::in_paused_time();
    let pod = node.start();
    let (lease, other) = (pod.lease("r").await, pod.lease("s").await);
    let pod = away(&mut node, &pod);
    assert_eq!(pod.agent.release(&lease.lease).await, Ok(Released::Pending));
    assert_eq!(
        pod.agent.renew(&lease.lease, None, pod.now()),
        Err(LeaseError::Released)
    );
    // It is on file, too, and known before anything else is.
    let pod = away(&mut node, &pod);
    assert_eq!(
        pod.agent.renew(&lease.lease, None, pod.now()),
        Err(LeaseError::Released)
    );
    node.store.heal();
    renewed(&pod, &other).await.unwrap();
    assert_eq!(
        pod.agent.renew(&lease.lease, None, pod.now()),
        Err(LeaseError::Released)
    );
    eventually("the lock is free", || pod.is_free("r")).await;
    pod.agent.renew(&other.lease, None, pod.now()).unwrap();
}

#[tokio::test]
async fn ended_leases_are_known_during_an_outage() {
    let mut node = Node::new();
    let pod = node.start();
    let lease = pod.lease("r").await;
    let released = pod.lease("s").await;
    pod.agent.release(&released.lease).await.unwrap();
    let gone = pod.lease("t").await;
    node.store.delete_lock("t");
    eventually("the watch tells", || {
        pod.agent.lease(&gone.lease, pod.now()) == lost(Loss::GrantGone)
    })
    .await;
    let pod = away(&mut node, &pod);
    let now = || pod.now();
    assert_eq!(
        pod.agent.lease(&lease.lease, now()),
        Err(LeaseError::Resuming)
    );
    assert_eq!(
        pod.agent.lease(&released.lease, now()),
        Err(LeaseError::Released)
    );
    assert_eq!(pod.agent.lease(&gone.lease, now()), lost(Loss::GrantGone));
    // Whether its release arrived is not known yet.
    assert_eq!(
        pod.agent.release(&released.lease).await,
        Ok(Released::Pending)
    );
    node.store.heal();
    renewed(&pod, &lease).await.unwrap();
    assert_eq!(pod.agent.release(&released.lease).await, Ok(Released::Done));
}

#[tokio::test]
async fn released_lease_whose_grant_is_gone_counts_as_lost() {
    let mut node = Node::new();
    let pod = node.start();
    let lease = pod.lease("r").await;
    let pod = away(&mut node, &pod);
    assert_eq!(pod.agent.release(&lease.lease).await, Ok(Released::Pending));
    node.store.edit_lock("r", |lock| lock.grant = None);
    node.store.heal();
    let lost = Err(LeaseError::Lost(Loss::GrantGone));
    let is_known =
        || futures::FutureExt::now_or_never(pod.agent.release(&lease.lease)) == Some(lost);
    eventually("it is known", is_known).await;
}

#[tokio::test(start_paused = true)]
async fn agent_stopped_during_a_resumption_resumes_then_releases() {
    for on_term in [OnTerm::Wait, OnTerm::AppsEnded] {
        let mut node = Node::in_paused_time();
        let pod = node.start();
        let lease = pod.lease("r").await;
        let told_until = pod.now().after(lease.valid_for);
        let pod = away(&mut node, &pod);
        let agent = pod.agent.clone();
        let stopping = tokio::spawn(async move { agent.shut_down(on_term).await });
        eventually("the agent is stopping", || pod.agent.is_draining()).await;
        node.store.heal();
        if on_term == OnTerm::Wait {
            // The earlier promise stands, and grows no more.
            let told = renewed(&pod, &lease).await.unwrap();
            assert!(told.valid_for <= lease.valid_for);
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(!pod.is_free("r") && !stopping.is_finished());
            assert_eq!(pod.agent.release(&lease.lease).await, Ok(Released::Done));
        }
        stopping.await.unwrap();
        // The apps have ended, as the user of the other setting promises.
        assert!(pod.now() < told_until);
        assert!(pod.is_free("r"), "{on_term:?}");
        assert!(!node.file().exists(), "{on_term:?}");
        assert!(node.store.sessions().iter().all(|s| s.revoked.is_some()));
    }
}
