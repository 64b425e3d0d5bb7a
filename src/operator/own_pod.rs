//! Checks that the pod in which a replica believes to run exists.
//!
//! Nothing rejects a wrong name or uid: the policies identify the operator by its service account.
//! But then its session is owned by a pod that does not exist, so the garbage collector deletes it.
//! The replica loses the lead repeatedly, without a visible cause.

use std::sync::Arc;
use std::time::Duration;

use crate::store::fleet::{FleetStore, ObjectRef, PodReport};

/// The pause before a failed read is repeated.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// The pod that a replica runs in, by its flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnPod {
    /// Its namespace and name.
    pub object_ref: ObjectRef,
    /// Its uid.
    pub uid: Arc<str>,
}

impl OwnPod {
    /// Reads the pod until an answer comes. Returns how it differs from the flags, as text.
    pub async fn mismatch(&self, fleet: &dyn FleetStore) -> Option<String> {
        loop {
            match fleet.pod(&self.object_ref).await {
                Ok(found) => return self.mismatch_with(found.as_ref()),
                // The feeds report the cause of the error.
                Err(_) => tokio::time::sleep(RETRY_INTERVAL).await,
            }
        }
    }

    fn mismatch_with(&self, found: Option<&PodReport>) -> Option<String> {
        let ObjectRef { namespace, name } = &self.object_ref;
        let what = match found {
            Some(found) if found.uid == self.uid => return None,
            Some(found) => {
                let (real, said) = (&found.uid, &self.uid);
                format!("pod {name} in namespace {namespace} has uid {real}, not {said}")
            }
            None => format!("no pod {name} in namespace {namespace}"),
        };
        Some(format!(
            "{what}; --pod-name, --pod-uid and --namespace must be those of this pod (downward \
             API), otherwise its session is garbage-collected and it cannot keep the lead"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> OwnPod {
        OwnPod {
            object_ref: ObjectRef {
                namespace: "leasehold-system".into(),
                name: "op-0".into(),
            },
            uid: "u-0".into(),
        }
    }

    fn found(uid: &str) -> PodReport {
        PodReport {
            object_ref: own().object_ref,
            uid: uid.into(),
            is_terminal: false,
            is_deleted: false,
            is_presumed: false,
            declared: 1,
            containers: vec![],
        }
    }

    #[test]
    fn wrong_or_missing_own_pod_is_reported_with_its_flags() {
        assert_eq!(own().mismatch_with(Some(&found("u-0"))), None);
        for (found, words) in [
            (Some(found("u-1")), "has uid u-1, not u-0"),
            (None, "no pod op-0 in namespace leasehold-system"),
        ] {
            let said = own().mismatch_with(found.as_ref()).unwrap();
            assert!(said.contains(words) && said.contains("--pod-uid"), "{said}");
        }
    }
}
