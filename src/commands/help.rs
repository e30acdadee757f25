//! `--help` of the commands whose flags are a [`Table`].

use crate::commands::flags::{Class, Flag, Kind, Table};

/// Columns of a line of help.
const WIDTH: usize = 100;
/// Where the text of a flag begins.
const INDENT: usize = 8;

/// The help text of `table`.
pub fn render(table: &Table) -> String {
    let mut text = format!("{}\n\nUsage: mcctl {} [FLAGS]\n\n", wrap(table.about, 0), table.command);
    text.push_str(&wrap(
        "A flag is written --name VALUE, --name=VALUE or with one dash, with '-' or '_' between words; a switch stands alone, \
         or as --noname or --name=false. Marks: (no effect) accepted and without effect here; (not available) only the default \
         is accepted.",
        0,
    ));
    text.push('\n');
    for (heading, flags) in table.groups {
        text.push_str(&format!("\n{heading}:\n"));
        for flag in *flags {
            text.push_str(&entry(flag));
        }
    }
    text
}

fn entry(flag: &Flag) -> String {
    let mut head = format!("  {}", flag.spelled());
    for alias in flag.aliases {
        head.push_str(&format!(", {}", crate::commands::flags::spelled(alias)));
    }
    if flag.kind != Kind::Bool {
        head.push_str(&format!(" {}", flag.kind.value_name()));
    }
    format!("{head}\n{}\n", wrap(&about(flag), INDENT))
}

/// What a flag does, with its marks, values, default and names elsewhere.
pub(super) fn about(flag: &Flag) -> String {
    let mut about = String::new();
    match flag.class {
        Class::Works => {}
        Class::NoEffect(_) => about.push_str("(no effect) "),
        Class::Absent(_) => about.push_str("(not available) "),
    }
    about.push_str(flag.help);
    if let Kind::Word(words) = flag.kind {
        about.push_str(&format!("; one of {}", words.join(", ")));
    }
    about.push_str(&note(flag));
    about
}

/// Default, file key and environment variable, where they say something.
fn note(flag: &Flag) -> String {
    let mut notes = Vec::new();
    if !flag.default.is_empty() && flag.kind != Kind::Define {
        let shown = match flag.kind {
            Kind::Duration => flag.default_value().to_string(),
            _ => flag.default.to_owned(),
        };
        notes.push(format!("default {shown}"));
    }
    if let crate::commands::flags::Key::Named(key) = flag.key {
        notes.push(format!("in a file: {key}"));
    }
    if let Some(name) = flag.env {
        notes.push(format!("environment: {name}"));
    }
    if notes.is_empty() { String::new() } else { format!(" [{}]", notes.join("; ")) }
}

/// `text` in lines of at most [`WIDTH`] columns, each after `indent` blanks.
fn wrap(text: &str, indent: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= WIDTH => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(format!("{}{word}", " ".repeat(indent))),
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::flags::flag;

    #[test]
    fn a_flag_shows_how_it_is_written_what_it_does_and_its_default() {
        let shown = entry(&flag("default_kv_lease_ttl", Kind::Duration, "10000", "Life of a read lease"));
        assert_eq!(shown, "  --default-kv-lease-ttl TIME\n        Life of a read lease [default 10 s]\n");
        let shown = entry(&flag("enable_ha", Kind::Bool, "false", "Stand-by masters").absent("high availability"));
        assert_eq!(shown, "  --enable-ha\n        (not available) Stand-by masters [default false]\n");
    }

    #[test]
    fn no_line_is_wider_than_the_page() {
        let text = wrap(&"word ".repeat(100), 8);
        assert!(text.lines().all(|line| line.len() <= WIDTH && line.starts_with("        word")));
    }
}
