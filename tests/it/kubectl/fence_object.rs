//! `fence-object`: what it writes, that it can be repeated, and each wrong use. The real policy is tested in tests/e2e.

use serde_json::json;

use super::Cluster;
use super::stub::Setup;

#[test]
fn object_is_guarded_once() {
    let cluster = Cluster::sound();
    cluster.golden("fence-object", "fence-object cm settings --lock orders");
    let writes = cluster.stub.writes();
    let (path, label) = &writes[0];
    assert!(path.starts_with("/api/v1/namespaces/shop/configmaps/settings?"));
    // A token in the label's write would be one that a writer can leave as it is.
    let labels = json!({"leasehold.dev/fenced-by": "orders"});
    assert_eq!(*label, json!({"metadata": {"labels": labels}}));
    let (delete, write) = (&writes[1].1["spec"], &writes[2].1["spec"]);
    for (spec, not_found) in [(delete, "Allow"), (write, "Deny")] {
        let lock =
            json!({"name": "orders", "namespace": "shop", "parameterNotFoundAction": not_found});
        assert_eq!(spec["paramRef"], lock);
        assert_eq!(
            spec["matchResources"]["objectSelector"]["matchLabels"],
            labels
        );
    }
    assert_eq!(writes.len(), 3);
    cluster.golden(
        "fence-object-repeated",
        "fence-object configmaps settings --lock orders",
    );
    // Its label needs a token, because the bindings are enforced already.
    cluster.golden(
        "fence-object-second",
        "fence-object ConfigMap second --lock orders",
    );
    let writes = cluster.stub.writes();
    let second = writes.iter().find(|(path, _)| path.contains("/second?"));
    let token = &second.unwrap().1["metadata"]["annotations"]["leasehold.dev/fencing-token"];
    assert_eq!(*token, "42");
}

#[test]
fn missing_lock_is_created() {
    let cluster = Cluster::sound();
    cluster.golden(
        "fence-object-new-lock",
        "fence-object cm settings --lock team/settings",
    );
    let (path, lock) = &cluster.stub.writes()[0];
    assert!(path.ends_with("/namespaces/shop/distributedlocks"));
    // The most that the CRD allows: the deletion of the object needs a token as long as the lock exists.
    assert_eq!(
        lock["spec"],
        json!({"resource": "team/settings", "retainSeconds": 315_360_000})
    );
    cluster.golden(
        "fence-object-no-token",
        "fence-object cm second --lock team/settings",
    );
}

#[test]
fn wrong_use_of_fence_object_writes_nothing() {
    let cluster = Cluster::sound();
    for (name, line) in [
        (
            "fence-object-no-kind",
            "fence-object gadgets settings --lock orders",
        ),
        ("fence-object-cluster", "fence-object no n1 --lock orders"),
        (
            "fence-object-missing",
            "fence-object cm missing --lock orders",
        ),
        ("fence-object-other", "fence-object cm other --lock orders"),
        ("fence-object-newer", "fence-object cm newer --lock orders"),
        ("fence-object-bad-lock", "fence-object cm other --lock ' '"),
        ("fence-object-no-lock", "fence-object cm settings"),
    ] {
        cluster.golden(name, line);
    }
    let line = "fence-object cm settings --lock orders";
    let setup = |without, forbidden: &[&'static str]| Setup {
        without,
        forbidden: forbidden.to_vec(),
        ..Setup::default()
    };
    let no_policy = Cluster::with(setup(Some("validatingadmissionpolicies"), &[]));
    no_policy.golden("fence-object-no-policy", line);
    let forbidden = Cluster::with(setup(None, &["patch configmaps"]));
    forbidden.golden("fence-object-forbidden", line);
    for cluster in [cluster, no_policy, forbidden] {
        assert_eq!(cluster.stub.writes(), []);
    }
    let no_bindings = setup(None, &["patch validatingadmissionpolicybindings"]);
    Cluster::with(no_bindings).golden("fence-object-no-bindings", line);
}
