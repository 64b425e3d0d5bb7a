//! The explanation as text.

use std::fmt::Write as _;

use super::{DeadlockParty, Link, QueuedPod, Waiter, Why};
use crate::kubectl::words::{self, about, ordinal, who};
use crate::kubectl::world::World;
use crate::text::escape;

/// The number of waiters that the text names.
const NAMED: usize = 5;

impl Why {
    /// Returns the explanation as text.
    #[must_use]
    pub fn text(&self, world: &World) -> String {
        let mut out = String::new();
        let resource = escape(&self.resource);
        if self.chain.is_empty() {
            let next = if self.being_deleted {
                words::BEING_DELETED
            } else {
                "the next acquire gets it"
            };
            let _ = writeln!(out, "{resource} is free: {next}.");
            return out;
        }
        if let Some(pod) = &self.pod {
            out += &pod.text(
                &resource,
                self.chain.first().map_or(0, |link| link.queue.len()),
            );
        }
        for link in &self.chain {
            if !out.is_empty() {
                out.push('\n');
            }
            link.write(&mut out, world);
        }
        if self.chain_is_cut {
            out += "\nThe chain continues; only its first part is shown.\n";
        }
        if self.incomplete {
            out += "\nA lock of this namespace cannot be read, so the chain may be longer, or a deadlock.\n";
        }
        out += &deadlock_text(&self.possible_deadlock);
        let _ = writeln!(out, "\nOperator: {}", self.operator);
        out
    }
}

impl QueuedPod {
    fn text(&self, resource: &str, queued: usize) -> String {
        let pod = escape(&self.pod);
        match self.position {
            _ if self.holds => format!(
                "Pod {pod} holds {resource} itself: its other callers wait inside the pod, one after the other.\n"
            ),
            Some(position) => {
                let ahead: Vec<_> = self
                    .ahead
                    .iter()
                    .map(|one| who(&one.owner_id, &one.pod))
                    .collect();
                let ahead = match ahead.len() {
                    0 => ", next after the holder".to_owned(),
                    count if count > NAMED => format!(
                        ", after {} and {} more",
                        ahead[..NAMED].join(", "),
                        count - NAMED
                    ),
                    _ => format!(", after {}", all_of(&ahead)),
                };
                format!(
                    "Pod {pod} waits for {resource}: {} of {queued} in the queue{ahead}.\n",
                    ordinal(position)
                )
            }
            None => format!(
                "Pod {pod} has no entry in the queue of {resource}: it does not wait, it tries without waitSeconds, or \
                 the queue was full.\n"
            ),
        }
    }
}

impl Link {
    fn write(&self, out: &mut String, world: &World) {
        // Writing to a string cannot fail.
        let mut line = |words: String| {
            let _ = writeln!(out, "{words}");
        };
        let resource = escape(&self.resource);
        if let Some(error) = &self.error {
            line(format!(
                "{resource} cannot be read ({}): no acquire succeeds until its object {} is fixed.",
                escape(error),
                self.name
            ));
            return;
        }
        line(format!(
            "{resource} is held by {}, for {} (fencing token {}).",
            who(&self.owner_id, &self.pod),
            self.held_for,
            self.fencing_token
        ));
        if self.being_deleted {
            line(format!("  Deletion: {}", words::BEING_DELETED));
        }
        if self.kept {
            line(
                "  Kept:     no app uses it; the pod gives it away when another pod asks"
                    .to_owned(),
            );
        }
        line(format!("  Pod:      {}", self.pod_state));
        line(format!("  Session:  {}", self.session));
        if let Some(request) = &self.release_request {
            line(format!("  Release:  {}", escape(request)));
        }
        if !self.queue.is_empty() {
            line(format!("  Queue:    {}", queue_text(&self.queue, world)));
        }
        let waits: Vec<_> = self
            .waits_for
            .iter()
            .map(|wait| {
                format!(
                    "{} ({} in its queue)",
                    escape(&wait.resource),
                    ordinal(wait.position)
                )
            })
            .collect();
        if !waits.is_empty() {
            line(format!(
                "  Waits:    the pod itself waits for {}",
                waits.join(", ")
            ));
        }
    }
}

/// Returns a list in words: `a, b and c`.
fn all_of(texts: &[String]) -> String {
    match texts {
        [] => String::new(),
        [one] => one.clone(),
        [others @ .., last] => format!("{} and {last}", others.join(", ")),
    }
}

fn queue_text(queue: &[Waiter], world: &World) -> String {
    let named: Vec<_> = queue
        .iter()
        .take(NAMED)
        .map(|one| {
            format!(
                "{} ({})",
                who(&one.owner_id, &one.pod),
                about(&one.queued_at, world.now)
            )
        })
        .collect();
    let more = queue.len().saturating_sub(NAMED);
    match more {
        0 => named.join(", "),
        more => format!("{}, and {more} more", named.join(", ")),
    }
}

fn deadlock_text(parties: &[DeadlockParty]) -> String {
    if parties.is_empty() {
        return String::new();
    }
    let parties: Vec<_> = parties
        .iter()
        .map(|party| {
            format!(
                "pod {} holds {} and waits for {}",
                escape(&party.pod),
                escape(&party.holds),
                escape(&party.waits_for)
            )
        })
        .collect();
    format!(
        "\nPossible deadlock: {}.\n\
         It is certain only if the same app holds and waits: the apps of a pod share one session.\n\
         To end it, one app must release its lock or stop waiting. In the code, acquire the locks in one order.\n",
        parties.join("; ")
    )
}
