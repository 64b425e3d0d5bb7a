//! A position in the text of a template, and the smallest units of the language: characters,
//! quoted strings and numbers.

use super::model::Parsed;

/// A position in a text. Nothing is read twice.
pub(super) struct Cursor<'a> {
    rest: &'a str,
    /// Whether the position is in a filter. kubectl cannot nest filters, and a limit keeps the
    /// parser's recursion shallow.
    pub(super) in_filter: bool,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self {
            rest: text,
            in_filter: false,
        }
    }

    pub(super) fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    pub(super) fn next(&mut self) -> Option<char> {
        let mut chars = self.rest.chars();
        let next = chars.next();
        self.rest = chars.as_str();
        next
    }

    pub(super) fn at(&self, expected: &str) -> bool {
        self.rest.starts_with(expected)
    }

    /// Skips `expected`, or returns false if the text continues with something else.
    pub(super) fn eat(&mut self, expected: &str) -> bool {
        let rest = self.rest.strip_prefix(expected);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    pub(super) fn expect(&mut self, expected: &str) -> Parsed<()> {
        if self.eat(expected) {
            return Ok(());
        }
        Err(format!("expected {expected} at {}", self.place()))
    }

    pub(super) fn skip_spaces(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t']);
    }

    /// Returns the text up to the first character for which `ends` is true, or to the end.
    pub(super) fn take_until(&mut self, ends: impl FnMut(char) -> bool) -> &'a str {
        let end = self.rest.find(ends).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }

    /// Describes the position for an error.
    pub(super) fn place(&self) -> String {
        if self.rest.is_empty() {
            return "the end".to_owned();
        }
        format!("{:?}", self.rest)
    }

    /// Parses a string in single or double quotes, with the escapes of Go.
    pub(super) fn quoted(&mut self) -> Parsed<String> {
        let start = self.place();
        let unterminated = || format!("unterminated string at {start}");
        let quote = self.next();
        let mut text = String::new();
        loop {
            match self.next().ok_or_else(unterminated)? {
                '\\' => {
                    let escaped = self.next().ok_or_else(unterminated)?;
                    text.push(self.escape(escaped)?);
                }
                c if Some(c) == quote => return Ok(text),
                c => text.push(c),
            }
        }
    }

    /// Returns the character that a backslash and `escaped` mean.
    fn escape(&mut self, escaped: char) -> Parsed<char> {
        Ok(match escaped {
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'a' => '\u{7}',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'v' => '\u{b}',
            '\\' | '\'' | '"' => escaped,
            'x' => self.hexadecimal(2)?,
            'u' => self.hexadecimal(4)?,
            'U' => self.hexadecimal(8)?,
            _ => return Err(format!("unknown escape \\{escaped}")),
        })
    }

    fn hexadecimal(&mut self, digits: usize) -> Parsed<char> {
        let place = self.place();
        // The conversion alone would also accept a sign.
        let is_number = |text: &&str| text.chars().all(|c| c.is_ascii_hexdigit());
        let number = self.rest.get(..digits).filter(is_number);
        self.rest = &self.rest[number.map_or(0, str::len)..];
        number
            .and_then(|text| u32::from_str_radix(text, 16).ok())
            .and_then(char::from_u32)
            .ok_or_else(|| format!("expected a character's number in hexadecimal at {place}"))
    }
}
