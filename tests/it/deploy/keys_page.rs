//! The reference page of the deployment file has every key, with its type, default and meaning.

use std::fs;
use std::path::Path;

use mcctl::engine::deploy::{KeyRow, key_rows};

/// Set this variable to write the page.
const UPDATE: &str = "MCCTL_UPDATE_PAGES";

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

/// The tables of the page, one per section.
fn tables() -> String {
    let mut text = String::new();
    let mut section = None;
    for KeyRow { section: of, key, kind, default, meaning } in key_rows() {
        if section != Some(of) {
            section = Some(of);
            let heading = if of.is_empty() { "Top level".to_owned() } else { format!("[{of}]") };
            text.push_str(&format!("\n## {heading}\n\n| key | type | default | meaning |\n|---|---|---|---|\n"));
        }
        let default = if default.is_empty() { "unset".to_owned() } else { format!("`{}`", cell(&default)) };
        text.push_str(&format!("| `{key}` | {kind} | {default} | {} |\n", cell(meaning)));
    }
    text
}

#[test]
fn the_reference_page_has_every_key() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/deployment-file-keys.md");
    let page = fs::read_to_string(&path).expect("the page");
    let (head, found) = page.split_at(page.find("\n## Top level").expect("the first table"));
    if std::env::var_os(UPDATE).is_some() {
        fs::write(&path, format!("{head}{}", tables())).expect("written");
    } else {
        assert_eq!(found, tables(), "set {UPDATE}=1 to write docs/deployment-file-keys.md");
    }
}
