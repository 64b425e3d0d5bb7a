//! Which event an open stream sends next, and when: decided from what is known of the lease and from
//! what was sent before.
//!
//! Nothing is queued. A reader that was slow gets what is true now, so it costs no memory and
//! receives no old news.

use std::sync::Arc;
use std::time::Duration;

use crate::protocol::lease::Loss;
use crate::protocol::settings::ReleaseRequest;
use crate::protocol::time::Moment;

/// How a lease ended, as its streams report it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::agent) enum Over {
    /// Its app ended it: nothing is reported.
    Released,
    /// Its app did not end it.
    Lost(Loss),
}

/// Why an app is asked to release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// The agent is stopping.
    AgentStopping,
    /// The longest time that the lock may be held is nearly over.
    MaxHold,
    /// A person asks for it.
    PersonAsked(Arc<ReleaseRequest>),
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::agent) enum Event {
    /// The first event.
    Opening,
    /// The lease continues.
    Heartbeat,
    /// Renewals fail, and less than half of the session is left.
    AtRisk,
    /// The app is asked to release.
    Requested(Request),
    /// The lease is over; nothing comes after it.
    Lost(Loss),
}

/// What to do now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::agent) enum Next {
    /// Send this event.
    Send(Event),
    /// Nothing before this moment, unless something changes.
    Wait(Moment),
    /// The stream has ended.
    End,
}

/// What is known of the lease.
#[derive(Clone, Debug)]
pub(in crate::agent) struct Status {
    /// How it ended, if it has.
    pub(in crate::agent) over: Option<Over>,
    /// Whether the agent is stopping.
    pub(in crate::agent) is_stopping: bool,
    /// The request of a person that its app release it.
    pub(in crate::agent) asked: Option<Arc<ReleaseRequest>>,
    /// From when on it is at risk; `None` while renewals succeed.
    pub(in crate::agent) risk_at: Option<Moment>,
    /// When its app is asked to release because it has held for nearly as long as it may.
    pub(in crate::agent) warn_at: Option<Moment>,
    /// When it is over, if nothing changes.
    pub(in crate::agent) ends_at: Moment,
}

/// What the reader of a stream knows of a risk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Risk {
    #[default]
    None,
    Reported,
    /// It has passed, and the reader does not know that yet.
    Passed,
}

/// What a stream has sent.
#[derive(Clone, Debug, Default)]
pub(in crate::agent) struct Cursor {
    /// The last event, and when it was sent.
    last: Option<(Event, Moment)>,
    risk: Risk,
    sent_stop: bool,
    sent_max_hold: bool,
    /// The last request of a person, unless that was withdrawn since.
    sent_request: Option<Arc<ReleaseRequest>>,
}

impl Cursor {
    /// Returns what to send next. The most urgent event comes first.
    pub(in crate::agent) fn plan_next(
        &self,
        status: &Status,
        interval: Duration,
        now: Moment,
    ) -> Next {
        match status.over {
            _ if matches!(self.last, Some((Event::Lost(_), _))) => return Next::End,
            Some(Over::Lost(loss)) => return Next::Send(Event::Lost(loss)),
            Some(Over::Released) => return Next::End,
            None => {}
        }
        let Some((_, sent_at)) = &self.last else {
            return Next::Send(Event::Opening);
        };
        if status.is_stopping && !self.sent_stop {
            return Next::Send(Event::Requested(Request::AgentStopping));
        }
        if let Some(request) = &status.asked
            && self.sent_request.as_ref() != Some(request)
        {
            return Next::Send(Event::Requested(Request::PersonAsked(request.clone())));
        }
        // After a risk the reader may be about to stop its work: it needs the new deadline at once.
        let pause = match self.risk {
            Risk::Passed => Duration::ZERO,
            Risk::None | Risk::Reported => interval,
        };
        let heartbeat = (sent_at.after(pause), Event::Heartbeat);
        let max_hold = status.warn_at.filter(|_| !self.sent_max_hold);
        let at_risk = status.risk_at.filter(|_| self.risk != Risk::Reported);
        let events = [
            max_hold.map(|at| (at, Event::Requested(Request::MaxHold))),
            at_risk.map(|at| (at, Event::AtRisk)),
            Some(heartbeat),
        ];
        let mut events = events.into_iter().flatten();
        let next = events.clone().map(|(at, _)| at).min();
        if let Some((_, event)) = events.find(|(at, _)| now >= *at) {
            return Next::Send(event);
        }
        Next::Wait(next.unwrap_or(status.ends_at).min(status.ends_at))
    }

    /// Records what is known: a risk that passed is reported again when it returns, and so is a request
    /// that was withdrawn.
    pub(in crate::agent) fn observe(&mut self, status: &Status) {
        if status.risk_at.is_none() && self.risk == Risk::Reported {
            self.risk = Risk::Passed;
        }
        if status.asked.is_none() {
            self.sent_request = None;
        }
    }

