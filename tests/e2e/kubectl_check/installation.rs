//! An installation of the chart, the plugin, and what kubelets and controllers would report.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leasehold::clock::{Clock as _, SystemClock};
use leasehold::webhook::certs::issue;
use serde_json::{Value, json};

use crate::chart::lifecycle::{APPS, make, namespace_with_locks, operator_of, until_bound};
use crate::chart::release::Release;
use crate::harness::{
    HelmVersion, KubeVersion, Namespace, OPERATOR_NAMESPACE, Operator, Output, Pod, Sidecar, apply,
    read_file, repository, until_policies_are_enforced,
};
use crate::support::sidecar;

/// The token floor of the installation.
pub(crate) const FLOOR: u64 = 0;
const DAY: i64 = 24 * 60 * 60;

/// The chart with a running operator, and a namespace with a pod that has a session.
pub(crate) struct Installation {
    pub(crate) release: Release,
    pub(crate) operator: Option<Operator>,
    pub(crate) apps: Namespace,
    _sidecar: Sidecar,
}

/// A cluster without anything of ours.
pub(crate) struct Bare(Release);

/// What the plugin printed with `-o json`.
pub(crate) struct Checked {
    success: bool,
    pub(crate) results: Vec<Value>,
}

impl Installation {
    pub(crate) async fn bare(kube: KubeVersion) -> Result<Bare> {
        Ok(Bare(Release::on(kube, HelmVersion::Four).await?))
    }

    pub(crate) async fn start(kube: KubeVersion) -> Result<Self> {
        let release = Release::on(kube, HelmVersion::Four).await?;
        release.install(&[]).await?;
        let objects = release.manifest().await?;
        let apps = namespace_with_locks(&release).await?;
        let operator = operator_of(&release, &objects).await?;
        until_bound(&release).await?;
        until_policies_are_enforced(&release.client).await?;
        for object in [
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "plain"}}),
            json!({"apiVersion": "v1", "kind": "ServiceAccount",
                "metadata": {"name": "worker", "namespace": "plain"}}),
            json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {"name": "leasehold-webhook", "namespace": OPERATOR_NAMESPACE,
                    "labels": {"kubernetes.io/service-name": "leasehold-webhook"}},
                "addressType": "IPv4", "ports": [{"port": 10250}],
                "endpoints": [{"addresses": ["10.244.0.9"], "conditions": {"ready": true}}]}),
        ] {
            make(&release.client, &object).await?;
        }
        make(&release.client, &pod_with_sidecar("injected", FLOOR)).await?;
        let pod = bound_pod(&release, &apps, "injected").await?;
        let sidecar = sidecar(&pod, 6).await?;
        // For longer than the test takes on a slow machine.
        let asked = json!({"resource": "held", "ownerId": "a", "ttlSeconds": 600});
        sidecar.acquire_with(&asked).await?.granted()?;
        crate::support::until_renewed(&apps, "held", 1).await?;
        let installation = Self {
            release,
            operator: Some(operator),
            apps,
            _sidecar: sidecar,
        };
        installation.report_operator(2).await?;
        installation.report_pod("injected", true).await?;
        Ok(installation)
    }

    /// Runs the plugin as the administrator.
    pub(crate) async fn plugin(&self, args: &[&str]) -> Result<Output> {
        plugin(&self.release, args).await
    }

    /// Checks the namespace of the pods, or another one that `args` name.
    pub(crate) async fn check(&self, args: &[&str]) -> Result<Checked> {
        let args = [&["check", "-o", "json"], args].concat();
        Checked::of(&self.plugin(&args).await?)
    }

    /// Runs kubectl as the administrator.
    pub(crate) async fn admin(&self, args: &[&str]) -> Result<String> {
        let admin = self.release.cluster.control_plane().admin();
        admin.kubectl(args).await?.ok()
    }

    pub(crate) async fn make(&self, object: &Value) -> Result<()> {
        make(&self.release.client, object).await
    }

    /// Applies a file of the chart.
    pub(crate) async fn apply(&self, file: &str) -> Result<()> {
        let file = repository("charts/leasehold/files").join(file);
        for object in read_file(&file)? {
            apply(&self.release.client, &object).await?;
        }
        Ok(())
    }

    /// What the controller of Deployments would report.
    pub(crate) async fn report_operator(&self, ready: u32) -> Result<()> {
        let status = json!({"status": {"replicas": 2, "updatedReplicas": 2, "readyReplicas": ready,
            "availableReplicas": ready, "observedGeneration": 1}});
        let args = [
            "-n",
            OPERATOR_NAMESPACE,
            "patch",
            "deployment",
            "leasehold-operator",
            "--subresource=status",
            "--type=merge",
            "-p",
            &status.to_string(),
        ];
        self.admin(&args).await.map(drop)
    }

    /// What a kubelet would report about a pod's sidecar.
    pub(crate) async fn report_pod(&self, pod: &str, ready: bool) -> Result<()> {
        let state = if ready {
            json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}})
        } else {
            json!({"waiting": {"reason": "CrashLoopBackOff"}})
        };
        let status = json!({"status": {"phase": "Running", "initContainerStatuses": [{"name": "leasehold",
            "ready": ready, "restartCount": 0, "image": "x", "imageID": "x", "state": state}]}});
        let status = status.to_string();
        let args = [
            "patch",
            "pod",
            pod,
            "--subresource=status",
            "--type=merge",
            "-p",
            &status,
        ];
        self.apps.kubectl(&args).await?.ok().map(drop)
    }

    /// Replaces the webhook's certificate by one that expires in that many days.
    pub(crate) async fn replace_certificate(&self, days: i64) -> Result<()> {
        let now = SystemClock.wall().0.div_euclid(1_000_000);
        let names = [format!("leasehold-webhook.{OPERATOR_NAMESPACE}.svc")];
        let life = Duration::from_secs(10 * DAY.unsigned_abs());
        let files = issue(&names, life, now + (days - 10) * DAY)?;
        let text = |file: Vec<u8>| String::from_utf8(file);
        let secret = json!({"stringData": {"tls.crt": text(files.certificate)?, "tls.key": text(files.key)?,
            "ca.crt": text(files.authority)?}});
        let secret = secret.to_string();
        let args = [
            "-n",
            OPERATOR_NAMESPACE,
            "patch",
            "secret",
            "leasehold-webhook-cert",
            "--type=merge",
            "-p",
            &secret,
        ];
        self.admin(&args).await.map(drop)
    }
}

