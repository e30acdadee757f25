//! Help of the bench commands, as snapshots. `INSTA_UPDATE=always cargo test --test it cli::bench_help` accepts changes.

use super::mcctl;

#[test]
fn help_of_every_bench_command_is_reviewed() {
    for command in ["multi-turn", "serving", "compare", "dataset", "store", "ladder", "transfer"] {
        let run = mcctl(&["bench", command, "--help"]);
        insta::with_settings!({prepend_module_to_snapshot => false, omit_expression => true}, {
            insta::assert_snapshot!(format!("help_bench_{}", command.replace('-', "_")), run.succeeds());
        });
    }
}

#[test]
fn old_spellings_are_accepted() {
    for line in ["--a-a --version-of-nothing", "--phases settle,first --version-of-nothing"] {
        let words: Vec<&str> = line.split(' ').collect();
        let run = mcctl(&[&["bench", "multi-turn"], &words[..]].concat());
        assert!(run.fails(2).contains("--version-of-nothing"), "{run:?}");
    }
}
