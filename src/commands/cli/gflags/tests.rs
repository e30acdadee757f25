//! Tests for the gflags parser.

use std::collections::BTreeMap;

use super::*;
use crate::commands::cli::error::Exit;
use crate::commands::cli::flags::flag;

static TABLE: FlagTable = FlagTable {
    command: "serve test",
    about: "",
    groups: &[
        (
            "One",
            &[
                flag("rpc_port", ValueKind::Port, "0", "port"),
                flag("rpc_address", ValueKind::Text, "0.0.0.0", "address"),
                flag("enable_ha", ValueKind::Bool, "false", "ha"),
                flag("v", ValueKind::Whole(0, 9), "0", "verbosity"),
                flag("notify", ValueKind::Bool, "true", "begins with no"),
            ],
        ),
        (
            "Two",
            &[
                flag("define", ValueKind::Define, "", "a key"),
                flag("global_segment_size", ValueKind::Size, "0", "size"),
            ],
        ),
    ],
};

#[derive(Default)]
struct FakeSources {
    files: BTreeMap<&'static str, &'static str>,
    env: BTreeMap<&'static str, &'static str>,
}

impl FlagSources for FakeSources {
    fn read(&self, path: &Path) -> Result<String, Failure> {
        let text = path.to_str().and_then(|path| self.files.get(path));
        text.map(|text| (*text).to_owned()).ok_or_else(|| Failure::usage(format!("cannot read {}", path.display())))
    }

    fn env(&self, name: &str) -> Option<String> {
        self.env.get(name).map(|text| (*text).to_owned())
    }
}

fn run(line: &[&str], world: &FakeSources) -> Result<ParsedFlags, Failure> {
    let args: Vec<String> = line.iter().map(|word| (*word).to_owned()).collect();
    parse(&TABLE, &args, world)
}

/// The assignments of `line` as `name=text`.
fn pairs(line: &[&str], world: &FakeSources) -> Vec<String> {
    let parsed = run(line, world).unwrap_or_else(|failure| panic!("{line:?}: {failure}"));
    parsed.assignments.iter().map(|given| format!("{}={}", given.flag.name, given.text)).collect()
}

fn check(line: &[&str], expected: &[&str]) {
    assert_eq!(pairs(line, &FakeSources::default()), expected, "{line:?}");
}

fn refused(line: &[&str], world: &FakeSources) -> Failure {
    let failure = run(line, world).expect_err("expected an error");
    assert_eq!(failure.exit, Exit::Usage);
    failure
}

#[test]
fn errors_name_the_flag_and_the_fix() {
    let world = FakeSources {
        files: [
            ("a.flags", "--rpc_port=1\n--bogus=1"),
            ("s.flags", "mooncake_master"),
            ("loop.flags", "--flagfile=loop.flags"),
        ]
        .into(),
        ..FakeSources::default()
    };
    let lines: [&[&str]; 16] = [
        &["--enable_ha", "false"],
        &["--rpc_prot", "50051"],
        &["--zzzz"],
        &["--norpc_port"],
        &["--rpc_port"],
        &["--rpc_address", "--rpc_port=1"],
        &["rpc_port=1"],
        &["--", "x"],
        &["--noenable_ha=true"],
        &["--flagfile=a.flags"],
        &["--flagfile=s.flags"],
        &["--flagfile=loop.flags"],
        &["--fromenv=v"],
        &["--fromenv=rpc_prot"],
        &["-D", "x"],
        &["-D"],
    ];
    let lines: String = lines.iter().map(|line| refused(line, &world).line()).collect();
    insta::assert_snapshot!(lines);
}

#[test]
fn a_value_follows_a_blank_or_an_equals_sign() {
    for line in [
        &["--rpc_port", "7"][..],
        &["--rpc_port=7"],
        &["-rpc_port", "7"],
        &["-rpc_port=7"],
        &["--rpc-port", "7"],
        &["-rpc-port=7"],
    ] {
        check(line, &["rpc_port=7"]);
    }
    check(&["-v", "2", "--v=3"], &["v=2", "v=3"]);
    check(&["--rpc_address="], &["rpc_address="]);
    check(&["--rpc_address=a=b"], &["rpc_address=a=b"]);
    check(&["--rpc_port", "-1"], &["rpc_port=-1"]);
}

#[test]
fn a_boolean_has_no_value_or_a_value_or_a_no_prefix() {
    check(&["--enable_ha", "--rpc_port=1"], &["enable_ha=true", "rpc_port=1"]);
    check(&["--enable-ha=false"], &["enable_ha=false"]);
    for no in ["--noenable_ha", "-noenable_ha", "--noenable-ha", "--no-enable-ha", "--no_enable_ha"] {
        check(&[no], &["enable_ha=false"]);
    }
    check(&["--notify"], &["notify=true"]);
    check(&["--nonotify"], &["notify=false"]);
}

