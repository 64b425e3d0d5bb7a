//! A lock that a caller does not get: the refusal 409 `lock_held`, and the fields that it has in common
//! with the event `waiting`.
//!
//! It says what the agent knows when it answers, and makes no request to know more: for the rest it names
//! a command. Times are relative to the answer; no wall clocks are compared.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::dto::{HolderDto, time_text, whole_ms};
use super::error::{Code, Problem};
use crate::agent::{HeldView, Silence, WaiterView};
use crate::protocol::ids::Resource;
use crate::protocol::time::Moment;
use crate::text::{ordinal, who};

/// How many of those ahead the sentence names; the field has more.
const NAMED: usize = 2;

/// What keeps a lock from a caller, as far as the sidecar knows: fields of 409 `lock_held` and of the event
/// `waiting`.
#[derive(Debug, Default, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = HeldLock)]
pub(super) struct HeldDto {
    /// The last observed holder; null if it is not known.
    holder: Option<HolderDto>,
    /// The number of waiters besides this caller.
    queue_length: usize,
    /// The position of this pod's entry in the queue, from 1. Absent without an entry.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 1, example = 2)]
    position: Option<usize>,
    /// The queue entries before this pod's, the first one first, at most 5. Without an entry: the first
    /// ones of the queue.
    #[schema(max_items = 5)]
    ahead: Vec<WaiterDto>,
    /// For how many milliseconds this sidecar has observed no renewal of the holder's session, by its own
    /// clock. The session can have been renewed since the sidecar last read it. Absent in strict mode, if
    /// this pod holds the lock, and as long as the session was not read.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = 6_750)]
    holder_silent_for_ms: Option<u64>,
    /// After how many milliseconds at most the lock can be taken over, if the holder stays silent. Absent
    /// with `holderSilentForMs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = 9_000)]
    take_over_after_ms: Option<u64>,
    /// Informational: what else keeps the lock from the caller.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    hint: Option<String>,
}

/// An entry in the queue of a lock.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Waiter)]
pub(super) struct WaiterDto {
    /// The name that the app gave.
    #[schema(example = "worker-4")]
    owner_id: String,
    /// The waiter's pod.
    #[schema(example = "billing-6d5f-k8s2p")]
    pod: String,
    /// Since when it waits, by the clock of its pod.
    #[schema(format = DateTime, example = "2026-04-01T00:01:00Z")]
    queued_at: String,
}

impl HeldDto {
    /// Returns what an answer says that leaves now.
    pub(super) fn at(now: Moment, held: &HeldView) -> Self {
        let silence = silence_at(now, held);
        let left = silence.map(|silence| silence.until.since(now));
        Self {
            holder: Some(HolderDto::from(&held.holder)),
            queue_length: held.queue_length,
            position: held.position,
            ahead: held.ahead.iter().map(WaiterDto::from).collect(),
            holder_silent_for_ms: silence.map(|silence| whole_ms(now.since(silence.since))),
            // Rounded up: it is at most so long.
            take_over_after_ms: left.map(|left| whole_ms(left + Duration::from_nanos(999_999))),
            hint: held.hint.clone(),
        }
    }
}

impl From<&WaiterView> for WaiterDto {
    fn from(waiter: &WaiterView) -> Self {
        Self {
            owner_id: waiter.owner.to_string(),
            pod: waiter.pod.clone(),
            queued_at: time_text(waiter.queued_at),
        }
    }
}

/// A caller that does not get a lock.
pub(super) struct Refusal<'a> {
    pub(super) resource: &'a Resource,
    pub(super) held: &'a HeldView,
    /// How long the caller wanted to wait; zero for a try.
    pub(super) waited: Duration,
    pub(super) now: Moment,
    /// The namespace of the lock; none without a cluster.
    pub(super) namespace: Option<&'a str>,
}

