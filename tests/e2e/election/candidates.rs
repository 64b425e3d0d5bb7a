//! Candidates in pods of their own, each with an app that asks all the time whether it leads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use leasehold::protocol::time::Moment;
use reqwest::Client;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::beliefs::{Belief, Candidate, GivenBack, changes, terms};
use crate::harness::{Curl, Namespace, Pod, Sidecar, now};
use crate::support::BINARY;

pub(super) const ELECTION: &str = "jobs";
/// How long an app waits between an answer and its next question.
const BETWEEN: Duration = Duration::from_millis(15);
/// How many apps with a connection ask before a hung process continues, and how many without.
const ASKERS: usize = 4;

/// How long a candidate by connection waits before the next attempt.
const BETWEEN_HOLDERS: Duration = Duration::from_millis(100);

/// A candidate's pod, and the process that runs for it, if there is one.
struct Place {
    pod: Pod,
    running: Mutex<(usize, Option<Arc<Sidecar>>)>,
    /// Whether another app of the pod runs by a connection, instead of the sidecar.
    by_connection: bool,
    /// That app.
    holder: Mutex<Option<Curl>>,
}

/// An end that apps decided on: from then on they believe nothing.
enum Ended {
    /// Of a term.
    Term(u64),
    /// Of all that one process was asked.
    App(Candidate),
}

/// Some candidates.
#[derive(Default)]
pub(super) struct Candidates {
    places: Vec<Arc<Place>>,
    ttl_seconds: u64,
    beliefs: Arc<Mutex<Vec<Belief>>>,
    ended: Mutex<Vec<(Ended, Moment)>>,
    given_back: Mutex<Vec<GivenBack>>,
    is_over: Arc<AtomicBool>,
    apps: Vec<JoinHandle<()>>,
}

