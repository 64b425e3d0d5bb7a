//! TypeScript: interfaces. What is read has only optional fields, since it is not checked.

use std::fmt::Write;

use super::{Kind, Types, WIDTH, comment};

const HEAD: &str = r#"/**
 * What travels between an app and its sidecar.
 *
 * Generated from docs/openapi.json by `make generate`: do not edit it.
 */

/**
 * What an answer means for the app. `held`: another caller has the lock. `lost`: the lease is over.
 * `passing`: the same request may succeed soon. `lasting`: locks are unavailable, and not only for
 * moments. `refused`: the request, or the installation, must be corrected.
 */
export type Outcome = "held" | "lost" | "passing" | "lasting" | "refused";

/** Returns the outcome of a problem. The status decides for a code that this version does not know. */
export function outcomeOf(code: string, status: number): Outcome {
  const passes = status === 408 || status === 429 || status >= 500;
  return OUTCOMES.get(code) ?? (passes ? "passing" : "refused");
}

const OUTCOMES = new Map<string, Outcome>([
"#;

pub(super) fn print(types: &Types) -> String {
    let mut file = HEAD.to_owned();
    for (code, outcome) in &types.outcomes {
        writeln!(file, "  [\"{code}\", \"{outcome}\"],").unwrap();
    }
    file += "]);\n";
    for record in &types.records {
        file += "\n";
        file += &jsdoc("", &record.description);
        writeln!(file, "export interface {} {{", record.name).unwrap();
        for field in &record.fields {
            let kind = match &field.kind {
                Kind::Text => "string",
                Kind::Integer => "number",
                Kind::Flag => "boolean",
                Kind::Texts => "readonly string[]",
                Kind::Map => "Readonly<Record<string, string>>",
                Kind::Record(name) => name,
            };
            file += &jsdoc("  ", &field.description);
            let is_optional = field.is_optional || !record.is_sent;
            let mark = if is_optional { "?" } else { "" };
            writeln!(file, "  readonly {}{mark}: {kind};", field.name).unwrap();
        }
        file += "}\n";
    }
    file
}

fn jsdoc(indent: &str, text: &str) -> String {
    let line = format!("{indent}/** {text} */\n");
    if line.len() <= WIDTH {
        return line;
    }
    let lines = comment(&format!("{indent} *"), text);
    format!("{indent}/**\n{lines}{indent} */\n")
}
