//! A release of the chart, and its objects as they are in the store.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use kube::Client;
use serde_json::{Value, json};

use crate::harness::{
    Cluster, Helm, HelmVersion, KubeVersion, OPERATOR_NAMESPACE, Output, apply, look_up, objects,
    repository,
};

const CHART: &str = "charts/leasehold";
const NAME: &str = "leasehold";

/// A control plane on which Helm installs the chart, in the namespace that it is made for.
pub(crate) struct Release {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) client: Client,
    helm: Helm,
}

impl Release {
    /// A new control plane without anything of ours but the chart's namespace.
    pub(crate) async fn on(kube: KubeVersion, helm: HelmVersion) -> Result<Self> {
        let cluster = Cluster::bare(kube).await?;
        let client = cluster.admin().await?;
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": OPERATOR_NAMESPACE}});
        apply(&client, &namespace).await?;
        let helm = Helm::find(helm, cluster.control_plane())?;
        Ok(Self {
            cluster,
            client,
            helm,
        })
    }

    /// Runs Helm on the release's namespace.
    pub(crate) async fn helm(&self, args: &[&str]) -> Result<Output> {
        let args = [&["--namespace", OPERATOR_NAMESPACE], args].concat();
        self.helm.run(&args).await
    }

    /// Installs the chart; gives what the user then reads.
    pub(crate) async fn install(&self, values: &[&str]) -> Result<String> {
        let args = [&["install", NAME, CHART], values].concat();
        self.helm(&args).await?.ok()
    }

    /// Upgrades the release to the same chart with these values.
    pub(crate) async fn upgrade(&self, values: &[&str]) -> Result<String> {
        let args = [&["upgrade", NAME, CHART, "--reset-values"], values].concat();
        self.helm(&args).await?.ok()
    }

    pub(crate) async fn uninstall(&self) -> Result<String> {
        self.helm(&["uninstall", NAME]).await?.ok()
    }

    /// What the release consists of, as it was rendered.
    pub(crate) async fn manifest(&self) -> Result<Vec<Value>> {
        objects(&self.helm(&["get", "manifest", NAME]).await?.ok()?)
    }

    /// The pods that `helm test` makes, among others.
    pub(crate) async fn hooks(&self) -> Result<Vec<Value>> {
        objects(&self.helm(&["get", "hooks", NAME]).await?.ok()?)
    }

    /// Those of these objects that are in the store, each with its version there.
    pub(crate) async fn versions(&self, objects: &[Value]) -> Result<BTreeMap<String, String>> {
        let mut versions = BTreeMap::new();
        for object in objects {
            if let Some(live) = look_up(&self.client, object).await? {
                let version = live["metadata"]["resourceVersion"].as_str();
                versions.insert(title(object), version.unwrap_or_default().to_owned());
            }
        }
        Ok(versions)
    }

    /// One object as it is in the store.
    pub(crate) async fn live(&self, object: &Value) -> Result<Value> {
        let live = look_up(&self.client, object).await?;
        live.with_context(|| format!("{} is not there", title(object)))
    }

    /// Whether objects in the store have exactly what a file under charts/leasehold/files says, but
    /// for what Helm adds to their metadata and what the API server fills in.
    pub(crate) async fn has_shipped(&self, file: &str) -> Result<()> {
        let file = repository(CHART).join("files").join(file);
        for object in crate::harness::read_file(&file)? {
            let live = self.live(&object).await?;
            let complete = self.completed(&object).await?;
            for part in ["spec", "rules", "roleRef", "subjects", "aggregationRule"] {
                ensure!(
                    live[part] == complete[part],
                    "{} of {} is not as in {}:\n{:#}\n{:#}",
                    part,
                    title(&object),
                    file.display(),
                    live[part],
                    complete[part]
                );
            }
            for kind in ["labels", "annotations"] {
                let ours = object["metadata"][kind].as_object().into_iter().flatten();
                for (key, value) in ours {
                    ensure!(live["metadata"][kind][key] == *value, "{key} is not there");
                }
            }
        }
        Ok(())
    }

    /// The object as the API server would create it, under another name.
    async fn completed(&self, object: &Value) -> Result<Value> {
        let mut other = object.clone();
        // The name of a CRD follows from its content.
        if object["kind"] == "CustomResourceDefinition" {
            let (api, name) = crate::harness::place_of(&self.client, object).await?;
            let params = kube::api::PatchParams::apply("leasehold-tests")
                .force()
                .dry_run();
            let patch = kube::api::Patch::Apply(object);
            return Ok(serde_json::to_value(
                api.patch(&name, &params, &patch).await?,
            )?);
        }
        other["metadata"] =
            json!({"name": "completed", "namespace": object["metadata"]["namespace"]});
        let (api, _) = crate::harness::place_of(&self.client, &other).await?;
        let params = kube::api::PostParams {
            dry_run: true,
            ..Default::default()
        };
        let made = api.create(&params, &serde_json::from_value(other)?).await?;
        Ok(serde_json::to_value(made)?)
    }
}

/// How an object is called in messages.
pub(crate) fn title(object: &Value) -> String {
    let metadata = &object["metadata"];
    let parts = [&object["kind"], &metadata["namespace"], &metadata["name"]];
    let parts: Vec<_> = parts.iter().filter_map(|part| part.as_str()).collect();
    parts.join(" ")
}
