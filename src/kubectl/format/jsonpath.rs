//! kubectl's JSONPath templates: text with expressions in braces, such as
//! `{range .items[*]}{.metadata.name}{"\n"}{end}`.
//!
//! The language is that of <https://kubernetes.io/docs/reference/kubectl/jsonpath/>. `jsonpath-rust`
//! (RFC 9535, a dependency of kube already) evaluates paths and filters: `path` and `filter`
//! translate the dialect into its queries, not into its syntax, so nothing is quoted twice. Only
//! templates and unions are evaluated here: RFC 9535 has no templates, and kubectl's unions are of
//! paths.
//!
//! As in kubectl, `$` and `@` both mean the current object, dots in a quoted name separate names
//! unless a backslash is before them, and regular expressions do not exist. Where kubectl fails,
//! this is lenient: an index out of range finds nothing, a filter compares integers with fractions,
//! names may be in double quotes, and `[*]` also selects the values of an object. `{.}` is the
//! current object and `null` prints nothing. Rejected here, unlike in kubectl: `..` without a name
//! after it or with a union, a range without `{end}`, and numbers and bools outside of filters.

mod cursor;
mod filter;
mod model;
mod path;
mod template;

#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;

use serde_json::Value;

use cursor::Cursor;
pub use model::text;
use model::{Node, Parsed, Step, find, render};

/// A template or a path is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid JSONPath {text:?}: {problem}")]
pub struct JsonPathError {
    /// What the user wrote.
    pub text: String,
    /// What is wrong with it, and where.
    pub problem: String,
}

/// A parsed template.
#[derive(Clone, Debug, PartialEq)]
pub struct Template(Vec<Node>);

impl Template {
    /// Executes the template on an object, or on a [list](super::object::list) of objects.
    #[must_use]
    pub fn render(&self, object: &Value) -> String {
        let mut text = String::new();
        render(&self.0, object, &mut text);
        text
    }
}

impl FromStr for Template {
    type Err = JsonPathError;

    fn from_str(text: &str) -> Result<Self, JsonPathError> {
        parsed(text, template::parse).map(Self)
    }
}

/// A path without a template, for `custom-columns` and `--sort-by`.
#[derive(Clone, Debug, PartialEq)]
pub struct Path {
    text: String,
    steps: Vec<Step>,
}

impl Path {
    /// Parses a path that may be without its braces and its leading dot: `{.metadata.name}`,
    /// `.metadata.name` and `metadata.name` are the same.
    pub fn relaxed(text: &str) -> Result<Self, JsonPathError> {
        Ok(Self {
            text: text.to_owned(),
            steps: parsed(text, path::relaxed)?,
        })
    }

    /// Returns the values that the path finds in an object. A missing key finds none.
    #[must_use]
    pub fn find<'a>(&self, object: &'a Value) -> Vec<&'a Value> {
        find(&self.steps, object)
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Parses a whole text, and names it in the error.
fn parsed<T>(text: &str, parse: impl FnOnce(&mut Cursor) -> Parsed<T>) -> Result<T, JsonPathError> {
    parse(&mut Cursor::new(text)).map_err(|problem| JsonPathError {
        text: text.to_owned(),
        problem,
    })
}
