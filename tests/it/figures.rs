//! Each performance figure in README and docs has a command that measures it, and README shows the
//! picture.

use std::path::{Path, PathBuf};

/// Words of a performance figure. A paragraph that contains one needs a row in the table, or a
/// command of its own.
const PERFORMANCE: [&str; 6] =
    ["times as many", "times faster", "s per million keys", "a third or less", "per call instead of", "% of the CPU"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A row of the table in `docs/figures/README.md`.
struct FigureRow {
    /// Words that the document contains.
    words: String,
    document: PathBuf,
    command: String,
}

/// `text` on one line.
fn joined(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn rows() -> Vec<FigureRow> {
    let folder = root().join("docs/figures");
    let text = read(&folder.join("README.md"));
    let rows = text.lines().filter(|line| line.starts_with("| ")).skip(1);
    let cells = rows.map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect::<Vec<_>>());
    let row = |cells: Vec<&str>| {
        let [words, document, command] = cells[..] else { panic!("three columns: {cells:?}") };
        let link = document.split_once("](").and_then(|(_, rest)| rest.split_once(')')).expect("a link").0;
        FigureRow {
            words: words.to_owned(),
            document: folder.join(link).canonicalize().unwrap_or_else(|error| panic!("{link}: {error}")),
            command: command.split('`').nth(1).unwrap_or_else(|| panic!("a command: {command}")).to_owned(),
        }
    };
    cells.map(row).collect()
}

#[test]
fn each_figure_is_in_its_document_and_its_script_exists() {
    let rows = rows();
    assert!(rows.len() > 5);
    for FigureRow { words, document, command } in rows {
        let text = joined(&read(&document));
        assert!(text.contains(&words), "{} does not contain: {words}", document.display());
        let program = command.split(' ').find(|word| *word != "python3").unwrap_or_default();
        let exists = program == "mcctl" || (program.contains('/') && root().join(program).is_file());
        assert!(exists, "no such program: {command}");
    }
}

#[test]
fn each_performance_figure_has_a_command() {
    let rows = rows();
    let pages = std::fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages = pages.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let mut missing = Vec::new();
    for path in pages.chain([root().join("README.md")]) {
        for paragraph in read(&path).split("\n\n").flat_map(|block| block.split("\n- ")).map(joined) {
            let figures = PERFORMANCE.iter().filter(|words| paragraph.contains(**words)).count();
            let listed = rows.iter().any(|row| row.document == path && paragraph.contains(&row.words));
            if figures > 0 && !listed {
                missing.push(format!("{}: {paragraph}", path.display()));
            }
        }
    }
    assert_eq!(missing, [""; 0], "add a row to docs/figures/README.md");
}

#[test]
fn the_first_screen_of_readme_shows_the_picture() {
    let readme = read(&root().join("README.md"));
    let first: Vec<&str> = readme.lines().take(30).collect();
    let first = first.join("\n");
    assert!(first.contains("](docs/figures/ladder.svg)") && first.contains("`docs/figures/make`"), "{first}");
    let picture = read(&root().join("docs/figures/ladder.svg"));
    assert!(picture.starts_with("<svg ") && picture.contains("prefers-color-scheme:dark"));
    for name in ["computing", "L1 (device)", "L2 (host)", "L3 (storage)"] {
        assert!(picture.contains(name), "{name}");
    }
}
