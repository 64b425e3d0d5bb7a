//! Impossible histories: each check finds its own violation.

use super::builder::{End, HistoryBuilder};
use super::history::{History, Op, OverriddenBy, Process};

/// Asserts exactly these violations.
fn is_wrong(builder: &HistoryBuilder, words: &[&str]) {
    let violations = builder.violations();
    assert_eq!(violations.len(), words.len(), "{violations:#?}");
    for (violation, words) in violations.iter().zip(words) {
        assert!(violation.contains(words), "{violation}: no {words:?}");
    }
}

#[test]
fn two_apps_believe_at_one_time() {
    let mut builder = HistoryBuilder::default();
    builder
        .acquire("a", 0..10, 1000, 100)
        .acquire("b", 20..99, 2000, 200);
    is_wrong(
        &builder,
        &["two apps believed to have r at one time, for 1ms"],
    );
    let shown = format!("{:#}", builder.history().check().unwrap_err());
    assert!(
        shown.contains(r#"#2 {"at":10000000,"process":"a""#),
        "{shown}"
    );
}

#[test]
fn overlap_beyond_the_clock_tolerance_is_detected() {
    let mut builder = HistoryBuilder::default();
    builder.claims(10, true, None);
    builder
        .acquire("a", 0..10, 1000, 100)
        .acquire("b", 20..89, 2000, 200);
    is_wrong(&builder, &["for 11ms"]);
}

/// The longer belief still counts after a shorter one of another lease.
#[test]
fn nested_beliefs_are_found() {
    let mut builder = HistoryBuilder::default();
    builder
        .acquire("a", 0..10, 1000, 1_000)
        .acquire("b", 20..30, 2000, 40);
    builder
        .acquire("c", 100..110, 3000, 120)
        .renew("a", 111..112, 1000, 1_000);
    is_wrong(&builder, &["after token 3000 had", "for 10ms", "for 10ms"]);
}

/// The renewal extended the belief, and the release was requested only after the other app had the lock.
#[test]
fn extended_belief_counts_to_its_end() {
    let mut builder = HistoryBuilder::default();
    builder
        .acquire("a", 0..10, 1000, 50)
        .renew("a", 20..30, 1000, 100);
    builder
        .acquire("b", 5..90, 2000, 200)
        .release("a", 95..96, 1000);
    is_wrong(&builder, &["for 5ms"]);
}

/// A force release of the first grant excuses nothing between the two later ones.
#[test]
fn grants_after_an_override_still_exclude_each_other() {
    let mut builder = HistoryBuilder::default();
    builder
        .acquire("a", 0..10, 1000, 100)
        .overridden(20, OverriddenBy::Force);
    builder
        .acquire("b", 30..40, 2000, 100)
        .acquire("c", 50..60, 3000, 100);
    is_wrong(&builder, &["for 40ms"]);
}

/// Neither another grant, nor one that was not ended in fact.
#[test]
fn override_excuses_only_the_grants_it_ended() {
    for (grant, end) in [("other", End::Ok), ("1000", End::Fail)] {
        let mut builder = HistoryBuilder::default();
        builder
            .acquire("a", 0..10, 1000, 100)
            .ends(20..25, grant, end);
        builder.acquire("b", 30..40, 2000, 100);
        is_wrong(&builder, &["for 60ms"]);
    }
}

#[test]
fn clock_jump_of_another_sidecar_excuses_nothing() {
    let mut builder = HistoryBuilder::default();
    builder.info("a", 0, Op::served_by("s"));
    builder.acquire("a", 0..10, 1000, 100);
    builder
        .info("person", 20, Op::clock_leaps("t"))
        .acquire("b", 30..40, 2000, 100);
    is_wrong(&builder, &["for 60ms"]);
}

/// A jump before the first answer or after the last one excuses no shorter validity, and a jump
/// excuses only the next answer.
#[test]
fn clock_jump_excuses_only_the_first_answer_after_it() {
    for leaps in [5, 45] {
        let mut builder = HistoryBuilder::default();
        builder.info("a", 0, Op::served_by("s"));
        builder.info("person", leaps, Op::clock_leaps("s"));
        builder.acquire("a", 10..20, 1000, 100);
        builder.renew("a", 30..31, 1000, 50);
        builder.renew("a", 40..41, 1000, 50);
        is_wrong(&builder, &["told 50ms less", "told 50ms less"]);
    }
    let mut builder = HistoryBuilder::default();
    builder.info("a", 0, Op::served_by("s"));
    builder.acquire("a", 1..10, 1000, 100);
    builder.info("person", 20, Op::clock_leaps("s"));
    builder.renew("a", 30..31, 1000, 70);
    builder.renew("a", 40..41, 1000, 60);
    is_wrong(&builder, &["told 10ms less"]);
}

#[test]
fn an_override_of_another_lock_excuses_nothing() {
    let mut builder = HistoryBuilder::default();
    builder
        .acquire("a", 0..10, 1000, 100)
        .acquire("b", 20..90, 2000, 200);
    builder.info(
        "person",
        50,
        Op::overridden(Some("other"), OverriddenBy::Delete),
    );
    is_wrong(&builder, &["for 10ms"]);
}

/// No override happened, so a kept grant has ended when another pod has the lock.
#[test]
fn later_lease_of_an_ended_grant_is_wrong() {
    let mut builder = HistoryBuilder::default();
    builder
        .acquire_lease("a", 0..10, "g.0", 1000, 20)
        .acquire("b", 40..50, 2000, 100)
        .acquire_lease("a", 60..70, "g.1", 1001, 100);
    is_wrong(
        &builder,
        &["token 1001 of r was asked for after", "for 30ms"],
    );
}

#[test]
fn token_is_granted_twice() {
    let mut builder = HistoryBuilder::default();
    builder
        .acquire("a", 0..10, 1000, 20)
        .acquire_lease("b", 5..30, "other", 1000, 40);
    is_wrong(&builder, &["token 1000 of r was given twice"]);
}

/// This also holds across an override: tokens increase over everything.
#[test]
fn a_token_does_not_rise() {
    let mut builder = HistoryBuilder::default();
    builder
        .acquire("a", 0..10, 2000, 20)
        .overridden(25, OverriddenBy::Delete);
    builder.acquire("b", 30..40, 1000, 50);
    is_wrong(
        &builder,
        &["token 1000 of r was asked for after token 2000"],
    );
}

#[test]
fn a_lease_changes_its_token() {
    let mut builder = HistoryBuilder::default();
    builder
        .acquire_lease("a", 0..10, "l", 1000, 20)
        .acquire_lease("a", 11..12, "l", 1001, 20);
    is_wrong(&builder, &["lease l changed"]);
}

#[test]
fn an_older_token_is_accepted_after_a_newer_one() {
    let mut builder = HistoryBuilder::default();
    builder
        .acquire("a", 0..10, 1000, 100)
        .acquire("b", 105..110, 2000, 200);
    builder
        .write("b", 110..120, 2000, End::Ok)
        .write("a", 121..130, 1000, End::Ok);
    is_wrong(&builder, &["r went from token 2000 back to token 1000"]);
    let mut builder = HistoryBuilder::default();
    builder
        .acquire("a", 0..10, 1000, 100)
        .acquire("b", 105..110, 2000, 200);
    builder
        .write("b", 110..120, 2000, End::Ok)
        .read("c", 121..130, 1000);
    is_wrong(&builder, &["r went from token 2000 back to token 1000"]);
}

/// The two writes overlap, so their apps cannot know the order. The register does.
#[test]
fn a_register_takes_an_older_token_after_a_newer_one() {
    let mut builder = HistoryBuilder::default();
    builder
        .acquire("a", 0..10, 1000, 100)
        .acquire("b", 105..110, 2000, 200);
    builder
        .write("a", 90..140, 1000, End::Ok)
        .write("b", 110..120, 2000, End::Ok);
    builder
        .decided(115, 2000, ("b", 110), true)
        .decided(130, 1000, ("a", 90), true);
    is_wrong(&builder, &["r accepted token 1000; the newest was 2000"]);
}

#[test]
fn a_register_refuses_the_newest_token() {
    let mut builder = HistoryBuilder::default();
    builder
        .acquire("a", 0..10, 1000, 20)
        .write("a", 30..40, 1000, End::Fail);
    builder.decided(35, 1000, ("a", 30), false);
    is_wrong(&builder, &["r refused token 1000; the newest was none"]);
}

#[test]
fn app_has_an_answer_the_register_never_gave() {
    let mut builder = HistoryBuilder::default();
    builder
        .acquire("a", 0..10, 1000, 100)
        .write("a", 20..30, 1000, End::Ok);
    builder.decided(35, 1000, ("a", 20), true);
    is_wrong(&builder, &["r never gave the answer"]);
}

#[test]
fn rightful_holder_is_refused() {
    let mut builder = HistoryBuilder::default();
    builder
        .acquire("a", 0..10, 1000, 100)
        .acquire("b", 5..20, 2000, 20);
    builder
        .write("b", 20..30, 2000, End::Ok)
        .write("a", 40..50, 1000, End::Fail);
    is_wrong(
        &builder,
        &["r refused token 1000 while its app had every right"],
    );
}

#[test]
fn a_lease_is_confirmed_after_its_end() {
    let mut builder = HistoryBuilder::default();
    builder
        .acquire("a", 0..10, 1000, 100)
        .lost("a", 50, 1000)
        .renew("a", 60..70, 1000, 150);
    is_wrong(
        &builder,
        &["lease 1000 was confirmed after its app had been told"],
    );
    let mut builder = HistoryBuilder::default();
    builder
        .acquire("a", 0..10, 1000, 100)
        .release("a", 40..50, 1000)
        .renew("a", 60..70, 1000, 150);
    is_wrong(
        &builder,
        &["lease 1000 was confirmed after its app had been told"],
    );
}

/// The validity is zero, so that beliefs do not overlap.
#[test]
fn a_lease_is_confirmed_after_anothers_token() {
    let mut builder = HistoryBuilder::default();
    builder
        .acquire("a", 0..10, 1000, 40)
        .acquire("b", 5..50, 2000, 60);
    builder.renew("a", 61..70, 1000, 70);
    is_wrong(
        &builder,
        &["lease 1000 (token 1000) was confirmed after token 2000"],
    );
    // An event of a stream, whose deadline is later than the newer token.
    let mut builder = HistoryBuilder::default();
    builder
        .acquire("a", 0..10, 1000, 40)
        .acquire("b", 5..50, 2000, 50)
        .info("a", 61, Op::renewed("1000", 55_000_000));
    is_wrong(
        &builder,
        &["lease 1000 (token 1000) was confirmed after token 2000"],
    );
}

#[test]
fn validity_of_a_lease_shrinks() {
    let mut builder = HistoryBuilder::default();
    builder
        .acquire("a", 0..10, 1000, 100)
        .renew("a", 20..21, 1000, 90);
    is_wrong(&builder, &["lease 1000 was told 10ms less than before"]);
}

#[test]
fn log_misses_repeats_or_invents_an_entry() {
    for (entries, words) in [
        (
            &[("b", 2000)][..],
            &["r.log has an entry 0 times: a-1000"][..],
        ),
        (
            &[("a", 1000), ("a", 1000), ("b", 2000)],
            &["r.log has an entry 2 times: a-1000"],
        ),
        (
            &[("b", 2000), ("a", 1000)],
            &["r.log goes from token 2000 back to token 1000"],
        ),
        (
            &[("a", 1000), ("b", 2000), ("c", 3000)],
            &["r.log has an entry 1 times: c-3000"],
        ),
        (
            &[("a", 1000), ("b", 2000), ("d", 4000)],
            &["r.log has an entry that nobody appended: d-4000"],
        ),
    ] {
        let mut builder = HistoryBuilder::default();
        builder
            .append("a", 0..10, 1000, End::Ok)
            .append("b", 20..30, 2000, End::Ok)
            .append("c", 40..50, 3000, End::Fail)
            .log(80, entries);
        is_wrong(&builder, words);
    }
}

/// An app with a newer token has read the log's length with it.
#[test]
fn rightful_entry_is_refused() {
    let mut builder = HistoryBuilder::default();
    builder
        .acquire("a", 0..10, 1000, 100)
        .append("a", 40..50, 1000, End::Fail);
    is_wrong(&builder, &["r.log refused token 1000 while its app"]);
}

#[test]
fn loss_is_notified_too_late() {
    let mut builder = HistoryBuilder::default();
    builder
        .claims(0, true, Some(5))
        .acquire("a", 0..10, 1000, 100)
        .lost("a", 106, 1000);
    is_wrong(&builder, &["heard what became of it 1ms too late"]);
}

/// In between it was notified of neither a loss nor an extension.
#[test]
fn extension_is_notified_too_late() {
    let mut builder = HistoryBuilder::default();
    builder
        .claims(0, true, Some(5))
        .acquire("a", 0..10, 1000, 100)
        .renew("a", 90..106, 1000, 200)
        .release("a", 190..191, 1000);
    is_wrong(&builder, &["heard what became of it 1ms too late"]);
}

#[test]
fn loss_is_never_notified() {
    let mut builder = HistoryBuilder::default();
    builder
        .claims(0, true, Some(5))
        .acquire("a", 0..10, 1000, 100)
        .release("a", 106..107, 1000);
    is_wrong(&builder, &["nobody told the app of lease 1000"]);
}

/// They ran for long enough after the stop, and another process's stop does not count.
#[test]
fn a_stop_excuses_no_more_than_its_time() {
    for (who, time, end) in [
        ("s", 90..120, End::Ok),
        ("a", 40..120, End::Ok),
        ("b", 90..1_000, End::Never),
        ("t", 90..1_000, End::Never),
    ] {
        let mut builder = HistoryBuilder::default();
        builder.claims(0, true, Some(50));
        builder
            .info("a", 0, Op::served_by("s"))
            .info("b", 0, Op::served_by("t"))
            .acquire("a", 0..10, 1000, 100)
            .stopped(who, time, end)
            .lost("a", 171, 1000);
        let violations = builder.violations();
        let is_late = violations.iter().all(|it| it.contains("too late"));
        assert!(violations.len() == 1 && is_late, "{who}: {violations:?}");
    }
}

#[test]
fn malformed_history_is_reported() {
    let mut app = Process::new("a");
    let begun = app.invoke(1, Op::acquire("r"));
    let of_nothing = app.ok(2, 7, Op::granted("r", "l", 1, 9));
    let says_nothing = app.ok(3, 1, Op::acquire("r"));
    let no_info = app.info(4, Op::acquire("r"));
    let history = History::of(vec![
        begun.clone(),
        begun,
        of_nothing,
        says_nothing,
        no_info,
    ]);
    let violations = history.violations();
    let words: Vec<_> = violations.iter().map(|it| it.what.as_str()).collect();
    assert_eq!(
        words,
        [
            "an operation begins twice",
            "an outcome of nothing that began",
            "an `ok` that does not say of what, until when",
            "an operation cannot be `info`",
        ]
    );
}
