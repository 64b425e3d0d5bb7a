//! Reads what the checks need. Every missing right makes a part unknown and no more.

use serde_json::{Value, json};

use super::Args;
use super::accounts::accounts;
use super::objects::{find, list, patiently};
use super::shipped::shipped;
use super::webhook::webhook;
use crate::cli::kubectl::api::{Api, ByName, encoded, locks, sessions};
use crate::cli::kubectl::failure::Failure;
use crate::cli::kubectl::fetch;
use crate::crd::GROUP;
use crate::kubectl::check::containers::name;
use crate::kubectl::check::findings::{DEFAULT_HOME, DryRun, Findings, PodFindings, Shipped};
use crate::kubectl::world::{Known, OperatorSeen, SessionSeen, World};

pub(super) const ADMISSION: &str = "/apis/admissionregistration.k8s.io/v1";
const FLOW_CONTROL: &str = "/apis/flowcontrol.apiserver.k8s.io/v1";
pub(super) const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
pub(super) const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
/// The names of the chart's objects that have no namespace.
pub(super) const INJECTOR: &str = "leasehold-injector";
pub(super) const ROLE: &str = "leasehold-sidecar";
const CONFIG_MAP: &str = "leasehold-injection";
const OURS: &str = "leasehold";
/// The labels of the operator's Deployment.
pub(super) const OPERATOR: &str =
    "app.kubernetes.io/name=leasehold,app.kubernetes.io/component=operator";
/// The lock of the dry run, which is never created.
const DRY_RUN: &str = "leasehold-check";

/// Reads an installation.
pub(super) async fn findings(api: &Api, args: &Args, server: Value) -> Result<Findings, Failure> {
    let own = shipped()?;
    let namespace = api.namespace.clone();
    let mut definitions = Vec::new();
    for definition in &own.definitions {
        definitions.push(find(api, &format!("{DEFINITIONS}/{}", name(definition))).await?);
    }
    let configuration = find(
        api,
        &format!("{ADMISSION}/mutatingwebhookconfigurations/{INJECTOR}"),
    )
    .await?;
    let operators = operators(api, args, &configuration).await?;
    let home = home(args, &operators, &configuration);
    let webhook = webhook(api, &home, configuration, &operators).await?;
    let injection = injection(api, &home).await?;
    let pods = list(api, &format!("/api/v1/namespaces/{namespace}/pods"), "").await?;
    let pod = match &args.pod {
        None => None,
        Some(pod) => Some(read_pod(api, pod).await?),
    };
    let sessions = read_sessions(api).await?;
    // What follows takes time, in which live sessions would seem to be silent.
    let now = api.now()?;
    Ok(Findings {
        leader: leader(api).await?,
        policies: policies(api).await?,
        bindings: list(
            api,
            &format!("{ADMISSION}/validatingadmissionpolicybindings"),
            "",
        )
        .await?,
        namespace_object: find(api, &format!("/api/v1/namespaces/{namespace}")).await?,
        role: find(api, &format!("{ROLES}/{ROLE}")).await?,
        accounts: accounts(api, args, &own, &pods, pod.as_ref()).await?,
        flow_control: flow_control(api, &own).await?,
        dry_run: dry_run(api).await?,
        now,
        server,
        own,
        definitions,
        operators,
        injection,
        webhook,
        namespace,
        pods,
        sessions,
        pod,
    })
}

/// Reads the Deployments of operators: in all namespaces or, if the user may not list these, where one must be.
async fn operators(
    api: &Api,
    args: &Args,
    configuration: &Known<Option<Value>>,
) -> Result<Known<Vec<Value>>, Failure> {
    let query = format!("labelSelector={}", encoded(OPERATOR));
    if args.operator_namespace.is_none() {
        let everywhere = list(api, "/apis/apps/v1/deployments", &query).await?;
        if everywhere.seen().is_some() {
            return Ok(everywhere);
        }
    }
    let home = home(args, &Known::Seen(Vec::new()), configuration);
    list(
        api,
        &format!("/apis/apps/v1/namespaces/{home}/deployments"),
        &query,
    )
    .await
}

/// Returns the namespace of the release, as far as it is known.
fn home(
    args: &Args,
    operators: &Known<Vec<Value>>,
    configuration: &Known<Option<Value>>,
) -> String {
    if let Some(named) = &args.operator_namespace {
        return named.clone();
    }
    let operator = operators.seen().and_then(|all| all.first());
    let operator = operator.and_then(|one| one["metadata"]["namespace"].as_str());
    let configuration = configuration.seen().and_then(Option::as_ref);
    let service = configuration
        .and_then(|one| one["webhooks"][0]["clientConfig"]["service"]["namespace"].as_str());
    operator.or(service).unwrap_or(DEFAULT_HOME).to_owned()
}

