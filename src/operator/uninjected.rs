//! Reports pods that request a sidecar by their label and have none. Without a report, their apps
//! would only see that nothing listens.
//!
//! The containers of a pod cannot be changed, so it is reported at once, and nothing else is done.

use crate::store::fleet::Object;
use crate::store::namespaces::UninjectedPod;

use super::plan::Rules;
use super::view::View;

/// The webhook never injects there, regardless of the labels.
const KUBE_SYSTEM: &str = "kube-system";

/// Returns whether a pod runs, or will run, without the sidecar that it requests.
pub(super) const fn lacks_sidecar(pod: UninjectedPod) -> bool {
    !pod.has_sidecar && !pod.is_mirror && !pod.has_ended
}

/// Returns whether a pod is reported.
pub(super) fn should_report(view: &View, rules: &Rules, pod: &Object<UninjectedPod>) -> bool {
    let namespace = &pod.object_ref.namespace;
    let is_exempt = **namespace == *KUBE_SYSTEM || *namespace == rules.namespace;
    rules.report_uninjected && !is_exempt && view.labelled().is_labelled(namespace)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator::plan;
    use crate::operator::view::Key;
    use crate::protocol::token::Revision;
    use crate::store::fleet::{FeedEvent, ObjectRef};
    use crate::store::{Original, Stored};

    fn placed<T>(namespace: &str, name: &str, value: T, version: u64) -> Object<T> {
        Object {
            object_ref: ObjectRef {
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

    fn there<T>(namespace: &str, name: &str, value: T, version: u64) -> FeedEvent<Object<T>> {
        FeedEvent::Applied(Box::new(placed(namespace, name, value, version)))
    }

    #[test]
    fn only_running_pods_without_their_sidecar_are_kept() {
        let asks = UninjectedPod::default();
        let over = UninjectedPod {
            has_ended: true,
            ..asks
        };
        let mirror = UninjectedPod {
            is_mirror: true,
            ..asks
        };
        let served = UninjectedPod {
            has_sidecar: true,
            ..asks
        };
        let mut view = View::default();
        for pod in [over, mirror, served] {
            view.observe_uninjected_pod(there("n", "p", pod, 1));
            assert_eq!(view.take_changed(), [], "{pod:?}");
        }
        view.observe_uninjected_pod(there("n", "p", asks, 2));
        assert_eq!(view.take_changed().len(), 1);
        assert_eq!(view.labelled().all_without_sidecar().count(), 1);
        view.observe_uninjected_pod(there("n", "p", over, 3));
        assert_eq!(view.labelled().all_without_sidecar().count(), 0);
    }

    #[test]
    fn missing_sidecar_is_reported_in_labelled_namespaces_only() {
        let rules = Rules {
            report_uninjected: true,
            ..plan::tests::rules()
        };
        let quiet = plan::tests::rules();
        let mut view = View::default();
        for namespace in ["n", "kube-system", "leasehold-system"] {
            view.observe_namespace(there("", namespace, (), 1));
        }
        for (namespace, expected) in [
            ("n", true),
            ("not-labelled", false),
            ("kube-system", false),
            ("leasehold-system", false),
        ] {
            let pod = placed(namespace, "p", UninjectedPod::default(), 1);
            assert_eq!(should_report(&view, &rules, &pod), expected, "{namespace}");
            assert!(!should_report(&view, &quiet, &pod));
        }
    }

    #[test]
    fn pods_are_checked_after_their_namespace_is_labelled() {
        let mut view = View::default();
        for namespace in ["n", "m"] {
            view.observe_uninjected_pod(there(namespace, "p", UninjectedPod::default(), 1));
        }
        view.take_changed();
        view.observe_namespace(there("", "n", (), 1));
        let mut pods = view.take_changed();
        pods.retain(|key| matches!(key, Key::UninjectedPod(_)));
        let expected = placed("n", "p", (), 1).object_ref;
        assert_eq!(pods, [Key::UninjectedPod(expected)]);
    }
}
