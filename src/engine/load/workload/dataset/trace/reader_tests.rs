//! Tests of the formats whose rows are sessions, rounds, log entries or lines of CSV, and of files
//! that are not traces.

use super::format_tests::{block_error, check_skipping, dataset, in_unit, plain, shape, skipping, with_size};
use super::*;

const WEKA: &str = r#"{"id": "a", "block_size": 64, "hash_id_scope": "local", "requests": [{"t": 0.0, "type": "n", "in": 130, "out": 9, "hash_ids": [1, 2], "api_time": 2.0}, {"t": 1.0, "type": "subagent", "agent_id": "x", "duration_ms": 3000, "requests": [{"t": 0.5, "type": "s", "in": 192, "out": 8, "hash_ids": [1, 2, 3], "api_time": 1.0}]}, {"t": 6.0, "type": "n", "in": 200, "out": 7, "hash_ids": [1, 2, 3], "api_time": 4.0}]}
{"id": "b", "block_size": 64, "requests": [{"t": 2.0, "type": "n", "in": 128, "out": 6, "hash_ids": [1, 2], "api_time": 1}]}
"#;

#[test]
fn weka_main_chain_and_subagents_are_conversations() {
    let read = plain(WEKA);
    assert_eq!(shape(&read), [vec![(130, Some(0.0)), (200, None)], vec![(192, Some(1.5))], vec![(128, Some(0.0))]]);
    let turns = &read.conversations[0].turns;
    assert_eq!((turns[0].delay, turns[1].delay), (Duration::ZERO, Duration::from_secs(4)), "6 s - 2 s of api_time");
    assert_eq!((turns[1].max_tokens, turns[1].whole, read.rows, read.left_out), (7, true, 4, 0));
    let starts = DatasetCaveat::Trace(TraceCaveat::AssumedSessionStarts { live: 64, sessions: 2 });
    assert_eq!(read.caveats, [starts, DatasetCaveat::DetachedSubagents { subagents: 1 }]);
    let ms = dataset(WEKA, &in_unit(TimeUnit::Milliseconds));
    assert_eq!(ms.conversations[0].turns[1].delay, Duration::from_millis(4));
    check_skipping(WEKA);
}

#[test]
fn weka_request_with_a_wrong_count_is_reported_with_its_position() {
    let wrong = WEKA.replace("\"in\": 192", "\"in\": 256");
    let error = read(wrong.as_bytes(), "t", &DatasetOptions::default()).expect_err("a bad request");
    assert!(matches!(
        error,
        DatasetError::Row { bad: BadRow { line: 1, reason: RowError::Request { number: 2, .. } }, .. }
    ));
    let skipped = dataset(&wrong, &skipping());
    assert_eq!((skipped.skipped, skipped.conversations.len()), (1, 2));
    let (line, count) = block_error(WEKA, &with_size(512));
    assert_eq!((line, count.suggested), (1, Some(64)));
}

#[test]
fn weka_session_may_extend_over_several_lines_and_needs_no_block_size() {
    let pretty = WEKA.replace("\"block_size\": 64, ", "").replace(", {", ",\n {");
    assert_eq!(shape(&plain(&pretty)), shape(&plain(WEKA)));
}

#[test]
fn weka_reading_stops_after_the_required_conversations() {
    let text = format!("{WEKA}oops");
    let limited = dataset(&text, &DatasetOptions { limit: 2, ..DatasetOptions::default() });
    assert_eq!((limited.conversations.len(), limited.rows), (3, 4));
    let first = dataset(&text, &DatasetOptions { limit: 1, ..DatasetOptions::default() });
    assert_eq!((first.conversations.len(), first.rows), (2, 3), "a session with its subagent");
}

