//! The client libraries on real sidecars, by the drivers of the conformance suite: what `leasehold dev` cannot show,
//! since it is one process. `make clients-e2e` builds the drivers and runs this.

#[allow(dead_code, reason = "the suite uses more of it")]
#[path = "../it/clients/app.rs"]
mod app;
#[path = "../it/clients/drivers.rs"]
mod drivers;

use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use app::Kind;

use crate::harness::{Cluster, Sidecar, TakeOver, directory, eventually, now};
use crate::support::{BINARY, Pair};

/// Of the sidecars' sessions. Long enough for a restart on a busy machine.
const TTL_SECONDS: u64 = 8;

/// Of the leases that are held by renewals.
const SILENCE_SECONDS: u64 = 60;

/// The scenarios as tests of a language, whose driver is a command.
macro_rules! scenarios {
    ($($language:ident: $command:expr;)*) => {
        $(mod $language {
            use super::*;

            #[tokio::test(flavor = "multi_thread")]
            #[ignore = "needs the clients' languages: make clients-e2e"]
            async fn paused_pod_is_fenced_off() -> Result<()> {
                super::paused_pod_is_fenced_off(stringify!($language), || $command).await
            }

            #[tokio::test(flavor = "multi_thread")]
            #[ignore = "needs the clients' languages: make clients-e2e"]
            async fn lease_outlives_a_crash_of_the_sidecar() -> Result<()> {
                super::lease_outlives_a_crash_of_the_sidecar(stringify!($language), || $command).await
            }
        })*
    };
}

scenarios! {
    go: drivers::go();
    java: drivers::java(&drivers::java_classes(), "blocks");
    python: drivers::python("threads");
    rust: drivers::rust("blocks");
    typescript: drivers::typescript(&drivers::built("typescript").join("app"), "import");
}

fn kind<C: Fn() -> Command>(command: C, ttl: Option<u64>) -> Kind<C> {
    let patience = app::PATIENCE;
    Kind {
        command,
        ttl,
        patience,
    }
}

fn token(lease: &Value) -> Result<u64> {
    lease["token"].as_u64().context("a token")
}

/// A pod is stopped, its app and its sidecar together, until another pod has its lock. Then the app continues alone.
async fn paused_pod_is_fenced_off(name: &str, command: impl Fn() -> Command) -> Result<()> {
    let kind = kind(command, None);
    let about = format!("paused-{name}");
    let Pair { namespace, a, b } = Pair::start(&about, TakeOver::Peer, TTL_SECONDS).await?;
    let mut first = kind.start(&a.url).await;
    let mut second = kind.start(&b.url).await;
    let before = token(&first.lock("report").await)?;
    let waiting = second.send_lock("report", None);
    a.freeze()?;
    first.signal("STOP");

    let after = token(&second.answer(waiting).await)?;
    ensure!(after > before, "{after} after {before}");
    // It learns it from its own clock: its sidecar is still stopped.
    first.signal("CONT");
    first.has_lost("report").await;
    ensure!(first.loss("report").await == "validity_over");
    b.verify("report", before)
        .await?
        .problem(409, "stale_token")?;
    second.holds("report").await;

    a.thaw()?;
    second.ask("report", "release").await;
    let third = token(&first.lock("again").await)?;
    a.verify("again", third).await?.expect(200)?;
    let lock = namespace.lock("report").await?.context("a lock")?;
    ensure!(lock["status"]["transitions"] == 2, "{lock}");
    Ok(())
}

/// The sidecar of a pod is killed, and resumes its session; a lease that is held by renewals does not notice.
async fn lease_outlives_a_crash_of_the_sidecar(
    name: &str,
    command: impl Fn() -> Command,
) -> Result<()> {
    let kind = kind(command, Some(SILENCE_SECONDS));
    let cluster = Cluster::shared(TakeOver::Peer).await?;
    let namespace = cluster.namespace(&format!("crash-{name}")).await?;
    let (pod, state) = (
        namespace.pod("a").await?,
        directory()?.join(&namespace.name),
    );
    std::fs::create_dir(&state)?;
    let start = async |listen: &str| {
        Sidecar::launch(BINARY, &pod)
            .session_ttl(TTL_SECONDS)
            .listen(listen, "127.0.0.1:0")
            .arg("--state-dir")
            .arg(&state.display().to_string())
            .start()
            .await
    };
    let sidecar = start("127.0.0.1:0").await?;
    let address = sidecar.url.trim_start_matches("http://").to_owned();
    let mut app = kind.start(&sidecar.url).await;
    let lease = app.lock("report").await;
    let promised = now().after(app.holds("report").await);
    sidecar.kill9()?;
    sidecar.ended().await?;

    let sidecar = start(&address).await?;
    while now() < promised {
        app.holds("report").await;
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    app.holds("report").await;
    let checked = sidecar
        .verify("report", token(&lease)?)
        .await?
        .expect(200)?;
    ensure!(checked.json["exact"] == true, "{checked:?}");
    app.ask("report", "release").await;
    let released = eventually("a release", app::PATIENCE, async || {
        let lock = namespace.lock("report").await.ok()??;
        lock["status"]["holder"].is_null().then_some(lock)
    });
    let lock = released.await?;
    ensure!(lock["status"]["transitions"] == 1, "{lock}");
    Ok(())
}
