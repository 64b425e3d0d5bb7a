//! The time in which a restarted agent does not know yet what goes on: nothing is confirmed, nothing
//! is taken, and whoever releases is heard.

use super::*;

fn away(node: &mut Node, pod: &Pod) -> Pod {
    node.kill(pod);
    node.store.fail_all(StoreError::Unavailable("away".into()));
    node.start()
}

#[tokio::test]
async fn nothing_is_confirmed_while_the_store_is_away() {
    let mut node = Node::new();
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

#[tokio::test]
async fn a_renewal_alone_confirms_nothing() {
    let mut node = Node::new();
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

#[tokio::test]
async fn at_the_deadline_it_is_over_although_nobody_answered() {
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
async fn an_acquire_waits_for_a_while_and_is_told_to_come_again() {
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

#[tokio::test]
async fn who_releases_meanwhile_is_heard_and_the_lock_is_free_as_soon_as_it_can_be() {
    let mut node = Node::new();
    let pod = node.start();
    let (lease, other) = (pod.lease("r").await, pod.lease("s").await);
    let pod = away(&mut node, &pod);
    assert_eq!(pod.agent.release(&lease.lease).await, Ok(Released::Pending));
    assert_eq!(
        pod.agent.renew(&lease.lease, None, pod.now()),
        Err(LeaseError::Released)
    );
    // It is on file, too.
    let pod = away(&mut node, &pod);
    assert_eq!(
        pod.agent.renew(&lease.lease, None, pod.now()),
        Err(LeaseError::Unknown)
    );
    node.store.heal();
    eventually("the lock is free", || pod.is_free("r")).await;
    renewed(&pod, &other).await.unwrap();
    assert_eq!(
        pod.agent.renew(&lease.lease, None, pod.now()),
        Err(LeaseError::Released)
    );
}

#[tokio::test]
async fn a_released_lease_whose_grant_is_gone_was_lost() {
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

#[tokio::test]
async fn an_agent_that_is_stopped_meanwhile_finds_out_first_and_releases() {
    for on_term in [OnTerm::Wait, OnTerm::ReleaseNow] {
        let mut node = Node::new();
        let pod = node.start();
        let lease = pod.lease("r").await;
        let pod = away(&mut node, &pod);
        let agent = pod.agent.clone();
        let stopping = tokio::spawn(async move { agent.shut_down(on_term).await });
        eventually("the agent is stopping", || pod.agent.is_draining()).await;
        node.store.heal();
        if on_term == OnTerm::Wait {
            // What was told before stands, and grows no more.
            let told = renewed(&pod, &lease).await.unwrap();
            assert_eq!(told.valid_for, lease.valid_for);
            assert!(!pod.is_free("r"));
            assert_eq!(pod.agent.release(&lease.lease).await, Ok(Released::Done));
        }
        stopping.await.unwrap();
        assert!(pod.is_free("r"), "{on_term:?}");
        assert!(!node.file().exists(), "{on_term:?}");
        assert!(node.store.sessions().iter().all(|s| s.revoked.is_some()));
    }
}
