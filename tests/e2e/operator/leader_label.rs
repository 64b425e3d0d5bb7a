//! The label of the pod that leads, and a Service that selects it: never two, whoever dies.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use reqwest::Method;
use serde_json::{Value, json};

use crate::election::{candidate, lock_of, until_all_run};
use crate::harness::{
    Cluster, ControllerManager, Membership, Namespace, Operator, Pod, Sidecar, TakeOver,
    eventually, now,
};
use crate::support::BINARY;

const ELECTION: &str = "jobs";
const LABEL: &str = "leasehold.dev/leader-jobs";
const CANDIDATES: usize = 3;
const CHANGES: usize = 20;
const TTL_SECONDS: u64 = 5;
const OPERATOR: &[&str] = &["--leader-labels", "--session-ttl", "5"];
const LIMIT: Duration = Duration::from_secs(60);

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

/// Who leads, if it is another one than before.
async fn until_led(namespace: &Namespace, before: &str) -> Result<String> {
    let what = format!("somebody else than {before} to lead");
    eventually(&what, LIMIT, async || {
        let lock = lock_of(namespace, ELECTION).await.ok()?;
        let leader = lock["status"]["holder"]["pod"].as_str()?;
        (leader != before).then(|| leader.to_owned())
    })
    .await
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

    /// The leader's lead ends. Gives what it ran in, if that ended too.
    async fn end(&mut self, leader: &str, end: End) -> Result<Option<Sidecar>> {
        let sidecar = self.running.get(leader).context("it leads, so it runs")?;
        match end {
            End::StepsDown => {
                let path = format!("/v1/elections/{ELECTION}");
                let told = sidecar.call(Method::GET, &path, None).await?.json;
                let lease = told["leaseId"].as_str().context("it leads")?;
                sidecar.release(lease).await?.expect(204)?;
                return Ok(None);
            }
            End::Terminated => sidecar.sigterm()?,
            End::Killed => sidecar.kill9()?,
        }
        Ok(self.running.remove(leader))
    }
}

/// What is looked at all the time: who has the label, and who is behind the Service.
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

    /// Gives how long each took.
    async fn until_only(&self, leader: &str) -> Result<(Duration, Duration)> {
        let led = now();
        self.labels.until_only(leader).await?;
        let labelled = now().since(led);
        self.service.until_only(leader).await?;
        Ok((labelled, now().since(led)))
    }

    /// Each write of an operator to a pod must have changed who has the label.
    fn check(&self, namespace: &Namespace, operators: &[Pod]) -> Result<()> {
        self.service.checked()?;
        let changed = self.labels.checked()?.len() - 1;
        ensure!(changed > 2 * CHANGES, "the watch must have seen it all");
        let served = namespace.cluster.control_plane().served()?.into_iter();
        let pods = format!("/namespaces/{}/pods/", namespace.name);
        let of_pods = served.filter(|one| one.verb == "patch" && one.uri.contains(&pods));
        let is_operator = |uid: &str| operators.iter().any(|pod| pod.uid == uid);
        let writes = of_pods.filter(|one| is_operator(&one.pod_uid)).count();
        ensure!(writes == changed, "{writes} writes for {changed} changes");
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_selects_the_leader_never_has_two_endpoints() -> Result<()> {
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
    let mut leader = until_led(&namespace, "").await?;
    let ends = [End::StepsDown, End::Terminated, End::Killed];
    for (number, end) in ends.into_iter().cycle().take(CHANGES).enumerate() {
        until_all_run(&namespace, ELECTION, CANDIDATES).await?;
        watched.until_only(&leader).await?;
        let is_operators_end = number == CHANGES / 2;
        if is_operators_end {
            // What it did not come to is done by the next one.
            operator.kill9()?;
        }
        let ended = candidates.end(&leader, end).await?;
        if is_operators_end {
            operator = Operator::start(BINARY, &operators[1], OPERATOR).await?;
        }
        let before = leader;
        leader = until_led(&namespace, &before).await?;
        let (label, endpoint) = watched.until_only(&leader).await?;
        println!(
            "measured: {number}: {end:?}, {before} to {leader}: label {label:?}, endpoint {endpoint:?}"
        );
        if let Some(ended) = ended {
            ended.ended().await?;
        }
        candidates.start().await?;
    }
    watched.check(&namespace, &operators)
}
