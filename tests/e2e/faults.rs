//! The API server goes away, for less and for more than the holder's deadline.

use std::time::Duration;

use anyhow::{Result, ensure};
use leasehold::protocol::time::Moment;
use reqwest::Method;

use crate::harness::{
    Class, Cluster, Fault, Lease, Namespace, PATIENCE, Proxy, Sidecar, TakeOver, eventually, now,
};
use crate::support::{sidecar, until_renewed};

const LIMIT: Duration = PATIENCE;

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_shorter_than_the_deadline_costs_nothing() -> Result<()> {
    let cluster = Cluster::fresh(TakeOver::Peer).await?;
    let namespace = cluster.namespace("short").await?;
    // The outage comes before the first renewal, so that it has nearly all of this to end.
    let a = sidecar(&namespace.pod("a").await?, 90).await?;
    let lease = a.acquire_for_long("res").await?.granted()?;
    let before = namespace.holding_session("res").await?.unwrap_or_default();

    let control_plane = cluster.control_plane();
    control_plane.kill_api_server().await?;
    a.renew(&lease.id).await?.granted()?;
    let refused = a
        .acquire("other")
        .await?
        .problem(503, "store_unavailable")?;
    assert!(refused.retry_after.is_some(), "{refused:?}");
    let (ready, _) = a.admin("/readyz").await?;
    assert_eq!(ready, 200, "an outage must not make a pod unready");
    control_plane.start_api_server().await?;

    let renewals = before["status"]["renewals"].as_u64().unwrap_or_default();
    let after = until_renewed(&namespace, "res", renewals + 1).await?;
    assert_eq!(after["metadata"]["name"], before["metadata"]["name"]);
    assert_eq!(a.renew(&lease.id).await?.granted()?.token, lease.token);
    a.verify("res", lease.token).await?.expect(200)?;
    Ok(())
}

/// An agent that loses its session in an outage, and its last promise.
struct Outage {
    namespace: Namespace,
    proxy: Proxy,
    a: Sidecar,
    lease: Lease,
}

/// Long enough for an answer on a busy machine to be short beside a twentieth of it.
const TTL: Duration = Duration::from_secs(20);

impl Outage {
    async fn prepare(cluster: &std::sync::Arc<Cluster>) -> Result<Self> {
        let namespace = cluster.namespace("long").await?;
        // Its notes say when the last renewal was sent.
        let proxy = Proxy::start(cluster).await?;
        let pod = namespace.pod("a").await?.through(&proxy.url)?;
        let a = sidecar(&pod, TTL.as_secs()).await?;
        let lease = a.acquire("res").await?.granted()?;
        until_renewed(&namespace, "res", 1).await?;
        Ok(Self {
            namespace,
            proxy,
            a,
            lease,
        })
    }

    /// Asks until the lease is lost. Returns until when the app could believe in it.
    async fn until_lost(&self) -> Result<Moment> {
        let mut believed = Moment::default();
        let lost = eventually("the lease to be lost", TTL * 3, async || {
            let asked = now();
            let answer = self.a.get(&self.lease.id).await;
            let told = answer.as_ref().ok().filter(|answer| answer.status == 200);
            if let Some(told) = told {
                let valid_for = told.json["validForMs"].as_u64()?;
                believed = believed.max(asked.after(Duration::from_millis(valid_for)));
                return None;
            }
            Some(answer)
        });
        let lost = lost.await??.problem(410, "lease_lost")?;
        assert_eq!(lost.json["reason"], "session_expired");
        Ok(believed)
    }

    /// The loss is reported when no challenger may have started, and never believed beyond. The last promise before
    /// it counts, and not the time of the test's request.
    async fn is_reported_in_time(&self) -> Result<()> {
        let believed = self.until_lost().await?;
        let reported = now();
        let exchanges = self.proxy.exchanges();
        let renewed = exchanges.iter().rfind(|exchange| {
            let renews = [Class::Renew, Class::CreateSession].contains(&exchange.class);
            renews && exchange.status.is_some_and(|status| status < 300)
        });
        // The agent counts from a moment before the proxy saw it.
        let renewed = renewed.map(|exchange| exchange.at).unwrap_or_default();
        let (believed, since) = (believed.since(renewed), reported.since(renewed));
        ensure!(
            believed > Duration::ZERO && believed <= TTL.mul_f64(0.95),
            "believed for {believed:?}, reported after {since:?}"
        );
        ensure!(
            since > TTL.mul_f64(0.9),
            "reported lost already after {since:?}"
        );
        Ok(())
    }

