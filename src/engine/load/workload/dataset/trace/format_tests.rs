//! Tests of each format: a good file, a wrong block size, units of time, and malformed rows.

use mcctl_trace::BlockCountError;

use super::*;
use crate::workload::TextSpan;

fn dataset(text: &str, options: &DatasetOptions) -> Dataset {
    // A small buffer, so that rows cross its boundaries.
    let input = std::io::BufReader::with_capacity(11, text.as_bytes());
    read(input, "t", options).unwrap_or_else(|error| panic!("{error}"))
}

fn plain(text: &str) -> Dataset {
    dataset(text, &DatasetOptions::default())
}

fn skipping() -> DatasetOptions {
    DatasetOptions { skip_bad: true, ..DatasetOptions::default() }
}

fn with_size(size: u64) -> DatasetOptions {
    DatasetOptions { block_tokens: Some(size), ..DatasetOptions::default() }
}

fn in_unit(unit: TimeUnit) -> DatasetOptions {
    DatasetOptions { time_unit: Some(unit), ..DatasetOptions::default() }
}

/// Prompt length and time in seconds of each turn, by conversation.
fn shape(dataset: &Dataset) -> Vec<Vec<(u32, Option<f64>)>> {
    let turn = |turn: &PlannedTurn| match &turn.content {
        TurnContent::Made(spans) => (spans.tokens(), turn.at.map(|at| at.as_secs_f64())),
        other => panic!("{other:?}"),
    };
    dataset.conversations.iter().map(|conversation| conversation.turns.iter().map(turn).collect()).collect()
}

fn block_error(text: &str, options: &DatasetOptions) -> (u64, BlockCountError) {
    let Err(DatasetError::Row { bad, .. }) = read(text.as_bytes(), "t", options) else { panic!("a bad row") };
    let reason = match bad.reason {
        RowError::Request { error, .. } => *error,
        other => other,
    };
    match reason {
        RowError::Trace(error) => match *error {
            mcctl_trace::RowError::BlockCount(count) => (bad.line, count),
            other => panic!("{other}"),
        },
        other => panic!("{other}"),
    }
}

/// Checks that a malformed row after `text` is an error, or skipped.
fn check_skipping(text: &str) {
    let good = plain(text);
    let broken = format!("{text}{{\"broken\n");
    let lines = text.lines().count() as u64;
    let error = read(broken.as_bytes(), "t", &DatasetOptions::default()).expect_err("a bad row");
    assert!(matches!(error, DatasetError::Row { ref bad, .. } if bad.line == lines + 1), "{error}");
    let skipped = dataset(&broken, &skipping());
    assert_eq!((skipped.skipped, skipped.rows), (1, good.rows + 1));
    assert_eq!(skipped.first_bad.as_ref().map(|bad| bad.line), Some(lines + 1));
    assert_eq!(skipped.conversations, good.conversations);
}

const BAILIAN: &str = r#"{"chat_id": 0, "parent_chat_id": -1, "timestamp": 10.0, "input_length": 48, "output_length": 20, "type": "text", "turn": 1, "hash_ids": [11, 12, 13]}
{"chat_id": 1, "parent_chat_id": -1, "timestamp": 11.25, "input_length": 40, "output_length": 12, "type": "search", "turn": 1, "hash_ids": [11, 12, 19]}
{"chat_id": 2, "parent_chat_id": 0, "timestamp": 13.5, "input_length": 80, "output_length": 30, "type": "text", "turn": 2, "hash_ids": [11, 12, 13, 14, 15]}
{"chat_id": 3, "parent_chat_id": 2, "timestamp": 15, "input_length": 81, "output_length": 30, "type": "text", "turn": 3, "hash_ids": [11, 19, 13, 14, 15, 16]}
"#;

