//! What the operator may give to others and keep for itself, whatever rights it has: one role, to service
//! accounts of the namespace that it is given in, and one Secret.

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::stage::{Expect, outcome};
use super::world::World;
use crate::harness::{OPERATOR_NAMESPACE, TakeOver};

const NAME: &str = "leasehold-sidecar";
const ONE_NAME: &str = "writes no role bindings but those named leasehold-sidecar";
const ITS_OWN: &str = "leaves alone those without it";
const ONE_ROLE: &str = "gives nobody another role";
const ACCOUNTS: &str = "to nobody but service accounts of the role binding's own namespace";
const ONE_SECRET: &str = "writes no Secrets but leasehold-webhook-cert in its own namespace";
const ONE_TYPE: &str = "but those of the type kubernetes.io/tls";
const CERTIFICATE: &str = "leasehold-webhook-cert";
const TLS: &str = "kubernetes.io/tls";
const RBAC: &str = "rbac.authorization.k8s.io";

fn binding(namespace: &str) -> Value {
    json!({
        "metadata": {"name": NAME,
            "labels": {"app.kubernetes.io/managed-by": "leasehold-operator", "more": "x"}},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "leasehold-sidecar"},
        "subjects": [
            {"apiGroup": RBAC, "kind": "Group", "name": format!("system:serviceaccounts:{namespace}")},
            {"kind": "ServiceAccount", "name": "a", "namespace": namespace},
        ],
    })
}

/// Nothing is kept of it, so that each try meets the same.
fn dry() -> PostParams {
    PostParams {
        dry_run: true,
        ..PostParams::default()
    }
}

async fn create(api: &Api<RoleBinding>, object: &Value) -> super::stage::Outcome {
    let object = serde_json::from_value(object.clone()).expect("a role binding");
    outcome(api.create(&dry(), &object).await)
}

#[tokio::test]
async fn the_operator_binds_service_accounts_of_a_namespace_to_the_sidecars_role_and_nothing_else()
{
    let world = World::without_operator(TakeOver::Strict).await;
    let operator = world.operator().await;
    let its_own: Api<RoleBinding> = world.api(&operator);
    let anybodys: Api<RoleBinding> = world.api(&world.admin);
    let namespace = world.name();
    create(&its_own, &binding(namespace)).await.allowed();
    let elsewhere = "system:serviceaccounts:kube-system";
    let table = [
        ("/metadata/name", json!("another"), ONE_NAME),
        ("/metadata/name", json!("leasehold-sidecar-2"), ONE_NAME),
        ("/metadata/labels", json!({}), ITS_OWN),
        (
            "/metadata/labels",
            json!({"app.kubernetes.io/managed-by": "Helm"}),
            ITS_OWN,
        ),
        ("/roleRef/name", json!("cluster-admin"), ONE_ROLE),
        ("/roleRef/kind", json!("Role"), ONE_ROLE),
        (
            "/subjects/0/name",
            json!("system:serviceaccounts"),
            ACCOUNTS,
        ),
        ("/subjects/0/name", json!(elsewhere), ACCOUNTS),
        ("/subjects/0/kind", json!("User"), ACCOUNTS),
        ("/subjects/1/namespace", json!(OPERATOR_NAMESPACE), ACCOUNTS),
    ];
    for (path, value, words) in table {
        println!("{path} {value}");
        let mut object = binding(namespace);
        *object.pointer_mut(path).expect("a field") = value;
        create(&its_own, &object).await.refused(words);
        // Nobody else is held by it.
        create(&anybodys, &object).await.allowed();
    }
}

#[tokio::test]
async fn of_the_bindings_that_are_there_the_operator_writes_and_deletes_what_it_made() {
    let world = World::without_operator(TakeOver::Strict).await;
    let operator = world.operator().await;
    let its_own: Api<RoleBinding> = world.api(&operator);
    let anybodys: Api<RoleBinding> = world.api(&world.admin);
    let namespace = world.name();
    let make = |change: fn(&mut Value)| {
        let mut object = binding(namespace);
        change(&mut object);
        let object = serde_json::from_value(object).expect("a role binding");
        let anybodys = anybodys.clone();
        async move {
            let made = anybodys.create(&PostParams::default(), &object).await;
            made.expect("a role binding");
        }
    };
    let patch = async |change: Value| {
        let (params, change) = (PatchParams::default(), Patch::Merge(change));
        outcome(its_own.patch(NAME, &params, &change).await)
    };
    make(|_| {}).await;
    patch(json!({"subjects": []})).await.allowed();
    let stranger = json!([{"apiGroup": RBAC, "kind": "User", "name": "jane"}]);
    patch(json!({"subjects": stranger})).await.refused(ACCOUNTS);
    let label =
        |value: Value| json!({"metadata": {"labels": {"app.kubernetes.io/managed-by": value}}});
    patch(label(Value::Null)).await.refused(ITS_OWN);
    outcome(
        its_own
            .delete(NAME, &DeleteParams::default())
            .await
            .map(drop),
    )
    .allowed();

    // One that gives another role has to go before the right one can come.
    make(|object| object["roleRef"]["name"] = "view".into()).await;
    patch(json!({"subjects": []})).await.refused(ONE_ROLE);
    outcome(
        its_own
            .delete(NAME, &DeleteParams::default())
            .await
            .map(drop),
    )
    .allowed();

    make(|object| object["metadata"]["labels"] = json!({})).await;
    patch(json!({"subjects": []})).await.refused(ITS_OWN);
    patch(label("leasehold-operator".into()))
        .await
        .refused(ITS_OWN);
    let deleted = its_own.delete(NAME, &DeleteParams::default()).await;
    outcome(deleted.map(drop)).refused(ITS_OWN);
    let deleted = anybodys.delete(NAME, &DeleteParams::default()).await;
    outcome(deleted.map(drop)).allowed();
}

fn secrets(client: &Client, namespace: &str) -> Api<Secret> {
    Api::namespaced(client.clone(), namespace)
}

#[tokio::test]
async fn the_operator_makes_one_secret_in_its_own_namespace_and_none_that_is_a_token() {
    let world = World::without_operator(TakeOver::Strict).await;
    let operator = world.operator().await;
    let table = [
        (OPERATOR_NAMESPACE, CERTIFICATE, TLS, None),
        (OPERATOR_NAMESPACE, "another", TLS, Some(ONE_SECRET)),
        (OPERATOR_NAMESPACE, CERTIFICATE, "Opaque", Some(ONE_TYPE)),
        (
            OPERATOR_NAMESPACE,
            CERTIFICATE,
            "kubernetes.io/service-account-token",
            Some(ONE_TYPE),
        ),
        (world.name(), CERTIFICATE, TLS, Some(ONE_SECRET)),
    ];
    for (namespace, name, of_type, refusal) in table {
        println!("{namespace} {name} {of_type}");
        let secret = serde_json::from_value(json!({
            "metadata": {"name": name,
                "annotations": {"kubernetes.io/service-account.name": "default"}},
            "type": of_type, "stringData": {"tls.crt": "", "tls.key": ""},
        }));
        let secret = secret.expect("a Secret");
        let answer = secrets(&operator, namespace).create(&dry(), &secret).await;
        match refusal {
            None => outcome(answer).allowed(),
            Some(words) => outcome(answer).refused(words),
        }
        // Nobody else is held by it.
        let answer = secrets(&world.admin, namespace)
            .create(&dry(), &secret)
            .await;
        outcome(answer).allowed();
    }
}
