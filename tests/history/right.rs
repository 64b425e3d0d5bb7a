//! Histories that look wrong and are correct: a checker must not refuse them.

use std::time::Duration;

use leasehold::clock::{Clock, SystemClock};

use super::builder::{End, HistoryBuilder};
use super::history::{History, Op, OverriddenBy};

fn is_right(builder: &HistoryBuilder) {
    assert_eq!(builder.violations(), [] as [&str; 0]);
}

#[test]
fn one_after_the_other() {
    let mut builder = HistoryBuilder::default();
    builder.acquire("a", 0..10, 1000, 100);
    builder
        .renew("a", 50..60, 1000, 150)
        .write("a", 60..70, 1000, End::Ok);
    builder
        .release("a", 80..90, 1000)
        .acquire_not_granted("b", 70..75, End::Fail);
    builder
        .acquire("b", 20..85, 2000, 120)
        .write("b", 90..95, 2000, End::Ok);
    is_right(&builder);
    let summary = builder.history().check().unwrap();
    assert_eq!(
        (summary.leases, summary.accepted, summary.refused),
        (2, 2, 0)
    );
}

/// The answer was lost after the lock was acquired. No app believes, and the lock is taken over
/// later.
#[test]
fn an_acquire_without_an_answer_that_did_happen() {
    for end in [End::Unknown, End::Never] {
        let mut builder = HistoryBuilder::default();
        builder
            .acquire_not_granted("a", 0..10, end)
            .acquire("b", 20..30, 2000, 90);
        is_right(&builder);
    }
}

/// Its answer arrived, and its request was sent before the other app's request.
#[test]
fn earlier_queued_caller_may_have_the_smaller_token() {
    let mut builder = HistoryBuilder::default();
    builder
        .acquire("a", 0..50, 1000, 60)
        .acquire("b", 5..100, 2000, 120);
    builder.acquire("c", 4..70, 1500, 90);
    is_right(&builder);
}

#[test]
fn a_late_write_is_refused() {
    let mut builder = HistoryBuilder::default();
    builder
        .acquire("a", 0..10, 1000, 100)
        .acquire("b", 50..110, 2000, 200);
    builder
        .write("b", 110..120, 2000, End::Ok)
        .write("a", 130..140, 1000, End::Fail);
    builder
        .decided(115, 2000, ("b", 110), true)
        .decided(135, 1000, ("a", 130), false);
    is_right(&builder);
}

/// A killed app's write may happen at any time, or never.
#[test]
fn a_write_without_an_answer_is_done_or_not() {
    let mut builder = HistoryBuilder::default();
    builder
        .acquire("a", 0..10, 1000, 100)
        .write("a", 20..30, 1000, End::Unknown);
    builder
        .acquire("b", 105..110, 2000, 200)
        .write("b", 110..120, 2000, End::Ok);
    is_right(&builder);
    builder
        .decided(115, 2000, ("b", 110), true)
        .decided(135, 1000, ("a", 20), false);
    is_right(&builder);
}

/// Overlapping writes have no order.
#[test]
fn two_writes_at_one_time_are_done_in_any_order() {
    let mut builder = HistoryBuilder::default();
    builder
        .acquire("a", 0..10, 1000, 100)
        .acquire("b", 105..110, 2000, 200);
    builder
        .write("a", 90..140, 1000, End::Ok)
        .write("b", 110..120, 2000, End::Ok);
    is_right(&builder);
}

#[test]
fn overridden_grant_makes_no_claim() {
    use OverriddenBy::{Delete, DeleteSession, Edit, Force, Restore, Wipe};
    for by in [Force, Delete, Wipe, Edit, DeleteSession, Restore] {
        let mut builder = HistoryBuilder::default();
        builder.acquire("a", 0..10, 1000, 100).overridden(20, by);
        builder
            .acquire("b", 30..40, 2000, 100)
            .renew("a", 50..60, 1000, 110);
        builder
            .write("b", 45..50, 2000, End::Ok)
            .write("a", 60..70, 1000, End::Fail);
        is_right(&builder);
        assert_eq!(builder.history().summary().overridden, 1);
    }
}

#[test]
fn grant_known_to_be_ended_makes_no_claim() {
    for end in [End::Ok, End::Unknown, End::Never] {
        let mut builder = HistoryBuilder::default();
        builder
            .acquire("a", 0..10, 1000, 100)
            .ends(20..25, "1000", end);
        builder.acquire("b", 30..40, 2000, 100);
        is_right(&builder);
    }
}

