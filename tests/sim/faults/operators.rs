//! The faults of the operator's replicas: the same as those of pods, where they apply.

use super::{Faults, GRACE, LONGEST};
use crate::operator::Replica;

impl Faults {
    pub(super) fn inject_at_an_operator(&mut self) {
        if self.replicas.is_empty() {
            return;
        }
        let replica = self.replicas[self.random.usize(..self.replicas.len())].clone();
        match self.random.u8(..8) {
            0 => self.kill_operator(&replica),
            1 | 2 => self.pause_operator(&replica),
            3 => self.terminate_operator(&replica),
            4 | 5 => self.cut(replica.name(), replica.network()),
            _ => self.quality(replica.name(), replica.network()),
        }
    }

    fn kill_operator(&mut self, replica: &Replica) {
        if replica.process().is_none() {
            return;
        }
        self.world.count("operator crashed");
        self.world.note(replica.name(), "crashed");
        replica.kill();
        let replica = replica.clone();
        self.later(2.0, move || start_again(&replica));
    }

    fn terminate_operator(&mut self, replica: &Replica) {
        let grace = self.up_to(self.ttl().mul_f64(GRACE));
        let away = self.up_to(self.ttl() / 2);
        self.world
            .note(replica.name(), format_args!("has {grace:?} to stop"));
        let replica = replica.clone();
        tokio::spawn(async move {
            replica.stop(grace).await;
            tokio::time::sleep(away).await;
            start_again(&replica);
        });
    }

    fn pause_operator(&mut self, replica: &Replica) {
        let Some(process) = replica.process() else {
            return;
        };
        let lasts = self.up_to(self.ttl().mul_f64(LONGEST));
        let (now, replica) = (self.world.now(), replica.clone());
        replica
            .world()
            .note(replica.name(), format_args!("stands still for {lasts:?}"));
        let led = replica.world().holds(replica.name());
        process.pauses.begin(now, now + lasts);
        tokio::spawn(async move {
            tokio::time::sleep(lasts).await;
            let Some(stood) = process.pauses.end(replica.world().now()) else {
                return;
            };
            replica.world().note(replica.name(), "goes on");
            if led && stood > replica.world().setup().ttl.get() {
                replica
                    .world()
                    .count("operator that led stood still past its TTL");
            }
        });
    }
}

fn start_again(replica: &Replica) {
    replica.world().note(replica.name(), "started");
    replica.start();
}
