//! Candidates in pods of their own, each with an app that asks all the time whether it leads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use leasehold::protocol::time::Moment;
use tokio::task::JoinHandle;

use super::beliefs::Belief;
use crate::harness::{Namespace, Pod, Sidecar, now};
use crate::support::BINARY;

pub(super) const ELECTION: &str = "jobs";
/// How long an app waits between an answer and its next question.
const BETWEEN: Duration = Duration::from_millis(15);

/// A candidate's pod, and the process that runs for it, if there is one.
struct Place {
    pod: Pod,
    running: Mutex<(usize, Option<Arc<Sidecar>>)>,
}

/// Some candidates.
pub(super) struct Candidates {
    places: Vec<Arc<Place>>,
    ttl_seconds: u64,
    beliefs: Arc<Mutex<Vec<Belief>>>,
    /// The tokens of terms that their apps ended, and when: from then on they believe nothing.
    ended: Mutex<Vec<(u64, Moment)>>,
    is_over: Arc<AtomicBool>,
    apps: Vec<JoinHandle<()>>,
}

impl Candidates {
    /// Starts them one after the other; the first one leads before the second runs.
    pub(super) async fn start(
        namespace: &Namespace,
        count: usize,
        ttl_seconds: u64,
    ) -> Result<Self> {
        let mut candidates = Self {
            places: Vec::new(),
            ttl_seconds,
            beliefs: Arc::default(),
            ended: Mutex::default(),
            is_over: Arc::default(),
            apps: Vec::new(),
        };
        for number in 0..count {
            let place = Arc::new(Place {
                pod: namespace.pod(&format!("c{number}")).await?,
                running: Mutex::default(),
            });
            candidates.places.push(place.clone());
            candidates.start_process(number).await?;
            if number == 0 {
                let first = candidates.process(0);
                first
                    .expect("it was just started")
                    .until_leader(ELECTION)
                    .await?;
            }
            let (beliefs, is_over) = (candidates.beliefs.clone(), candidates.is_over.clone());
            let app = tokio::spawn(ask_on(number, place, beliefs, is_over));
            candidates.apps.push(app);
        }
        Ok(candidates)
    }

    /// Starts a process in a candidate's pod; the app asks it from then on.
    pub(super) async fn start_process(&self, number: usize) -> Result<()> {
        let place = &self.places[number];
        let launch = Sidecar::launch(BINARY, &place.pod).session_ttl(self.ttl_seconds);
        let launch = launch.default_log().arg("--elect").arg(ELECTION);
        let started = Arc::new(launch.start().await?);
        let mut running = place.running();
        *running = (running.0 + 1, Some(started));
        Ok(())
    }

    /// A candidate's process, if one runs.
    pub(super) fn process(&self, number: usize) -> Option<Arc<Sidecar>> {
        self.places[number].running().1.clone()
    }

    /// The same, and nobody is asked there any more.
    pub(super) fn take_process(&self, number: usize) -> Option<Arc<Sidecar>> {
        self.places[number].running().1.take()
    }

    /// Who was told last that it leads.
    pub(super) fn last_leader(&self) -> Option<usize> {
        let beliefs = locked(&self.beliefs);
        beliefs.last().map(|belief| belief.candidate.0)
    }

    /// Lets a candidate's app step down, if it leads.
    pub(super) async fn step_down(&self, number: usize) -> Result<()> {
        let Some(process) = self.process(number) else {
            return Ok(());
        };
        let told = process.election(ELECTION).await?.json;
        let (token, lease) = (told["fencingToken"].as_u64(), told["leaseId"].as_str());
        if let (Some(token), Some(lease)) = (token, lease) {
            locked(&self.ended).push((token, now()));
            process.release(lease).await?;
        }
        Ok(())
    }

    /// Stops asking; gives all that was believed.
    pub(super) async fn beliefs(self) -> Result<Vec<Belief>> {
        self.is_over.store(true, Ordering::SeqCst);
        for place in &self.places {
            // An app that waits for the answer of a process that hangs would wait for ever.
            place
                .running()
                .1
                .take()
                .map_or(Ok(()), |process| process.kill9())?;
        }
        for app in self.apps {
            app.await?;
        }
        let mut beliefs = locked(&self.beliefs).clone();
        for (token, at) in locked(&self.ended).iter() {
            let of_it = beliefs.iter_mut().filter(|belief| belief.token == *token);
            of_it.for_each(|belief| belief.end_at(*at));
        }
        Ok(beliefs)
    }
}

impl Place {
    fn running(&self) -> MutexGuard<'_, (usize, Option<Arc<Sidecar>>)> {
        locked(&self.running)
    }
}

async fn ask_on(
    number: usize,
    place: Arc<Place>,
    beliefs: Arc<Mutex<Vec<Belief>>>,
    is_over: Arc<AtomicBool>,
) {
    while !is_over.load(Ordering::SeqCst) {
        let (incarnation, process) = place.running().clone();
        if let Some(process) = process {
            let sent = now();
            let answer = process.election(ELECTION).await;
            let received = now();
            // One that was killed meanwhile answers nothing.
            let told = answer.map(|answer| answer.json).unwrap_or_default();
            let number_of = |field: &str| told[field].as_u64();
            if told["leader"] == true
                && let (Some(valid_for), Some(token)) =
                    (number_of("validForMs"), number_of("fencingToken"))
            {
                locked(&beliefs).push(Belief {
                    candidate: (number, incarnation),
                    sent,
                    received,
                    valid_for: Duration::from_millis(valid_for),
                    token,
                });
            }
        }
        tokio::time::sleep(BETWEEN).await;
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
