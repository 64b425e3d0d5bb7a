//! What a sidecar's answer about an election means to a gate. Pure: times are arguments.
//!
//! Invariant: `Leads` is said only of an answer that claims the lead for longer than it took to
//! arrive, counted from before the question was sent. Whatever else comes is a reason to wait.

use std::fmt;
use std::time::Duration;

use http::StatusCode;
use serde::Deserialize;

use crate::protocol::election::ElectionName;
use crate::protocol::time::Moment;

/// What came of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// This pod leads.
    Leads {
        token: Option<u64>,
    },
    Waits(Reason),
}

/// Why there is no lead yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// Another pod has it.
    LedBy(String),
    /// Nobody has it, as far as it is known.
    LedByNobody,
    /// The sidecar said yes, and by now that may be over.
    TooLate,
    /// The sidecar does not know, or nobody answers.
    NotTold(String),
}

/// What a gate reads of an election's answer.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Told {
    name: String,
    leader: bool,
    holder: Option<Holder>,
    fencing_token: Option<u64>,
    valid_for_ms: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct Holder {
    pod: String,
}

/// What it reads of a refusal.
#[derive(Debug, Deserialize)]
struct Problem {
    code: String,
    detail: String,
}

/// Judges an answer to a question that was sent, and has been read by now.
pub(super) fn judge(
    election: &ElectionName,
    (status, body): (StatusCode, &[u8]),
    (sent, now): (Moment, Moment),
) -> Verdict {
    if status != StatusCode::OK {
        return Verdict::Waits(Reason::NotTold(refusal(status, body)));
    }
    let told = match serde_json::from_slice::<Told>(body) {
        Ok(told) if told.name == election.as_str() => told,
        _ => {
            let words = "the response is not from a Leasehold sidecar".to_owned();
            return Verdict::Waits(Reason::NotTold(words));
        }
    };
    if !told.leader {
        let leader = told.holder.map(|holder| holder.pod);
        return Verdict::Waits(leader.map_or(Reason::LedByNobody, Reason::LedBy));
    }
    let until = sent.after(Duration::from_millis(told.valid_for_ms.unwrap_or_default()));
    if now >= until {
        return Verdict::Waits(Reason::TooLate);
    }
    Verdict::Leads {
        token: told.fencing_token,
    }
}

fn refusal(status: StatusCode, body: &[u8]) -> String {
    match serde_json::from_slice::<Problem>(body) {
        Ok(problem) => format!("{status}, {}: {}", problem.code, problem.detail),
        Err(_no_problem) => format!("{status}"),
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LedBy(pod) => write!(f, "pod {pod} leads"),
            Self::LedByNobody => write!(f, "no leader is known"),
            Self::TooLate => write!(f, "the response arrived after its validForMs"),
            Self::NotTold(why) => write!(f, "the sidecar did not return a leader: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const TEN_SECONDS: u64 = 10_000;

    /// What becomes of an answer that took so long.
    fn judged(status: u16, body: &str, took: Duration) -> Verdict {
        let election = ElectionName::parse("jobs").unwrap();
        let sent = Moment::since_boot(Duration::from_secs(100));
        let status = StatusCode::from_u16(status).unwrap();
        judge(
            &election,
            (status, body.as_bytes()),
            (sent, sent.after(took)),
        )
    }

    fn yes(name: &str, valid_for_ms: Option<u64>) -> String {
        json!({
            "name": name, "leader": true, "holder": {"pod": "a"}, "fencingToken": 7,
            "leaseId": "x.0", "validForMs": valid_for_ms, "of a later version": [1],
        })
        .to_string()
    }

    #[test]
    fn leader_answer_is_valid_from_before_it_was_requested() {
        let yes = yes("jobs", Some(TEN_SECONDS));
        let at = |milliseconds| judged(200, &yes, Duration::from_millis(milliseconds));
        assert_eq!(at(0), Verdict::Leads { token: Some(7) });
        assert_eq!(at(TEN_SECONDS - 1), Verdict::Leads { token: Some(7) });
        assert_eq!(at(TEN_SECONDS), Verdict::Waits(Reason::TooLate));
        assert_eq!(at(u64::MAX), Verdict::Waits(Reason::TooLate));
    }

    #[test]
    fn answer_without_validity_or_of_another_election_is_no_lead() {
        let at_once = Duration::ZERO;
        for body in [
            yes("jobs", None),
            yes("jobs", Some(0)),
            yes("other", Some(9)),
        ] {
            let verdict = judged(200, &body, at_once);
            assert!(matches!(verdict, Verdict::Waits(_)), "{body}: {verdict:?}");
        }
    }

    #[test]
    fn every_other_answer_is_a_reason_to_wait() {
        let led_by = |pod: &str| Reason::LedBy(pod.to_owned());
        let other = r#"{"name":"jobs","leader":false,"holder":{"pod":"b"},"fencingToken":7}"#;
        let nobody = r#"{"name":"jobs","leader":false,"holder":null,"fencingToken":null}"#;
        let waits = |status, body: &str| match judged(status, body, Duration::ZERO) {
            Verdict::Waits(reason) => reason,
            verdict @ Verdict::Leads { .. } => unreachable!("{status} {body}: {verdict:?}"),
        };
        assert_eq!(waits(200, other), led_by("b"));
        assert_eq!(waits(200, nobody), Reason::LedByNobody);
        for (status, body, words) in [
            (
                503,
                r#"{"code":"resuming","detail":"wait"}"#,
                "resuming: wait",
            ),
            (
                404,
                r#"{"code":"election_unknown","detail":"x"}"#,
                "election_unknown",
            ),
            (500, "", "500"),
            (200, "", "not from a Leasehold sidecar"),
            (200, "[true]", "not from a Leasehold sidecar"),
            (200, r#"{"leader":true}"#, "not from a Leasehold sidecar"),
        ] {
            let said = waits(status, body).to_string();
            assert!(said.contains(words), "{said}");
        }
        // A refusal is no yes, whatever is in it.
        let refused = waits(202, &yes("jobs", Some(TEN_SECONDS)));
        assert!(matches!(refused, Reason::NotTold(_)), "{refused}");
    }
}
