//! The properties of every state, and running the checker to its end.

use std::collections::{BTreeMap, HashSet};
use std::sync::Mutex;

use stateright::{Checker, HasDiscoveries, Model, Property};

use super::actions::Action;
use super::node::Phase;
use super::rules::{Return, Rules};
use super::world::World;
use super::*;
use crate::clock::{Clock, SystemClock};
use crate::protocol::incident::INCIDENTS_MAX;
use crate::protocol::queue::QUEUE_MAX;

/// No two apps believe at once that they hold a lock, unless a person overrode it.
pub(super) const EXCLUSION: &str = "one app believes at a time";
/// Each lease has a larger token than all before it, whatever is deleted or restored.
pub(super) const TOKENS: &str = "tokens rise";
/// What the core itself does is sound: one answer for each request, leases that are not over, no timer
/// that is due again at once, and a state file that has every lease.
pub(super) const SOUND: &str = "each step is sound";
/// The lock as it is stored keeps its own rules.
pub(super) const STORED: &str = "stored locks are sound";
/// If nothing goes wrong from here on, each caller is answered and nothing is left.
pub(super) const SERVED: &str = "everything comes to rest";

/// How long everything takes to come to rest: a waiter may have to wait for two sessions to expire.
const REST: Duration = Duration::from_secs(1_000);

pub(super) struct Checked {
    rules: Rules,
    /// How often each kind of step was taken.
    taken: Mutex<BTreeMap<String, u64>>,
}

impl Model for Checked {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let clocks = self.rules.nodes + usize::from(self.rules.operator);
        let combinations = if self.rules.clocks_differ {
            1 << clocks
        } else {
            1
        };
        (0..combinations)
            .map(|fast| World::new(&self.rules, fast))
            .collect()
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        world.actions(&self.rules, actions);
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let next = world.after(&action, &self.rules);
        if next == *world {
            return None;
        }
        let granted = next.has_granted_since(world).then(|| "Granted".to_owned());
        let mut taken = self.taken.lock().unwrap();
        for kind in granted.into_iter().chain([action.kind()]) {
            *taken.entry(kind).or_default() += 1;
        }
        drop(taken);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(EXCLUSION, |_, world| one_believes(world)),
            Property::always(TOKENS, |_, world: &World| !world.tokens_fell),
            Property::always(SOUND, |_, world: &World| world.flaw.is_none()),
            Property::always(STORED, |_, world: &World| {
                world.store.locks.values().all(|lock| is_sound(&lock.value))
            }),
            Property::always(SERVED, |model: &Self, world: &World| {
                let rests = |world: &World| comes_to_rest(world, &model.rules);
                !world.is_one_in(model.rules.followed)
                    || (rests(world) && rests(&world.without_late_writes()))
            }),
        ]
    }
}

fn one_believes(world: &World) -> bool {
    (0..world.overridden.len()).all(|lock| {
        let nodes = world.nodes.iter();
        let believers = nodes.filter(|node| node.believes(lock, world.now));
        world.overridden[lock] || believers.count() <= 1
    })
}

fn is_sound(lock: &Lock) -> bool {
    let waiters = lock.waiters.entries();
    let sessions: HashSet<_> = waiters.iter().map(|w| &w.claimant.session).collect();
    (lock.grant.is_some() || waiters.is_empty())
        && sessions.len() == waiters.len()
        && waiters.len() <= QUEUE_MAX
        && waiters
            .iter()
            .all(|waiter| !lock.names_grant(&waiter.grant))
        && lock.incidents.len() <= INCIDENTS_MAX
}

/// Follows a world in which nothing goes wrong any more, apps release what they have, and none asks.
fn comes_to_rest(world: &World, rules: &Rules) -> bool {
    is_at_rest(&follow(world, rules, |_, _| {}))
}

/// Returns the world at rest, or where it would stay for ever.
fn follow(world: &World, rules: &Rules, mut step: impl FnMut(&World, &Action)) -> World {
    let mut world = world.with_patience();
    let end = world.now + REST;
    let mut actions = Vec::new();
    for _ in 0..10_000 {
        actions.clear();
        world.actions(rules, &mut actions);
        let is_fair = |action: &&Action| {
            !matches!(
                action,
                Action::Ask(..)
                    | Action::HangUp(..)
                    | Action::DelayRequest(..)
                    | Action::DelayAnswer(..)
                    | Action::TimeOut(..)
                    | Action::Crash(..)
                    | Action::Pause(_)
                    | Action::DeleteSession(_)
                    | Action::DeleteLock(_)
                    | Action::ForceRelease(_)
                    | Action::TidyUp(_)
                    | Action::TakeBackup
                    | Action::Restore
            )
        };
        // Time comes last.
        let next = actions.iter().find(is_fair);
        let Some(action) = next.filter(|_| world.now < end) else {
            break;
        };
        let next = world.after(action, rules);
        if matches!(action, Action::Advance) && next == world && next.now == world.now {
            break;
        }
        step(&world, action);
        world = next;
        if is_at_rest(&world) {
            break;
        }
    }
    world
}

