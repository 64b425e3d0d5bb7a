//! The rules for modules within a part of the crate: each imports only modules before it, and the
//! `impl` blocks of a type are in its file.

use std::collections::{BTreeMap, BTreeSet};

use super::{Source, shipped, src};

/// The parts of the crate to which the rules apply.
const PARTS: &[&str] = &["operator", "agent"];

/// The order of the modules in each directory of the part. A module imports only those before it.
const ORDER: &[(&str, &[&str])] = &[
    (
        "agent",
        &[
            "api", "core", "config", "metrics", "journal", "streams", "state", "driver", "query",
            "refusals", "observe", "release", "complete", "acquire", "events", "hold", "election",
            "resume", "stop",
        ],
    ),
    ("agent/driver", &["report"]),
    (
        "agent/election",
        &["lead", "interest", "seen", "current", "events", "campaign"],
    ),
    ("agent/journal", &["record", "past"]),
    ("agent/state", &["seen", "elections"]),
    (
        "agent/core",
        &[
            "limits",
            "backoff",
            "discard",
            "report",
            "history",
            "saved",
            "horizon",
            "effect",
            "env",
            "cooldown",
            "peers",
            "free_locks",
            "stream",
            "gone",
            "release",
            "leftover",
            "lost",
            "ending_sessions",
            "session",
            "watch",
            "held",
            "warm",
            "own",
            "warm_poll",
            "watching",
            "releases",
            "callers",
            "next",
            "holder",
            "claim",
            "acquiring",
            "leases",
            "observed",
            "begun",
            "answers",
            "reply",
            "granted",
            "decision",
            "judgement",
            "failure",
            "advance",
            "requests",
            "resume_plan",
            "resumed",
            "config",
        ],
    ),
    (
        "agent/core/session",
        &["config", "needs", "live", "begin", "resuming"],
    ),
    (
        "operator",
        &[
            "action",
            "backoff",
            "key",
            "observation",
            "own_pod",
            "ports",
            "store_check",
            "errors",
            "rules",
            "feeds",
            "queue",
            "view",
            "audit",
            "metrics",
            "plan",
            "apply",
            "done",
            "records",
            "recorder",
            "state",
        ],
    ),
    (
        "operator/view",
        &[
            "incidents",
            "listing",
            "nodes",
            "pod_session",
            "elections",
            "lock_observation",
            "object_cache",
            "pods",
            "labelled_namespaces",
            "sessions",
            "locks",
        ],
    ),
    (
        "operator/plan",
        &["binding", "label", "reclaim", "unready_leader"],
    ),
    (
        "operator/apply",
        &["applied", "bindings", "fleet", "labels", "leaders"],
    ),
];

/// A path in the code, or a module: `["operator", "view", "Key"]`.
pub(super) type Segments = Vec<String>;

/// Returns the module that a source defines.
pub(super) fn module_of(source: &Source) -> Segments {
    let inside = source.path.strip_prefix(src()).unwrap();
    let names = inside.with_extension("");
    let names = names.iter().map(|name| name.to_string_lossy().into_owned());
    names.collect()
}

/// Returns the shipped sources of a directory, and of the file with its name.
fn sources_of(directory: &str) -> Vec<(Segments, String)> {
    let root: Segments = directory.split('/').map(str::to_owned).collect();
    let all = shipped();
    let modules = all.iter().map(|source| (module_of(source), source.code()));
    let modules: Vec<_> = modules
        .filter(|(module, _)| module.starts_with(&root) && !module.contains(&"tests".to_owned()))
        .collect();
    assert!(modules.len() > 1, "no sources in src/{directory}");
    modules
}

/// Parses the `use` tree, or the path, at the start of a text. Adds each of its paths. Returns the
/// rest of the text.
fn parse_tree<'a>(text: &'a str, before: &Segments, paths: &mut Vec<Segments>) -> &'a str {
    if let Some(mut rest) = text.strip_prefix('{') {
        loop {
            rest = parse_tree(rest.trim_start(), before, paths).trim_start();
            rest = match rest.strip_prefix(',') {
                Some(next) => next.trim_start(),
                None => break,
            };
            if rest.starts_with('}') {
                break;
            }
        }
        return rest.strip_prefix('}').unwrap_or(rest);
    }
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let end = text.find(|c| !is_part(c)).unwrap_or(text.len());
    let mut path = before.clone();
    path.extend(Some(text[..end].to_owned()).filter(|name| !name.is_empty()));
    match text[end..].strip_prefix("::") {
        Some(rest) if rest.starts_with(|c| is_part(c) || c == '{') => {
            parse_tree(rest, &path, paths)
        }
        _ => {
            paths.push(path);
            &text[end..]
        }
    }
}

