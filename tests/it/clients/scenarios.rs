//! The scenarios. Each starts a sidecar of its own, with a short session TTL, and apps.

mod renewals;

use std::process::Command;
use std::time::Duration;

use leasehold::clock::{Clock as _, SystemClock};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::app::{App, Kind};
use super::way::{Handling, Way};
use crate::dev::{Dev, eventually};

pub(super) use renewals::*;

/// No sidecar promises more at once. It is that of [`Dev`].
const SESSION_TTL: Duration = Duration::from_secs(3);

/// Returns a sidecar whose faults can be requested.
async fn sidecar() -> (TempDir, Dev) {
    let data = tempfile::tempdir().unwrap();
    let dev = Dev::start(data.path(), &["--fault-api"]).await;
    (data, dev)
}

async fn fault(dev: &Dev, name: &str, body: Value) {
    let (status, said) = dev.post(&format!("/dev/faults/{name}"), body).await;
    assert_eq!(status, 204, "{said}");
}

/// What a lock guards: it refuses a token below the highest one that it has seen.
#[derive(Default)]
struct Fence {
    highest: u64,
}

impl Fence {
    fn admits(&mut self, headers: &Value) -> bool {
        let token = headers["headers"]["X-Fencing-Token"].as_str();
        let token = token.expect("a token").parse().unwrap();
        self.admits_token(token)
    }

    fn admits_token(&mut self, token: u64) -> bool {
        let admitted = token >= self.highest;
        self.highest = self.highest.max(token);
        admitted
    }
}

fn token(lease: &Value) -> u64 {
    lease["token"].as_u64().expect("a token")
}

/// Waits until a time has passed on the clock that also runs during a suspension.
async fn passes(time: Duration) {
    let start = SystemClock.now();
    eventually(async || (SystemClock.now().since(start) > time).then_some(())).await;
}

pub(super) async fn released_lock_is_free_and_tokens_rise<C: Fn() -> Command>(kind: Kind<C>) {
    let (_data, dev) = sidecar().await;
    let mut app = kind.start(dev.url()).await;
    let mut last = 0;
    for _ in 0..3 {
        let lease = app.lock("report").await;
        assert!(token(&lease) > last);
        last = token(&lease);
        assert_eq!(dev.try_acquire("report").await.0, 409);
        let released = app.ask("report", "release").await;
        assert!(released["error"].is_null(), "{released}");
        let other = dev.acquire("report").await;
        dev.release(&other).await;
    }
}

pub(super) async fn waiter_gets_the_lock_after_release<C: Fn() -> Command>(kind: Kind<C>) {
    let (_data, dev) = sidecar().await;
    let mut first = kind.start(dev.url()).await;
    let mut second = kind.start(dev.url()).await;
    let before = token(&first.lock("report").await);
    let waiting = second.send_lock("report", None);
    first.holds("report").await;
    first.ask("report", "release").await;
    assert!(token(&second.answer(waiting).await) > before);
    second.holds("report").await;
}

pub(super) async fn wait_that_is_over_names_the_holder<C: Fn() -> Command>(kind: Kind<C>) {
    let (_data, dev) = sidecar().await;
    let mut app = kind.start(dev.url()).await;
    let held = dev.acquire("report").await;
    for wait in [0, 1] {
        let refused = app.refused_lock("report", wait).await;
        assert_eq!(
            (&refused["error"], &refused["code"]),
            (&json!("held"), &json!("lock_held"))
        );
        let detail = refused["detail"].as_str().unwrap();
        assert!(detail.contains("app"), "the holder's name: {detail}");
        let (_, found) = dev.try_acquire("report").await;
        assert_eq!(found["queueLength"], 0, "{found}");
    }
    dev.release(&held).await;
    app.lock("report").await;
}

/// The wait ends while answers get lost. The lock is granted, and the app does not know it.
pub(super) async fn wait_that_ends_unanswered_holds_nothing<C: Fn() -> Command>(mut kind: Kind<C>) {
    let (_data, dev) = sidecar().await;
    // Longer than the suite waits: the app must release it.
    kind.ttl = kind.ttl.map(|_| 600);
    let way = Way::to(dev.url()).await;
    way.rule(|_| Handling::Unanswered);
    let mut app = kind.start(way.url()).await;
    let refused = app.refused_lock("report", 1).await;
    assert_eq!(refused["error"], "unavailable", "{refused}");
    way.rule(|_| Handling::Passes);
    dev.acquire_in_time("report").await;
}

