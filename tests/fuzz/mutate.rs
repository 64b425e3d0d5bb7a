//! Generates inputs from inputs: it changes the text, and the values of any JSON in it, because a
//! changed text is mostly invalid JSON.
//!
//! The same seed, corpus and findings give the same inputs.

use fastrand::Rng;
use serde_json::{Map, Number, Value};

/// The maximum size of an input.
const INPUT_MAX_BYTES: usize = 24 * 1024;
/// The number of newest findings, which are chosen as often as all others together.
const NEWEST: usize = 12;
/// Texts to insert into strings and inputs, besides a target's own words.
const TEXTS: &[&str] = &[
    "",
    " ",
    "a",
    "-",
    ".",
    "/",
    "%2e%2e%2f",
    "%00",
    "\u{0}",
    "\u{7f}",
    "\u{202e}",
    "\u{feff}",
    "é",
    "日本",
    "\u{1f600}",
    "e\u{301}",
    "\u{3164}",
    "\n",
    "\r\n",
    "\\",
    "\"",
    "{",
    "}",
    "[",
    "~1",
    "~0",
    "null",
    "NaN",
    "1e400",
    "0x10",
    "-0",
    "+1",
    "18446744073709551616",
    "9007199254740993",
    "2026-01-01T00:00:00Z",
    "9999-12-31T23:59:60Z",
    "-009999-01-01T00:00:00Z",
    "$(A)",
    "${A}",
    "'",
    ";",
    ",",
    "=",
    ":",
];
const NUMBERS: &[i64] = &[
    0,
    1,
    -1,
    2,
    3,
    7,
    119,
    120,
    121,
    240,
    255,
    256,
    999,
    1_000,
    3_599,
    3_600,
    3_601,
    65_535,
    65_536,
    86_400,
    2_147_483_647,
    -2_147_483_648,
    4_294_967_296,
    9_007_199_254_740_991,
    9_007_199_254_740_992,
    i64::MAX,
    i64::MIN,
];

/// Generates one input after the other.
pub(crate) struct Mutator<'a> {
    rng: Rng,
    words: &'a [&'a str],
    /// The main source of inputs: the corpus, and inputs that were accepted.
    pool: Vec<Vec<u8>>,
    /// Inputs that were refused in a new way. Small changes of them may find further refusals, but
    /// no code after the refusal.
    refused: Vec<Vec<u8>>,
}

