//! The properties of every state, and running the checker to its end.

use std::collections::{BTreeSet, HashSet};
use std::sync::RwLock;

use leasehold::clock::{Clock, SystemClock};
use leasehold::protocol::incident::INCIDENTS_MAX;
use leasehold::protocol::lock::Lock;
use leasehold::protocol::queue::QUEUE_MAX;
use stateright::{Checker, HasDiscoveries, Model, Property};

use crate::lock_history::Violation;
use crate::rules::Rules;
use crate::world::{Action, World};

/// No two apps believe at once that they hold a lock, unless a person overrode it.
pub(crate) const EXCLUSION: &str = "one app believes at a time";
/// Tokens are unique and rise, whatever is deleted or restored.
pub(crate) const TOKENS: &str = "tokens rise";
/// A fenced resource never takes an older token's write after a newer one's.
pub(crate) const FENCING: &str = "a fenced resource goes forward";
/// A lease that is returned has validity left.
pub(crate) const TOLD: &str = "a lease that is told is not over";
/// The lock as it is stored keeps its own rules.
pub(crate) const SOUND: &str = "stored locks are sound";
/// In a final state no live process still waits. Every step uses something up (a budget, a revision, time before the
/// next deadline), so every run ends, and this says that every waiter is served, refused or gone in the end:
/// liveness, for processes that are slow for any finite time. (Not stateright's `eventually`, which can miss a
/// counterexample where two paths meet.)
pub(crate) const SERVED: &str = "nobody waits for ever";

/// The model that the checker walks through.
pub(crate) struct Checked {
    rules: Rules,
    /// The kinds of steps that were taken.
    taken: RwLock<BTreeSet<&'static str>>,
}

impl Model for Checked {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let combinations = if self.rules.clocks_differ {
            1 << self.rules.nodes()
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
        let next = world.after(&action, &self.rules)?;
        for kind in action.kinds().chain(world.join_after_its_turn(&action)) {
            let known = self.taken.read().is_ok_and(|taken| taken.contains(kind));
            if !known && let Ok(mut taken) = self.taken.write() {
                taken.insert(kind);
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(EXCLUSION, |_, world| one_believes(world)),
            Property::always(TOKENS, |_, world: &World| {
                !world.flaws.contains(&Violation::TokensDoNotRise)
            }),
            Property::always(FENCING, |_, world: &World| {
                !world.flaws.contains(&Violation::OldWriteTaken)
            }),
            Property::always(TOLD, |_, world: &World| {
                !world.flaws.contains(&Violation::ToldTooLate)
            }),
            Property::always(SOUND, |_, world: &World| {
                let mut stored = world.store.locks.iter().flatten();
                !world.flaws.contains(&Violation::UnsoundWrite)
                    && stored.all(|(_, lock)| is_sound(lock))
            }),
            Property::always(SERVED, |model: &Self, world| {
                !someone_waits(world) || {
                    let mut actions = Vec::new();
                    model.actions(world, &mut actions);
                    !actions.is_empty()
                }
            }),
        ]
    }
}

fn one_believes(world: &World) -> bool {
    (0..world.ledgers.len()).all(|lock| {
        let believes = |node: &usize| world.nodes[*node].believes(lock, world.now(*node));
        world.ledgers[lock].overridden || (0..world.nodes.len()).filter(believes).count() <= 1
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

fn someone_waits(world: &World) -> bool {
    world.nodes.iter().any(|node| {
        let waits = node.clients.iter().any(|client| client.want.is_some());
        node.is_up() && waits
    })
}

/// Checks every state that the rules allow, and that the named kinds of steps were taken.
pub(crate) fn holds(name: &str, rules: Rules, takes: &[&str]) {
    let model = Checked {
        rules,
        taken: RwLock::default(),
    };
    if let Ok(path) = std::env::var("REPLAY") {
        return replay(&model, &path);
    }
    let start = SystemClock.now();
    let checker = model.checker().threads(2).spawn_bfs().join();
    println!(
        "model {name}: {} distinct states, {} steps, depth {}, {:.1?}",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        SystemClock.now().since(start)
    );
    for property in checker.discoveries().keys() {
        println!("violated: {property}");
        print_trace(&checker, property);
    }
    assert!(checker.discoveries().is_empty(), "see the traces above");
    assert!(checker.is_done(), "the states were not all checked");
    let seen = checker.model().taken.read().expect("no thread failed");
    for kind in takes {
        assert!(seen.contains(kind), "no run of {name} took: {kind}");
    }
}

/// Searches until the property is violated, and fails when it never is.
pub(crate) fn violates(name: &str, property: &'static str, rules: Rules) {
    let model = Checked {
        rules,
        taken: RwLock::default(),
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
        .position(|w| Some(w) == first.as_ref());
    let mut indices = vec![begin.expect("a path begins at a beginning")];
    for (world, action) in path.into_vec() {
        let Some(action) = action else { break };
        let mut actions = Vec::new();
        model.actions(&world, &mut actions);
        indices.extend(actions.iter().position(|possible| *possible == action));
        println!("  {action:?}");
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
        println!("{action:?}");
        world = model.next_state(&world, action).expect("a step");
        println!("{world:#?}");
    }
}