/// Returns the absolute paths that the code of a module names by `crate`, `super` or `self`. The
/// `crate` of a visibility does not count.
pub(super) fn named_paths(module: &Segments, code: &str) -> Vec<Segments> {
    let mut named = Vec::new();
    let mut done = 0;
    let starts = ["crate::", "super::", "self::"];
    while let Some(at) = starts.iter().filter_map(|s| code[done..].find(s)).min() {
        let (before, path) = code.split_at(done + at);
        let is_inside = before.ends_with(|c: char| c.is_alphanumeric() || "_:".contains(c));
        if is_inside || before.ends_with("in ") {
            done = before.len() + 1;
        } else {
            let rest = parse_tree(path, &Vec::new(), &mut named);
            done = code.len() - rest.len();
        }
    }
    let absolute = named.into_iter().map(|path| {
        let ups = path.iter().take_while(|name| *name == "super").count();
        let (mut base, skipped) = match path[0].as_str() {
            "crate" => (Vec::new(), 1),
            "self" => (module.clone(), 1),
            _ => (module[..module.len() - ups].to_vec(), ups),
        };
        base.extend_from_slice(&path[skipped..]);
        base
    });
    absolute.collect()
}

/// Which modules of a directory each of them imports. The file with the directory's name declares
/// all others, so it counts as importing them.
fn imports_within(
    root: &Segments,
    sources: &[(Segments, String)],
) -> BTreeMap<String, BTreeSet<String>> {
    let depth = root.len();
    let child = |path: &Segments| path.get(depth).cloned();
    let below: Vec<_> = sources
        .iter()
        .filter(|(module, _)| module.starts_with(root))
        .collect();
    let children: BTreeSet<String> = below
        .iter()
        .filter_map(|(module, _)| child(module))
        .collect();
    let top = root.join("/");
    let mut graph = BTreeMap::from([(top.clone(), children.clone())]);
    for (module, code) in below {
        let Some(from) = child(module) else { continue };
        let named = named_paths(module, code);
        let named = named.iter().filter(|path| path.starts_with(root));
        let named = named.map(|path| child(path).unwrap_or_default());
        let imported = named.map(|name| {
            if children.contains(&name) {
                name
            } else {
                top.clone()
            }
        });
        let imported = imported.filter(|name| *name != from);
        graph.entry(from.clone()).or_default().extend(imported);
    }
    graph
}

/// Returns an import of a module that does not come before the importing one in an order.
fn import_against<'a>(
    order: &[&str],
    graph: &'a BTreeMap<String, BTreeSet<String>>,
) -> Option<(&'a str, &'a str)> {
    // Unlisted modules come last, so the import of one by the top module is found.
    let place = |name: &str| order.iter().position(|listed| *listed == name);
    let place = |name: &str| place(name).unwrap_or(order.len());
    let imports = graph
        .iter()
        .flat_map(|(from, to)| to.iter().map(move |to| (from, to)));
    let mut imports = imports.map(|(from, to)| (from.as_str(), to.as_str()));
    imports.find(|(from, to)| place(to) >= place(from))
}

/// Returns the types with an `impl` block in the code, for their own methods or for a trait.
fn types_with_methods(code: &str) -> BTreeSet<String> {
    let code = format!("\n{code}");
    let blocks = code.split("\nimpl").skip(1);
    let blocks = blocks.filter(|block| block.starts_with([' ', '<', '\n']));
    let headers = blocks.filter_map(|block| block.split('{').next());
    headers.filter_map(type_of).collect()
}

/// Returns the name of the type in the header of an `impl` block.
fn type_of(header: &str) -> Option<String> {
    let (mut outside, mut depth, mut before) = (String::new(), 0, ' ');
    for c in header.chars() {
        match c {
            '<' => depth += 1,
            // An arrow in a bound closes nothing.
            '>' if before != '-' => depth -= 1,
            _ if depth == 0 => outside.push(c),
            _ => {}
        }
        before = c;
    }
    let words = outside
        .split_whitespace()
        .take_while(|word| *word != "where");
    let path = words.last()?;
    let name = path.rsplit("::").next()?;
    Some(name.trim_start_matches('&').to_owned())
}

fn defines(code: &str, name: &str) -> bool {
    ["struct", "enum"].iter().any(|kind| {
        let definition = format!("{kind} {name}");
        code.match_indices(&definition).any(|(at, _)| {
            !code[at + definition.len()..].starts_with(|c: char| c.is_alphanumeric() || c == '_')
        })
    })
}

