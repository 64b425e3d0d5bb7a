//! What templates and paths are parsed to, and how they are executed.

use jsonpath_rust::parser::model::JpQuery;
use jsonpath_rust::query::js_path_process;
use serde_json::Value;

/// What a part of the text is parsed to, or what is wrong with it.
pub(super) type Parsed<T> = Result<T, String>;

/// A part of a template.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Node {
    /// Printed as it is.
    Text(String),
    /// Replaced by the values that it finds.
    Path(Vec<Step>),
    /// The nodes are executed on each value that the path finds.
    Range(Vec<Step>, Vec<Node>),
}

/// A part of a path.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// Selects in each value.
    Select(JpQuery),
    /// Follows each path from each value: first what the first path finds in all of them.
    Union(Vec<Vec<Step>>),
}

/// Returns what the path finds in an object.
pub(super) fn find<'a>(steps: &[Step], object: &'a Value) -> Vec<&'a Value> {
    follow(steps, vec![object])
}

fn follow<'a>(steps: &[Step], start: Vec<&'a Value>) -> Vec<&'a Value> {
    steps.iter().fold(start, |values, step| match step {
        Step::Select(query) => values
            .into_iter()
            // An error would mean that the query is a function, which the dialect does not have.
            .flat_map(|value| js_path_process(query, value).unwrap_or_default())
            .map(|found| found.val)
            .collect(),
        Step::Union(paths) => paths
            .iter()
            .flat_map(|path| follow(path, values.clone()))
            .collect(),
    })
}

/// Executes the nodes on an object.
pub(super) fn render(nodes: &[Node], object: &Value, output: &mut String) {
    for node in nodes {
        match node {
            Node::Text(text) => output.push_str(text),
            Node::Path(steps) => {
                let values: Vec<_> = find(steps, object).into_iter().map(text).collect();
                output.push_str(&values.join(" "));
            }
            Node::Range(steps, body) => {
                for value in find(steps, object) {
                    render(body, value, output);
                }
            }
        }
    }
}

/// Returns the text of a value: a string without quotes, objects and arrays as JSON, nothing for
/// `null`.
#[must_use]
pub fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
