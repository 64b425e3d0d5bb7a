//! A cluster whose API server calls our operators for each new pod.
//!
//! No node is there, so no Service is: the configuration names a URL of this process, which passes
//! connections on to the replicas by turns, as kube-proxy would.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::ByteString;
use kube::Client;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::LIMIT;
use crate::harness::{
    Cluster, Namespace, OPERATOR_NAMESPACE, Operator, PATIENCE, TakeOver, apply, eventually,
};
use crate::support::BINARY;

pub(super) const NINETY_DAYS: u32 = 90 * 24 * 60 * 60;
pub(super) const NOT_AFTER: &str = "leasehold_webhook_certificate_not_after_timestamp_seconds";
pub(super) const NOT_BEFORE: &str = "leasehold_webhook_certificate_not_before_timestamp_seconds";
const REVIEWS: &str = "leasehold_webhook_reviews_total{outcome=\"injected\"}";
const CONFIGURATION: &str =
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/leasehold-injector";

/// Where the replicas listen, by the name of their pods.
type Backends = Arc<Mutex<Vec<(String, String)>>>;

pub(super) struct Fixture {
    cluster: Arc<Cluster>,
    namespace: Namespace,
    client: Client,
    backends: Backends,
    _front: JoinHandle<()>,
}

/// A pod that asks, with one annotation.
pub(super) fn asking(annotation: &str, value: &str) -> Value {
    json!({
        "metadata": {
            "generateName": "app-", "labels": {"leasehold.dev/inject": "true"},
            "annotations": {format!("config.leasehold.dev/{annotation}"): value},
        },
        "spec": {"containers": [{"name": "app", "image": "app"}]},
    })
}

