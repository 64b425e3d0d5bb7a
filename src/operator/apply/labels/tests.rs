//! Tests that the label moves by plan and action, and that two pods never have it at once.

#[path = "../../../../tests/seed.rs"]
mod seed;

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use seed::seed;

use super::*;
use crate::clock::Now;
use crate::operator::action::Action;
use crate::operator::metrics::Outcome;
use crate::operator::plan::label::tests::World;
use crate::protocol::time::{Moment, WallTime};

/// The pods that have a label, and how the next write fails, if it does.
#[derive(Default)]
struct Pods {
    having: Mutex<BTreeSet<String>>,
    fails: Mutex<Option<Failure>>,
    writes: Mutex<usize>,
}

#[derive(Clone, Copy)]
enum Failure {
    /// The pod no longer exists.
    Gone,
    /// The write is rejected.
    Refused,
    /// The write is applied, but its answer is lost.
    Unheard,
}

impl Pods {
    fn write(&self, change: impl FnOnce(&mut BTreeSet<String>)) -> Result<(), StoreError> {
        *self.writes.lock().unwrap() += 1;
        let failure = self.fails.lock().unwrap().take();
        let mut having = self.having.lock().unwrap();
        match failure {
            Some(Failure::Gone) => return Err(StoreError::NotFound("pod".into())),
            Some(Failure::Refused) => return Err(StoreError::Denied("pod".into())),
            Some(Failure::Unheard) | None => change(&mut having),
        }
        assert!(having.len() <= 1, "{having:?}");
        match failure {
            Some(_) => Err(StoreError::Ambiguous("pod".into())),
            None => Ok(()),
        }
    }

    fn who(&self) -> Vec<String> {
        self.having.lock().unwrap().iter().cloned().collect()
    }

    fn writes(&self) -> usize {
        *self.writes.lock().unwrap()
    }
}

#[async_trait]
impl PodLabels for Pods {
    async fn list_pods(&self, namespace: &str, key: &str) -> Result<Vec<PodIdentity>, StoreError> {
        assert_eq!((namespace, key), ("n", "leasehold.dev/leader-jobs"));
        let having = self.who().into_iter().map(|name| PodIdentity {
            uid: format!("uid-{name}").into(),
            object_ref: ObjectRef {
                namespace: namespace.into(),
                name: name.into(),
            },
        });
        Ok(having.collect())
    }

    async fn add(&self, pod: &PodIdentity, _: &str) -> Result<(), StoreError> {
        self.write(|having| {
            having.insert(pod.object_ref.name.to_string());
        })
    }

    async fn remove(&self, pod: &PodIdentity, _: &str) -> Result<(), StoreError> {
        self.write(|having| {
            having.remove(&*pod.object_ref.name);
        })
    }
}

/// Performs one step. Returns whether an action was due.
async fn step(world: &mut World, pods: &Pods) -> bool {
    let now = Now {
        moment: Moment::since_boot(Duration::ZERO),
        wall: WallTime(0),
    };
    let action = world.step(0).action;
    let applied = match action {
        None => return false,
        Some(Action::RemoveLabel {
            election,
            grant,
            keep,
        }) => remove(pods, election, grant, keep).await,
        Some(Action::AddLabel {
            election,
            grant,
            pod,
        }) => add(pods, election, grant, &pod).await,
        Some(other) => panic!("{other:?}"),
    };
    assert_eq!(applied.outcome == Outcome::Done, applied.error.is_none());
    let observation = applied.observation.unwrap();
    let is_about_labels = matches!(
        observation,
        Observation::LabelRemoved { .. }
            | Observation::LabelAdded { .. }
            | Observation::LabelUnknown(_)
    );
    assert!(is_about_labels, "{observation:?}");
    world.view.observe(observation, now);
    true
}

#[tokio::test]
async fn new_leader_costs_two_writes_and_an_unchanged_one_none() {
    let (mut world, pods) = (World::new(), Pods::default());
    world.lead(Some("a"));
    while step(&mut world, &pods).await {}
    assert_eq!((pods.who(), pods.writes()), (vec!["a".to_owned()], 1));
    world.lead(Some("b"));
    while step(&mut world, &pods).await {}
    assert_eq!((pods.who(), pods.writes()), (vec!["b".to_owned()], 3));
    world.view.forget_labels();
    while step(&mut world, &pods).await {}
    assert_eq!(pods.writes(), 3, "another replica finds nothing to write");
    world.lead(None);
    while step(&mut world, &pods).await {}
    assert_eq!((pods.who(), pods.writes()), (vec![], 4));
}

#[tokio::test]
async fn deleted_pod_is_not_a_failure() {
    let (mut world, pods) = (World::new(), Pods::default());
    world.lead(Some("a"));
    assert!(step(&mut world, &pods).await);
    *pods.fails.lock().unwrap() = Some(Failure::Gone);
    assert!(step(&mut world, &pods).await);
    assert!(!step(&mut world, &pods).await, "the write is not retried");
}

#[tokio::test]
async fn missing_right_is_reported_with_the_file_that_grants_it() {
    let (mut world, pods) = (World::new(), Pods::default());
    world.lead(Some("a"));
    assert!(step(&mut world, &pods).await);
    let Some(Action::AddLabel {
        election,
        grant,
        pod,
    }) = world.step(0).action
    else {
        panic!("no pod has it yet");
    };
    *pods.fails.lock().unwrap() = Some(Failure::Refused);
    let applied = add(&pods, election, grant, &pod).await;
    let advice = applied.advice.unwrap();
    assert!(advice.contains("operator-leader-labels.yaml"), "{advice}");
}

#[tokio::test]
async fn two_pods_never_have_the_label_at_once() {
    let seed = seed();
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut world, pods) = (World::new(), Pods::default());
    let leaders = [Some("a"), Some("b"), Some("c"), None];
    let failures = [Failure::Gone, Failure::Refused, Failure::Unheard];
    for _ in 0..2_000 {
        let leader = leaders[random.usize(..leaders.len())];
        world.lead(leader);
        for _ in 0..random.usize(..4) {
            // Without `Gone`: a pod that no longer exists has no label, regardless of the write.
            let failure = failures[random.usize(1..failures.len())];
            *pods.fails.lock().unwrap() = random.bool().then_some(failure);
            step(&mut world, &pods).await;
        }
        if random.u8(..8) == 0 {
            *pods.fails.lock().unwrap() = None;
            while step(&mut world, &pods).await {}
            let expected: Vec<String> = leader.map(str::to_owned).into_iter().collect();
            assert_eq!(pods.who(), expected, "seed {seed}");
        }
    }
}
