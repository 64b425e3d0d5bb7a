//! The identity of a client's credentials. The admission policies compare the same facts.

use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::Client;
use serde_json::{Value, json};

use super::calls::Calls;
use crate::protocol::session::PodRef;
use crate::store::StoreError;

/// A user of the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The user name.
    pub user: String,
    /// The pod that the credentials are bound to, if they are a pod's.
    pub pod: Option<PodRef>,
}

/// Returns the owner of the client's credentials, by a `SelfSubjectReview`. All authenticated users may send
/// one, unless an administrator removed that right.
///
/// # Errors
/// If no valid answer arrives. The question changes nothing, so it can be sent again.
pub async fn identity(client: Client) -> Result<Identity, StoreError> {
    let calls = Calls::everywhere::<SelfSubjectReview>(client);
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let answer = calls.review(&review).await?;
    Ok(read(&answer["status"]["userInfo"]))
}

/// Reads the user of an answer. The keys are those of tokens that are bound to pods (KEP-1205, KEP-4193).
fn read(user: &Value) -> Identity {
    let extra = |key: &str| {
        let values = &user["extra"][format!("authentication.kubernetes.io/{key}")];
        values[0].as_str().filter(|value| !value.is_empty())
    };
    let pod = extra("pod-name").zip(extra("pod-uid"));
    Identity {
        user: user["username"].as_str().unwrap_or_default().to_owned(),
        pod: pod.map(|(name, uid)| PodRef {
            name: name.into(),
            uid: uid.into(),
            node: extra("node-name").map(Into::into),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_is_the_one_that_the_token_is_bound_to() {
        let account = "system:serviceaccount:team:app";
        let bound = json!({"username": account, "extra": {
            "authentication.kubernetes.io/pod-name": ["report-x7"],
            "authentication.kubernetes.io/pod-uid": ["c1"],
            "authentication.kubernetes.io/node-name": ["node-1"],
        }});
        let pod = PodRef {
            name: "report-x7".into(),
            uid: "c1".into(),
            node: Some("node-1".into()),
        };
        assert_eq!(read(&bound).pod, Some(pod));
        for other in [
            json!({"username": account}),
            json!({"username": account, "extra": {"authentication.kubernetes.io/pod-name": ["x"]}}),
        ] {
            let identity = read(&other);
            assert_eq!((&*identity.user, identity.pod), (account, None));
        }
    }
}