impl Fixture {
    pub(super) async fn new() -> Result<Self> {
        let cluster = Cluster::of_its_own(TakeOver::Peer).await?;
        let namespace = cluster.namespace("asks").await?;
        let client = cluster.admin().await?;
        let labelled = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {
            "name": namespace.name, "labels": {"leasehold.dev/injection": "on-request"}}});
        apply(&client, &labelled).await?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("https://{}/inject", listener.local_addr()?);
        let backends = Backends::default();
        let front = tokio::spawn(pass_on(listener, backends.clone()));
        let webhook = |name: &str, policy: &str| {
            json!({
                "name": name, "failurePolicy": policy, "clientConfig": {"url": url},
                "namespaceSelector": {"matchLabels": {"leasehold.dev/injection": "on-request"}},
                "objectSelector": {"matchLabels": {"leasehold.dev/inject": "true"}},
                "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"],
                    "resources": ["pods"], "scope": "Namespaced"}],
                "sideEffects": "None", "reinvocationPolicy": "IfNeeded", "timeoutSeconds": 5,
                "admissionReviewVersions": ["v1"],
            })
        };
        let configuration = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": "leasehold-injector"},
            "webhooks": [webhook("asked.leasehold.dev", "Fail"),
                webhook("enabled.leasehold.dev", "Ignore")],
        });
        apply(&client, &configuration).await?;
        Ok(Self {
            cluster,
            namespace,
            client,
            backends,
            _front: front,
        })
    }

    /// A directory of this test's own.
    pub(super) fn directory(&self, name: &str) -> Result<PathBuf> {
        let directory = self.cluster.control_plane().directory().join(name);
        std::fs::create_dir_all(&directory)?;
        Ok(directory)
    }

    /// A replica that makes certificates itself; it is ready, and called.
    pub(super) async fn operator(&self, name: &str, life_seconds: u32) -> Result<Operator> {
        let life = life_seconds.to_string();
        let own = [
            "--webhook-service",
            "leasehold-webhook",
            "--webhook-configuration",
            "leasehold-injector",
            "--webhook-secret",
            "leasehold-webhook-cert",
            "--webhook-name",
            "127.0.0.1",
            "--webhook-cert-seconds",
            &life,
        ];
        self.operator_with(name, &own).await
    }

    /// A replica with these flags about its certificate.
    pub(super) async fn operator_with(&self, name: &str, flags: &[&str]) -> Result<Operator> {
        let file = self.directory("injection")?.join("injection.yaml");
        std::fs::write(&file, "image: registry.example/leasehold:test\n")?;
        let file = file.display().to_string();
        let pod = self
            .cluster
            .operator_pod(&format!("operator-{name}"))
            .await?;
        let always = [
            "--webhook-listen",
            "127.0.0.1:0",
            "--injection-config",
            &file,
        ];
        let operator = Operator::start(BINARY, &pod, &[&always, flags].concat()).await?;
        let address = operator.address("webhook").context("no webhook")?;
        eventually("the operator to be ready", LIMIT, async || {
            let (status, _) = operator.admin("/readyz").await.ok()?;
            (status == 200).then_some(())
        })
        .await?;
        self.backends().push((pod.name.clone(), address));
        Ok(operator)
    }

    fn backends(&self) -> std::sync::MutexGuard<'_, Vec<(String, String)>> {
        self.backends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// No connections go there any more. Gives where they went before.
    pub(super) fn leave_out(&self, operator: &Operator) -> Vec<(String, String)> {
        let mut backends = self.backends();
        let before = backends.clone();
        backends.retain(|(name, _)| *name != operator.pod.name);
        before
    }

    /// Connections go to these.
    pub(super) fn send_to(&self, backends: Vec<(String, String)>) {
        *self.backends() = backends;
    }

    /// Makes a pod, for a dry run; gives it as it would be.
    pub(super) async fn make(&self, pod: &Value) -> Result<Value> {
        make(&self.client, &self.namespace.name, pod).await
    }

    pub(super) async fn make_pod(&self) -> Result<Value> {
        self.make(&asking("log-level", "info")).await
    }

    /// Makes pods until one was made.
    pub(super) async fn until_made(&self) -> Result<()> {
        eventually("a pod to be made", LIMIT, async || {
            self.make_pod().await.ok().map(drop)
        })
        .await
    }

    /// Makes one pod after the other.
    pub(super) fn make_pods(&self) -> Pods {
        let (client, namespace) = (self.client.clone(), self.namespace.name.clone());
        let (stop, made) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicUsize::new(0)),
        );
        let (stopped, count) = (stop.clone(), made.clone());
        let task = tokio::spawn(async move {
            let pod = asking("log-level", "info");
            while !stopped.load(Ordering::Relaxed) {
                let made = make(&client, &namespace, &pod).await?;
                let first = &made["spec"]["initContainers"][0]["name"];
                ensure!(first == "leasehold", "a pod without its sidecar: {made:#}");
                count.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            Ok(())
        });
        Pods { task, stop, made }
    }

    pub(super) async fn secret(&self) -> Result<Option<Value>> {
        match get(&self.client, &secret_path()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            found => Ok(Some(found?)),
        }
    }

    pub(super) async fn delete_secret(&self) -> Result<()> {
        let request = http::Request::delete(secret_path()).body(vec![])?;
        let _deleted: Value = self.client.request(request).await?;
        Ok(())
    }

    /// Puts nonsense in the place of the key.
    pub(super) async fn damage_secret(&self) -> Result<()> {
        let damage = json!({"data": {"tls.key": ByteString(b"nonsense".to_vec())}});
        self.patch(&secret_path(), "application/merge-patch+json", &damage)
            .await
    }

    /// What each webhook trusts.
    pub(super) async fn bundles(&self) -> Result<Vec<Vec<u8>>> {
        let configuration = get(&self.client, CONFIGURATION).await?;
        let webhooks = configuration["webhooks"]
            .as_array()
            .context("no webhooks")?;
        let each = webhooks.iter().map(|webhook| {
            let bundle = webhook["clientConfig"]["caBundle"].clone();
            serde_json::from_value::<ByteString>(bundle)
                .unwrap_or_default()
                .0
        });
        Ok(each.collect())
    }

    /// Replaces what both webhooks trust.
    pub(super) async fn set_bundles(&self, bundle: &[u8]) -> Result<()> {
        let set = |place| {
            json!({"op": "add", "path": format!("/webhooks/{place}/clientConfig/caBundle"),
                "value": ByteString(bundle.to_vec())})
        };
        let patch = json!([set(0), set(1)]);
        self.patch(CONFIGURATION, "application/json-patch+json", &patch)
            .await
    }

    async fn patch(&self, object: &str, kind: &str, patch: &Value) -> Result<()> {
        let request = http::Request::patch(object)
            .header("content-type", kind)
            .body(patch.to_string().into_bytes())?;
        let _patched: Value = self.client.request(request).await?;
        Ok(())
    }

    /// Waits until all of them serve the one in the Secret, which is another than `before`, and only
    /// then trust no more than that; gives it.
    pub(super) async fn until_served_by_all(
        &self,
        operators: &[&Operator],
        before: Option<&str>,
    ) -> Result<String> {
        eventually("all to serve another certificate", LIMIT * 2, async || {
            let secret = self.secret().await.ok()??;
            let certificate = secret["data"]["tls.crt"].as_str()?;
            if before == Some(certificate) {
                return None;
            }
            let pem: ByteString = serde_json::from_value(secret["data"]["tls.crt"].clone()).ok()?;
            let [read] = &leasehold::webhook::certs::authorities(&pem.0)?[..] else {
                return None;
            };
            for operator in operators {
                let not_after = operator.metric(NOT_AFTER).await.ok()?;
                let expected = f64::from(u32::try_from(read.not_after).ok()?);
                if (not_after - expected).abs() > 0.5 {
                    return None;
                }
            }
            Some(certificate.to_owned())
        })
        .await
    }

    /// Waits until one has been asked this many times more.
    pub(super) async fn until_reviewed_by(&self, operator: &Operator, more: u32) -> Result<()> {
        let before = operator.metric(REVIEWS).await?;
        eventually("a replica to be asked", LIMIT, async || {
            let reviews = operator.metric(REVIEWS).await.ok()?;
            (reviews >= before + f64::from(more)).then_some(())
        })
        .await
    }
}