#[test]
fn sidecar_whose_clock_jumped_is_excused() {
    let mut builder = HistoryBuilder::default();
    builder.info("a", 0, Op::served_by("s"));
    builder.acquire("a", 0..10, 1000, 100);
    builder
        .info("person", 20, Op::clock_leaps("s"))
        .acquire("b", 30..40, 2000, 100);
    is_right(&builder);
}

#[test]
fn validity_may_shrink_after_a_clock_jump() {
    let mut builder = HistoryBuilder::default();
    builder.info("a", 0, Op::served_by("s"));
    builder.acquire("a", 0..10, 1000, 100);
    builder.info("person", 20, Op::clock_leaps("s"));
    builder.renew("a", 30..31, 1000, 50);
    is_right(&builder);
}

/// The grant was kept when the lock was deleted, and its agent had not noticed. The fence refuses
/// it.
#[test]
fn later_lease_of_an_overridden_grant_is_right() {
    let mut builder = HistoryBuilder::default();
    builder
        .acquire_lease("a", 0..10, "g.0", 1000, 20)
        .overridden(30, OverriddenBy::Delete)
        .acquire("b", 40..50, 2000, 100)
        .acquire_lease("a", 60..70, "g.1", 1001, 100);
    is_right(&builder);
}

#[test]
fn clocks_that_are_out_of_bounds_leave_the_tokens() {
    let mut builder = HistoryBuilder::default();
    builder.claims(0, false, None);
    builder
        .acquire("a", 0..10, 1000, 100)
        .acquire("b", 20..40, 2000, 100);
    builder
        .write("b", 45..50, 2000, End::Ok)
        .write("a", 60..70, 1000, End::Fail);
    is_right(&builder);
}

#[test]
fn beliefs_may_overlap_by_the_clock_tolerance() {
    let mut builder = HistoryBuilder::default();
    builder.claims(10, true, None);
    builder
        .acquire("a", 0..10, 1000, 100)
        .acquire("b", 20..90, 2000, 200);
    is_right(&builder);
}

/// The app did not run, and reads from its stream what was sent before. The deadline is over.
#[test]
fn event_read_after_its_deadline_confirms_nothing() {
    let mut builder = HistoryBuilder::default();
    builder
        .acquire("a", 0..10, 1000, 40)
        .acquire("b", 5..60, 2000, 100)
        .info("a", 70, Op::renewed("1000", 55_000_000));
    is_right(&builder);
}

#[test]
fn a_repeated_request_has_the_same_lease() {
    let mut builder = HistoryBuilder::default();
    builder
        .acquire("a", 0..10, 1000, 100)
        .acquire("a", 20..30, 1000, 110);
    is_right(&builder);
}

/// Each validity counts from when the app sent the request, and the second request took longer.
#[test]
fn answer_to_a_slow_request_may_shorten_validity() {
    let mut builder = HistoryBuilder::default();
    builder
        .acquire("a", 0..1, 1000, 100)
        .renew("a", 20..45, 1000, 80);
    is_right(&builder);
    let mut builder = HistoryBuilder::default();
    let less = |until| Op::Renew {
        lease: "1000".to_owned(),
        believes_until: until,
        asks_less: true,
    };
    builder
        .acquire("a", 0..1, 1000, 100)
        .info("a", 3, less(Some(50_000_000)));
    builder.renew("a", 20..21, 1000, 50);
    is_right(&builder);
}

/// A belief ends not only with a release, but also with a notified loss, or when the app stops
/// acting.
#[test]
fn notified_loss_ends_the_apps_belief() {
    let mut builder = HistoryBuilder::default();
    builder
        .claims(0, true, Some(5))
        .acquire("a", 0..10, 1000, 100)
        .lost("a", 50, 1000);
    builder
        .acquire("b", 40..60, 2000, 100)
        .info("b", 80, Op::believes_end("2000"));
    builder
        .acquire("c", 85..90, 3000, 150)
        .renew_not_granted("c", 100..110, 3000, End::Fail);
    builder.acquire("d", 110..120, 4000, 200);
    is_right(&builder);
}

