//! Python: a `TypedDict` for each JSON object.

use std::fmt::Write;

use super::{Field, Kind, Types, comment};

const HEAD: &str = r#""""What travels between an app and its sidecar.

Generated from docs/openapi.json by `make generate`: do not edit it.
"""

from __future__ import annotations

from typing import Literal, TypedDict

#: What an answer means for the app. `held`: another caller has the lock. `lost`: the lease is over.
#: `passing`: the same request may succeed soon. `lasting`: locks are unavailable, and not only for
#: moments. `refused`: the request, or the installation, must be corrected.
Outcome = Literal["held", "lost", "passing", "lasting", "refused"]

_OUTCOMES: dict[str, Outcome] = {
"#;
const OUTCOME: &str = r#"}


def outcome_of(code: str, status: int) -> Outcome:
    """Returns the outcome of a problem.

    The status decides for a code that this version does not know.
    """
    passes = status in (408, 429) or status >= 500
    return _OUTCOMES.get(code, "passing" if passes else "refused")
"#;

pub(super) fn print(types: &Types) -> String {
    let mut file = HEAD.to_owned();
    for (code, outcome) in &types.outcomes {
        writeln!(file, "    \"{code}\": \"{outcome}\",").unwrap();
    }
    file += OUTCOME;
    for record in &types.records {
        let (optional, required): (Vec<_>, Vec<_>) =
            record.fields.iter().partition(|field| field.is_optional);
        let mut bases = "TypedDict".to_owned();
        if !required.is_empty() && !optional.is_empty() {
            bases = format!("_{}Fields", record.name);
            write!(file, "\n\nclass {bases}(TypedDict):\n").unwrap();
            print_fields(&mut file, &required);
        }
        if !optional.is_empty() {
            bases += ", total=False";
        }
        write!(file, "\n\nclass {}({bases}):\n", record.name).unwrap();
        writeln!(file, "    \"\"\"{}\"\"\"\n", record.description).unwrap();
        let own = if optional.is_empty() {
            required
        } else {
            optional
        };
        print_fields(&mut file, &own);
    }
    file
}

/// Prints fields that are all required, or all optional: Python 3.10 has no `NotRequired`.
fn print_fields(file: &mut String, fields: &[&Field]) {
    for field in fields {
        let kind = match &field.kind {
            Kind::Text => "str",
            Kind::Integer => "int",
            Kind::Flag => "bool",
            Kind::Texts => "list[str]",
            Kind::Map => "dict[str, str]",
            Kind::Record(name) => name,
        };
        *file += &comment("    #:", &field.description);
        writeln!(file, "    {}: {kind}", field.name).unwrap();
    }
}
