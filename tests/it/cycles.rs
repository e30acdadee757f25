//! Checks that no circle of source files uses each other, except for those in a list.

use std::collections::{BTreeMap, BTreeSet};

use crate::layers::{Token, files};

/// The circles that stay, each with its reason. A line names the files without `.rs`, in alphabetical order.
const ALLOWED: &[(&str, &str)] = &[
    ("commands/error commands/logging/mod", "an error about log flags is printed through the log's stderr"),
    ("engine/lint/read/launch engine/lint/read/script", "a script runs a launcher, and a launcher runs a script"),
    ("engine/master/eviction/round engine/master/state", "one state machine, whose methods are in several files"),
    (
        "engine/master/eviction/index engine/master/eviction/list engine/master/object",
        "an intrusive list: the objects are its nodes",
    ),
    ("engine/sys/memory engine/sys/pages", "a block of an arena keeps the arena, which is memory itself"),
    (
        "engine/transfer/rdma/endpoint engine/transfer/rdma/nic",
        "a device owns its endpoints and is passed to their methods",
    ),
    (
        "engine/transfer/shared_memory/bound_peer engine/transfer/shared_memory/peer",
        "a peer binds batches to a link, and a bound batch is run by the peer's methods",
    ),
];

/// A module or an item in it, from the crate's root.
type Path = Vec<String>;

/// What a file uses, and the names that it passes on (`pub use`).
#[derive(Default)]
struct Uses {
    paths: Vec<Path>,
    exports: BTreeMap<String, Path>,
}

/// `engine/wire/mod.rs` -> `[engine, wire]`.
fn module(file: &str) -> Path {
    let path = file.strip_suffix(".rs").unwrap();
    let path = path.strip_suffix("/mod").unwrap_or(path);
    if path == "lib" { Vec::new() } else { path.split('/').map(str::to_owned).collect() }
}

/// The tokens without the test module at the foot of the file.
pub(crate) fn without_tests(tokens: &[Token]) -> &[Token] {
    let is_tests = |w: &[Token]| w.iter().map(|t| t.0.as_str()).eq(["(", "test", ")", "]", "mod", "tests", "{"]);
    let end = tokens.windows(7).position(is_tests).unwrap_or(tokens.len());
    &tokens[..end]
}

/// Reads the path or the tree of paths that begins at `tokens[at]`. Returns the place after it.
fn tree(tokens: &[Token], mut at: usize, prefix: &Path, out: &mut Vec<Path>) -> usize {
    let is = |at: usize, word: &str| tokens.get(at).is_some_and(|t| t.0 == word);
    let mut path = prefix.clone();
    loop {
        if is(at, "{") {
            at += 1;
            while at < tokens.len() && !is(at, "}") {
                at = tree(tokens, at, &path, out);
                at += usize::from(is(at, ","));
            }
            return at + 1;
        }
        let Some((word, _)) = tokens.get(at) else { break };
        path.push(word.clone());
        at += 1;
        if !is(at, "::") {
            break;
        }
        at += 1;
    }
    if is(at, "as") {
        at += 2;
    }
    out.push(path);
    at
}

fn uses(file: &str, tokens: &[Token], modules: &BTreeMap<Path, String>) -> Uses {
    let (here, mut uses, mut at) = (module(file), Uses::default(), 0);
    let is = |at: usize, word: &str| tokens.get(at).is_some_and(|t| t.0 == word);
    while at < tokens.len() {
        let is_use = is(at, "use");
        if !is_use && !((is(at, "crate") || is(at, "super")) && is(at + 1, "::")) {
            at += 1;
            continue;
        }
        let is_public = is_use && at > 0 && (is(at - 1, "pub") || is(at - 1, ")"));
        let mut found = Vec::new();
        at = tree(tokens, at + usize::from(is_use), &Vec::new(), &mut found);
        for path in found {
            let path: Path = match path[0].as_str() {
                "crate" => path[1..].to_vec(),
                "self" => [&here[..], &path[1..]].concat(),
                "super" => [&here[..here.len().saturating_sub(1)], &path[1..]].concat(),
                _ => [&here[..], &path[..]].concat(),
            };
            let name = path.iter().rfind(|word| *word != "self").cloned();
            if let Some(name) = name.filter(|_| is_public) {
                uses.exports.insert(name, path.clone());
            }
            uses.paths.push(path);
        }
    }
    // A relative path that does not begin with a module of ours names another crate.
    uses.paths.retain(|path| (1..=path.len()).any(|len| len > 1 && modules.contains_key(&path[..len])));
    uses
}

