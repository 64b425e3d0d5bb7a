//! The cost of our lock compared with etcd's own mutex and with Redis.
//!
//! Each kind is measured in blocks, and the blocks take turns. So calls of one kind are
//! consecutive, as they are where only that kind is used. All servers are on this machine, and none
//! is replicated. Only our lock reaches its store through another process, the API server.

use std::time::Duration;

use anyhow::Result;

use crate::etcd_mutex::{EtcdMutex, Much};
use crate::harness::{Namespace, Sidecar, now};
use crate::kept_alive::{KeptAlive, Rate};
use crate::redis::{self, Persistence, Redis};
use crate::rows::Rows;
use crate::transfer::{self, Before, Pair};

/// The number of blocks of each kind.
const BLOCKS: usize = 5;
/// The number of lock and unlock pairs in a block.
const ROUNDS: usize = 100;
/// The number of hand-overs in a block.
const HAND_OVERS: usize = 10;
/// The number of calls that come first in a block and are not counted.
const WARM_UP: usize = 10;
/// The number of calls that a rate is computed from.
const RATE_CALLS: u32 = 5_000;
const RESOURCE: &str = "bench:peers";
const RESOURCE_WARM: &str = "bench:warm";
const RESOURCE_LOCAL: &str = "bench:local";

const OURS: &str = "leasehold";
const OURS_WARM: &str = "leasehold, keepSeconds";
const ETCD: &str = "etcd concurrency.Mutex";
const REDIS_ALWAYS: &str = "Redis, fsync of each write";
const REDIS_NONE: &str = "Redis, in memory";
const OURS_HANDED_LOCAL: &str = "leasehold, one pod";
const OURS_HANDED: &str = "leasehold, two pods";
const ETCD_HANDED: &str = "etcd Mutex, two processes";
const ETCD_HANDED_LOCAL: &str = "etcd Mutex, one process";
const ETCD_HANDED_SOON: &str = "etcd Mutex, queued for 5 ms only";

/// How long etcd's waiter is queued. Its watch begins at a past revision. etcd serves such a watch
/// only in its next catch-up round, which runs every 100 ms.
const IN_LINE: Duration = Duration::from_millis(150);
/// The same time that our waiter is queued.
const IN_LINE_SOON: Duration = transfer::PAUSE;

/// The guarantees in addition to mutual exclusion without failures.
const QUORUM_AND_TOKEN: &str = "a fencing token with each lease; survives a failover of etcd";
const QUORUM: &str = "revisions that can serve as tokens; survives a failover";
const RESTART: &str = "no token; survives a restart, not a failover to a replica";
const NOTHING: &str = "no token; gone with the server";

/// Lock and unlock without contention. A kind that is added to `take_turns` needs a line here.
const UNCONTENDED: &[(&str, &str)] = &[
    (OURS, QUORUM_AND_TOKEN),
    (OURS_WARM, "the same; the pod has had the lock before"),
    (ETCD, QUORUM),
    (REDIS_ALWAYS, RESTART),
    (REDIS_NONE, NOTHING),
];

/// From the unlock until the waiter has the lock. Redis has no queue: its waiters poll.
const HANDED_OVER: &[(&str, &str)] = &[
    (OURS_HANDED, "queued for 5 ms"),
    (OURS_HANDED_LOCAL, "queued for 5 ms"),
    (ETCD_HANDED, "queued for 150 ms"),
    (ETCD_HANDED_LOCAL, "queued for 150 ms"),
    (ETCD_HANDED_SOON, "its watch has not caught up yet"),
];

