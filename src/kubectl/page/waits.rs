//! Which pods wait for which: an edge from each waiter to the holder of the lock.

use std::collections::{BTreeSet, HashMap};

use serde::Serialize;

use crate::kubectl::session_health::Health;
use crate::kubectl::words::health_cell;
use crate::kubectl::world::{LockSeen, World};
use crate::text::escape;

/// The most edges that the page draws.
const EDGES_MAX: usize = 200;

/// The graph.
#[derive(Clone, Debug, Serialize)]
pub struct Graph {
    /// Whether there are more edges.
    pub cut: bool,
    /// The sessions that wait or are waited for.
    pub pods: Vec<Pod>,
    /// The edges.
    pub waits: Vec<Edge>,
}

/// A session, which is one run of a pod.
#[derive(Clone, Debug, Serialize)]
pub struct Pod {
    /// Its namespace, the name of its session, and the uid of its pod.
    pub id: String,
    /// Its namespace.
    pub namespace: String,
    /// Its pod.
    pub pod: String,
    /// Whether the session lives, in one word.
    pub state: String,
}

/// A queue entry.
#[derive(Clone, Debug, Serialize)]
pub struct Edge {
    /// The session that waits.
    pub from: String,
    /// The session that holds the lock.
    pub to: String,
    /// The namespace of the lock object.
    pub namespace: String,
    /// The name of the lock object.
    pub name: String,
    /// The resource that the lock guards.
    pub resource: String,
    /// The position in the queue, from 1.
    pub position: usize,
    /// Whether it is part of a cycle: a possible deadlock.
    pub deadlock: bool,
}

/// A holder or a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Party<'a> {
    namespace: &'a str,
    session: &'a str,
    pod_uid: &'a str,
    pod: &'a str,
}

/// A queue entry, by the numbers of its parties.
#[derive(Clone, Copy)]
struct Wait<'a> {
    from: usize,
    to: usize,
    lock: &'a LockSeen,
    position: usize,
    deadlock: bool,
}

/// Returns the graph of all locks. If it is cut, it has the edges of cycles first, and then those that are first in their
/// queues.
#[must_use]
pub fn graph(world: &World) -> Graph {
    let (parties, mut waits) = waits(&world.locks);
    mark_cycles(parties.len(), &mut waits);
    waits.sort_by_key(|wait| (!wait.deadlock, wait.position));
    let cut = waits.len() > EDGES_MAX;
    waits.truncate(EDGES_MAX);
    let shown: BTreeSet<_> = waits.iter().flat_map(|wait| [wait.from, wait.to]).collect();
    let mut shown: Vec<_> = shown.into_iter().map(|number| parties[number]).collect();
    shown.sort_unstable();
    Graph {
        cut,
        pods: shown.iter().map(|party| party.pod(world)).collect(),
        waits: waits.iter().map(|wait| wait.edge(&parties)).collect(),
    }
}

/// Returns all holders and waiters of locks with a queue, and all queue entries.
fn waits(locks: &[LockSeen]) -> (Vec<Party<'_>>, Vec<Wait<'_>>) {
    let mut parties = Vec::new();
    let mut numbers = HashMap::new();
    let mut number = |party| {
        *numbers.entry(party).or_insert_with(|| {
            parties.push(party);
            parties.len() - 1
        })
    };
    let mut waits = Vec::new();
    for lock in locks {
        let Ok(status) = &lock.status else { continue };
        let Some(holder) = &status.holder else {
            continue;
        };
        for (index, waiter) in status.waiters.iter().enumerate() {
            let party = |session, pod_uid, pod| Party {
                namespace: &lock.namespace,
                session,
                pod_uid,
                pod,
            };
            waits.push(Wait {
                from: number(party(&waiter.session, &waiter.pod_uid, &waiter.pod)),
                to: number(party(&holder.session, &holder.pod_uid, &holder.pod)),
                lock,
                position: index + 1,
                deadlock: false,
            });
        }
    }
    (parties, waits)
}

