//! What the operator cannot do: what its feeds were refused, and how often that is said.
//!
//! A right that is missing is missing in every try, and there are some in each second. So each kind of
//! trouble is said when it begins and every half minute while it lasts, with what to do. A replica that
//! may not see locks and sessions is not fit to be the active one.

use std::collections::BTreeMap;
use std::mem::Discriminant;
use std::time::Duration;

use crate::protocol::time::Moment;
use crate::store::StoreError;
use crate::store::fleet::Told;

use super::plan::Action;

/// What to do where a right is missing.
const RIGHTS: &str = "apply charts/leasehold/files/rbac/operator.yaml, or install the chart";
/// What to do if the rights to patch pods and locks are missing.
const LABEL_RIGHTS: &str = "apply charts/leasehold/files/rbac/operator-leader-labels.yaml (the chart: \
                            operator.leaderLabels), or omit --leader-labels";
/// What to do where the right to see namespaces is missing.
const NAMESPACE_RIGHTS: &str =
    "apply charts/leasehold/files/rbac/operator-namespaces.yaml, or install the chart";
/// What to do where the right to see labelled service accounts is missing.
const ACCOUNT_RIGHTS: &str = "apply charts/leasehold/files/rbac/operator-accounts.yaml (the chart: rbac.mode), \
                              or choose another --bind-sidecars";
/// What to do where the right to see or write role bindings is missing.
const BINDING_RIGHTS: &str = "apply charts/leasehold/files/rbac/operator-bindings.yaml (the chart: rbac.mode), \
                              or choose --bind-sidecars=none";
/// How often the same trouble is said.
const SAID_EVERY: Duration = Duration::from_secs(30);
/// For how long a feed is refused before that counts: an API server that starts refuses everything
/// until it has read the roles. A feed that was not refused for so long is told again; it tries more
/// often than that.
const REFUSED_FOR: Duration = Duration::from_secs(10);

/// What a feed is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Lock,
    Session,
    Pod,
    Namespace,
    Account,
    Binding,
    AskingPod,
}

impl Kind {
    pub(super) const ALL: [Self; 7] = [
        Self::Lock,
        Self::Session,
        Self::Pod,
        Self::Namespace,
        Self::Account,
        Self::Binding,
        Self::AskingPod,
    ];

    /// As in metrics and logs.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::Session => "session",
            Self::Pod => "pod",
            Self::Namespace => "namespace",
            Self::Account => "account",
            Self::Binding => "binding",
            Self::AskingPod => "asking_pod",
        }
    }

    /// Whether a replica that is refused it is of no use to pods either.
    pub(super) const fn is_needed_throughout(self) -> bool {
        matches!(self, Self::Lock | Self::Session | Self::Pod)
    }

    /// What to do where the right to see these is missing.
    const fn rights(self) -> &'static str {
        match self {
            Self::Lock | Self::Session | Self::Pod | Self::AskingPod => RIGHTS,
            Self::Namespace => NAMESPACE_RIGHTS,
            Self::Account => ACCOUNT_RIGHTS,
            Self::Binding => BINDING_RIGHTS,
        }
    }
}

/// What trouble is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum About {
    /// A feed that was refused.
    Refused(Kind),
    /// A feed that was interrupted otherwise.
    Interrupted(Kind),
    /// The question how far the store is.
    Revision,
    /// An object of this kind that cannot be read.
    Unreadable(Kind),
    /// Actions of this kind that were refused.
    Action(Discriminant<Action>),
}

/// What a feed's last trouble was, until it tells something.
struct Trouble {
    error: StoreError,
    since: Moment,
    last: Moment,
}

/// What trouble there is.
#[derive(Default)]
pub(super) struct Troubles {
    feeds: BTreeMap<Kind, Trouble>,
    /// When what was said last. A few kinds of trouble; kinds of actions have no order.
    said: Vec<(About, Moment)>,
}

impl Troubles {
    /// Takes note of what a feed tells; gives what is to be said of it, if anything.
    pub(super) fn note_told<T>(
        &mut self,
        kind: Kind,
        told: &Told<T>,
        now: Moment,
    ) -> Option<About> {
        let error = match told {
            Told::Interrupted(error) => error,
            // Said before it is asked for.
            Told::Anew => return None,
            Told::There(_) | Told::Unreadable { .. } | Told::Gone(_) | Told::Complete => {
                self.feeds.remove(&kind);
                return None;
            }
        };
        let goes_on = |before: &&Trouble| {
            is_refusal(&before.error) == is_refusal(error) && before.last.after(REFUSED_FOR) >= now
        };
        let since = self.feeds.get(&kind).filter(goes_on).map(|t| t.since);
        let trouble = Trouble {
            error: error.clone(),
            since: since.unwrap_or(now),
            last: now,
        };
        self.feeds.insert(kind, trouble);
        let about = if is_refusal(error) {
            About::Refused(kind)
        } else {
            About::Interrupted(kind)
        };
        self.may_say(about, now).then_some(about)
    }