/// Measures and prints the results.
#[allow(clippy::print_stdout, reason = "a bench prints what it measured")]
pub(crate) async fn measure(ours: &str, etcd_mutex: &str, namespace: &Namespace) -> Result<()> {
    let pod = namespace.pod("peers").await?;
    let sidecar = Sidecar::launch(ours, &pod).default_log().start().await?;
    let mut peers = Peers {
        ours: KeptAlive::to(&sidecar).await?,
        beside: KeptAlive::to(&sidecar).await?,
        pair: Pair::new(ours, namespace).await?,
        etcd: EtcdMutex::start(etcd_mutex).await?,
        redis: both_redis().await?,
    };
    let rows = take_turns(&mut peers).await?;
    println!();
    rows.print_noted("lock + unlock, uncontended", OURS, UNCONTENDED);
    rows.print_noted("unlock to the other's lock", OURS_HANDED, HANDED_OVER);
    for local in [OURS_WARM, OURS_HANDED_LOCAL] {
        let ratio = rows.median(local) / rows.median(ETCD);
        println!("{local}: {ratio:.2} x etcd's lock + unlock (aim 0.25)");
    }
    print_rate(&sidecar, &mut peers.ours).await
}

struct Peers<'a> {
    ours: KeptAlive,
    /// Another app of the same pod.
    beside: KeptAlive,
    pair: Pair,
    etcd: EtcdMutex<'a>,
    redis: Option<(Redis, Redis)>,
}

/// The kinds of call that take turns.
#[derive(Clone, Copy)]
enum Turn {
    Ours,
    OursWarm,
    OursHanded,
    OursLocal,
    Etcd,
    EtcdSoon,
    Redis,
}

async fn take_turns(peers: &mut Peers<'_>) -> Result<Rows> {
    let mut turns = [
        Turn::Ours,
        Turn::OursWarm,
        Turn::OursHanded,
        Turn::OursLocal,
        Turn::Etcd,
        Turn::EtcdSoon,
        Turn::Redis,
    ];
    let mut rows = Rows::default();
    for _ in 0..BLOCKS {
        fastrand::shuffle(&mut turns);
        for turn in turns {
            match turn {
                Turn::Ours => ours(&mut peers.ours, &mut rows).await?,
                Turn::OursWarm => warm(&mut peers.ours, &mut rows).await?,
                Turn::OursLocal => local(peers, &mut rows).await?,
                Turn::OursHanded => hand_over(&mut peers.pair, &mut rows).await?,
                Turn::Etcd => etcd(&mut peers.etcd, &mut rows).await?,
                Turn::EtcdSoon => etcd_soon(&mut peers.etcd, &mut rows).await?,
                Turn::Redis => both(&mut peers.redis, &mut rows).await?,
            }
        }
    }
    Ok(rows)
}

/// Measures consecutive calls of one kind.
async fn block(
    rows: &mut Rows,
    name: &'static str,
    mut call: impl AsyncFnMut() -> Result<()>,
) -> Result<()> {
    for _ in 0..WARM_UP {
        call().await?;
    }
    for _ in 0..ROUNDS {
        rows.time(name, call()).await?;
    }
    Ok(())
}

/// Each round makes two writes to the API server.
async fn ours(app: &mut KeptAlive, rows: &mut Rows) -> Result<()> {
    let call = async || {
        let lease = app.acquire(RESOURCE).await?;
        app.release(&lease).await
    };
    block(rows, OURS, call).await
}

/// No round makes a write: the pod keeps the lock between them.
async fn warm(app: &mut KeptAlive, rows: &mut Rows) -> Result<()> {
    block(rows, OURS_WARM, async || warm_pair(app).await).await
}

async fn warm_pair(app: &mut KeptAlive) -> Result<()> {
    let lease = app.acquire_kept(RESOURCE_WARM).await?;
    app.release(&lease).await
}

