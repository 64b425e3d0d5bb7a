//! Streams of events, in paused time: each event in its order, no claim without a promise, and the end of a
//! connection ends its hold.

mod release_requests;

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold::agent::{
    AcquireError, AcquireRequest, Acquired, Agent, EventsError, Hold, HoldError, LeaseError,
    LeaseEvent, LeaseEvents, LeaseView, Life, OnTerm, Request, TooManyStreams,
};
use leasehold::protocol::ids::{LeaseId, OwnerId, Resource};
use leasehold::protocol::lease::Loss;
use leasehold::protocol::time::Moment;
use leasehold::store::StoreError;

use super::{Pod, eventually};
use crate::memory_store::{Call, MemoryStore};

/// A third of the TTL, and no more between two heartbeats.
const THIRD: Duration = Duration::from_secs(5);
const DAY: Duration = Duration::from_secs(86_400);

fn request(owner: &str, max_hold: Duration) -> AcquireRequest {
    AcquireRequest {
        resource: Resource::parse("r").unwrap(),
        owner: OwnerId::from(owner),
        life: Life::Connection { max_hold },
        wait: Duration::MAX,
        keep: Duration::ZERO,
        metadata: BTreeMap::new(),
        preferred: false,
        request_id: None,
    }
}

async fn hold_for(pod: &Pod, max_hold: Duration) -> Hold {
    let request = request("app", max_hold);
    pod.agent.hold(request, pod.now()).await.unwrap()
}

async fn acquired(hold: &mut Hold) -> LeaseView {
    loop {
        match hold.next().await {
            Some(LeaseEvent::Acquired(lease)) => return lease,
            Some(LeaseEvent::Waiting { .. }) => {}
            other => panic!("not acquired: {other:?}"),
        }
    }
}

async fn heartbeat(hold: &mut Hold) -> LeaseView {
    match hold.next().await {
        Some(LeaseEvent::Heartbeat(lease)) => lease,
        other => panic!("no heartbeat: {other:?}"),
    }
}

fn follow(pod: &Pod, lease: &LeaseId) -> LeaseEvents {
    pod.agent.events(lease, pod.now()).unwrap()
}

async fn until_lost(events: &mut LeaseEvents) -> Loss {
    loop {
        match events.next().await {
            Some(LeaseEvent::Lost(_, loss)) => return loss,
            Some(_) => {}
            None => panic!("it ended without a loss"),
        }
    }
}

fn a_pod() -> (MemoryStore, Pod) {
    let store = MemoryStore::default();
    let pod = Pod::in_paused_time("a", &store);
    (store, pod)
}

#[tokio::test(start_paused = true)]
async fn hold_reports_waiting_then_acquired_then_heartbeats() {
    let (store, a) = a_pod();
    let b = Pod::in_paused_time("b", &store);
    let first = a.lease("r").await;
    let arrived = b.now();
    let mut hold = hold_for(&b, DAY).await;
    let (mut told, mut renewed) = (Moment::default(), None);
    for _ in 0..5 {
        let event = hold.next().await;
        let Some(LeaseEvent::Waiting { resource, held, at }) = &event else {
            panic!("not waiting: {event:?}");
        };
        assert_eq!(resource.as_str(), "r");
        let pod = held.as_ref().map(|held| &*held.holder.pod);
        assert_eq!((pod, *at), (Some("a"), b.now()));
        let silence = held.as_ref().and_then(|held| held.silence);
        assert!(silence.is_none_or(|silence| silence.since <= *at && *at < silence.until));
        renewed = silence.map(|silence| silence.since).max(renewed);
        assert!(told == Moment::default() || b.now().since(told) <= THIRD);
        told = b.now();
    }
    // The holder lives.
    assert!(renewed.is_some_and(|renewed| b.now().since(renewed) < 2 * THIRD));
    a.agent.renew(&first.lease, None, a.now()).unwrap();
    a.agent.release(&first.lease).await.unwrap();
    let lease = acquired(&mut hold).await;
    assert!(lease.token > first.token);
    let mut told = b.now();
    let mut until = arrived.after(lease.valid_for);
    for _ in 0..10 {
        let lease = heartbeat(&mut hold).await;
        assert!(b.now().since(told) <= THIRD);
        told = b.now();
        let next = arrived.after(lease.valid_for);
        assert!(
            next >= until,
            "it counts from the same request, so it grows"
        );
        until = next;
    }
    assert!(until > told, "it was renewed meanwhile");
}

