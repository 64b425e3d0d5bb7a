//! A pod that is deleted or evicted hands its locks to the next waiter, but only after its app has
//! stopped, in whatever way and however long it takes.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::app::{App, Log, Wanted};
use crate::harness::{Namespace, eventually};
use crate::install::Leasehold;
use crate::pods::LIMIT;

/// Scripts write the machine's time into their lines. A log's own time is when the line was read,
/// which may be later than the next line of another log.
const NOW: &str = "now() { cut -d' ' -f1 /proc/uptime; }\n";
/// Acquires the lock and renews it every second, in the background and without output.
const TAKE: &str = r#"answer=$(call /v1/locks/acquire '{"resource":"orders","ttlSeconds":60}')
echo "$answer"
id=$(echo "$answer" | sed 's/.*"leaseId":"\([^"]*\)".*/\1/')
(while sleep 1; do call "/v1/locks/$id/renew" '{}'; done) >/dev/null 2>&1 &
"#;
/// Holds the lock by a connection.
const HOLD: &str = r#"call /v1/locks/hold '{"resource":"orders"}' &
hold=$!
"#;
const WAIT: &str =
    "call /v1/locks/acquire '{\"resource\":\"orders\",\"ttlSeconds\":60,\"waitSeconds\":240}'
echo \"had $(now)\"
exec sleep infinity";
/// Reports that it is running until it is killed.
const LIVE: &str = "while :; do echo \"alive $(now)\"; sleep 0.05; done";

/// Returns the time between the two.
pub(crate) fn between(from: Timestamp, to: Timestamp) -> Result<Duration> {
    Ok(to.duration_since(from).try_into()?)
}

/// Returns the time in a line: since the machine's boot.
fn said_at(line: &str) -> Result<Duration> {
    let (_, seconds) = line.rsplit_once(' ').context("it must end with a time")?;
    Ok(Duration::try_from_secs_f64(seconds.parse()?)?)
}

/// Returns the time from this line of the former holder until the next one received the lock.
fn handed_over(after: &str, had: &str) -> Result<Duration> {
    let passed = said_at(had)?.checked_sub(said_at(after)?);
    passed.with_context(|| format!("the app said {after:?}, the next one {had:?}"))
}

/// Returns the last line of a log with this prefix.
fn last(log: &mut Log, begins: &str) -> Result<String> {
    let lines = log.lines()?;
    let mut lines = lines.into_iter().rev().map(|(_, line)| line);
    let line = lines.find(|line| line.starts_with(begins));
    line.with_context(|| format!("the app must have said {begins:?}"))
}

/// Pod `a`, which holds the lock `orders`, and pod `b`, which waits for it.
struct Pair {
    a: App,
    namespace: Namespace,
    holds: Log,
    waits: Log,
}

impl Pair {
    async fn start(leasehold: &'static Leasehold, script: &str, wanted: &Wanted) -> Result<Self> {
        let namespace = leasehold.namespace("handover").await?;
        let machine = leasehold.machine;
        let script = format!("{NOW}{script}");
        let a = machine.app(&namespace, "a", &script, wanted).await?;
        let mut holds = a.log()?;
        holds.until("\"leaseId\":").await?;
        let script = format!("{NOW}{WAIT}");
        let wanted = Wanted::default();
        let b = machine.app(&namespace, "b", &script, &wanted).await?;
        let waits = b.log()?;
        namespace.until_queued("orders").await?;
        Ok(Self {
            a,
            namespace,
            holds,
            waits,
        })
    }

    async fn delete(&self) -> Result<()> {
        let delete = ["delete", "pod", "a", "--wait=false"];
        self.namespace.kubectl(&delete).await?.ok().map(drop)
    }

