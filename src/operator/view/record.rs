//! The incidents of a lock, and when each was first seen.
//!
//! An incident's own date is a writer's wall clock. It is asked once, of what the first listing finds:
//! there is nothing else by which to tell what happened just before from what happened last year.

use std::sync::Arc;
use std::time::Duration;

use crate::operator::plan::Now;
use crate::protocol::ids::Resource;
use crate::protocol::incident::{Incident, IncidentKind};
use crate::protocol::lock::Lock;
use crate::protocol::time::{Moment, WallTime};
use crate::protocol::token::Token;
use crate::store::fleet::Object;

/// How old an incident may be and still be told by an operator that finds no note of it. Notes last
/// for an hour or so; without this bound each start would tell all that locks remember.
const TOLD_AGAIN: Duration = Duration::from_secs(86_400);

/// The incidents of a lock.
#[derive(Debug, PartialEq)]
pub struct Record {
    /// What the lock guards.
    pub resource: Resource,
    /// Those that may have to be told, with when they were first seen or, where they were found, with
    /// when they happened.
    seen: Vec<(Incident, Moment)>,
    /// Those that were too old for it when they were found.
    old: Vec<Name>,
}

/// What tells an incident from the others of its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Name {
    kind: IncidentKind,
    token: Token,
    at: WallTime,
}

impl Record {
    /// That of a lock that was told of; none where it has no incidents.
    pub(super) fn of(
        lock: &Object<Lock>,
        before: Option<&Arc<Self>>,
        is_found: bool,
        now: Now,
    ) -> Option<Arc<Self>> {
        let value = &lock.stored.value;
        if value.incidents.is_empty() {
            return None;
        }
        let mut record = Self {
            resource: value.resource.clone(),
            seen: Vec::new(),
            old: Vec::new(),
        };
        for incident in &value.incidents {
            let name = name(incident);
            let known = before.into_iter().flat_map(|before| &before.seen);
            let mut known = known.filter(|(seen, _)| self::name(seen) == name);
            let age = u64::try_from(now.wall.0.saturating_sub(incident.at.0)).unwrap_or(0);
            let age = Duration::from_micros(age);
            if let Some((_, since)) = known.next() {
                record.seen.push((incident.clone(), *since));
            } else if before.is_some_and(|before| before.old.contains(&name))
                || is_found && age >= TOLD_AGAIN
            {
                record.old.push(name);
            } else {
                let since = if is_found {
                    now.moment.before(age)
                } else {
                    now.moment
                };
                record.seen.push((incident.clone(), since));
            }
        }
        let unchanged = before.filter(|before| ***before == record);
        Some(unchanged.cloned().unwrap_or_else(|| Arc::new(record)))
    }

    /// What an operator tells that has been the active one since then: its predecessor may have died
    /// before it told, but not for so long.
    pub fn to_tell(&self, active_since: Moment) -> impl Iterator<Item = &Incident> {
        let seen = self.seen.iter();
        let recent = seen.filter(move |(_, since)| since.after(TOLD_AGAIN) > active_since);
        recent.map(|(incident, _)| incident)
    }
}

fn name(incident: &Incident) -> Name {
    Name {
        kind: incident.kind,
        token: incident.token,
        at: incident.at,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::ids::OwnerId;
    use crate::protocol::token::Revision;
    use crate::store::fleet::ObjectRef;
    use crate::store::{Original, Stored};

    const HOUR: i64 = 3_600_000_000;

    fn now(hours: u64) -> Now {
        Now {
            moment: Moment::since_boot(Duration::from_secs(1_000_000 + hours * 3_600)),
            wall: WallTime(i64::try_from(hours).unwrap() * HOUR),
        }
    }

    /// A lock with an incident that happened at each of these hours, as its writer says.
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
        Object {
            object_ref: ObjectRef {
                namespace: "n".into(),
                name: "r".into(),
            },
            uid: "u".into(),
            is_deleted: false,
            is_misnamed: false,
            set_at: None,
            stored: Stored {
                value: Lock {
                    incidents: incidents.collect(),
                    ..Lock::unheld(Resource::parse("r").unwrap())
                },
                version: Revision(1),
                original: Original::new(()),
            },
        }
    }

    fn told(record: &Record, active_since: u64) -> Vec<i64> {
        let told = record.to_tell(now(active_since).moment);
        told.map(|incident| incident.at.0 / HOUR).collect()
    }

    #[test]
    fn found_incident_is_judged_by_its_date_and_once() {
        let found = Record::of(&lock(&[-25, -23, 5]), None, true, now(0)).unwrap();
        assert_eq!(told(&found, 0), [-23, 5], "5 is of a clock that is ahead");
        assert_eq!(told(&found, 2), [5], "a leader of two hours later");
        let again = Record::of(&lock(&[-25, -23, 5]), Some(&found), false, now(9)).unwrap();
        assert!(Arc::ptr_eq(&found, &again));
    }

    #[test]
    fn incident_seen_on_a_watch_is_judged_by_when_it_was_seen() {
        let first = Record::of(&lock(&[-999]), None, false, now(0)).unwrap();
        let both = Record::of(&lock(&[-999, -998]), Some(&first), false, now(10)).unwrap();
        assert_eq!(told(&both, 0), [-999, -998]);
        assert_eq!(told(&both, 25), [-998]);
        assert_eq!(told(&both, 35), [0_i64; 0]);
    }

    #[test]
    fn lock_without_incidents_has_no_record() {
        assert_eq!(Record::of(&lock(&[]), None, false, now(0)), None);
    }
}
