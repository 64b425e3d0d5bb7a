//! Trouble is done, lasts, and is undone.

mod clocks;
mod network;
mod objects;
mod processes;
mod rights;
mod store;

use std::fmt;
use std::path::PathBuf;

use anyhow::Result;

use crate::history::Op;
use crate::schedule::{Kind, Schedule};
use crate::world::World;

/// What makes a trouble good again.
#[derive(Debug)]
pub(crate) enum Remedy {
    /// It was over at once.
    Nothing(String),
    /// It could not be done, because somebody was quicker. It does not count.
    Missed(String),
    /// It could not be done, by no fault of the system under test; each time would be one of the test.
    Failed(String),
    StartSidecar {
        seat: usize,
        knowing: bool,
    },
    ThawSidecar(usize),
    StartApp {
        seat: usize,
        app: usize,
    },
    ThawApp {
        seat: usize,
        app: usize,
    },
    ThawPod(usize),
    StartOperator(usize),
    ThawOperator(usize),
    StartApiServer,
    ThawApiServer,
    StartEtcd,
    ThawEtcd,
    Restore(PathBuf),
    /// Messages pass as they should.
    Calm,
    /// Messages pass again there; the operators' replicas come after the seats.
    Reconnect(usize),
    PlugIn(usize),
    GiveRights,
    GiveOperatorsRights,
    /// A person's doing has come into effect by now.
    Settled(u64, Op),
}

/// Whether the API server said no: then it was not done, and will not be.
fn is_refused(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<kube::Error>();
    matches!(error, Some(kube::Error::Api(status)) if (400..500).contains(&status.code))
}

impl Remedy {
    /// What needs none: it was done, or it was not.
    fn none(what: String, is_done: bool) -> Self {
        if is_done {
            Self::Nothing(what)
        } else {
            Self::Missed(what)
        }
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing(what) => f.write_str(what),
            Self::Missed(what) => write!(f, "missed, {what}"),
            Self::Failed(what) => write!(f, "failed, {what}"),
            other => write!(f, "then {other:?}"),
        }
    }
}

impl World {
    /// Does it; gives what undoes it.
    pub(crate) async fn strike(&mut self, kind: Kind, schedule: &mut Schedule) -> Result<Remedy> {
        match kind {
            Kind::KillSidecar | Kind::ForgetSidecar | Kind::HangSidecar | Kind::KillApp => {
                self.strike_process(kind, schedule)
            }
            Kind::KillOperator | Kind::HangOperator => self.strike_operator(kind, schedule),
            Kind::HangApp | Kind::HangPod => self.strike_who_writes(kind).await,
            Kind::KillApiServer
            | Kind::HangApiServer
            | Kind::RestartApiServer
            | Kind::KillEtcd
            | Kind::HangEtcd
            | Kind::CompactEtcd
            | Kind::RestoreEtcd => self.strike_store(kind).await,
            Kind::Noise
            | Kind::LateAnswers
            | Kind::LateRequests
            | Kind::Partition
            | Kind::CutPod
            | Kind::StallWatches => self.strike_network(kind, schedule),
            Kind::WallClockLeaps => self.leap_walls(schedule),
            Kind::ClockLeaps => self.leap_clocks(schedule),
            Kind::TakeRights | Kind::TakeOperatorsRights => self.strike_rights(kind).await,
            Kind::DeleteLock
            | Kind::LoseLock
            | Kind::WipeStatus
            | Kind::EditLock
            | Kind::DeleteSession
            | Kind::ForceRelease
            | Kind::RewriteStorage => self.strike_objects(kind, schedule).await,
        }
    }

    /// Makes it good again.
    pub(crate) async fn heal(&mut self, remedy: Remedy) -> Result<()> {
        let cluster = self.cluster.clone();
        let control_plane = cluster.control_plane();
        match remedy {
            Remedy::Nothing(_) | Remedy::Missed(_) | Remedy::Failed(_) => Ok(()),
            Remedy::StartSidecar { seat, knowing } => self.seats[seat].start_sidecar(knowing).await,
            Remedy::ThawSidecar(seat) => self.seats[seat].thaw_sidecar(),
            Remedy::StartApp { seat, app } => self.seats[seat].start_app(app),
            Remedy::ThawApp { seat, app } => self.thaw_app(seat, app),
            Remedy::ThawPod(seat) => self.thaw_pod(seat),
            Remedy::StartOperator(number) => self.start_operator(number).await,
            Remedy::ThawOperator(number) => self.thaw_operator(number),
            Remedy::StartApiServer => {
                control_plane.start_api_server().await?;
                self.until_answered().await
            }
            Remedy::ThawApiServer => {
                control_plane.thaw().await?;
                self.until_answered().await
            }
            Remedy::StartEtcd => {
                control_plane.start_etcd().await?;
                self.until_answered().await
            }
            Remedy::ThawEtcd => {
                control_plane.thaw_etcd().await?;
                self.until_answered().await
            }
            Remedy::Restore(snapshot) => {
                self.restore(&snapshot).await?;
                self.until_answered().await
            }
            Remedy::Calm => {
                self.calm();
                Ok(())
            }
            Remedy::Reconnect(who) => {
                self.reconnect(who);
                Ok(())
            }
            Remedy::PlugIn(seat) => self.plug_in(seat),
            Remedy::GiveRights | Remedy::GiveOperatorsRights => self.give_rights(&remedy).await,
            Remedy::Settled(operation, op) => self.people.ok(operation, op),
        }
    }
}
