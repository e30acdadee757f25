//! Rules of the sources that the manifests of the crates cannot state: cores without clocks,
//! commands without sockets, and the table of transports.

use std::path::{Path, PathBuf};

/// Identifiers that a core must not use: it gets `now` as an argument, and owns no socket.
const NOT_IN_A_CORE: &[&str] = &["Instant", "SystemTime", "TcpStream", "TcpListener", "tokio", "thread", "RandomState"];
/// The master's core does not wait, because it answers under a lock. (The method table of `wire`
/// declares the client's calls, which wait.)
const NOT_IN_THE_MASTER: &[&str] = &["await", "async"];
/// Folders in which every file is pure.
const PURE_FOLDERS: &[&str] = &["base", "deploy", "wire", "election/ha", "master"];
/// The files of `master` that are its shells; all others are its core.
const MASTER_SHELLS: &[&str] = &["master/server/", "master/process/", "master/admin.rs"];
/// The table of transports.
const TRANSPORT_TABLE: &str = "engine/transfer/transports.rs";
/// Folders of `commands` that several commands share. Any other folder is a command.
const SHARED_BY_COMMANDS: &[&str] = &["cli", "failure", "help", "target"];
/// A command that consists of another one: `up` starts services, and `doctor --plan` reads the
/// inputs of `lint`.
const CONSISTS_OF: &[(&str, &str)] = &[("up", "serve"), ("doctor", "lint")];
/// Identifiers that `commands` must not use outside its unit tests: the engine owns clocks, sockets
/// and HTTP clients. `RealEnv` is allowed, because commands pass it to the engine, but not its
/// clocks (`now` and `unix`).
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

/// A word or a punctuation mark, and the line it stands on.
type Token = (String, usize);

/// Words and punctuation of Rust text, without comments, strings and character literals.
fn tokens(text: &str) -> Vec<Token> {
    let b = text.as_bytes();
    let mut i = 0;
    let mut line = 1;
    let mut out = Vec::new();
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
            // a character literal ends with a quote after one character or an escape; a lifetime
            // does not
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

/// The modules that a file names as `crate::commands::X`, brace groups included.
fn named(tokens: &[Token]) -> Vec<Token> {
    let mut out = Vec::new();
    for i in 0..tokens.len() {
        let is = |k: usize, w: &str| tokens.get(i + k).is_some_and(|t| t.0 == w);
        if !(is(0, "crate") && is(1, "::") && is(2, "commands") && is(3, "::")) {
            continue;
        }
        if !is(4, "{") {
            out.extend(tokens.get(i + 4).cloned());
            continue;
        }
        let mut depth = 1;
        let mut head = true;
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
fn files() -> Vec<(String, Vec<Token>)> {
    let src = root().join("src");
    let mut paths = Vec::new();
    sources(&src, &mut paths);
    let name = |p: &PathBuf| p.strip_prefix(&src).unwrap().to_str().unwrap().to_owned();
    paths.iter().map(|p| (name(p), tokens(&std::fs::read_to_string(p).unwrap()))).collect()
}

/// Whether every file of the folder or of the file `file` is part of a core.
fn is_core(file: &str) -> bool {
    let Some(file) = file.strip_prefix("engine/") else { return false };
    let is_below = |folder: &&str| file.strip_prefix(*folder).is_some_and(|rest| rest.starts_with('/'));
    PURE_FOLDERS.iter().any(is_below) && !MASTER_SHELLS.iter().any(|shell| file.starts_with(shell))
}

#[test]
fn folders_of_the_rules_exist() {
    let paths = PURE_FOLDERS.iter().chain(MASTER_SHELLS);
    let missing: Vec<_> = paths.filter(|path| !root().join("src/engine").join(path).exists()).collect();
    assert_eq!(missing, [&""; 0]);
}

#[test]
fn cores_know_no_clock_no_socket_and_no_task() {
    let mut wrong = words(NOT_IN_A_CORE, |file| !is_core(file));
    wrong.extend(words(NOT_IN_THE_MASTER, |file| !is_core(file) || !file.starts_with("engine/master/")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let is = ["engine/master/put.rs", "engine/election/ha/core.rs", "engine/wire/frame.rs"].map(is_core);
    assert_eq!(is, [true; 3]);
    let is_not = ["engine/master/server/log.rs", "engine/election/etcd.rs", "commands/cli/error.rs"].map(is_core);
    assert_eq!(is_not, [false; 3]);
}

/// The tokens without the test module at the foot of the file.
fn without_tests(tokens: &[Token]) -> &[Token] {
    let is_tests = |w: &[Token]| w.iter().map(|t| t.0.as_str()).eq(["(", "test", ")", "]", "mod", "tests", "{"]);
    let end = tokens.windows(7).position(is_tests).unwrap_or(tokens.len());
    &tokens[..end]
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
        let is_allowed = SHARED_BY_COMMANDS.contains(&module) || CONSISTS_OF.contains(&(own, module));
        module != own && folders.iter().any(|folder| folder == module) && !is_allowed
    };
    let found = named(tokens).into_iter().filter(|(module, _)| is_other(module));
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
    assert_eq!(check("use crate::commands::{cli, target};\nuse crate::commands::up::paste;"), "");
    assert_eq!(
        check("use crate::commands::{\n    output,\n    lint::inputs,\n};"),
        "commands/up/a.rs:3: up names lint"
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
    wrong.retain(|line| !(line.starts_with("commands/cli/logging/json.rs:") && line.ends_with(": SystemTime")));
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
    let is_import = |w: &&[Token]| w[0].0 == "crate" && w[3].0 == "::" && w[4].0.ends_with("Transport");
    let mut found: Vec<String> = tokens.windows(5).filter(is_import).map(|w| w[2].0.clone()).collect();
    found.dedup();
    found
}

/// Where a file that is not a transport's own names it, tests apart.
fn named_transports(transports: &[String], file: &str, tokens: &[Token]) -> Vec<String> {
    if !file.starts_with("engine/transfer/") {
        return Vec::new();
    }
    let is_free = |name: &str| file == TRANSPORT_TABLE || file.starts_with(&format!("engine/transfer/{name}/"));
    let names = |w: &&[Token]| w[0].0 == "crate" && w[1].0 == "::" && transports.contains(&w[2].0);
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
    let planted = tokens("\nuse crate::rdma::RdmaTransport;");
    let found = named_transports(&transports, "engine/transfer/engine.rs", &planted);
    assert_eq!(found, ["engine/transfer/engine.rs:2: rdma"]);
}

#[test]
fn words_are_not_found_in_comments_and_texts() {
    let found = |text: &str| tokens(text).iter().any(|(word, _)| word == "Instant");
    assert!(found("use std::time::Instant;"));
    assert!(found("const A: char = '\"'; use std::time::Instant; // '\""));
    for ignored in [
        "// Instant\n/* Instant */ const A: &str = \"Instant\";",
        "fn f<'a>(x: &'a str) -> char { r#\"Instant\"#; '\\'' }",
    ] {
        assert!(!found(ignored), "{ignored}");
    }
}