impl Refusal<'_> {
    /// Returns the problem for a lock with another holder.
    pub(super) fn problem(&self) -> Problem {
        let fields = json!(HeldDto::at(self.now, self.held));
        let problem = Problem::new(Code::LockHeld, self.detail()).with("acquired", false);
        let fields = fields.as_object().into_iter().flatten();
        fields.fold(problem, |problem, (name, value): (&String, &Value)| {
            problem.with(name, value.clone())
        })
    }

    fn detail(&self) -> String {
        let holder = &self.held.holder;
        let advice = if self.waited.is_zero() {
            "send waitSeconds to join the queue, or retry later with backoff and jitter"
        } else {
            "waitSeconds have passed; send the request again to wait longer"
        };
        let first = format!(
            "{} has held the lock since {}; {advice}",
            who(holder.owner.as_str(), &holder.pod),
            time_text(holder.acquired_at)
        );
        let more = [
            self.queue(),
            silence_at(self.now, self.held).map(|silence| self.take_over(silence)),
            self.command(),
        ];
        more.into_iter()
            .flatten()
            .fold(first, |detail, sentence| format!("{detail}. {sentence}"))
    }

    /// Returns the caller's position, and who gets the lock before it.
    fn queue(&self) -> Option<String> {
        let held = self.held;
        let named = held.ahead.iter().take(NAMED);
        let named: Vec<_> = named
            .map(|waiter| who(waiter.owner.as_str(), &waiter.pod))
            .collect();
        let ahead = match held.position {
            Some(position) => position - 1,
            None => held.queue_length,
        };
        let ahead = match (named.join(", "), ahead.saturating_sub(named.len())) {
            (named, 0) => named,
            (named, more) => format!("{named} and {more} more"),
        };
        match held.position {
            None if held.ahead.is_empty() => None,
            None => Some(format!("In the queue: {ahead}")),
            Some(position) => {
                let verb = if self.waited.is_zero() { "is" } else { "was" };
                let ahead = if held.ahead.is_empty() {
                    ", next after the holder".to_owned()
                } else {
                    format!(", after {ahead}")
                };
                Some(format!(
                    "This pod {verb} {} in the queue{ahead}",
                    ordinal(position)
                ))
            }
        }
    }

    fn take_over(&self, silence: Silence) -> String {
        let silent = self.now.since(silence.since).as_secs();
        let left = silence.until.since(self.now);
        let left = left.as_millis().div_ceil(1_000).max(1);
        match silent {
            0 => format!(
                "If the holder stays silent, the lock can be taken over in at most {left} s"
            ),
            silent => format!(
                "No renewal of the holder's session has been observed for {silent} s; if it stays \
                 silent, the lock can be taken over in at most {left} s"
            ),
        }
    }

    /// Returns the command that shows what the agent does not know.
    fn command(&self) -> Option<String> {
        self.namespace.map(|namespace| {
            format!(
                "`kubectl leasehold why {} --namespace {namespace}` shows what the holder waits for \
                 and whether an operator acts",
                quoted(self.resource.as_str())
            )
        })
    }
}

/// Returns what was observed of the holder. An observation whose time is over was not repeated: it says nothing any more.
fn silence_at(now: Moment, held: &HeldView) -> Option<Silence> {
    held.silence.filter(|silence| now < silence.until)
}