    /// Evicts pod `a` by the Eviction API.
    async fn evict(&self, grace_seconds: u32) -> Result<()> {
        let namespace = &self.namespace.name;
        let path = format!("/api/v1/namespaces/{namespace}/pods/a/eviction");
        let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": {"name": "a", "namespace": namespace},
            "deleteOptions": {"gracePeriodSeconds": grace_seconds}});
        let request = http::Request::post(&path).header("content-type", "application/json");
        let request = request.body(eviction.to_string().into_bytes())?;
        let _status: Value = self.namespace.client.request(request).await?;
        Ok(())
    }

    /// Returns the line of the next holder, once the complete output of the first app is in its
    /// log.
    async fn had(&mut self) -> Result<String> {
        let (_, had) = self.waits.until("had ").await?;
        let gone = ["wait", "--for=delete", "pod/a", "--timeout=60s"];
        self.namespace.kubectl(&gone).await?.ok()?;
        Ok(had)
    }
}

/// A way in which an app stops.
struct Stop {
    about: &'static str,
    script: String,
    wanted: Wanted,
    /// The prefix of its last line until which it must be the only holder.
    last_word: &'static str,
}

impl Stop {
    /// Deletes or evicts its pod. Measures how long after the app's SIGTERM, and after its last
    /// line, the next waiter receives the lock.
    async fn measure(&self, begin: impl AsyncFnOnce(&Pair) -> Result<()>) -> Result<()> {
        let leasehold = Leasehold::installed().await?;
        let mut pair = Pair::start(leasehold, &self.script, &self.wanted).await?;
        begin(&pair).await?;
        let had = pair.had().await?;
        let last_word = last(&mut pair.holds, self.last_word)?;
        let after_end = handed_over(&last_word, &had)?;
        let after_term = match last(&mut pair.holds, "term ") {
            Ok(term) => format!("{:?}", handed_over(&term, &had)?),
            Err(_ignored) => "-".to_owned(),
        };
        crate::tell(&format!(
            "measured: {}: next holder {after_term} after SIGTERM, {after_end:?} after the app's end",
            self.about
        ))?;
        // The operator reclaims the locks of an ended pod by the kubelet's report, long before the
        // session expires.
        ensure!(after_end < Duration::from_secs(5), "it took {after_end:?}");
        Ok(())
    }
}

fn grace(seconds: u32) -> Wanted {
    Wanted {
        spec: json!({"terminationGracePeriodSeconds": seconds}),
        ..Wanted::default()
    }
}

fn waits_in_pre_stop(seconds: u32) -> Value {
    json!({"exec": {"command": ["sleep", seconds.to_string()]}})
}

#[tokio::test]
async fn app_that_releases_on_sigterm_hands_over_at_once() -> Result<()> {
    let release = r#"trap 'echo "term $(now)"
curl --silent --request DELETE "$LEASEHOLD_URL/v1/locks/$id"; exit 0' TERM
while :; do sleep 0.05; done"#;
    let stop = Stop {
        about: "DELETE on SIGTERM",
        script: format!("{TAKE}{release}"),
        wanted: Wanted::default(),
        last_word: "term ",
    };
    stop.measure(Pair::delete).await
}

#[tokio::test]
async fn app_that_closes_its_hold_on_sigterm_hands_over_at_once() -> Result<()> {
    let close = r#"trap 'echo "term $(now)"; kill $hold; exit 0' TERM
while :; do sleep 0.05; done"#;
    let stop = Stop {
        about: "hold closed on SIGTERM",
        script: format!("{HOLD}{close}"),
        wanted: Wanted::default(),
        last_word: "term ",
    };
    stop.measure(Pair::delete).await
}

#[tokio::test]
async fn app_that_ends_without_release_hands_over_after_its_end() -> Result<()> {
    // Its last work takes two seconds. During them the lock must not go to another pod.
    let end = r#"trap 'echo "term $(now)"; sleep 2; echo "stopped $(now)"; exit 0' TERM
while :; do sleep 0.1; done"#;
    let stop = Stop {
        about: "no release, session TTL 3,600 s, app ends 2 s after SIGTERM",
        script: format!("{TAKE}{end}"),
        wanted: Wanted {
            config: vec![("session-ttl", "3600")],
            ..Wanted::default()
        },
        last_word: "stopped ",
    };
    stop.measure(Pair::delete).await
}

#[tokio::test]
async fn app_that_ignores_sigterm_hands_over_after_sigkill() -> Result<()> {
    let stop = Stop {
        about: "ignored SIGTERM, grace 4 s",
        script: format!("{TAKE}trap '' TERM\n{LIVE}"),
        wanted: grace(4),
        last_word: "alive ",
    };
    stop.measure(Pair::delete).await
}

