//! How leases begin: from a grant that the store has just shown, or from a warm grant in memory and
//! without a write.
//!
//! Invariant: a lease is made of a warm grant in one step, so no two callers get the same token.

use crate::agent::api::{AcquireError, AcquireRequest, LeaseView, Life};
use crate::protocol::fair_share::FairShare;
use crate::protocol::key::GrantKey;
use crate::protocol::lease::{Lease, Tenure};
use crate::protocol::lock::Lock;
use crate::protocol::object::Stored;
use crate::protocol::time::{Moment, WallTime};
use crate::protocol::token::Revision;

use super::effect::{Effect, Record};
use super::held::Held;
use super::history::{Answered, RequestKey};
use super::leases::Leases;
use super::observed;
use super::report::Report;
use super::session::Live;
use super::warm::{Warm, others_wait};

/// A grant that the store has just shown, and the request that it is for.
pub(in crate::agent) struct NewLease<'a> {
    pub(in crate::agent) request: &'a AcquireRequest,
    pub(in crate::agent) arrived: Moment,
    pub(in crate::agent) grant: GrantKey,
    /// The lock with this grant.
    pub(in crate::agent) stored: Stored<Lock>,
    /// The latest revision at which the session was seen not to hold the lock.
    pub(in crate::agent) gone_at: Option<Revision>,
}

/// What a caller gets from a warm grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::agent) enum FromWarm {
    /// A lease.
    Lease(Box<LeaseView>),
    /// Nothing before the session is renewed: too little of it is left.
    RenewFirst,
    /// Nothing.
    Nothing,
}

/// Makes a lease of a grant that the store has just shown.
///
/// # Errors
/// If the session is lost, the agent is stopping, or the grant has ended since.
pub(in crate::agent) fn begin(
    leases: &mut Leases,
    new: NewLease,
) -> Result<LeaseView, AcquireError> {
    let (request, now) = (new.request, leases.env.now);
    let session = new.grant.session.clone();
    let deadline = leases.deadline_of(&session.id);
    let deadline = deadline.ok_or(AcquireError::SessionLost)?;
    // As the store has it, so that everybody shows the same.
    let acquired_at = new.stored.value.grant.as_ref();
    let acquired_at = acquired_at.map_or(leases.env.wall, |grant| grant.acquired_at);
    let mut tenure = Tenure::new(new.grant.id.clone(), new.stored.value.token);
    let lease = tenure.serve(now).ok_or(AcquireError::SessionLost)?;
    let mut share = FairShare::default();
    share.note_others(others_wait(&new.stored.value, &session), now);
    share.note_lease();
    let grant = Warm::granted(tenure, session, new.stored, share, now);
    let mut held = serve(grant, lease, request, acquired_at, now);
    let deadline = held.promised_at_most(now, deadline, leases.session.period());
    let told = held.begin(new.arrived, now, deadline);
    let told = told.map_err(|_loss| AcquireError::SessionLost)?;
    observed::superseded(leases, &new.grant, &held.stored);
    // A stopping agent has counted the leases that it waits for.
    if leases.session.is_draining() {
        return Err(AcquireError::ShuttingDown);
    }
    if new.gone_at > Some(held.stored.version) {
        // What is reported already cannot be promised.
        return Err(AcquireError::GrantEnded);
    }
    let view = held.view(told, new.arrived, &leases.env);
    add(leases, held, false);
    Ok(view)
}

/// Continues a lease of an earlier process that is in the state file. `asked` is what its request
/// asked for.
pub(in crate::agent) fn resume(leases: &mut Leases, held: Held, asked: Life) {
    insert(leases, held, asked);
}

/// Makes the next lease of a warm grant. Its id is `<grantId>.<n>` and its token base + n: all
/// thousand numbers from the base on belong to the grant, which is released when they are used up.
pub(in crate::agent) fn begin_from_warm(
    leases: &mut Leases,
    request: &AcquireRequest,
    arrived: Moment,
) -> FromWarm {
    let (resource, now) = (&request.resource, leases.env.now);
    let Some(warm) = leases.own.warm(resource) else {
        return FromWarm::Nothing;
    };
    if leases.session.is_draining() || warm.release_request().is_some() {
        return FromWarm::Nothing;
    }
    let live = leases.session.live();
    let Some(live) = live.filter(|live| *live.id() == warm.session.id) else {
        return FromWarm::Nothing;
    };
    if live.is_stale(now) {
        return FromWarm::RenewFirst;
    }
    let deadline = live.valid_until();
    let Some(mut warm) = leases.own.take_warm(resource) else {
        return FromWarm::Nothing;
    };
    let Some(lease) = warm.tenure.serve(now) else {
        leases.release(warm.into_release(resource.clone()), Vec::new());
        return FromWarm::Nothing;
    };
    warm.share.note_lease();
    let mut held = serve(warm, lease, request, leases.env.wall, now);
    let deadline = held.promised_at_most(now, deadline, leases.session.period());
    let Ok(told) = held.begin(arrived, now, deadline) else {
        leases.release(held.into_release(), Vec::new());
        return FromWarm::Nothing;
    };
    leases.own.was_reused = true;
    let view = held.view(told, arrived, &leases.env);
    add(leases, held, true);
    FromWarm::Lease(Box::new(view))
}

fn add(leases: &mut Leases, held: Held, is_warm: bool) {
    let lease = held.lease.id.clone();
    leases
        .env
        .out
        .report(Report::LockAcquired(held.summary(leases.env.now), is_warm));
    let asked = held.life;
    insert(leases, held, asked);
    leases.env.out.push(Effect::Persist(Record::Lease(lease)));
}

fn insert(leases: &mut Leases, mut held: Held, asked: Life) {
    if let Some(live) = leases.session.live() {
        share_names(&mut held, live);
    }
    if let Some(key) = &held.request {
        let answered = Answered {
            lease: held.lease.id.clone(),
            body: Some((asked, held.keep, held.metadata.clone())),
        };
        leases.history.record_answer(key.clone(), answered);
    }
    leases.lead_changed(&held.stored.value.resource);
    leases.own.add(held);
}

/// Returns a lease of a grant, for a request.
fn serve(
    grant: Warm,
    lease: Lease,
    request: &AcquireRequest,
    acquired_at: WallTime,
    now: Moment,
) -> Held {
    Held {
        lease,
        tenure: grant.tenure,
        session: grant.session,
        owner: request.owner.clone(),
        life: request.life,
        keep: request.keep,
        metadata: request.metadata.clone(),
        acquired_at,
        stored: grant.stored,
        share: grant.share,
        since: now,
        request: RequestKey::of(request),
        replayed: false,
        readers_until: Moment::default(),
        closing: None,
        unheard_until: None,
    }
}

/// Names that came from the store with this lock give way to the same ones that the agent has
/// already: a pod may hold thousands.
fn share_names(held: &mut Held, live: &Live) {
    let lock = &mut held.stored.value;
    if let Some(request) = &mut held.request {
        share(&lock.resource, &mut request.resource);
    }
    let Some(grant) = &mut lock.grant else { return };
    share(held.tenure.grant(), &mut grant.id);
    share(&held.owner, &mut grant.holder.owner);
    let session = &live.stored().value;
    share(&session.id, &mut held.session.id);
    share(&session.pod.uid, &mut held.session.pod_uid);
    share(&session.pod, &mut grant.holder.pod);
    share(&held.session.id, &mut grant.holder.session);
}

fn share<T: Clone + PartialEq>(known: &T, name: &mut T) {
    if *name == *known {
        name.clone_from(known);
    }
}
