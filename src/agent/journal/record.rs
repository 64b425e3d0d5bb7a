//! The records of the journal, as they are written: JSON with names of their own, so that what the
//! agent calls its values can change without the file changing.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::agent::api::Life;
use crate::agent::core::held::Held;
use crate::agent::core::history::{End, EndedLease, RequestKey};
use crate::agent::core::saved::{SavedLease, SavedSession};
use crate::protocol::ids::{OwnerId, Resource};
use crate::protocol::lease::Loss;
use crate::protocol::time::{Moment, WallTime};
use crate::protocol::token::{Revision, Token};

/// One record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::agent) enum Record {
    /// Whose journal it is; the first one, and no other.
    Agent(Identity),
    /// The session, begun or renewed.
    Session(SessionRecord),
    /// The session is over, and all of its leases with it.
    SessionOver,
    /// A lease that is about to be answered.
    Lease(Box<LeaseRecord>),
    /// A lease goes on by another TTL.
    Ttl(TtlRecord),
    /// A lease's end.
    Ended(EndedRecord),
    /// What a request was answered with was heard by nobody; the lease's end follows.
    Unheard(RequestRecord),
}

impl Record {
    /// As it is written. There is no line break in it.
    ///
    /// # Errors
    /// None that are known: it is made of strings and numbers.
    pub(in crate::agent) fn to_bytes(&self) -> io::Result<Vec<u8>> {
        serde_json::to_vec(self).map_err(io::Error::other)
    }

    /// As it was written.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(in crate::agent) fn parse(bytes: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(bytes).map_err(|error| error.to_string())
    }
}

/// Whose journal it is. For anybody else nothing in it is true.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::agent) struct Identity {
    /// The run of the machine; its clock begins anew with each.
    pub(in crate::agent) boot_id: String,
    pub(in crate::agent) pod_uid: String,
    pub(in crate::agent) namespace: String,
    /// The TTL of the agent's sessions.
    pub(in crate::agent) ttl_seconds: u64,
}

/// A session as it was last written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::agent) struct SessionRecord {
    id: String,
    /// The resourceVersion that the next renewal compares.
    version: u64,
    /// The local deadline, in nanoseconds since boot. No app was told more.
    valid_until_ns: u64,
}

impl From<SavedSession> for SessionRecord {
    fn from(session: SavedSession) -> Self {
        let valid_until = session.valid_until.elapsed_since_boot().as_nanos();
        Self {
            id: session.id.to_string(),
            version: session.version.0,
            valid_until_ns: u64::try_from(valid_until).unwrap_or(u64::MAX),
        }
    }
}

impl SessionRecord {
    /// Returns the session as it was.
    pub(in crate::agent) fn read(self) -> SavedSession {
        SavedSession {
            id: self.id.into(),
            version: Revision(self.version),
            valid_until: Moment::since_boot(Duration::from_nanos(self.valid_until_ns)),
        }
    }
}

/// What keeps a lease alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::agent) enum LifeRecord {
    TtlMs(u64),
    MaxHoldMs(u64),
    Campaign,
}

impl From<Life> for LifeRecord {
    fn from(life: Life) -> Self {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        match life {
            Life::Ttl(ttl) => Self::TtlMs(ms(ttl)),
            Life::Connection { max_hold } => Self::MaxHoldMs(ms(max_hold)),
            Life::Campaign => Self::Campaign,
        }
    }
}

impl LifeRecord {
    /// Returns what kept the lease alive.
    pub(in crate::agent) const fn read(self) -> Life {
        match self {
            Self::TtlMs(ms) => Life::Ttl(Duration::from_millis(ms)),
            Self::MaxHoldMs(ms) => Life::Connection {
                max_hold: Duration::from_millis(ms),
            },
            Self::Campaign => Life::Campaign,
        }
    }
}

/// A lease as its app knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::agent) struct LeaseRecord {
    pub(in crate::agent) id: String,
    pub(in crate::agent) grant: String,
    pub(in crate::agent) token: u64,
    resource: String,
    owner: String,
    pub(in crate::agent) life: LifeRecord,
    /// What was asked for, where a repetition of the request is measured by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    asked: Option<LifeRecord>,
    /// For how long its grant was to be kept after it.
    #[serde(default, skip_serializing_if = "is_zero")]
    keep_ms: u64,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(in crate::agent) metadata: BTreeMap<String, String>,
    /// In microseconds since 1970, for people.
    pub(in crate::agent) acquired_at_us: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    request_id: Option<String>,
}