#[test]
fn bailian_chats_are_conversations_in_seconds() {
    let read = plain(BAILIAN);
    let expected = [vec![(48, Some(0.0)), (80, Some(3.5)), (81, Some(5.0))], vec![(40, Some(1.25))]];
    assert_eq!(shape(&read), expected);
    assert!(read.conversations.iter().flat_map(|conversation| &conversation.turns).all(|turn| turn.whole));
    assert_eq!((read.rows, read.left_out, &read.caveats[..]), (4, 0, &[][..]));
    let ms = dataset(BAILIAN, &in_unit(TimeUnit::Milliseconds));
    assert_eq!(shape(&ms)[1], [(40, Some(0.00125))]);
    let (line, count) = block_error(BAILIAN, &with_size(512));
    assert_eq!((line, count.tokens, count.blocks, count.suggested), (1, 48, 3, Some(16)));
    check_skipping(BAILIAN);
}

#[test]
fn row_that_fits_no_other_size_is_refused_or_skipped() {
    let wrong =
        "{\"chat_id\": 9, \"parent_chat_id\": -1, \"timestamp\": 20, \"input_length\": 512, \"hash_ids\": [1]}\n";
    let text = format!("{BAILIAN}{wrong}");
    let (line, count) = block_error(&text, &DatasetOptions::default());
    assert_eq!((line, count.tokens, count.blocks, count.block_tokens), (5, 512, 1, 16));
    let read = dataset(&text, &skipping());
    assert_eq!((read.skipped, read.conversations.len()), (1, 2));
}

#[test]
fn first_malformed_row_is_reported() {
    let small =
        "{\"chat_id\": 9, \"parent_chat_id\": -1, \"timestamp\": 20, \"input_length\": 512, \"hash_ids\": [1]}\n";
    for broken in ["{\"broken\n", "\u{fffd}\n"] {
        let (line, _) = block_error(&format!("{BAILIAN}{small}{broken}"), &DatasetOptions::default());
        assert_eq!(line, 5);
    }
}

#[test]
fn limit_keeps_the_first_chats_with_all_their_turns() {
    let limited = dataset(BAILIAN, &DatasetOptions { limit: 1, ..DatasetOptions::default() });
    assert_eq!(shape(&limited), [[(48, Some(0.0)), (80, Some(3.5)), (81, Some(5.0))]]);
    assert_eq!((limited.rows, limited.left_out), (4, 0));
    let second = dataset(BAILIAN, &DatasetOptions { limit: 1, offset: 1, ..DatasetOptions::default() });
    assert_eq!(shape(&second), [[(40, Some(0.0))]]);
    // A later row with an earlier start is not dropped.
    let early = BAILIAN.replace("11.25", "1.25");
    let limited = dataset(&early, &DatasetOptions { limit: 1, ..DatasetOptions::default() });
    assert_eq!(shape(&limited), [[(40, Some(0.0))]]);
}

const VLLM: &str = "{\"timestamp\": 0.5, \"input_length\": 201, \"output_length\": 1, \"hash_ids\": [1,2,3,4,5,6,7,8,9,10,11,12,13]}\n\
    {\"timestamp\": 5.5, \"input_length\": 32, \"output_length\": 1, \"hash_ids\": [1, 2]}\n";

#[test]
fn vllm_trace_is_in_seconds_and_mooncakes_in_milliseconds() {
    assert_eq!(shape(&plain(VLLM)), [[(201, Some(0.0))], [(32, Some(5.0))]]);
    let mooncake = VLLM.replace("0.5,", "500,").replace("5.5,", "5500,");
    assert_eq!(shape(&plain(&mooncake)), [[(201, Some(0.0))], [(32, Some(5.0))]]);
    assert_eq!(shape(&dataset(&mooncake, &in_unit(TimeUnit::Seconds)))[1], [(32, Some(5000.0))]);
    let (line, count) = block_error(VLLM, &with_size(512));
    assert_eq!((line, count.suggested), (1, Some(16)));
    check_skipping(VLLM);
}

#[test]
fn doubtful_unit_is_a_caveat_unless_it_is_given() {
    let text: String = (0..100)
        .map(|at| format!("{{\"timestamp\": {}, \"input_length\": 600, \"hash_ids\": [1, 2]}}\n", f64::from(at) / 2.0))
        .collect();
    let doubts = |options: &DatasetOptions| {
        let doubt = |caveat: &DatasetCaveat| matches!(caveat, DatasetCaveat::Trace(TraceCaveat::TimeUnitDoubt { .. }));
        dataset(&text, options).caveats.iter().any(doubt)
    };
    assert!(doubts(&DatasetOptions::default()), "2,000 requests/s as milliseconds");
    assert!(!doubts(&in_unit(TimeUnit::Seconds)));
    assert!(!doubts(&in_unit(TimeUnit::Milliseconds)));
}