#[tokio::test(start_paused = true)]
async fn heartbeat_is_a_promise_of_the_agent() {
    let (_, pod) = a_pod();
    let mut hold = hold_for(&pod, DAY).await;
    let arrived = pod.now();
    acquired(&mut hold).await;
    let mut told = Moment::default();
    for _ in 0..5 {
        told = arrived.after(heartbeat(&mut hold).await.valid_for);
    }
    let stopping = tokio::spawn({
        let agent = pod.agent.clone();
        async move { agent.shut_down(OnTerm::Wait).await }
    });
    let requested = hold.next().await;
    assert!(
        matches!(&requested, Some(LeaseEvent::ReleaseRequested(lease, Request::AgentStopping))
            if arrived.after(lease.valid_for) == told),
        "{requested:?}"
    );
    while let Some(event) = hold.next().await {
        match event {
            LeaseEvent::Heartbeat(lease) => {
                assert_eq!(arrived.after(lease.valid_for), told, "it moves no more");
                assert!(
                    !pod.is_free("r"),
                    "nothing is given up before what was told"
                );
            }
            LeaseEvent::Lost(_, loss) => {
                assert_eq!(loss, Loss::AgentStopping);
                assert!(pod.now() >= told);
            }
            other => panic!("{other:?}"),
        }
    }
    stopping.await.unwrap();
    assert!(pod.is_free("r"));
}