/// Returns a text as one word of a shell.
fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.,:/@%+=".contains(c);
    if text.chars().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::HolderView;
    use crate::protocol::time::WallTime;
    use crate::protocol::token::Token;

    fn at(milliseconds: u64) -> Moment {
        Moment::since_boot(Duration::from_millis(milliseconds))
    }

    fn held(position: Option<usize>, ahead: usize, queue_length: usize) -> HeldView {
        let waiter = |number| WaiterView {
            owner: format!("o{number}").as_str().into(),
            pod: format!("p{number}"),
            queued_at: WallTime(0),
        };
        HeldView {
            holder: HolderView {
                owner: "worker-3".into(),
                pod: "billing".into(),
                token: Token::from_raw(7),
                acquired_at: WallTime(0),
                metadata: [].into(),
                kept: false,
            },
            queue_length,
            position,
            ahead: (1..=ahead).map(waiter).collect(),
            silence: None,
            hint: None,
        }
    }

    fn detail(held: &HeldView, wait: u64, resource: &str, namespace: Option<&str>) -> String {
        let refusal = Refusal {
            resource: &Resource::parse(resource).unwrap(),
            held,
            waited: Duration::from_secs(wait),
            now: at(10_001),
            namespace,
        };
        let document = refusal.problem().document();
        document["detail"].as_str().unwrap().to_owned()
    }

    #[test]
    fn detail_says_what_is_known_and_what_to_do() {
        let mut view = held(None, 1, 1);
        view.silence = Some(Silence {
            since: at(3_000),
            until: at(18_750),
        });
        assert_eq!(
            detail(&view, 0, "close", Some("team-a")),
            "worker-3 in pod billing has held the lock since 1970-01-01T00:00:00Z; send waitSeconds to join \
             the queue, or retry later with backoff and jitter. In the queue: o1 in pod p1. No renewal of \
             the holder's session has been observed for 7 s; if it stays silent, the lock can be taken over \
             in at most 9 s. `kubectl leasehold why close --namespace team-a` shows what the holder waits for \
             and whether an operator acts"
        );
        view = held(Some(1), 0, 0);
        view.holder.owner = "billing".into();
        assert_eq!(
            detail(&view, 60, "close", None),
            "pod billing has held the lock since 1970-01-01T00:00:00Z; waitSeconds have passed; send the \
             request again to wait longer. This pod was 1st in the queue, next after the holder"
        );
    }

    #[test]
    fn detail_names_two_of_those_ahead() {
        for (view, words) in [
            (held(None, 0, 0), None),
            // Other callers of the pod that holds the lock.
            (held(None, 0, 3), None),
            (
                held(None, 2, 2),
                Some("In the queue: o1 in pod p1, o2 in pod p2"),
            ),
            (
                held(None, 5, 9),
                Some("In the queue: o1 in pod p1, o2 in pod p2 and 7 more"),
            ),
            (
                held(Some(2), 1, 4),
                Some("This pod is 2nd in the queue, after o1 in pod p1"),
            ),
            (
                held(Some(12), 5, 11),
                Some("This pod is 12th in the queue, after o1 in pod p1, o2 in pod p2 and 9 more"),
            ),
        ] {
            let said = detail(&view, 0, "r", None);
            let after = said.split_once("backoff and jitter").unwrap().1;
            let words = words.map(|words| format!(". {words}"));
            assert_eq!(after, words.unwrap_or_default());
        }
    }

    #[test]
    fn silence_is_counted_until_the_answer_leaves() {
        for (now, silent, left, words) in [
            (
                3_000,
                0,
                15_750,
                ". If the holder stays silent, the lock can be taken over in at most 16 s",
            ),
            (
                18_749,
                15_749,
                1,
                " for 15 s; if it stays silent, the lock can be taken over in at most 1 s",
            ),
        ] {
            let mut view = held(None, 0, 0);
            view.silence = Some(Silence {
                since: at(3_000),
                until: at(18_750),
            });
            let refusal = Refusal {
                resource: &Resource::parse("r").unwrap(),
                held: &view,
                waited: Duration::ZERO,
                now: at(now),
                namespace: None,
            };
            let document = refusal.problem().document();
            assert_eq!(document["holderSilentForMs"], silent);
            assert_eq!(document["takeOverAfterMs"], left);
            assert!(
                document["detail"].as_str().unwrap().ends_with(words),
                "{document}"
            );
        }
        let mut over = held(None, 0, 0);
        over.silence = Some(Silence {
            since: at(3_000),
            until: at(18_750),
        });
        let said = HeldDto::at(at(18_750), &over);
        assert_eq!(
            (said.holder_silent_for_ms, said.take_over_after_ms),
            (None, None)
        );
        let left = Silence {
            since: at(0),
            until: Moment::since_boot(Duration::from_micros(1_500)),
        };
        let mut view = held(None, 0, 0);
        view.silence = Some(left);
        assert_eq!(
            HeldDto::at(at(0), &view).take_over_after_ms,
            Some(2),
            "rounded up"
        );
    }

    #[test]
    fn name_of_another_pod_controls_no_terminal() {
        let mut view = held(None, 1, 1);
        view.ahead[0].owner = "a\u{1b}[2J\nb\u{202e}".into();
        let said = detail(&view, 0, "r", None);
        assert!(said.contains(r"a\u{1b}[2J\nb\u{202e} in pod p1"), "{said}");
    }

    #[test]
    fn resource_is_one_word_of_the_command() {
        for (resource, word) in [
            ("tenant_123:close/2026-04", "tenant_123:close/2026-04"),
            ("a b", "'a b'"),
            ("it's $HOME", r"'it'\''s $HOME'"),
        ] {
            let said = detail(&held(None, 0, 0), 0, resource, Some("n"));
            let command = format!("`kubectl leasehold why {word} --namespace n`");
            assert!(said.contains(&command), "{said}");
        }
    }
}
