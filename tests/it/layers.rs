//! Checks the sources against the layer table of ARCHITECTURE.md, and the absences that the document states.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::cycles::without_tests;

/// Identifiers that a core must not use: it gets `now` as an argument, and owns no socket.
const NOT_IN_A_CORE: &[&str] = &["Instant", "SystemTime", "TcpStream", "TcpListener", "tokio", "thread", "RandomState"];
/// The master's core does not wait, because it answers under a lock. (The method table of `wire` declares the client's calls, which wait.)
const NOT_IN_THE_MASTER: &[&str] = &["await", "async"];
/// Folders in which every file is pure.
const PURE_FOLDERS: &[&str] = &["base", "check", "deploy", "kube", "lint", "plan", "upstream", "wire", "alloc", "ha"];
/// The files of `master` that are its shells; all others are its core.
const MASTER_SHELLS: &[&str] = &["server", "admin.rs"];
/// The table of transports.
const TRANSPORT_TABLE: &str = "engine/transfer/transports.rs";
/// Folders of `commands` that several commands share. Any other folder is a command.
const SHARED_BY_COMMANDS: &[&str] = &["gflags", "logging", "service_flags", "svg"];
/// Identifiers that `commands` must not use outside its unit tests: the engine owns clocks, sockets and HTTP clients. `RealEnv` is
/// allowed, because commands pass it to the engine, but not its clocks (`now` and `unix`).
const NOT_IN_COMMANDS: &[&str] = &[
    "Instant",
    "SystemTime",
    "TcpStream",
    "TcpListener",
    "UdpSocket",
    "UnixStream",
    "ToSocketAddrs",
    "lookup_host",
    "reqwest",
];
/// Crates that `commands` alone may name.
const COMMAND_CRATES: &[&str] = &["clap", "comfy_table", "indicatif", "anyhow"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Row name -> what it may name, and the rows in order. `None`: everything.
struct Table {
    rows: Vec<String>,
    may: BTreeMap<String, Option<Vec<String>>>,
}

/// The section Layers of ARCHITECTURE.md: the table of modules, and the table of crates.
fn section() -> (String, String) {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let section = text.split("\n## ").find(|s| s.starts_with("Layers")).expect("ARCHITECTURE.md has a section Layers");
    let (modules, crates) = section.split_once("\n| crate |").expect("the section has a table of crates");
    (modules.to_owned(), crates.to_owned())
}

fn table() -> Table {
    let (section, _) = section();
    let mut t = Table { rows: Vec::new(), may: BTreeMap::new() };
    for line in section.lines().filter(|l| l.starts_with("| `")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let name = cells[1].trim_matches('`').to_owned();
        let may = match cells[2] {
            "all" | "everything" => None,
            "-" => Some(Vec::new()),
            list => Some(list.split_whitespace().map(str::to_owned).collect()),
        };
        for named in may.iter().flatten() {
            assert!(t.rows.contains(named), "the row of `{name}` names `{named}`, which does not stand above it");
        }
        assert!(t.may.insert(name.clone(), may).is_none(), "two rows for `{name}`");
        t.rows.push(name);
    }
    assert!(t.rows.len() > 5, "the table of ARCHITECTURE.md was not understood");
    t
}

/// A word or a punctuation mark, and the line it stands on.
pub(crate) type Token = (String, usize);

/// Words and punctuation of Rust text, without comments, strings and character literals.
pub(crate) fn tokens(text: &str) -> Vec<Token> {
    let b = text.as_bytes();
    let (mut i, mut line, mut out) = (0, 1, Vec::new());
    let word = |c: u8| c.is_ascii_alphanumeric() || c == b'_' || c >= 0x80;
    while i < b.len() {
        let c = b[i];
        if c == b'\n' {
            line += 1;
            i += 1;
        } else if b[i..].starts_with(b"//") {
            while i < b.len() && b[i] != b'\n' {
                i += 1;
            }
        } else if b[i..].starts_with(b"/*") {
            let mut depth = 0;
            loop {
                if b[i..].starts_with(b"/*") {
                    depth += 1;
                    i += 2;
                } else if b[i..].starts_with(b"*/") {
                    depth -= 1;
                    i += 2;
                } else {
                    line += usize::from(b[i] == b'\n');
                    i += 1;
                }
                if depth == 0 || i >= b.len() {
                    break;
                }
            }
        } else if let Some(hashes) = raw_string(&b[i..]) {
            i += b[i..].iter().position(|&c| c == b'"').unwrap() + 1;
            let end = [b"\"".as_slice(), &b"#".repeat(hashes)].concat();
            while i < b.len() && !b[i..].starts_with(&end) {
                line += usize::from(b[i] == b'\n');
                i += 1;
            }
            i += end.len();
        } else if c == b'"' {
            i += 1;
            while i < b.len() && b[i] != b'"' {
                line += usize::from(b[i] == b'\n');
                i += if b[i] == b'\\' && b.get(i + 1) != Some(&b'\n') { 2 } else { 1 };
            }
            i += 1;
        } else if c == b'\'' {
            // a character literal ends with a quote after one character or an escape; a lifetime does not
            let rest = &text[i + 1..];
            if rest.starts_with('\\') {
                i += 3;
                while b[i] != b'\'' {
                    i += 1;
                }
                i += 1;
            } else {
                let mut chars = rest.chars();
                let first = chars.next().map_or(1, char::len_utf8);
                i += if chars.next() == Some('\'') { first + 2 } else { 1 };
            }
        } else if word(c) {
            let start = i;
            while i < b.len() && word(b[i]) {
                i += 1;
            }
            out.push((text[start..i].to_owned(), line));
        } else {
            if b[i..].starts_with(b"::") {
                out.push(("::".to_owned(), line));
                i += 1;
            } else if !c.is_ascii_whitespace() {
                out.push(((c as char).to_string(), line));
            }
            i += 1;
        }
    }
    out
}

/// `r"`, `r#"`, `br##"`: how many hashes.
fn raw_string(b: &[u8]) -> Option<usize> {
    let b = b.strip_prefix(b"b").unwrap_or(b).strip_prefix(b"r")?;
    let hashes = b.iter().take_while(|&&c| c == b'#').count();
    (b.get(hashes) == Some(&b'"')).then_some(hashes)
}

/// The modules that a file names as `crate::engine::X`, or as `crate::PARENT::X`, brace groups included.
fn named(tokens: &[Token], parent: &str) -> Vec<Token> {
    let mut out = Vec::new();
    for i in 0..tokens.len() {
        let is = |k: usize, w: &str| tokens.get(i + k).is_some_and(|t| t.0 == w);
        if !((is(0, "crate") || is(0, "mcctl")) && is(1, "::") && is(2, parent) && is(3, "::")) {
            continue;
        }
        if !is(4, "{") {
            out.extend(tokens.get(i + 4).cloned());
            continue;
        }
        let (mut depth, mut head) = (1, true);
        for t in &tokens[i + 5..] {
            match t.0.as_str() {
                "{" => depth += 1,
                "}" => depth -= 1,
                "," if depth == 1 => head = true,
                _ if depth == 1 && head => {
                    out.push(t.clone());
                    head = false;
                }
                _ => {}
            }
            if depth == 0 {
                break;
            }
        }
    }
    out
}

fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

/// Every source file: its path under src, and its tokens.
pub(crate) fn files() -> Vec<(String, Vec<Token>)> {
    let src = root().join("src");
    let mut paths = Vec::new();
    sources(&src, &mut paths);
    let name = |p: &PathBuf| p.strip_prefix(&src).unwrap().to_str().unwrap().to_owned();
    paths.iter().map(|p| (name(p), tokens(&std::fs::read_to_string(p).unwrap()))).collect()
}

/// `engine/wire/frame.rs` -> (`wire`, `frame.rs`). `None` for the files that only list modules.
fn place(file: &str) -> Option<(&str, &str)> {
    let rest = file.strip_prefix("engine/")?;
    match rest.split_once('/') {
        Some(("crates", _)) => None,
        Some((row, inner)) => Some((row, inner)),
        None if rest == "mod.rs" => None,
        None => Some((rest.strip_suffix(".rs")?, "mod.rs")),
    }
}

fn misplaced(table: &Table, file: &str, tokens: &[Token]) -> Vec<String> {
    let mut wrong = Vec::new();
    let Some((row, inner)) = place(file) else { return wrong };
    let Some(may) = table.may.get(row) else { return vec![format!("{file}: `{row}` has no row in ARCHITECTURE.md")] };
    for (module, line) in named(tokens, "engine") {
        let allowed = module == row || may.as_ref().is_none_or(|m| m.contains(&module));
        if table.may.contains_key(&module) && !allowed {
            wrong.push(format!("{file}:{line}: {row} names {module}"));
        }
    }
    for (i, (word, line)) in tokens.iter().enumerate() {
        let path = |k: usize| tokens.get(i + k).map_or("", |t| t.0.as_str());
        if word == "super" && path(1) == "::" {
            let out_of_row = inner == "mod.rs" && table.may.contains_key(path(2)) && path(2) != row;
            if path(2) == "super" || out_of_row {
                wrong.push(format!("{file}:{line}: super::{} instead of crate::engine::...", path(2)));
            }
        }
    }
    wrong
}

/// What is spoken of and does not exist. A row or an exception for it would go unnoticed, and the next module of that name with it.
fn absent(table: &Table) -> Vec<String> {
    let src = root().join("src");
    let exists = |path: &str| src.join(path).exists();
    let row = |row: &str| exists(row) || exists(&format!("engine/{row}")) || exists(&format!("engine/{row}.rs"));
    let rows = table.rows.iter().filter(|r| !row(r)).map(|r| format!("the row `{r}` of ARCHITECTURE.md"));
    let pure = PURE_FOLDERS.iter().filter(|f| !exists(&format!("engine/{f}"))).map(|f| format!("the folder {f}"));
    let shells = MASTER_SHELLS.iter().filter(|f| !exists(&format!("engine/master/{f}")));
    rows.chain(pure).chain(shells.map(|f| format!("the shell {f} of master"))).collect()
}

#[test]
fn whatever_the_table_speaks_of_exists() {
    let mut table = table();
    assert_eq!(absent(&table), Vec::<String>::new());
    table.rows.push("nowhere".to_owned());
    assert_eq!(absent(&table), ["the row `nowhere` of ARCHITECTURE.md"]);
}

#[test]
fn crates_have_the_modules_that_the_document_lists() {
    let (_, crates) = section();
    let mut listed = 0;
    for line in crates.lines().filter(|line| line.starts_with("| `mcctl-")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let name = cells[1].trim_matches('`').trim_start_matches("mcctl-");
        let text = std::fs::read_to_string(root().join(format!("src/engine/crates/{name}/lib.rs"))).unwrap();
        let mut found: Vec<&str> = text.lines().filter_map(|line| line.trim().strip_prefix("pub mod ")).collect();
        found.retain(|module| module.ends_with(';'));
        let mut expected: Vec<String> = cells[2].split(", ").map(|module| format!("{module};")).collect();
        expected.sort();
        assert_eq!(found, expected, "{name}");
        listed += 1;
    }
    assert_eq!(listed, std::fs::read_dir(root().join("src/engine/crates")).unwrap().count());
}

#[test]
fn modules_name_only_what_their_row_allows() {
    let table = table();
    let wrong: Vec<String> = files().iter().flat_map(|(f, t)| misplaced(&table, f, t)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn unsafe_is_written_in_sys_alone() {
    let wrong = words(&["unsafe"], |file| file.starts_with("engine/sys/"));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn cores_know_no_clock_no_socket_and_no_task() {
    let shell_of_master = |inner: &str| MASTER_SHELLS.contains(&inner.split('/').next().unwrap());
    let mut wrong = words(NOT_IN_A_CORE, |file| match place(file) {
        Some(("master", inner)) => shell_of_master(inner),
        Some((row, _)) => !PURE_FOLDERS.contains(&row),
        None => true,
    });
    wrong.extend(words(NOT_IN_THE_MASTER, |file| match place(file) {
        Some(("master", inner)) => shell_of_master(inner),
        _ => true,
    }));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_engine_knows_no_command_line() {
    let wrong = words(COMMAND_CRATES, |file| !file.starts_with("engine/"));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Where a file of a command names the folder of another command.
fn neighbours(folders: &[String], file: &str, tokens: &[Token]) -> Vec<String> {
    let Some((own, _)) = file.strip_prefix("commands/").and_then(|rest| rest.split_once('/')) else {
        return Vec::new();
    };
    let is_other = |module: &str| {
        module != own && folders.iter().any(|folder| folder == module) && !SHARED_BY_COMMANDS.contains(&module)
    };
    let found = named(tokens, "commands").into_iter().filter(|(module, _)| is_other(module));
    found.map(|(module, line)| format!("{file}:{line}: {own} names {module}")).collect()
}

#[test]
fn no_command_names_the_folder_of_another_command() {
    let files = files();
    let inner = |file: &String| file.strip_prefix("commands/")?.split_once('/').map(|(folder, _)| folder.to_owned());
    let folders: Vec<String> = files.iter().filter_map(|(file, _)| inner(file)).collect();
    assert!(SHARED_BY_COMMANDS.iter().all(|shared| folders.iter().any(|folder| folder == shared)), "a folder is gone");
    let wrong: Vec<String> = files.iter().flat_map(|(file, tokens)| neighbours(&folders, file, tokens)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let check = |text: &str| neighbours(&folders, "commands/up/a.rs", &tokens(text)).join("; ");
    assert_eq!(check("use crate::commands::{svg, output};\nuse crate::commands::up::paste;"), "");
    assert_eq!(
        check("use crate::commands::{\n    output,\n    serve::master,\n};"),
        "commands/up/a.rs:3: up names serve"
    );
}

/// The tokens of a file before its unit tests.
fn before_tests(tokens: &[Token]) -> &[Token] {
    let attribute = ["#", "[", "cfg", "(", "test", ")", "]"];
    let is_tests = |window: &[Token]| window.iter().zip(attribute).all(|((word, _), expected)| word == expected);
    let end = tokens.windows(attribute.len()).position(is_tests).unwrap_or(tokens.len());
    &tokens[..end]
}

#[test]
fn commands_use_no_clock_no_socket_and_no_http_client() {
    let mut wrong = Vec::new();
    for (file, tokens) in files().iter().filter(|(file, _)| file.starts_with("commands/")) {
        let tokens = before_tests(tokens);
        let used = tokens.iter().filter(|(word, _)| NOT_IN_COMMANDS.contains(&word.as_str()));
        wrong.extend(used.map(|(word, line)| format!("{file}:{line}: {word}")));
        let clocks =
            tokens.windows(3).filter(|w| w[0].0 == "." && matches!(w[1].0.as_str(), "now" | "unix") && w[2].0 == "(");
        wrong.extend(clocks.map(|w| format!("{file}:{}: {}", w[1].1, w[1].0)));
    }
    // The logging library stamps each line.
    wrong.retain(|line| !(line.starts_with("commands/logging/json.rs:") && line.ends_with(": SystemTime")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let planted = tokens("use std::time::Instant;\n#[cfg(test)]\nmod tests { use std::net::TcpStream; }");
    assert!(before_tests(&planted).iter().any(|(word, _)| word == "Instant"));
    assert!(before_tests(&planted).iter().all(|(word, _)| word != "TcpStream"));
}

/// Where one of `words` stands in a file that is not `excepted`.
fn words(words: &[&str], excepted: impl Fn(&str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for (file, tokens) in files() {
        if !excepted(&file) {
            found.extend(
                tokens
                    .iter()
                    .filter(|(w, _)| words.contains(&w.as_str()))
                    .map(|(w, line)| format!("{file}:{line}: {w}")),
            );
        }
    }
    found
}

/// The folders of `transfer` with one transport each, from the imports of the table.
fn transports(files: &[(String, Vec<Token>)]) -> Vec<String> {
    let (_, tokens) = files.iter().find(|(file, _)| file == TRANSPORT_TABLE).expect("the table of transports");
    let is_import = |w: &&[Token]| w[0].0 == "transfer" && w[3].0 == "::" && w[4].0.ends_with("Transport");
    let mut found: Vec<String> = tokens.windows(5).filter(is_import).map(|w| w[2].0.clone()).collect();
    found.dedup();
    found
}

/// Where a file that is not a transport's own names it, tests apart.
fn named_transports(transports: &[String], file: &str, tokens: &[Token]) -> Vec<String> {
    let is_free = |name: &str| file == TRANSPORT_TABLE || file.starts_with(&format!("engine/transfer/{name}/"));
    let names = |w: &&[Token]| w[0].0 == "transfer" && w[1].0 == "::" && transports.contains(&w[2].0);
    let found = without_tests(tokens).windows(3).filter(names).filter(|w| !is_free(&w[2].0));
    found.map(|w| format!("{file}:{}: {}", w[2].1, w[2].0)).collect()
}

#[test]
fn a_transport_is_named_only_in_the_table_of_transports() {
    let files = files();
    let transports = transports(&files);
    assert!(transports.len() > 1, "{transports:?}");
    let wrong: Vec<String> =
        files.iter().flat_map(|(file, tokens)| named_transports(&transports, file, tokens)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let planted = tokens("\nuse crate::engine::transfer::rdma::RdmaTransport;");
    let found = named_transports(&transports, "engine/transfer/engine.rs", &planted);
    assert_eq!(found, ["engine/transfer/engine.rs:2: rdma"]);
}

#[test]
fn the_check_finds_what_is_planted() {
    let table = table();
    let check = |file: &str, text: &str| misplaced(&table, file, &tokens(text)).join("; ");
    assert_eq!(check("engine/wire/a.rs", "use crate::engine::base::Mono;"), "");
    assert_eq!(check("engine/wire/a.rs", "\nuse crate::engine::rpc::Pool;"), "engine/wire/a.rs:2: wire names rpc");
    let group = "use crate::engine::{\n    base::{Mono, Unix},\n    rpc::Pool,\n};";
    assert_eq!(check("engine/wire/a.rs", group), "engine/wire/a.rs:3: wire names rpc");
    for ignored in [
        "// crate::engine::rpc\n/* crate::engine::rpc */ const A: &str = \"crate::engine::rpc\";",
        "fn f<'a>(x: &'a str) -> char { r#\"crate::engine::rpc\"#; '\\'' }",
    ] {
        assert_eq!(check("engine/wire/a.rs", ignored), "");
    }
    let after_a_quote = "const A: char = '\"'; use crate::engine::rpc; // '\"";
    assert_eq!(check("engine/wire/a.rs", after_a_quote), "engine/wire/a.rs:1: wire names rpc");
    assert!(check("engine/nowhere/a.rs", "").contains("`nowhere` has no row"));
    assert_eq!(
        check("engine/wire/mod.rs", "use super::rpc::Pool;"),
        "engine/wire/mod.rs:1: super::rpc instead of crate::engine::..."
    );
    let up = "engine/wire/pack/a.rs:1: super::super instead of crate::engine::...";
    assert_eq!(check("engine/wire/pack/a.rs", "use super::super::Reader;"), up);
}