#[test]
fn a_true_after_a_boolean_is_its_value_and_a_false_is_refused() {
    check(&["--enable_ha", "true", "--rpc_port=1"], &["enable_ha=true", "rpc_port=1"]);
    // mooncake_master reads this as true.
    refused(&["--enable_ha", "false"], &FakeSources::default());
}

#[test]
fn undefok_accepts_unknown_flags_before_and_after_it() {
    check(&["--rpc_prot=1", "--rpc_port=2", "--undefok=rpc-prot,other"], &["rpc_port=2"]);
    assert!(refused(&["--rpc_prot=1", "--undefok=other"], &FakeSources::default()).what.contains("--rpc_prot"));
}

#[test]
fn a_flag_without_value_and_a_word_without_flag_are_refused() {
    let none = FakeSources::default();
    for line in [&["--rpc_port"][..], &["rpc_port=1"], &["--", "x"], &["-"], &["--noenable_ha=true"]] {
        refused(line, &none);
    }
    check(&["--rpc_port=1", "--"], &["rpc_port=1"]);
}

#[test]
fn a_flag_file_is_read_in_place_and_errors_name_its_line() {
    let world = FakeSources {
        files: [("a.flags", "# ports\n--rpc_port=1\n\n  --noenable_ha\n--flagfile=b.flags\n"), ("b.flags", "-v=4")]
            .into(),
        ..FakeSources::default()
    };
    assert_eq!(
        pairs(&["--rpc_port=9", "--flagfile=a.flags", "-v=5"], &world),
        ["rpc_port=9", "rpc_port=1", "enable_ha=false", "v=4", "v=5"]
    );
    let parsed = run(&["--flagfile", "a.flags"], &world).expect("well formed");
    assert_eq!(parsed.assignments[0].origin.to_string(), "a.flags:2");
    let bad = FakeSources {
        files: [("a.flags", "--rpc_port=1\n--bogus=1"), ("s.flags", "mooncake_master")].into(),
        ..FakeSources::default()
    };
    assert!(refused(&["--flagfile=a.flags"], &bad).what.starts_with("a.flags:2: "));
    assert!(refused(&["--flagfile=s.flags"], &bad).what.starts_with("s.flags:1: "));
    assert!(refused(&["--flagfile=none"], &bad).what.contains("none"));
}

#[test]
fn fromenv_reads_flags_from_the_environment() {
    let world =
        FakeSources { env: [("FLAGS_rpc_port", "8"), ("FLAGS_enable_ha", "true")].into(), ..FakeSources::default() };
    assert_eq!(pairs(&["--fromenv=rpc_port,enable-ha"], &world), ["rpc_port=8", "enable_ha=true"]);
    assert_eq!(pairs(&["--tryfromenv=v,rpc_port"], &world), ["rpc_port=8"]);
    refused(&["--fromenv=v"], &world);
}

#[test]
fn a_define_sets_the_key_of_a_configuration_file() {
    for line in [
        &["-Dglobal_segment_size=32mb"][..],
        &["-D", "global_segment_size=32mb"],
        &["--define", "global_segment_size=32mb"],
        &["--define=global_segment_size=32mb"],
    ] {
        check(line, &["global_segment_size=32mb"]);
    }
    let unknown = run(&["-Dglobal_segmnt_size=1"], &FakeSources::default()).expect("only a warning").unknown_defines;
    assert!(unknown[0].warning().contains("global_segment_size?"), "{unknown:?}");
}

#[test]
fn help_is_shown_even_next_to_an_unknown_flag() {
    use crate::commands::help::length::HelpLength::{All, Long, Short};
    for (help, length) in [
        ("--help", Long),
        ("-help", Long),
        ("-h", Short),
        ("--helpfull", All),
        ("--help-all", All),
        ("--helpshort", Short),
    ] {
        let parsed = run(&["--bogus", help], &FakeSources::default()).expect("help");
        assert_eq!(parsed.help, Some(length), "{help}");
    }
    assert!(run(&["--version"], &FakeSources::default()).expect("version").version);
}

proptest::proptest! {
    #[test]
    fn the_parser_never_panics(line in proptest::collection::vec("(-{0,3}(no|D)?(rpc_port|enable-ha|define|flagfile|x)?=?[a-z0-9=]{0,3}|\\PC{0,6})", 0..6)) {
        let _ = parse(&TABLE, &line, &FakeSources::default());
    }

    #[test]
    fn all_forms_of_a_value_are_equal(value in "[a-z0-9.:]{1,12}") {
        let expected = [format!("rpc_address={value}")];
        for line in [vec!["--rpc_address".to_owned(), value.clone()], vec![format!("-rpc-address={value}")]] {
            let parsed = parse(&TABLE, &line, &FakeSources::default()).expect("well formed");
            let found: Vec<_> = parsed.assignments.iter().map(|a| format!("{}={}", a.flag.name, a.text)).collect();
            proptest::prop_assert_eq!(&found[..], &expected[..]);
        }
    }
}