impl Party<'_> {
    fn id(&self) -> String {
        format!("{}/{}/{}", self.namespace, self.session, self.pod_uid)
    }

    fn pod(&self, world: &World) -> Pod {
        let health = Health::of_pod(
            world,
            self.namespace,
            self.session,
            (self.pod, self.pod_uid),
        );
        Pod {
            id: self.id(),
            namespace: self.namespace.to_owned(),
            pod: escape(self.pod).into_owned(),
            state: health_cell(&health),
        }
    }
}

impl Wait<'_> {
    fn edge(&self, parties: &[Party<'_>]) -> Edge {
        Edge {
            from: parties[self.from].id(),
            to: parties[self.to].id(),
            namespace: self.lock.namespace.clone(),
            name: self.lock.name.clone(),
            resource: escape(&self.lock.spec.resource).into_owned(),
            position: self.position,
            deadlock: self.deadlock,
        }
    }
}

/// Marks the edges whose ends reach each other. A session that is queued behind itself is not a cycle.
fn mark_cycles(parties: usize, waits: &mut [Wait<'_>]) {
    let mut holds = vec![false; parties];
    for wait in &*waits {
        holds[wait.to] = true;
    }
    // Most waiters hold nothing that others wait for.
    let both = waits.iter().filter(|wait| holds[wait.from]);
    let edges: Vec<_> = both.map(|wait| (wait.from, wait.to)).collect();
    let component = components(parties, &edges);
    for wait in waits {
        wait.deadlock = wait.from != wait.to && component[wait.from] == component[wait.to];
    }
}

/// Returns the strongly connected component of each node: Kosaraju's algorithm, without recursion.
fn components(nodes: usize, edges: &[(usize, usize)]) -> Vec<usize> {
    let mut forward = vec![Vec::new(); nodes];
    let mut backward = vec![Vec::new(); nodes];
    for &(from, to) in edges {
        forward[from].push(to);
        backward[to].push(from);
    }
    let mut finished = Vec::with_capacity(nodes);
    let mut visited = vec![false; nodes];
    for first in 0..nodes {
        let mut way = vec![(first, 0)];
        if std::mem::replace(&mut visited[first], true) {
            continue;
        }
        while let Some((node, followed)) = way.last_mut() {
            if let Some(&next) = forward[*node].get(*followed) {
                *followed += 1;
                if !std::mem::replace(&mut visited[next], true) {
                    way.push((next, 0));
                }
            } else {
                finished.push(*node);
                way.pop();
            }
        }
    }
    let mut component = vec![usize::MAX; nodes];
    for &first in finished.iter().rev() {
        let mut open = vec![first];
        while let Some(node) = open.pop() {
            if component[node] == usize::MAX {
                component[node] = first;
                open.extend(&backward[node]);
            }
        }
    }
    component
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::kubectl::world::{Known, SessionSeen};

    fn world(locks: &[(&str, &str, &[&str])]) -> World {
        let lock = |(resource, holder, waiters): &(&str, &str, &[&str])| {
            let waiters: Vec<_> = waiters
                .iter()
                .map(|one| {
                    json!({"leaseId": one, "ownerId": one, "pod": one, "podUid": "", "session": one,
                        "sessionTtlSeconds": 15, "queuedAt": "2026-01-01T00:00:00Z"})
                })
                .collect();
            LockSeen::read(&json!({
                "metadata": {"name": resource, "namespace": "n"}, "spec": {"resource": resource},
                "status": {"token": 1, "waiters": waiters,
                    "holder": {"ownerId": holder, "pod": holder, "podUid": "", "session": holder,
                        "sessionTtlSeconds": 15},
                    "lease": {"id": resource, "acquiredAt": "2026-01-01T00:00:00Z"}}}))
        };
        World {
            now: "2026-01-01T00:01:00Z".parse().unwrap(),
            locks: locks.iter().map(lock).collect(),
            sessions: Known::Unknown("x".to_owned()),
            pods: BTreeMap::new(),
            nodes: BTreeMap::new(),
            operator: Known::Unknown(String::new()),
        }
    }

    fn edges(graph: &Graph) -> Vec<(String, bool)> {
        let waits = graph.waits.iter();
        waits
            .map(|edge| {
                let session = |id: &str| id.split('/').nth(1).unwrap().to_owned();
                let edge_of = format!("{}>{}", session(&edge.from), session(&edge.to));
                (edge_of, edge.deadlock)
            })
            .collect()
    }

    #[test]
    fn only_edges_of_a_cycle_are_a_possible_deadlock() {
        let world = world(&[
            ("c", "r", &["s"]),
            ("a", "p", &["q", "r"]),
            ("b", "q", &["p"]),
            ("free", "t", &[]),
        ]);
        let graph = graph(&world);
        let expected = [("q>p", true), ("p>q", true), ("s>r", false), ("r>p", false)];
        assert_eq!(
            edges(&graph),
            expected.map(|(edge, deadlock)| (edge.to_owned(), deadlock))
        );
        let pods: Vec<_> = graph.pods.iter().map(|pod| pod.pod.as_str()).collect();
        assert_eq!(pods, ["p", "q", "r", "s"]);
    }

    #[test]
    fn session_queued_behind_itself_is_not_a_deadlock() {
        let graph = graph(&world(&[("a", "p", &["p"])]));
        assert_eq!(edges(&graph), [("p>p".to_owned(), false)]);
    }

    #[test]
    fn long_graph_is_cut_and_keeps_its_cycle() {
        let waiters: Vec<_> = (0..EDGES_MAX + 50).map(|n| format!("w{n}")).collect();
        let waiters: Vec<_> = waiters.iter().map(String::as_str).collect();
        let world = world(&[("a", "h", &waiters), ("b", "p", &["q"]), ("c", "q", &["p"])]);
        let graph = graph(&world);
        assert!(graph.cut && graph.waits.len() == EDGES_MAX);
        assert!(graph.waits[0].deadlock && graph.waits[1].deadlock);
        assert!(!graph.waits[2].deadlock);
    }

    #[test]
    fn cut_graph_has_the_first_of_each_queue() {
        let waiters: Vec<_> = (0..EDGES_MAX + 50).map(|n| format!("w{n}")).collect();
        let waiters: Vec<_> = waiters.iter().map(String::as_str).collect();
        let world = world(&[("a", "h", &waiters), ("z", "i", &["j"])]);
        assert!(edges(&graph(&world))[..2].contains(&("j>i".to_owned(), false)));
    }

    #[test]
    fn session_of_another_pod_is_missing() {
        let mut world = world(&[("a", "h", &["w"])]);
        let session = |uid: &str| {
            SessionSeen::read(&json!({
                "metadata": {"name": "h", "namespace": "n", "creationTimestamp": "2026-01-01T00:00:55Z",
                    "managedFields": []},
                "spec": {"pod": "h", "podUid": uid, "ttlSeconds": 15, "agentVersion": "1"}}))
            .unwrap()
        };
        for (uid, state) in [("", "live"), ("another", "missing")] {
            let key = ("n".to_owned(), "h".to_owned());
            world.sessions = Known::Seen(BTreeMap::from([(key, session(uid))]));
            let graph = graph(&world);
            assert_eq!(graph.pods[0].state, state, "{graph:?}");
        }
    }

    #[test]
    fn very_long_chain_has_no_cycle() {
        let edges: Vec<_> = (0..100_000).map(|n| (n, n + 1)).collect();
        let found: BTreeSet<_> = components(100_001, &edges).into_iter().collect();
        assert_eq!(found.len(), 100_001);
    }
}