impl Candidates {
    /// Starts them one after the other; the first one leads before the second runs. The last `by_connection` run by a
    /// connection of another app than the one that asks.
    pub(super) async fn start(
        namespace: &Namespace,
        count: usize,
        by_connection: usize,
        ttl_seconds: u64,
    ) -> Result<Self> {
        let mut candidates = Self {
            places: Vec::new(),
            ttl_seconds,
            beliefs: Arc::default(),
            ended: Mutex::default(),
            given_back: Mutex::default(),
            is_over: Arc::default(),
            apps: Vec::new(),
        };
        for number in 0..count {
            let place = Arc::new(Place {
                pod: namespace.pod(&format!("c{number}")).await?,
                running: Mutex::default(),
                by_connection: number + by_connection >= count,
                holder: Mutex::default(),
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
            if place.by_connection {
                let holder = tokio::spawn(hold_on(place.clone(), is_over.clone()));
                candidates.apps.push(holder);
            }
            let app = tokio::spawn(ask_on(number, place, beliefs, is_over));
            candidates.apps.push(app);
        }
        Ok(candidates)
    }

    /// Starts a process in a candidate's pod; the app asks it from then on.
    pub(super) async fn start_process(&self, number: usize) -> Result<()> {
        self.start_process_with(number, &[]).await
    }

    /// The same, with more arguments.
    pub(super) async fn start_process_with(&self, number: usize, args: &[&str]) -> Result<()> {
        let place = &self.places[number];
        let launch = Sidecar::launch(BINARY, &place.pod).session_ttl(self.ttl_seconds);
        let mut launch = launch.default_log();
        if !place.by_connection {
            launch = launch.arg("--elect").arg(ELECTION);
        }
        for arg in args {
            launch = launch.arg(arg);
        }
        let started = Arc::new(launch.start().await?);
        let mut running = place.running();
        *running = (running.0 + 1, Some(started));
        Ok(())
    }

    /// A candidate's process, if one runs.
    pub(super) fn process(&self, number: usize) -> Option<Arc<Sidecar>> {
        self.places[number].running().1.clone()
    }

    /// The same, and its app stops asking.
    pub(super) fn take_process(&self, number: usize) -> Option<Arc<Sidecar>> {
        self.places[number].running().1.take()
    }

    /// A candidate's app ends: it asks no more, and believes nothing. Gives its process.
    pub(super) fn end_app(&self, number: usize) -> Option<Arc<Sidecar>> {
        let mut running = self.places[number].running();
        let process = running.1.take();
        locked(&self.ended).push((Ended::App((number, running.0)), now()));
        process
    }

    /// Kills the client that holds the lead by a connection, or waits for it.
    pub(super) fn kill_holder(&self) -> Result<()> {
        let mut places = self.places.iter().filter(|place| place.by_connection);
        let holder = places.next().and_then(|place| locked(&place.holder).take());
        holder.map_or(Ok(()), |holder| holder.kill9())
    }

    /// Apps of a candidate's pod, each with a connection of its own.
    pub(super) async fn connected(&self, number: usize) -> Vec<Client> {
        let clients: Vec<Client> = (0..ASKERS).map(|_| Client::new()).collect();
        if let Some((candidate, url)) = self.asked_at(number) {
            for client in &clients {
                ask(client, &url, candidate, &self.beliefs).await;
            }
        }
        clients
    }

    /// Lets those apps ask, and as many on connections that the process has not accepted yet. A hung process answers
    /// all of them when it continues, before its timers or after.
    pub(super) fn ask_all(&mut self, number: usize, connected: &[Client]) {
        let Some((candidate, url)) = self.asked_at(number) else {
            return;
        };
        let unconnected = connected.iter().map(|_| Client::new());
        for client in connected.iter().cloned().chain(unconnected) {
            let (url, beliefs) = (url.clone(), self.beliefs.clone());
            let asker = async move { ask(&client, &url, candidate, &beliefs).await };
            self.apps.push(tokio::spawn(asker));
        }
    }

    /// The process of a candidate, and where to ask it; none when none runs.
    fn asked_at(&self, number: usize) -> Option<(Candidate, String)> {
        let running = self.places[number].running();
        let url = &running.1.as_ref()?.url;
        let url = format!("{url}/v1/elections/{ELECTION}");
        Some(((number, running.0), url))
    }

    /// The candidate that was last answered that it leads.
    pub(super) fn last_leader(&self) -> Option<usize> {
        let beliefs = locked(&self.beliefs);
        beliefs.last().map(|belief| belief.candidate.0)
    }

    /// How often the leader changed so far.
    pub(super) fn changes(&self) -> usize {
        // What cannot be is found in the end, too, and needs no more of it.
        terms(&locked(&self.beliefs)).map_or(usize::MAX, |terms| changes(&terms))
    }

    /// Lets a candidate's app step down, if it leads.
    pub(super) async fn step_down(&self, number: usize) -> Result<()> {
        let Some(process) = self.process(number) else {
            return Ok(());
        };
        let told = process.election(ELECTION).await?.json;
        let (token, lease) = (told["fencingToken"].as_u64(), told["leaseId"].as_str());
        if let (Some(token), Some(lease)) = (token, lease) {
            if !self.places[number].by_connection {
                // It ends for all of the pod. What a connection holds leaves the others their time.
                locked(&self.ended).push((Ended::Term(token), now()));
            }
            let released = process.release(lease).await?;
            if matches!(released.status, 202 | 204) {
                let answered = now();
                locked(&self.given_back).push(GivenBack { token, answered });
            }
        }
        Ok(())
    }

    /// Stops asking; returns all beliefs, and the released leads.
    pub(super) async fn beliefs(self) -> Result<(Vec<Belief>, Vec<GivenBack>)> {
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
        for (ended, at) in locked(&self.ended).iter() {
            let is_of_it = |belief: &&mut Belief| match ended {
                Ended::Term(token) => belief.token == *token,
                Ended::App(candidate) => belief.candidate == *candidate,
            };
            let of_it = beliefs.iter_mut().filter(is_of_it);
            of_it.for_each(|belief| belief.end_at(*at));
        }
        let given_back = locked(&self.given_back).clone();
        Ok((beliefs, given_back))
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
            // One that was killed meanwhile answers nothing.
            if let Ok(answer) = answer {
                note(&beliefs, (number, incarnation), sent, &answer.json);
            }
        }
        tokio::time::sleep(BETWEEN).await;
    }
}

async fn ask(client: &Client, url: &str, candidate: Candidate, beliefs: &Mutex<Vec<Belief>>) {
    let sent = now();
    if let Ok(answer) = client.get(url).send().await
        && let Ok(told) = answer.json::<Value>().await
    {
        note(beliefs, candidate, sent, &told);
    }
}

/// Records an answer.
fn note(beliefs: &Mutex<Vec<Belief>>, candidate: Candidate, sent: Moment, told: &Value) {
    let received = now();
    let number_of = |field: &str| told[field].as_u64();
    if told["leader"] == true
        && let (Some(valid_for), Some(token)) = (number_of("validForMs"), number_of("fencingToken"))
    {
        locked(beliefs).push(Belief {
            candidate,
            sent,
            received,
            valid_for: Duration::from_millis(valid_for),
            token,
        });
    }
}

/// Runs by a connection, and again when that has ended.
async fn hold_on(place: Arc<Place>, is_over: Arc<AtomicBool>) {
    while !is_over.load(Ordering::SeqCst) {
        let process = place.running().1.clone();
        let has_holder = locked(&place.holder).as_ref().is_some_and(|h| !h.is_over());
        if let (false, Some(process)) = (has_holder, process) {
            let path = format!("/v1/elections/{ELECTION}/candidacy");
            // One that cannot be started is tried again.
            *locked(&place.holder) = process.curl_stream(&path, &json!({})).ok();
        }
        tokio::time::sleep(BETWEEN_HOLDERS).await;
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
