//! Faults between the processes and the API server: lost and late messages, and partitions.

use anyhow::{Context, Result};

use super::Undo;
use crate::harness::{Class, Fault, Proxy};
use crate::schedule::{Kind, Schedule};
use crate::world::World;

/// The percentage of requests that fail while there is noise.
const NOISE: u32 = 30;
impl World {
    pub(super) fn inject_network_fault(
        &mut self,
        kind: Kind,
        schedule: &mut Schedule,
    ) -> Result<Undo> {
        match kind {
            Kind::Noise => {
                for proxy in self.proxies() {
                    if schedule.is(60) {
                        proxy.make_noise(schedule.seed(), NOISE);
                    }
                }
                Ok(Undo::Calm)
            }
            Kind::LateAnswers | Kind::LateRequests => {
                self.make_late(kind, schedule);
                Ok(Undo::Calm)
            }
            Kind::Partition => {
                let anyone = schedule.pick(self.pods.len() + self.operators.len());
                let who = self.probable_holder(schedule).unwrap_or(anyone);
                self.proxy(who).context("each has a proxy")?.pause();
                Ok(Undo::Reconnect(who))
            }
            Kind::StallWatches => {
                let who = schedule.pick(self.pods.len() + self.operators.len());
                let proxy = self.proxy(who).context("each has a proxy")?;
                proxy.stall_watches();
                Ok(Undo::Nothing(format!("watches of {who}")))
            }
            _ => {
                let pod = self.pod_with_network().context("one is a network's")?;
                self.plug(pod, false)?;
                Ok(Undo::PlugIn(pod))
            }
        }
    }

    fn pod_with_network(&self) -> Option<usize> {
        self.pods.iter().position(|pod| pod.network.is_some())
    }

    /// Returns the replacement of a fault that is impossible: without root no pod has its own
    /// network, so its proxy is cut instead.
    pub(crate) fn possible(&self, kind: Kind) -> Kind {
        match kind {
            Kind::CutPod if self.pod_with_network().is_none() => Kind::Partition,
            _ => kind,
        }
    }

    /// Returns the number of messages that a fault has affected so far.
    pub(crate) fn met(&self) -> Result<usize> {
        let mut met = self.proxies().map(Proxy::met).sum();
        for network in self.pods.iter().filter_map(|pod| pod.network.as_ref()) {
            met += network.sent_again()?;
        }
        Ok(met)
    }

    fn make_late(&self, kind: Kind, schedule: &mut Schedule) {
        for proxy in self.proxies() {
            for class in Class::ALL.into_iter().filter(|class| class.is_write()) {
                let late = schedule.between(200, 7_000);
                let fault = match (kind, schedule.is(30)) {
                    (Kind::LateAnswers, true) => Fault::AnswerLost,
                    (Kind::LateAnswers, false) => Fault::AnswerLate(late),
                    _ => Fault::RequestLate(late),
                };
                if schedule.is(40) {
                    proxy.fail(class, 1, fault);
                }
            }
        }
    }

    fn proxies(&self) -> impl Iterator<Item = &Proxy> {
        let of_operators = self.operators.iter().map(|operator| &operator.proxy);
        self.pods.iter().map(|pod| &pod.proxy).chain(of_operators)
    }

    fn proxy(&self, who: usize) -> Option<&Proxy> {
        self.proxies().nth(who)
    }

    pub(super) fn calm(&self) {
        for proxy in self.proxies() {
            proxy.make_noise(0, 0);
            proxy.lift_all();
        }
    }

    pub(super) fn reconnect(&self, who: usize) {
        if let Some(proxy) = self.proxy(who) {
            proxy.resume();
        }
    }

    pub(super) fn plug_in(&self, pod: usize) -> Result<()> {
        self.plug(pod, true)
    }

    fn plug(&self, pod: usize, is_in: bool) -> Result<()> {
        match &self.pods[pod].network {
            Some(network) => network.plug(is_in),
            None => Ok(()),
        }
    }
}
