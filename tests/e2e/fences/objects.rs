//! The fence of Kubernetes objects: an admission policy, bound as in the example and by the plugin, with writes by
//! kubectl and by client-go.

mod log;

use std::path::Path;

use anyhow::Result;

use super::story::{Story, stale_writer_is_refused};
use crate::harness::{Namespace, repository, target_directory};

const PLUGIN: &str = env!("CARGO_BIN_EXE_kubectl-leasehold");

/// Binds the policy with the example's bindings, and waits until they are enforced: a write without a token is refused.
const PREPARE: &str = r#"set -e
    cd "$CARGO_MANIFEST_DIR"
    $KUBECTL apply --server-side -f charts/leasehold/files/fencing/objects.yaml
    $KUBECTL create configmap guarded
    $KUBECTL create configmap unguarded
    $KUBECTL label configmap guarded leasehold.dev/fenced-by=report
    sed -e "/^kind: ConfigMap$/,\$d" -e "s/team/$NAMESPACE/; s/settings/report/" \
        examples/fencing/configmap.yaml | sed '$d' | $KUBECTL apply --server-side -f -
    until $KUBECTL annotate configmap guarded enforced=no --overwrite 2>&1 | grep 'no fencing token'; do sleep 0.1; done"#;

/// The API server may not have seen the grant of a new lease: then it says to repeat the write.
fn write(object: &str) -> String {
    format!(
        r#"patch="{{\"metadata\":{{\"annotations\":{{\"leasehold.dev/fencing-token\":\"$TOKEN\"}}}},\"data\":{{\"text\":\"$VALUE\"}}}}"
        while :; do
            answer=$($KUBECTL patch configmap {object} --type=merge -p "$patch" 2>&1) && exit 0
            case $answer in *'repeat the write'*) sleep 0.2 ;; *) echo "$answer"; exit 1 ;; esac
        done"#
    )
}

/// Guards the object by the plugin.
const PREPARE_CONTROLLER: &str = r#"set -e
    cd "$CARGO_MANIFEST_DIR"
    $KUBECTL apply --server-side -f charts/leasehold/files/fencing/objects.yaml
    $KUBECTL create configmap guarded
    $KUBECTL create configmap unguarded
    set -- $KUBECTL
    KUBECONFIG=$3 "$PLUGIN" fence-object cm guarded --lock report --namespace "$NAMESPACE""#;

/// Creates a `ConfigMap`, and guards it by the plugin.
pub(super) async fn guard(namespace: &Namespace, name: &str, lock: &str) -> Result<()> {
    // By kubectl, as the other tests of the shared cluster: another field manager would conflict.
    let policy = repository("charts/leasehold/files/fencing/objects.yaml");
    let policy = policy.display().to_string();
    let install = ["apply", "--server-side", "-f", &policy];
    namespace.kubectl(&install).await?.ok()?;
    let create = ["create", "configmap", name];
    namespace.kubectl(&create).await?.ok()?;
    let fence = ["fence-object", "configmap", name, "--lock", lock];
    let fence = [&fence[..], &["--namespace", &namespace.name]].concat();
    let admin = namespace.cluster.control_plane().admin();
    admin.plugin(PLUGIN, &fence).await?.ok()?;
    Ok(())
}

const READ: &str = "$KUBECTL get configmap guarded unguarded -o jsonpath='{.items[*].data.text}'";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn stale_worker_cannot_write() -> Result<()> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    let prepare = PREPARE.replace("$CARGO_MANIFEST_DIR", &directory.display().to_string());
    stale_writer_is_refused(&Story {
        prepare: &prepare,
        fenced: write("guarded"),
        unfenced: write("unguarded"),
        read: READ.to_owned(),
        refusal: "stale fencing token",
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn stale_controller_of_client_go_cannot_write() -> Result<()> {
    let controller = target_directory().join("fences/controller");
    let controller = controller.display().to_string();
    let prepare = PREPARE_CONTROLLER
        .replace("$CARGO_MANIFEST_DIR", env!("CARGO_MANIFEST_DIR"))
        .replace("$PLUGIN", PLUGIN);
    let write =
        |object: &str| format!("set -- $KUBECTL\nKUBECONFIG=$3 OBJECT={object} {controller}");
    stale_writer_is_refused(&Story {
        prepare: &prepare,
        fenced: write("guarded"),
        unfenced: write("unguarded"),
        read: READ.to_owned(),
        refusal: "lost the lead of token",
    })
    .await
}