/// No notification is due to an app that released or did not run, whose sidecar does not run, or
/// whose stream has ended.
#[test]
fn unreachable_app_need_not_be_notified_of_a_loss() {
    let told = |excuse: fn(&mut HistoryBuilder) -> &mut HistoryBuilder| {
        let mut builder = HistoryBuilder::default();
        builder
            .claims(0, true, Some(50))
            .info("a", 0, Op::served_by("s"));
        builder.acquire("a", 0..10, 1000, 100);
        excuse(&mut builder).acquire_not_granted("b", 300..305, End::Fail);
        is_right(&builder);
    };
    told(|builder| builder.release("a", 140..141, 1000));
    // Busy beyond its deadline, and for longer than a notification may take.
    told(|builder| {
        let builder = builder.info("a", 200, Op::believes_end("1000"));
        builder.release("a", 200..201, 1000)
    });
    told(|builder| builder.stopped("a", 90..260, End::Ok));
    told(|builder| builder.stopped("s", 90..120, End::Ok).lost("a", 170, 1000));
    told(|builder| {
        let builder = builder.stopped("s", 145..146, End::Ok);
        builder.stopped("s", 160..180, End::Ok).lost("a", 230, 1000)
    });
    told(|builder| builder.stopped("s", 120..1_000, End::Never));
    told(|builder| {
        builder
            .stopped("everyone", 110..200, End::Ok)
            .lost("a", 240, 1000)
    });
    told(|builder| builder.info("a", 60, Op::stream_end("1000")));
    told(|builder| builder.renew("a", 120..130, 1000, 280));
    // Its requests take so long that each validity is over on arrival.
    told(|builder| {
        let builder = builder.renew("a", 20..130, 1000, 110);
        builder
            .renew("a", 60..170, 1000, 150)
            .release("a", 210..211, 1000)
    });
    // It was busy, and noticed only afterwards that its time was over.
    told(|builder| {
        let builder = builder.info("a", 200, Op::believes_end("1000"));
        builder.lost("a", 250, 1000)
    });
}

/// The sidecar did not run when it received the request, so its deadline is later by that time.
#[test]
fn sidecar_counts_from_when_it_ran_again() {
    let mut builder = HistoryBuilder::default();
    builder
        .claims(0, true, Some(50))
        .info("a", 0, Op::served_by("s"));
    builder
        .stopped("s", 1..81, End::Ok)
        .acquire("a", 0..90, 1000, 100)
        .lost("a", 230, 1000);
    is_right(&builder);
}

/// From then on not even tokens are claimed. Everything before was correct.
#[test]
fn a_restore_without_the_bump_ends_every_claim() {
    let mut builder = HistoryBuilder::default();
    builder.acquire("a", 0..10, 2000, 100);
    builder.info(
        "person",
        20,
        Op::overridden(None, OverriddenBy::RestoreWithoutBump),
    );
    builder.acquire_lease("b", 30..40, "other", 2000, 100);
    is_right(&builder);
}

/// An entry with an unknown outcome may be there or not, and later entries may be missing.
#[test]
fn log_contains_all_acknowledged_entries() {
    for entries in [
        &[("a", 1000), ("c", 3000)][..],
        &[("a", 1000), ("b", 2000), ("c", 3000)],
    ] {
        let mut builder = HistoryBuilder::default();
        builder
            .append("a", 0..10, 1000, End::Ok)
            .append("b", 20..30, 2000, End::Unknown)
            .append("c", 40..50, 3000, End::Ok)
            .append("d", 60..70, 2500, End::Fail)
            .log(80, entries)
            .append("e", 90..95, 4000, End::Ok);
        is_right(&builder);
        assert_eq!(builder.history().summary().appended, 2);
    }
}

/// Returns the shortest time of a check of a history with this many turns.
fn check_of(turns: u64) -> Duration {
    let mut builder = HistoryBuilder::default();
    for turn in 0..turns {
        let (from, token) = (turn * 100, (turn + 1) * 1000);
        builder.acquire("a", from + 1..from + 10, token, from + 60);
        builder.renew("a", from + 20..from + 22, token, from + 90);
        builder.write("a", from + 25..from + 30, token, End::Ok);
        builder.release("a", from + 80..from + 99, token);
    }
    let history = builder.history();
    let times = (0..5).map(|_| {
        let begun = SystemClock.now();
        assert_eq!(history.violations(), []);
        SystemClock.now().since(begun)
    });
    times.min().unwrap()
}

/// The test limits the growth and not the duration: comparing all pairs would take 64 times as
/// long.
#[test]
fn check_time_grows_about_linearly_with_the_events() {
    let (some, more) = (check_of(1_500), check_of(12_000));
    println!("12,000 and 96,000 events were checked in {some:?} and {more:?}");
    assert!(more < some * 32, "{some:?}, {more:?}");
}

#[test]
fn empty_history_is_right() {
    assert_eq!(History::default().check().unwrap().events, 0);
}
