//! `-o custom-columns=NAME:.metadata.name,TOKEN:.status.token`: a table that the user defines.
//!
//! Headers are printed as the user wrote them. No cell is shortened and no column is dropped: the
//! user asked for each of them.

use std::str::FromStr;

use serde_json::Value;

use super::jsonpath::{self, JsonPathError, Path};
use super::table::{Column, Table};

/// The columns of a `custom-columns` specification: at least one.
#[derive(Clone, Debug, PartialEq)]
pub struct Columns(Vec<(String, Path)>);

/// A `custom-columns` specification is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ColumnsError {
    /// It is empty.
    #[error("custom-columns format specified but no custom columns given")]
    Empty,
    /// A column has no path or no header.
    #[error("unexpected custom-columns spec: {0}, expected <header>:<json-path-expr>")]
    Malformed(String),
    /// A column's path is invalid.
    #[error(transparent)]
    Path(#[from] JsonPathError),
}

impl Columns {
    /// Returns the table of the objects, a row for each.
    #[must_use]
    pub fn table<'a>(&self, objects: impl IntoIterator<Item = &'a Value>) -> Table {
        let columns = self.0.iter().map(|(header, _)| Column::verbatim(header));
        let mut table = Table::new(columns.collect());
        for object in objects {
            let row = self.0.iter().map(|(_, path)| cell(path, object));
            table.rows.push(row.collect());
        }
        table
    }
}

/// Returns the values joined by commas. A value that does not exist is empty, which the table
/// prints as `<none>`.
fn cell(path: &Path, object: &Value) -> String {
    let found = path.find(object).into_iter();
    found.map(jsonpath::text).collect::<Vec<_>>().join(",")
}

impl FromStr for Columns {
    type Err = ColumnsError;

    fn from_str(spec: &str) -> Result<Self, ColumnsError> {
        if spec.is_empty() {
            return Err(ColumnsError::Empty);
        }
        let columns = split(spec).into_iter().map(|column| {
            let malformed = || ColumnsError::Malformed(column.to_owned());
            let (header, path) = column.split_once(':').ok_or_else(malformed)?;
            if header.is_empty() || path.is_empty() {
                return Err(malformed());
            }
            Ok((header.to_owned(), Path::relaxed(path)?))
        });
        columns.collect::<Result<_, _>>().map(Self)
    }
}

/// Splits at commas that are not in brackets: a filter or a union has commas of its own.
fn split(spec: &str) -> Vec<&str> {
    let mut depth = 0_usize;
    let between = move |c: char| {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    };
    spec.split(between).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kubectl::format::table::Layout;

    fn render(spec: &str, objects: &[Value]) -> String {
        let columns: Columns = spec.parse().unwrap();
        columns.table(objects).render(&Layout::default())
    }

    fn error(spec: &str) -> String {
        spec.parse::<Columns>().unwrap_err().to_string()
    }

    #[test]
    fn columns_are_printed_as_kubectl_prints_them() {
        let objects = [
            json!({"metadata": {"name": "orders"}, "status": {"token": 17}}),
            json!({"metadata": {"name": "mail\n\u{1b}[2J"}, "status": {"token": null}}),
            json!({"metadata": {}}),
        ];
        assert_eq!(
            render("Name:.metadata.name,TOKEN:{.status.token}", &objects),
            concat!(
                "Name              TOKEN\n",
                "orders            17\n",
                "mail\\n\\u{1b}[2J   <none>\n",
                "<none>            <none>\n",
            )
        );
    }

    #[test]
    fn several_values_are_joined_by_commas() {
        let object = json!({"queue": [{"pod": "a"}, {"pod": "b"}], "labels": {"x": "y"}});
        assert_eq!(
            render("PODS:queue[*].pod,LABELS:.labels", &[object]),
            "PODS   LABELS\na,b    {\"x\":\"y\"}\n"
        );
    }

    #[test]
    fn comma_in_brackets_belongs_to_the_path() {
        let object = json!({"a": 1, "b": 2});
        assert_eq!(
            render("BOTH:['a','b'],A:.a", &[object]),
            "BOTH   A\n1,2    1\n"
        );
    }

    #[test]
    fn colon_in_a_path_belongs_to_the_path() {
        let object = json!({"a": [1, 2, 3]});
        assert_eq!(render("A:.a[1:]", &[object]), "A\n2,3\n");
    }

    #[test]
    fn malformed_columns_are_rejected() {
        assert_eq!(
            error(""),
            "custom-columns format specified but no custom columns given"
        );
        for spec in ["NAME", ":.a", "NAME:", "A:.a,"] {
            let column = spec.strip_prefix("A:.a,").unwrap_or(spec);
            assert_eq!(
                error(spec),
                format!(
                    "unexpected custom-columns spec: {column}, expected \
                     <header>:<json-path-expr>"
                )
            );
        }
        assert_eq!(
            error("A:.a[x]"),
            "invalid JSONPath \".a[x]\": invalid array index \"x\""
        );
    }
}
