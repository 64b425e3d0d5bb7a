//! What goes wrong with networks, processes and clocks, until everything is mended.

mod operators;
mod processes;

use std::time::Duration;

use fastrand::Rng;

use crate::link::Weather;
use crate::network::{Cut, Network};
use crate::operator::Replica;
use crate::people::{self, Copy};
use crate::pod::Pod;
use crate::world::World;

/// The longest that something is cut off or stands still, in TTLs.
const LONGEST: f64 = 2.5;
/// The longest that a process is given to stop in good order, in TTLs.
const GRACE: f64 = 3.0;

/// What makes things go wrong.
pub(crate) struct Troubles {
    world: World,
    pods: Vec<Pod>,
    replicas: Vec<Replica>,
    random: Rng,
}

impl Troubles {
    pub(crate) fn new(world: &World, pods: &[Pod], replicas: &[Replica], random: Rng) -> Self {
        Self {
            world: world.clone(),
            pods: pods.to_vec(),
            replicas: replicas.to_vec(),
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
        match self.random.u8(..29) {
            0..8 => self.weather(pod.name(), pod.network()),
            8..12 => self.cut(pod.name(), pod.network()),
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
            21..24 => self.trouble_an_operator(),
            24 => self.restore(),
            25 => self.tell_sidecar_to_stop(&pod),
            26 => self.report_of_no_end(&pod),
            _ => self.leap(&pod),
        }
    }

    /// A backup is made, and soon put in the place of everything: young enough that sessions and grants in
    /// it are still going on.
    fn restore(&mut self) {
        let setting = self.world.setting();
        let may_begin_anew = !setting.counts_nanoseconds();
        let Some(within) = setting.restored_within.filter(|_| may_begin_anew) else {
            return;
        };
        let (copy, world) = (Copy::of(&self.world), self.world.clone());
        self.world.note("people", "make a backup");
        self.later(within, move || {
            if !world.is_mended() {
                copy.restore(&world);
            }
        });
    }

    fn weather(&mut self, name: &str, network: &Network) {
        let weather = match self.random.u8(..4) {
            0 => Weather::Stormy,
            1 | 2 => Weather::Windy,
            _ => Weather::Calm,
        };
        self.world.note(name, format_args!("{weather:?}"));
        network.set_weather(weather);
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

    fn mend(&mut self) {
        let now = self.world.now();
        for replica in &self.replicas {
            replica.network().mend();
            replica.start();
            if let Some(process) = replica.process() {
                process.stillness.go_on(now);
            }
        }
        for pod in self.pods.iter().filter(|pod| !pod.is_over()) {
            pod.network().mend();
            pod.start_sidecar();
            if let Some(sidecar) = pod.sidecar() {
                sidecar.stillness.go_on(now);
            }
        }
    }

    /// Does something in a while, but not later than in so many TTLs.
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
