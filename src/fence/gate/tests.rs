//! The gate with a record and locks that a test controls, in paused time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use futures::poll;
use std::pin::pin;

use super::*;

/// A clock that follows the paused time of the runtime.
struct Paused(tokio::time::Instant);

impl Clock for Paused {
    fn now(&self) -> Moment {
        Moment::since_boot(self.0.elapsed())
    }

    fn wall(&self) -> crate::protocol::time::WallTime {
        crate::protocol::time::WallTime(0)
    }
}

/// Counts what it records, and fails on request.
#[derive(Default)]
struct Disk {
    recorded: Mutex<HashMap<String, u64>>,
    writes: AtomicUsize,
    is_full: AtomicBool,
    hangs: AtomicBool,
}

#[async_trait]
impl Record for Disk {
    async fn record(&self, resource: &Resource, token: Token) -> Result<(), String> {
        tokio::time::sleep(Duration::from_millis(5)).await;
        while self.hangs.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        if self.is_full.load(Ordering::Relaxed) {
            return Err("no space left".to_owned());
        }
        self.writes.fetch_add(1, Ordering::Relaxed);
        let mut recorded = self.recorded.lock().unwrap();
        let before = recorded.entry(resource.to_string()).or_default();
        *before = token.get().max(*before);
        Ok(())
    }
}

/// The token of each lock.
#[derive(Default)]
struct Locks {
    latest: Mutex<u64>,
    is_away: AtomicBool,
    asked: AtomicUsize,
}

#[async_trait]
impl Verify for Locks {
    async fn verify(&self, _resource: &Resource, token: Token) -> Result<Verdict, String> {
        tokio::time::sleep(Duration::from_millis(5)).await;
        self.asked.fetch_add(1, Ordering::Relaxed);
        if self.is_away.load(Ordering::Relaxed) {
            return Err("the API server is away".to_owned());
        }
        let latest = Token::from_raw(*self.latest.lock().unwrap());
        Ok(match token.cmp(&latest) {
            std::cmp::Ordering::Equal => Verdict::Current,
            std::cmp::Ordering::Less => Verdict::Stale { latest },
            std::cmp::Ordering::Greater => Verdict::Unknown { latest },
        })
    }
}

struct World {
    gate: Gate,
    disk: Arc<Disk>,
    locks: Arc<Locks>,
}

const LIMITS: Limits = Limits {
    older_requests: Duration::from_secs(10),
    settle: Duration::from_secs(4),
    resources: 2,
};

fn world(recorded: Recorded) -> World {
    world_with(recorded, None)
}

fn world_with(recorded: Recorded, lead: Option<Arc<dyn Lead>>) -> World {
    let (disk, locks) = (Arc::new(Disk::default()), Arc::new(Locks::default()));
    let gate = Gate::new(
        recorded,
        disk.clone(),
        Some(locks.clone()),
        lead,
        Arc::new(Paused(start())),
        LIMITS,
        Arc::new(Metrics::new().unwrap()),
    );
    World { gate, disk, locks }
}

#[expect(clippy::disallowed_methods, reason = "the paused clock of the runtime")]
fn start() -> tokio::time::Instant {
    tokio::time::Instant::now()
}

/// A gate that is not new: nothing has to settle.
fn settled() -> World {
    world(Recorded {
        is_settled: true,
        ..Recorded::default()
    })
}

fn report() -> Resource {
    Resource::parse("report").unwrap()
}

impl World {
    fn grant(&self, token: u64) {
        *self.locks.latest.lock().unwrap() = token;
    }

    async fn pass(&self, token: u64) -> Result<Pass, Code> {
        let passed = self.gate.pass(&report(), Token::from_raw(token)).await;
        passed.map_err(|refusal| refusal.code)
    }

    fn seconds(&self) -> u64 {
        self.gate.now().elapsed_since_boot().as_secs()
    }
}

#[tokio::test(start_paused = true)]
async fn new_token_is_verified_and_recorded_once_for_all_its_requests() {
    let world = settled();
    world.grant(5);
    let passes = futures::future::join_all((0..20).map(|_| world.pass(5))).await;
    assert!(passes.iter().all(Result::is_ok), "{passes:?}");
    assert_eq!(world.locks.asked.load(Ordering::Relaxed), 1);
    assert_eq!(world.disk.writes.load(Ordering::Relaxed), 1);
    assert_eq!(world.disk.recorded.lock().unwrap()["report"], 5);
}

