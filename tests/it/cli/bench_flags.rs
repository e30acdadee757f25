//! Flags of the bench commands that were renamed: the old spellings still work.

use super::mcctl;

#[test]
fn old_spellings_are_accepted() {
    for line in ["--a-a --unknown-flag", "--phases settle,first --unknown-flag"] {
        let words: Vec<&str> = line.split(' ').collect();
        let run = mcctl(&[&["bench", "multi-turn"], &words[..]].concat());
        assert!(run.fails(2).contains("--unknown-flag"), "{run:?}");
    }
}
