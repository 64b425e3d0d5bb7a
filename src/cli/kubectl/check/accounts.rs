//! Asks the API server for the rights of `ServiceAccounts`.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::Args;
use super::objects::may;
use crate::cli::kubectl::api::Api;
use crate::cli::kubectl::failure::Failure;
use crate::crd::GROUP;
use crate::kubectl::check::containers::{has_ended, sidecar};
use crate::kubectl::check::findings::{Account, Origin, PodFindings, Right, Shipped};
use crate::kubectl::check::rights_of;
use crate::kubectl::world::Known;

/// Reads the rights of the `ServiceAccounts` that are checked.
pub(super) async fn accounts(
    api: &Api,
    args: &Args,
    own: &Shipped,
    pods: &Known<Vec<Value>>,
    pod: Option<&PodFindings>,
) -> Result<Vec<Account>, Failure> {
    let account = |pod: &Value| {
        pod["spec"]["serviceAccountName"]
            .as_str()
            .unwrap_or("default")
            .to_owned()
    };
    let chosen = pod
        .and_then(|found| found.object.seen())
        .and_then(Option::as_ref);
    let all = pods.seen().map_or(&[][..], Vec::as_slice).iter();
    let of_pods: BTreeSet<_> = match (&args.service_account, chosen) {
        (Some(account), _) => BTreeSet::from([account.clone()]),
        (None, Some(pod)) => BTreeSet::from([account(pod)]),
        (None, None) => {
            let running = all.filter(|pod| !has_ended(pod) && sidecar(pod).is_some());
            running.map(account).collect()
        }
    };
    let (origin, names) = match (&args.service_account, of_pods.is_empty()) {
        (Some(_), _) => (Origin::Named, of_pods),
        (None, false) => (Origin::OfPods, of_pods),
        (None, true) => (Origin::Assumed, BTreeSet::from(["default".to_owned()])),
    };
    let needed = rights_of(&own.sidecar_rules);
    let mut accounts = Vec::new();
    for name in names {
        let missing = missing(api, &name, &needed).await?;
        accounts.push(Account {
            name,
            origin,
            missing,
        });
    }
    Ok(accounts)
}

async fn missing(
    api: &Api,
    account: &str,
    needed: &BTreeSet<Right>,
) -> Result<Known<Vec<Right>>, Failure> {
    let namespace = &api.namespace;
    let mut missing = Vec::new();
    for right in needed {
        let (resource, subresource) = right
            .resource
            .split_once('/')
            .unwrap_or((&right.resource, ""));
        let spec = json!({
            "user": format!("system:serviceaccount:{namespace}:{account}"),
            "groups": ["system:serviceaccounts", format!("system:serviceaccounts:{namespace}"), "system:authenticated"],
            "resourceAttributes": {"namespace": namespace, "group": GROUP, "verb": right.verb,
                "resource": resource, "subresource": subresource},
        });
        match may(api, "SubjectAccessReview", &spec).await? {
            Known::Unknown(right) => return Ok(Known::Unknown(right)),
            Known::Seen(true) => {}
            Known::Seen(false) => missing.push(right.clone()),
        }
    }
    Ok(Known::Seen(missing))
}
