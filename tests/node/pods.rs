//! Namespaces as in strict clusters, and the pods in them.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::harness::{Namespace, apply, eventually};
use crate::machine::Machine;
use crate::parts::{self, APP_IMAGE};

/// How long a pod may take for an operation that takes a second on an idle machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

impl Machine {
    /// Creates a namespace with these labels, with Pod Security `restricted`, and with a
    /// `ResourceQuota` for all resources. So a container without its own values needs the
    /// `LimitRange`.
    pub(crate) async fn namespace(&self, about: &str, labels: &Value) -> Result<Namespace> {
        let mut all = json!({"pod-security.kubernetes.io/enforce": "restricted"});
        for (label, value) in labels.as_object().context("labels must be an object")? {
            all[label] = value.clone();
        }
        let namespace = self.cluster.bare_namespace(about, &all).await?;
        namespace.limit().await?;
        Ok(namespace)
    }

    /// Runs a command in a container, like `kubectl exec`, but without the API server.
    pub(crate) async fn exec(&self, container: &str, command: &[&str]) -> Result<String> {
        let id = format!("exec-{}", fastrand::u64(..));
        let mut ctr = tokio::process::Command::from(parts::ctr(&self.folder)?);
        ctr.args(["tasks", "exec", "--exec-id", &id, container])
            .args(command);
        let output = ctr.kill_on_drop(true).output().await?;
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{command:?}: {stdout}{stderr}");
        Ok(stdout)
    }

    /// Waits until a container has printed this. Returns the line, which begins with its time.
    pub(crate) async fn until_said(&self, pod: &Value, from: &str, what: &str) -> Result<String> {
        let about = format!("{from} to say {what:?}");
        let waited = eventually(&about, LIMIT, async || {
            let said = self.said(pod, from).ok()?;
            said.lines()
                .find(|line| line.contains(what))
                .map(str::to_owned)
        });
        let said = || self.said(pod, from).unwrap_or_default();
        waited
            .await
            .map_err(|error| error.context(format!("it said: {}", said())))
    }

    /// Returns the output of a pod's container, with the time of each line.
    pub(crate) fn said(&self, pod: &Value, container: &str) -> Result<String> {
        let folder = self.log_folder(pod, container)?;
        let mut said = String::new();
        let mut files: Vec<_> = std::fs::read_dir(folder)?.collect::<Result<_, _>>()?;
        files.sort_by_key(std::fs::DirEntry::file_name);
        for file in files {
            said.push_str(&std::fs::read_to_string(file.path())?);
        }
        Ok(said)
    }
}

/// Returns an app that runs a shell script, and that `restricted` permits.
pub(crate) fn app(script: &str) -> Value {
    json!({"name": "app", "image": APP_IMAGE, "imagePullPolicy": "Never",
        "command": ["sh", "-c", script], "securityContext": restricted()})
}

/// Returns the settings that Pod Security `restricted` requires of each container.
pub(crate) fn restricted() -> Value {
    json!({"allowPrivilegeEscalation": false, "runAsNonRoot": true,
        "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"}})
}

