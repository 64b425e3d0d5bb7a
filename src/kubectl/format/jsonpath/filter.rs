//! Filters: `[?(@.kind=="x")]` and `[?(@.kind)]`.

use jsonpath_rust::parser::model::{
    Comparable, Comparison, Filter, FilterAtom, Literal, Segment, Selector, SingularQuery,
    SingularQuerySegment, Test,
};

use super::cursor::Cursor;
use super::model::{Parsed, Step};
use super::path;

/// Longer operators before those that they begin with.
const OPERATORS: [&str; 6] = ["==", "!=", "<=", ">=", "<", ">"];

/// A side of a comparison.
enum Operand {
    Literal(Literal),
    Path(Vec<Segment>),
}

/// Parses what follows `[?(`, to the closing bracket.
pub(super) fn filter(cursor: &mut Cursor) -> Parsed<Filter> {
    if cursor.in_filter {
        return Err("a filter cannot contain a filter".to_owned());
    }
    cursor.in_filter = true;
    let filter = condition(cursor)?;
    cursor.in_filter = false;
    cursor.expect("]")?;
    Ok(filter)
}

fn condition(cursor: &mut Cursor) -> Parsed<Filter> {
    let left = operand(cursor)?;
    cursor.skip_spaces();
    let filter = match OPERATORS.into_iter().find(|operator| cursor.eat(operator)) {
        Some(operator) => comparison(&left, operator, &operand(cursor)?)?,
        None if cursor.at(")") => existence(&left).ok_or("a filter has no path")?,
        None => {
            return Err(format!(
                "expected one of == != < <= > >= or ) at {}; kubectl knows no other operator",
                cursor.place()
            ));
        }
    };
    cursor.skip_spaces();
    cursor.expect(")")?;
    cursor.skip_spaces();
    Ok(filter)
}

fn operand(cursor: &mut Cursor) -> Parsed<Operand> {
    cursor.skip_spaces();
    match cursor.peek() {
        Some('"' | '\'') => Ok(Operand::Literal(Literal::String(cursor.quoted()?))),
        Some('.' | '[' | '$' | '@') => segments(path::path(cursor)?).map(Operand::Path),
        _ => {
            let place = cursor.place();
            let text = cursor.take_until(|c| c.is_whitespace() || ")]=!<>".contains(c));
            literal(text)
                .map(Operand::Literal)
                .ok_or_else(|| format!("expected a path, a string, a number or a bool at {place}"))
        }
    }
}

fn literal(text: &str) -> Option<Literal> {
    match text {
        "true" => return Some(Literal::Bool(true)),
        "false" => return Some(Literal::Bool(false)),
        // Rust also parses "inf" and "nan" as numbers.
        _ if text.contains(|c: char| c.is_alphabetic() && c != 'e' && c != 'E') => return None,
        _ => {}
    }
    let integer = text.parse().map(Literal::Int);
    integer.or_else(|_| text.parse().map(Literal::Float)).ok()
}

/// Returns the path as segments of one query.
fn segments(steps: Vec<Step>) -> Parsed<Vec<Segment>> {
    let mut segments = Vec::new();
    for step in steps {
        match step {
            Step::Select(query) => segments.extend(query.segments),
            Step::Union(_) => return Err("a filter cannot contain a union".to_owned()),
        }
    }
    Ok(segments)
}

/// Returns the test that the operand exists. A literal always does.
fn existence(operand: &Operand) -> Option<Filter> {
    match operand {
        Operand::Literal(_) => None,
        Operand::Path(segments) => {
            let test = Test::RelQuery(segments.clone());
            Some(Filter::Atom(FilterAtom::test(test, false)))
        }
    }
}

/// Returns a comparison that is false if a side does not exist, as in kubectl. By RFC 9535 a
/// missing value differs from every other, and two missing values are equal.
fn comparison(left: &Operand, operator: &str, right: &Operand) -> Parsed<Filter> {
    let comparison = Comparison::try_new(operator, comparable(left)?, comparable(right)?)
        .map_err(|error| error.to_string())?;
    let exists = [left, right].into_iter().filter_map(existence);
    let compares = Filter::Atom(FilterAtom::cmp(Box::new(comparison)));
    Ok(Filter::And(exists.chain([compares]).collect()))
}

fn comparable(operand: &Operand) -> Parsed<Comparable> {
    let segments = match operand {
        Operand::Literal(literal) => return Ok(Comparable::Literal(literal.clone())),
        Operand::Path(segments) => segments,
    };
    let single = segments.iter().map(|segment| match segment {
        Segment::Selector(Selector::Name(name)) => Ok(SingularQuerySegment::Name(name.clone())),
        Segment::Selector(Selector::Index(index)) => Ok(SingularQuerySegment::Index(*index)),
        _ => Err("a comparison takes one value a side: names and indexes only".to_owned()),
    });
    let single = single.collect::<Parsed<_>>()?;
    Ok(Comparable::SingularQuery(SingularQuery::Current(single)))
}
