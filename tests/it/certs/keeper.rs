//! Several rotators on one Secret and one configuration. At all times the certificate that each
//! serves is trusted.

use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::protocol::time::{Moment, WallTime};
use leasehold::store::certificates::TlsFiles;
use leasehold::webhook::certs::plan::Timing;
use leasehold::webhook::certs::{
    InvalidCertificate, Pair, Rotator, RotatorPorts, ServedCertificate, authorities, issue, pem_of,
};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use super::stores::{Fault, World};
use crate::paused_clock::PausedClock;

const HOUR: Duration = Duration::from_secs(60 * 60);
/// Renewed after twenty hours. As with a longer lifetime, both authorities are trusted for an hour.
const LIFE: Duration = Duration::from_secs(30 * 60 * 60);
const STEP: Duration = Duration::from_secs(5);
const NAME: &str = "leasehold-webhook.leasehold-system.svc";

/// A paused clock whose wall clock is wrong by this many seconds.
struct Wrong(PausedClock, i64);

impl Clock for Wrong {
    fn now(&self) -> Moment {
        self.0.now()
    }

    fn wall(&self) -> WallTime {
        // Long after 1970, so that an hour earlier is still a valid time.
        WallTime(self.0.wall().0 + (1_800_000_000 + self.1) * 1_000_000)
    }
}

/// Starts a rotator, which ends with the test.
fn keeper(world: &World, wrong_by: i64) -> ServedCertificate {
    let served = ServedCertificate::default();
    let ports = RotatorPorts {
        certificates: Arc::new(world.clone()),
        trust: Arc::new(world.clone()),
        clock: Arc::new(Wrong(PausedClock::start(), wrong_by)),
    };
    let names = vec![NAME.to_owned(), "127.0.0.1".to_owned()];
    let keeper = Rotator::new(ports, names, Timing::new(LIFE), served.clone());
    tokio::spawn(keeper.run());
    served
}

/// Returns the authority of the served certificate, and asserts that the Secret contained it at
/// some time.
fn authority_of(world: &World, served: &ServedCertificate) -> Option<Vec<u8>> {
    let certificate = served.certificate()?;
    let inside = world.inside();
    let files = inside.past.iter().find(|files| {
        let read = CertificateDer::from_pem_slice(&files.certificate);
        read.is_ok_and(|read| *read == certificate)
    });
    Some(
        files
            .expect("only what was in the Secret")
            .authority
            .clone(),
    )
}

/// Returns how many authorities each webhook trusts, and asserts that all served certificates are
/// trusted.
fn trusted(world: &World, replicas: &[&ServedCertificate]) -> Vec<usize> {
    let needed: Vec<_> = replicas
        .iter()
        .filter_map(|served| authority_of(world, served))
        .flat_map(|pem| authorities(&pem).unwrap())
        .collect();
    let inside = world.inside();
    let (_, bundles) = inside.bundles.as_ref().unwrap();
    let each = bundles.iter().map(|bundle| {
        let there = authorities(bundle).unwrap_or_default();
        for authority in &needed {
            assert!(there.contains(authority), "what is served is not trusted");
        }
        there.len()
    });
    each.collect()
}

/// Lets time pass, and asserts that the served certificates stay trusted. Returns the maximum
/// number of trusted authorities.
async fn pass(
    world: &World,
    replicas: &[&ServedCertificate],
    time: Duration,
    step: Duration,
) -> usize {
    let mut most = 0;
    let mut passed = Duration::ZERO;
    while passed < time {
        tokio::time::sleep(step).await;
        passed += step;
        most = most.max(trusted(world, replicas).into_iter().max().unwrap());
    }
    most
}

async fn until_all_serve_the_same(world: &World, replicas: &[&ServedCertificate]) {
    for _ in 0..1_000 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let in_secret = world.inside().secret.clone();
        let current = in_secret.and_then(|(_, files)| {
            let (_, read) = Pair::read_for(&files, &[NAME.to_owned()]).ok()?;
            Some(read.der.to_vec())
        });
        let serves = |served: &&&ServedCertificate| served.certificate() == current;
        let is_ready = |served: &&&ServedCertificate| served.ready().is_ok();
        if current.is_some()
            && replicas.iter().filter(serves).filter(is_ready).count() == replicas.len()
        {
            return;
        }
    }
    panic!("the replicas do not agree");
}

fn secret(world: &World) -> TlsFiles {
    world.inside().secret.clone().unwrap().1
}

