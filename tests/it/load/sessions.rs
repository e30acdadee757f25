//! Sessions of agents through the built binary: order, prefixes, random starts and the rules of
//! AgentX.

use std::path::Path;

use serde_json::Value;

use super::command::{bench, quick};
use super::server::Behaviour;
use crate::cli::{Run, mcctl};

fn weka() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/load/datasets/weka.jsonl");
    format!("--dataset-path={}", path.display())
}

/// Runs the bench with a trace and `args`. Returns its output, and the prompts in the order in
/// which the server received them.
fn replay(args: &[&str]) -> (Run, Vec<Vec<u64>>) {
    let (run, heard) = bench(quick, &[&["--dataset-name=trace", &weka(), "--json"], args].concat());
    let body = |body: &Vec<u8>| serde_json::from_slice::<Value>(body).expect("JSON");
    let ids = |body: Value| serde_json::from_value(body["input_ids"].clone()).expect("IDs");
    (run, heard.iter().map(body).map(ids).collect())
}

fn lengths(prompts: &[Vec<u64>]) -> Vec<usize> {
    prompts.iter().map(Vec::len).collect()
}

fn document(run: &Run) -> Value {
    serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run:?}"))
}

#[test]
fn parent_waits_for_its_subagent_and_the_next_session_for_both() {
    let (run, prompts) = replay(&["--live-sessions=1"]);
    assert_eq!((run.code, lengths(&prompts)), (0, vec![130, 192, 200, 128]), "{run:?}");
    assert_eq!((&prompts[0][..128], &prompts[0][..128]), (&prompts[1][..128], &prompts[2][..128]));
    assert!(!run.stderr.contains("does not wait"), "{run:?}");
    let interactivity = &document(&run)["passes"][0]["interactivity"];
    assert!(interactivity["p90_interactivity"].as_f64().is_some_and(|value| value > 0.0), "{interactivity}");
    assert!(interactivity["per_gpu"].is_null());
}

#[test]
fn sessions_repeat_with_prefixes_of_their_own_until_the_time_is_over() {
    let line = ["--live-sessions=2", "--repeat-sessions", "--unique-prefix=seed", "--duration=1s", "--gpus=2"];
    let (run, prompts) = replay(&line);
    assert_eq!(run.code, 0, "{run:?}");
    assert!(prompts.len() > 8, "{}", prompts.len());
    // The first request of the first session, each time with 8 tokens before it.
    let first: Vec<&Vec<u64>> = prompts.iter().filter(|prompt| prompt.len() == 138).collect();
    assert!(first.len() > 1 && first[0][8..136] == first[1][8..136] && first[0][..8] != first[1][..8]);
    let pass = &document(&run)["passes"][0];
    assert_eq!(pass["interactivity"]["per_gpu"]["gpus"], 2);
    let (again, other) = (replay(&line).1, replay(&["--live-sessions=1", "--unique-prefix=run"]).1);
    assert!(again.iter().any(|prompt| *prompt == *first[0]), "the seed determines the prefix");
    assert!(other.iter().all(|prompt| prompt[..8] != first[0][..8]), "another prefix in each run");
}

#[test]
fn warm_up_requests_of_sessions_are_not_counted() {
    let (run, prompts) = replay(&["--live-sessions=6", "--session-start=random", "--seed=3"]);
    assert_eq!(run.code, 0, "{run:?}");
    let sent = document(&run)["passes"][0]["sent"].as_u64().expect("a number");
    let warmups = prompts.len() as u64 - sent;
    // Six sessions from a random point, and then both from the beginning.
    assert!(warmups > 0 && (8..6 * 3 + 4).contains(&sent), "{warmups} {sent}");
    assert!(run.stderr.contains("rebuild the prefixes"), "{run:?}");
}

#[test]
fn report_lists_the_rules_of_agentx_that_were_not_followed() {
    let (run, _) = replay(&[
        "--preset=agentx",
        "--api=generate",
        "--live-sessions=2",
        "--seed=1",
        "--duration=1s",
        "--idle-max=20s",
    ]);
    assert_eq!(run.code, 0, "{run:?}");
    let scenario = document(&run)["scenario"].clone();
    let broken = |scenario: &Value| -> Vec<String> {
        let rules = scenario["rules"].as_array().expect("rules").iter();
        rules
            .filter(|rule| rule["met"] == false)
            .map(|rule| rule["rule"].as_str().unwrap_or_default().to_owned())
            .collect()
    };
    assert_eq!(
        (scenario["valid"].clone(), broken(&scenario)),
        (Value::Bool(false), vec!["idle_max".to_owned(), "duration".to_owned()])
    );
    let (other, _) = replay(&["--live-sessions=2"]);
    assert!(document(&other)["scenario"].is_null());
}

#[test]
fn only_a_prompt_beyond_the_context_ends_its_conversation() {
    let sent = |first: Behaviour| {
        let first = std::sync::Mutex::new(Some(first));
        let behaviour = move |request: usize| {
            let first = first.lock().expect("lock is not poisoned").take_if(|_| request == 0);
            first.unwrap_or_else(|| quick(request))
        };
        let (run, heard) = bench(behaviour, &["--dataset-name=trace", &weka(), "--json", "--live-sessions=1"]);
        (run.code, heard.len())
    };
    // "the prompt is too long": the agent's second request is dropped. Its subagent and the other
    // session go on.
    assert_eq!(sent(Behaviour::ErrorInStream), (1, 3));
    assert_eq!(sent(Behaviour::CloseMidStream), (1, 4));
}

#[test]
fn flags_that_need_live_sessions_or_a_dataset_are_refused() {
    let url = "--url=http://127.0.0.1:1";
    for line in [
        &["--session-start=random", "--dataset-name=trace", &weka()][..],
        &["--unique-prefix=run"],
        &["--idle-max=1s"],
        &["--live-sessions=2", "--sweep-rate=1,2"],
        &["--repeat-sessions"],
        &["--live-sessions=0"],
    ] {
        mcctl(&[&["bench", "multi-turn", url], line].concat()).fails(2);
    }
}

#[test]
fn too_few_sessions_are_reported_and_the_dataset_is_kept() {
    let (run, prompts) = replay(&["--live-sessions=9"]);
    assert_eq!((run.code, prompts.len()), (0, 4), "{run:?}");
    assert!(run.stderr.contains("2 sessions"), "{run:?}");
    let folder = tempfile::tempdir().expect("a folder");
    let copy = folder.path().join("trace.jsonl");
    std::fs::copy(weka().trim_start_matches("--dataset-path="), &copy).expect("copied");
    let before = std::fs::read(&copy).expect("readable");
    let (input, output) = (format!("--dataset-path={}", copy.display()), format!("--records={}", copy.display()));
    let run = mcctl(&["bench", "multi-turn", "--dataset-name=trace", &input, &output, "--overwrite", "--yes"]);
    run.fails(2);
    assert_eq!(std::fs::read(&copy).expect("readable"), before);
}

#[test]
fn a_run_lasts_until_the_end_of_its_duration() {
    let (run, _) = replay(&["--live-sessions=1", "--repeat-sessions", "--duration=2s"]);
    let seconds = document(&run)["passes"][0]["seconds"].as_f64().expect("a number");
    assert!(seconds >= 2.0, "{seconds}: {run:?}");
}