impl Namespace {
    /// Creates a `ResourceQuota` and a `LimitRange` in it, and waits until pods can be created.
    pub(crate) async fn limit(&self) -> Result<()> {
        let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota",
            "metadata": {"name": "all"},
            "spec": {"hard": {"requests.cpu": "2", "requests.memory": "4Gi", "limits.cpu": "20",
                "limits.memory": "8Gi", "pods": "30"}}});
        let range = json!({"apiVersion": "v1", "kind": "LimitRange",
            "metadata": {"name": "all"},
            "spec": {"limits": [{"type": "Container",
                "default": {"cpu": "500m", "memory": "64Mi"},
                "defaultRequest": {"cpu": "1m", "memory": "8Mi"}}]}});
        self.apply(&quota).await?;
        self.apply(&range).await?;
        // A controller creates it, and no pod can be created before.
        eventually("the service account of the namespace", LIMIT, async || {
            let account = ["get", "serviceaccount", "default"];
            self.kubectl(&account).await.ok()?.ok().ok().map(drop)
        })
        .await
    }

    /// Creates or changes an object in this namespace.
    pub(crate) async fn apply(&self, object: &Value) -> Result<()> {
        let mut object = object.clone();
        object["metadata"]["namespace"] = json!(self.name);
        apply(&self.client, &object).await?;
        Ok(())
    }

    /// Creates a pod with this specification.
    pub(crate) async fn run(&self, name: &str, spec: &Value) -> Result<()> {
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "labels": {"app": name}}, "spec": spec});
        self.apply(&pod).await
    }

    /// Creates a Job of pods like this one, with one attempt.
    pub(crate) async fn start_job(&self, name: &str, pod: &Value) -> Result<()> {
        let mut spec = pod["spec"].clone();
        spec["restartPolicy"] = json!("Never");
        let mut labels = pod["metadata"]["labels"].clone();
        labels["job"] = json!(name);
        let metadata = json!({"labels": labels, "annotations": pod["metadata"]["annotations"]});
        let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
            "spec": {"backoffLimit": 0, "template": {"metadata": metadata, "spec": spec}}});
        self.apply(&job).await
    }

    /// Waits until a Job is Complete or Failed, with this exit code of its app.
    pub(crate) async fn until_job_ended(&self, name: &str, code: i64) -> Result<()> {
        let end = if code == 0 { "Complete" } else { "Failed" };
        self.until("job", name, end, |job| condition(job, end))
            .await?;
        let selector = format!("job={name}");
        let pods = ["get", "pods", "-l", &selector, "-o", "json"];
        let pods = self.kubectl(&pods).await?.json()?;
        let [pod] = pods["items"].as_array().map_or(&[][..], Vec::as_slice) else {
            bail!("one pod was wanted: {pods}");
        };
        let containers = pod["status"]["containerStatuses"].as_array();
        let mut containers = containers.into_iter().flatten();
        let app = containers.find(|container| container["name"] == "app");
        let app = app.context("a pod must report its app")?;
        ensure!(app["state"]["terminated"]["exitCode"] == code, "{app}");
        Ok(())
    }

    /// Returns an object of a kind that kubectl knows.
    pub(crate) async fn get(&self, kind: &str, name: &str) -> Result<Value> {
        self.kubectl(&["get", kind, name, "-o", "json"])
            .await?
            .json()
    }

    /// Waits until a condition holds for an object, and returns the object.
    pub(crate) async fn until(
        &self,
        kind: &str,
        name: &str,
        what: &str,
        is_so: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        let mut last = json!(null);
        let what = format!("{kind} {name}: {what}");
        let waited = eventually(&what, LIMIT, async || {
            last = self.get(kind, name).await.ok()?;
            is_so(&last).then(|| last.clone())
        });
        let waited = waited.await;
        waited.map_err(|error| error.context(format!("it is {}", last["status"])))
    }

    /// Waits until a lock's queue has one entry.
    pub(crate) async fn until_queued(&self, lock: &str) -> Result<()> {
        eventually("a queue entry", LIMIT, async || {
            let lock = self.lock(lock).await.ok().flatten()?;
            let waiters = lock["status"]["waiters"].as_array()?.len();
            (waiters == 1).then_some(())
        })
        .await
    }

    /// Waits until a pod is ready, and returns it.
    pub(crate) async fn until_ready(&self, pod: &str) -> Result<Value> {
        self.until("pod", pod, "ready", |pod| condition(pod, "Ready"))
            .await
    }
}

/// Returns whether a condition of an object is true.
pub(crate) fn condition(object: &Value, name: &str) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions
        .into_iter()
        .flatten()
        .any(|c| c["type"] == name && c["status"] == "True")
}

/// Returns containerd's id of a pod's container.
pub(crate) fn container(pod: &Value, name: &str) -> Result<String> {
    for kind in ["containerStatuses", "initContainerStatuses"] {
        for status in pod["status"][kind].as_array().into_iter().flatten() {
            if status["name"] == name {
                let id = status["containerID"].as_str().unwrap_or_default();
                return Ok(id.trim_start_matches("containerd://").to_owned());
            }
        }
    }
    bail!("the pod has no container {name}: {}", pod["status"])
}