/// Returns a type with an `impl` block outside the file that defines it, and the module of that
/// block. Types of one name in several files are different types.
fn stray_impl(sources: &[(Segments, String)]) -> Option<(String, &Segments)> {
    let is_defined = |name: &str| sources.iter().any(|(_, code)| defines(code, name));
    sources.iter().find_map(|(module, code)| {
        let mut types = types_with_methods(code).into_iter();
        let is_stray = |name: &String| !defines(code, name) && is_defined(name);
        let stray = types.find(is_stray)?;
        Some((stray, module))
    })
}

#[test]
fn modules_of_a_part_import_only_those_before_them() {
    for part in PARTS {
        let sources = sources_of(part);
        check_order(&sources);
    }
}

fn check_order(sources: &[(Segments, String)]) {
    for root in sources.iter().map(|(module, _)| module) {
        let graph = imports_within(root, sources);
        let top = root.join("/");
        if graph[&top].is_empty() {
            continue;
        }
        let order = ORDER.iter().find(|(name, _)| *name == top);
        let (_, order) = order.unwrap_or_else(|| panic!("add the modules of src/{top} to ORDER"));
        assert_eq!(import_against(order, &graph), None, "in src/{top}");
        let gone = order.iter().find(|name| !graph.contains_key(**name));
        assert_eq!(gone, None, "no such module in src/{top}");
    }
}

#[test]
fn impl_blocks_are_in_the_file_of_their_type() {
    for part in PARTS {
        assert_eq!(stray_impl(&sources_of(part)), None, "in src/{part}");
    }
}

#[test]
fn module_rules_detect_violations() {
    let segments = |path: &str| -> Segments { path.split('/').map(str::to_owned).collect() };
    let source = |module: &str, code: &str| (segments(module), code.to_owned());
    let code = "pub(in crate::a) use super::{super::b::{C, d::E}, f};\nself::g(crate::h::I::j);";
    let mut named: Vec<_> = named_paths(&segments("a/x/y"), code)
        .iter()
        .map(|path| path.join("/"))
        .collect();
    named.sort();
    assert_eq!(named, ["a/b/C", "a/b/d/E", "a/x/f", "a/x/y/g", "h/I/j"]);

    let layered = [
        source("a", "mod b;\nuse b::B;"),
        source("a/b", "use super::c::C;\nuse self::d::D;"),
        source("a/b/d", "use crate::a::c::C;"),
        source("a/c", "use crate::other::X;"),
    ];
    let graph = imports_within(&segments("a"), &layered);
    assert_eq!(import_against(&["c", "b"], &graph), None);
    assert_eq!(import_against(&["b", "c"], &graph), Some(("b", "c")));
    assert_eq!(import_against(&["c"], &graph), Some(("a", "b")), "unlisted");
    for (module, code) in [
        ("a/c", "use crate::a::b::B;"),
        ("a/c", "fn f() -> super::b::d::D {}"),
        ("a/c", "use super::{A, b::{B, d}};"),
        ("a/c", "use super::*;"),
    ] {
        let mut sources = layered.to_vec();
        sources.push(source(module, code));
        let graph = imports_within(&segments("a"), &sources);
        let found = import_against(&["c", "b"], &graph);
        assert!(
            found.is_some_and(|(from, _)| from == "c"),
            "{module}: {code}"
        );
    }
    let mut sources = layered.to_vec();
    sources.push(source("a/b/d", "use crate::a::b::B;"));
    assert_eq!(
        import_against(&["c", "b"], &imports_within(&segments("a"), &sources)),
        None
    );
    let graph = imports_within(&segments("a/b"), &sources);
    assert_eq!(import_against(&["d"], &graph), Some(("d", "a/b")));
}

#[test]
fn stray_impl_blocks_are_detected() {
    let source = |module: &str, code: &str| (vec![module.to_owned()], code.to_owned());
    let homes = [
        source(
            "a",
            "struct A;\nimpl A {}\nimpl fmt::Debug for Elsewhere {}",
        ),
        source(
            "b",
            "pub enum B<T> {}\nimpl<T> B<T> {}\nstruct A;\nimpl Default for A {}",
        ),
    ];
    assert_eq!(stray_impl(&homes), None);
    for block in [
        "impl<T: Into<u8>> super::B<T> {}",
        "impl<F: Fn() -> u8> B<F> {}",
        "impl<F>\n    B<F>\nwhere\n    F: for<'a> Fn(&'a u8) -> u8,\n{\n}",
        "impl<T> fmt::Debug for B<T> {}",
        "impl From<B<u8>> for &B<u16> {}",
    ] {
        let [first, second] = homes.clone();
        let sources = [first, second, source("c", block)];
        let found = stray_impl(&sources);
        let expected = ("B".to_owned(), &sources[2].0);
        assert_eq!(found, Some(expected), "{block}");
    }
}
