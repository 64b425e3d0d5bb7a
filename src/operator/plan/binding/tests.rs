//! Tests the plan for the binding of each kind of namespace, and when no action is planned.

use super::*;
use crate::operator::key::Key;
use crate::operator::observation::Observation;
use crate::operator::plan;
use crate::operator::tests::{at, now, object};
use crate::store::fleet::{FeedEvent, Object, ObjectRef};

fn of(subjects: &[Subject]) -> BTreeSet<Subject> {
    subjects.iter().cloned().collect()
}

fn ours(subjects: &[Subject]) -> Binding {
    Binding {
        is_ours: true,
        binds_role: true,
        subjects: of(subjects),
    }
}

#[test]
fn binding_is_created_repaired_deleted_or_left_alone() {
    let all = || Some(of(&[Subject::AllAccounts]));
    let none = || Some(of(&[]));
    let right = &ours(&[Subject::AllAccounts]);
    let edited = &ours(&[Subject::AllAccounts, Subject::Other]);
    let empty = &ours(&[]);
    let foreign = &Binding {
        is_ours: false,
        ..right.clone()
    };
    let other = &Binding {
        binds_role: false,
        ..right.clone()
    };
    let create = || Change::Create(of(&[Subject::AllAccounts]));
    let update = || Change::Update(of(&[Subject::AllAccounts]));
    let table = [
        ("labelled", None, all(), false, create()),
        ("labelled, with sessions", None, all(), true, create()),
        ("no account labelled", None, none(), false, Change::Nothing),
        ("not labelled", None, None, true, Change::Nothing),
        ("as it should be", Some(right), all(), true, Change::Nothing),
        ("one was added", Some(edited), all(), true, update()),
        ("all were removed", Some(empty), all(), false, update()),
        ("of another role", Some(other), all(), true, Change::Delete),
        ("no account left", Some(right), none(), true, Change::Delete),
        (
            "in use without label",
            Some(right),
            None,
            true,
            Change::Nothing,
        ),
        ("edited, in use", Some(edited), None, true, Change::Nothing),
        ("no session left", Some(right), None, false, Change::Retire),
        ("foreign", Some(foreign), all(), false, Change::Nothing),
        (
            "foreign, no label",
            Some(foreign),
            None,
            false,
            Change::Nothing,
        ),
    ];
    for (what, found, wanted, is_in_use, expected) in table {
        assert_eq!(decide(found, wanted, is_in_use), expected, "{what}");
    }
}

fn placed<T>(namespace: &str, name: &str, value: T, is_deleted: bool) -> FeedEvent<Object<T>> {
    FeedEvent::Applied(Box::new(Object {
        is_deleted,
        ..object(namespace, name, 1, value)
    }))
}

fn action(view: &View, bind_sidecars: BindSidecars) -> Option<Action> {
    step_at(view, bind_sidecars, 0).action
}

fn step_at(view: &View, bind_sidecars: BindSidecars, seconds: u64) -> Plan {
    let rules = Rules {
        bind_sidecars,
        ..plan::tests::rules()
    };
    plan::plan(view, &rules, &Key::Binding("n".into()), now(seconds))
}

/// Completes the list of sessions, without which nothing is planned.
fn all_sessions_told(view: &mut View) {
    view.observe_session(FeedEvent::ListDone, at(0));
}

#[test]
fn unlabelled_namespace_keeps_its_binding_while_sidecars_run() {
    let mut view = View::default();
    view.observe_namespace(FeedEvent::ListDone);
    let binding = ours(&[Subject::AllAccounts]);
    view.observe_binding(placed("n", "leasehold-sidecar", binding, false));
    view.observe_binding(FeedEvent::ListDone);
    let step = |view: &View, seconds| step_at(view, BindSidecars::Namespace, seconds);
    assert!(step(&view, 0).action.is_none(), "sessions may exist");
    all_sessions_told(&mut view);
    let is_look = |step: Plan| matches!(step.action, Some(Action::FindSidecars(_)));
    assert!(is_look(step(&view, 0)));
    view.observe(Observation::Sidecars("n".into(), true), now(1));
    let rests = step(&view, 2);
    assert!(rests.action.is_none());
    assert_eq!(rests.requeue_at, Some(at(61)));
    assert!(is_look(step(&view, 61)), "the positive read is too old");
    view.observe(Observation::Sidecars("n".into(), false), now(62));
    assert!(is_look(step(&view, 67)), "the negative read is too old");
    let deletes = step(&view, 63).action;
    assert!(matches!(deletes, Some(Action::DeleteBinding(_))));
    view.observe_binding(FeedEvent::Deleted(ObjectRef {
        namespace: "n".into(),
        name: "leasehold-sidecar".into(),
    }));
    assert_eq!(view.labelled().sidecars_of(&"n".into()), None);
}

#[test]
fn no_binding_is_planned_before_its_inputs_are_listed() {
    let mut view = View::default();
    all_sessions_told(&mut view);
    view.observe_namespace(placed("", "n", (), false));
    view.observe_namespace(FeedEvent::ListDone);
    let may_have_one = action(&view, BindSidecars::Namespace);
    assert!(may_have_one.is_none());
    view.observe_binding(FeedEvent::ListDone);
    assert!(action(&view, BindSidecars::None).is_none());
    assert!(action(&view, BindSidecars::Namespace).is_some());
    view.observe_account(placed("n", "a", (), false));
    let may_be_more = action(&view, BindSidecars::ServiceAccount);
    assert!(may_be_more.is_none());
    view.take_changed();
    view.observe_account(FeedEvent::ListDone);
    assert!(action(&view, BindSidecars::ServiceAccount).is_some());
    assert!(view.take_changed().contains(&Key::Binding("n".into())));
}

#[test]
fn object_being_deleted_is_left_alone() {
    for (namespace_ends, binding_ends) in [(true, false), (false, true), (false, false)] {
        let mut view = View::default();
        all_sessions_told(&mut view);
        view.observe_namespace(placed("", "n", (), namespace_ends));
        view.observe_namespace(FeedEvent::ListDone);
        view.observe_binding(placed("n", "leasehold-sidecar", ours(&[]), binding_ends));
        view.observe_binding(FeedEvent::ListDone);
        let is_left_alone = action(&view, BindSidecars::Namespace).is_none();
        assert_eq!(is_left_alone, namespace_ends || binding_ends);
    }
}