#[tokio::test(start_paused = true)]
async fn end_of_the_connection_releases_at_once() {
    let (store, a) = a_pod();
    let b = Pod::in_paused_time("b", &store);
    let mut first = hold_for(&a, DAY).await;
    acquired(&mut first).await;
    let mut second = hold_for(&b, DAY).await;
    assert!(matches!(
        second.next().await,
        Some(LeaseEvent::Waiting { .. })
    ));
    let in_queue = || store.lock("r").is_some_and(|lock| lock.waiters.len() == 1);
    eventually("the second stands in the queue", in_queue).await;
    let before = b.now();
    drop(first);
    acquired(&mut second).await;
    assert_eq!(b.now(), before, "in paused time no time has passed");
    drop(second);
    eventually("the lock is free", || b.is_free("r")).await;
    assert!(b.now().since(before) < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn unread_hold_is_released_with_its_connection() {
    let (store, a) = a_pod();
    let b = Pod::in_paused_time("b", &store);
    let first = a.lease("r").await;
    let mut hold = hold_for(&b, DAY).await;
    assert!(matches!(
        hold.next().await,
        Some(LeaseEvent::Waiting { .. })
    ));
    let in_queue = || store.lock("r").is_some_and(|lock| lock.waiters.len() == 1);
    eventually("it stands in the queue", in_queue).await;
    a.agent.release(&first.lease).await.unwrap();
    // The grant came, and its stream is not read.
    eventually("it has the lock", || {
        b.agent.metrics().encode().contains("leasehold_leases 1")
    })
    .await;
    drop(hold);
    eventually("the lock is free", || b.is_free("r")).await;
}

#[tokio::test(start_paused = true)]
async fn closed_waiting_hold_leaves_no_queue_entry() {
    let (store, a) = a_pod();
    let b = Pod::in_paused_time("b", &store);
    let _first = a.lease("r").await;
    let mut hold = hold_for(&b, DAY).await;
    assert!(matches!(
        hold.next().await,
        Some(LeaseEvent::Waiting { .. })
    ));
    let queued = || store.lock("r").unwrap().waiters.len();
    eventually("it stands in the queue", || queued() == 1).await;
    drop(hold);
    eventually("the queue is empty", || queued() == 0).await;
}

#[tokio::test(start_paused = true)]
async fn hold_ends_by_its_maximum_time_and_not_by_silence() {
    let (_, pod) = a_pod();
    let max_hold = Duration::from_secs(100);
    let mut hold = hold_for(&pod, max_hold).await;
    acquired(&mut hold).await;
    let (granted, mut asked_at) = (pod.now(), None);
    loop {
        let event = hold.next().await;
        let since = pod.now().since(granted);
        match event {
            Some(LeaseEvent::Heartbeat(lease)) => assert!(lease.valid_for <= max_hold),
            Some(LeaseEvent::ReleaseRequested(lease, Request::MaxHold)) => {
                assert!(asked_at.replace(since).is_none(), "said once");
                assert!(lease.valid_for <= max_hold);
            }
            Some(LeaseEvent::Lost(_, Loss::MaxHold)) => break assert!(since >= max_hold),
            other => panic!("after {since:?}: {other:?}"),
        }
    }
    let asked_at = asked_at.expect("it is asked to release before");
    let early = max_hold.checked_sub(asked_at).unwrap();
    assert!(early > Duration::from_secs(14), "{early:?} before the end");
    assert_eq!(hold.next().await, None);
    eventually("the lock is free", || pod.is_free("r")).await;
}

#[tokio::test(start_paused = true)]
async fn release_ends_a_holds_stream_and_renewal_changes_nothing() {
    let (_, pod) = a_pod();
    let mut hold = hold_for(&pod, Duration::from_secs(60)).await;
    let lease = acquired(&mut hold).await.lease;
    let a_second = Some(Duration::from_secs(1));
    let renewed = pod.agent.renew(&lease, a_second, pod.now()).unwrap();
    assert!(renewed.valid_for > Duration::from_secs(14));
    heartbeat(&mut hold).await;
    pod.agent.release(&lease).await.unwrap();
    assert_eq!(hold.next().await, None, "the app knows");
    assert!(pod.is_free("r"));
}

#[tokio::test(start_paused = true)]
async fn event_stream_neither_extends_nor_ends_a_lease() {
    let (_, pod) = a_pod();
    let lease = pod.lease("r").await.lease;
    let mut events = follow(&pod, &lease);
    assert!(matches!(
        events.next().await,
        Some(LeaseEvent::Heartbeat(_))
    ));
    drop(events);
    assert!(pod.agent.lease(&lease, pod.now()).is_ok());
    let mut events = follow(&pod, &lease);
    // The TTL of the lease is ten minutes.
    assert_eq!(until_lost(&mut events).await, Loss::AppSilent);
    assert_eq!(events.next().await, None);
    let again = pod.agent.events(&lease, pod.now()).err();
    let lost = EventsError::Lease(LeaseError::Lost(Loss::AppSilent));
    assert_eq!(again, Some(lost));
    let unknown = pod.agent.events(&LeaseId::from("nope"), pod.now()).err();
    assert_eq!(unknown, Some(EventsError::Lease(LeaseError::Unknown)));
}

#[tokio::test(start_paused = true)]
async fn loss_is_reported_with_its_reason_before_the_deadline() {
    let (store, pod) = a_pod();
    let mut hold = hold_for(&pod, DAY).await;
    let arrived = pod.now();
    let until = arrived.after(acquired(&mut hold).await.valid_for);
    store.delete_lock("r");
    let last = hold.next().await;
    assert!(
        matches!(last, Some(LeaseEvent::Lost(_, Loss::GrantGone))),
        "{last:?}"
    );
    assert_eq!(hold.next().await, None);
    assert!(pod.now() < until);

    let mut hold = hold_for(&pod, DAY).await;
    let mut until = arrived.after(acquired(&mut hold).await.valid_for);
    store.revoke_session(&store.session_of("r").unwrap());
    loop {
        match hold.next().await {
            Some(LeaseEvent::Heartbeat(lease)) => until = pod.now().after(lease.valid_for),
            Some(LeaseEvent::Lost(_, loss)) => break assert_eq!(loss, Loss::SessionRevoked),
            other => panic!("{other:?}"),
        }
    }
    assert!(pod.now() < until);
}

#[tokio::test(start_paused = true)]
async fn at_risk_is_reported_once_per_outage_before_the_loss() {
    let (store, pod) = a_pod();
    let mut hold = hold_for(&pod, DAY).await;
    let arrived = pod.now();
    acquired(&mut hold).await;
    let away = StoreError::Unavailable("connection refused".into());
    for round in 0..2 {
        store.fail(Call::RenewSession, away.clone());
        let mut warned = 0;
        for _ in 0..4 {
            if let Some(LeaseEvent::AtRisk(lease)) = hold.next().await {
                let left = arrived.after(lease.valid_for).since(pod.now());
                assert!(left <= Duration::from_millis(7_125), "{left:?} is left");
                warned += 1;
                break;
            }
        }
        assert_eq!(warned, 1, "in round {round}");
        store.heal();
        let before = arrived.after(heartbeat(&mut hold).await.valid_for);
        let after = arrived.after(heartbeat(&mut hold).await.valid_for);
        assert!(after > before, "it recovered");
    }
    store.fail_all(away);
    let mut warned = 0;
    let loss = loop {
        match hold.next().await {
            Some(LeaseEvent::AtRisk(_)) => warned += 1,
            Some(LeaseEvent::Heartbeat(_)) => {}
            Some(LeaseEvent::Lost(_, loss)) => break loss,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((warned, loss), (1, Loss::SessionExpired));
}

#[tokio::test(start_paused = true)]
async fn stalled_reader_receives_the_current_state_when_it_resumes() {
    let (store, pod) = a_pod();
    let mut hold = hold_for(&pod, DAY).await;
    let arrived = pod.now();
    acquired(&mut hold).await;
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    // One heartbeat for an hour, and it is new.
    let told = arrived.after(heartbeat(&mut hold).await.valid_for);
    assert!(told > pod.now());
    let next = futures::FutureExt::now_or_never(hold.next());
    assert_eq!(next, None, "nothing was kept for it");
    store.delete_lock("r");
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    // Also when the end is forgotten everywhere else.
    let lost = hold.next().await;
    assert!(
        matches!(lost, Some(LeaseEvent::Lost(_, Loss::GrantGone))),
        "{lost:?}"
    );
    assert_eq!(hold.next().await, None);
}

#[tokio::test(start_paused = true)]
async fn stop_ends_waiting_holds_and_releasable_leases() {
    let (store, a) = a_pod();
    let b = Pod::in_paused_time("b", &store);
    let mut held = hold_for(&a, DAY).await;
    let lease = acquired(&mut held).await.lease;
    let mut events = follow(&a, &lease);
    let mut waiting = hold_for(&b, DAY).await;
    assert!(matches!(
        waiting.next().await,
        Some(LeaseEvent::Waiting { .. })
    ));
    b.agent.shut_down(OnTerm::Wait).await;
    let refused = Some(LeaseEvent::Failed(AcquireError::ShuttingDown.into()));
    assert_eq!(waiting.next().await, refused);
    assert_eq!(waiting.next().await, None);

    a.agent.shut_down(OnTerm::AppsEnded).await;
    let lost = Some(LeaseEvent::Lost(lease, Loss::AgentStopping));
    assert_eq!(held.next().await, lost);
    assert_eq!(held.next().await, None);
    assert_eq!(until_lost(&mut events).await, Loss::AgentStopping);
}

#[tokio::test(start_paused = true)]
async fn streams_are_bounded_in_number() {
    let store = MemoryStore::default();
    let pod = Pod::new("a", &store, |config| config.max_streams = 2);
    let lease = pod.lease("other").await.lease;
    let hold = hold_for(&pod, DAY).await;
    let events = follow(&pod, &lease);
    let too_many = TooManyStreams { limit: 2 };
    let refused = pod.agent.events(&lease, pod.now()).err();
    assert_eq!(refused, Some(EventsError::TooManyStreams(too_many)));
    let calls = store.calls();
    let refused = pod.agent.hold(request("app", DAY), pod.now()).await.err();
    assert_eq!(refused, Some(AcquireError::TooManyStreams(too_many).into()));
    assert_eq!(store.calls(), calls);
    drop((hold, events));
    let _two_more = (follow(&pod, &lease), follow(&pod, &lease));
}

#[tokio::test(start_paused = true)]
async fn hold_without_a_reachable_store_is_refused_before_its_stream() {
    let (store, pod) = a_pod();
    store.fail_all(StoreError::Unavailable("connection refused".into()));
    let refused = pod.agent.hold(request("app", DAY), pod.now()).await.err();
    assert!(
        matches!(&refused, Some(HoldError::Acquire(AcquireError::Store(error))) if error.is_transient()),
        "{refused:?}"
    );
}

/// Also of one pod: a hold waits for what another app of the pod has.
#[tokio::test(start_paused = true)]
async fn holds_of_one_pod_are_served_one_after_the_other() {
    async fn serve(agent: Agent, owner: String) -> u64 {
        let mut hold = agent.hold(request(&owner, DAY), agent.now()).await.unwrap();
        let token = acquired(&mut hold).await.token.get();
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert!(matches!(hold.next().await, Some(LeaseEvent::Heartbeat(_))));
        token
    }
    let (_, pod) = a_pod();
    let served = (0..4).map(|n| tokio::spawn(serve(pod.agent.clone(), format!("app-{n}"))));
    let mut tokens: Vec<u64> = Vec::new();
    for one in served.collect::<Vec<_>>() {
        tokens.push(one.await.unwrap());
    }
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), 4);
    let free = matches!(pod.acquire("r").await, Ok(Acquired::Granted { .. }));
    assert!(free);
}
