//! What many of the tests begin with.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::harness::{
    Answer, Cluster, Lease, Namespace, Operator, PATIENCE, Pod, Sidecar, TakeOver, eventually,
};

/// Our binary.
pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_leasehold");

/// Held by tests that keep the whole machine busy for a while: one at a time.
pub(crate) static BUSY: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// A strict cluster with one operator, which tests share; started by the first one. It is not the one of
/// `Cluster::shared`: there strict mode has no operator, for tests that need its absence.
pub(crate) async fn with_operator() -> Result<(Arc<Cluster>, &'static Operator)> {
    static SHARED: OnceCell<Result<(Arc<Cluster>, Operator), String>> = OnceCell::const_new();

    let start = async || {
        let cluster = Cluster::of_its_own(TakeOver::Strict).await?;
        let pod = cluster.operator_pod("operator-of-many").await?;
        let args = ["--retain-seconds", "60", "--keep-sessions-seconds", "10"];
        let operator = Operator::start(BINARY, &pod, &args).await?;
        operator.until_active().await?;
        anyhow::Ok((cluster, operator))
    };
    let shared = SHARED.get_or_init(async || start().await.map_err(|error| format!("{error:#}")));
    match shared.await {
        Ok((cluster, operator)) => Ok((cluster.clone(), operator)),
        Err(error) => anyhow::bail!("{error}"),
    }
}

/// The shared cluster of a mode as it is meant to run: in strict mode with an operator.
pub(crate) async fn complete(mode: TakeOver) -> Result<Arc<Cluster>> {
    match mode {
        TakeOver::Strict => Ok(with_operator().await?.0),
        TakeOver::Peer => Cluster::shared(mode).await,
    }
}

/// A namespace with two pods and their sidecars.
pub(crate) struct Pair {
    pub(crate) namespace: Namespace,
    pub(crate) a: Sidecar,
    pub(crate) b: Sidecar,
}

impl Pair {
    /// In the shared cluster of a mode, with sessions of this TTL. Strict mode has an operator.
    pub(crate) async fn start(about: &str, mode: TakeOver, ttl_seconds: u64) -> Result<Self> {
        let cluster = complete(mode).await?;
        Self::start_in(&cluster, about, ttl_seconds).await
    }

    /// In any cluster.
    pub(crate) async fn start_in(
        cluster: &Arc<Cluster>,
        about: &str,
        ttl_seconds: u64,
    ) -> Result<Self> {
        let namespace = cluster.namespace(about).await?;
        let a = sidecar(&namespace.pod("a").await?, ttl_seconds).await?;
        let b = sidecar(&namespace.pod("b").await?, ttl_seconds).await?;
        Ok(Self { namespace, a, b })
    }
}

/// A sidecar with sessions of this TTL.
pub(crate) async fn sidecar(pod: &Pod, ttl_seconds: u64) -> Result<Sidecar> {
    let launch = Sidecar::launch(BINARY, pod).session_ttl(ttl_seconds);
    launch.start().await
}

/// Tries until the lock is taken. In between nothing but `lock_held` is a good answer.
pub(crate) async fn acquire_in_time(
    sidecar: &Sidecar,
    resource: &str,
    limit: Duration,
) -> Result<Lease> {
    let what = format!("pod {} to get {resource}", sidecar.pod.name);
    let answer = eventually(&what, limit, async || {
        let answer = sidecar.acquire(resource).await;
        let held = answer
            .as_ref()
            .is_ok_and(|answer| answer.status == 409 && answer.code() == "lock_held");
        (!held).then_some(answer)
    });
    answer.await??.granted()
}

/// Lets `jane` end grants and `john` merely change locks.
pub(crate) async fn grant_admin_rights(namespace: &Namespace) -> Result<()> {
    let (client, name) = (namespace.client.clone(), &namespace.name);
    let edit = json!({"metadata": {"name": "edit-locks"}, "rules": [{
        "apiGroups": ["leasehold.dev"], "resources": ["distributedlocks"],
        "verbs": ["get", "patch", "update"]}]});
    let roles = Api::<Role>::namespaced(client, name);
    roles
        .create(&PostParams::default(), &serde_json::from_value(edit)?)
        .await?;
    bind(namespace, "jane", ("ClusterRole", "leasehold-lock-admin")).await?;
    bind(namespace, "john", ("Role", "edit-locks")).await
}