fn is_at_rest(world: &World) -> bool {
    world.nodes.iter().all(|node| {
        let waits = node
            .apps
            .iter()
            .any(|app| !matches!(app.phase, Phase::Idle));
        node.down == Some(Return::Never) || (!waits && node.has_nothing(&world.store))
    })
}

/// Checks every state that the rules allow, and that the named kinds of steps were taken.
pub(super) fn holds(name: &str, rules: Rules, kinds: &[&str]) {
    let model = Checked {
        rules,
        taken: Mutex::default(),
    };
    if let Ok(path) = std::env::var("REPLAY") {
        return replay(&model, &path);
    }
    let start = SystemClock.now();
    let checker = model
        .checker()
        .threads(2)
        .finish_when(HasDiscoveries::Any)
        .spawn_bfs()
        .join();
    println!(
        "model {name}: {} distinct states, {} steps, depth {}, {:.1?}",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        SystemClock.now().since(start)
    );
    let discoveries = checker.discoveries();
    let violated: Vec<_> = discoveries.keys().copied().collect();
    for property in &violated {
        print_trace(&checker, property);
    }
    assert!(violated.is_empty(), "violated: {}", violated.join(", "));
    let taken = checker.model().taken.lock().unwrap();
    assert!(checker.is_done(), "the states were not all checked");
    for kind in kinds.iter().chain(&["Granted"]) {
        assert!(taken.contains_key(*kind), "no run of {name} took: {kind}");
    }
}

/// Searches until the property is violated, and fails if it never is.
pub(super) fn violates(name: &str, property: &'static str, rules: Rules) {
    let model = Checked {
        rules,
        taken: Mutex::default(),
    };
    let start = SystemClock.now();
    let found = HasDiscoveries::AnyOf([property].into());
    let checker = model
        .checker()
        .threads(2)
        .finish_when(found)
        .spawn_bfs()
        .join();
    let Some(path) = checker.discovery(property) else {
        panic!("the bug stayed unnoticed: {name}");
    };
    println!(
        "model control {name}: \"{property}\" violated after {} steps, found among {} distinct \
         states in {:.1?}",
        path.into_actions().len(),
        checker.unique_state_count(),
        SystemClock.now().since(start)
    );
}

/// Prints a counterexample, and its path for `REPLAY`.
fn print_trace(checker: &impl Checker<Checked>, property: &'static str) {
    let model = checker.model();
    let path = checker.discovery(property).expect("it was just listed");
    let first = path.clone().into_states().into_iter().next();
    let begin = model
        .init_states()
        .iter()
        .position(|world| Some(world) == first.as_ref());
    let mut indices = vec![begin.expect("a path begins at a beginning")];
    println!("violated: {property}");
    for (world, action) in path.into_vec() {
        let Some(action) = action else { break };
        let mut actions = Vec::new();
        model.actions(&world, &mut actions);
        indices.extend(actions.iter().position(|possible| *possible == action));
        println!("  {:9.3} {action:?}", world.now.as_secs_f64());
    }
    let indices: Vec<_> = indices.iter().map(usize::to_string).collect();
    println!("  REPLAY={}", indices.join("/"));
}

/// Walks one path and prints every step and every state on it.
fn replay(model: &Checked, path: &str) {
    let mut indices = path.split('/').map(str::parse::<usize>);
    let begin = indices.next().expect("a path has a beginning");
    let mut world = model.init_states().swap_remove(begin.expect("a number"));
    for index in indices {
        let mut actions = Vec::new();
        model.actions(&world, &mut actions);
        let action = actions.swap_remove(index.expect("a number"));
        println!("{:9.3} {action:?}", world.now.as_secs_f64());
        world = world.after(&action, &model.rules);
        println!("{world:#?}");
    }
    for (what, world) in [
        ("to rest", world.clone()),
        ("to rest without late writes", world.without_late_writes()),
    ] {
        println!("{what}:");
        let rest = follow(&world, &model.rules, |world, action| {
            println!("{:9.3} {action:?}", world.now.as_secs_f64());
        });
        println!("{rest:#?}\nat rest: {}", is_at_rest(&rest));
    }
}
