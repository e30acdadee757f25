use std::collections::BTreeMap;

use super::*;
use crate::commands::error::Exit;
use crate::commands::flags::flag;

static TABLE: Table = Table {
    command: "serve test",
    about: "",
    groups: &[
        (
            "One",
            &[
                flag("rpc_port", Kind::Port, "0", "port"),
                flag("rpc_address", Kind::Text, "0.0.0.0", "address"),
                flag("enable_ha", Kind::Bool, "false", "ha"),
                flag("v", Kind::Whole(0, 9), "0", "verbosity"),
                flag("notify", Kind::Bool, "true", "begins with no"),
            ],
        ),
        ("Two", &[flag("define", Kind::Define, "", "a key"), flag("global_segment_size", Kind::Size, "0", "size")]),
    ],
};

#[derive(Default)]
struct Fake {
    files: BTreeMap<&'static str, &'static str>,
    env: BTreeMap<&'static str, &'static str>,
}

impl World for Fake {
    fn read(&self, path: &Path) -> Result<String, Failure> {
        let text = path.to_str().and_then(|path| self.files.get(path));
        text.map(|text| (*text).to_owned()).ok_or_else(|| Failure::usage(format!("cannot read {}", path.display())))
    }

    fn env(&self, name: &str) -> Option<String> {
        self.env.get(name).map(|text| (*text).to_owned())
    }
}

fn run(line: &[&str], world: &Fake) -> Result<Parsed, Failure> {
    let args: Vec<String> = line.iter().map(|word| (*word).to_owned()).collect();
    parse(&TABLE, &args, world)
}

/// The assignments of `line` as `name=text`.
fn pairs(line: &[&str], world: &Fake) -> Vec<String> {
    let parsed = run(line, world).unwrap_or_else(|failure| panic!("{line:?}: {failure}"));
    parsed.assignments.iter().map(|given| format!("{}={}", given.flag.name, given.text)).collect()
}

fn check(line: &[&str], expected: &[&str]) {
    assert_eq!(pairs(line, &Fake::default()), expected, "{line:?}");
}

fn refused(line: &[&str], world: &Fake) -> String {
    let failure = run(line, world).expect_err("it should be refused");
    assert_eq!(failure.exit, Exit::Usage);
    failure.line().trim_end().to_owned()
}

