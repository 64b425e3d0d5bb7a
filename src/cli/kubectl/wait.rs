//! `kubectl leasehold wait`.

use std::str::FromStr;
use std::time::Duration;

use serde_json::Value;

use super::api::Api;
use super::failure::Failure;
use super::flags::duration;
use super::{follow, lock_name, terminal};

/// The arguments.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The lock. It need not exist: one that was never acquired is free.
    #[arg(value_name = "LOCK")]
    lock: String,
    /// What to wait for: free, held, or holder=NAME, where NAME is an ownerId or a pod.
    #[arg(long = "for", value_name = "CONDITION")]
    condition: Condition,
    /// How long to wait; 0: check once.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    timeout: Duration,
}

/// What is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Condition {
    Free,
    Held,
    Holder(String),
}

impl FromStr for Condition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.split_once('=')) {
            ("free", _) => Ok(Self::Free),
            ("held", _) => Ok(Self::Held),
            (_, Some(("holder", name))) if !name.is_empty() => Ok(Self::Holder(name.to_owned())),
            _ => Err("use free, held or holder=NAME".to_owned()),
        }
    }
}

impl Condition {
    /// Returns whether it is met by a lock object, or by the absence of one.
    fn is_met(&self, lock: Option<&Value>) -> bool {
        let holder = lock.map_or(&Value::Null, |lock| &lock["status"]["holder"]);
        match self {
            Self::Free => holder.is_null(),
            Self::Held => !holder.is_null(),
            Self::Holder(name) => {
                holder["ownerId"] == name.as_str() || holder["pod"] == name.as_str()
            }
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Free => "free".to_owned(),
            Self::Held => "held".to_owned(),
            Self::Holder(name) => format!("held by {name}"),
        }
    }
}

/// Waits, and prints that the condition is met.
pub(super) async fn run(api: &Api, args: &Args) -> Result<(), Failure> {
    let name = lock_name::resolve(api, &args.lock).await?;
    // Whether the object existed when the condition was met.
    let met = |lock: Option<&Value>| args.condition.is_met(lock).then_some(lock.is_some());
    let done = if args.timeout.is_zero() {
        met(lock_name::read(api, &name).await?.as_ref())
    } else {
        follow::until(api, &name, Some(args.timeout), met).await?
    };
    let Some(exists) = done else {
        // The time may have passed without any answer, and then nothing is known of the lock.
        lock_name::read(api, &name).await?;
        return Err(Failure::Unfulfilled(format!(
            "timed out waiting for the lock {} to be {}; see `kubectl leasehold why {name} --namespace {}`",
            args.lock,
            args.condition.text(),
            api.namespace
        )));
    };
    if !exists {
        terminal::complain(&format!(
            "note: no lock object {name} exists in namespace {}; that counts as free",
            api.namespace
        ));
    }
    terminal::print(&format!(
        "distributedlock.leasehold.dev/{name} condition met\n"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn conditions_are_met_by_the_holder() {
        let held = json!({"status": {"holder": {"ownerId": "w", "pod": "p"}}});
        let free = json!({"status": {"token": 1}});
        for (condition, by_held, by_free) in [
            ("free", false, true),
            ("held", true, false),
            ("holder=w", true, false),
            ("holder=p", true, false),
            ("holder=x", false, false),
        ] {
            let condition: Condition = condition.parse().unwrap();
            assert_eq!(condition.is_met(Some(&held)), by_held, "{condition:?}");
            assert_eq!(condition.is_met(Some(&free)), by_free, "{condition:?}");
            assert_eq!(condition.is_met(None), by_free, "{condition:?}");
        }
        for bad in ["", "holder", "holder=", "gone"] {
            assert!(bad.parse::<Condition>().is_err(), "{bad}");
        }
    }
}
