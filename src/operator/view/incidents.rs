//! The incidents of a lock, and when each was first observed.
//!
//! The date of an incident is a wall clock of its writer. It is used once, for the first list:
//! nothing else distinguishes a recent incident from an old one.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Now;
use crate::protocol::ids::Resource;
use crate::protocol::incident::{Incident, IncidentKind};
use crate::protocol::lock::Lock;
use crate::protocol::time::{Moment, WallTime};
use crate::protocol::token::Token;
use crate::store::fleet::Object;

/// The maximum age of an incident that is recorded again if it has no Event. Events are kept for
/// about an hour; without this bound each start would record all old incidents.
const REPLAY_WINDOW: Duration = Duration::from_secs(86_400);

/// The incidents of a lock.
#[derive(Debug, PartialEq)]
pub(in crate::operator) struct Incidents {
    /// The resource of the lock.
    pub(in crate::operator) resource: Resource,
    /// The incidents to record, with when they were first observed or, for those in the first list,
    /// when they happened.
    seen: Vec<(Incident, Moment)>,
    /// The incidents that were too old when they were first listed.
    old: Vec<IncidentKey>,
}

/// What distinguishes an incident from the others of its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct IncidentKey {
    kind: IncidentKind,
    token: Token,
    at: WallTime,
}

impl Incidents {
    /// Returns the incidents of a lock; `None` if it has none.
    pub(super) fn of(
        lock: &Object<Lock>,
        before: Option<&Arc<Self>>,
        is_preexisting: bool,
        now: Now,
    ) -> Option<Arc<Self>> {
        let value = &lock.stored.value;
        if value.incidents.is_empty() {
            return None;
        }
        let mut incidents = Self {
            resource: value.resource.clone(),
            seen: Vec::new(),
            old: Vec::new(),
        };
        for incident in &value.incidents {
            let key = key_of(incident);
            let known = before.into_iter().flat_map(|before| &before.seen);
            let mut known = known.filter(|(seen, _)| key_of(seen) == key);
            let age = u64::try_from(now.wall.0.saturating_sub(incident.at.0)).unwrap_or(0);
            let age = Duration::from_micros(age);
            if let Some((_, since)) = known.next() {
                incidents.seen.push((incident.clone(), *since));
            } else if before.is_some_and(|before| before.old.contains(&key))
                || is_preexisting && age >= REPLAY_WINDOW
            {
                incidents.old.push(key);
            } else {
                let since = if is_preexisting {
                    now.moment.before(age)
                } else {
                    now.moment
                };
                incidents.seen.push((incident.clone(), since));
            }
        }
        let unchanged = before.filter(|before| ***before == incidents);
        Some(unchanged.cloned().unwrap_or_else(|| Arc::new(incidents)))
    }

    /// Returns the incidents that an operator records which has been active since `active_since`.
    /// Its predecessor may have crashed before it recorded them, but not that long ago.
    pub(in crate::operator) fn to_record(
        &self,
        active_since: Moment,
    ) -> impl Iterator<Item = &Incident> {
        let seen = self.seen.iter();
        let recent = seen.filter(move |(_, since)| since.after(REPLAY_WINDOW) > active_since);
        recent.map(|(incident, _)| incident)
    }
}

fn key_of(incident: &Incident) -> IncidentKey {
    IncidentKey {
        kind: incident.kind,
        token: incident.token,
        at: incident.at,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator::tests::object;
    use crate::protocol::ids::OwnerId;

    const HOUR: i64 = 3_600_000_000;

    fn now(hours: u64) -> Now {
        Now {
            moment: Moment::since_boot(Duration::from_secs(1_000_000 + hours * 3_600)),
            wall: WallTime(i64::try_from(hours).unwrap() * HOUR),
        }
    }

    /// A lock with an incident at each of these hours, by its writer's clock.
    fn lock(hours: &[i64]) -> Object<Lock> {
        let incidents = hours.iter().map(|hour| Incident {
            at: WallTime(hour * HOUR),
            kind: IncidentKind::Expired,
            grant: None,
            token: Token::from_raw(1_000),
            owner: OwnerId::from("o"),
            pod: "p".into(),
            actor: "x".into(),
            reason: "y".into(),
        });
        let lock = Lock {
            incidents: incidents.collect(),
            ..Lock::unheld(Resource::parse("r").unwrap())
        };
        object("n", "r", 1, lock)
    }

    fn recorded(incidents: &Incidents, active_since: u64) -> Vec<i64> {
        let recorded = incidents.to_record(now(active_since).moment);
        recorded.map(|incident| incident.at.0 / HOUR).collect()
    }

    #[test]
    fn found_incident_is_judged_by_its_date_and_once() {
        let found = Incidents::of(&lock(&[-25, -23, 5]), None, true, now(0)).unwrap();
        assert_eq!(recorded(&found, 0), [-23, 5], "5 is from a fast clock");
        assert_eq!(recorded(&found, 2), [5], "active two hours later");
        let again = Incidents::of(&lock(&[-25, -23, 5]), Some(&found), false, now(9)).unwrap();
        assert!(Arc::ptr_eq(&found, &again));
    }

    #[test]
    fn incident_seen_on_a_watch_is_judged_by_when_it_was_seen() {
        let first = Incidents::of(&lock(&[-999]), None, false, now(0)).unwrap();
        let both = Incidents::of(&lock(&[-999, -998]), Some(&first), false, now(10)).unwrap();
        assert_eq!(recorded(&both, 0), [-999, -998]);
        assert_eq!(recorded(&both, 25), [-998]);
        assert_eq!(recorded(&both, 35), [0_i64; 0]);
    }

    #[test]
    fn lock_without_incidents_has_no_record() {
        assert_eq!(Incidents::of(&lock(&[]), None, false, now(0)), None);
    }
}
