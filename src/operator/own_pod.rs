//! Whether the pod that a replica says it is in is there.
//!
//! Nothing refuses a wrong name or uid: the policies know the operator by its account. But its session
//! is then owned by a pod that does not exist, so the garbage collector deletes it, and the replica
//! loses the lead again and again, which says nothing of the cause.

use std::sync::Arc;
use std::time::Duration;

use crate::store::fleet::{FleetStore, Place, PodReport};

/// How long it rests before it is asked again.
const REST: Duration = Duration::from_secs(10);

/// The pod that a replica says it is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnPod {
    /// Its namespace and name.
    pub place: Place,
    /// Its uid.
    pub uid: Arc<str>,
}

impl OwnPod {
    /// Asks until it is known whether there is such a pod; gives what is wrong, for people.
    pub async fn what_is_wrong(&self, fleet: &dyn FleetStore) -> Option<String> {
        loop {
            match fleet.pod(&self.place).await {
                Ok(found) => return self.differs_from(found.as_ref()),
                // The feeds say what stands in the way.
                Err(_) => tokio::time::sleep(REST).await,
            }
        }
    }

    fn differs_from(&self, found: Option<&PodReport>) -> Option<String> {
        let Place { namespace, name } = &self.place;
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
            place: Place {
                namespace: "leasehold-system".into(),
                name: "op-0".into(),
            },
            uid: "u-0".into(),
        }
    }

    fn found(uid: &str) -> PodReport {
        PodReport {
            place: own().place,
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
        assert_eq!(own().differs_from(Some(&found("u-0"))), None);
        for (found, words) in [
            (Some(found("u-1")), "has uid u-1, not u-0"),
            (None, "no pod op-0 in namespace leasehold-system"),
        ] {
            let said = own().differs_from(found.as_ref()).unwrap();
            assert!(said.contains(words) && said.contains("--pod-uid"), "{said}");
        }
    }
}
