//! Rust: structs for serde.

use std::fmt::Write;

use super::{Kind, Types, comment, pascal_case, snake_case};

const HEAD: &str = r#"//! What travels between an app and its sidecar. A field that an answer lacks has its default.
//!
//! Generated from docs/openapi.json by `make generate`: do not edit it.
#![expect(clippy::struct_field_names, reason = "the names are those of the API")]

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What an answer means for the app.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Another caller has the lock.
    Held,
    /// The lease is over.
    Lost,
    /// The same request may succeed soon.
    Passing,
    /// Locks are unavailable, and not only for moments.
    Lasting,
    /// The request, or the installation, must be corrected.
    Refused,
}

impl Outcome {
    /// Returns the outcome of a problem's code. The status decides for a code that this version does
    /// not know.
    pub(crate) fn of(code: &str, status: u16) -> Self {
        let known = OUTCOMES.iter().find(|(name, _)| *name == code);
        known.map_or_else(
            || match status {
                408 | 429 | 500.. => Self::Passing,
                _ => Self::Refused,
            },
            |(_, outcome)| *outcome,
        )
    }
}

"#;

pub(super) fn print(types: &Types) -> String {
    let mut file = HEAD.to_owned();
    let count = types.outcomes.len();
    writeln!(file, "const OUTCOMES: [(&str, Outcome); {count}] = [").unwrap();
    for (code, outcome) in &types.outcomes {
        let outcome = pascal_case(outcome);
        writeln!(file, "    (\"{code}\", Outcome::{outcome}),").unwrap();
    }
    file += "];\n";
    for record in &types.records {
        file += "\n";
        file += &comment("///", &record.description);
        file += if record.is_sent {
            "#[derive(Clone, Debug, Default, Serialize)]\n#[serde(rename_all = \"camelCase\")]\n"
        } else {
            "#[derive(Clone, Debug, Default, Deserialize)]\n#[serde(default, rename_all = \"camelCase\")]\n"
        };
        writeln!(file, "pub(crate) struct {} {{", record.name).unwrap();
        for field in &record.fields {
            let kind = match &field.kind {
                Kind::Text => "String",
                Kind::Integer => "u64",
                Kind::Flag => "bool",
                Kind::Texts => "Vec<String>",
                Kind::Map => "BTreeMap<String, String>",
                Kind::Record(name) => name,
            };
            file += &comment("    ///", &field.description);
            if field.is_optional && record.is_sent {
                file += "    #[serde(skip_serializing_if = \"Option::is_none\")]\n";
            }
            let name = snake_case(&field.name);
            if field.is_optional {
                writeln!(file, "    pub(crate) {name}: Option<{kind}>,").unwrap();
            } else {
                writeln!(file, "    pub(crate) {name}: {kind},").unwrap();
            }
        }
        file += "}\n";
    }
    file
}
