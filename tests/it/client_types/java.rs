//! Java: records. What is sent becomes a `Document`, and what is read is made of one.

use std::fmt::Write;

use super::{Field, Kind, Record, Types, WIDTH, comment};

const HEAD: &str = r"package dev.leasehold;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * What travels between an app and its sidecar. A field that an answer lacks is empty, or 0.
 *
 * <p>Generated from docs/openapi.json by {@code make generate}: do not edit it.
 */
final class Api {
  private Api() {}

  /** What an answer means for the app. */
  enum Outcome {
    /** Another caller has the lock. */
    HELD,
    /** The lease is over. */
    LOST,
    /** The same request may succeed soon. */
    PASSING,
    /** Locks are unavailable, and not only for moments. */
    LASTING,
    /** The request, or the installation, must be corrected. */
    REFUSED;

    /** Returns the outcome of a problem. The status decides for a code that is not known. */
    static Outcome of(String code, int status) {
      return switch (code) {
";
const TAIL: &str = r"        default -> status == 408 || status == 429 || status >= 500 ? PASSING : REFUSED;
      };
    }
  }
";

pub(super) fn print(types: &Types) -> String {
    let mut file = HEAD.to_owned();
    for (code, outcome) in &types.outcomes {
        let outcome = outcome.to_uppercase();
        writeln!(file, "        case \"{code}\" -> {outcome};").unwrap();
    }
    file += TAIL;
    for record in &types.records {
        file += "\n";
        file += &comment("  //", &record.description);
        let fields = record.fields.iter();
        let fields = fields.map(|field| format!("{} {}", type_of(field), field.name));
        file += &fill(
            &format!("  record {}(", record.name),
            &fields.collect::<Vec<_>>(),
            ") {",
        );
        file += &if record.is_sent {
            to_document(record)
        } else {
            of_document(record)
        };
        file += "  }\n";
    }
    file + "}\n"
}

fn type_of(field: &Field) -> String {
    let name = match (&field.kind, field.is_optional) {
        (Kind::Text, _) => "String",
        (Kind::Integer, false) => "long",
        (Kind::Integer, true) => "Long",
        (Kind::Flag, false) => "boolean",
        (Kind::Flag, true) => "Boolean",
        (Kind::Texts, _) => "List<String>",
        (Kind::Map, _) => "Map<String, String>",
        (Kind::Record(name), _) => name,
    };
    let mark = if field.is_optional { "@Nullable " } else { "" };
    mark.to_owned() + name
}

fn to_document(record: &Record) -> String {
    let mut method = String::from(
        "    Document toDocument() {\n      Map<String, @Nullable Object> fields = new LinkedHashMap<>();\n",
    );
    for Field {
        name, is_optional, ..
    } in &record.fields
    {
        let put = format!("fields.put(\"{name}\", {name});");
        if *is_optional {
            write!(
                method,
                "      if ({name} != null) {{\n        {put}\n      }}\n"
            )
            .unwrap();
        } else {
            writeln!(method, "      {put}").unwrap();
        }
    }
    method + "      return new Document(fields);\n    }\n"
}

fn of_document(record: &Record) -> String {
    let name = &record.name;
    let arguments = record.fields.iter().map(|field| {
        let name = format!("\"{}\"", field.name);
        match (&field.kind, field.is_optional) {
            (Kind::Text, false) => format!("document.text({name}, \"\")"),
            (Kind::Text, true) => format!("document.text({name})"),
            (Kind::Integer, false) => format!("document.number({name}, 0)"),
            (Kind::Integer, true) => format!("document.number({name})"),
            (Kind::Flag, _) => format!("document.flag({name})"),
            (Kind::Texts, _) => format!("document.texts({name})"),
            (Kind::Map, _) => format!("document.map({name})"),
            (Kind::Record(of), _) => format!("document.record({name}, {of}::of)"),
        }
    });
    let call = format!("      return new {name}(");
    let body = fill(&call, &arguments.collect::<Vec<_>>(), ");");
    format!("    static {name} of(Document document) {{\n{body}    }}\n")
}

/// Returns a list as google-java-format breaks it.
fn fill(before: &str, list: &[String], after: &str) -> String {
    let whole = format!("{before}{}{after}", list.join(", "));
    if whole.len() <= WIDTH {
        return whole + "\n";
    }
    let indent = " ".repeat(before.len() - before.trim_start().len() + 4);
    let rest = format!("{indent}{}{after}", list.join(", "));
    if rest.len() <= WIDTH {
        return format!("{before}\n{rest}\n");
    }
    format!(
        "{before}\n{indent}{}{after}\n",
        list.join(&format!(",\n{indent}"))
    )
}
