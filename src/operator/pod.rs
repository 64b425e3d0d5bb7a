//! Decides whether a pod has ended, by the report of the kubelet.
//!
//! It is strict, because an early take-over depends on it. A pod that was only deleted, or that
//! another component marked as ended, may still run on an unreachable node.

use crate::store::fleet::{ContainerReport, PodReport};

/// Returns whether the kubelet reports that all containers have terminated and will not be
/// restarted.
#[must_use]
pub fn has_ended(pod: &PodReport) -> bool {
    let stays_ended = pod.is_terminal || pod.is_deleted;
    let all_reported = pod.declared > 0 && pod.containers.len() >= pod.declared;
    let mut containers = pod.containers.iter();
    stays_ended
        && !pod.is_presumed
        && all_reported
        && containers.all(|container| *container == ContainerReport::Terminated)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::fleet::ObjectRef;
    use ContainerReport::{Alive, Terminated, Unknown};

    fn ended() -> PodReport {
        PodReport {
            object_ref: ObjectRef {
                namespace: "n".into(),
                name: "p".into(),
            },
            uid: "u".into(),
            is_terminal: true,
            is_deleted: false,
            is_presumed: false,
            declared: 2,
            containers: vec![Terminated, Terminated],
        }
    }

    #[test]
    fn pod_has_ended_only_after_all_its_containers_ended_for_good() {
        let with = |containers: &[ContainerReport]| PodReport {
            containers: containers.to_vec(),
            ..ended()
        };
        let deleted = PodReport {
            is_terminal: false,
            is_deleted: true,
            ..ended()
        };
        let restarting = PodReport {
            is_terminal: false,
            ..ended()
        };
        let presumed = PodReport {
            is_presumed: true,
            ..ended()
        };
        let never_ran = PodReport {
            declared: 0,
            ..with(&[])
        };
        let table = [
            ("ended", ended(), true),
            ("deleted, and all ended", deleted, true),
            ("between two runs of its containers", restarting, false),
            ("given up by a controller", presumed, false),
            ("one runs", with(&[Terminated, Alive]), false),
            ("one state is unknown", with(&[Terminated, Unknown]), false),
            ("one is not reported", with(&[Terminated]), false),
            ("none is reported", with(&[]), false),
            ("it has none", never_ran, false),
        ];
        for (what, pod, expected) in table {
            assert_eq!(has_ended(&pod), expected, "{what}");
        }
    }
}
