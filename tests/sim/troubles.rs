//! What goes wrong with networks and processes, until everything is mended.

use std::time::Duration;

use fastrand::Rng;

use crate::link::{Cut, Weather};
use crate::operator::Replica;
use crate::people::{self, Copy};
use crate::pod::Pod;
use crate::world::World;

/// What makes things go wrong.
pub(crate) struct Troubles {
    world: World,
    pods: Vec<Pod>,
    replicas: Vec<Replica>,
    copy: Option<Copy>,
    random: Rng,
}

impl Troubles {
    pub(crate) fn new(world: &World, pods: &[Pod], replicas: &[Replica], random: Rng) -> Self {
        Self {
            world: world.clone(),
            pods: pods.to_vec(),
            replicas: replicas.to_vec(),
            copy: None,
            random,
        }
    }

    /// One thing after the other, then everything is mended.
    pub(crate) async fn go_on(mut self) {
        let ttl = self.ttl();
        while !self.world.is_mended() {
            self.one();
            let pause = self.up_to(ttl / 2);
            tokio::time::sleep(pause).await;
        }
        self.mend();
    }

    fn one(&mut self) {
        let pod = self.pods[self.random.usize(..self.pods.len())].clone();
        if self.random.u8(..4) == 0 {
            pod.disk().copy();
        }
        match self.random.u8(..26) {
            0..8 => self.weather(&pod),
            8..12 => self.cut(&pod),
            12..15 => self.kill_sidecar(&pod),
            15 => self.kill_apps(&pod),
            16 => self.end(&pod),
            17 => people::meddle(&self.world, &mut self.random),
            18 => self.stop_apps(&pod),
            19 => self.stop_sidecar(&pod),
            20 => {
                self.stop_apps(&pod);
                self.stop_sidecar(&pod);
            }
            21 | 22 => self.trouble_an_operator(),
            23 => self.restore(),
            _ => self.leap(&pod),
        }
    }

    /// Now and then a backup is made; in some worlds one is restored.
    fn restore(&mut self) {
        match self.copy.take() {
            Some(copy) if self.world.setting().seed.is_multiple_of(4) => copy.restore(&self.world),
            _ => self.copy = Some(Copy::of(&self.world)),
        }
    }

    fn trouble_an_operator(&mut self) {
        if self.replicas.is_empty() {
            return;
        }
        let replica = self.replicas[self.random.usize(..self.replicas.len())].clone();
        let Some(process) = replica.process() else {
            return;
        };
        match self.random.u8(..3) {
            0 => {
                self.world.count("operator crashed");
                self.world.note(replica.name(), "crashed");
                replica.kill();
                self.later(2.0, move || {
                    replica.world().note(replica.name(), "started");
                    replica.start();
                });
            }
            1 => {
                self.world.count("operator stopped for a while");
                self.world.note(replica.name(), "stands still");
                process.pause.stand_still();
                self.later(2.5, move || {
                    if replica.is_running(&process) {
                        replica.world().note(replica.name(), "goes on");
                        process.pause.go_on();
                    }
                });
            }
            _ => {
                self.world.count("operator cut off");
                self.world.note(replica.name(), "cut off");
                process.link.cut(Cut::BOTH);
                self.later(2.5, move || process.link.cut(Cut::default()));
            }
        }
    }

    fn weather(&mut self, pod: &Pod) {
        let weather = match self.random.u8(..4) {
            0 => Weather::Stormy,
            1 | 2 => Weather::Windy,
            _ => Weather::Calm,
        };
        if let Some(sidecar) = pod.sidecar() {
            self.world.note(pod.name(), format_args!("{weather:?}"));
            sidecar.link.set_weather(weather);
        }
    }

    fn cut(&mut self, pod: &Pod) {
        let Some(sidecar) = pod.sidecar() else { return };
        let (cut, kind) = match self.random.u8(..3) {
            0 => (Cut::BOTH, "cut off both ways"),
            1 => (Cut::TO_STORE, "cut off to the store"),
            _ => (Cut::FROM_STORE, "cut off from the store"),
        };
        self.world.count(kind);
        self.world.note(pod.name(), kind);
        sidecar.link.cut(cut);
        let (world, name) = (self.world.clone(), pod.name().to_owned());
        self.later(2.5, move || {
            world.note(&name, "not cut off any more");
            sidecar.link.cut(Cut::default());
        });
    }

