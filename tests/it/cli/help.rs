//! Help texts of all commands. `INSTA_UPDATE=always cargo test --test it cli::help` accepts changed
//! ones.

use super::describe::COMMANDS;
use super::{command, finish, mcctl};

/// Lines of a screen.
const SCREEN_LINES: usize = 40;
/// Columns of a screen.
const SCREEN_COLUMNS: usize = 80;

/// All commands, with mcctl itself as the empty one.
fn all() -> impl Iterator<Item = &'static [&'static str]> {
    std::iter::once(&[][..]).chain(COMMANDS.iter().copied())
}

/// Help of `words` at `columns` columns.
fn help(words: &[&str], flag: &str, columns: usize) -> String {
    let mut command = command(&[words, &[flag]].concat());
    command.env("COLUMNS", columns.to_string());
    finish(command.output().expect("the program starts")).succeeds().to_owned()
}

/// The flags that a help text lists: each line that begins with two blanks and a dash.
fn listed_flags(text: &str) -> usize {
    let is_flag = |line: &&str| line.starts_with("  -") && !line.starts_with("  - ");
    let examples_end = text.find("\nUsage: ").unwrap_or_default();
    let options = text[examples_end..].split("\nHow sizes are interpreted").next().unwrap_or_default();
    options.lines().filter(is_flag).count()
}

#[test]
fn every_help_text_is_as_recorded() {
    for words in all() {
        let name = [&["help"], words].concat().join("_");
        let text = mcctl(&[words, &["--help"]].concat());
        insta::with_settings!({prepend_module_to_snapshot => false, omit_expression => true}, {
            insta::assert_snapshot!(name, text.succeeds());
        });
    }
}

#[test]
fn every_short_help_text_is_as_recorded() {
    let text: String = all()
        .map(|words| {
            let line = [&["mcctl"], words, &["-h"]].concat().join(" ");
            format!("$ {line}\n{}\n", help(words, "-h", SCREEN_COLUMNS))
        })
        .collect();
    insta::with_settings!({prepend_module_to_snapshot => false, omit_expression => true}, {
        insta::assert_snapshot!("short_help", text);
    });
}

#[test]
fn short_help_fits_a_screen_and_names_the_long_help() {
    for words in all() {
        let text = help(words, "-h", SCREEN_COLUMNS);
        assert!(text.lines().count() <= SCREEN_LINES, "{words:?}: {} lines\n{text}", text.lines().count());
        assert!(text.lines().all(|line| line.chars().count() <= SCREEN_COLUMNS), "{words:?}\n{text}");
        let last = text.trim_end().lines().last().expect("a line");
        let count = last.strip_prefix("See --help for examples and all ").expect(last);
        let count: usize = count.split(' ').next().and_then(|count| count.parse().ok()).expect(last);
        let listed = listed_flags(&help(words, "--help", 100));
        assert_eq!(count, listed, "{words:?}: flags that --help lists");
    }
}

#[test]
fn flags_without_effect_are_only_in_the_help_of_all_flags() {
    for words in all() {
        let long = help(words, "--help", 100);
        let every = help(words, "--help-all", 100);
        assert!(!long.contains("(no effect)") && !long.contains("(not available)"), "{words:?}");
        let hidden = listed_flags(&every) - listed_flags(&long);
        let line = long.lines().find(|line| line.starts_with("Not shown: "));
        let expected = (hidden > 0).then(|| format!("Not shown: {hidden} flag"));
        assert_eq!(line.is_some(), expected.is_some(), "{words:?}: {hidden}");
        assert!(line.is_none_or(|line| line.starts_with(&expected.expect("checked"))), "{words:?}: {line:?}");
    }
    let every = help(&["serve", "master"], "--help-all", 100);
    assert!(every.contains("  --enable-offload\n        (not available) "), "{every}");
}

#[test]
fn the_options_of_all_commands_are_the_last_group() {
    for words in all() {
        let text = help(words, "--help", 100);
        let (own, common) = text.split_once("\nCommon options:\n").expect("a group");
        assert!(!own.contains("  --log-level") && common.contains("  -h, --help\n"), "{words:?}");
        assert!(common.contains("  --log-level <LEVEL>\n"), "{words:?}");
        // Log level, format and file, with size and number, and the help; the root also has the
        // version.
        assert!(listed_flags(common) <= 7, "{words:?}\n{common}");
    }
}

/// Lines on a printed page, for [`help_in_pages`].
const PAGE_LINES: usize = 50;

/// Prints a table: `cargo test --test it help_in_pages -- --nocapture`.
#[test]
fn help_in_pages() {
    println!("command                 pages  shown  hidden");
    for words in all() {
        let long = help(words, "--help", 100);
        let every = help(words, "--help-all", 100);
        let lines = long.lines().count();
        let shown = listed_flags(&long);
        let every = listed_flags(&every);
        let pages = lines as f64 / PAGE_LINES as f64;
        println!("{:<22} {pages:>6.1} {shown:>6} {:>7}", [&["mcctl"], words].concat().join(" "), every - shown);
        assert!(lines <= 10 * PAGE_LINES, "{words:?}: {lines} lines");
    }
}

#[test]
fn long_help_begins_with_summary_and_examples() {
    for words in all() {
        let text = help(words, "--help", 100);
        let examples = text.find("\nExamples:\n");
        let usage = text.find("\nUsage: mcctl");
        assert!(examples.is_some_and(|at| usage.is_some_and(|usage| at < usage)), "{words:?}\n{text}");
        assert!(text[..examples.expect("checked")].lines().count() <= 5, "{words:?}\n{text}");
    }
}

#[test]
fn long_help_fits_60_columns() {
    for words in all() {
        for line in help(words, "--help", 60).lines() {
            // Command lines, URLs and flags with long values are not wrapped.
            let is_code = line.contains("mcctl ") || line.contains("http") || line.trim_start().starts_with('-');
            let has_long_word = line.split_whitespace().any(|word| word.len() > 40);
            assert!(line.chars().count() <= 60 || is_code || has_long_word, "{words:?}: {line}");
        }
    }
}

#[test]
fn help_and_version_are_also_commands() {
    for words in [&[][..], &["store"], &["store", "put"], &["serve", "master"]] {
        let shown = mcctl(&[&["help"], words].concat());
        assert_eq!(shown.succeeds(), mcctl(&[words, &["--help"]].concat()).succeeds(), "{words:?}");
    }
    mcctl(&["help", "store", "putt"]).fails(2);
    assert!(mcctl(&["version"]).succeeds().starts_with("mcctl 0."));
    for args in [&["--version"][..], &["serve", "master", "--version"]] {
        assert_eq!(mcctl(args).stdout, mcctl(&["version"]).stdout);
    }
}
