//! The policies are bound: raw writes with a pod's own token are refused by the API server itself.
//! What each policy refuses and allows is `tests/policies`'.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry};
use kube::api::{DeleteParams, Patch, PatchParams};
use leasehold::crd::lock::{DistributedLock, DistributedLockStatus as Status};
use serde_json::json;

use super::fixture::{
    Expect, TOKEN, bare_lock, free, grant, incident, outcome, session_of, waiter,
};
use super::world::{User, World};
use crate::harness::TakeOver;

/// The largest token that the definition accepts.
const LARGEST: i64 = 9_007_199_254_739_992;

/// A status write of the holder, beside the only waiter.
type Change = fn(&mut Status, &User, &User);

/// What a holder must not do to the only waiter, and the words of the refusal. Where two policies refuse,
/// the API server passes on the words of either.
const ATTACKS: [(Change, &[&str]); 4] = [
    // Takes the waiter's queue entry for itself.
    (
        |status, holder, waiter| {
            grant(status, waiter);
            status.holder = Some(super::fixture::holder(holder));
        },
        &["status.holder must name pod a", "others wait for this lock"],
    ),
    // The waiter's session and owner with the holder's own uid: the waiter would take it for its grant.
    (
        |status, holder, waiter| {
            grant(status, waiter);
            let named = status.holder.as_mut().expect("held");
            named.pod.clone_from(&holder.name);
            named.pod_uid.clone_from(&holder.uid);
        },
        &["status.holder must name pod a", "others wait for this lock"],
    ),
    (
        |status, _, waiter| {
            grant(status, waiter);
            status.token = LARGEST;
        },
        &["status.token rises too far"],
    ),
    (
        |status, _, _| status.token = LARGEST,
        &["status.token rises too far"],
    ),
];

#[tokio::test]
async fn raw_writes_with_a_pods_own_token_are_refused() {
    for mode in [TakeOver::Strict, TakeOver::Peer] {
        let world = World::new(mode).await;
        let [a, b, c] = world.pods(["a", "b", "c"]).await;
        let lock = world.held(&a, &[&b]).await;
        for (change, words) in ATTACKS {
            let answer = world.write(&a.client, &lock, |status| change(status, &a, &b));
            answer.await.refused_with_one_of(words);
        }
        let in_anothers_session = |status: &mut Status| {
            let mut entry = waiter(&c);
            entry.session = waiter(&a).session;
            status.waiters.push(entry);
        };
        let answer = world.write(&c.client, &lock, in_anothers_session);
        answer.await.refused("a pod uses sessions of its own only");
        let anothers_session = session_of(&c, &waiter(&a).session);
        let answer = world.create(&c.client, &anothers_session);
        answer.await.refused("a pod uses sessions of its own only");

        // The ordinary ones.
        let joined = world.write(&c.client, &lock, |status| status.waiters.push(waiter(&c)));
        joined.await.allowed();
        let handed = world.write(&a.client, &lock, |status| grant(status, &b));
        handed.await.allowed();
    }
}

#[tokio::test]
async fn other_pods_grant_ends_only_by_the_rules_of_the_mode() {
    for mode in [TakeOver::Strict, TakeOver::Peer] {
        let world = World::new(mode).await;
        let [a, b] = world.pods(["a", "b"]).await;
        let lock = world.held(&a, &[]).await;
        let stolen = world.write(&b.client, &lock, |status| grant(status, &b));
        stolen.await.refused("this grant belongs to pod a");
        let recorded = world.write(&b.client, &lock, |status| {
            status.incidents.push(incident("Expired", &a, &b.name));
            grant(status, &b);
        });
        match mode {
            TakeOver::Strict => recorded.await.refused("only the operator ends a grant"),
            TakeOver::Peer => recorded.await.allowed(),
        }
    }
}

#[tokio::test]
async fn the_operator_hands_a_lock_to_its_first_waiter_on_the_record() {
    // An operator would free it as the lock of an ended session.
    let world = World::without_operator(TakeOver::Strict).await;
    let [a, b, c] = world.pods(["a", "b", "c"]).await;
    let operator = world.operator().await;
    let lock = world.held(&a, &[&b, &c]).await;
    let hand = |status: &mut Status, to: &User| {
        let mut record = incident("Expired", &a, "leasehold-operator");
        record.lease_id = Some("g-a".to_owned());
        status.incidents.push(record);
        grant(status, to);
    };
    let answer = world.write(&operator, &lock, |status| hand(status, &c));
    answer
        .await
        .refused("only to the first remaining entry of status.waiters");
    let answer = world.write(&operator, &lock, |status| grant(status, &b));
    answer.await.refused("status.incidents is a record");
    let answer = world.write(&operator, &lock, |status| hand(status, &b));
    answer.await.allowed();
}

/// The API server adds the entry of the create itself, and takes further ones from the request.
#[tokio::test]
async fn a_sidecar_brings_no_managed_fields() {
    let world = World::new(TakeOver::Strict).await;
    let a = world.pod("a").await;
    let fields: BTreeMap<String, _> = (0..100)
        .map(|n| (format!("f:field-{n}"), json!({})))
        .collect();
    let mut lock = bare_lock("dressed");
    lock.metadata.managed_fields = Some(vec![ManagedFieldsEntry {
        manager: Some("another".to_owned()),
        operation: Some("Update".to_owned()),
        api_version: Some("leasehold.dev/v1alpha1".to_owned()),
        fields_type: Some("FieldsV1".to_owned()),
        fields_v1: Some(FieldsV1(json!({ "f:spec": fields }))),
        ..ManagedFieldsEntry::default()
    }]);
    let answer = world.create(&a.client, &lock).await;
    answer.refused("spec.resource and nothing else");
    world.create(&a.client, &bare_lock("bare")).await.allowed();
}

/// An object that is being deleted goes with its last finalizer.
#[tokio::test]
async fn a_finalizer_ends_no_grant() {
    let world = World::new(TakeOver::Strict).await;
    let a = world.pod("a").await;
    let lock = world.lock(None).await;
    let locks = world.api::<DistributedLock>(&world.admin);
    let finalizers = async |wanted: Option<&str>| {
        let patch = Patch::Merge(json!({"metadata": {"finalizers": wanted.map(|one| [one])}}));
        outcome(locks.patch(&lock, &PatchParams::default(), &patch).await)
    };
    finalizers(Some("example.com/keep")).await.allowed();
    let deleted = locks.delete(&lock, &DeleteParams::default()).await;
    outcome(deleted.map(drop)).allowed();
    let take = |status: &mut Status| {
        status.token = TOKEN;
        grant(status, &a);
    };
    let taken = world.write(&a.client, &lock, take).await;
    taken.refused("the lock is being deleted");
    // As it was before the policies, or by a person's hand.
    world.write(&world.admin, &lock, take).await.allowed();
    finalizers(None).await.refused("without a record");
    world.write(&a.client, &lock, free).await.allowed();
    finalizers(None).await.allowed();
}
