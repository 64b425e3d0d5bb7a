//! The nodes that are out of service: an administrator has set the taint
//! `node.kubernetes.io/out-of-service`, and the node is not Ready. Only their names are kept.
//!
//! The taint affirms that the node is shut down, so that none of its processes runs. Kubernetes acts
//! on the same two conditions: it then deletes the node's pods by force, and detaches their volumes
//! (KEP-2268). A node that is Ready again ends the condition, although the taint is still there.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::listing::Listing;
use crate::protocol::session::PodRef;
use crate::protocol::time::{Moment, SessionTtl};
use crate::store::fleet::{FeedEvent, NodeReport};

#[derive(Debug, Default)]
pub(super) struct OutOfService {
    /// Since when each node was observed to be out of service.
    since: BTreeMap<Arc<str>, Moment>,
    /// When the last list ended: after an outage, agents can renew from about then.
    listed_at: Moment,
    pub(super) listing: Listing,
}

impl OutOfService {
    /// Returns when the session of a pod on this node counts as ended with it; `silent_since` is
    /// when the session was last observed to change.
    ///
    /// An outage of the API server silences every agent, and makes every node not Ready. So silence
    /// counts only from when the nodes were listed again.
    pub(super) fn lost_at(
        &self,
        pod: &PodRef,
        node: Option<&Arc<str>>,
        ttl: SessionTtl,
        silent_since: Moment,
    ) -> Option<Moment> {
        let node = node.filter(|_| !pod.uid.is_empty())?;
        let out_of_service = self.since(node)?;
        let silent_since = silent_since.max(self.listed_at);
        let missed = silent_since.after(ttl.missed_renewal());
        Some(missed.max(out_of_service))
    }

    fn since(&self, node: &str) -> Option<Moment> {
        self.since.get(node).copied()
    }

    /// Applies an event of the feed. Returns the node if it is out of service since then.
    pub(super) fn apply(
        &mut self,
        event: FeedEvent<NodeReport>,
        received: Moment,
    ) -> Option<Arc<str>> {
        match event {
            FeedEvent::Applied(node) => {
                if node.is_tainted && !node.is_ready {
                    if self.since.contains_key(&node.name) {
                        return None;
                    }
                    self.since.insert(node.name.clone(), received);
                    return Some(node.name);
                }
                self.since.remove(&node.name);
            }
            FeedEvent::Unreadable { object_ref, .. } | FeedEvent::Deleted(object_ref) => {
                self.since.remove(&object_ref.name);
            }
            // A node that became Ready meanwhile must not stay here. A list follows.
            FeedEvent::Interrupted(_) | FeedEvent::ListStarted => {
                self.since.clear();
                self.listing.start(std::iter::empty());
            }
            FeedEvent::ListDone => {
                self.listing.finish();
                self.listed_at = received;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator::tests::object_ref;
    use crate::store::StoreError;

    fn node(is_tainted: bool, is_ready: bool) -> FeedEvent<NodeReport> {
        FeedEvent::Applied(Box::new(NodeReport {
            name: "n1".into(),
            is_tainted,
            is_ready,
        }))
    }

    #[test]
    fn only_a_tainted_node_that_is_not_ready_is_out_of_service() {
        for (is_tainted, is_ready) in [(false, false), (false, true), (true, true)] {
            let mut nodes = OutOfService::default();
            assert_eq!(
                nodes.apply(node(is_tainted, is_ready), Moment::default()),
                None
            );
            assert!(nodes.since("n1").is_none(), "{is_tainted} {is_ready}");
        }
        let mut nodes = OutOfService::default();
        assert_eq!(
            nodes.apply(node(true, false), Moment::default()).as_deref(),
            Some("n1")
        );
        assert_eq!(
            nodes.apply(node(true, false), Moment::default()),
            None,
            "it was before"
        );
        assert!(nodes.since("n1").is_some() && nodes.since("n2").is_none());
    }

    #[test]
    fn node_is_in_service_again_after_each_change_and_doubt() {
        let error = StoreError::Unavailable("away".into());
        let ends = [
            ("it is Ready", node(true, true)),
            ("the taint was removed", node(false, false)),
            ("it was deleted", FeedEvent::Deleted(object_ref("", "n1"))),
            ("a list begins", FeedEvent::ListStarted),
            ("nothing is known", FeedEvent::Interrupted(error)),
        ];
        for (what, event) in ends {
            let mut nodes = OutOfService::default();
            nodes.apply(node(true, false), Moment::default());
            nodes.apply(event, Moment::default());
            assert!(nodes.since("n1").is_none(), "{what}");
        }
    }
}
