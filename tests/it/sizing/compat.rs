//! Compares `--compat` with recorded runs of upstream's script and with a second implementation.

use super::POOL;
use super::script::{Item, expect, words};
use crate::cli::{Run, mcctl};
use mcctl::commands::size_hugepages::compat::{PROGRAM, compute};
use std::collections::HashMap;

#[derive(serde::Deserialize)]
struct Recorded {
    name: String,
    args: Vec<String>,
    exit: i32,
    stdout: String,
    stderr: String,
}

fn recorded() -> Vec<Recorded> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/sizing/upstream-script.jsonl");
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn compat(args: &[String]) -> Run {
    let mut all = vec!["size-hugepages", "--compat"];
    all.extend(args.iter().map(String::as_str));
    mcctl(&all)
}

#[test]
fn recorded_runs_of_the_script_are_reproduced_exactly() {
    let _still = POOL.read();
    let cases = recorded();
    assert_eq!(cases.len(), 84);
    for case in cases {
        let run = compat(&case.args);
        if case.name == "bad-hugepage-with-available" {
            // The script fails with an uncaught exception and the exit code of "arena may fall
            // back".
            assert!(case.exit == 1 && case.stderr.starts_with("Traceback"));
            assert_eq!((run.code, run.stdout.as_str(), run.stderr.as_str()), (64, "", "error: invalid size: 'huge'\n"));
            continue;
        }
        assert_eq!((run.code, run.stdout, run.stderr), (case.exit, case.stdout, case.stderr), "{}", case.name);
    }
}

#[test]
fn a_symlink_with_the_scripts_name_runs_the_script() {
    let folder = tempfile::tempdir().unwrap();
    let case = &recorded()[0];
    for name in ["mooncake-hicache-sizing", "check_hicache_hugepage_requirements"] {
        let link = folder.path().join(name);
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_mcctl"), &link).unwrap();
        let run = crate::cli::finish(std::process::Command::new(&link).args(&case.args).output().unwrap());
        assert_eq!(run.succeeds(), case.stdout);
        let wrong = crate::cli::finish(std::process::Command::new(&link).output().unwrap());
        assert!(wrong.fails(2).starts_with(&format!("usage: {name} [-h] --tp-size TP_SIZE")), "{wrong:?}");
    }
}

#[test]
fn compat_after_global_options_is_refused() {
    let line = ["--log-level", "error", "size-hugepages", "--compat", "--hicache-size", "1"];
    assert!(mcctl(&line).fails(2).contains("put --compat first"));
}

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.roll(of.len() as u64) as usize]
    }
}

const UNITS: &[&str] = &["", "b", "k", "kb", "KiB", "m", "MB", "mib", "g", "gb", "GB", "gib", "t", "TB", "tib"];
const BAD: &[&str] =
    &["", "_", ".5gb", "5.gb", "1e9", "+8gb", "-8gb", "-5", "- 5", "x", "1pb", "9 gb", "1,0gb", "1.2.3", "7bytes"];

fn a_size(dice: &mut Dice) -> String {
    if dice.roll(25) == 0 {
        return dice.one(BAD).to_owned();
    }
    let digits = dice.roll(10) as u32;
    let mut text = dice.roll(10u64.pow(digits) + 1).to_string();
    if dice.roll(3) == 0 {
        text.push_str(&format!(".{}", dice.roll(10_000)));
    }
    if dice.roll(10) == 0 {
        text.insert(dice.roll(text.len() as u64 + 1) as usize, '_');
    }
    text.push_str(dice.one(UNITS));
    if dice.roll(15) == 0 { format!(" {text}\t") } else { text }
}

fn a_tp(dice: &mut Dice) -> String {
    match dice.roll(20) {
        0 => dice.one(&["0", "-1", "1.5", "x", "", "1__0", " 4 ", "+4", "1_0", "-", "0x4"]).to_owned(),
        _ => dice.roll(64).to_string(),
    }
}

