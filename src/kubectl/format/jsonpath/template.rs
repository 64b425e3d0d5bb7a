//! The parts of a template: text, and in braces paths, strings, `range` and `end`.

use super::cursor::Cursor;
use super::model::{Node, Parsed, Step};
use super::path;

/// Ranges are executed recursively: a limit keeps the recursion shallow.
const DEPTH_MAX: usize = 32;

/// A range whose end was not read yet.
struct Open {
    steps: Vec<Step>,
    /// What is before the range, on its level.
    before: Vec<Node>,
}

/// What is in a pair of braces.
enum Action {
    Print(Node),
    Range(Vec<Step>),
    End,
}

/// Parses a whole template.
pub(super) fn parse(cursor: &mut Cursor) -> Parsed<Vec<Node>> {
    let mut open: Vec<Open> = Vec::new();
    let mut nodes = Vec::new();
    while cursor.peek().is_some() {
        let text = cursor.take_until(|c| c == '{');
        if !text.is_empty() {
            nodes.push(Node::Text(text.to_owned()));
        }
        if !cursor.eat("{") {
            break;
        }
        match action(cursor)? {
            Action::Print(node) => nodes.push(node),
            Action::Range(_) if open.len() == DEPTH_MAX => {
                return Err(format!("more than {DEPTH_MAX} ranges are nested"));
            }
            Action::Range(steps) => {
                let before = std::mem::take(&mut nodes);
                open.push(Open { steps, before });
            }
            Action::End => {
                let Open { steps, before } = open.pop().ok_or("not in range, nothing to end")?;
                let body = std::mem::replace(&mut nodes, before);
                nodes.push(Node::Range(steps, body));
            }
        }
    }
    if open.is_empty() {
        return Ok(nodes);
    }
    Err("a range has no {end}".to_owned())
}

/// Parses the content of braces and the closing one.
fn action(cursor: &mut Cursor) -> Parsed<Action> {
    cursor.skip_spaces();
    let action = match cursor.peek() {
        Some('"' | '\'') => Action::Print(Node::Text(cursor.quoted()?)),
        Some('.' | '[' | '$' | '@') => Action::Print(Node::Path(path::path(cursor)?)),
        // Empty braces are the current object, as in kubectl.
        Some('}') => Action::Print(Node::Path(Vec::new())),
        _ => keyword(cursor)?,
    };
    cursor.skip_spaces();
    cursor.expect("}")?;
    Ok(action)
}

fn keyword(cursor: &mut Cursor) -> Parsed<Action> {
    let place = cursor.place();
    match cursor.take_until(|c| !c.is_alphanumeric()) {
        "range" => {
            cursor.skip_spaces();
            Ok(Action::Range(path::path(cursor)?))
        }
        "end" => Ok(Action::End),
        _ => Err(format!(
            "expected a path such as .metadata.name, a string, range or end at {place}"
        )),
    }
}
