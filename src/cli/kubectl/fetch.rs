//! Reads the part of the cluster that a command shows. What the user must not read becomes unknown, with the missing
//! right; only the locks themselves are necessary.

use serde_json::{Value, json};

use super::api::{Api, ByName, encoded, locks, sessions};
use super::failure::Failure;
use crate::cli::operator::ELECTION;
use crate::k8s::names::{is_object_name, object_name};
use crate::kubectl::check::findings::DEFAULT_HOME;
use crate::kubectl::session_health::Health;
use crate::kubectl::world::{Known, LockSeen, NodeSeen, OperatorSeen, PodSeen, SessionSeen, World};
use crate::protocol::election::ElectionName;

/// Returns these locks, with the sessions of their namespace, or of all.
pub(super) async fn world(
    api: &Api,
    namespace: Option<&str>,
    locks: Vec<LockSeen>,
) -> Result<World, Failure> {
    let sessions = known(sessions_of(api, namespace).await)?;
    Ok(World {
        locks,
        sessions,
        ..World::empty(api.now()?)
    })
}

/// Returns one lock, with the sessions of its namespace.
pub(super) async fn world_of(api: &Api, lock: &LockSeen) -> Result<World, Failure> {
    world(api, Some(&lock.namespace), vec![lock.clone()]).await
}

/// Returns all locks and sessions of a namespace, or of all.
pub(super) async fn everything(api: &Api, namespace: Option<&str>) -> Result<World, Failure> {
    let mut found = Vec::new();
    api.each(&locks(namespace), "", |object| {
        found.push(LockSeen::read(&object));
    })
    .await?;
    world(api, namespace, found).await
}

/// Turns a missing right into something unknown.
pub(super) fn known<T>(answer: Result<T, Failure>) -> Result<Known<T>, Failure> {
    match answer {
        Ok(value) => Ok(Known::Seen(value)),
        Err(error) => error.missing_right().map(Known::Unknown).ok_or(error),
    }
}

/// Asks whether the user, or another subject, may do something. `spec` has the attributes and, for another subject, its
/// user and groups.
pub(super) async fn may(api: &Api, kind: &str, spec: &Value) -> Result<Known<bool>, Failure> {
    let path = format!("/apis/authorization.k8s.io/v1/{}s", kind.to_lowercase());
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec});
    let answer = known(api.post(&path, &review).await)?;
    Ok(match answer {
        Known::Seen(answer) => Known::Seen(answer["status"]["allowed"] == true),
        Known::Unknown(right) => Known::Unknown(right),
    })
}

/// Reads the sessions of a namespace, or of all.
pub(super) async fn sessions_of(
    api: &Api,
    namespace: Option<&str>,
) -> Result<ByName<SessionSeen>, Failure> {
    let mut seen = ByName::new();
    api.each(&sessions(namespace), "", |object| {
        // The holder of a session that cannot be read is shown as without one.
        if let Ok(session) = SessionSeen::read(&object) {
            seen.insert((session.namespace.clone(), session.name.clone()), session);
        }
    })
    .await?;
    Ok(seen)
}

/// Reads one pod and its node into `world`.
pub(super) async fn pod(
    api: &Api,
    world: &mut World,
    namespace: &str,
    name: &str,
) -> Result<(), Failure> {
    let key = (namespace.to_owned(), name.to_owned());
    if world.pods.contains_key(&key) || !is_object_name(name) {
        return Ok(());
    }
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
    let pod = known(api.find(&path).await)?;
    let pod = match pod {
        Known::Seen(pod) => Known::Seen(pod.as_ref().map(PodSeen::read)),
        Known::Unknown(why) => Known::Unknown(why),
    };
    let node = pod
        .seen()
        .and_then(Option::as_ref)
        .map(|pod| pod.node.clone());
    world.pods.insert(key, pod);
    match node {
        Some(node) if !node.is_empty() => self::node(api, world, &node).await,
        _ => Ok(()),
    }
}

async fn node(api: &Api, world: &mut World, name: &str) -> Result<(), Failure> {
    if world.nodes.contains_key(name) || !is_object_name(name) {
        return Ok(());
    }
    let node = match known(api.find(&format!("/api/v1/nodes/{name}")).await)? {
        Known::Seen(node) => Known::Seen(node.as_ref().map(NodeSeen::read)),
        Known::Unknown(why) => Known::Unknown(why),
    };
    world.nodes.insert(name.to_owned(), node);
    Ok(())
}

/// Reads whether an operator acts, into `world`: the holder of its election's lock, in whatever namespace it runs.
pub(super) async fn operator(api: &Api, world: &mut World) -> Result<(), Failure> {
    let seen = async { operator_of(api, &operator_locks(api).await?).await };
    world.operator = known(seen.await)?;
    Ok(())
}

async fn operator_locks(api: &Api) -> Result<Vec<LockSeen>, Failure> {
    let election =
        ElectionName::parse(ELECTION).map_err(|error| Failure::Usage(error.to_string()))?;
    let name = object_name(election.resource());
    let mut found = Vec::new();
    let query = format!(
        "fieldSelector={}",
        encoded(&format!("metadata.name={name}"))
    );
    api.each(&locks(None), &query, |object| {
        found.push(LockSeen::read(&object));
    })
    .await?;
    Ok(found)
}

async fn operator_of(api: &Api, locks: &[LockSeen]) -> Result<OperatorSeen, Failure> {
    let mut why = "no lock of its election exists".to_owned();
    for lock in locks {
        let namespace = &lock.namespace;
        let Ok(status) = &lock.status else {
            why = format!("the lock of its election in namespace {namespace} cannot be read");
            continue;
        };
        let Some(holder) = &status.holder else {
            why = format!("no replica in namespace {namespace} leads");
            continue;
        };
        if !is_operators(api, namespace).await? {
            why = format!(
                "pod {} in namespace {namespace} leads its election, and no operator is installed there",
                holder.pod
            );
            continue;
        }
        if let Some(session) = session_of(api, namespace, &holder.session).await?
            && matches!(Health::at(api.now()?, &session), Health::Live { .. })
        {
            return Ok(OperatorSeen::Active {
                namespace: namespace.clone(),
                pod: holder.pod.clone(),
                version: session.spec.agent_version,
            });
        }
        why = format!(
            "the last leader was pod {} in namespace {namespace}, which is silent",
            holder.pod
        );
    }
    Ok(OperatorSeen::Absent(why))
}

/// Returns whether an operator is installed in this namespace. A sidecar of any namespace can run for an election with the
/// operator's name; its namespace has no Deployment of the operator.
async fn is_operators(api: &Api, namespace: &str) -> Result<bool, Failure> {
    if namespace == DEFAULT_HOME {
        return Ok(true);
    }
    let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments/leasehold-operator");
    let deployment = known(api.find(&path).await)?;
    Ok(deployment.seen().is_some_and(Option::is_some))
}

/// Reads a session by the name that an object has for it.
pub(super) async fn session_of(
    api: &Api,
    namespace: &str,
    name: &str,
) -> Result<Option<SessionSeen>, Failure> {
    if !is_object_name(name) {
        return Ok(None);
    }
    let session = api
        .find(&format!("{}/{name}", sessions(Some(namespace))))
        .await?;
    Ok(session.and_then(|object| SessionSeen::read(&object).ok()))
}