    /// Records what is sent now.
    pub(in crate::agent) fn record(&mut self, event: Event, now: Moment) {
        match &event {
            Event::Heartbeat if self.risk == Risk::Passed => self.risk = Risk::None,
            Event::Opening | Event::Heartbeat | Event::Lost(_) => {}
            Event::AtRisk => self.risk = Risk::Reported,
            Event::Requested(Request::AgentStopping) => self.sent_stop = true,
            Event::Requested(Request::MaxHold) => self.sent_max_hold = true,
            Event::Requested(Request::PersonAsked(request)) => {
                self.sent_request = Some(request.clone());
            }
        }
        self.last = Some((event, now));
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

    fn well() -> Status {
        Status {
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

    fn cursor(events: &[Event]) -> Cursor {
        let mut cursor = Cursor::default();
        for event in [Event::Opening].iter().chain(events) {
            cursor.record(event.clone(), at(100));
        }
        cursor
    }

    #[test]
    fn next_event_follows_from_lease_state_and_events_sent() {
        const STOP: Event = Event::Requested(Request::AgentStopping);
        const MAX: Event = Event::Requested(Request::MaxHold);
        const LOST: Event = Event::Lost(Loss::GrantGone);
        let lost = Some(Over::Lost(Loss::GrantGone));
        let released = Some(Over::Released);
        let risky = Status {
            risk_at: Some(at(103)),
            ..well()
        };
        let ending = Status {
            warn_at: Some(at(102)),
            ..well()
        };
        let stopping = Status {
            is_stopping: true,
            ..well()
        };
        let all = Status {
            risk_at: Some(at(101)),
            warn_at: Some(at(101)),
            ..stopping.clone()
        };
        let with = |over| Status {
            over,
            ..all.clone()
        };
        let table: &[(&[Event], Status, u64, Next)] = &[
            // Heartbeats come in time, and only one however late the reader is.
            (&[], well(), 104, Next::Wait(at(105))),
            (&[], well(), 105, Next::Send(Event::Heartbeat)),
            (&[], well(), 500, Next::Send(Event::Heartbeat)),
            (
                &[],
                Status {
                    ends_at: at(103),
                    ..well()
                },
                101,
                Next::Wait(at(103)),
            ),
            // A risk is reported once.
            (&[], risky.clone(), 102, Next::Wait(at(103))),
            (&[], risky.clone(), 103, Next::Send(Event::AtRisk)),
            (&[Event::AtRisk], risky, 104, Next::Wait(at(105))),
            // So are the requests to release.
            (&[], ending.clone(), 101, Next::Wait(at(102))),
            (&[], ending.clone(), 102, Next::Send(MAX)),
            (&[MAX], ending, 103, Next::Wait(at(105))),
            (&[], stopping.clone(), 100, Next::Send(STOP)),
            (&[STOP], stopping, 101, Next::Wait(at(105))),
            // What cannot wait comes first, and the end is the last.
            (&[], all.clone(), 110, Next::Send(STOP)),
            (&[STOP], all.clone(), 110, Next::Send(MAX)),
            (&[STOP, MAX], all.clone(), 110, Next::Send(Event::AtRisk)),
            (
                &[STOP, MAX, Event::AtRisk],
                all.clone(),
                110,
                Next::Send(Event::Heartbeat),
            ),
            (&[], with(lost), 110, Next::Send(LOST)),
            (&[LOST], with(lost), 110, Next::End),
            (&[], with(released), 110, Next::End),
        ];
        for (events, status, now, next) in table {
            let planned = cursor(events).plan_next(status, INTERVAL, at(*now));
            assert_eq!(planned, *next, "{events:?} at {now}: {status:?}");
        }
    }

    #[test]
    fn only_the_end_precedes_the_opening_event() {
        let cursor = Cursor::default();
        let stopping = Status {
            is_stopping: true,
            ..well()
        };
        assert_eq!(
            cursor.plan_next(&stopping, INTERVAL, at(100)),
            Next::Send(Event::Opening)
        );
        let over = Status {
            over: Some(Over::Released),
            ..well()
        };
        assert_eq!(cursor.plan_next(&over, INTERVAL, at(100)), Next::End);
    }

    #[test]
    fn risk_that_returns_is_reported_again() {
        let risky = Status {
            risk_at: Some(at(103)),
            ..well()
        };
        let mut cursor = cursor(&[Event::AtRisk]);
        cursor.observe(&risky);
        assert_eq!(
            cursor.plan_next(&risky, INTERVAL, at(104)),
            Next::Wait(at(105))
        );
        cursor.observe(&well());
        cursor.observe(&risky);
        assert_eq!(
            cursor.plan_next(&risky, INTERVAL, at(104)),
            Next::Send(Event::AtRisk)
        );
    }

    /// An app that prepares for the end receives the new deadline at once, and not after an interval.
    #[test]
    fn risk_that_passes_is_followed_by_a_heartbeat() {
        let mut cursor = cursor(&[Event::AtRisk]);
        cursor.observe(&well());
        let next = |cursor: &Cursor| cursor.plan_next(&well(), INTERVAL, at(101));
        assert_eq!(next(&cursor), Next::Send(Event::Heartbeat));
        cursor.record(Event::Heartbeat, at(101));
        cursor.observe(&well());
        assert_eq!(next(&cursor), Next::Wait(at(106)));
    }

    #[test]
    fn release_request_is_sent_once_and_after_each_change_or_return() {
        let asked = |reason| Status {
            asked: Some(asked_for(reason)),
            ..well()
        };
        let told = |reason| Event::Requested(Request::PersonAsked(asked_for(reason)));
        let next = |cursor: &Cursor, status| cursor.plan_next(&status, INTERVAL, at(101));
        let mut cursor = cursor(&[]);
        assert_eq!(next(&cursor, asked("upgrade")), Next::Send(told("upgrade")));
        cursor.record(told("upgrade"), at(100));
        assert_eq!(next(&cursor, asked("upgrade")), Next::Wait(at(105)));
        assert_eq!(next(&cursor, asked("test")), Next::Send(told("test")));
        cursor.observe(&well());
        assert_eq!(next(&cursor, asked("upgrade")), Next::Send(told("upgrade")));
    }
}
