//! Waiters that hang up at the very moment of the grant. What their client received is known exactly, and a grant
//! that no client received is released within a second.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use leasehold::protocol::time::Moment;
use serde_json::json;

use super::WAIT_SECONDS;
use crate::harness::{
    Answer, Class, Cluster, Fault, Lease, LongPoll, Namespace, PATIENCE, Proxy, Sidecar, TakeOver,
    eventually, now,
};
use crate::plain_writes::PlainWrites;
use crate::support::{BUSY, sidecar, until_queued};

const PAIRS: usize = 5;
const ROUNDS: usize = 1000 / PAIRS;
/// The longest that a grant may exist without a caller.
const SECOND: Duration = Duration::from_secs(1);
/// How long a release may take: its answer waits no longer for the store.
const CONFIRMED: Duration = Duration::from_secs(2);
const LIMIT: Duration = PATIENCE;
/// Of the thousand, how many may take longer because the machine was busy with something else.
const LATE_MAX: u64 = 100;

/// A step towards the moment at which answers come is this part of the time so far, before it was ever met: the
/// duration of a hand-over depends on the machine.
const APPROACH_PARTS: u32 = 8;
/// And from then on.
const FORWARD_PARTS: u32 = 30;

/// When to hang up, counted from when the release was sent: it creeps up to the moment at which
/// answers come, and draws back from it.
struct Aim {
    at: Duration,
    /// A step back is this part.
    back_parts: u32,
    /// Whether an answer has ever come first.
    has_met: bool,
}

impl Aim {
    const fn new(back_parts: u32) -> Self {
        Self {
            at: Duration::from_millis(4),
            back_parts,
            has_met: false,
        }
    }

    /// Waits for the moment. A timer of the runtime would only know milliseconds.
    async fn moment(&self) -> Result<()> {
        let wait = self.at + Duration::from_micros(fastrand::u64(..500));
        tokio::task::spawn_blocking(move || std::thread::sleep(wait)).await?;
        Ok(())
    }

    fn learn(&mut self, came_too_late: bool) {
        self.has_met |= came_too_late;
        let forward = if self.has_met {
            FORWARD_PARTS
        } else {
            APPROACH_PARTS
        };
        self.at = if came_too_late {
            self.at.saturating_sub(self.at / self.back_parts)
        } else {
            self.at + self.at / forward
        };
    }
}

/// How many rounds ended in which way.
#[derive(Debug, Default)]
struct Tally {
    delivered: u64,
    hung_up: u64,
    /// Those that took longer than the limit, by leave of the machine.
    late: u64,
}

impl Tally {
    /// Records a round. If a plain write takes a tenth of a second the machine is too slow, and a grant may take the
    /// time of ten writes to end.
    fn judge(
        &mut self,
        delivered: bool,
        took: Duration,
        limit: Duration,
        write: Duration,
    ) -> Result<()> {
        let count = if delivered {
            &mut self.delivered
        } else {
            &mut self.hung_up
        };
        *count += 1;
        self.late += u64::from(took >= limit);
        ensure!(
            took < limit.max(write * 10),
            "gone after {took:?}; delivered: {delivered}; a write took {write:?}"
        );
        Ok(())
    }
}

/// Two pods and a lock of their own.
struct Duel {
    a: Sidecar,
    b: Sidecar,
    resource: String,
    /// A's.
    lease: Lease,
    half_closed: (Aim, Tally),
    reset: (Aim, Tally),
    writes: Arc<PlainWrites>,
}

impl Duel {
    async fn begin(namespace: &Namespace, number: usize, writes: Arc<PlainWrites>) -> Result<Self> {
        let a = sidecar(&namespace.pod(&format!("a{number}")).await?, 30).await?;
        let b = sidecar(&namespace.pod(&format!("b{number}")).await?, 30).await?;
        let resource = format!("res-{number}");
        Ok(Self {
            lease: a.acquire(&resource).await?.granted()?,
            a,
            b,
            resource,
            half_closed: (Aim::new(FORWARD_PARTS), Tally::default()),
            // What a reset connection had received costs a second, so it is the rare end.
            reset: (Aim::new(FORWARD_PARTS / 10), Tally::default()),
            writes,
        })
    }

