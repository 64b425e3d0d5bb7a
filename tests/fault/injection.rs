//! Faults: injected, active for a while, then undone.

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

/// What undoes a fault.
#[derive(Debug)]
pub(crate) enum Undo {
    /// The fault was over immediately.
    Nothing(String),
    /// The fault could not be injected, because another process was faster. It does not count.
    Missed(String),
    /// The test failed to inject the fault, which says nothing about the system under test. It is
    /// an error if it happens each time.
    Failed(String),
    StartSidecar {
        pod: usize,
        knowing: bool,
    },
    ThawSidecar(usize),
    StartApp {
        pod: usize,
        app: usize,
    },
    ThawApp {
        pod: usize,
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
    /// All proxies forward messages again.
    Calm,
    /// This proxy forwards messages again. The operator's replicas are numbered after the pods.
    Reconnect(usize),
    PlugIn(usize),
    GiveRights,
    GiveOperatorsRights,
    /// An administrator's action, which has taken effect by now.
    Settled(u64, Op),
}

/// Returns whether the API server refused the request: then it has no effect and never will.
fn is_refused(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<kube::Error>();
    matches!(error, Some(kube::Error::Api(status)) if (400..500).contains(&status.code))
}

impl Undo {
    /// A fault without an undo: it was injected, or missed.
    fn none(what: String, is_done: bool) -> Self {
        if is_done {
            Self::Nothing(what)
        } else {
            Self::Missed(what)
        }
    }
}

impl fmt::Display for Undo {
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
    /// Injects a fault, and returns how to undo it.
    pub(crate) async fn inject(&mut self, kind: Kind, schedule: &mut Schedule) -> Result<Undo> {
        match kind {
            Kind::KillSidecar | Kind::ForgetSidecar | Kind::HangSidecar | Kind::KillApp => {
                self.inject_process_fault(kind, schedule)
            }
            Kind::KillOperator | Kind::HangOperator => self.inject_operator_fault(kind, schedule),
            Kind::HangApp | Kind::HangPod => self.inject_during_write(kind).await,
            Kind::KillApiServer
            | Kind::HangApiServer
            | Kind::RestartApiServer
            | Kind::KillEtcd
            | Kind::HangEtcd
            | Kind::CompactEtcd
            | Kind::RestoreEtcd => self.inject_store_fault(kind).await,
            Kind::Noise
            | Kind::LateAnswers
            | Kind::LateRequests
            | Kind::Partition
            | Kind::CutPod
            | Kind::StallWatches => self.inject_network_fault(kind, schedule),
            Kind::WallClockLeaps => self.leap_walls(schedule),
            Kind::ClockLeaps => self.leap_clocks(schedule),
            Kind::TakeRights | Kind::TakeOperatorsRights => self.inject_rights_fault(kind).await,
            Kind::DeleteLock
            | Kind::LoseLock
            | Kind::WipeStatus
            | Kind::EditLock
            | Kind::DeleteSession
            | Kind::ForceRelease
            | Kind::RewriteStorage => self.inject_object_fault(kind, schedule).await,
        }
    }

    /// Undoes a fault.
    pub(crate) async fn undo(&mut self, undo: Undo) -> Result<()> {
        let cluster = self.cluster.clone();
        let control_plane = cluster.control_plane();
        match undo {
            Undo::Nothing(_) | Undo::Missed(_) | Undo::Failed(_) => Ok(()),
            Undo::StartSidecar { pod, knowing } => self.pods[pod].start_sidecar(knowing).await,
            Undo::ThawSidecar(pod) => self.pods[pod].thaw_sidecar(),
            Undo::StartApp { pod, app } => self.pods[pod].start_app(app),
            Undo::ThawApp { pod, app } => self.thaw_app(pod, app),
            Undo::ThawPod(pod) => self.thaw_pod(pod),
            Undo::StartOperator(number) => self.start_operator(number).await,
            Undo::ThawOperator(number) => self.thaw_operator(number),
            Undo::StartApiServer => {
                control_plane.start_api_server().await?;
                self.until_answered().await
            }
            Undo::ThawApiServer => {
                control_plane.thaw().await?;
                self.until_answered().await
            }
            Undo::StartEtcd => {
                control_plane.start_etcd().await?;
                self.until_answered().await
            }
            Undo::ThawEtcd => {
                control_plane.thaw_etcd().await?;
                self.until_answered().await
            }
            Undo::Restore(snapshot) => {
                self.restore(&snapshot).await?;
                self.until_answered().await
            }
            Undo::Calm => {
                self.calm();
                Ok(())
            }
            Undo::Reconnect(who) => {
                self.reconnect(who);
                Ok(())
            }
            Undo::PlugIn(pod) => self.plug_in(pod),
            Undo::GiveRights | Undo::GiveOperatorsRights => self.give_rights(&undo).await,
            Undo::Settled(operation, op) => self.admin.ok(operation, op),
        }
    }
}