#[test]
fn a_value_stands_after_a_blank_or_an_equals_sign_after_one_dash_or_two() {
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
fn a_boolean_stands_alone_or_has_a_value_or_a_no_before_it() {
    check(&["--enable_ha", "--rpc_port=1"], &["enable_ha=true", "rpc_port=1"]);
    check(&["--enable-ha=false"], &["enable_ha=false"]);
    for no in ["--noenable_ha", "-noenable_ha", "--noenable-ha", "--no-enable-ha", "--no_enable_ha"] {
        check(&[no], &["enable_ha=false"]);
    }
    check(&["--notify"], &["notify=true"]);
    check(&["--nonotify"], &["notify=false"]);
}

#[test]
fn a_true_after_a_boolean_is_its_own_and_a_false_is_refused_since_the_original_reads_true() {
    check(&["--enable_ha", "true", "--rpc_port=1"], &["enable_ha=true", "rpc_port=1"]);
    assert_eq!(
        refused(&["--enable_ha", "false"], &Fake::default()),
        "error: --enable_ha is a switch: the word after it does not belong to it; found: '--enable_ha false', which \
         mooncake_master reads as true; next: write --enable-ha=false"
    );
}

#[test]
fn an_unknown_flag_names_the_nearest_known_one() {
    assert_eq!(
        refused(&["--rpc_prot", "50051"], &Fake::default()),
        "error: unknown flag --rpc_prot for mcctl serve test; next: the nearest known one is --rpc-port; mcctl serve test \
         --help lists all"
    );
    assert!(refused(&["--zzzz"], &Fake::default()).ends_with("next: mcctl serve test --help lists all"));
    assert!(refused(&["--norpc_port"], &Fake::default()).contains("unknown flag --norpc_port"));
}

#[test]
fn undefok_makes_unknown_flags_fine_wherever_it_stands() {
    check(&["--rpc_prot=1", "--rpc_port=2", "--undefok=rpc-prot,other"], &["rpc_port=2"]);
    assert!(refused(&["--rpc_prot=1", "--undefok=other"], &Fake::default()).contains("--rpc_prot"));
}

#[test]
fn a_flag_without_its_value_and_a_word_without_its_flag_are_refused() {
    let none = Fake::default();
    assert!(refused(&["--rpc_port"], &none).starts_with("error: --rpc_port needs a value: a port from 0 to 65535"));
    assert!(refused(&["--rpc_address", "--rpc_port=1"], &none).contains("--rpc_address needs a value"));
    assert_eq!(
        refused(&["rpc_port=1"], &none),
        "error: 'rpc_port=1' is not a flag of mcctl serve test; next: write --rpc_port=1"
    );
    assert!(refused(&["--", "x"], &none).contains("'x' is not a flag"));
    assert!(refused(&["-"], &none).contains("'-' is not a flag"));
    assert!(refused(&["--noenable_ha=true"], &none).contains("--noenable_ha takes no value"));
    check(&["--rpc_port=1", "--"], &["rpc_port=1"]);
}

#[test]
fn a_flag_file_stands_where_it_is_named_and_its_lines_are_named_in_errors() {
    let world = Fake {
        files: [("a.flags", "# ports\n--rpc_port=1\n\n  --noenable_ha\n--flagfile=b.flags\n"), ("b.flags", "-v=4")]
            .into(),
        ..Fake::default()
    };
    assert_eq!(
        pairs(&["--rpc_port=9", "--flagfile=a.flags", "-v=5"], &world),
        ["rpc_port=9", "rpc_port=1", "enable_ha=false", "v=4", "v=5"]
    );
    let parsed = run(&["--flagfile", "a.flags"], &world).expect("well formed");
    assert_eq!(parsed.assignments[0].origin.to_string(), "a.flags:2");
    let bad = Fake {
        files: [("a.flags", "--rpc_port=1\n--bogus=1"), ("s.flags", "mooncake_master")].into(),
        ..Fake::default()
    };
    assert!(refused(&["--flagfile=a.flags"], &bad).starts_with("error: a.flags:2: unknown flag --bogus"));
    assert!(refused(&["--flagfile=s.flags"], &bad).starts_with("error: s.flags:1: a line of a flag file"));
    assert!(refused(&["--flagfile=none"], &bad).contains("cannot read none"));
}

#[test]
fn a_flag_file_that_names_itself_ends() {
    let world = Fake { files: [("a.flags", "--flagfile=a.flags")].into(), ..Fake::default() };
    assert!(refused(&["--flagfile=a.flags"], &world).contains("nested too deep"));
}

#[test]
fn flags_come_from_the_environment_when_asked_for() {
    let world = Fake { env: [("FLAGS_rpc_port", "8"), ("FLAGS_enable_ha", "true")].into(), ..Fake::default() };
    assert_eq!(pairs(&["--fromenv=rpc_port,enable-ha"], &world), ["rpc_port=8", "enable_ha=true"]);
    assert_eq!(pairs(&["--tryfromenv=v,rpc_port"], &world), ["rpc_port=8"]);
    assert!(refused(&["--fromenv=v"], &world).contains("FLAGS_v is not set"));
    assert!(refused(&["--fromenv=rpc_prot"], &world).contains("the nearest known one is --rpc-port"));
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
    let unknown = run(&["-Dglobal_segmnt_size=1"], &Fake::default()).expect("only a warning").unknown_defines;
    assert!(unknown[0].warning().contains("did you mean global_segment_size?"), "{unknown:?}");
    assert!(refused(&["-D", "x"], &Fake::default()).contains("KEY=VALUE"));
    assert!(refused(&["-D"], &Fake::default()).contains("KEY=VALUE"));
}

#[test]
fn help_is_given_even_beside_a_wrong_flag() {
    for help in ["--help", "-help", "-h", "--helpfull", "--helpshort"] {
        assert!(run(&["--bogus", help], &Fake::default()).expect("help").help, "{help}");
    }
    assert!(run(&["--version"], &Fake::default()).expect("version").version);
}

proptest::proptest! {
    #[test]
    fn no_command_line_makes_the_parser_panic(line in proptest::collection::vec("(-{0,3}(no|D)?(rpc_port|enable-ha|define|flagfile|x)?=?[a-z0-9=]{0,3}|\\PC{0,6})", 0..6)) {
        let _ = parse(&TABLE, &line, &Fake::default());
    }

    #[test]
    fn every_form_of_a_value_means_the_same(value in "[a-z0-9.:]{1,12}") {
        let expected = [format!("rpc_address={value}")];
        for line in [vec!["--rpc_address".to_owned(), value.clone()], vec![format!("-rpc-address={value}")]] {
            let parsed = parse(&TABLE, &line, &Fake::default()).expect("well formed");
            let found: Vec<_> = parsed.assignments.iter().map(|a| format!("{}={}", a.flag.name, a.text)).collect();
            proptest::prop_assert_eq!(&found[..], &expected[..]);
        }
    }
}
