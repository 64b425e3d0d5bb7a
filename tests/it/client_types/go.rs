//! Go: an internal package, so that its names are not the module's.

use std::fmt::Write;

use super::{Kind, Types, comment, pascal_case};

const HEAD: &str = r"// Code generated from docs/openapi.json by make generate. DO NOT EDIT.

// Package api has what travels between an app and its sidecar. A field that an answer lacks has the zero
// value.
package api

// Outcome is what an answer means for the app.
type Outcome int

// The outcomes.
const (
	// Held: another caller has the lock.
	Held Outcome = iota
	// Lost: the lease is over.
	Lost
	// Passing: the same request may succeed soon.
	Passing
	// Lasting: locks are unavailable, and not only for moments.
	Lasting
	// Refused: the request, or the installation, must be corrected.
	Refused
)

// OutcomeOf is the outcome of a problem's code. The status decides for a code that this version does not
// know.
func OutcomeOf(code string, status int) Outcome {
	switch code {
";
const TAIL: &str = r"	}
	if status == 408 || status == 429 || status >= 500 {
		return Passing
	}
	return Refused
}
";

pub(super) fn print(types: &Types) -> String {
    let mut file = HEAD.to_owned();
    for outcome in ["held", "lost", "passing", "lasting", "refused"] {
        let codes = types.outcomes.iter().filter(|(_, of)| *of == outcome);
        let codes: Vec<_> = codes.map(|(code, _)| format!("\t\t\"{code}\"")).collect();
        let name = pascal_case(outcome);
        write!(file, "\tcase\n{}:\n\t\treturn {name}\n", codes.join(",\n")).unwrap();
    }
    file += TAIL;
    for record in &types.records {
        file += "\n";
        file += &comment("//", &format!("{}: {}", record.name, record.description));
        writeln!(file, "type {} struct {{", record.name).unwrap();
        for field in &record.fields {
            let name = go_name(&field.name);
            let omitted = if field.is_optional { ",omitempty" } else { "" };
            let kind = match (&field.kind, field.is_optional) {
                (Kind::Text, _) => "string".to_owned(),
                (Kind::Integer, false) => "int64".to_owned(),
                // A zero is sent.
                (Kind::Integer, true) => "*int64".to_owned(),
                (Kind::Flag, _) => "bool".to_owned(),
                (Kind::Texts, _) => "[]string".to_owned(),
                (Kind::Map, _) => "map[string]string".to_owned(),
                (Kind::Record(name), _) => format!("*{name}"),
            };
            file += &comment("\t//", &field.description);
            writeln!(file, "\t{name} {kind} `json:\"{}{omitted}\"`", field.name).unwrap();
        }
        file += "}\n";
    }
    file
}

/// Go writes initials in capitals.
fn go_name(name: &str) -> String {
    let name = pascal_case(name).replace("Ttl", "TTL");
    match name.strip_suffix("Id") {
        Some(of) => format!("{of}ID"),
        None => name,
    }
}
