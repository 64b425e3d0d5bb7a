//! The node alone, before any installation: what the other tests depend on.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::machine::Machine;
use crate::parts::IMAGE;
use crate::pods::{app, container, restricted};

#[tokio::test]
async fn a_pod_in_a_restricted_namespace_runs_and_runs_commands() -> Result<()> {
    let machine = Machine::shared().await?;
    let namespace = machine.namespace("plain", &json!({})).await?;

    namespace
        .run("sleeper", &json!({"containers": [app("sleep infinity")]}))
        .await?;
    let pod = namespace.until_ready("sleeper").await?;

    // Once as a person does, through API server and kubelet, and once as the tests do.
    let said = namespace
        .kubectl(&["exec", "sleeper", "--", "id", "-u"])
        .await?;
    ensure!(said.ok()?.trim() == "1000");
    let said = machine
        .exec(&container(&pod, "app")?, &["id", "-u"])
        .await?;
    ensure!(said.trim() == "1000");
    Ok(())
}

#[tokio::test]
async fn privileged_pod_is_refused() -> Result<()> {
    let machine = Machine::shared().await?;
    let namespace = machine.namespace("plain", &json!({})).await?;
    let mut privileged = app("true");
    privileged["securityContext"] = json!({"privileged": true});
    let refused = namespace
        .run("privileged", &json!({"containers": [privileged]}))
        .await;
    let refusal = refused.err().context("it must be refused")?.to_string();
    ensure!(refusal.contains("violates PodSecurity"), "{refusal}");
    Ok(())
}

#[tokio::test]
async fn native_sidecar_ends_after_its_job() -> Result<()> {
    let machine = Machine::shared().await?;
    let namespace = machine.namespace("plain", &json!({})).await?;
    for (name, script) in [("good", "exit 0"), ("bad", "exit 3")] {
        let mut sidecar = app("trap 'exit 0' TERM; sleep infinity & wait");
        sidecar["name"] = json!("sidecar");
        sidecar["restartPolicy"] = json!("Always");
        let pod = json!({"metadata": {"labels": {}, "annotations": {}},
            "spec": {"initContainers": [sidecar], "containers": [app(script)]}});
        namespace.start_job(name, &pod).await?;
    }
    namespace.until_job_ended("good", 0).await?;
    namespace.until_job_ended("bad", 3).await
}

#[tokio::test]
async fn a_pod_reaches_the_api_server_by_its_service() -> Result<()> {
    let machine = Machine::shared().await?;
    let namespace = machine.namespace("plain", &json!({})).await?;
    let ask = "curl --silent --fail --cacert $T/ca.crt -H \"Authorization: Bearer $(cat $T/token)\" \
        https://$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT/version";
    let script =
        format!("T=/var/run/secrets/kubernetes.io/serviceaccount; {ask} && sleep infinity");
    namespace
        .run("asker", &json!({"containers": [app(&script)]}))
        .await?;
    let pod = namespace.until_ready("asker").await?;
    machine.until_said(&pod, "app", "gitVersion").await?;
    Ok(())
}

/// The path from the API server to a webhook.
#[tokio::test]
async fn the_node_reaches_a_pod_by_its_service() -> Result<()> {
    let machine = Machine::shared().await?;
    let namespace = machine.namespace("plain", &json!({})).await?;
    let script =
        "mkdir /tmp/www; echo found > /tmp/www/index.html; exec httpd -f -p 8080 -h /tmp/www";
    namespace
        .run("web", &json!({"containers": [app(script)]}))
        .await?;
    namespace.until_ready("web").await?;
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]}});
    namespace.apply(&service).await?;
    let service = namespace.get("service", "web").await?;
    let address = service["spec"]["clusterIP"]
        .as_str()
        .context("a Service must have an address")?;
    crate::harness::eventually(
        "an answer from the Service",
        crate::pods::LIMIT,
        async || {
            let answer = reqwest::get(format!("http://{address}/")).await.ok()?;
            let text = answer.text().await.ok()?;
            (text.trim() == "found").then_some(())
        },
    )
    .await
}

#[tokio::test]
async fn image_runs_unprivileged_with_nothing_but_the_binary() -> Result<()> {
    let machine = Machine::shared().await?;
    let namespace = machine.namespace("plain", &json!({})).await?;
    let mut security = restricted();
    security["readOnlyRootFilesystem"] = json!(true);
    let ours = json!({"name": "ours", "image": IMAGE, "imagePullPolicy": "Never",
        "args": ["--version"], "securityContext": security});
    let spec = json!({"restartPolicy": "Never", "containers": [ours]});
    namespace.run("version", &spec).await?;
    let succeeded = |pod: &Value| pod["status"]["phase"] == "Succeeded";
    let pod = namespace
        .until("pod", "version", "succeeded", succeeded)
        .await?;
    let said = machine.said(&pod, "ours")?;
    ensure!(
        said.contains(concat!("leasehold ", env!("CARGO_PKG_VERSION"))),
        "{said}"
    );
    // The user comes from the image: `runAsNonRoot` accepts only a numeric user.
    ensure!(pod["spec"]["containers"][0]["securityContext"]["runAsUser"].is_null());
    Ok(())
}