#[test]
fn weka_live_session_waits_for_its_subagent_and_idle_time_is_limited() {
    let options = DatasetOptions { live_sessions: true, ..DatasetOptions::default() };
    let read = dataset(WEKA, &options);
    assert_eq!(read.caveats, []);
    let [main, subagent, other] = &read.conversations[..] else { panic!("{read:?}") };
    let node = |conversation: &Conversation| conversation.node.clone().expect("a node");
    assert_eq!(node(main).joins, [crate::SessionJoin { turn: 1, conversation: 1 }]);
    assert_eq!((node(subagent).index, node(subagent).after), (1, None), "its parent had no turn that had ended");
    assert_eq!((node(subagent).delay, node(other).index), (Duration::from_millis(1500), 0));
    assert_eq!(main.turns[1].delay, Duration::from_millis(3500), "6 s - 2.5 s, the end of the subagent");
    assert_eq!((main.turns[1].since_start, subagent.turns[0].since_start.as_millis()), (Duration::from_secs(6), 1500));
    let capped = dataset(WEKA, &DatasetOptions { idle_max: Some(Duration::from_secs(1)), ..options });
    assert_eq!(
        (capped.conversations[0].turns[1].delay, node(&capped.conversations[1]).delay.as_secs_f64()),
        (Duration::from_secs(1), 1.0)
    );
}

fn round(session: &str, index: u64, second: u64, input: u64, prefix: u64, output: u64) -> String {
    format!(
        "{{\"session_id\": \"{session}\", \"round_index\": {index}, \"input_tokens_total\": {input}, \"prefix_tokens\": {prefix}, \
         \"newly_append_tokens\": {}, \"output_tokens\": {output}, \
         \"timing_events\": [{{\"event_type\": \"user_message\", \"timestamp\": \"2026-05-31T12:00:{second:02}Z\"}}]}}\n",
        input - prefix
    )
}

#[test]
fn tracelab_sessions_are_conversations_of_entire_prompts() {
    let text = [
        round("a", 1, 12, 150, 105, 6),
        round("a", 0, 10, 100, 30, 5),
        round("b", 0, 11, 70, 0, 1),
        round("a", 2, 50, 0, 0, 5),
    ]
    .concat();
    let read = plain(&text);
    assert_eq!(shape(&read), [vec![(100, Some(0.0)), (150, Some(2.0))], vec![(70, Some(1.0))]]);
    assert_eq!((read.conversations[0].turns[1].max_tokens, read.rows, read.left_out), (6, 4, 1));
    let left_out = TraceCaveat::LeftOut { no_tokens: 1, no_time: 0, no_hashes: 0 };
    let others = TraceCaveat::PrefixFromOtherSessions { sessions: 1, tokens: 30 };
    assert_eq!(read.caveats, [left_out, others].map(DatasetCaveat::Trace));
    // Absolute times have no unit.
    assert_eq!(dataset(&text, &in_unit(TimeUnit::Milliseconds)).conversations, read.conversations);
    let limited = dataset(&text, &DatasetOptions { limit: 1, ..DatasetOptions::default() });
    assert_eq!(limited.conversations, read.conversations[..1]);
    assert_eq!(limited.left_out, 1);
    check_skipping(&text);
}

fn spend(second: u64, tokens: u64, hashes: &[&str], size: &str) -> String {
    let hashes: Vec<String> = hashes.iter().map(|hash| format!("\"{hash:0>16}\"")).collect();
    format!(
        "{{\"startTime\": \"2026-11-16T10:00:{second:02}Z\", \"prompt_tokens\": {tokens}, \"completion_tokens\": 2, \"session_id\": \"s\", \
         \"metadata\": {{\"prefix_block_hashes\": {{\"hashes\": [{}]{size}}}}}}}\n",
        hashes.join(",")
    )
}

