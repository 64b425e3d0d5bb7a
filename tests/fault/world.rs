//! The world of a run: its own control plane, two operators, pods with sidecars and apps, and the
//! guarded resources. Strict mode, with the shipped rights and policies.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use crate::app;
use crate::clock::Clock;
use crate::harness::{
    Cluster, Namespace, Operator, Pod, Proxy, TakeOver, eventually, keep_logs_in, target_directory,
};
use crate::network::Network;
use crate::recorder::Recorder;
use crate::register::{Fence, Register};
use crate::stall_detector::StallDetector;
use crate::stops::Stops;
use crate::test_pod::{Equipment, TestPod};

/// Our binary.
pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_leasehold");
/// The shortest permitted TTL: more happens in ten minutes.
pub(crate) const TTL_SECONDS: u64 = 3;
const PODS: usize = 6;
const APPS_PER_POD: usize = 2;
/// The number of locks. At least the number of pods: at the end each pod grants one.
const RESOURCES: usize = 8;
/// How long apps may take to notice the end of the run, or to end their waits.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// The whole setup.
pub(crate) struct World {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) namespace: Namespace,
    pub(crate) operators: Vec<Replica>,
    pub(crate) pods: Vec<TestPod>,
    pub(crate) register: Register,
    pub(crate) resources: Vec<String>,
    /// The administrator's actions, in the history.
    pub(crate) admin: Recorder,
    operators_bug: Option<&'static str>,
    _stall_detector: StallDetector,
    pub(crate) place: Place,
}

/// The environment of an operator replica.
pub(crate) struct Replica {
    pod: Pod,
    /// The proxy between the replica and the API server.
    pub(crate) proxy: Proxy,
    /// Leases must tolerate a challenger's clock that is too fast beside holders' clocks that are
    /// too slow.
    clock: Option<Clock>,
    pub(crate) running: Option<Operator>,
}

/// The configuration of a world.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// The seed of the apps' decisions.
    pub(crate) seed: u64,
    pub(crate) fence: Fence,
    /// The time by which apps exceed their deadline.
    pub(crate) overtrust_ms: u64,
    /// The history has no stops. A control: shows that this is detected.
    pub(crate) secret_stops: bool,
    /// All work takes long: an affected app holds a lock, and wants it for longer than the fault
    /// lasts.
    pub(crate) works_long: bool,
    /// The number of locks.
    pub(crate) resources: usize,
    /// A seeded bug of the operators. `LEASEHOLD_SEEDED` is the path of a binary that has it.
    pub(crate) operators_bug: Option<&'static str>,
}

impl Plan {
    /// Returns the configuration without any deviation.
    pub(crate) const fn sound(seed: u64) -> Self {
        Self {
            seed,
            fence: Fence::Checks,
            overtrust_ms: 0,
            secret_stops: false,
            works_long: false,
            resources: RESOURCES,
            operators_bug: None,
        }
    }
}

/// The directory of a run's files.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) directory: PathBuf,
}

impl Place {
    /// Creates an empty directory under target/fault.
    pub(crate) fn new(name: &str) -> Result<Self> {
        let directory = target_directory().join("fault").join(name);
        if directory.exists() {
            std::fs::remove_dir_all(&directory)?;
        }
        let place = Self { directory };
        std::fs::create_dir_all(place.histories())?;
        std::fs::create_dir_all(place.logs())?;
        Ok(place)
    }

    /// Returns the directory of the histories: one file per process.
    pub(crate) fn histories(&self) -> PathBuf {
        self.directory.join("history")
    }

    /// The logs of sidecars and operators.
    pub(crate) fn logs(&self) -> PathBuf {
        self.directory.join("logs")
    }

    fn finish(&self) -> PathBuf {
        self.directory.join("finish")
    }
}

impl World {
    /// Starts everything except the apps.
    pub(crate) async fn start(place: &Place, plan: Plan) -> Result<Self> {
        keep_logs_in(&place.logs());
        let cluster = Cluster::fresh(TakeOver::Strict).await?;
        let mut operators = Vec::new();
        let places = [(0, Some(104)), (1, None)];
        for (number, rate) in places {
            let pod = cluster.operator_pod(&format!("operator-{number}")).await?;
            let proxy = Proxy::start(&cluster).await?;
            let clock = rate.map(|rate| Clock::running(&place.directory, rate));
            operators.push(Replica {
                pod: pod.through(&proxy.url)?,
                proxy,
                clock: clock.transpose()?,
                running: None,
            });
        }
        let namespace = cluster.namespace("fault").await?;
        let histories = place.histories();
        let mut world = Self {
            cluster,
            operators,
            pods: Vec::new(),
            register: Register::start(plan.fence, &histories).await?,
            resources: (0..plan.resources).map(|n| format!("r{n}")).collect(),
            admin: Recorder::begin(&histories, "admin")?,
            operators_bug: plan.operators_bug,
            _stall_detector: StallDetector::begin(&histories)?,
            namespace,
            place: place.clone(),
        };
        for number in 0..2 {
            world.start_operator(number).await?;
        }
        for number in 0..PODS {
            let pod = world.pod(number, plan).await?;
            world.pods.push(pod);
            world.pods[number].start_sidecar(false).await?;
        }
        Ok(world)
    }