    fn kill_sidecar(&mut self, pod: &Pod) {
        let has_older = self.world.setting().has_older_copies && pod.keeps_state();
        let state = if has_older && pod.disk().bring_back() {
            "sidecar crashed, older state"
        } else if !pod.keeps_state() {
            "sidecar crashed without state"
        } else if self.random.u8(..5) == 0 {
            pod.disk().lose();
            "sidecar crashed and lost its state"
        } else {
            "sidecar crashed with state"
        };
        self.world.count(state);
        self.world.note(pod.name(), state);
        pod.kill_sidecar();
        let pod = pod.clone();
        self.later(1.0, move || {
            pod.world().note(pod.name(), "sidecar started");
            pod.start_sidecar();
        });
    }

    fn stop_sidecar(&mut self, pod: &Pod) {
        let Some(sidecar) = pod.sidecar() else { return };
        self.world.count("sidecar stopped for a while");
        self.world.note(pod.name(), "sidecar stands still");
        sidecar.pause.stand_still();
        let (world, name) = (self.world.clone(), pod.name().to_owned());
        self.later(2.5, move || {
            // One that died meanwhile stays dead.
            if !sidecar.died.is_cancelled() {
                world.note(&name, "sidecar goes on");
                sidecar.pause.go_on();
            }
        });
    }

    fn stop_apps(&mut self, pod: &Pod) {
        self.world.count("apps stopped for a while");
        self.world.note(pod.name(), "apps stand still");
        let (apps, pod) = (pod.freeze_apps(), pod.clone());
        self.later(2.5, move || {
            pod.world().note(pod.name(), "apps go on");
            apps.go_on();
        });
    }

    /// As no good clock does.
    fn leap(&mut self, pod: &Pod) {
        if self.world.setting().clocks_leap {
            let by = self.up_to(self.ttl() * 3);
            self.world.count("clock leapt");
            self.world
                .note(pod.name(), format_args!("clock leaps {by:?}"));
            pod.clock().leap(by);
        }
    }

    fn kill_apps(&mut self, pod: &Pod) {
        if pod.is_over() {
            return;
        }
        self.world.count("apps crashed");
        self.world.note(pod.name(), "apps crashed");
        pod.kill_apps();
        let pod = pod.clone();
        self.later(1.0, move || pod.start_apps());
    }

    /// Two pods at least stay.
    fn end(&mut self, pod: &Pod) {
        let alive = self.pods.iter().filter(|pod| !pod.is_over()).count();
        if alive > 2 && !pod.is_over() {
            let is_reported = self.random.bool();
            self.world.count(if is_reported {
                "pod ended and was reported"
            } else {
                "pod ended in silence"
            });
            self.world.note(pod.name(), "ended");
            pod.end();
            if is_reported {
                self.world.store().report_pod(pod.report());
            }
        }
    }

    fn mend(&mut self) {
        for replica in &self.replicas {
            replica.start();
            if let Some(process) = replica.process() {
                process.link.cut(Cut::default());
                process.link.set_weather(Weather::Calm);
                process.pause.go_on();
            }
        }
        for pod in self.pods.iter().filter(|pod| !pod.is_over()) {
            pod.start_sidecar();
            if let Some(sidecar) = pod.sidecar() {
                sidecar.link.cut(Cut::default());
                sidecar.link.set_weather(Weather::Calm);
                sidecar.pause.go_on();
            }
        }
    }

    fn later(&mut self, ttls: f64, then: impl FnOnce() + Send + 'static) {
        let after = self.up_to(self.ttl().mul_f64(ttls));
        tokio::spawn(async move {
            tokio::time::sleep(after).await;
            then();
        });
    }

    fn ttl(&self) -> Duration {
        self.world.setting().ttl.get()
    }

    fn up_to(&mut self, longest: Duration) -> Duration {
        longest.mul_f64(self.random.f64())
    }
}