/// Binds a person to a role in a namespace, and waits until that has an effect. The role must allow to get locks.
pub(crate) async fn bind(
    namespace: &Namespace,
    person: &str,
    (kind, role): (&str, &str),
) -> Result<()> {
    let binding = json!({"metadata": {"name": person},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
        "subjects": [{"kind": "User", "name": person}]});
    let bindings = Api::<RoleBinding>::namespaced(namespace.client.clone(), &namespace.name);
    let binding = serde_json::from_value(binding)?;
    bindings.create(&PostParams::default(), &binding).await?;
    let what = format!("the rights of {person}");
    eventually(&what, PATIENCE, async || {
        let asked = ["auth", "can-i", "get", "dlock", "--as", person];
        let answer = namespace.kubectl(&asked).await.ok()?;
        answer.success.then_some(())
    })
    .await
}

/// Changes a lock's status by hand, as an administrator.
pub(crate) async fn merge_status(namespace: &Namespace, lock: &str, patch: &str) -> Result<()> {
    let args = [
        "patch",
        "dlock",
        lock,
        "--subresource=status",
        "--type=merge",
        "-p",
        patch,
    ];
    namespace.kubectl(&args).await?.ok().map(drop)
}

/// Waits until a lock's queue has this many entries; returns them.
pub(crate) async fn until_queued(
    namespace: &Namespace,
    lock: &str,
    count: usize,
) -> Result<Vec<Value>> {
    let what = format!("{count} in the queue of {lock}");
    eventually(&what, PATIENCE, async || {
        let lock = namespace.lock(lock).await.ok().flatten()?;
        let waiters = lock["status"]["waiters"].as_array().cloned();
        waiters.or(Some(vec![])).filter(|w| w.len() == count)
    })
    .await
}

/// Waits for the Events with this reason on a lock, as `kubectl describe` shows them; gives those lines.
pub(crate) async fn until_described(
    namespace: &Namespace,
    lock: &str,
    reason: &str,
) -> Result<Vec<String>> {
    let what = format!("kubectl describe dlock {lock} to show {reason}");
    eventually(&what, PATIENCE, async || {
        let command = ["describe", "dlock", lock];
        let described = namespace.kubectl(&command).await.ok()?.ok().ok()?;
        let (_, events) = described.split_once("\nEvents:")?;
        let lines = events.lines().filter(|line| line.contains(reason));
        let lines: Vec<_> = lines.map(str::to_owned).collect();
        (!lines.is_empty()).then_some(lines)
    })
    .await
}

/// What an operator's audit log says of a namespace: the end of an operator's lead is in it too.
pub(crate) fn audit_lines_of(namespace: &Namespace, operator: &Operator) -> Vec<Value> {
    let lines = operator.audit().into_iter();
    let ours = lines.filter(|line| line["namespace"] == *namespace.name);
    ours.collect()
}

/// Polls a lease until it is lost.
pub(crate) async fn until_lost(sidecar: &Sidecar, lease: &str, limit: Duration) -> Result<Answer> {
    eventually("the lease to be lost", limit, async || {
        let answer = sidecar.get(lease).await;
        let valid = answer.as_ref().is_ok_and(|answer| answer.status == 200);
        (!valid).then_some(answer)
    })
    .await??
    .problem(410, "lease_lost")
}

/// Waits until a lock is free; returns it.
pub(crate) async fn until_free(namespace: &Namespace, lock: &str) -> Result<Value> {
    let what = format!("{lock} to be free");
    eventually(&what, PATIENCE, async || {
        let object = namespace.lock(lock).await.ok().flatten()?;
        object["status"]["lease"].is_null().then_some(object)
    })
    .await
}

/// Waits until the session that holds a lock was renewed this often; returns the session.
pub(crate) async fn until_renewed(
    namespace: &Namespace,
    lock: &str,
    renewals: u64,
) -> Result<Value> {
    let what = format!("{renewals} renewals by the holder of {lock}");
    eventually(&what, PATIENCE, async || {
        let session = namespace.holding_session(lock).await.ok().flatten()?;
        let counted = session["status"]["renewals"].as_u64().unwrap_or_default();
        (counted >= renewals).then_some(session)
    })
    .await
}

/// The time in a field of an object, in milliseconds since 1970.
pub(crate) fn milliseconds(time: &Value) -> Result<i64> {
    let text = time.as_str().context("a time must be a string")?;
    Ok(text.parse::<jiff::Timestamp>()?.as_millisecond())
}

/// Unlike what is printed by a macro, this is shown when the test passes too.
pub(crate) fn tell(line: &str) -> Result<()> {
    Ok(writeln!(std::io::stdout(), "{line}")?)
}
