//! The label of the leader's pod, and a Service that selects it: never two pods, whichever process crashes.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use reqwest::Method;
use serde_json::{Value, json};

use crate::election::{candidate, lock_of, until_all_run};
use crate::harness::{
    Cluster, ControllerManager, Membership, Namespace, Operator, PATIENCE, Pod, Sidecar, TakeOver,
    eventually, now,
};
use crate::support::BINARY;

const ELECTION: &str = "jobs";
const LABEL: &str = "leasehold.dev/leader-jobs";
const CANDIDATES: usize = 3;
const CHANGES: usize = 20;
const TTL_SECONDS: u64 = 5;
const OPERATOR: &[&str] = &["--leader-labels", "--session-ttl", "5"];
const LIMIT: Duration = PATIENCE;
/// The steps of moving a label that failed, or were not answered in time.
const FAILED: &str = r#"leasehold_operator_reconciles_total{kind="label",outcome="failed"}"#;

/// A pod that has the label is one.
fn labelled(pod: &Value) -> Vec<String> {
    let has = pod["metadata"]["labels"][LABEL] == "true";
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    has.then(|| name.to_owned()).into_iter().collect()
}

async fn make_service(namespace: &Namespace) -> Result<()> {
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "leader"},
        "spec": {"selector": {LABEL: "true"}, "ports": [{"port": 80}]}});
    let path = format!("/api/v1/namespaces/{}/services", namespace.name);
    let request = http::Request::post(path)
        .header("content-type", "application/json")
        .body(service.to_string().into_bytes())?;
    namespace.client.request::<Value>(request).await?;
    Ok(())
}

/// A lead.
struct Term {
    leader: String,
    token: u64,
}

impl Term {
    /// The one that there is, if it came after the one with this token.
    async fn after(namespace: &Namespace, token: u64) -> Option<Self> {
        let status = lock_of(namespace, ELECTION).await.ok()?["status"].take();
        let term = Self {
            leader: status["holder"]["pod"].as_str()?.to_owned(),
            token: status["token"].as_u64()?,
        };
        (term.token > token).then_some(term)
    }
}

/// Waits until another lead has begun.
async fn until_led(namespace: &Namespace, token: u64) -> Result<Term> {
    let what = format!("a lead after {token}");
    eventually(&what, LIMIT, async || Term::after(namespace, token).await).await
}

/// How a lead ends.
#[derive(Clone, Copy, Debug)]
enum End {
    StepsDown,
    Terminated,
    Killed,
}

/// The candidates' pods, and what runs in each.
struct Candidates {
    pods: Vec<Pod>,
    running: BTreeMap<String, Sidecar>,
}

impl Candidates {
    async fn make(namespace: &Namespace) -> Result<Self> {
        let mut pods = Vec::new();
        for number in 0..CANDIDATES {
            pods.push(namespace.pod(&format!("c{number}")).await?);
        }
        namespace.make_ready(&pods).await?;
        Ok(Self {
            pods,
            running: BTreeMap::new(),
        })
    }

    async fn start(&mut self) -> Result<()> {
        for pod in &self.pods {
            if !self.running.contains_key(&pod.name) {
                let started = candidate(pod, ELECTION, TTL_SECONDS).await?;
                self.running.insert(pod.name.clone(), started);
            }
        }
        Ok(())
    }

    /// The leader's lead ends; none where it leads no more, because a store that stalled has cost it the
    /// lead.
    async fn end(&mut self, leader: &str, end: End) -> Result<Option<Ended>> {
        let sidecar = self.running.get(leader).context("it leads, so it runs")?;
        let path = format!("/v1/elections/{ELECTION}");
        let told = sidecar.call(Method::GET, &path, None).await?.json;
        let Some(lease) = told["leaseId"].as_str() else {
            return Ok(None);
        };
        match end {
            End::StepsDown => {
                let released = sidecar.release(lease).await?;
                if released.status == 410 {
                    return Ok(None);
                }
                ensure!([204, 202].contains(&released.status), "{released:?}");
                return Ok(Some(Ended(None)));
            }
            End::Terminated => sidecar.sigterm()?,
            End::Killed => sidecar.kill9()?,
        }
        Ok(Some(Ended(self.running.remove(leader))))
    }
}

