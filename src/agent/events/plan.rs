//! What an open stream of events says next, and when: decided from what is known of the lease and
//! from what was said before.
//!
//! Pure: no clock, no I/O. Nothing is queued here. Whoever could not be told for a while is told
//! what is true now, so a slow reader costs no memory and hears no old news.

use std::sync::Arc;
use std::time::Duration;

use crate::protocol::lease::Loss;
use crate::protocol::settings::ReleaseRequest;
use crate::protocol::time::Moment;

/// How a lease ended, as its streams tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::agent) enum Over {
    /// Its app ended it: there is nothing to tell.
    Released,
    /// Its app did not end it.
    Lost(Loss),
}

/// Why an app is asked to release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// The agent was told to stop.
    AgentStopping,
    /// The longest time that the lock may be held is nearly over.
    MaxHold,
    /// A person asks for it.
    PersonAsked(Arc<ReleaseRequest>),
}

/// What there is to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Topic {
    /// The first event.
    Opening,
    /// The lease goes on.
    Heartbeat,
    /// Renewals fail, and not much is left.
    AtRisk,
    /// The app is asked to release.
    Requested(Request),
    /// The lease is over; nothing comes after it.
    Lost(Loss),
}

/// What to do now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Say this.
    Say(Topic),
    /// Nothing before this moment, unless something changes.
    Rest(Moment),
    /// The stream has come to its end.
    End,
}

/// What is known of the lease.
#[derive(Clone, Debug)]
pub(super) struct Sight {
    /// How it ended, if it has.
    pub(super) over: Option<Over>,
    /// Whether the agent is stopping.
    pub(super) is_stopping: bool,
    /// What a person asks of its app.
    pub(super) asked: Option<Arc<ReleaseRequest>>,
    /// From when on it is at risk; none while renewals succeed.
    pub(super) risk_at: Option<Moment>,
    /// When its app is asked to release because it has held for nearly as long as it may.
    pub(super) warn_at: Option<Moment>,
    /// When it is over, if nothing changes.
    pub(super) ends_at: Moment,
}

/// What was said.
#[derive(Clone, Debug, Default)]
pub(super) struct Said {
    /// The last event, and when it was given.
    last: Option<(Topic, Moment)>,
    of_risk: bool,
    of_stop: bool,
    of_max_hold: bool,
    /// The last request of a person, unless that was withdrawn since.
    of_person: Option<Arc<ReleaseRequest>>,
}

impl Said {
    /// What to say next. What cannot wait comes first.
    pub(super) fn plan_next(&self, sight: &Sight, interval: Duration, now: Moment) -> Next {
        match sight.over {
            _ if matches!(self.last, Some((Topic::Lost(_), _))) => return Next::End,
            Some(Over::Lost(loss)) => return Next::Say(Topic::Lost(loss)),
            Some(Over::Released) => return Next::End,
            None => {}
        }
        let Some((_, told_at)) = &self.last else {
            return Next::Say(Topic::Opening);
        };
        if sight.is_stopping && !self.of_stop {
            return Next::Say(Topic::Requested(Request::AgentStopping));
        }
        if let Some(request) = &sight.asked
            && self.of_person.as_ref() != Some(request)
        {
            return Next::Say(Topic::Requested(Request::PersonAsked(request.clone())));
        }
        let heartbeat = (told_at.after(interval), Topic::Heartbeat);
        let max_hold = sight.warn_at.filter(|_| !self.of_max_hold);
        let at_risk = sight.risk_at.filter(|_| !self.of_risk);
        let topics = [
            max_hold.map(|at| (at, Topic::Requested(Request::MaxHold))),
            at_risk.map(|at| (at, Topic::AtRisk)),
            Some(heartbeat),
        ];
        let mut topics = topics.into_iter().flatten();
        let next = topics.clone().map(|(at, _)| at).min();
        if let Some((_, topic)) = topics.find(|(at, _)| now >= *at) {
            return Next::Say(topic);
        }
        Next::Rest(next.unwrap_or(sight.ends_at).min(sight.ends_at))
    }

    /// Takes note of what is known; a trouble that passed is said again when it comes back, and so is
    /// a request that was withdrawn.
    pub(super) fn note_sight(&mut self, sight: &Sight) {
        if sight.risk_at.is_none() {
            self.of_risk = false;
        }
        if sight.asked.is_none() {
            self.of_person = None;
        }
    }