impl Bare {
    pub(crate) async fn plugin(&self, args: &[&str]) -> Result<Output> {
        plugin(&self.0, args).await
    }
}

impl Checked {
    pub(crate) fn of(output: &Output) -> Result<Self> {
        let results = serde_json::from_str(&output.stdout);
        Ok(Self {
            success: output.success,
            results: results.with_context(|| format!("{}{}", output.stdout, output.stderr))?,
        })
    }

    fn result(&self, id: &str) -> Option<&Value> {
        self.results.iter().find(|result| result["id"] == id)
    }

    pub(crate) fn status(&self, id: &str) -> Option<&str> {
        self.result(id)?["status"].as_str()
    }

    pub(crate) fn fix(&self, id: &str) -> Result<&str> {
        let result = self
            .result(id)
            .with_context(|| format!("{id} is missing"))?;
        result["fix"].as_str().context("a fix")
    }

    /// Only these have failed, and the exit code says whether any has. Each that is not well has a fix and a link.
    pub(crate) fn has_failed(&self, ids: &[&str]) -> Result<()> {
        let with_status = |status: &'static str| {
            let results = self.results.iter();
            results.filter(move |result| result["status"] == status)
        };
        let failed: BTreeSet<_> = with_status("failed")
            .filter_map(|result| result["id"].as_str())
            .collect();
        ensure!(
            failed == ids.iter().copied().collect(),
            "{failed:?} and not {ids:?}: {:#?}",
            self.results
        );
        ensure!(self.success == ids.is_empty(), "the exit code");
        for result in with_status("failed").chain(with_status("warning")) {
            ensure!(
                result["fix"].is_string() && result["link"].is_string(),
                "{result:#}"
            );
        }
        Ok(())
    }

    pub(crate) fn says(&self, id: &str, words: &str) -> Result<()> {
        let result = self
            .result(id)
            .with_context(|| format!("{id} is missing"))?;
        let message = result["message"].as_str().unwrap_or_default();
        ensure!(message.contains(words), "{id} says: {message}");
        Ok(())
    }
}

async fn plugin(release: &Release, args: &[&str]) -> Result<Output> {
    let file = release.cluster.control_plane().admin().path.clone();
    let file = file.to_str().context("a path")?;
    let namespace = if args.contains(&"--namespace") {
        &[][..]
    } else {
        &["--namespace", APPS][..]
    };
    run(file, &[args, namespace].concat()).await
}

/// Runs the plugin with a kubeconfig.
pub(crate) async fn run(kubeconfig: &str, args: &[&str]) -> Result<Output> {
    let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_kubectl-leasehold"))
        .args(["--kubeconfig", kubeconfig])
        .args(args)
        .stdin(std::process::Stdio::null())
        .kill_on_drop(true)
        .output()
        .await?;
    Ok(Output::of(
        format!("kubectl-leasehold {}", args.join(" ")),
        &output,
    ))
}

/// A pod as the webhook would have made it, as far as the checks see it.
pub(crate) fn pod_with_sidecar(name: &str, floor: u64) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": APPS, "labels": {"leasehold.dev/injected": "true"},
            "annotations": {"leasehold.dev/sidecar-version": env!("CARGO_PKG_VERSION")}},
        "spec": {"serviceAccountName": "app", "containers": [{"name": "app", "image": "app"}],
            "initContainers": [{"name": "leasehold", "image": "leasehold", "args": ["sidecar"],
                "restartPolicy": "Always", "env": [
                    {"name": "LEASEHOLD_TOKEN_FLOOR", "value": floor.to_string()},
                    {"name": "LEASEHOLD_TAKE_OVER", "value": "strict"}]}]}})
}

/// The access of a pod that exists.
async fn bound_pod(release: &Release, namespace: &Namespace, name: &str) -> Result<Pod> {
    let object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace.name}});
    let uid = release.live(&object).await?["metadata"]["uid"]
        .as_str()
        .context("a uid")?
        .to_owned();
    let bound = json!({"kind": "Pod", "apiVersion": "v1", "name": name, "uid": uid});
    let token = namespace.token("app", Some(bound)).await?;
    let kubeconfig = namespace.kubeconfig(name, &token)?;
    let pod = Pod {
        name: name.to_owned(),
        uid,
        namespace: namespace.name.clone(),
        token,
        kubeconfig,
    };
    crate::harness::eventually("the pod's rights", crate::harness::PATIENCE, async || {
        pod.may("create", "distributedlocks")
            .await
            .ok()?
            .then_some(())
    })
    .await?;
    Ok(pod)
}
