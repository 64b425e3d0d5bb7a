//! Tables, as kubectl prints them: upper-case headers, three spaces between columns, `<none>` for
//! empty cells, no spaces at the end of a line.
//!
//! In a terminal a table that is too wide loses columns first and then the ends of its longest
//! cells. Without a width it is printed whole: a script must get everything. Cells come from
//! objects that others wrote, so a cell can neither break its line nor control the terminal.

mod cell;

#[cfg(test)]
mod tests;

use std::borrow::Cow;

use unicode_width::UnicodeWidthStr;

use crate::text::escape;

const SEPARATOR: &str = "   ";
const EMPTY_CELL: &str = "<none>";
/// A shorter rest of a name would identify nothing.
const SHORTENED_MIN: usize = 8;

/// A column of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    header: String,
    priority: u8,
    wide_only: bool,
    flexible: bool,
}

impl Column {
    /// Returns a column that is always printed and never shortened. Its header is printed in upper
    /// case.
    #[must_use]
    pub fn new(header: &str) -> Self {
        Self::verbatim(&header.to_uppercase())
    }

    /// Returns the same with a header that is printed as it is.
    #[must_use]
    pub fn verbatim(header: &str) -> Self {
        Self {
            header: escape(header).into_owned(),
            priority: 0,
            wide_only: false,
            flexible: false,
        }
    }

    /// Returns whether this is its header.
    #[must_use]
    pub fn is(&self, header: &str) -> bool {
        self.header == header
    }

    /// Returns its header.
    #[must_use]
    pub fn header(&self) -> &str {
        &self.header
    }

    /// Allows a narrow terminal to drop the column: the highest number is dropped first, as with
    /// the printer columns of a `CustomResourceDefinition`. A column with 0 is never dropped.
    #[must_use]
    pub fn priority(mut self, priority: u8) -> Self {
        self.priority = priority;
        self
    }

    /// Prints the column only with `-o wide`.
    #[must_use]
    pub fn wide_only(mut self) -> Self {
        self.wide_only = true;
        self
    }

    /// Allows a narrow terminal to shorten the column's cells, for names and other text.
    #[must_use]
    pub fn flexible(mut self) -> Self {
        self.flexible = true;
        self
    }
}

/// Where and how a table is printed. The default is for a pipe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Whether the columns for `-o wide` are printed.
    pub wide: bool,
    /// Whether the headers are left out.
    pub no_headers: bool,
    /// The width of the terminal in columns. `None` prints every cell whole.
    pub width: Option<usize>,
}

/// A table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The columns, from left to right.
    pub columns: Vec<Column>,
    /// The cells of each row in the order of the columns. A missing cell is printed as an empty
    /// one, a surplus one is not printed.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// Returns a table without rows.
    #[must_use]
    pub fn new(columns: Vec<Column>) -> Self {
        Self {
            columns,
            rows: Vec::new(),
        }
    }

    /// Returns a table whose rows each belong to a namespace. If `shown`, it is the first column.
    #[must_use]
    pub fn of_namespaces<'a>(
        mut columns: Vec<Column>,
        rows: impl Iterator<Item = (&'a str, Vec<String>)>,
        shown: bool,
    ) -> Self {
        if shown {
            columns.insert(0, Column::new("NAMESPACE").flexible());
        }
        let rows = rows.map(|(namespace, mut row)| {
            if shown {
                row.insert(0, namespace.to_owned());
            }
            row
        });
        let rows = rows.collect();
        Self { columns, rows }
    }

    /// Returns the table without the columns for `-o wide`.
    #[must_use]
    pub fn narrow(mut self) -> Self {
        let shown: Vec<_> = self
            .columns
            .iter()
            .map(|column| !column.wide_only)
            .collect();
        for row in &mut self.rows {
            let mut shown = shown.iter();
            row.retain(|_| shown.next().copied().unwrap_or(false));
        }
        self.columns.retain(|column| !column.wide_only);
        self
    }

    /// Returns the text of the table, with a line break after each line.
    #[must_use]
    pub fn render(&self, layout: &Layout) -> String {
        let mut printed: Vec<_> = self
            .columns
            .iter()
            .enumerate()
            .filter(|(_, column)| layout.wide || !column.wide_only)
            .map(|(at, column)| Printed::new(column, at, self, layout))
            .collect();
        if let Some(width) = layout.width {
            drop_columns(&mut printed, width);
            shorten_columns(&mut printed, width);
        }
        let mut text = String::new();
        if !layout.no_headers {
            push_line(&mut text, &printed, |column| &column.column.header);
        }
        for row in 0..self.rows.len() {
            push_line(&mut text, &printed, |column| &column.cells[row]);
        }
        text
    }
}

/// A column as it is printed.
struct Printed<'a> {
    column: &'a Column,
    /// One escaped cell for each row of the table.
    cells: Vec<Cow<'a, str>>,
    /// The width of the widest cell, or less in a narrow terminal.
    width: usize,
}

impl<'a> Printed<'a> {
    fn new(column: &'a Column, at: usize, table: &'a Table, layout: &Layout) -> Self {
        let cells: Vec<_> = table
            .rows
            .iter()
            .map(|row| match row.get(at).map(String::as_str) {
                None | Some("") => Cow::Borrowed(EMPTY_CELL),
                Some(text) => escape(text),
            })
            .collect();
        let header = (!layout.no_headers).then_some(column.header.as_str());
        let texts = cells.iter().map(AsRef::as_ref).chain(header);
        let width = texts.map(UnicodeWidthStr::width).max().unwrap_or_default();
        Self {
            column,
            cells,
            width,
        }
    }
}

fn line_width(columns: &[Printed]) -> usize {
    let separators = SEPARATOR.len() * columns.len().saturating_sub(1);
    columns.iter().map(|column| column.width).sum::<usize>() + separators
}

/// Drops the least important columns until the table fits: those for `-o wide` first, then those
/// with the highest priority number, then the rightmost.
fn drop_columns(columns: &mut Vec<Printed>, width: usize) {
    while line_width(columns) > width {
        let least = columns
            .iter()
            .enumerate()
            .filter(|(_, printed)| printed.column.wide_only || printed.column.priority > 0)
            .max_by_key(|(at, printed)| (printed.column.wide_only, printed.column.priority, *at))
            .map(|(at, _)| at);
        let Some(least) = least else { return };
        columns.remove(least);
    }
}

/// Takes one character at a time from the widest flexible column until the table fits, so that
/// long columns end up equally wide.
fn shorten_columns(columns: &mut [Printed], width: usize) {
    let excess = line_width(columns).saturating_sub(width);
    for _ in 0..excess {
        let widest = columns
            .iter_mut()
            .filter(|printed| printed.column.flexible && printed.width > SHORTENED_MIN)
            .max_by_key(|printed| printed.width);
        let Some(widest) = widest else { return };
        widest.width -= 1;
    }
}

fn push_line<'a>(
    text: &mut String,
    columns: &'a [Printed],
    content: impl Fn(&'a Printed) -> &'a str,
) {
    // Spaces are written only before the next cell, so none are at the end of a line.
    let mut gap = 0;
    for printed in columns {
        let shown = cell::shorten(content(printed), printed.width);
        text.extend(std::iter::repeat_n(' ', gap));
        text.push_str(&shown);
        gap = printed.width.saturating_sub(shown.width()) + SEPARATOR.len();
    }
    text.push('\n');
}
