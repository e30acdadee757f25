//! Flags and reports of `mcctl bench multi-turn` against the simulator.

use super::service::Service;
use super::{command, finish, mcctl};

#[test]
fn old_spellings_are_accepted() {
    for line in ["--a-a --unknown-flag", "--phases settle,first --unknown-flag"] {
        let words: Vec<&str> = line.split(' ').collect();
        let run = mcctl(&[&["bench", "multi-turn"], &words[..]].concat());
        assert!(run.fails(2).contains("--unknown-flag"), "{run:?}");
    }
}

#[test]
fn a_report_fits_60_columns_and_ends_with_its_answer() {
    let mut sim = Service::start(command(&["serve", "sim", "--port=0", "--decode-step-ms=1"]));
    sim.line_with("SIMULATOR");
    let url = format!("--url=http://127.0.0.1:{}", sim.port_after("http://127.0.0.1:"));
    let small = ["--num-clients=4", "--num-rounds=2", "--request-length=32", "--output-length=4", "--request-rate=inf"];
    for (columns, extra) in [("60", &["--phases=first,repeat"][..]), ("60", &[]), ("100", &[])] {
        let mut line = command(&[&["bench", "multi-turn", &url], &small[..], extra].concat());
        let run = finish(line.env("COLUMNS", columns).output().expect("the program starts"));
        let text = run.succeeds();
        let width: usize = columns.parse().expect("a number");
        let too_wide = text.lines().find(|line| line.chars().count() > width);
        assert_eq!(too_wide, None, "{text}");
        let caveat = text.rfind("\ncaveat: ").expect("the simulator is a caveat");
        let answer = text.find(" requests succeeded in ").expect("the answer");
        assert!(caveat < answer, "{text}");
        assert!(text[answer..].lines().count() <= 6, "the answer is at the end: {text}");
    }
}