#[test]
fn litellm_requests_are_sorted_and_stand_alone() {
    let failed = "{\"startTime\": \"2026-11-16T09:00:00Z\", \"prompt_tokens\": 0, \"metadata\": {}}\n";
    let text = [spend(9, 60, &["a", "b"], ""), failed.to_owned(), spend(2, 33, &["a", "c"], "")].concat();
    let read = plain(&text);
    assert_eq!(shape(&read), [[(33, Some(0.0))], [(60, Some(7.0))]]);
    assert_eq!(read.left_out, 1);
    let left_out = TraceCaveat::LeftOut { no_tokens: 1, no_time: 0, no_hashes: 0 };
    assert_eq!(read.caveats, [DatasetCaveat::Trace(left_out)]);
    let limited = dataset(&text, &DatasetOptions { limit: 1, ..DatasetOptions::default() });
    assert_eq!(shape(&limited), [[(33, Some(0.0))]], "the earliest request");
    let (_, count) = block_error(
        &[spend(1, 600, &["a", "b"], ""), spend(2, 60, &["a", "b"], "")].concat(),
        &DatasetOptions::default(),
    );
    assert_eq!((count.tokens, count.blocks), (60, 2), "512 fits the first row");
    let size = ", \"block_size\": 32";
    let recorded = plain(&[spend(1, 64, &["a", "b"], size), spend(2, 64, &["a", "b", "c"], size)].concat());
    assert_eq!(recorded.caveats, [DatasetCaveat::Trace(TraceCaveat::HashCount { rows: 1 })]);
    check_skipping(&text);
}

const BURST: &str = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,0,0,0,API log\n118.5,GPT-4,1087,0,1087,Conversation log\n";

#[test]
fn burstgpt_has_times_and_lengths_only() {
    let read = plain(BURST);
    assert_eq!(shape(&read), [[(472, Some(0.0))], [(1087, Some(113.5))]]);
    let outputs: Vec<u32> = read.conversations.iter().map(|conversation| conversation.turns[0].max_tokens).collect();
    assert_eq!(
        (outputs, read.rows, read.left_out, &read.caveats[..]),
        (vec![18, 1], 3, 1, &[DatasetCaveat::NoReuse][..])
    );
    let ms = dataset(BURST, &in_unit(TimeUnit::Milliseconds));
    assert_eq!(shape(&ms)[1], [(1087, Some(0.1135))]);
    let broken = format!("{BURST}oops,GPT-4,5,5,10,API log\n");
    let error = read_error(&broken);
    assert!(matches!(error, DatasetError::Row { bad: BadRow { line: 5, reason: RowError::InvalidTime { .. } }, .. }));
    assert_eq!(dataset(&broken, &skipping()).skipped, 1);
    let limited = dataset(&broken, &DatasetOptions { limit: 2, ..DatasetOptions::default() });
    assert_eq!(limited.conversations.len(), 2);
    let other = BURST
        .replace("Model", "Session ID,Elapsed time,Model")
        .replace(",ChatGPT", ",7,1.5,ChatGPT")
        .replace(",GPT-4", ",,,GPT-4");
    assert_eq!(shape(&plain(&other)), shape(&read));
}

fn read_error(text: &str) -> DatasetError {
    read(text.as_bytes(), "t", &DatasetOptions::default()).expect_err("an invalid trace")
}

#[test]
fn other_files_are_refused_with_the_reason() {
    let refused = |text: &str, expected: TraceRefusal| {
        let error = read_error(text);
        assert!(matches!(error, DatasetError::Refused { refusal, .. } if refusal == expected), "{error}");
    };
    refused(r#"[{"id": "x", "conversations": []}]"#, TraceRefusal::ShareGpt);
    refused("[\n  {\"id\": \"x\", \"conversations\": []}]", TraceRefusal::ShareGpt);
    refused(r#"{"schema": "mcctl.bench.record/1"}"#, TraceRefusal::BenchRecords);
    refused(r#"[{"hash_ids": [1]}]"#, TraceRefusal::JsonArray);
    let gzip = read(&[0x1f, 0x8b, 8, 0][..], "t", &DatasetOptions::default()).expect_err("not a trace");
    assert!(matches!(gzip, DatasetError::Gzip { .. }));
    let array = dataset("[1]\n{\"hash_ids\": [1]}\n", &skipping());
    assert_eq!((array.skipped, array.conversations.len()), (1, 1));
}