/// The sidecar receives SIGTERM after one second, the app SIGKILL after two.
#[tokio::test]
async fn app_with_a_grace_of_one_second_has_the_lock_alone() -> Result<()> {
    let stop = Stop {
        about: "slow to stop, grace 1 s",
        script: format!("{TAKE}trap 'echo \"term $(now)\"' TERM\n{LIVE}"),
        wanted: grace(1),
        last_word: "alive ",
    };
    stop.measure(Pair::delete).await
}

/// App and sidecar receive SIGTERM at the same time, the app SIGKILL two seconds later.
#[tokio::test]
async fn app_whose_hook_uses_up_the_grace_has_the_lock_alone() -> Result<()> {
    let stop = Stop {
        about: "preStop hook uses up the grace of 4 s",
        script: format!("{TAKE}trap 'echo \"term $(now)\"' TERM\n{LIVE}"),
        wanted: Wanted {
            pre_stop: waits_in_pre_stop(30),
            ..grace(4)
        },
        last_word: "alive ",
    };
    stop.measure(Pair::delete).await
}

#[tokio::test]
async fn evicted_app_has_the_lock_alone() -> Result<()> {
    let stop = Stop {
        about: "evicted with a grace of 1 s",
        script: format!("{TAKE}trap 'echo \"term $(now)\"' TERM\n{LIVE}"),
        wanted: Wanted::default(),
        last_word: "alive ",
    };
    stop.measure(async |pair| pair.evict(1).await).await
}

/// For example because its image is changed, or `crictl stop` is called.
#[tokio::test]
async fn sidecar_restarted_under_a_running_app_resumes_its_lease() -> Result<()> {
    let leasehold = Leasehold::installed().await?;
    let script = r#"answer=$(call /v1/locks/acquire '{"resource":"orders","ttlSeconds":60}')
echo "$answer"
id=$(echo "$answer" | sed 's/.*"leaseId":"\([^"]*\)".*/\1/')
trap 'echo "term $(now)"; curl --silent --request DELETE "$LEASEHOLD_URL/v1/locks/$id"; exit 0' TERM
while :; do echo "alive $(now) $(call "/v1/locks/$id/renew" '{}' 2>&1)"; sleep 0.2; done"#;
    let mut pair = Pair::start(leasehold, script, &Wanted::default()).await?;
    let before = pair.namespace.lock("orders").await?.context("no lock")?;

    pair.a.signal("leasehold", Signal::TERM)?;
    let (_, refused) = pair.holds.until("curl: (7)").await?;
    let count = pair.holds.lines()?.len();
    let mut renewed = None;
    eventually("the lease to continue", LIMIT, async || {
        let lines = pair.holds.lines().ok()?;
        let mut later = lines.into_iter().skip(count).map(|(_, line)| line);
        renewed = later.find(|line| line.contains("\"validForMs\":"));
        renewed.is_some().then_some(())
    })
    .await?;
    let renewed = renewed.context("it was renewed")?;
    let away = said_at(mark(&renewed)?)?.saturating_sub(said_at(mark(&refused)?)?);
    crate::tell(&format!(
        "measured: SIGTERM of the sidecar alone: the lease continued after {away:?}"
    ))?;
    let lock = pair.namespace.lock("orders").await?.context("no lock")?;
    ensure!(
        lock["status"]["lease"] == before["status"]["lease"],
        "{lock}"
    );
    ensure!(
        lock["status"]["holder"] == before["status"]["holder"],
        "{lock}"
    );
    ensure!(pair.waits.find("had ")?.is_none(), "two have the lock");

    pair.delete().await?;
    let had = pair.had().await?;
    handed_over(&last(&mut pair.holds, "term ")?, &had)?;
    let last_alive = last(&mut pair.holds, "alive ")?;
    handed_over(mark(&last_alive)?, &had)?;
    Ok(())
}

/// Returns `alive TIME` of a line that continues with an answer.
fn mark(line: &str) -> Result<&str> {
    let end = line.match_indices(' ').nth(1).map(|(end, _)| end);
    Ok(&line[..end.context("it must have a time")?])
}
