//! Pods that ask for a sidecar by their label and have none: who made them is told, because to the app it
//! looks as if nobody listened.
//!
//! A pod's containers are fixed when it is made, so it is told at once, and nothing is done about it.

use crate::store::fleet::Placed;
use crate::store::namespaces::AskingPod;

use super::plan::Rules;
use super::view::View;

/// Where the webhook is not asked, whatever the labels are.
const KUBE_SYSTEM: &str = "kube-system";

/// Whether a pod is one that a sidecar was meant for, and runs, or will, without.
pub(super) const fn lacks_sidecar(pod: AskingPod) -> bool {
    !pod.has_sidecar && !pod.is_mirror && !pod.is_over
}

/// Whether somebody is to be told of a pod.
pub(super) fn is_to_be_told(view: &View, rules: &Rules, pod: &Placed<AskingPod>) -> bool {
    let namespace = &pod.place.namespace;
    let is_exempt = **namespace == *KUBE_SYSTEM || *namespace == rules.namespace;
    rules.tell_of_missing && !is_exempt && view.labelled().is_labelled(namespace)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator::plan;
    use crate::operator::view::Key;
    use crate::protocol::token::Revision;
    use crate::store::fleet::{Place, Told};
    use crate::store::{Original, Stored};

    fn placed<T>(namespace: &str, name: &str, value: T, version: u64) -> Placed<T> {
        Placed {
            place: Place {
                namespace: namespace.into(),
                name: name.into(),
            },
            uid: "u".into(),
            is_deleted: false,
            is_misnamed: false,
            set_at: None,
            stored: Stored {
                value,
                version: Revision(version),
                original: Original::new(()),
            },
        }
    }

    fn there<T>(namespace: &str, name: &str, value: T, version: u64) -> Told<Placed<T>> {
        Told::There(Box::new(placed(namespace, name, value, version)))
    }

    #[test]
    fn only_running_pods_without_their_sidecar_are_kept() {
        let asks = AskingPod::default();
        let over = AskingPod {
            is_over: true,
            ..asks
        };
        let mirror = AskingPod {
            is_mirror: true,
            ..asks
        };
        let served = AskingPod {
            has_sidecar: true,
            ..asks
        };
        let mut view = View::default();
        for pod in [over, mirror, served] {
            view.note_asking_pod(there("n", "p", pod, 1));
            assert_eq!(view.take_changed(), [], "{pod:?}");
        }
        view.note_asking_pod(there("n", "p", asks, 2));
        assert_eq!(view.take_changed().len(), 1);
        assert_eq!(view.labelled().all_without_sidecar().count(), 1);
        view.note_asking_pod(there("n", "p", over, 3));
        assert_eq!(view.labelled().all_without_sidecar().count(), 0);
    }

    #[test]
    fn missing_sidecar_is_reported_in_labelled_namespaces_only() {
        let rules = Rules {
            tell_of_missing: true,
            ..plan::tests::rules()
        };
        let quiet = plan::tests::rules();
        let mut view = View::default();
        for namespace in ["n", "kube-system", "leasehold-system"] {
            view.note_namespace(there("", namespace, (), 1));
        }
        for (namespace, expected) in [
            ("n", true),
            ("not-labelled", false),
            ("kube-system", false),
            ("leasehold-system", false),
        ] {
            let pod = placed(namespace, "p", AskingPod::default(), 1);
            assert_eq!(is_to_be_told(&view, &rules, &pod), expected, "{namespace}");
            assert!(!is_to_be_told(&view, &quiet, &pod));
        }
    }

    #[test]
    fn pods_are_checked_after_their_namespace_is_labelled() {
        let mut view = View::default();
        for namespace in ["n", "m"] {
            view.note_asking_pod(there(namespace, "p", AskingPod::default(), 1));
        }
        view.take_changed();
        view.note_namespace(there("", "n", (), 1));
        let mut pods = view.take_changed();
        pods.retain(|key| matches!(key, Key::AskingPod(_)));
        let expected = placed("n", "p", (), 1).place;
        assert_eq!(pods, [Key::AskingPod(expected)]);
    }
}