#[tokio::test(start_paused = true)]
async fn token_that_the_lock_does_not_have_is_refused() {
    let world = settled();
    world.grant(5);
    assert_eq!(world.pass(4).await.unwrap_err(), Code::StaleToken);
    assert_eq!(world.pass(6).await.unwrap_err(), Code::UnknownToken);
    world.locks.is_away.store(true, Ordering::Relaxed);
    assert_eq!(world.pass(5).await.unwrap_err(), Code::LockUnavailable);
    assert!(world.disk.recorded.lock().unwrap().is_empty());
    // A refusal is not remembered.
    world.locks.is_away.store(false, Ordering::Relaxed);
    assert!(world.pass(5).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn known_token_needs_no_lock_and_no_disk() {
    let world = settled();
    world.grant(5);
    world.pass(5).await.unwrap();
    world.locks.is_away.store(true, Ordering::Relaxed);
    world.disk.is_full.store(true, Ordering::Relaxed);
    assert!(world.pass(5).await.is_ok());
    assert_eq!(world.pass(4).await.unwrap_err(), Code::StaleToken);
}

#[tokio::test(start_paused = true)]
async fn token_that_cannot_be_recorded_does_not_pass() {
    let world = settled();
    world.grant(5);
    world.disk.is_full.store(true, Ordering::Relaxed);
    assert_eq!(world.pass(5).await.unwrap_err(), Code::StateUnavailable);
}

#[tokio::test(start_paused = true)]
async fn newer_token_waits_for_older_requests() {
    let world = settled();
    world.grant(5);
    let (one, other) = (world.pass(5).await.unwrap(), world.pass(5).await.unwrap());
    world.grant(7);
    let mut newer = pin!(world.pass(7));
    assert!(poll!(&mut newer).is_pending());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(poll!(&mut newer).is_pending());
    // From the moment of the record.
    assert_eq!(world.pass(5).await.unwrap_err(), Code::StaleToken);
    one.answered();
    drop(one);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(poll!(&mut newer).is_pending());
    other.answered();
    drop(other);
    assert!(newer.await.is_ok());
    assert_eq!(world.seconds(), 2);
}

#[tokio::test(start_paused = true)]
async fn older_requests_are_cut_and_settle() {
    let world = settled();
    world.grant(5);
    let older = world.pass(5).await.unwrap();
    world.grant(7);
    let cut = async {
        older.tunnel_cut().cancelled().await;
        assert_eq!(world.seconds(), 0);
        older.cut().cancelled().await;
        assert_eq!(world.seconds(), 10);
        drop(older);
    };
    let (newer, ()) = tokio::join!(world.pass(7), cut);
    assert!(newer.is_ok());
    assert_eq!(world.seconds(), 14);
}

#[tokio::test(start_paused = true)]
async fn request_that_ended_unanswered_settles_first() {
    let world = settled();
    world.grant(5);
    drop(world.pass(5).await.unwrap());
    assert!(world.pass(5).await.is_ok());
    world.grant(7);
    assert!(world.pass(7).await.is_ok());
    assert_eq!(world.seconds(), 4);
    assert!(!world.gate.close());
}

#[tokio::test(start_paused = true)]
async fn after_a_crash_all_wait_until_it_is_settled() {
    let tokens = HashMap::from([(report(), Token::from_raw(5))]);
    let world = world(Recorded {
        tokens,
        is_settled: false,
    });
    let passed = world.pass(5).await.unwrap();
    assert_eq!(world.seconds(), 4);
    passed.answered();
    drop(passed);
    assert_eq!(world.pass(4).await.unwrap_err(), Code::StaleToken);
    assert!(world.gate.close());
    assert_eq!(world.pass(5).await.unwrap_err(), Code::ShuttingDown);
}

#[tokio::test(start_paused = true)]
async fn disk_that_hangs_holds_no_request_forever() {
    let world = settled();
    world.grant(5);
    world.disk.hangs.store(true, Ordering::Relaxed);
    for _ in 0..3 {
        let refused = tokio::time::timeout(Duration::from_secs(60), world.pass(5)).await;
        assert_eq!(refused.unwrap().unwrap_err(), Code::StateUnavailable);
    }
    world.disk.hangs.store(false, Ordering::Relaxed);
    assert!(world.pass(5).await.is_ok());
    // The requests did not queue writes.
    assert_eq!(world.disk.writes.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn newer_tokens_of_known_resources_take_no_room() {
    let world = settled();
    world.grant(5);
    drop(world.pass(5).await.unwrap());
    world.grant(7);
    let other = Resource::parse("other").unwrap();
    let other = world.gate.pass(&other, Token::from_raw(7));
    let (newer, other) = tokio::join!(world.pass(7), other);
    assert!(newer.is_ok() && other.is_ok(), "{newer:?} {other:?}");
}

#[tokio::test(start_paused = true)]
async fn resources_are_independent_and_bounded() {
    let world = settled();
    world.grant(5);
    let _running = world.pass(5).await.unwrap();
    let other = Resource::parse("other").unwrap();
    let token = Token::from_raw(5);
    assert!(world.gate.pass(&other, token).await.is_ok());
    let third = Resource::parse("third").unwrap();
    let refused = world.gate.pass(&third, token).await.unwrap_err();
    assert_eq!(refused.code, Code::TooManyResources);
}

#[tokio::test(start_paused = true)]
async fn request_that_gives_up_its_wait_leaves_nothing_behind() {
    let world = settled();
    world.grant(5);
    let older = world.pass(5).await.unwrap();
    world.grant(7);
    let waited = tokio::time::timeout(Duration::from_secs(1), world.pass(7)).await;
    assert!(waited.is_err());
    older.answered();
    drop(older);
    assert!(world.pass(7).await.is_ok());
    assert_eq!(world.seconds(), 1);
}

/// A client with a short timeout repeats its request.
#[tokio::test(start_paused = true)]
async fn older_request_is_cut_although_no_newer_one_waits_long() {
    let world = settled();
    world.grant(5);
    let older = world.pass(5).await.unwrap();
    world.grant(7);
    for _ in 0..20 {
        let waited = tokio::time::timeout(Duration::from_secs(1), world.pass(7)).await;
        assert!(waited.is_err());
    }
    assert!(older.cut().is_cancelled());
}

/// Holders that give up before the older request is cut.
#[tokio::test(start_paused = true)]
async fn newer_leases_do_not_postpone_the_cut() {
    let world = settled();
    world.grant(5);
    let older = world.pass(5).await.unwrap();
    for token in [7, 9, 11, 13] {
        world.grant(token);
        let waited = tokio::time::timeout(Duration::from_secs(3), world.pass(token)).await;
        assert!(waited.is_err());
    }
    assert!(older.cut().is_cancelled());
}

/// A lead until a moment.
struct Until(Mutex<Moment>);

impl Lead for Until {
    fn until(&self) -> Moment {
        *self.0.lock().unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn lead_that_ends_refuses_those_that_wait_and_cuts_the_others() {
    let start = Paused(start()).now();
    let lead = Arc::new(Until(Mutex::new(start.after(Duration::from_secs(6)))));
    let world = world_with(Recorded::default(), Some(lead.clone()));
    world.grant(5);
    let older = world.pass(5).await.unwrap();
    assert_eq!(world.seconds(), 4);
    world.grant(7);
    let newer = async { world.pass(7).await.map(drop) };
    let cut = async {
        older.until_cut(older.cut()).await;
        assert_eq!(world.seconds(), 9);
        assert!(older.tunnel_cut().is_cancelled());
        drop(older);
    };
    // The lease is extended once.
    let extend = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        *lead.0.lock().unwrap() = start.after(Duration::from_secs(9));
    };
    let (refused, (), ()) = tokio::join!(newer, cut, extend);
    assert_eq!(refused.unwrap_err(), Code::NotLeading);
    assert_eq!(world.pass(7).await.unwrap_err(), Code::NotLeading);
}

/// The agent did not answer for a while, and one of the requests before that is still there.
#[tokio::test(start_paused = true)]
async fn lead_that_begins_again_cuts_no_new_request() {
    let start = Paused(start()).now();
    let lead = Arc::new(Until(Mutex::new(start.after(Duration::from_secs(6)))));
    let world = world_with(Recorded::default(), Some(lead.clone()));
    world.grant(5);
    let before = world.pass(5).await.unwrap();
    before.until_cut(before.cut()).await;
    *lead.0.lock().unwrap() = start.after(Duration::from_secs(20));
    let pass = world.pass(5).await.unwrap();
    assert!(!pass.cut().is_cancelled());
    assert!(!pass.tunnel_cut().is_cancelled());
}

/// A lease that has ended when it is read the second time, and is extended just after.
#[derive(Default)]
struct Extended(AtomicUsize);

impl Lead for Extended {
    fn until(&self) -> Moment {
        let has_ended = self.0.fetch_add(1, Ordering::Relaxed) == 1;
        Moment::since_boot(Duration::from_secs(if has_ended { 0 } else { 1_000 }))
    }
}

#[tokio::test(start_paused = true)]
async fn lease_that_is_extended_too_late_cuts() {
    let lead = Arc::new(Extended(AtomicUsize::new(2)));
    let settled = Recorded {
        is_settled: true,
        ..Recorded::default()
    };
    let world = world_with(settled, Some(lead.clone()));
    world.grant(5);
    let pass = world.pass(5).await.unwrap();
    lead.0.store(0, Ordering::Relaxed);
    let ended = tokio::time::timeout(Duration::from_secs(1), pass.until_cut(pass.cut()));
    assert_eq!(ended.await, Ok(()));
}