    async fn pod(&self, number: usize, plan: Plan) -> Result<TestPod> {
        let pod = self.namespace.pod(&format!("pod-{number}")).await?;
        let directory = &self.place.directory;
        let clock = match number {
            1 => Some(Clock::running(directory, 104)?),
            2 => Some(Clock::running(directory, 96)?),
            3 => Some(Clock::with_wall(directory)?),
            4 => Some(Clock::leaping(directory)?),
            _ => None,
        };
        let network = match number {
            5 => Network::new(&self.place.logs()).await?,
            _ => None,
        };
        let us = match &network {
            Some(network) => network.host.clone(),
            None => "127.0.0.1".to_owned(),
        };
        let clock_percent = clock.as_ref().map_or(100, Clock::percent);
        let apps = (0..APPS_PER_POD).map(|app| app::Config {
            name: format!("app-{number}{app}"),
            sidecar: String::new(),
            served_by: String::new(),
            register: format!("http://{us}:{}", self.register.port),
            resources: self.resources.clone(),
            seed: plan.seed ^ ((number * APPS_PER_POD + app + 1) as u64) << 32,
            histories: self.place.histories(),
            finish: self.place.finish(),
            clock_percent,
            overtrust_ms: plan.overtrust_ms,
            works_long: plan.works_long,
        });
        let equipment = Equipment {
            proxy: Proxy::start_on(&self.cluster, &us).await?,
            clock,
            network,
        };
        let state = directory.join(format!("state-{number}"));
        let stops = Stops::begin(&self.place.histories(), number, plan.secret_stops)?;
        TestPod::new(&pod, equipment, state, stops, apps)
    }

    /// Starts all apps.
    pub(crate) fn start_apps(&mut self) -> Result<()> {
        for pod in &mut self.pods {
            for app in 0..APPS_PER_POD {
                pod.start_app(app)?;
            }
        }
        Ok(())
    }

    /// Starts a replica of the operator.
    pub(crate) async fn start_operator(&mut self, number: usize) -> Result<()> {
        let replica = &mut self.operators[number];
        // Idle locks are deleted within the run, and recreated.
        let args = [
            "--session-ttl",
            "3",
            "--retain-seconds",
            "60",
            "--keep-sessions-seconds",
            "10",
        ];
        let through = replica.clock.as_ref().map(Clock::through);
        let mut through = through.transpose()?.unwrap_or_default();
        let mut binary = BINARY.to_owned();
        if let Some(bug) = self.operators_bug {
            binary = std::env::var("LEASEHOLD_SEEDED").context("LEASEHOLD_SEEDED")?;
            let bug = format!("LEASEHOLD_SEEDED_BUG={bug}");
            through.splice(0..0, ["env".to_owned(), bug]);
        }
        let started = Operator::start_through(&through, &binary, &replica.pod, &args).await?;
        replica.running = Some(started);
        Ok(())
    }

    /// Waits until one of the operators is active and has listed all objects.
    pub(crate) async fn until_operator_leads(&self) -> Result<()> {
        eventually("an active operator", LIMIT, async || {
            for replica in &self.operators {
                let running = replica.running.as_ref()?;
                if running.metric("leasehold_operator_leading").await.ok()? > 0.0 {
                    return Some(());
                }
            }
            None
        })
        .await
    }

    /// Returns the app that wrote last: (pod, app).
    pub(crate) fn last_writer(&self) -> Option<(usize, usize)> {
        let last = self.register.last_writes();
        let latest = last.into_iter().max_by_key(|write| write.at)?;
        let pods = self.pods.iter().enumerate();
        let mut apps = pods.flat_map(|(pod, it)| {
            let apps = it.apps.iter().enumerate();
            apps.map(move |(app, slot)| (pod, app, slot))
        });
        let (pod, app, _) = apps.find(|(_, _, slot)| slot.is_process_of(&latest.process))?;
        Some((pod, app))
    }

    /// Ends the apps, and waits until each has exited successfully.
    pub(crate) async fn finish(&mut self) -> Result<()> {
        std::fs::write(self.place.finish(), "")?;
        for pod in &self.pods {
            for app in &pod.apps {
                let Some(process) = app.process() else {
                    continue;
                };
                let end = process.wait(LIMIT).await?;
                ensure!(end.success(), "an app failed:\n{}", process.last_words());
            }
        }
        Ok(())
    }

    /// After all apps have released, each lock is granted once more, by a sidecar that is reachable
    /// from here. A sidecar with its own network is not.
    pub(crate) async fn until_all_are_granted_again(&self) -> Result<()> {
        let pods = self.pods.iter().filter(|pod| pod.network.is_none());
        for (resource, pod) in self.resources.iter().zip(pods.cycle()) {
            let body = json!({"resource": resource, "ttlSeconds": 5, "waitSeconds": 20});
            eventually(
                &format!("{resource} to be granted again"),
                LIMIT,
                async || {
                    let sidecar = pod.sidecar()?;
                    let lease = sidecar.acquire_with(&body).await.ok()?.granted().ok()?;
                    sidecar.release(&lease.id).await.ok()?.expect(204).ok()
                },
            )
            .await?;
        }
        Ok(())
    }
}

/// Returns the name of a run's directory.
pub(crate) fn named(about: &str, seed: u64) -> String {
    Path::new(about)
        .join(format!("{seed}"))
        .display()
        .to_string()
}

/// Removes all but the latest runs.
pub(crate) fn keep_latest_runs(about: &str, kept: usize) -> Result<()> {
    let directory = target_directory().join("fault").join(about);
    if !directory.exists() {
        return Ok(());
    }
    let mut runs = Vec::new();
    for entry in directory.read_dir()? {
        let entry = entry?;
        runs.push((entry.metadata()?.modified()?, entry.path()));
    }
    runs.sort();
    for (_, run) in runs.iter().rev().skip(kept) {
        std::fs::remove_dir_all(run)?;
    }
    Ok(())
}