impl LeaseRecord {
    /// `asked` is what the request asked for, where the app changed that since.
    pub(in crate::agent) fn of(held: &Held, asked: Option<Life>) -> Self {
        let life = LifeRecord::from(held.life);
        let asked = asked.map(LifeRecord::from).filter(|asked| *asked != life);
        let request_id = held.request.as_ref().map(|key| key.request_id.clone());
        Self {
            id: held.lease.id.to_string(),
            grant: held.tenure.grant().to_string(),
            token: held.lease.token.get(),
            resource: held.stored.value.resource.to_string(),
            owner: held.owner.to_string(),
            life,
            asked,
            keep_ms: u64::try_from(held.keep.as_millis()).unwrap_or(u64::MAX),
            metadata: held.metadata.clone(),
            acquired_at_us: held.acquired_at.0,
            request_id,
        }
    }

    /// Returns the lease as its app knew it.
    ///
    /// # Errors
    /// When this version takes the resource for none.
    pub(in crate::agent) fn read(self) -> Result<SavedLease, String> {
        let resource = Resource::parse(&self.resource);
        Ok(SavedLease {
            id: self.id.into(),
            grant: self.grant.into(),
            token: Token::from_raw(self.token),
            resource: resource.map_err(|_| "a lease without a resource")?,
            owner: self.owner.into(),
            life: self.life.read(),
            requested: self.asked.map(LifeRecord::read),
            keep: Duration::from_millis(self.keep_ms),
            metadata: self.metadata,
            acquired_at: WallTime(self.acquired_at_us),
            request_id: self.request_id,
        })
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
const fn is_false(flag: &bool) -> bool {
    !*flag
}

/// A lease goes on by another TTL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::agent) struct TtlRecord {
    pub(in crate::agent) lease: String,
    pub(in crate::agent) life: LifeRecord,
}

/// A request that can be repeated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::agent) struct RequestRecord {
    owner: String,
    resource: String,
    request_id: String,
}

impl From<&RequestKey> for RequestRecord {
    fn from(key: &RequestKey) -> Self {
        Self {
            owner: key.owner.to_string(),
            resource: key.resource.to_string(),
            request_id: key.request_id.clone(),
        }
    }
}

impl RequestRecord {
    /// None where this version takes the resource for none.
    pub(in crate::agent) fn key(&self) -> Option<RequestKey> {
        Some(RequestKey {
            owner: OwnerId::from(self.owner.as_str()),
            resource: Resource::parse(&self.resource).ok()?,
            request_id: self.request_id.clone(),
        })
    }
}

/// A lease's end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::agent) struct EndedRecord {
    pub(in crate::agent) lease: String,
    /// Why it was lost; none when its app released it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lost: Option<String>,
    /// Whether its grant serves nobody from here on, so that its release may be on its way.
    pub(in crate::agent) gives_back: bool,
    /// Whether its app ended it, and its grant is kept from everybody for a while: no release is sent
    /// yet.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(in crate::agent) held_back: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::agent) request: Option<RequestRecord>,
}

impl From<&EndedLease> for EndedRecord {
    fn from(ended: &EndedLease) -> Self {
        let lost = match ended.end {
            End::Lost(loss) => Some(loss.as_str().to_owned()),
            End::Released | End::Releasing => None,
        };
        Self {
            lease: ended.lease.to_string(),
            lost,
            gives_back: ended.may_release,
            held_back: ended.end == End::Releasing && !ended.may_release,
            request: ended.request.as_ref().map(RequestRecord::from),
        }
    }
}

impl EndedRecord {
    /// Returns how the lease has ended.
    pub(in crate::agent) fn read(self) -> EndedLease {
        let end = match &self.lost {
            None if self.gives_back || self.held_back => End::Releasing,
            None => End::Released,
            // A reason that this version does not know is the restart's.
            Some(reason) => End::Lost(Loss::parse(reason).unwrap_or(Loss::AgentRestarted)),
        };
        EndedLease {
            lease: self.lease.into(),
            end,
            may_release: self.gives_back,
            request: self.request.and_then(|request| request.key()),
        }
    }
}
