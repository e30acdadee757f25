//! What CONTRIBUTING.md asks of names and comments, where a program can check it. Counts of the
//! rest: `tests/style/count`.

use std::path::{Path, PathBuf};

/// Rust files below `folder` of the project, with their text.
pub(crate) fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders = vec![root.join(folder)];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            // The fuzz targets have a build folder of their own.
            if path.is_dir() && !path.ends_with("target") {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                found.push((path.strip_prefix(root).unwrap().to_owned(), text));
            }
        }
    }
    found.sort();
    assert!(found.len() > 10, "{folder} has sources");
    found
}

/// Whether `line` declares a public function or trait.
fn needs_doc(line: &str) -> bool {
    // A macro writes the comment of each function that it declares.
    if line.contains('$') {
        return false;
    }
    let Some(declared) = line.trim_start().strip_prefix("pub ") else { return false };
    let mut words = declared.split_whitespace().skip_while(|word| ["const", "async", "unsafe"].contains(word));
    words.next().is_some_and(|word| word == "fn" || word == "trait")
}

#[test]
fn public_functions_and_traits_have_a_doc_comment() {
    let mut missing = Vec::new();
    for (path, text) in sources("src") {
        let lines: Vec<&str> = text.lines().take_while(|line| *line != "#[cfg(test)]").collect();
        for (at, line) in lines.iter().enumerate().filter(|(_, line)| needs_doc(line)) {
            let above = lines[..at].iter().rev().map(|line| line.trim_start());
            let first = above.clone().find(|line| !line.starts_with("#[") && !line.ends_with(")]"));
            if !first.is_some_and(|line| line.starts_with("///")) {
                missing.push(format!("{}:{}: {}", path.display(), at + 1, line.trim()));
            }
        }
    }
    assert_eq!(missing, [""; 0]);
}

#[test]
fn every_file_begins_with_what_it_holds() {
    let bare: Vec<_> =
        sources("src").into_iter().filter(|(_, text)| !text.starts_with("//!")).map(|(path, _)| path).collect();
    assert_eq!(bare, [""; 0].map(PathBuf::from));
}

/// Tables and layouts of bytes, whose columns are aligned, may be wider.
#[test]
fn comments_have_at_most_100_columns() {
    let files = [sources("src"), sources("tests")].concat();
    let mut long = Vec::new();
    for (path, text) in files {
        let comments = text.lines().enumerate().filter(|(_, line)| line.trim_start().starts_with("//"));
        for (at, line) in comments.filter(|(_, line)| line.chars().count() > 100) {
            let words = line.trim_start().trim_start_matches(['/', '!']).trim();
            if !words.contains("  ") && !words.starts_with('|') {
                long.push(format!("{}:{}", path.display(), at + 1));
            }
        }
    }
    assert_eq!(long, [""; 0]);
}

/// A busy machine exceeds any limit. A test waits with `wait_until` or `in_time`, and asserts a
/// state or an order. The tests in `rdma` run alone in a virtual machine.
#[test]
fn no_test_asserts_an_upper_bound_on_elapsed_time() {
    let bound = ["elapsed()", " <"].concat();
    let files = sources("tests/it").into_iter().filter(|(path, _)| !path.starts_with("tests/it/rdma"));
    let lines = files.flat_map(|(path, text)| {
        let bounds: Vec<&str> = text.lines().filter(|line| line.contains(&bound)).collect();
        bounds.into_iter().map(|line| format!("{}: {}", path.display(), line.trim())).collect::<Vec<_>>()
    });
    assert_eq!(lines.collect::<Vec<_>>(), [""; 0]);
}

/// The evaluator of scripts grows with each form that it follows. A form that is rare in scripts is
/// left unread instead.
#[test]
fn the_evaluator_of_scripts_stays_within_its_limit() {
    const LINES_MAX: usize = 2500;
    let files = sources("src/engine/deploy/lint/shell").into_iter().filter(|(path, _)| {
        let name = path.file_name().and_then(|name| name.to_str());
        // The adapter of the parser, the syntax tree, and the splitting of words.
        !matches!(name, Some("parser.rs" | "syntax.rs" | "word.rs"))
    });
    let is_code = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with("//");
    let lines: usize =
        files.map(|(_, text)| text.lines().take_while(|line| *line != "#[cfg(test)]").filter(is_code).count()).sum();
    assert!(lines > 1000 && lines <= LINES_MAX, "{lines} lines; the limit is {LINES_MAX}");
}
