//! Paths: `.a.b`, `['a']`, `[0]`, `[1:3]`, `[*]`, `..a`, unions and filters, translated into
//! queries of RFC 9535.

use jsonpath_rust::parser::model::{JpQuery, Segment, Selector};

use super::cursor::Cursor;
use super::filter;
use super::model::{Parsed, Step};

/// The steps that were parsed so far.
#[derive(Default)]
struct Builder {
    steps: Vec<Step>,
    /// The end of the path, not yet a step.
    segments: Vec<Segment>,
    /// Whether `..` is before the next segment.
    descend: bool,
}

impl Builder {
    fn select(&mut self, selector: Selector) {
        let segment = Segment::Selector(selector);
        self.segments.push(if self.descend {
            Segment::Descendant(Box::new(segment))
        } else {
            segment
        });
        self.descend = false;
    }

    fn select_all(&mut self, selectors: Vec<Selector>) {
        for selector in selectors {
            self.select(selector);
        }
    }

    fn union(&mut self, paths: Vec<Vec<Step>>) {
        self.close();
        self.steps.push(Step::Union(paths));
    }

    fn close(&mut self) {
        if !self.segments.is_empty() {
            let segments = std::mem::take(&mut self.segments);
            self.steps.push(Step::Select(JpQuery::new(segments)));
        }
    }

    fn finish(mut self) -> Vec<Step> {
        self.close();
        self.steps
    }
}

/// Parses a whole text as a path that may be without its braces and its leading dot.
pub(super) fn relaxed(cursor: &mut Cursor) -> Parsed<Vec<Step>> {
    let braces = cursor.eat("{");
    cursor.skip_spaces();
    let mut builder = Builder::default();
    if cursor.peek().is_some_and(|c| !ends_name(c)) {
        name(cursor, &mut builder);
    }
    rest(cursor, &mut builder)?;
    cursor.skip_spaces();
    if braces {
        cursor.expect("}")?;
    }
    match cursor.peek() {
        None => Ok(builder.finish()),
        Some(_) => Err(format!("expected the end at {}", cursor.place())),
    }
}

/// Parses a path, up to the first character that cannot belong to it.
pub(super) fn path(cursor: &mut Cursor) -> Parsed<Vec<Step>> {
    let mut builder = Builder::default();
    rest(cursor, &mut builder)?;
    Ok(builder.finish())
}

fn rest(cursor: &mut Cursor, builder: &mut Builder) -> Parsed<()> {
    loop {
        match cursor.peek() {
            // Both mean the current object.
            Some('$' | '@') if !builder.descend => {
                cursor.next();
            }
            Some('.') if cursor.at("..") && !builder.descend => {
                cursor.eat("..");
                builder.descend = true;
                if cursor.peek().is_some_and(|c| !ends_name(c)) {
                    name(cursor, builder);
                }
            }
            Some('.') if !builder.descend => {
                cursor.next();
                // A dot alone is the current object, so that `.[0]` is `[0]`.
                if cursor.peek().is_some_and(|c| !ends_name(c)) {
                    name(cursor, builder);
                }
            }
            Some('[') => {
                cursor.next();
                brackets(cursor, builder)?;
            }
            _ if builder.descend => {
                return Err(format!("expected a name after .. at {}", cursor.place()));
            }
            _ => return Ok(()),
        }
    }
}

/// Returns whether a name without quotes ends before the character. The quotes, the parenthesis and
/// the operators can be in a name only after a backslash: the path may be in a filter.
fn ends_name(c: char) -> bool {
    c.is_whitespace() || ".,[]$@{}()'\"=!<>~&|".contains(c)
}

fn name(cursor: &mut Cursor, builder: &mut Builder) {
    if cursor.eat("*") {
        builder.select(Selector::Wildcard);
        return;
    }
    let mut name = String::new();
    while let Some(c) = cursor.peek().filter(|c| !ends_name(*c)) {
        cursor.next();
        name.extend(if c == '\\' { cursor.next() } else { Some(c) });
    }
    builder.select(Selector::Name(name));
}

/// Parses what follows `[`, to the closing bracket.
fn brackets(cursor: &mut Cursor, builder: &mut Builder) -> Parsed<()> {
    if cursor.eat("?(") {
        builder.select(Selector::Filter(filter::filter(cursor)?));
        return Ok(());
    }
    let mut items = vec![item(cursor)?];
    while cursor.eat(",") {
        items.push(item(cursor)?);
    }
    cursor.expect("]")?;
    if let [selectors] = items.as_mut_slice() {
        builder.select_all(std::mem::take(selectors));
        return Ok(());
    }
    if builder.descend {
        return Err("a union cannot follow ..".to_owned());
    }
    let paths = items.into_iter().map(|selectors| {
        let mut path = Builder::default();
        path.select_all(selectors);
        path.finish()
    });
    builder.union(paths.collect());
    Ok(())
}

/// Parses one member of brackets: a quoted name, which may be several, an index, a slice or `*`.
fn item(cursor: &mut Cursor) -> Parsed<Vec<Selector>> {
    cursor.skip_spaces();
    let selectors = if let Some(quote @ ('"' | '\'')) = cursor.peek() {
        cursor.next();
        quoted_names(cursor, quote)?
    } else {
        let text = cursor.take_until(|c| c == ',' || c == ']');
        vec![index(text.trim())?]
    };
    cursor.skip_spaces();
    Ok(selectors)
}

/// Parses names that dots separate, to the closing quote. A backslash takes the meaning from the
/// character after it.
fn quoted_names(cursor: &mut Cursor, quote: char) -> Parsed<Vec<Selector>> {
    let mut names = Vec::new();
    let mut name = String::new();
    loop {
        match cursor.next() {
            None => return Err("unterminated name in brackets".to_owned()),
            Some(c) if c == quote => break,
            Some('.') => names.push(Selector::Name(std::mem::take(&mut name))),
            Some('\\') => name.extend(cursor.next()),
            Some(c) => name.push(c),
        }
    }
    names.push(Selector::Name(name));
    Ok(names)
}

/// Parses an index, a slice or `*`. Nothing is the first element, as in kubectl:
/// `.containers[].image`.
fn index(text: &str) -> Parsed<Selector> {
    let invalid = || format!("invalid array index {text:?}");
    let number = |text: &str| match text.trim() {
        "" => Ok(None),
        // More than 32 bits could overflow when they are added to the length of an array.
        digits => digits.parse::<i32>().map(|n| Some(i64::from(n))),
    };
    let numbers: Result<Vec<_>, _> = text.split(':').map(number).collect();
    match (text, numbers.map_err(|_| invalid()).as_deref()) {
        ("*", _) => Ok(Selector::Wildcard),
        (_, Ok([index])) => Ok(Selector::Index(index.unwrap_or(0))),
        (_, Ok([start, end])) => Ok(Selector::Slice(*start, *end, None)),
        (_, Ok([_, _, Some(step)])) if *step < 1 => Err("step must be > 0".to_owned()),
        (_, Ok([start, end, step])) => Ok(Selector::Slice(*start, *end, *step)),
        _ => Err(invalid()),
    }
}