    /// B waits, with this TTL.
    async fn b_in_line(&self, namespace: &Namespace, ttl_seconds: u64) -> Result<LongPoll> {
        let body = json!({"resource": self.resource, "ownerId": "b", "ttlSeconds": ttl_seconds,
            "waitSeconds": WAIT_SECONDS});
        let waiting = self.b.wait_with(&body).await?;
        until_queued(namespace, &self.resource, 1).await?;
        Ok(waiting)
    }

    /// A takes the lock again as soon as it is free; gives how long after a moment that was. It does
    /// not wait in line: on a slow machine it would let others go first.
    async fn back_to_a(&mut self, since: Moment) -> Result<Duration> {
        let lease = eventually("the lock to be free", LIMIT, async || {
            let answer = self.a.acquire(&self.resource).await.ok()?;
            (answer.status == 200).then(|| answer.granted())
        })
        .await??;
        let took = now().since(since);
        ensure!(
            lease.token > self.lease.token,
            "{lease:?} after {:?}",
            self.lease
        );
        self.lease = lease;
        Ok(took)
    }

    /// How long a write has taken since a round began: the release of its lock, or a plain one. A slow release beside
    /// fast plain writes is not the machine's fault.
    fn write_since(&self, begun: Moment, released: Duration) -> Result<Duration> {
        let write = self.writes.slowest_between(begun, now());
        ensure!(
            released < CONFIRMED.max(write * 10),
            "released after {released:?}; a write took {write:?}"
        );
        Ok(write.max(released))
    }

    /// The client says that nothing more comes from it and reads to the end: a full answer is
    /// a lease, and the client releases it; anything else is none.
    async fn round_with_half_a_close(&mut self, namespace: &Namespace) -> Result<()> {
        let waiting = self.b_in_line(namespace, 60).await?;
        let aim = &self.half_closed.0;
        let caller = async {
            aim.moment().await?;
            anyhow::Ok((now(), waiting.close_half().await?))
        };
        let begun = now();
        let (released, gone) = tokio::join!(self.a.release_for_good(&self.lease.id), caller);
        let released = released?;
        let (mut since, heard): (Moment, Option<Answer>) = gone?;
        let delivered = heard.is_some();
        if let Some(answer) = heard {
            let lease = answer.granted()?;
            since = now();
            self.b.release_for_good(&lease.id).await?;
        }
        let took = self.back_to_a(since).await?;
        let write = self.write_since(begun, released)?;
        let (aim, tally) = &mut self.half_closed;
        aim.learn(delivered);
        tally.judge(delivered, took, SECOND, write)
    }

    /// The client is gone at once. Its kernel may have had the answer by then; the agent cannot
    /// know, and the lease runs out by the app's silence.
    async fn round_with_a_reset(&mut self, namespace: &Namespace) -> Result<()> {
        let silent_before = self.silent_apps().await?;
        let waiting = self.b_in_line(namespace, 1).await?;
        let aim = &self.reset.0;
        let caller = async {
            aim.moment().await?;
            waiting.reset()?;
            anyhow::Ok(now())
        };
        let begun = now();
        let (released, gone) = tokio::join!(self.a.release_for_good(&self.lease.id), caller);
        let released = released?;
        let took = self.back_to_a(gone?).await?;
        let write = self.write_since(begun, released)?;
        let delivered = self.silent_apps().await? > silent_before;
        let limit = if delivered { SECOND * 2 } else { SECOND };
        let (aim, tally) = &mut self.reset;
        aim.learn(delivered);
        tally.judge(delivered, took, limit, write)
    }

    /// How many leases of B ended because their app was silent.
    async fn silent_apps(&self) -> Result<u64> {
        let (_, metrics) = self.b.admin("/metrics").await?;
        let name = "leasehold_leases_lost_total{reason=\"app_silent\"} ";
        let value = metrics.lines().find_map(|line| line.strip_prefix(name));
        Ok(value.unwrap_or("0").parse()?)
    }
}