/// No round makes a write: the next waiter is in the same pod.
async fn local(peers: &mut Peers<'_>, rows: &mut Rows) -> Result<()> {
    let (mut holder, mut next) = (&mut peers.ours, &mut peers.beside);
    let mut lease = holder.acquire(RESOURCE_LOCAL).await?;
    for round in 0..WARM_UP + ROUNDS {
        let waiting = async {
            let lease = next.wait_for(RESOURCE_LOCAL).await?;
            anyhow::Ok((lease, now()))
        };
        let releasing = async {
            let until = now().after(IN_LINE_SOON);
            // As before a transfer: an idle machine is slow to wake.
            while now() < until {
                holder.renew(&lease).await?;
            }
            let begin = now();
            holder.release(&lease).await?;
            anyhow::Ok(begin)
        };
        let ((had, at), begin) = tokio::try_join!(waiting, releasing)?;
        if round >= WARM_UP {
            rows.add(OURS_HANDED_LOCAL, at.since(begin));
        }
        lease = had;
        std::mem::swap(&mut holder, &mut next);
    }
    holder.release(&lease).await
}

async fn both(servers: &mut Option<(Redis, Redis)>, rows: &mut Rows) -> Result<()> {
    let Some((always, none)) = servers else {
        return Ok(());
    };
    block(rows, REDIS_ALWAYS, async || always.lock_and_unlock().await).await?;
    block(rows, REDIS_NONE, async || none.lock_and_unlock().await).await
}

async fn hand_over(pair: &mut Pair, rows: &mut Rows) -> Result<()> {
    for _ in 0..WARM_UP {
        pair.hand_over(Before::Reads).await?;
    }
    for _ in 0..HAND_OVERS {
        rows.add(OURS_HANDED, pair.hand_over(Before::Reads).await?);
    }
    Ok(())
}

async fn etcd(etcd: &mut EtcdMutex<'_>, rows: &mut Rows) -> Result<()> {
    let much = Much {
        rounds: ROUNDS,
        hand_overs: HAND_OVERS,
        in_line: IN_LINE,
    };
    let measured = etcd.measure(much).await?;
    rows.add_nanos(ETCD, measured.uncontended);
    rows.add_nanos(ETCD_HANDED_LOCAL, measured.same_process);
    rows.add_nanos(ETCD_HANDED, measured.two_processes);
    Ok(())
}

async fn etcd_soon(etcd: &mut EtcdMutex<'_>, rows: &mut Rows) -> Result<()> {
    let much = Much {
        rounds: 0,
        hand_overs: HAND_OVERS,
        in_line: IN_LINE_SOON,
    };
    let measured = etcd.measure(much).await?;
    rows.add_nanos(ETCD_HANDED_SOON, measured.two_processes);
    Ok(())
}

/// Starts the durable Redis and the one in memory. Returns `None` if Redis is not installed.
#[allow(clippy::print_stdout, reason = "a bench says what it leaves out")]
async fn both_redis() -> Result<Option<(Redis, Redis)>> {
    if !redis::is_installed() {
        println!("redis-server is missing, its rows are left out: apt-get install redis-server");
        return Ok(None);
    }
    let always = Redis::start(Persistence::Always).await?;
    let none = Redis::start(Persistence::None).await?;
    Ok(Some((always, none)))
}

/// Prints the rate of calls over one connection that need no request to the API server.
#[allow(clippy::print_stdout, reason = "a bench prints what it measured")]
async fn print_rate(sidecar: &Sidecar, ours: &mut KeptAlive) -> Result<()> {
    let lease = ours.acquire(RESOURCE).await?;
    let rate = Rate::of(sidecar, RATE_CALLS, async || ours.renew(&lease).await).await?;
    println!(
        "local renew: {:.0} calls per second over one kept connection, {:.0} for each second that \
         the sidecar computes",
        rate.per_second, rate.per_core_second
    );
    ours.release(&lease).await?;
    let rate = Rate::of(sidecar, RATE_CALLS, async || warm_pair(ours).await).await?;
    println!(
        "warm acquire + release: {:.0} pairs per second over one kept connection, {:.0} for each \
         second that the sidecar computes (aim 5,000)",
        rate.per_second, rate.per_core_second
    );
    Ok(())
}