/// What a lead ran in, if that ended with it.
struct Ended(Option<Sidecar>);

/// What is watched throughout: the pods with the label, and the pods behind the Service.
struct Watched {
    labels: Membership,
    service: Membership,
}

impl Watched {
    async fn follow(namespace: &Namespace) -> Result<Self> {
        let name = &namespace.name;
        let pods = format!("/api/v1/namespaces/{name}/pods?watch=true");
        Ok(Self {
            labels: Membership::follow(namespace, &pods, labelled).await?,
            service: Membership::of_service(namespace, "leader").await?,
        })
    }

    /// Waits until the only leader has the label and is alone behind the Service, in a lead after the one with this
    /// token. The leader is read each time: a lead may end for another reason.
    async fn until_settled(&self, namespace: &Namespace, token: u64) -> Result<Term> {
        let what = format!("a lead after {token}, its label and its endpoint");
        eventually(&what, LIMIT, async || {
            let term = Term::after(namespace, token).await?;
            let is_alone = |members: &Membership| members.is_only(&term.leader);
            (is_alone(&self.labels) && is_alone(&self.service)).then_some(term)
        })
        .await
    }

    /// Each write of an operator to a pod must have changed the label. One that was not answered in time may have
    /// been applied, and is repeated: the operators count failures.
    fn check(&self, namespace: &Namespace, operators: &[Pod], failed: f64) -> Result<()> {
        self.service.checked()?;
        let changed = self.labels.checked()?.len() - 1;
        ensure!(changed > 2 * CHANGES, "the watch must have seen it all");
        let served = namespace.cluster.control_plane().served()?.into_iter();
        let pods = format!("/namespaces/{}/pods/", namespace.name);
        let of_pods = served.filter(|one| one.verb == "patch" && one.uri.contains(&pods));
        let is_operator = |uid: &str| operators.iter().any(|pod| pod.uid == uid);
        let writes = of_pods.filter(|one| is_operator(&one.pod_uid)).count();
        let in_vain = writes.checked_sub(changed).context("a change is a write")?;
        ensure!(
            f64::from(u32::try_from(in_vain)?) <= failed,
            "{writes} writes for {changed} changes, and {failed} failed"
        );
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn service_for_the_leader_never_has_two_endpoints() -> Result<()> {
    let cluster = Cluster::fresh(TakeOver::Strict).await?;
    cluster.allow_leader_labels().await?;
    let _controllers = ControllerManager::start(cluster.control_plane())?;
    let operators = [
        cluster.operator_pod("op-0").await?,
        cluster.operator_pod("op-1").await?,
    ];
    let mut operator = Operator::start(BINARY, &operators[0], OPERATOR).await?;
    operator.until_active().await?;

    let namespace = cluster.namespace("leader-label").await?;
    let mut candidates = Candidates::make(&namespace).await?;
    make_service(&namespace).await?;
    let watched = Watched::follow(&namespace).await?;
    candidates.start().await?;
    let mut failed = 0.0;
    let ends = [End::StepsDown, End::Terminated, End::Killed];
    for (number, end) in ends.into_iter().cycle().take(CHANGES).enumerate() {
        until_all_run(&namespace, ELECTION, CANDIDATES).await?;
        let is_operators_end = number == CHANGES / 2;
        let (before, Ended(ended)) = loop {
            let term = watched.until_settled(&namespace, 0).await?;
            if is_operators_end {
                failed += operator.metric(FAILED).await?;
                // Unfinished work is done by the next one.
                operator.kill9()?;
            }
            let ended = candidates.end(&term.leader, end).await?;
            if is_operators_end {
                operator = Operator::start(BINARY, &operators[1], OPERATOR).await?;
            }
            if let Some(ended) = ended {
                break (term, ended);
            }
        };
        until_led(&namespace, before.token).await?;
        let led = now();
        let next = watched.until_settled(&namespace, before.token).await?;
        println!(
            "measured: {number}: {end:?}, {} to {}: label and endpoint after {:?}",
            before.leader,
            next.leader,
            now().since(led)
        );
        if let Some(ended) = ended {
            ended.ended().await?;
        }
        candidates.start().await?;
    }
    failed += operator.metric(FAILED).await?;
    watched.check(&namespace, &operators, failed)
}