/// The file that defines what `path` names. Follows re-exports.
fn definition<'a>(
    path: &[String],
    modules: &'a BTreeMap<Path, String>,
    uses: &BTreeMap<&str, Uses>,
    depth: usize,
) -> Option<&'a str> {
    let len = (1..=path.len()).rev().find(|len| modules.contains_key(&path[..*len]))?;
    let file = modules[&path[..len]].as_str();
    let item = path[len..].iter().find(|word| *word != "self");
    let exported = item.and_then(|item| uses.get(file)?.exports.get(item)).filter(|_| depth < 8);
    let followed = exported.and_then(|target| definition(target, modules, uses, depth + 1));
    Some(followed.unwrap_or(file))
}

/// Which file uses which. A module and the files in its directory do not count: the one declares the others.
fn graph(files: &[(String, Vec<Token>)]) -> BTreeMap<String, BTreeSet<String>> {
    let files: Vec<(&str, &[Token])> = files
        .iter()
        .filter(|(file, _)| !file.split(['/', '.']).any(|part| part == "tests"))
        .map(|(file, tokens)| (file.as_str(), without_tests(tokens)))
        .collect();
    let modules: BTreeMap<Path, String> = files.iter().map(|(file, _)| (module(file), (*file).to_owned())).collect();
    let uses: BTreeMap<&str, Uses> = files.iter().map(|(file, tokens)| (*file, uses(file, tokens, &modules))).collect();
    let folder = |file: &str| format!("{}/", module(file).join("/"));
    let is_above = |a: &str, b: &str| b.starts_with(&folder(a));
    let targets = |file: &str, uses_of: &Uses| -> BTreeSet<String> {
        let all = uses_of.paths.iter().filter_map(|path| definition(path, &modules, &uses, 0));
        all.filter(|to| *to != file && !is_above(to, file) && !is_above(file, to)).map(str::to_owned).collect()
    };
    uses.iter().map(|(file, uses_of)| ((*file).to_owned(), targets(file, uses_of))).collect()
}

/// The sets of files that reach each other, each as a line.
fn circles(graph: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let reach = |from: &String| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(file) = next.pop() {
            next.extend(graph.get(file).into_iter().flatten().filter(|to| seen.insert((*to).clone())));
        }
        seen
    };
    let reached: BTreeMap<&String, BTreeSet<String>> = graph.keys().map(|file| (file, reach(file))).collect();
    let circle = |file: &String| -> Vec<&str> {
        let members = reached[file].iter().filter(|other| reached.get(other).is_some_and(|r| r.contains(file)));
        members.map(|other| other.strip_suffix(".rs").unwrap()).collect()
    };
    let lines: BTreeSet<String> = graph.keys().map(|file| circle(file).join(" ")).collect();
    lines.into_iter().filter(|line| !line.is_empty()).collect()
}

#[test]
fn files_do_not_use_each_other_in_circles() {
    let allowed: BTreeSet<&str> = ALLOWED.iter().map(|(files, _)| *files).collect();
    let found = circles(&graph(&files()));
    let new: Vec<&String> = found.iter().filter(|circle| !allowed.contains(circle.as_str())).collect();
    assert!(new.is_empty(), "{new:#?}");
    let gone: Vec<&&str> = allowed.iter().filter(|circle| !found.iter().any(|found| found == *circle)).collect();
    assert!(gone.is_empty(), "remove these from the list, they are not circles: {gone:#?}");
}

#[test]
fn a_circle_is_found_through_groups_and_re_exports() {
    let file = |name: &str, text: &str| (name.to_owned(), crate::layers::tokens(text));
    let found = |files: &[(String, Vec<Token>)]| circles(&graph(files));
    let a = file("engine/x/a.rs", "use crate::engine::x::{Other, y::B};");
    let through = [file("engine/x/mod.rs", "mod a; mod y; mod o; pub use o::Other;"), file("engine/x/o.rs", "")];
    let back = file("engine/x/o.rs", "fn f() { crate::engine::x::a::g() }");
    let y = file("engine/x/y.rs", "#[cfg(test)]\nmod tests { use crate::engine::x::a; }");
    let [facade, other] = through;
    assert_eq!(found(&[a.clone(), facade.clone(), other, y.clone()]), Vec::<String>::new());
    assert_eq!(found(&[a, facade, back, y]), ["engine/x/a engine/x/o"]);
}
