//! Two amounts of a resource, one per line. They are accepted exactly where Kubernetes accepts
//! them, and compared as Kubernetes does.
//!
//! The grammar and the values are implemented a second time, in floating point. That is exact
//! enough to tell apart amounts that are not nearly the same.

use std::cmp::Ordering;

use leasehold::webhook::Quantity;

use super::{Outcome, Target, no_seeds};

/// No amount needs more digits. With more of them our code may refuse what Kubernetes accepts.
const DIGITS_MAX: usize = 15;

pub(crate) const TARGET: Target = Target {
    name: "quantity",
    run: |input| target(input, Quantity::partial_cmp),
    broken: |input| target(input, by_their_texts),
    seeds: no_seeds,
    words: &[
        "m",
        "k",
        "Ki",
        "M",
        "Mi",
        "G",
        "Gi",
        "T",
        "Ti",
        "P",
        "Pi",
        "E",
        "Ei",
        "e",
        "e3",
        "e-3",
        "E+2",
        "n",
        "u",
        ".",
        "+",
        "-",
        "0",
        "1",
        "64",
        "100",
        "0.5",
        "999999999",
    ],
    tries: 20_000,
};

type Compare = fn(&Quantity, &Quantity) -> Option<Ordering>;

fn target(input: &[u8], compare: Compare) -> Outcome {
    let text = String::from_utf8_lossy(input);
    let (one, other) = text.split_once('\n').unwrap_or((&text, "1"));
    let (Some(first), Some(second)) = (read(one), read(other)) else {
        return Outcome::Refused(format!(
            "{} {}",
            value(one).is_some(),
            value(other).is_some()
        ));
    };
    let (a, b) = (value(one).unwrap(), value(other).unwrap());
    // The tolerance covers rounding up to billionths, and floating point.
    let order = if (a - b).abs() > 1e-8 + 1e-9 * a.max(b) {
        a.partial_cmp(&b)
    } else {
        None
    };
    if let Some(order) = order {
        assert_eq!(
            compare(&first, &second),
            Some(order),
            "{one:?} and {other:?}"
        );
    }
    assert_eq!(first.to_string(), one, "the text is kept");
    // Not compared by value: floating point is zero where Kubernetes rounds up.
    let is_zero = !number_of(one).contains(|c: char| ('1'..='9').contains(&c));
    assert_eq!(first.is_zero(), is_zero, "{one:?}");
    Outcome::Taken(format!(
        "{order:?}, {}, {}",
        unit(one).unwrap_or("?"),
        first.is_zero()
    ))
}

/// Parses an amount, and compares the result with the grammar.
fn read(text: &str) -> Option<Quantity> {
    let read = Quantity::parse(text);
    match (&read, value(text)) {
        (Some(_), None) => panic!("{text:?} is not an amount in Kubernetes, and was accepted"),
        (None, Some(value)) => {
            let digits = text.bytes().filter(u8::is_ascii_digit).count();
            let is_usual = digits <= DIGITS_MAX && (1e-9..1e18).contains(&value);
            assert!(
                !is_usual,
                "{text:?} is {value} for Kubernetes, and was refused"
            );
        }
        _ => {}
    }
    read
}

/// Returns the text after the number.
fn unit(text: &str) -> Option<&str> {
    let at = text.find(|c: char| c.is_ascii_alphabetic())?;
    text.get(at..=at)
}

fn unsigned(text: &str) -> &str {
    text.strip_prefix('+').unwrap_or(text)
}

/// Returns the text before the unit.
fn number_of(text: &str) -> &str {
    let unsigned = unsigned(text);
    let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.');
    &unsigned[..end.unwrap_or(unsigned.len())]
}

/// Returns an amount by the grammar of Kubernetes, or `None` if it is invalid or negative.
fn value(text: &str) -> Option<f64> {
    let number = number_of(text);
    let suffix = &unsigned(text)[number.len()..];
    let is_number = number.bytes().any(|b| b.is_ascii_digit()) && number.matches('.').count() <= 1;
    let number: f64 = number.parse().ok().filter(|_| is_number)?;
    let decimal = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
    let binary = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    if let Some(place) = decimal.iter().position(|unit| *unit == suffix) {
        return Some(number * 1000_f64.powi(i32::try_from(place).unwrap() - 3));
    }
    if let Some(place) = binary.iter().position(|unit| *unit == suffix) {
        return Some(number * 1024_f64.powi(i32::try_from(place).unwrap() + 1));
    }
    let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    Some(number * 10_f64.powi(exponent))
}

/// Planted fault: compares amounts as texts.
fn by_their_texts(one: &Quantity, other: &Quantity) -> Option<Ordering> {
    one.to_string().partial_cmp(&other.to_string())
}
