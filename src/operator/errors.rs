//! The errors of feeds and actions: what to do about them, and how often they are logged.
//!
//! A missing permission fails every attempt, several times a second. So each kind of error is
//! logged when it begins and every half minute while it lasts, with advice. A replica that may not
//! watch locks and sessions cannot be the active one.

use std::collections::BTreeMap;
use std::mem::Discriminant;
use std::time::Duration;

use crate::protocol::time::Moment;
use crate::store::StoreError;
use crate::store::fleet::FeedEvent;

use super::action::Action;
use super::observation::FeedKind;

/// What to do if a permission is missing.
pub(super) const RIGHTS: &str =
    "apply charts/leasehold/files/rbac/operator.yaml, or install the chart";
/// What to do if the permissions to patch pods and locks are missing.
pub(super) const LABEL_RIGHTS: &str = "apply charts/leasehold/files/rbac/operator-leader-labels.yaml (the chart: \
                            operator.leaderLabels), or omit --leader-labels";
/// What to do if the permission to watch nodes is missing, and what does not work until then.
const NODE_RIGHTS: &str = "apply charts/leasehold/files/rbac/operator.yaml, or install the chart; until then the taint \
                           node.kubernetes.io/out-of-service frees no lock";
/// What to do if the permission to watch namespaces is missing.
const NAMESPACE_RIGHTS: &str =
    "apply charts/leasehold/files/rbac/operator-namespaces.yaml, or install the chart";
/// What to do if the permission to watch labelled service accounts is missing.
const ACCOUNT_RIGHTS: &str = "apply charts/leasehold/files/rbac/operator-accounts.yaml (the chart: rbac.mode), \
                              or choose another --bind-sidecars";
/// What to do if the permission to watch or write role bindings is missing.
pub(super) const BINDING_RIGHTS: &str = "apply charts/leasehold/files/rbac/operator-bindings.yaml (the chart: rbac.mode), \
                              or choose --bind-sidecars=none";
/// How often the same error is logged.
const LOG_INTERVAL: Duration = Duration::from_secs(30);
/// How long a feed is refused before it counts: an API server that starts refuses every request
/// until it has read the roles. A feed without a refusal for this long works again, because it
/// retries more often.
const REFUSED_AFTER: Duration = Duration::from_secs(10);

/// What an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ErrorTopic {
    /// A feed that was refused.
    Refused(FeedKind),
    /// A feed that was interrupted by another error.
    Interrupted(FeedKind),
    /// A read of the store's revision.
    Revision,
    /// An object of this kind that cannot be read.
    Unreadable(FeedKind),
    /// Actions of this kind that were refused.
    Action(Discriminant<Action>),
}

impl ErrorTopic {
    /// Returns whether it is logged only when it begins for the first time: the operator works without
    /// it.
    const fn is_logged_once(self) -> bool {
        matches!(self, Self::Refused(kind) if kind.is_optional())
    }
}

/// The last error of a feed, until it delivers something else.
struct FeedError {
    error: StoreError,
    since: Moment,
    last: Moment,
}

/// The current errors of all feeds, and when each topic was last logged.
#[derive(Default)]
pub(super) struct ErrorLog {
    feeds: BTreeMap<FeedKind, FeedError>,
    /// When each topic was last logged. A short list, because kinds of actions have no order.
    logged: Vec<(ErrorTopic, Moment)>,
}

impl ErrorLog {
    /// Observes an event of a feed. Returns what to log, if anything.
    pub(super) fn observe<T>(
        &mut self,
        kind: FeedKind,
        event: &FeedEvent<T>,
        now: Moment,
    ) -> Option<ErrorTopic> {
        let error = match event {
            FeedEvent::Interrupted(error) => error,
            // Sent before the list request, so it is not a success.
            FeedEvent::ListStarted => return None,
            FeedEvent::Applied(_)
            | FeedEvent::Unreadable { .. }
            | FeedEvent::Deleted(_)
            | FeedEvent::ListDone => {
                self.feeds.remove(&kind);
                return None;
            }
        };
        let continues = |before: &&FeedError| {
            is_refusal(&before.error) == is_refusal(error)
                && before.last.after(REFUSED_AFTER) >= now
        };
        let since = self.feeds.get(&kind).filter(continues).map(|t| t.since);
        let feed_error = FeedError {
            error: error.clone(),
            since: since.unwrap_or(now),
            last: now,
        };
        self.feeds.insert(kind, feed_error);
        let about = if is_refusal(error) {
            ErrorTopic::Refused(kind)
        } else {
            ErrorTopic::Interrupted(kind)
        };
        self.should_log(about, now).then_some(about)
    }

