//! The rules for modules within a part of the crate: no cycle of imports, and one home for the
//! methods of a type.

use std::collections::{BTreeMap, BTreeSet};

use super::{Source, shipped, src};

/// The directories under `src` to which the rules apply, with all directories below them.
const LAYERED: &[&str] = &["operator"];

/// A path in the code, or a module: `["operator", "view", "Key"]`.
type Segments = Vec<String>;

/// Returns the module that a source defines.
fn module_of(source: &Source) -> Segments {
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
fn named_paths(module: &Segments, code: &str) -> Vec<Segments> {
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

/// Returns a cycle of a graph, if it has one.
fn cycle(graph: &BTreeMap<String, BTreeSet<String>>) -> Option<Vec<&str>> {
    fn visit<'a>(
        graph: &'a BTreeMap<String, BTreeSet<String>>,
        node: &'a str,
        path: &mut Vec<&'a str>,
        done: &mut BTreeSet<&'a str>,
    ) -> bool {
        if let Some(at) = path.iter().position(|before| *before == node) {
            path.drain(..at);
            return true;
        }
        path.push(node);
        let is_new = done.insert(node);
        if is_new
            && graph[node]
                .iter()
                .any(|next| visit(graph, next, path, done))
        {
            return true;
        }
        path.pop();
        false
    }
    let (mut path, mut done) = (Vec::new(), BTreeSet::new());
    let mut nodes = graph.keys();
    let found = nodes.any(|node| visit(graph, node, &mut path, &mut done));
    found.then_some(path)
}

/// Returns the types with an inherent `impl` in the code.
fn types_with_methods(code: &str) -> BTreeSet<&str> {
    let blocks = code.lines().filter_map(|line| line.strip_prefix("impl"));
    let blocks = blocks.filter(|block| !block.contains(" for "));
    let types = blocks.map(|block| match block.strip_prefix('<') {
        // The parameters of the block end at the first space that is followed by the type.
        Some(generic) => generic.split_once("> ").map_or("", |(_, name)| name),
        None => block.trim_start(),
    });
    let paths = types.filter_map(|name| name.split(['<', ' ', '{']).next());
    paths.filter_map(|path| path.rsplit("::").next()).collect()
}

fn defines(code: &str, name: &str) -> bool {
    ["struct", "enum"].iter().any(|kind| {
        let definition = format!("{kind} {name}");
        code.match_indices(&definition).any(|(at, _)| {
            !code[at + definition.len()..].starts_with(|c: char| c.is_alphanumeric() || c == '_')
        })
    })
}

/// Returns a type whose methods are in several files. Types of one name in several files are
/// different types.
fn type_with_many_homes(sources: &[(Segments, String)]) -> Option<(&str, Vec<&Segments>)> {
    let mut homes: BTreeMap<&str, Vec<&(Segments, String)>> = BTreeMap::new();
    for source in sources {
        for name in types_with_methods(&source.1) {
            homes.entry(name).or_default().push(source);
        }
    }
    homes.retain(|name, homes| {
        homes.len() > 1 && !homes.iter().all(|(_, code)| defines(code, name))
    });
    let (name, homes) = homes.pop_first()?;
    Some((name, homes.into_iter().map(|(module, _)| module).collect()))
}

#[test]
fn modules_of_a_layered_part_import_without_a_cycle() {
    for directory in LAYERED {
        let sources = sources_of(directory);
        let roots = sources.iter().map(|(module, _)| module);
        for root in roots.filter(|root| src().join(root.join("/")).is_dir()) {
            let graph = imports_within(root, &sources);
            let cycle = cycle(&graph).map(|cycle| cycle.join(" -> "));
            assert_eq!(
                cycle,
                None,
                "the modules of src/{} import in a cycle",
                root.join("/")
            );
        }
    }
}

#[test]
fn methods_of_a_type_are_in_one_file() {
    for directory in LAYERED {
        let sources = sources_of(directory);
        assert_eq!(type_with_many_homes(&sources), None);
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
    assert_eq!(cycle(&imports_within(&segments("a"), &layered)), None);
    for (module, code) in [
        ("a/c", "use crate::a::b::B;"),
        ("a/c", "fn f() -> super::b::d::D {}"),
        ("a/c", "use super::{A, b::{B, d}};"),
        ("a/c", "use super::*;"),
    ] {
        let mut sources = layered.to_vec();
        sources.push(source(module, code));
        let graph = imports_within(&segments("a"), &sources);
        assert!(cycle(&graph).is_some(), "{module}: {code}");
    }
    let mut sources = layered.to_vec();
    sources.push(source("a/b/d", "use crate::a::b::B;"));
    assert_eq!(cycle(&imports_within(&segments("a"), &sources)), None);
    assert!(cycle(&imports_within(&segments("a/b"), &sources)).is_some());

    let homes = [
        source("a", "struct A;\nimpl A {}\nimpl fmt::Debug for B {}"),
        source(
            "b",
            "pub enum B<T> {}\nimpl<T> B<T> {}\nstruct A;\nimpl A {}",
        ),
    ];
    assert_eq!(type_with_many_homes(&homes), None);
    let [first, second] = homes;
    let third = source("c", "impl<T: Into<u8>> super::B<T> {}");
    let homes = [first, second, third];
    let found = type_with_many_homes(&homes).map(|(name, _)| name);
    assert_eq!(found, Some("B"));
}