pub(super) async fn refused_request_says_what_to_correct<C: Fn() -> Command>(kind: Kind<C>) {
    let (_data, dev) = sidecar().await;
    let mut app = kind.start(dev.url()).await;
    let refused = app.refused_lock("", 5).await;
    assert_eq!(refused["error"], "refused");
    assert_eq!(refused["code"], "resource_invalid");
    let detail = refused["detail"].as_str().unwrap();
    assert!(detail.contains("name the resource"), "{detail}");
}

pub(super) async fn lease_outlives_its_first_validity<C: Fn() -> Command>(kind: Kind<C>) {
    let (_data, dev) = sidecar().await;
    let mut app = kind.start(dev.url()).await;
    app.lock("report").await;
    let start = SystemClock.now();
    let first = app.holds("report").await;
    while SystemClock.now().since(start) < first * 2 {
        let promised = app.holds("report").await;
        assert!(promised <= SESSION_TTL, "too much: {promised:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Neither a stopped sidecar nor a dead one can say that the lease is over.
pub(super) async fn lease_without_its_sidecar_ends_at_the_deadline<C: Fn() -> Command>(
    kind: Kind<C>,
) {
    for signal in ["STOP", "KILL"] {
        let (_data, dev) = sidecar().await;
        let mut app = kind.start(dev.url()).await;
        app.lock("report").await;
        let start = SystemClock.now();
        let promised = app.holds("report").await;
        dev.signal(signal);
        let reason = app.loss("report").await;
        assert_eq!(reason, "validity_over", "{signal}");
        let after = SystemClock.now().since(start);
        assert!(
            after >= promised,
            "{signal}: lost after {after:?} of {promised:?}"
        );
        app.has_lost("report").await;
        let released = app.ask("report", "release").await;
        assert_eq!(released["error"], "lost", "{signal}: {released}");
    }
}

pub(super) async fn ended_grant_is_noticed_without_a_question<C: Fn() -> Command>(kind: Kind<C>) {
    let (_data, dev) = sidecar().await;
    let mut app = kind.start(dev.url()).await;
    let lease = app.lock("report").await;
    fault(&dev, "lose-lease", json!({"leaseId": lease["leaseId"]})).await;
    assert_eq!(app.loss("report").await, "grant_gone");
    app.has_lost("report").await;
    dev.acquire_in_time("report").await;
}

/// The story of the paused worker: while the first app stands still, its grant ends, another app
/// writes, and then the first one continues.
pub(super) async fn app_that_slept_past_its_deadline_is_fenced_off<C: Fn() -> Command>(
    kind: Kind<C>,
) {
    let (_data, dev) = sidecar().await;
    let mut fence = Fence::default();
    let mut first = kind.start(dev.url()).await;
    let mut second = kind.start(dev.url()).await;
    let lease = first.lock("report").await;
    assert!(fence.admits(&first.ask("report", "headers").await));
    let promised = first.holds("report").await;
    first.signal("STOP");
    fault(&dev, "lose-lease", json!({"leaseId": lease["leaseId"]})).await;
    second.lock("report").await;
    assert!(fence.admits(&second.ask("report", "headers").await));
    passes(promised).await;
    first.signal("CONT");
    first.has_lost("report").await;
    assert!(!fence.admits_token(token(&lease)));
    second.holds("report").await;
}

/// The app's own thread, and its event loop, stand still for longer than a lease is valid.
pub(super) async fn busy_app_keeps_its_lease<C: Fn() -> Command>(kind: Kind<C>) {
    let (_data, dev) = sidecar().await;
    let mut app = kind.start(dev.url()).await;
    app.lock("report").await;
    let promised = app.holds("report").await;
    let seconds = promised.as_secs_f64() + 1.0;
    app.call(json!({"call": "busy", "seconds": seconds})).await;
    app.holds("report").await;
    assert_eq!(dev.try_acquire("report").await.0, 409);
}

pub(super) async fn app_that_is_killed_frees_its_lock<C: Fn() -> Command>(kind: Kind<C>) {
    let (_data, dev) = sidecar().await;
    let mut app = kind.start(dev.url()).await;
    app.lock("report").await;
    app.signal("KILL");
    dev.acquire_in_time("report").await;
}

/// A copy of the process has copies of its connections, which would keep the lock when it ends.
pub(super) async fn copy_of_a_process_holds_nothing<C: Fn() -> Command>(kind: Kind<C>) {
    let (_data, dev) = sidecar().await;
    let mut app = kind.start(dev.url()).await;
    app.lock("report").await;
    let fork = json!({"call": "fork", "lease": "report", "resource": "other"});
    let copy = app.call(fork).await;
    let process = Started(copy["pid"].as_u64().expect("a process"));
    assert_eq!(copy["said"], "forked", "{copy}");
    assert!(copy["token"].is_u64(), "it acquires locks of its own");
    passes(app.holds("report").await).await;
    app.holds("report").await;
    app.signal("KILL");
    dev.acquire_in_time("report").await;
    assert_eq!(dev.try_acquire("other").await.0, 409);
    drop(process);
    dev.acquire_in_time("other").await;
}

/// A program that the app starts has its open files, unless they are closed on exec.
pub(super) async fn started_program_keeps_nothing_open<C: Fn() -> Command>(kind: Kind<C>) {
    let (_data, dev) = sidecar().await;
    let mut app = kind.start(dev.url()).await;
    app.lock("report").await;
    let started = app.call(json!({"call": "start"})).await;
    let program = Started(started["pid"].as_u64().expect("a process"));
    app.signal("KILL");
    dev.acquire_in_time("report").await;
    drop(program);
}

/// A process that is not ours to wait for. Dropping it kills it.
struct Started(u64);

impl Drop for Started {
    fn drop(&mut self) {
        let pid = self.0.to_string();
        let killed = Command::new("kill").args(["-9", &pid]).status();
        assert!(killed.unwrap().success(), "it has ended before");
    }
}

/// The validity counts from when the app sent its request, and not from when it got the answer.
pub(super) async fn late_answer_promises_no_more<C: Fn() -> Command>(mut kind: Kind<C>) {
    let data = tempfile::tempdir().unwrap();
    let dev = Dev::start(data.path(), &["--session-ttl", "30"]).await;
    kind.ttl = kind.ttl.map(|_| 30);
    let way = Way::to(dev.url()).await;
    way.rule(|_| Handling::Late(Duration::from_secs(5)));
    let mut app = kind.start(way.url()).await;
    app.lock("report").await;
    let promised = app.holds("report").await;
    assert!(
        promised <= Duration::from_secs(25),
        "too much: {promised:?}"
    );
}

/// The lock was acquired, and the app does not know it.
pub(super) async fn answer_that_got_lost_takes_no_second_lock<C: Fn() -> Command>(
    mut kind: Kind<C>,
) {
    let (_data, dev) = sidecar().await;
    // Longer than the suite waits: a second lock would come too late.
    kind.ttl = kind.ttl.map(|_| 600);
    let way = Way::to(dev.url()).await;
    let mut requests = 0;
    way.rule(move |_| {
        requests += 1;
        if requests == 1 {
            Handling::Unanswered
        } else {
            Handling::Passes
        }
    });
    let mut app = kind.start(way.url()).await;
    app.lock("report").await;
    assert_eq!(dev.try_acquire("report").await.0, 409);
    app.ask("report", "release").await;
    dev.acquire("report").await;
}

pub(super) async fn environments_proxy_is_not_used<C: Fn() -> Command>(kind: Kind<C>) {
    let (_data, dev) = sidecar().await;
    // Nothing listens there.
    let proxy = "http://127.0.0.1:9";
    let names = [
        "http_proxy",
        "HTTP_PROXY",
        "https_proxy",
        "ALL_PROXY",
        "all_proxy",
    ];
    let environment = names.map(|name| (name, proxy));
    let mut app = kind.start_with(dev.url(), &environment).await;
    app.lock("report").await;
    app.ask("report", "release").await;
    dev.acquire("report").await;
}

pub(super) async fn unix_socket_serves_as_well<C: Fn() -> Command>(kind: Kind<C>) {
    let (data, dev) = sidecar().await;
    let socket = format!("unix://{}", data.path().join("socket").display());
    let mut app = kind.start(&socket).await;
    app.lock("report").await;
    assert_eq!(dev.try_acquire("report").await.0, 409);
    app.ask("report", "release").await;
    dev.acquire("report").await;
}

pub(super) async fn outage_of_the_store_is_waited_for<C: Fn() -> Command>(kind: Kind<C>) {
    let (_data, dev) = sidecar().await;
    let mut app = kind.start(dev.url()).await;
    fault(&dev, "store-unavailable", json!({"seconds": 3600})).await;
    let refused = app.refused_lock("report", 0).await;
    assert_eq!(refused["error"], "unavailable", "{refused}");
    assert_eq!(refused["code"], "store_unavailable");
    // Longer than the sidecar itself tries a write.
    fault(&dev, "store-unavailable", json!({"seconds": 7})).await;
    app.lock("report").await;
}

/// One holder releases while nothing answers, and must not wait for ever. It sends the request all
/// the same: the sidecar may read it.
pub(super) async fn release_without_an_answer_ends<C: Fn() -> Command>(kind: Kind<C>) {
    let (_data, dev) = sidecar().await;
    let way = Way::to(dev.url()).await;
    let mut app = kind.start(way.url()).await;
    let lease = app.lock("report").await;
    dev.signal("STOP");
    let released = app.ask("report", "release").await;
    assert!(released["error"].is_null(), "{released}");
    let release = format!("DELETE /v1/locks/{}", lease["leaseId"].as_str().unwrap());
    assert!(way.count(&release) > 0, "no request to release");
    dev.signal("CONT");
    dev.acquire_in_time("report").await;
}

pub(super) async fn waiter_outlives_a_restart_of_the_sidecar<C: Fn() -> Command>(kind: Kind<C>) {
    let (data, dev) = sidecar().await;
    let mut app = kind.start(dev.url()).await;
    dev.acquire("report").await;
    let waiting = app.send_lock("report", None);
    // The sidecar knows the waiter as soon as it answers a later request of the same app.
    app.lock("other").await;
    let address = dev.url().trim_start_matches("http://").to_owned();
    dev.end_by("KILL");
    let dev = Dev::start(data.path(), &["--listen", &address]).await;
    let lease = app.answer(waiting).await;
    assert!(lease["token"].is_u64(), "{lease}");
    assert_eq!(dev.try_acquire("report").await.0, 409);
}

pub(super) async fn many_leases_share_a_few_threads<C: Fn() -> Command>(kind: Kind<C>) {
    let data = tempfile::tempdir().unwrap();
    let dev = Dev::start(data.path(), &["--session-ttl", "30"]).await;
    let mut app = kind.start(dev.url()).await;
    // A sidecar has 512 streams.
    let (count, ttl) = kind.ttl.map_or((300, None), |_| (1000, Some(60)));
    hold_one(&mut app).await;
    let before = app.threads();
    let many = json!({"call": "many", "resource": "part", "count": count, "ttl": ttl});
    // Each lock is a write that is synced.
    assert_eq!(app.long_call(many).await["held"], count);
    let after = app.threads();
    // A runtime may start a thread for each processor, but not for each lease.
    assert!(after < before + 16, "{before} threads became {after}");
    passes(Duration::from_secs(31)).await;
    let held = app.call(json!({"call": "check-many"})).await;
    assert_eq!(held["held"], count, "after the first validity");
}

async fn hold_one(app: &mut App) {
    app.lock("first").await;
    app.holds("first").await;
}

/// Asks until the app leads; returns the token.
async fn leads(app: &mut App) -> u64 {
    eventually(async || {
        let found = app
            .call(json!({"call": "leads", "election": "chief"}))
            .await;
        (found["leads"] == true).then(|| token(&found))
    })
    .await
}

pub(super) async fn candidate_leads_after_the_leader<C: Fn() -> Command>(kind: Kind<C>) {
    let (_data, dev) = sidecar().await;
    let mut first = kind.start(dev.url()).await;
    let mut second = kind.start(dev.url()).await;
    first
        .call(json!({"call": "elect", "election": "chief"}))
        .await;
    let before = leads(&mut first).await;
    second
        .call(json!({"call": "elect", "election": "chief"}))
        .await;
    let found = second
        .call(json!({"call": "leads", "election": "chief"}))
        .await;
    assert_eq!(found["leads"], false);
    first
        .call(json!({"call": "step-down", "election": "chief"}))
        .await;
    assert!(leads(&mut second).await > before);
    second.signal("KILL");
    first
        .call(json!({"call": "elect", "election": "chief"}))
        .await;
    leads(&mut first).await;
}

pub(super) async fn leader_without_its_sidecar_stops_at_the_deadline<C: Fn() -> Command>(
    kind: Kind<C>,
) {
    let (_data, dev) = sidecar().await;
    let mut app = kind.start(dev.url()).await;
    app.call(json!({"call": "elect", "election": "chief"}))
        .await;
    let before = leads(&mut app).await;
    dev.signal("STOP");
    eventually(async || {
        let found = app
            .call(json!({"call": "leads", "election": "chief"}))
            .await;
        (found["leads"] == false).then_some(())
    })
    .await;
    dev.signal("CONT");
    assert!(leads(&mut app).await > before, "another term");
}
