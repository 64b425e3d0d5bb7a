//! The faults of networks, processes and clocks, until everything is healed.

mod operators;
mod processes;

use std::time::Duration;

use fastrand::Rng;

use crate::admin::{self, Copy};
use crate::link::Quality;
use crate::network::{Cut, Network};
use crate::operator::Replica;
use crate::pod::Pod;
use crate::world::World;

/// The longest cut or pause, in TTLs.
const LONGEST: f64 = 2.5;
/// The longest grace period of a process, in TTLs.
const GRACE: f64 = 3.0;

/// Injects the faults of one world.
pub(crate) struct Faults {
    world: World,
    pods: Vec<Pod>,
    replicas: Vec<Replica>,
    random: Rng,
}

impl Faults {
    pub(crate) fn new(world: &World, pods: &[Pod], replicas: &[Replica], random: Rng) -> Self {
        Self {
            world: world.clone(),
            pods: pods.to_vec(),
            replicas: replicas.to_vec(),
            random,
        }
    }

    /// Injects one fault after the other, then heals everything.
    pub(crate) async fn run(mut self) {
        let ttl = self.ttl();
        while !self.world.is_healed() {
            self.inject_one();
            let pause = self.up_to(ttl / 2);
            tokio::time::sleep(pause).await;
        }
        self.heal();
    }

    fn inject_one(&mut self) {
        let pod = self.pods[self.random.usize(..self.pods.len())].clone();
        match self.random.u8(..29) {
            0..8 => self.quality(pod.name(), pod.network()),
            8..12 => self.cut(pod.name(), pod.network()),
            12..15 => self.kill_sidecar(&pod),
            15 => self.kill_apps(&pod),
            16 => self.end(&pod),
            17 => admin::act(&self.world, &mut self.random),
            18 => self.stop_apps(&pod),
            19 => self.stop_sidecar(&pod),
            20 => {
                self.stop_apps(&pod);
                self.stop_sidecar(&pod);
            }
            21..24 => self.inject_at_an_operator(),
            24 => self.restore(),
            25 => self.terminate_sidecar(&pod),
            26 => self.report_of_no_end(&pod),
            _ => self.leap(&pod),
        }
    }

    /// Takes a backup and restores it soon, so that its sessions and grants are still valid.
    fn restore(&mut self) {
        let setup = self.world.setup();
        let may_begin_anew = !setup.counts_nanoseconds();
        let Some(within) = setup.restored_within.filter(|_| may_begin_anew) else {
            return;
        };
        let (copy, world) = (Copy::of(&self.world), self.world.clone());
        self.world.note("admin", "make a backup");
        self.later(within, move || {
            if !world.is_healed() {
                copy.restore(&world);
            }
        });
    }

    fn quality(&mut self, name: &str, network: &Network) {
        let quality = match self.random.u8(..4) {
            0 => Quality::Bad,
            1 | 2 => Quality::Slow,
            _ => Quality::Good,
        };
        self.world.note(name, format_args!("{quality:?}"));
        network.set_quality(quality);
    }

    fn cut(&mut self, name: &str, network: &Network) {
        let cut = match self.random.u8(..7) {
            0 | 1 => Cut::Both,
            2 | 3 => Cut::ToStore,
            4 | 5 => Cut::FromStore,
            _ => Cut::Rights,
        };
        let lasts = self.up_to(self.ttl().mul_f64(LONGEST));
        self.world
            .note(name, format_args!("cut off ({cut:?}) for {lasts:?}"));
        network.cut(cut, lasts);
    }

    /// Moves a clock forward, which no correct clock does.
    fn leap(&mut self, pod: &Pod) {
        if self.world.setup().clocks_leap {
            let by = self.up_to(self.ttl() * 3);
            self.world.count("clock leapt");
            self.world
                .note(pod.name(), format_args!("clock leaps {by:?}"));
            pod.clock().leap(by);
        }
    }

    fn heal(&mut self) {
        let now = self.world.now();
        for replica in &self.replicas {
            replica.network().heal();
            replica.start();
            if let Some(process) = replica.process() {
                process.pauses.resume(now);
            }
        }
        for pod in self.pods.iter().filter(|pod| !pod.is_over()) {
            pod.network().heal();
            pod.start_sidecar();
            if let Some(sidecar) = pod.sidecar() {
                sidecar.pauses.resume(now);
            }
        }
    }

    /// Runs a function later, within the given number of TTLs.
    fn later(&mut self, ttls: f64, then: impl FnOnce() + Send + 'static) {
        let after = self.up_to(self.ttl().mul_f64(ttls));
        tokio::spawn(async move {
            tokio::time::sleep(after).await;
            then();
        });
    }

    fn ttl(&self) -> Duration {
        self.world.setup().ttl.get()
    }

    fn up_to(&mut self, longest: Duration) -> Duration {
        longest.mul_f64(self.random.f64())
    }
}