    /// Whether it is time to say this: it was not said for a while.
    pub(super) fn may_say(&mut self, about: About, now: Moment) -> bool {
        let said = self.said.iter_mut().find(|(what, _)| *what == about);
        let Some((_, said)) = said else {
            self.said.push((about, now));
            return true;
        };
        let is_due = said.after(SAID_EVERY) <= now;
        if is_due {
            *said = now;
        }
        is_due
    }

    /// Why this feed, which has told everything once, does not tell what changes: it has been refused
    /// for so long that it is no accident.
    pub(super) fn refused(&self, kind: Kind, now: Moment) -> Option<&StoreError> {
        let trouble = self.feeds.get(&kind)?;
        let lasts = trouble.since.after(REFUSED_FOR) <= now;
        let goes_on = trouble.last.after(REFUSED_FOR) > now;
        (is_refusal(&trouble.error) && lasts && goes_on).then_some(&trouble.error)
    }

    /// What a feed that has not told everything yet complained of last.
    pub(super) fn last(&self, kind: Kind) -> Option<&StoreError> {
        self.feeds.get(&kind).map(|trouble| &trouble.error)
    }
}

/// Whether the store answered, and will answer the same until somebody does something.
const fn is_refusal(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::Denied(_) | StoreError::Unauthenticated(_) | StoreError::NotInstalled(_)
    )
}

/// What to do about a refusal, where its own words do not say.
pub(super) const fn advice(error: &StoreError) -> Option<&'static str> {
    match error {
        StoreError::Denied(_) => Some(RIGHTS),
        _ => None,
    }
}

/// The same, for patches of pods and locks.
pub(super) const fn label_advice(error: &StoreError) -> Option<&'static str> {
    match error {
        StoreError::Denied(_) => Some(LABEL_RIGHTS),
        _ => None,
    }
}

/// The same of a write to a role binding.
pub(super) const fn binding_advice(error: &StoreError) -> Option<&'static str> {
    match error {
        StoreError::Denied(_) => Some(BINDING_RIGHTS),
        _ => None,
    }
}

/// What a feed of this kind met, with what to do about it.
pub(super) fn with_advice(kind: Kind, error: &StoreError) -> String {
    match error {
        StoreError::Denied(_) => format!("{error}; {}", kind.rights()),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::since_boot(Duration::from_secs(seconds))
    }

    fn refused() -> Told<()> {
        Told::Interrupted(StoreError::Denied("no".into()))
    }

    #[test]
    fn refused_feed_is_logged_at_once_and_every_half_minute() {
        let mut troubles = Troubles::default();
        let mut said = Vec::new();
        for second in 0..=60 {
            for kind in [Kind::Lock, Kind::Pod] {
                troubles.note_told(kind, &Told::<()>::Anew, at(second));
                if let Some(about) = troubles.note_told(kind, &refused(), at(second)) {
                    said.push((second, about));
                }
            }
        }
        let both = [About::Refused(Kind::Lock), About::Refused(Kind::Pod)];
        let expected = [0, 30, 60].into_iter().flat_map(|s| both.map(|b| (s, b)));
        assert_eq!(said, expected.collect::<Vec<_>>());
    }

    #[test]
    fn refusal_after_an_outage_is_logged_and_counted_from_then() {
        let mut troubles = Troubles::default();
        let away = Told::<()>::Interrupted(StoreError::Unavailable("away".into()));
        let kind = Kind::Session;
        let about = troubles.note_told(kind, &away, at(1));
        assert_eq!(about, Some(About::Interrupted(kind)));
        for second in [2, 9] {
            assert_eq!(troubles.note_told(kind, &away, at(second)), None);
        }
        let about = troubles.note_told(kind, &refused(), at(12));
        assert_eq!(about, Some(About::Refused(kind)));
        assert!(troubles.refused(kind, at(13)).is_none());
        troubles.note_told(kind, &refused(), at(21));
        assert!(troubles.refused(kind, at(22)).is_some());
        troubles.note_told(kind, &Told::<()>::Complete, at(23));
        assert!(troubles.refused(kind, at(23)).is_none());
    }
}
