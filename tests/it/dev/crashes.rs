//! The state after a process was killed: the next one has everything that was acknowledged.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use futures::future::join_all;
use leasehold::clock::{Clock as _, SystemClock};
use reqwest::Method;
use serde_json::json;

use super::{Dev, path_of, token};
use crate::seed::seed;

const ROUNDS: usize = 12;
const APPS: usize = 6;

/// What an app knows of its lock when the answers end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// It was granted with this token, and no request followed.
    Held(u64),
    /// Its release was acknowledged.
    Released(u64),
    /// A request was sent and not answered; the app's last token.
    Unsure(u64),
}

/// Acquires locks and releases some of them until the answers end. Each lock has one app.
async fn work(dev: &Dev, round: usize, app: usize, known: &Mutex<BTreeMap<String, Known>>) {
    let note = |resource: &str, what| known.lock().unwrap().insert(resource.to_owned(), what);
    for n in 0.. {
        let resource = format!("r-{round}-{app}-{}", n % 5);
        let last = known.lock().unwrap().get(&resource).copied();
        let last = match last {
            Some(Known::Held(_)) => continue,
            Some(Known::Released(token)) => token,
            _ => 0,
        };
        note(&resource, Known::Unsure(last));
        let body = json!({"resource": resource, "ttlSeconds": 300});
        let asked = dev.try_call(Method::POST, "/v1/locks/acquire", Some(body));
        let Ok((status, lease)) = asked.await else {
            return;
        };
        assert_eq!(status, 200, "{lease}");
        assert!(token(&lease) > last);
        note(&resource, Known::Held(token(&lease)));
        if n % 5 == 0 {
            continue;
        }
        note(&resource, Known::Unsure(token(&lease)));
        let asked = dev.try_call(Method::DELETE, &path_of(&lease), None).await;
        let Ok((status, answer)) = asked else {
            return;
        };
        assert_eq!(status, 204, "{answer}");
        note(&resource, Known::Released(token(&lease)));
    }
}

/// Runs one process: the apps work, and it is killed in the meantime.
async fn live(data: &Path, round: usize, random: &mut fastrand::Rng) -> BTreeMap<String, Known> {
    let dev = Dev::start(data, &[]).await;
    let known = Mutex::new(BTreeMap::new());
    let pid = dev.process.id().to_string();
    let time = Duration::from_millis(random.u64(30..300));
    let apps = join_all((0..APPS).map(|app| work(&dev, round, app, &known)));
    let killing = async {
        // Even on a slow machine at least one release was acknowledged.
        let has_released = || {
            let known = known.lock().unwrap();
            known
                .values()
                .any(|known| matches!(known, Known::Released(_)))
        };
        while !has_released() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        tokio::time::sleep(time).await;
        let killed = std::process::Command::new("kill")
            .args(["-9", &pid])
            .status();
        assert!(killed.unwrap().success());
    };
    futures::join!(apps, killing);
    drop(dev);
    known.into_inner().unwrap()
}

/// Returns each lock with its first token and whether it is held.
async fn stored(dev: &Dev) -> BTreeMap<String, (u64, bool)> {
    let mut locks = BTreeMap::new();
    let mut path = "/v1/locks?limit=500".to_owned();
    loop {
        let (status, page) = dev.get(&path).await;
        assert_eq!(status, 200, "{page}");
        assert_eq!(page["unreadable"], json!([]));
        for lock in page["locks"].as_array().unwrap() {
            let resource = lock["resource"].as_str().unwrap().to_owned();
            let token = lock["fencingToken"].as_u64().unwrap_or_default();
            locks.insert(resource, (token, lock["holder"].is_object()));
        }
        let Some(next) = page["continue"].as_str() else {
            return locks;
        };
        path = format!("/v1/locks?limit=500&continue={next}");
    }
}

#[tokio::test]
async fn acknowledged_state_survives_sigkill_and_tokens_rise() {
    let data = tempfile::tempdir().unwrap();
    let mut random = fastrand::Rng::with_seed(seed());
    let mut all = BTreeMap::new();
    let mut highest = 0;
    for round in 0..ROUNDS {
        let known = live(data.path(), round, &mut random).await;
        let tokens = known.values().map(|known| match known {
            Known::Held(token) | Known::Released(token) | Known::Unsure(token) => *token,
        });
        let tokens: Vec<_> = tokens.filter(|token| *token > 0).collect();
        let lowest = tokens.iter().min().copied();
        assert!(
            lowest.is_none_or(|lowest| lowest > highest),
            "round {round}"
        );
        highest = tokens.into_iter().max().unwrap_or(highest);
        all.extend(known);
    }
    let dev = Dev::start(data.path(), &[]).await;
    let stored = stored(&dev).await;
    let mut counts = (0, 0, 0);
    for (resource, known) in &all {
        let there = stored.get(resource).copied();
        match *known {
            Known::Held(token) => {
                assert_eq!(there, Some((token, true)), "{resource}");
                counts.0 += 1;
            }
            Known::Released(token) => {
                assert_eq!(there, Some((token, false)), "{resource}");
                counts.1 += 1;
            }
            Known::Unsure(token) => {
                assert!(there.unwrap_or_default().0 >= token, "{resource}");
                counts.2 += 1;
            }
        }
    }
    println!("held, released, unsure: {counts:?}");
    assert!(counts.0 > 0 && counts.1 > 0 && counts.2 > 0, "{counts:?}");
    let next = dev.acquire("another").await;
    assert!(token(&next) > highest);
}

#[tokio::test]
async fn held_lease_stays_exclusive_until_its_deadline() {
    // Long enough for the next process to be queried in time, even on a slow machine.
    const TTL: &str = "--session-ttl=15";
    let data = tempfile::tempdir().unwrap();
    let dev = Dev::start(data.path(), &[TTL]).await;
    let free = dev.acquire("free").await;
    let (status, _) = dev.call(Method::DELETE, &path_of(&free), None).await;
    assert_eq!(status, 204);
    let asked = SystemClock.now();
    let lease = dev.acquire("held").await;
    let valid_for = Duration::from_millis(lease["validForMs"].as_u64().unwrap());
    dev.end_by("KILL");

    let dev = Dev::start(data.path(), &[TTL]).await;
    let (status, held) = dev.try_acquire("held").await;
    assert!(status == 409 && held["code"] == "lock_held", "{held}");
    assert_eq!(dev.get(&path_of(&lease)).await.0, 404);
    assert!(token(&dev.acquire("free").await) > token(&lease));
    let next = dev.acquire_in_time("held").await;
    assert!(SystemClock.now().since(asked) >= valid_for);
    assert!(token(&next) > token(&lease));
}

#[tokio::test]
async fn a_clean_stop_leaves_the_locks_free() {
    let data = tempfile::tempdir().unwrap();
    let dev = Dev::start(data.path(), &["--on-term=apps-ended"]).await;
    let lease = dev.acquire("r").await;
    assert!(dev.end_by("TERM").success());
    let dev = Dev::start(data.path(), &[]).await;
    assert!(token(&dev.acquire("r").await) > token(&lease));
    assert!(dev.end_by("INT").success());
}
