//! The decisions, as a table.

use std::time::Duration;

use leasehold::webhook::certs::plan::{
    Action, Authority, Bundle, Certificate, Observation, SecretState, Timing, plan,
};

const DAY: i64 = 24 * 60 * 60;
/// Ninety days: renewed after sixty, ten seconds to settle, an hour of trust in both authorities.
const TERMS: Timing = Timing::new(Duration::from_secs(90 * DAY.unsigned_abs()));
/// The time of all cases.
const NOW: i64 = 20_000 * DAY;

fn authority(name: &str) -> Authority {
    Authority {
        der: name.as_bytes().into(),
        not_after: NOW + 80 * DAY,
    }
}

/// Returns a certificate that was issued ten days ago.
fn certificate(name: &str) -> Certificate {
    Certificate {
        der: format!("of {name}").as_bytes().into(),
        authority: authority(name),
        not_before: NOW - 10 * DAY,
        not_after: NOW + 80 * DAY,
    }
}

#[allow(clippy::unnecessary_wraps, reason = "a webhook's bundle may be absent")]
fn bundle(names: &[&str]) -> Bundle {
    Some(names.iter().map(|name| authority(name)).collect())
}

struct Case {
    found: SecretState,
    trusted: Option<Vec<Bundle>>,
    served: Option<Certificate>,
    trusted_for: Option<Duration>,
    now: i64,
}

impl Case {
    /// Returns the stable state: `a` is in the Secret, trusted by both webhooks, and served.
    fn well() -> Self {
        Self {
            found: SecretState::Usable(certificate("a")),
            trusted: Some(vec![bundle(&["a"]), bundle(&["a"])]),
            served: Some(certificate("a")),
            trusted_for: Some(Duration::from_secs(7_200)),
            now: NOW,
        }
    }

    /// Returns a rotation: another certificate, `b`, is in the Secret, and `a` is still served.
    fn rotating(trusted: &[&str], trusted_for: Option<u64>) -> Self {
        Self {
            found: SecretState::Usable(certificate("b")),
            trusted: Some(vec![bundle(trusted), bundle(trusted)]),
            trusted_for: trusted_for.map(Duration::from_secs),
            ..Self::well()
        }
    }

    fn step(&self) -> Action {
        let seen = Observation {
            found: &self.found,
            trusted: self.trusted.as_deref(),
            served: self.served.as_ref(),
            trusted_for: self.trusted_for,
            now: self.now,
        };
        plan(&seen, TERMS)
    }
}

fn makes(step: &Action) -> bool {
    matches!(step, Action::Issue(_) | Action::Renew)
}

fn publishes(names: &[&str]) -> Action {
    Action::Publish(vec![bundle(names), bundle(names)])
}

fn rests(seconds: i64) -> Action {
    Action::Wait(Duration::from_secs(seconds.unsigned_abs()))
}

#[test]
fn no_renewal_until_a_third_is_left() {
    let mut case = Case::well();
    assert_eq!(case.step(), rests(50 * DAY));
    case.now = NOW + 50 * DAY - 1;
    assert_eq!(case.step(), rests(1));
    case.now = NOW + 50 * DAY;
    assert_eq!(case.step(), Action::Renew);
}

#[test]
fn unusable_certificate_is_replaced() {
    let unusable = SecretState::Unusable("tls.key is another's".to_owned());
    for found in [SecretState::Missing, unusable] {
        for served in [None, Some(certificate("a"))] {
            let case = Case {
                found: found.clone(),
                served,
                ..Case::well()
            };
            assert!(makes(&case.step()), "{found:?}");
        }
    }
    for now in [NOW - 11 * DAY, NOW + 80 * DAY, NOW + 200 * DAY] {
        let case = Case {
            now,
            ..Case::well()
        };
        assert!(makes(&case.step()), "{now}");
    }
}

#[test]
fn new_certificate_is_trusted_first_and_the_old_one_goes_last() {
    assert_eq!(Case::rotating(&["a"], None).step(), publishes(&["b", "a"]));
    let settling = Case::rotating(&["b", "a"], Some(4));
    assert_eq!(settling.step(), rests(6));
    let settled = Case::rotating(&["b", "a"], Some(10));
    assert_eq!(settled.step(), Action::Serve);
    let served = Case {
        served: Some(certificate("b")),
        ..Case::rotating(&["b", "a"], Some(10))
    };
    assert_eq!(served.step(), rests(60 * 60 - 10));
    let over = Case {
        served: Some(certificate("b")),
        ..Case::rotating(&["b", "a"], Some(60 * 60))
    };
    assert_eq!(over.step(), publishes(&["b"]));
}

#[test]
fn replica_serving_an_untrusted_one_switches_at_once() {
    let cut_off = Case::rotating(&["b"], Some(0));
    assert_eq!(cut_off.step(), Action::Serve);
    let one_of_two = Case {
        trusted: Some(vec![bundle(&["b", "a"]), bundle(&["b"])]),
        ..cut_off
    };
    assert_eq!(one_of_two.step(), Action::Serve);
}

#[test]
fn replica_serving_none_or_an_expired_one_switches_at_once() {
    let mut expired = certificate("a");
    expired.not_after = NOW;
    for served in [None, Some(expired)] {
        let case = Case {
            served,
            ..Case::rotating(&["b", "a"], Some(0))
        };
        assert_eq!(case.step(), Action::Serve);
    }
}

#[test]
fn only_the_broken_webhook_is_repaired() {
    let case = Case {
        trusted: Some(vec![bundle(&["a"]), bundle(&["x"]), bundle(&["a", "y"])]),
        trusted_for: None,
        ..Case::well()
    };
    let next = vec![None, bundle(&["a", "x"]), None];
    assert_eq!(case.step(), Action::Publish(next));
}

#[test]
fn foreign_bundle_during_a_rotation_keeps_the_served_authority() {
    for there in [None, bundle(&[])] {
        let case = Case {
            trusted: Some(vec![there]),
            ..Case::rotating(&[], None)
        };
        // `a` is still served.
        assert_eq!(case.step(), Action::Publish(vec![bundle(&["b", "a"])]));
    }
}

#[test]
fn at_most_eight_unexpired_authorities_are_published() {
    let mut old = authority("old");
    old.not_after = NOW;
    let mut there: Vec<_> = (0..20).map(|n| authority(&n.to_string())).collect();
    there.insert(0, old);
    let case = Case {
        trusted: Some(vec![Some(there)]),
        ..Case::rotating(&[], None)
    };
    let expected = bundle(&["b", "a", "0", "1", "2", "3", "4", "5"]);
    assert_eq!(case.step(), Action::Publish(vec![expected]));
}

#[test]
fn certificate_is_served_and_renewed_without_a_configuration() {
    let mut case = Case {
        trusted: None,
        served: None,
        trusted_for: None,
        ..Case::well()
    };
    assert_eq!(case.step(), Action::Serve);
    case.served = Some(certificate("a"));
    assert_eq!(case.step(), rests(50 * DAY));
    case.now = NOW + 50 * DAY;
    assert!(makes(&case.step()));
}

#[test]
fn rotation_ends_before_the_next_one_begins() {
    let mut case = Case::rotating(&["b", "a"], Some(1));
    case.now = NOW + 70 * DAY;
    assert_eq!(case.step(), rests(9));
}