    /// Returns whether a topic may be logged now, and records it as logged.
    pub(super) fn should_log(&mut self, about: ErrorTopic, now: Moment) -> bool {
        let logged = self.logged.iter_mut().find(|(what, _)| *what == about);
        let Some((_, logged)) = logged else {
            self.logged.push((about, now));
            return true;
        };
        let is_due = logged.after(LOG_INTERVAL) <= now && !about.is_logged_once();
        if is_due {
            *logged = now;
        }
        is_due
    }

    /// Returns the error of a feed whose requests have been refused for longer than an API server
    /// takes to start. For feeds that were listed before.
    pub(super) fn refused(&self, kind: FeedKind, now: Moment) -> Option<&StoreError> {
        let feed_error = self.feeds.get(&kind)?;
        let lasts = feed_error.since.after(REFUSED_AFTER) <= now;
        let continues = feed_error.last.after(REFUSED_AFTER) > now;
        (is_refusal(&feed_error.error) && lasts && continues).then_some(&feed_error.error)
    }

    /// Returns the last error of a feed that is not listed yet.
    pub(super) fn last_error(&self, kind: FeedKind) -> Option<&StoreError> {
        self.feeds.get(&kind).map(|feed_error| &feed_error.error)
    }
}

/// Returns what to do if the permission to watch these objects is missing.
const fn watch_rights(kind: FeedKind) -> &'static str {
    match kind {
        FeedKind::Lock | FeedKind::Session | FeedKind::Pod | FeedKind::UninjectedPod => RIGHTS,
        FeedKind::Node => NODE_RIGHTS,
        FeedKind::Namespace => NAMESPACE_RIGHTS,
        FeedKind::Account => ACCOUNT_RIGHTS,
        FeedKind::Binding => BINDING_RIGHTS,
    }
}

/// Returns whether the store's answer stays the same until a person changes something.
const fn is_refusal(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::Denied(_) | StoreError::Unauthenticated(_) | StoreError::NotInstalled(_)
    )
}

/// Returns what to do about a refusal, if its own message does not say it. `rights` is what to do
/// if the permission is missing.
pub(super) const fn advice(error: &StoreError, rights: &'static str) -> Option<&'static str> {
    match error {
        StoreError::Denied(_) => Some(rights),
        _ => None,
    }
}

/// Returns the error of a feed of this kind, with what to do about it.
pub(super) fn with_advice(kind: FeedKind, error: &StoreError) -> String {
    advice(error, watch_rights(kind))
        .map_or_else(|| error.to_string(), |advice| format!("{error}; {advice}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::since_boot(Duration::from_secs(seconds))
    }

    fn refused() -> FeedEvent<()> {
        FeedEvent::Interrupted(StoreError::Denied("no".into()))
    }

    #[test]
    fn refused_feed_is_logged_at_once_and_every_half_minute() {
        let mut errors = ErrorLog::default();
        let mut logged = Vec::new();
        for second in 0..=60 {
            for kind in [FeedKind::Lock, FeedKind::Pod] {
                errors.observe(kind, &FeedEvent::<()>::ListStarted, at(second));
                if let Some(about) = errors.observe(kind, &refused(), at(second)) {
                    logged.push((second, about));
                }
            }
        }
        let both = [
            ErrorTopic::Refused(FeedKind::Lock),
            ErrorTopic::Refused(FeedKind::Pod),
        ];
        let expected = [0, 30, 60].into_iter().flat_map(|s| both.map(|b| (s, b)));
        assert_eq!(logged, expected.collect::<Vec<_>>());
    }

    #[test]
    fn refusal_after_an_outage_is_logged_and_counted_from_then() {
        let mut errors = ErrorLog::default();
        let away = FeedEvent::<()>::Interrupted(StoreError::Unavailable("away".into()));
        let kind = FeedKind::Session;
        let about = errors.observe(kind, &away, at(1));
        assert_eq!(about, Some(ErrorTopic::Interrupted(kind)));
        for second in [2, 9] {
            assert_eq!(errors.observe(kind, &away, at(second)), None);
        }
        let about = errors.observe(kind, &refused(), at(12));
        assert_eq!(about, Some(ErrorTopic::Refused(kind)));
        assert!(errors.refused(kind, at(13)).is_none());
        errors.observe(kind, &refused(), at(21));
        assert!(errors.refused(kind, at(22)).is_some());
        errors.observe(kind, &FeedEvent::<()>::ListDone, at(23));
        assert!(errors.refused(kind, at(23)).is_none());
    }
}