async fn duel(namespace: &Namespace, number: usize, writes: Arc<PlainWrites>) -> Result<Duel> {
    let mut duel = Duel::begin(namespace, number, writes).await?;
    for _ in 0..ROUNDS / 2 {
        duel.round_with_half_a_close(namespace).await?;
        duel.round_with_a_reset(namespace).await?;
    }
    Ok(duel)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_for_a_waiter_that_hung_up_is_gone_within_a_second() -> Result<()> {
    let cluster = Cluster::shared(TakeOver::Peer).await?;
    let _machine = BUSY.lock().await;
    let namespace = cluster.namespace("hang-ups").await?;
    let writes = Arc::new(PlainWrites::start(&namespace).await?);
    let duels = (0..PAIRS).map(|number| duel(&namespace, number, Arc::clone(&writes)));
    let duels = try_join_all(duels).await?;
    let (mut half_closed, mut reset) = (Tally::default(), Tally::default());
    let mut orphans = 0;
    for duel in &duels {
        for (all, one) in [
            (&mut half_closed, &duel.half_closed.1),
            (&mut reset, &duel.reset.1),
        ] {
            all.delivered += one.delivered;
            all.hung_up += one.hung_up;
            all.late += one.late;
        }
        let lock = namespace.lock(&duel.resource).await?.unwrap_or_default();
        let transitions = lock["status"]["transitions"].as_u64().unwrap_or_default();
        // A's are one for each round and the first.
        let heard = duel.half_closed.1.delivered + duel.reset.1.delivered;
        orphans += transitions - u64::try_from(ROUNDS + 1)? - heard;
    }
    println!("half closed: {half_closed:?}; reset: {reset:?}; grants for nobody: {orphans}");
    let ways = [
        half_closed.delivered,
        half_closed.hung_up,
        reset.delivered,
        reset.hung_up,
    ];
    ensure!(
        ways.iter().all(|count| *count > 0),
        "{half_closed:?} {reset:?}"
    );
    ensure!(ways.iter().sum::<u64>() == 1000);
    ensure!(
        half_closed.late + reset.late <= LATE_MAX,
        "{half_closed:?} {reset:?}"
    );
    // Some hung up after the grant was written, some before.
    ensure!(
        orphans > 0 && orphans < half_closed.hung_up + reset.hung_up,
        "{orphans}"
    );
    Ok(())
}

/// The moment that the rounds above seldom hit, made long: the lock is granted, and its lease does not exist yet.
#[tokio::test(flavor = "multi_thread")]
async fn hang_up_while_a_lease_is_made_leaves_no_grant() -> Result<()> {
    let cluster = Cluster::shared(TakeOver::Peer).await?;
    let namespace = cluster.namespace("half-made").await?;
    let a = sidecar(&namespace.pod("a").await?, 30).await?;
    let proxy = Proxy::start(&cluster).await?;
    let b = sidecar(&namespace.pod("b").await?.through(&proxy.url)?, 30).await?;
    let lease = a.acquire("res").await?.granted()?;
    let body = |owner: &str| {
        json!({"resource": "res", "ownerId": owner, "ttlSeconds": 60,
            "waitSeconds": WAIT_SECONDS})
    };
    let first = b.wait_with(&body("first")).await?;
    until_queued(&namespace, "res", 1).await?;
    let second = b.wait_with(&body("second")).await?;
    eventually("both to be in line", LIMIT, async || {
        let in_line = b.metric("leasehold_callers_in_line").await.ok()?;
        (in_line > 1.5).then_some(())
    })
    .await?;
    // The first caller's entry is the second's now, whose name is written when it gets the lock.
    drop(first);
    eventually("the first to be gone", LIMIT, async || {
        b.log()
            .contains("waiting caller disconnected")
            .then_some(())
    })
    .await?;
    // The write of the name; the grant stays the same.
    proxy.fail(Class::Raise, 1, Fault::AnswerHeld);
    a.release_for_good(&lease.id).await?;
    eventually("the second to be named", LIMIT, async || {
        let lock = namespace.lock("res").await.ok().flatten()?;
        (lock["status"]["holder"]["ownerId"] == "second").then_some(())
    })
    .await?;
    drop(second);
    eventually(
        "the second to be gone before its answer",
        LIMIT,
        async || {
            let log = b.log();
            let left = log
                .lines()
                .filter(|line| line.contains("waiting caller disconnected"));
            (left.count() == 2).then_some(())
        },
    )
    .await?;
    proxy.resume_held();
    ensure!(proxy.count(Class::Raise) == 1);

    let next = a.wait_for("res", WAIT_SECONDS).await?.answer().await?;
    let next = next.granted()?;
    ensure!(next.token > lease.token, "{next:?} after {lease:?}");
    a.renew(&next.id).await?.granted()?;
    Ok(())
}