/// Pods that are made one after the other.
pub(super) struct Pods {
    task: JoinHandle<Result<()>>,
    stop: Arc<AtomicBool>,
    made: Arc<AtomicUsize>,
}

impl Pods {
    /// Waits until this many more were created.
    pub(super) async fn until_more_are_made(&self, count: usize) -> Result<()> {
        let enough = self.made.load(Ordering::Relaxed) + count;
        eventually("more pods to be made", PATIENCE, async || {
            let is_over = self.task.is_finished();
            (is_over || self.made.load(Ordering::Relaxed) >= enough).then_some(())
        })
        .await
    }

    /// Ends it; how many were made. An error where one was refused.
    pub(super) async fn end(self) -> Result<usize> {
        self.stop.store(true, Ordering::Relaxed);
        let made = self.made.load(Ordering::Relaxed);
        let ended = self.task.await?;
        ended.with_context(|| format!("the one after {made} was refused"))?;
        Ok(made)
    }
}

async fn get(client: &Client, path: &str) -> kube::Result<Value> {
    let request = http::Request::get(path).body(vec![]);
    client
        .request(request.map_err(kube::Error::HttpError)?)
        .await
}

async fn make(client: &Client, namespace: &str, pod: &Value) -> Result<Value> {
    let path = format!("/api/v1/namespaces/{namespace}/pods?dryRun=All&fieldValidation=Strict");
    let request = http::Request::post(path)
        .header("content-type", "application/json")
        .body(pod.to_string().into_bytes())?;
    Ok(client.request(request).await?)
}

fn secret_path() -> String {
    format!("/api/v1/namespaces/{OPERATOR_NAMESPACE}/secrets/leasehold-webhook-cert")
}

/// Passes each connection on to one of the replicas, by turns; one that is gone is passed over.
async fn pass_on(listener: TcpListener, backends: Backends) {
    let mut turn = 0_usize;
    while let Ok((mut from, _)) = listener.accept().await {
        turn += 1;
        let backends = backends.clone();
        tokio::spawn(async move {
            let mut to = connect(&backends, turn).await?;
            let _ended = tokio::io::copy_bidirectional(&mut from, &mut to).await;
            anyhow::Ok(())
        });
    }
}

async fn connect(backends: &Backends, turn: usize) -> Result<TcpStream> {
    let all = backends
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    for place in 0..all.len() {
        let (_, address) = &all[(turn + place) % all.len()];
        if let Ok(stream) = TcpStream::connect(address).await {
            return Ok(stream);
        }
    }
    bail!("no replica is there")
}
