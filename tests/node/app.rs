//! Pods with an injected sidecar, and their apps, which call it with curl in their own container.

use std::fs::File;
use std::io::Read as _;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::harness::{Namespace, eventually};
use crate::machine::Machine;
use crate::parts;
use crate::pods::{LIMIT, app, container};

/// The beginning of apps' scripts: `call PATH BODY` sends a request to the sidecar.
const CALL: &str = r#"call() {
  curl --silent --show-error --no-buffer "$LEASEHOLD_URL$1" -H 'content-type: application/json' -d "$2"
  echo
}
"#;

/// Acquires the lock `orders` and renews it every second; prints a line for each answer.
pub(crate) const KEEP: &str = r#"answer=$(call /v1/locks/acquire '{"resource":"orders","ttlSeconds":30,"waitSeconds":60}')
echo "$answer"
id=$(echo "$answer" | sed 's/.*"leaseId":"\([^"]*\)".*/\1/')
trap 'exit 0' TERM
while sleep 1; do call "/v1/locks/$id/renew" '{}'; done"#;

/// A running pod, with its app and its sidecar.
pub(crate) struct App {
    machine: &'static Machine,
    pub(crate) name: String,
    pub(crate) pod: Value,
}

/// An answer of the sidecar.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Value,
}

impl Answer {
    /// Parses the output of curl with `--write-out '\n%{http_code}'`.
    pub(crate) fn of_curl(output: &str) -> Result<Self> {
        let (body, status) = output
            .rsplit_once('\n')
            .context("curl must print the status")?;
        Ok(Self {
            status: status.trim().parse()?,
            body: serde_json::from_str(body).unwrap_or_else(|_| json!(body)),
        })
    }

    /// Returns the body, if the status is this one.
    pub(crate) fn with(self, status: u16) -> Result<Value> {
        ensure!(self.status == status, "expected {status}: {self:?}");
        Ok(self.body)
    }
}

/// The options of a pod, in addition to its script.
#[derive(Default)]
pub(crate) struct Wanted {
    /// The names and values of `config.leasehold.dev/NAME`.
    pub(crate) config: Vec<(&'static str, &'static str)>,
    /// Merged into the pod's specification.
    pub(crate) spec: Value,
    /// The app's readiness probe, if any.
    pub(crate) readiness: Value,
    /// The app's preStop hook, if any.
    pub(crate) pre_stop: Value,
}

/// Returns a pod whose app runs a script, and which requests the sidecar.
pub(crate) fn asking_pod(name: &str, script: &str, wanted: &Wanted) -> Value {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name,
            "labels": {"app": name, "leasehold.dev/inject": "true"}, "annotations": {}},
        "spec": {"containers": [app(&format!("{CALL}{script}"))]}});
    if !wanted.readiness.is_null() {
        pod["spec"]["containers"][0]["readinessProbe"] = wanted.readiness.clone();
    }
    if !wanted.pre_stop.is_null() {
        pod["spec"]["containers"][0]["lifecycle"]["preStop"] = wanted.pre_stop.clone();
    }
    for (key, value) in &wanted.config {
        pod["metadata"]["annotations"][format!("config.leasehold.dev/{key}")] = json!(value);
    }
    for (key, value) in wanted.spec.as_object().into_iter().flatten() {
        pod["spec"][key] = value.clone();
    }
    pod
}

impl Machine {
    /// Creates a pod that requests the sidecar, and waits until it is ready.
    pub(crate) async fn app(
        &'static self,
        namespace: &Namespace,
        name: &str,
        script: &str,
        wanted: &Wanted,
    ) -> Result<App> {
        namespace.apply(&asking_pod(name, script, wanted)).await?;
        self.app_of(namespace, name).await
    }

    /// Returns a created pod once it is ready.
    pub(crate) async fn app_of(&'static self, namespace: &Namespace, name: &str) -> Result<App> {
        App::of(self, &namespace.until_ready(name).await?)
    }
}

impl App {
    /// Returns a running pod.
    pub(crate) fn of(machine: &'static Machine, pod: &Value) -> Result<Self> {
        let label = &pod["metadata"]["labels"]["leasehold.dev/injected"];
        ensure!(label == "true", "it was not injected: {}", pod["metadata"]);
        let name = pod["metadata"]["name"].as_str();
        Ok(Self {
            machine,
            name: name.context("a pod must have a name")?.to_owned(),
            pod: pod.clone(),
        })
    }

    /// Sends a request to the sidecar with curl, in the app's container. The method is GET unless
    /// there is a body.
    pub(crate) async fn ask(&self, method: &str, path: &str, body: &Value) -> Result<Answer> {
        let script = "exec curl --silent --show-error --write-out '\n%{http_code}' --request \"$0\" \
            -H 'content-type: application/json' ${2:+-d} ${2:+\"$2\"} \"$LEASEHOLD_URL$1\"";
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let command = ["sh", "-c", script, method, path, &body];
        let said = self
            .machine
            .exec(&container(&self.pod, "app")?, &command)
            .await?;
        Answer::of_curl(&said)
    }