async fn injection(api: &Api, home: &str) -> Result<Known<Option<Value>>, Failure> {
    let path = format!("/api/v1/namespaces/{home}/configmaps/{CONFIG_MAP}");
    Ok(match find(api, &path).await? {
        Known::Seen(Some(object)) => {
            let text = object["data"]["injection.yaml"]
                .as_str()
                .unwrap_or_default();
            // An operator would not start with a file that cannot be read, and the checks of it say so.
            Known::Seen(serde_yaml::from_str(text).ok())
        }
        Known::Seen(None) => Known::Seen(None),
        Known::Unknown(right) => Known::Unknown(right),
    })
}

pub(super) async fn policies(api: &Api) -> Result<Known<Vec<Value>>, Failure> {
    let all = list(api, &format!("{ADMISSION}/validatingadmissionpolicies"), "").await?;
    Ok(match all {
        Known::Seen(mut policies) => {
            policies.retain(|policy| name(policy).starts_with(OURS));
            Known::Seen(policies)
        }
        unknown @ Known::Unknown(_) => unknown,
    })
}

async fn leader(api: &Api) -> Result<Known<OperatorSeen>, Failure> {
    let mut world = World {
        now: api.now()?,
        locks: Vec::new(),
        sessions: Known::Seen(ByName::new()),
        pods: ByName::new(),
        nodes: std::collections::BTreeMap::new(),
        operator: Known::Seen(OperatorSeen::Absent("no locks can exist".to_owned())),
    };
    match patiently(async || fetch::operator(api, &mut world).await).await {
        Ok(()) | Err(Failure::NotInstalled) => Ok(world.operator),
        Err(error) => Err(error),
    }
}

async fn read_sessions(api: &Api) -> Result<Known<Vec<SessionSeen>>, Failure> {
    let objects = list(api, &sessions(Some(&api.namespace)), "").await?;
    Ok(match objects {
        Known::Seen(objects) => {
            // A session that cannot be read is the operator's concern: it reports it.
            let read = objects
                .iter()
                .filter_map(|object| SessionSeen::read(object).ok());
            Known::Seen(read.collect())
        }
        Known::Unknown(right) => Known::Unknown(right),
    })
}

async fn read_pod(api: &Api, pod: &str) -> Result<PodFindings, Failure> {
    let namespace = &api.namespace;
    let query = encoded(&format!(
        "involvedObject.kind=Pod,involvedObject.name={pod}"
    ));
    let events = format!("/api/v1/namespaces/{namespace}/events");
    Ok(PodFindings {
        name: pod.to_owned(),
        object: find(
            api,
            &format!("/api/v1/namespaces/{namespace}/pods/{}", encoded(pod)),
        )
        .await?,
        events: list(api, &events, &format!("fieldSelector={query}")).await?,
    })
}

async fn flow_control(api: &Api, own: &Shipped) -> Result<Known<Vec<Value>>, Failure> {
    let mut found = Vec::new();
    for wanted in &own.flow_control {
        let kind = wanted["kind"].as_str().unwrap_or_default().to_lowercase();
        match find(api, &format!("{FLOW_CONTROL}/{kind}s/{}", name(wanted))).await? {
            Known::Unknown(right) => return Ok(Known::Unknown(right)),
            Known::Seen(object) => found.extend(object),
        }
    }
    Ok(Known::Seen(found))
}

/// Asks the API server whether it would create a lock: the user's rights, the definition, policies and quotas.
async fn dry_run(api: &Api) -> Result<DryRun, Failure> {
    let path = format!("{}?dryRun=All", locks(Some(&api.namespace)));
    let lock = json!({
        "apiVersion": format!("{GROUP}/{}", crate::crd::VERSION), "kind": "DistributedLock",
        "metadata": {"name": DRY_RUN}, "spec": {"resource": DRY_RUN},
    });
    match patiently(async || api.post(&path, &lock).await).await {
        Ok(_) => Ok(DryRun::Accepted),
        Err(Failure::NotInstalled) => Ok(DryRun::NotServed),
        Err(Failure::Refused { reason, .. }) if reason == "AlreadyExists" => Ok(DryRun::Accepted),
        Err(Failure::Refused { message, .. } | Failure::NotFound(message)) => {
            Ok(DryRun::Refused(message))
        }
        Err(Failure::Forbidden { message, remedy }) => {
            let failure = Failure::Forbidden {
                message: message.clone(),
                remedy,
            };
            let right = failure.missing_right().filter(|right| right != "forbidden");
            Ok(right.map_or(DryRun::Refused(message), DryRun::NotAllowed))
        }
        Err(error) => Err(error),
    }
}
