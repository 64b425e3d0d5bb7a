//! Histories in files: they read back as they were written, also after a process was killed.

use super::history::{Entry, Event, History, HistoryFile, Op, OverriddenBy, Phase, Process};

/// Returns one event of each kind.
fn one_of_each() -> Vec<Event> {
    let mut app = Process::new("app-1.0");
    let log = Op::Log {
        log: "r.log".to_owned(),
        entries: vec![Entry {
            token: 1000,
            value: "a".to_owned(),
        }],
    };
    let run = Op::Run {
        seed: 7,
        clock_bound_ns: 5,
        clock_rate_ppm: 0,
        exclusion: false,
        loss_told_within_ns: Some(6),
    };
    vec![
        app.info(1, run),
        app.invoke(2, Op::acquire("r")),
        app.ok(3, 2, Op::granted("r", "l.0", 1000, 90)),
        app.invoke(4, Op::renew("l.0")),
        app.unknown(5, 3, Op::renew("l.0")),
        app.invoke(6, Op::write("r", "l.0", 1000, "a")),
        app.fail(7, 4, Op::write("r", "l.0", 1000, "a")),
        app.info(8, Op::decided("r", 1000, "a", false)),
        app.info(9, Op::lost("l.0")),
        app.info(10, Op::believes_end("l.0")),
        app.invoke(11, Op::release("l.0")),
        app.info(12, Op::served_by("sidecar-1")),
        app.info(13, Op::stream_end("l.0")),
        app.invoke(14, Op::stop("sidecar-1")),
        app.info(
            15,
            Op::ended("r", vec!["l".to_owned()], OverriddenBy::Delete),
        ),
        app.info(16, Op::clock_leaps("sidecar-1")),
        app.info(17, Op::overridden(Some("r"), OverriddenBy::Force)),
        app.info(18, Op::overridden(None, OverriddenBy::RestoreWithoutBump)),
        app.invoke(19, Op::acquire("s")),
        app.invoke(20, Op::append("r.log", "l.0", 1000, "a")),
        app.info(21, log),
        app.invoke(22, Op::read("r")),
        app.ok(23, 19, Op::saw("r", 1000, "a")),
    ]
}

#[test]
fn written_events_are_read_in_order_of_time() {
    let directory = tempfile::tempdir().unwrap();
    let (mut first, mut second) = (Process::new("a"), Process::new("b"));
    let a = HistoryFile::open(&directory.path().join("a.jsonl")).unwrap();
    let b = HistoryFile::open(&directory.path().join("b.jsonl")).unwrap();
    for event in one_of_each() {
        a.append(&event).unwrap();
    }
    a.append(&first.info(30, Op::lost("x"))).unwrap();
    b.append(&second.info(26, Op::lost("y"))).unwrap();
    b.append(&second.invoke(30, Op::renew("y"))).unwrap();
    let history = History::read_directory(directory.path()).unwrap();
    assert_eq!(history.events[..23], one_of_each());
    let last: Vec<_> = history.events[23..].iter().map(|event| event.at).collect();
    assert_eq!(last, [26, 30, 30]);
    // The order of two files within one nanosecond is unknown.
    assert_eq!(history.events[24].phase, Phase::Invoke);
    assert_eq!(history.place(24), "b.jsonl:2");
    assert_eq!(history.torn, 0);
}

/// A test of Porcupine's side reads the same file.
#[test]
fn lines_read_as_in_the_file_that_is_committed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("one-of-each.jsonl");
    History::of(one_of_each()).write(&path).unwrap();
    let written = std::fs::read_to_string(path).unwrap();
    assert_eq!(written, include_str!("one-of-each.jsonl"));
}

#[test]
fn last_line_of_a_killed_process_may_be_torn() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.jsonl");
    let mut text = serde_json::to_string(&one_of_each()[1]).unwrap();
    text.push_str("\n{\"at\":3,\"proc");
    std::fs::write(&path, &text).unwrap();
    let history = History::read(std::slice::from_ref(&path)).unwrap();
    assert_eq!((history.events.len(), history.torn), (1, 1));
    text.push('\n');
    std::fs::write(&path, &text).unwrap();
    let refused = History::read(&[path]).unwrap_err();
    assert!(
        format!("{refused:#}").contains("a.jsonl:2 is no event"),
        "{refused:#}"
    );
}