    /// Tries to acquire a lock.
    pub(crate) async fn acquire(&self, resource: &str) -> Result<Answer> {
        let body = json!({"resource": resource, "ttlSeconds": 60});
        self.ask("POST", "/v1/locks/acquire", &body).await
    }

    /// Acquires a lock, as soon as the store answers and the previous holder has released it.
    pub(crate) async fn take(&self, resource: &str) -> Result<Value> {
        let what = format!("{} to take {resource}", self.name);
        let lease = eventually(&what, LIMIT, async || match self.acquire(resource).await {
            Ok(answer) if [409, 503].contains(&answer.status) => None,
            answer => Some(answer),
        });
        lease.await??.with(200)
    }

    /// Releases that lock.
    pub(crate) async fn let_go(&self, lease: &Value) -> Result<()> {
        let id = lease["leaseId"].as_str().context("a lease has an id")?;
        let path = format!("/v1/locks/{id}");
        let released = self.ask("DELETE", &path, &Value::Null).await?;
        // 202: the release is pending.
        ensure!([202, 204].contains(&released.status), "{released:?}");
        Ok(())
    }

    /// Returns the output of its app, from its start on. It is readable even after the pod is gone.
    pub(crate) fn log(&self) -> Result<Log> {
        let folder = self.machine.log_folder(&self.pod, "app")?;
        Ok(Log(File::open(folder.join("0.log"))?, self.name.clone()))
    }

    /// Sends a signal to the first process of a container. Returns the time just before.
    pub(crate) fn signal(&self, name: &str, signal: Signal) -> Result<Timestamp> {
        let process = self.process(name)?;
        let before = Timestamp::now();
        kill_process(process, signal)?;
        Ok(before)
    }

    /// Reads its pod again.
    pub(crate) async fn look(&mut self, namespace: &Namespace) -> Result<()> {
        self.pod = namespace.get("pod", &self.name).await?;
        Ok(())
    }

    /// Returns the first process of a container.
    pub(crate) fn process(&self, name: &str) -> Result<Pid> {
        let id = container(&self.pod, name)?;
        let output = parts::ctr(&self.machine.folder)?
            .args(["tasks", "ls"])
            .output()?;
        let tasks = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = tasks.lines().find(|line| line.starts_with(&id));
        let line = line.with_context(|| format!("{name} does not run: {tasks}"))?;
        let pid = line
            .split_whitespace()
            .nth(1)
            .context("a task must have a process")?;
        Pid::from_raw(pid.parse()?).context("a process must have an id")
    }
}

/// The output of an app, with the time of each line by the machine's clock.
pub(crate) struct Log(File, String);

impl Log {
    /// Returns the first line that contains this text, and its time.
    pub(crate) fn find(&mut self, what: &str) -> Result<Option<(Timestamp, String)>> {
        let lines = self.lines()?;
        Ok(lines.into_iter().find(|(_, line)| line.contains(what)))
    }

    /// Waits for such a line.
    pub(crate) async fn until(&mut self, what: &str) -> Result<(Timestamp, String)> {
        let about = format!("app {} to say {what:?}", self.1);
        let waited = eventually(&about, LIMIT, async || self.find(what).ok().flatten()).await;
        waited.map_err(|error| error.context(format!("it said: {:?}", self.lines())))
    }

    /// Returns all lines so far.
    pub(crate) fn lines(&mut self) -> Result<Vec<(Timestamp, String)>> {
        use std::io::Seek as _;

        self.0.rewind()?;
        let mut text = String::new();
        self.0.read_to_string(&mut text)?;
        // The last line may be incomplete.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().map(line).collect()
    }
}

/// Parses `TIME stdout F TEXT`, the kubelet's format of container logs.
fn line(line: &str) -> Result<(Timestamp, String)> {
    let mut parts = line.splitn(4, ' ');
    let time = parts.next().context("a line must have a time")?.parse()?;
    let text = parts.nth(2).unwrap_or_default();
    Ok((time, text.to_owned()))
}

impl Machine {
    pub(crate) fn log_folder(&self, pod: &Value, container: &str) -> Result<PathBuf> {
        let metadata = &pod["metadata"];
        let text = |name: &str| {
            metadata[name]
                .as_str()
                .context("a pod must have a name and a uid")
        };
        let folder = format!("{}_{}_{}", text("namespace")?, text("name")?, text("uid")?);
        Ok(PathBuf::from(self.folder.at("pod-logs"))
            .join(folder)
            .join(container))
    }
}