#[test]
fn conversations_without_a_time_are_a_caveat() {
    let text = "{\"input_length\": 5, \"hash_ids\": [1]}\n{\"timestamp\": 7, \"input_length\": 5, \"hash_ids\": [1]}\n";
    assert_eq!(plain(text).caveats, [DatasetCaveat::MissingTimes { conversations: 1 }]);
}

#[test]
fn mooncake_rows_may_have_other_names() {
    let text = "{\"created_time\": 1000, \"input_tokens\": 600, \"output_tokens\": 7, \"hash_ids\": [1, 2]}\n\
        {\"session_id\": \"s\", \"created_time\": 2000, \"input_tokens\": 9, \"hash_ids\": [3]}\n\
        {\"session_id\": \"s\", \"delay_ms\": 1500, \"input_tokens\": 9, \"hash_ids\": [3]}\n";
    let read = plain(text);
    assert_eq!(shape(&read), [vec![(600, Some(0.0))], vec![(9, Some(1.0)), (9, None)]]);
    assert_eq!(read.conversations[1].turns[1].delay, Duration::from_millis(1500));
    check_skipping(text);
}

#[test]
fn messages_before_hashes_do_not_decide_the_block_size() {
    let message = "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"timestamp\": 0}\n";
    let text = format!("{}{VLLM}", message.repeat(1100));
    let read = plain(&text);
    assert_eq!((read.conversations.len(), read.skipped), (1102, 0));
}

#[test]
fn simulator_rows_have_their_block_size_and_may_have_a_tail() {
    let text = "{\"block_size\": 64, \"hash_ids\": [1, 2], \"input_length\": 128}\n\
        {\"block_size\": 64, \"hash_ids\": [1, 2], \"input_length\": 150}\n\
        {\"block_size\": 64, \"hash_ids\": [1, 2, 3], \"input_length\": 150}\n";
    let read = plain(text);
    assert_eq!(shape(&read), [[(128, None)], [(150, None)], [(150, None)]]);
    let last = |at: usize| match &read.conversations[at].turns[0].content {
        TurnContent::Made(spans) => spans.iter().last(),
        _ => None,
    };
    assert_eq!(last(1), Some(TextSpan::Drawn { purpose: "tail", number: 2, tokens: 22 }));
    assert_eq!(last(2), Some(TextSpan::Drawn { purpose: "block", number: 3, tokens: 22 }));
    let other = format!("{text}{{\"block_size\": 32, \"hash_ids\": [1], \"input_length\": 32}}\n");
    assert_eq!(dataset(&other, &skipping()).skipped, 1);
    check_skipping(text);
}

const WEKA: &str = r#"{"id": "a", "block_size": 64, "hash_id_scope": "local", "requests": [{"t": 0.0, "type": "n", "in": 130, "out": 9, "hash_ids": [1, 2], "api_time": 2.0}, {"t": 1.0, "type": "subagent", "agent_id": "x", "duration_ms": 3000, "requests": [{"t": 0.5, "type": "s", "in": 192, "out": 8, "hash_ids": [1, 2, 3], "api_time": 1.0}]}, {"t": 6.0, "type": "n", "in": 200, "out": 7, "hash_ids": [1, 2, 3], "api_time": 4.0}]}
{"id": "b", "block_size": 64, "requests": [{"t": 2.0, "type": "n", "in": 128, "out": 6, "hash_ids": [1, 2], "api_time": 1}]}
"#;

#[test]
fn weka_main_chain_and_subagents_are_conversations() {
    let read = plain(WEKA);
    assert_eq!(shape(&read), [vec![(130, Some(0.0)), (200, None)], vec![(128, Some(0.0))], vec![(192, Some(1.5))]]);
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
    assert_eq!((limited.conversations.len(), limited.rows), (2, 3));
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
