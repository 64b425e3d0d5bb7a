//! Tells states apart: two states are one if their debug texts are, but for numbers that mean nothing.
//!
//! Moments are written as distances from now, to the tenth of a millisecond: a run's past length does not
//! matter. What lies far back is one. Names that only tell calls apart are numbered as they appear.

use std::collections::BTreeMap;
use std::fmt::{Debug, Write};
use std::hash::{DefaultHasher, Hasher};
use std::time::Duration;

use crate::protocol::time::Moment;

/// No run lasts so many seconds. What is due later is one.
const NEVER: u64 = 10_000;
/// Nothing is decided by how much longer ago something was than so many seconds.
const LONG_AGO: u64 = 140;

/// The names that are numbered, each with what opens its number.
const NUMBERED: [&str; 4] = ["OpId(", "CallId(", "CallerId(", "WatchId("];

/// Returns a fingerprint of a value, at a time of the clock of its moments.
pub(super) fn fingerprint(value: &impl Debug, now: Moment) -> u64 {
    thread_local! {
        static TEXT: std::cell::RefCell<String> = const { std::cell::RefCell::new(String::new()) };
    }
    TEXT.with_borrow_mut(|text| {
        text.clear();
        write!(text, "{value:?}").expect("a string takes any text");
        let mut hasher = DefaultHasher::new();
        hash_text(text, now, &mut hasher);
        hasher.finish()
    })
}

fn hash_text(text: &str, now: Moment, hasher: &mut impl Hasher) {
    let mut names: BTreeMap<(usize, &str), u64> = BTreeMap::new();
    let mut rest = text;
    while let Some((before, kind, number, after)) = next_number(rest) {
        hasher.write(before.as_bytes());
        match kind {
            Kind::Moment => hasher.write_i64(distance(number, now)),
            Kind::Last => {}
            Kind::Name(kind) => {
                let next = names.len() as u64;
                hasher.write_u64(*names.entry((kind, number)).or_insert(next));
            }
        }
        rest = after;
    }
    hasher.write(rest.as_bytes());
}

enum Kind {
    Moment,
    /// A counter of names.
    Last,
    Name(usize),
}

/// Returns the next number of a text that is not to be taken literally, with what is before and after it.
fn next_number(text: &str) -> Option<(&str, Kind, &str, &str)> {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        // Each of them has one of these signs before its number.
        let sign = bytes[at..]
            .iter()
            .position(|byte| matches!(byte, b'(' | b':'))?;
        at += sign + 1;
        let before = &text[..at];
        let (kind, end) = if before.ends_with("Moment(") {
            (Kind::Moment, ')')
        } else if bytes[at - 1] == b':' {
            let word = before
                .rfind(' ')
                .map_or(before, |space| &before[space + 1..]);
            if !matches!(word, "last_op:" | "last_id:" | "last_call:") {
                continue;
            }
            (Kind::Last, ',')
        } else if let Some(name) = NUMBERED.iter().position(|name| before.ends_with(name)) {
            (Kind::Name(name), ')')
        } else {
            continue;
        };
        let length = text[at..].find(end)?;
        let (number, after) = text[at..].split_at(length);
        return Some((before, kind, number, after));
    }
    None
}

/// Returns how far a moment, as its debug text has it, lies from now: in tenths of milliseconds.
fn distance(written: &str, now: Moment) -> i64 {
    let moment = parse(written);
    let now = now.elapsed_since_boot();
    if moment.saturating_sub(now) > Duration::from_secs(NEVER) {
        return i64::MAX;
    }
    let tenths = |time: Duration| {
        let tenths = i64::try_from((time.as_micros() + 50) / 100);
        tenths.expect("no clock runs for so long")
    };
    (tenths(moment) - tenths(now)).max(-10_000 * LONG_AGO.cast_signed())
}

/// Reads the debug text of a duration.
fn parse(written: &str) -> Duration {
    let digits = written.trim_end_matches(|sign: char| !sign.is_ascii_digit());
    let unit = match &written[digits.len()..] {
        "s" => 9,
        "ms" => 6,
        "µs" => 3,
        "ns" => 0,
        unit => panic!("{written} has the unit {unit}"),
    };
    let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
    let nanos = format!("{whole}{part}");
    let nanos: u128 = nanos.parse().expect("digits");
    let scale = unit - i32::try_from(part.len()).expect("nine digits at most");
    let nanos = nanos * 10_u128.pow(scale.cast_unsigned());
    Duration::from_nanos_u128(nanos)
}

#[test]
fn states_differ_by_more_than_names_and_the_time() {
    use crate::agent::core::effect::CallId;

    let state = |now: u64, until: u64, calls: [u64; 2]| {
        let [first, second] = calls.map(CallId);
        let now = Moment::since_boot(Duration::from_millis(now));
        let until = now.after(Duration::from_millis(until));
        fingerprint(&(until, first, second, first), now)
    };
    assert_eq!(state(1_000, 500, [3, 4]), state(70_123, 500, [9, 8]));
    assert_ne!(state(1_000, 500, [3, 4]), state(1_000, 501, [3, 4]));
    assert_ne!(state(1_000, 500, [3, 4]), state(1_000, 500, [3, 3]));
    assert_eq!(parse("1000.5s"), Duration::from_millis(1_000_500));
    assert_eq!(parse("0ns"), Duration::ZERO);
    assert_eq!(parse(&format!("{:?}", Duration::MAX)), Duration::MAX);
}
