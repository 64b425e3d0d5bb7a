//! Prints tables and objects in the format that `-o` names.

use serde_json::Value;

use super::failure::Failure;
use super::flags::OutputFlags;
use super::terminal;
use crate::kubectl::format::object::ObjectError;
use crate::kubectl::format::table::{Layout, Table};
use crate::kubectl::format::{Output, object};

/// Prints a table, as wide as the terminal allows.
pub(super) fn table(table: &Table, no_headers: bool, wide: bool) -> Result<(), Failure> {
    terminal::print(&table.render(&layout(no_headers, wide)))
}

/// Returns how a table is printed to this standard output.
pub(super) fn layout(no_headers: bool, wide: bool) -> Layout {
    // With `-o wide` a person wants all columns, in however long lines.
    let width = if wide { None } else { terminal::width() };
    Layout {
        wide,
        no_headers,
        width,
    }
}

/// Prints the only object, or a list of objects, in a format other than our table.
pub(super) fn objects(
    output: &Output,
    no_headers: bool,
    mut objects: Vec<Value>,
    is_list: bool,
) -> Result<(), Failure> {
    for object in &mut objects {
        // kubectl leaves them out, too: they are for the API server.
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("managedFields");
        }
    }
    let whole = |objects: Vec<Value>| {
        if is_list {
            object::list(objects)
        } else {
            objects.into_iter().next().unwrap_or_default()
        }
    };
    let text = match output {
        Output::Json => object::json(&whole(objects)).map_err(unprintable)?,
        Output::Yaml => object::yaml(&whole(objects)).map_err(unprintable)?,
        Output::JsonPath(template) => template.render(&whole(objects)),
        Output::Name => objects.iter().map(|one| object::name(one) + "\n").collect(),
        Output::CustomColumns(columns) => {
            columns.table(&objects).render(&layout(no_headers, false))
        }
        Output::Wide => return Err(Failure::Usage("-o wide is a table".to_owned())),
    };
    terminal::print(&text)
}

#[allow(
    clippy::needless_pass_by_value,
    reason = "map_err passes the error itself"
)]
fn unprintable(error: ObjectError) -> Failure {
    Failure::Usage(format!("cannot print the objects: {error}"))
}

impl OutputFlags {
    /// Returns whether all columns of the table are printed.
    pub(super) const fn is_wide(&self) -> bool {
        matches!(self.output, Some(Output::Wide))
    }

    /// Returns the format if it is not a table of ours.
    pub(super) fn of_objects(&self) -> Option<&Output> {
        self.output
            .as_ref()
            .filter(|output| !matches!(output, Output::Wide))
    }
}