/// An option or one of its unambiguous prefixes.
fn spelled(dice: &mut Dice, name: &str) -> String {
    let shortest = match name {
        "--hicache-size" | "--hugepage-size" => 4,
        "--arena-pool-size" | "--available-hugetlb" => 4,
        _ => 3,
    };
    let most = (name.len() - shortest + 1) as u64;
    let cut = if dice.roll(2) == 0 { name.len() } else { shortest + dice.roll(most) as usize };
    name[..cut].to_owned()
}

const NAMES: [&str; 6] = [
    "--tp-size",
    "--hicache-size",
    "--global-segment-size",
    "--arena-pool-size",
    "--hugepage-size",
    "--available-hugetlb",
];

fn a_command_line(dice: &mut Dice) -> Vec<Item> {
    let mut names: Vec<&'static str> = Vec::new();
    for (i, name) in NAMES.into_iter().enumerate() {
        let given = if i < 3 { dice.roll(60) > 0 } else { dice.roll(2) == 0 };
        names.extend(given.then_some(name));
        names.extend((dice.roll(20) == 0).then_some(name));
    }
    for i in (1..names.len()).rev() {
        names.swap(i, dice.roll(i as u64 + 1) as usize);
    }
    let mut items = Vec::new();
    for name in names {
        let value = match name {
            "--tp-size" => a_tp(dice),
            "--hugepage-size" => {
                dice.one(&["2mb", "1gb", "1000", "7mb", "0", "2048k", "3b", "huge", "1.5mb"]).to_owned()
            }
            "--available-hugetlb" if dice.roll(10) == 0 => String::new(),
            _ => a_size(dice),
        };
        items.push(Item::Option { name, spelled: spelled(dice, name), joined: dice.roll(2) == 0, value });
    }
    let mut slip = |dice: &mut Dice, item: Item| {
        let at = dice.roll(items.len() as u64 + 1) as usize;
        items.insert(at, item);
    };
    if dice.roll(40) == 0 {
        let word = dice.one(&["foo", "-z", "--nope", "", "-7", "--json", "8gb"]);
        slip(dice, Item::Stray(word.to_owned()));
    }
    if dice.roll(60) == 0 {
        let all = "--help, --hicache-size, --hugepage-size";
        let (word, of) = dice.one(&[("--h", all), ("--a", "--arena-pool-size, --available-hugetlb")]);
        slip(dice, Item::Ambiguous(word, of));
    }
    if dice.roll(60) == 0 {
        let word = dice.one(&["-h", "--help", "--hel"]);
        slip(dice, Item::Help(word));
    }
    if dice.roll(60) == 0 {
        items.push(Item::Bare(dice.one(&NAMES)));
    }
    items
}

/// Without starting the program 10,000 times. `recorded_runs_of_the_script_are_reproduced_exactly`
/// starts it.
#[test]
fn random_command_lines_match_the_second_implementation() {
    let _still = POOL.read();
    let cases = recorded();
    let text = |name: &str| cases.iter().find(|case| case.name == name).unwrap();
    let help = text("help").stdout.clone();
    let usage = help.split("\n\n").next().unwrap().to_owned() + "\n";
    let mut seen = HashMap::<i32, u32>::new();
    for seed in 0..4 {
        let mut dice = Dice(0x5133 + seed);
        for _ in 0..2_500 {
            let items = a_command_line(&mut dice);
            let args = words(&items);
            let expected = expect(&items, &usage, &help);
            let run = compute(PROGRAM, &args);
            let found = (i32::from(run.exit_code), run.stdout, run.stderr);
            let stderr = expected.stderr.strip_suffix('\n').unwrap_or_default().to_owned();
            assert_eq!(found, (expected.code, expected.stdout, stderr), "{args:?}");
            *seen.entry(expected.code).or_default() += 1;
        }
    }
    // All exit codes occurred.
    assert!([0, 1, 2, 64].iter().all(|code| seen.get(code).is_some_and(|n| *n > 100)), "{seen:?}");
}
