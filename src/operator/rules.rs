//! The settings of the operator.

use std::sync::Arc;
use std::time::Duration;

use super::observation::FeedKind;

/// The settings of the operator.
#[derive(Clone, Debug)]
pub struct Rules {
    /// The actor in records of grants that the operator ends: its pod.
    pub actor: Arc<str>,
    /// Added to every token base; the same in the whole installation.
    pub token_floor: u64,
    /// How long a free and idle lock is kept if its spec has no value.
    pub retain: Duration,
    /// How long the object of an ended session is kept if no lock names it. A late write may still
    /// add a queue entry of the session, and people inspect ended sessions.
    pub keep_sessions: Duration,
    /// After how long a grant counts as long-held if the lock's spec has no value.
    pub long_held: Duration,
    /// Whether the pod of an election's leader gets a label.
    pub leader_labels: bool,
    /// The interval between checks of a leader's pod that runs with `elect-always`. Only used with
    /// leader labels.
    pub unready_leader: Duration,
    /// Which service accounts of labelled namespaces get the sidecar's role.
    pub bind_sidecars: BindSidecars,
    /// Whether pods that request a sidecar and have none are reported.
    pub report_uninjected: bool,
    /// The operator's own namespace, where no pod is injected.
    pub namespace: Arc<str>,
}

impl Rules {
    /// Returns the kinds of objects that are watched.
    pub(super) fn watched(&self) -> impl Iterator<Item = FeedKind> {
        FeedKind::ALL.into_iter().filter(|kind| match kind {
            FeedKind::Lock | FeedKind::Session | FeedKind::Pod | FeedKind::Node => true,
            FeedKind::Account | FeedKind::Binding => self.bind_sidecars.watches(*kind),
            FeedKind::Namespace => self.report_uninjected || self.bind_sidecars.watches(*kind),
            FeedKind::UninjectedPod => self.report_uninjected,
        })
    }
}

/// Which service accounts of a labelled namespace get the sidecar's role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BindSidecars {
    /// None: the bindings are managed elsewhere.
    #[default]
    None,
    /// All service accounts of the namespace.
    Namespace,
    /// The service accounts that have the label.
    ServiceAccount,
}

impl BindSidecars {
    /// Returns whether a kind of object has to be watched for it.
    pub(super) const fn watches(self, kind: FeedKind) -> bool {
        match kind {
            FeedKind::Namespace | FeedKind::Binding => !matches!(self, Self::None),
            FeedKind::Account => matches!(self, Self::ServiceAccount),
            FeedKind::Lock
            | FeedKind::Session
            | FeedKind::Pod
            | FeedKind::Node
            | FeedKind::UninjectedPod => false,
        }
    }
}