#[tokio::test(start_paused = true)]
async fn concurrent_starts_agree_on_one_certificate() {
    let world = World::new(2);
    let (a, b) = (keeper(&world, 0), keeper(&world, 0));
    assert!(a.ready().is_err());
    until_all_serve_the_same(&world, &[&a, &b]).await;
    assert_eq!(world.inside().past.len(), 1);
    // The first check found webhooks that trust no authority.
    assert_eq!(trusted(&world, &[&a, &b]), [1, 1]);
    // A later replica uses the existing certificate.
    let c = keeper(&world, 0);
    until_all_serve_the_same(&world, &[&a, &b, &c]).await;
    assert_eq!(world.inside().past.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn renewal_after_two_thirds_keeps_the_served_one_trusted() {
    let world = World::new(2);
    let (a, b) = (keeper(&world, 0), keeper(&world, 0));
    let all = [&a, &b];
    until_all_serve_the_same(&world, &all).await;
    assert_eq!(pass(&world, &all, 19 * HOUR, HOUR).await, 1);
    assert_eq!(world.inside().past.len(), 1);
    let first = a.certificate();
    let writes = world.inside().trust_writes;
    let most = pass(&world, &all, 3 * HOUR, STEP).await;
    assert_eq!(most, 2, "both authorities are trusted for a while");
    assert_eq!(world.inside().past.len(), 2);
    assert_ne!(a.certificate(), first);
    assert_eq!(trusted(&world, &all), [1, 1]);
    // One write adds an authority and one drops one. A second replica may have met the first one's
    // write each time.
    assert!(world.inside().trust_writes - writes <= 4);
    // Further rotations follow.
    pass(&world, &all, 60 * HOUR, HOUR / 2).await;
    assert_eq!(world.inside().past.len(), 5);
}

#[tokio::test(start_paused = true)]
async fn valid_state_causes_no_write() {
    let world = World::new(2);
    let (a, b) = (keeper(&world, 0), keeper(&world, 0));
    until_all_serve_the_same(&world, &[&a, &b]).await;
    let writes = |world: &World| {
        let inside = world.inside();
        (inside.secret_writes, inside.trust_writes)
    };
    let before = writes(&world);
    pass(&world, &[&a, &b], 10 * HOUR, HOUR).await;
    assert_eq!(writes(&world), before);
}

#[tokio::test(start_paused = true)]
async fn lost_or_damaged_secret_is_replaced_without_a_refusal() {
    let world = World::new(2);
    let (a, b) = (keeper(&world, 0), keeper(&world, 0));
    let all = [&a, &b];
    until_all_serve_the_same(&world, &all).await;
    let other = || issue(&[NAME.to_owned()], LIFE, 1_800_000_000).unwrap();
    let damages: [Box<dyn Fn() -> Option<TlsFiles>>; 5] = [
        Box::new(|| None),
        Box::new(|| Some(TlsFiles::default())),
        Box::new(|| {
            Some(TlsFiles {
                key: other().key,
                ..secret(&world)
            })
        }),
        Box::new(|| {
            Some(TlsFiles {
                authority: other().authority,
                ..secret(&world)
            })
        }),
        // Valid, but for another name.
        Box::new(|| Some(issue(&["other.svc".to_owned()], LIFE, 1_800_000_000).unwrap())),
    ];
    for (number, damage) in damages.iter().enumerate() {
        let before = a.certificate();
        let files = damage();
        world.edit(|inside| inside.secret = files.map(|files| (0, files)));
        pass(&world, &all, 2 * HOUR, STEP).await;
        assert_ne!(a.certificate(), before, "damage {number}");
        assert_eq!(a.certificate(), b.certificate(), "damage {number}");
        assert_eq!(trusted(&world, &all), [1, 1]);
        assert_eq!(world.inside().past.len(), number + 2, "damage {number}");
    }
}

#[tokio::test(start_paused = true)]
async fn foreign_bundle_is_repaired_at_once_and_cleared_later() {
    let world = World::new(3);
    let (a, b) = (keeper(&world, 0), keeper(&world, 0));
    let all = [&a, &b];
    until_all_serve_the_same(&world, &all).await;
    let foreign = issue(&[NAME.to_owned()], LIFE, 1_800_000_000).unwrap();
    let ours = secret(&world).authority;
    world.edit(|inside| {
        let (_, bundles) = inside.bundles.as_mut().unwrap();
        bundles[0] = foreign.authority.clone();
        bundles[1] = b"nothing".to_vec();
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(trusted(&world, &all), [2, 1, 1]);
    tokio::time::sleep(2 * HOUR).await;
    assert_eq!(trusted(&world, &all), [1, 1, 1]);
    assert_eq!(
        secret(&world).authority,
        ours,
        "no reason to issue another one"
    );
    // In the canonical form.
    let (_, bundles) = world.inside().bundles.clone().unwrap();
    assert_eq!(bundles[1], pem_of(&authorities(&ours).unwrap()));
}

#[tokio::test(start_paused = true)]
async fn write_without_a_clear_answer_is_read_back() {
    for fault in [Fault::LostAnswer, Fault::LostRequest] {
        let world = World::new(1);
        world.inside().fault = Some(fault);
        let a = keeper(&world, 0);
        until_all_serve_the_same(&world, &[&a]).await;
        // The renewal, too.
        pass(&world, &[&a], 19 * HOUR, HOUR).await;
        world.inside().fault = Some(fault);
        pass(&world, &[&a], 3 * HOUR, STEP).await;
        let inside = world.inside();
        assert_eq!(inside.past.len(), 2, "{fault:?}");
        let lost = if fault == Fault::LostRequest { 2 } else { 0 };
        assert_eq!(inside.secret_writes, 2 + lost, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn replica_without_write_right_keeps_serving() {
    let world = World::new(1);
    let a = keeper(&world, 0);
    until_all_serve_the_same(&world, &[&a]).await;
    let before = a.certificate();
    world.inside().fault = Some(Fault::Denied);
    pass(&world, &[&a], 22 * HOUR, HOUR).await;
    assert_eq!(a.certificate(), before);
    assert!(a.ready().is_ok(), "an unready replica has no benefit");
    world.inside().fault = None;
    pass(&world, &[&a], HOUR, 6 * STEP).await;
    assert_ne!(a.certificate(), before);
}

#[tokio::test(start_paused = true)]
async fn valid_certificate_is_kept_if_a_new_one_cannot_be_published() {
    let world = World::new(1);
    let a = keeper(&world, 0);
    until_all_serve_the_same(&world, &[&a]).await;
    let before = secret(&world);
    world.inside().trust_denied = true;
    pass(&world, &[&a], 22 * HOUR, HOUR).await;
    assert!(
        secret(&world) == before,
        "it is past two thirds of its lifetime"
    );
    // A replica that starts now has a certificate to serve. Its monotonic clock starts now, so its
    // wall clock is set.
    let b = keeper(&world, 22 * 60 * 60);
    until_all_serve_the_same(&world, &[&a, &b]).await;
    world.inside().trust_denied = false;
    pass(&world, &[&a, &b], HOUR, 6 * STEP).await;
    assert!(secret(&world) != before);
    until_all_serve_the_same(&world, &[&a, &b]).await;
}

#[tokio::test(start_paused = true)]
async fn new_replica_without_write_right_reports_it() {
    let world = World::new(1);
    world.inside().fault = Some(Fault::Denied);
    let a = keeper(&world, 0);
    tokio::time::sleep(Duration::from_secs(5)).await;
    let why = a.ready().unwrap_err();
    assert!(why.contains("secrets is forbidden"), "{why}");
    assert_eq!(a.metrics(), "");
    // The same without a configuration.
    let world = World::new(1);
    world.edit(|inside| inside.bundles = None);
    let a = keeper(&world, 0);
    tokio::time::sleep(Duration::from_secs(5)).await;
    let why = a.ready().unwrap_err();
    assert!(why.contains("MutatingWebhookConfiguration"), "{why}");
    world.edit(|inside| inside.bundles = Some((0, vec![Vec::new()])));
    until_all_serve_the_same(&world, &[&a]).await;
}

#[tokio::test(start_paused = true)]
async fn replicas_with_differing_clocks_bound_their_replacements() {
    // One clock is a day ahead. To that replica each certificate of the other is due immediately,
    // and to the other one its certificates are not valid yet.
    let world = World::new(1);
    let (a, b) = (keeper(&world, 0), keeper(&world, 86_400));
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_ne!(a.certificate(), None);
    assert_ne!(b.certificate(), None);
    let made = world.inside().past.len();
    assert!(made <= 2 * 61, "{made} in ten minutes");
}

#[test]
fn unusable_files_are_reported_by_name() {
    let names = [NAME.to_owned()];
    let good = issue(&names, LIFE, 1_800_000_000).unwrap();
    let other = issue(&names, LIFE, 1_800_000_000).unwrap();
    let read = |files: &TlsFiles| Pair::read_for(files, &names).map(drop);
    assert_eq!(read(&good), Ok(()));
    let words = |files: TlsFiles| read(&files).unwrap_err().to_string();
    assert_eq!(
        words(TlsFiles {
            key: other.key.clone(),
            ..good.clone()
        }),
        InvalidCertificate::KeyMismatch.to_string()
    );
    let wrong = words(TlsFiles {
        authority: other.authority,
        ..good.clone()
    });
    assert!(wrong.contains("not valid for"), "{wrong}");
    for (files, file) in [
        (
            TlsFiles {
                certificate: Vec::new(),
                ..good.clone()
            },
            "tls.crt",
        ),
        (
            TlsFiles {
                key: b"x".to_vec(),
                ..good.clone()
            },
            "tls.key",
        ),
        (
            TlsFiles {
                authority: Vec::new(),
                ..good.clone()
            },
            "ca.crt",
        ),
    ] {
        let wrong = words(files);
        assert!(wrong.starts_with(file), "{wrong}");
    }
    assert_eq!(format!("{good:?}"), "Files");
}