    /// A new session, a larger token, and no trace of the old grant.
    async fn recovers(&self) -> Result<()> {
        let next = eventually("another lease", LIMIT, async || {
            self.a.acquire("res").await.ok()?.granted().ok()
        });
        let next = next.await?;
        ensure!(
            next.token > self.lease.token,
            "{next:?} after {:?}",
            self.lease
        );
        self.a
            .get(&self.lease.id)
            .await?
            .problem(410, "lease_lost")?;
        self.a.verify("res", next.token).await?.expect(200)?;
        let sessions = self.namespace.all("locksessions").await?;
        ensure!(sessions.len() == 2, "{sessions:?}");
        self.a.release_for_good(&next.id).await?;
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn long_outage_is_reported_before_the_deadline_and_survived() -> Result<()> {
    let cluster = Cluster::fresh(TakeOver::Peer).await?;
    let outage = Outage::prepare(&cluster).await?;
    cluster.control_plane().kill_api_server().await?;
    outage.is_reported_in_time().await?;
    cluster.control_plane().start_api_server().await?;
    outage.recovers().await
}

#[tokio::test(flavor = "multi_thread")]
async fn hanging_api_server_is_handled_like_an_outage() -> Result<()> {
    let cluster = Cluster::fresh(TakeOver::Peer).await?;
    let outage = Outage::prepare(&cluster).await?;
    cluster.control_plane().freeze().await?;
    outage.is_reported_in_time().await?;
    cluster.control_plane().thaw().await?;
    outage.recovers().await
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_list_does_not_count_as_a_store_that_went_back() -> Result<()> {
    let cluster = Cluster::shared(TakeOver::Peer).await?;
    let namespace = cluster.namespace("slow").await?;
    let proxy = Proxy::start(&cluster).await?;
    let pod = namespace.pod("a").await?.through(&proxy.url)?;
    let a = sidecar(&pod, 30).await?;
    let lease = a.acquire("res").await?.granted()?;
    proxy.fail(Class::List, 1, Fault::AnswerHeld);
    let lists = proxy.count(Class::List);
    let write = async {
        eventually("the list to be asked", LIMIT, async || {
            let passed = proxy.exchanges().iter().any(|exchange| {
                exchange.class == Class::List
                    && exchange.fault.is_some()
                    && exchange.status.is_some()
            });
            passed.then_some(())
        })
        .await?;
        a.release_for_good(&lease.id).await?;
        // So the list is older than what the agent has seen by the time that it comes.
        proxy.resume_held();
        anyhow::Ok(())
    };
    let (listed, written) = tokio::join!(a.call(Method::GET, "/v1/locks", None), write);
    written?;
    listed?.expect(200)?;
    assert_eq!(proxy.count(Class::List), lists + 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn write_to_a_hanging_etcd_leaves_no_orphaned_grant() -> Result<()> {
    let cluster = Cluster::fresh(TakeOver::Peer).await?;
    let namespace = cluster.namespace("etcd").await?;
    let a = sidecar(&namespace.pod("a").await?, 60).await?;
    let b = sidecar(&namespace.pod("b").await?, 60).await?;
    let before = a.acquire("res").await?.granted()?;
    a.release_for_good(&before.id).await?;
    b.acquire("warm").await?.granted()?;

    cluster.control_plane().freeze_etcd().await?;
    let answer = a.acquire("res").await?.problem(503, "store_unavailable")?;
    assert!(answer.took < Duration::from_secs(12), "{answer:?}");
    cluster.control_plane().thaw_etcd().await?;

    // The write without a caller may land now; the agent releases it.
    let next = eventually("the lock to be free", LIMIT, async || {
        b.acquire("res").await.ok()?.granted().ok()
    });
    let next = next.await?;
    ensure!(next.token > before.token, "{next:?} after {before:?}");
    b.verify("res", next.token).await?.expect(200)?;
    b.release_for_good(&next.id).await?;
    a.acquire("res").await?.granted()?;
    Ok(())
}
