//! Evaluates a sidecar's response about an election. Pure: times are arguments.
//!
//! Invariant: `Leads` needs a response whose lead is still valid when it arrives, counted from
//! before the request was sent. Everything else is a reason to wait.

use std::fmt;
use std::time::Duration;

use http::StatusCode;
use serde::Deserialize;

use crate::protocol::election::ElectionName;
use crate::protocol::time::Moment;

/// The result of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum GateState {
    /// This pod leads.
    Leads {
        token: Option<u64>,
    },
    Waits(Reason),
}

/// Why the pod does not lead yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// Another pod leads.
    LedBy(String),
    /// No leader is known.
    NoLeader,
    /// The lead was returned, but may have ended by now.
    TooLate,
    /// The sidecar did not return a leader, or did not answer.
    Unknown(String),
}

/// The fields that a gate reads of a response.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ElectionResponse {
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

/// The fields that it reads of a problem document.
#[derive(Debug, Deserialize)]
struct Problem {
    code: String,
    detail: String,
}

/// Evaluates the response to a request that was sent at `sent` and answered by `now`.
pub(super) fn evaluate(
    election: &ElectionName,
    (status, body): (StatusCode, &[u8]),
    (sent, now): (Moment, Moment),
) -> GateState {
    if status != StatusCode::OK {
        return GateState::Waits(Reason::Unknown(refusal(status, body)));
    }
    let response = match serde_json::from_slice::<ElectionResponse>(body) {
        Ok(response) if response.name == election.as_str() => response,
        _ => {
            let words = "the response is not from a Leasehold sidecar".to_owned();
            return GateState::Waits(Reason::Unknown(words));
        }
    };
    if !response.leader {
        let leader = response.holder.map(|holder| holder.pod);
        return GateState::Waits(leader.map_or(Reason::NoLeader, Reason::LedBy));
    }
    let until = sent.after(Duration::from_millis(
        response.valid_for_ms.unwrap_or_default(),
    ));
    if now >= until {
        return GateState::Waits(Reason::TooLate);
    }
    GateState::Leads {
        token: response.fencing_token,
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
            Self::NoLeader => write!(f, "no leader is known"),
            Self::TooLate => write!(f, "the response arrived after its validForMs"),
            Self::Unknown(why) => write!(f, "the sidecar did not return a leader: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const TEN_SECONDS: u64 = 10_000;

    /// Evaluates a response that took so long.
    fn judged(status: u16, body: &str, took: Duration) -> GateState {
        let election = ElectionName::parse("jobs").unwrap();
        let sent = Moment::since_boot(Duration::from_secs(100));
        let status = StatusCode::from_u16(status).unwrap();
        evaluate(
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
        assert_eq!(at(0), GateState::Leads { token: Some(7) });
        assert_eq!(at(TEN_SECONDS - 1), GateState::Leads { token: Some(7) });
        assert_eq!(at(TEN_SECONDS), GateState::Waits(Reason::TooLate));
        assert_eq!(at(u64::MAX), GateState::Waits(Reason::TooLate));
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
            assert!(
                matches!(verdict, GateState::Waits(_)),
                "{body}: {verdict:?}"
            );
        }
    }

    #[test]
    fn every_other_answer_is_a_reason_to_wait() {
        let led_by = |pod: &str| Reason::LedBy(pod.to_owned());
        let other = r#"{"name":"jobs","leader":false,"holder":{"pod":"b"},"fencingToken":7}"#;
        let nobody = r#"{"name":"jobs","leader":false,"holder":null,"fencingToken":null}"#;
        let waits = |status, body: &str| match judged(status, body, Duration::ZERO) {
            GateState::Waits(reason) => reason,
            verdict @ GateState::Leads { .. } => unreachable!("{status} {body}: {verdict:?}"),
        };
        assert_eq!(waits(200, other), led_by("b"));
        assert_eq!(waits(200, nobody), Reason::NoLeader);
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
        // A response with another status is not a lead, even if its body says so.
        let refused = waits(202, &yes("jobs", Some(TEN_SECONDS)));
        assert!(matches!(refused, Reason::Unknown(_)), "{refused}");
    }
}