impl<'a> Mutator<'a> {
    pub(crate) fn new(seed: u64, words: &'a [&'a str], pool: Vec<Vec<u8>>) -> Self {
        Self {
            rng: Rng::with_seed(seed),
            words,
            pool,
            refused: Vec::new(),
        }
    }

    /// Adds an input to generate others from.
    pub(crate) fn add(&mut self, input: Vec<u8>, is_taken: bool) {
        let pool = if is_taken {
            &mut self.pool
        } else {
            &mut self.refused
        };
        pool.push(input);
    }

    /// Returns an input of the pool, changed at least once.
    pub(crate) fn next(&mut self) -> Vec<u8> {
        let mut input = self.one_of_the_pool();
        loop {
            if self.rng.u8(..) < 170 {
                self.change_json(&mut input);
            } else {
                self.change_text(&mut input);
            }
            input.truncate(INPUT_MAX_BYTES);
            if self.rng.u8(..) < 150 {
                return input;
            }
        }
    }

    fn one_of_the_pool(&mut self) -> Vec<u8> {
        let is_refused = !self.refused.is_empty() && self.rng.u8(..10) == 0;
        let pool = if is_refused {
            &self.refused
        } else {
            &self.pool
        };
        // The newest inputs have been mutated less often so far.
        let newest = if self.rng.bool() {
            pool.len().saturating_sub(NEWEST)
        } else {
            0
        };
        self.rng
            .choice(&pool[newest..])
            .cloned()
            .unwrap_or_default()
    }

    fn text(&mut self) -> String {
        match self.rng.u8(..8) {
            0 => {
                let unit = *self.rng.choice(TEXTS).unwrap_or(&"a");
                unit.repeat(self.rng.usize(1..600))
            }
            1 => self.number().to_string(),
            2..=4 if !self.words.is_empty() => self.word().to_owned(),
            _ => (*self.rng.choice(TEXTS).unwrap_or(&"a")).to_owned(),
        }
    }

    fn word(&mut self) -> &'a str {
        self.rng.choice(self.words).copied().unwrap_or_default()
    }

    fn number(&mut self) -> Number {
        match self.rng.u8(..6) {
            0 => Number::from(self.rng.u64(..)),
            1 => Number::from_f64(self.rng.f64() * 1e3).unwrap_or_else(|| 0.into()),
            2 => Number::from_f64(1e300).unwrap_or_else(|| 0.into()),
            _ => Number::from(*self.rng.choice(NUMBERS).unwrap_or(&0)),
        }
    }

    fn change_text(&mut self, input: &mut Vec<u8>) {
        let (from, to) = self.range(input);
        match self.rng.u8(..7) {
            0 => drop(input.drain(from..to)),
            1 => {
                let part = input[from..to].to_vec();
                input.splice(to..to, part);
            }
            2 => {
                let text = self.text();
                input.splice(from..from, text.into_bytes());
            }
            3 => {
                let text = self.text();
                input.splice(from..to, text.into_bytes());
            }
            4 => {
                let other = self.one_of_the_pool();
                let (start, end) = self.range(&other);
                input.splice(from..to, other[start..end].iter().copied());
            }
            5 => {
                if let Some(byte) = input.get_mut(from) {
                    *byte ^= 1 << self.rng.u8(..8);
                }
            }
            _ => {
                if let Some(byte) = input.get_mut(from) {
                    *byte = self.rng.u8(..);
                }
            }
        }
    }

    /// Returns a part of the input, mostly a short one.
    fn range(&mut self, input: &[u8]) -> (usize, usize) {
        let from = self.rng.usize(..=input.len());
        let most = if self.rng.bool() { 8 } else { input.len() };
        let to = from + self.rng.usize(..=most.min(input.len() - from));
        (from, to)
    }

    /// Changes one of the JSON values in a text, or the text if it has none.
    fn change_json(&mut self, input: &mut Vec<u8>) {
        let Some((from, to, mut value)) = self.json_in(input) else {
            return self.change_text(input);
        };
        let places = 1 + self.rng.usize(..count(&value));
        let other = self.one_of_the_pool();
        let donor = self
            .json_in(&other)
            .map_or(Value::Null, |(_, _, donor)| donor);
        self.change_at(&mut value, places - 1, &donor);
        input.splice(from..to, value.to_string().into_bytes());
    }

    /// Returns a JSON value that begins with a brace, and its position.
    fn json_in(&mut self, input: &[u8]) -> Option<(usize, usize, Value)> {
        let braces: Vec<_> = (0..input.len()).filter(|at| input[*at] == b'{').collect();
        // The first brace belongs to the outermost value.
        let most = if self.rng.bool() { 1 } else { braces.len() };
        let from = *braces.get(self.rng.usize(..most.max(1)))?;
        let mut values = serde_json::Deserializer::from_slice(&input[from..]).into_iter::<Value>();
        let value = values.next()?.ok()?;
        Some((from, from + values.byte_offset(), value))
    }

    /// Changes the `place`th of all nested values, counted from the outside.
    fn change_at(&mut self, value: &mut Value, place: usize, donor: &Value) {
        if place == 0 {
            return self.change_value(value, donor);
        }
        let mut place = place - 1;
        let children: Vec<&mut Value> = match value {
            Value::Object(members) => members.values_mut().collect(),
            Value::Array(elements) => elements.iter_mut().collect(),
            _ => return,
        };
        for child in children {
            let inside = count(child);
            if place < inside {
                return self.change_at(child, place, donor);
            }
            place -= inside;
        }
    }

    fn change_value(&mut self, value: &mut Value, donor: &Value) {
        match value {
            Value::Object(members) if self.rng.u8(..4) > 0 => self.change_members(members, donor),
            Value::Array(elements) if self.rng.u8(..4) > 0 => self.change_elements(elements, donor),
            Value::String(text) if self.rng.bool() => {
                let mut bytes = std::mem::take(text).into_bytes();
                self.change_text(&mut bytes);
                *text = String::from_utf8_lossy(&bytes).into_owned();
            }
            other => *other = self.value(donor),
        }
    }

    fn change_members(&mut self, members: &mut Map<String, Value>, donor: &Value) {
        let names: Vec<String> = members.keys().cloned().collect();
        let name = self.rng.choice(&names).cloned().unwrap_or_default();
        match self.rng.u8(..4) {
            0 => drop(members.remove(&name)),
            1 => {
                // Under another member's name: a value of a wrong type for that field mostly exists
                // already.
                if let Some(moved) = members.remove(&name) {
                    members.insert(self.text(), moved);
                }
            }
            _ => {
                let added = if self.rng.bool() { self.text() } else { name };
                members.insert(added, self.value(donor));
            }
        }
    }

    fn change_elements(&mut self, elements: &mut Vec<Value>, donor: &Value) {
        let at = self.rng.usize(..=elements.len());
        let there = elements.get(at).cloned();
        match (self.rng.u8(..4), there) {
            (0, Some(_)) => drop(elements.remove(at)),
            (1, Some(there)) => elements.insert(at, there),
            (2, Some(there)) => {
                let times = self.rng.usize(1..40);
                elements.extend(std::iter::repeat_n(there, times));
            }
            _ => elements.insert(at, self.value(donor)),
        }
    }

    /// Returns a new value, or a part of another input.
    fn value(&mut self, donor: &Value) -> Value {
        match self.rng.u8(..12) {
            0 => Value::Null,
            1 => self.rng.bool().into(),
            2..=4 => Value::Number(self.number()),
            5..=7 => Value::String(self.text()),
            8 => Value::Array(Vec::new()),
            9 => Value::Object(Map::new()),
            _ => {
                let place = self.rng.usize(..count(donor));
                part(donor, place).clone()
            }
        }
    }
}

/// Returns the number of values in one, itself included.
fn count(value: &Value) -> usize {
    let inside: usize = match value {
        Value::Object(members) => members.values().map(count).sum(),
        Value::Array(elements) => elements.iter().map(count).sum(),
        _ => 0,
    };
    1 + inside
}

/// Returns the `place`th of all nested values.
fn part(value: &Value, place: usize) -> &Value {
    if place == 0 {
        return value;
    }
    let mut place = place - 1;
    let children: Vec<&Value> = match value {
        Value::Object(members) => members.values().collect(),
        Value::Array(elements) => elements.iter().collect(),
        _ => return value,
    };
    for child in children {
        let inside = count(child);
        if place < inside {
            return part(child, place);
        }
        place -= inside;
    }
    value
}