    /// Takes note of what is said now.
    pub(super) fn note(&mut self, topic: Topic, now: Moment) {
        match &topic {
            Topic::Opening | Topic::Heartbeat | Topic::Lost(_) => {}
            Topic::AtRisk => self.of_risk = true,
            Topic::Requested(Request::AgentStopping) => self.of_stop = true,
            Topic::Requested(Request::MaxHold) => self.of_max_hold = true,
            Topic::Requested(Request::PersonAsked(request)) => {
                self.of_person = Some(request.clone());
            }
        }
        self.last = Some((topic, now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::settings::ReleaseMode;

    const INTERVAL: Duration = Duration::from_secs(5);

    fn at(seconds: u64) -> Moment {
        Moment::since_boot(Duration::from_secs(seconds))
    }

    fn well() -> Sight {
        Sight {
            over: None,
            is_stopping: false,
            asked: None,
            risk_at: None,
            warn_at: None,
            ends_at: at(114),
        }
    }

    fn asked_for(reason: &str) -> Arc<ReleaseRequest> {
        Arc::new(ReleaseRequest {
            lease: "g".into(),
            mode: ReleaseMode::Ask,
            reason: reason.into(),
            actor: "alice".into(),
        })
    }

    fn said(topics: &[Topic]) -> Said {
        let mut said = Said::default();
        for topic in [Topic::Opening].iter().chain(topics) {
            said.note(topic.clone(), at(100));
        }
        said
    }

    #[test]
    fn next_event_follows_from_lease_state_and_events_sent() {
        const STOP: Topic = Topic::Requested(Request::AgentStopping);
        const MAX: Topic = Topic::Requested(Request::MaxHold);
        const LOST: Topic = Topic::Lost(Loss::GrantGone);
        let lost = Some(Over::Lost(Loss::GrantGone));
        let released = Some(Over::Released);
        let risky = Sight {
            risk_at: Some(at(103)),
            ..well()
        };
        let ending = Sight {
            warn_at: Some(at(102)),
            ..well()
        };
        let stopping = Sight {
            is_stopping: true,
            ..well()
        };
        let all = Sight {
            risk_at: Some(at(101)),
            warn_at: Some(at(101)),
            ..stopping.clone()
        };
        let with = |over| Sight {
            over,
            ..all.clone()
        };
        let table: &[(&[Topic], Sight, u64, Next)] = &[
            // Heartbeats come in time, and only one however late the reader is.
            (&[], well(), 104, Next::Rest(at(105))),
            (&[], well(), 105, Next::Say(Topic::Heartbeat)),
            (&[], well(), 500, Next::Say(Topic::Heartbeat)),
            (
                &[],
                Sight {
                    ends_at: at(103),
                    ..well()
                },
                101,
                Next::Rest(at(103)),
            ),
            // Trouble is said once.
            (&[], risky.clone(), 102, Next::Rest(at(103))),
            (&[], risky.clone(), 103, Next::Say(Topic::AtRisk)),
            (&[Topic::AtRisk], risky, 104, Next::Rest(at(105))),
            // So are the requests to release.
            (&[], ending.clone(), 101, Next::Rest(at(102))),
            (&[], ending.clone(), 102, Next::Say(MAX)),
            (&[MAX], ending, 103, Next::Rest(at(105))),
            (&[], stopping.clone(), 100, Next::Say(STOP)),
            (&[STOP], stopping, 101, Next::Rest(at(105))),
            // What cannot wait comes first, and the end is the last.
            (&[], all.clone(), 110, Next::Say(STOP)),
            (&[STOP], all.clone(), 110, Next::Say(MAX)),
            (&[STOP, MAX], all.clone(), 110, Next::Say(Topic::AtRisk)),
            (
                &[STOP, MAX, Topic::AtRisk],
                all.clone(),
                110,
                Next::Say(Topic::Heartbeat),
            ),
            (&[], with(lost), 110, Next::Say(LOST)),
            (&[LOST], with(lost), 110, Next::End),
            (&[], with(released), 110, Next::End),
        ];
        for (topics, sight, now, next) in table {
            let planned = said(topics).plan_next(sight, INTERVAL, at(*now));
            assert_eq!(planned, *next, "{topics:?} at {now}: {sight:?}");
        }
    }

    #[test]
    fn only_the_end_precedes_the_opening_event() {
        let said = Said::default();
        let stopping = Sight {
            is_stopping: true,
            ..well()
        };
        assert_eq!(
            said.plan_next(&stopping, INTERVAL, at(100)),
            Next::Say(Topic::Opening)
        );
        let over = Sight {
            over: Some(Over::Released),
            ..well()
        };
        assert_eq!(said.plan_next(&over, INTERVAL, at(100)), Next::End);
    }

    #[test]
    fn risk_that_returns_is_reported_again() {
        let risky = Sight {
            risk_at: Some(at(103)),
            ..well()
        };
        let mut said = said(&[Topic::AtRisk]);
        said.note_sight(&risky);
        assert_eq!(
            said.plan_next(&risky, INTERVAL, at(104)),
            Next::Rest(at(105))
        );
        said.note_sight(&well());
        said.note_sight(&risky);
        assert_eq!(
            said.plan_next(&risky, INTERVAL, at(104)),
            Next::Say(Topic::AtRisk)
        );
    }

    #[test]
    fn release_request_is_sent_once_and_after_each_change_or_return() {
        let asked = |reason| Sight {
            asked: Some(asked_for(reason)),
            ..well()
        };
        let told = |reason| Topic::Requested(Request::PersonAsked(asked_for(reason)));
        let next = |said: &Said, sight| said.plan_next(&sight, INTERVAL, at(101));
        let mut said = said(&[]);
        assert_eq!(next(&said, asked("upgrade")), Next::Say(told("upgrade")));
        said.note(told("upgrade"), at(100));
        assert_eq!(next(&said, asked("upgrade")), Next::Rest(at(105)));
        assert_eq!(next(&said, asked("test")), Next::Say(told("test")));
        said.note_sight(&well());
        assert_eq!(next(&said, asked("upgrade")), Next::Say(told("upgrade")));
    }
}
