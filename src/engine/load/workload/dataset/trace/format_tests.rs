//! Tests of formats with one request per row: good files, wrong block sizes, units of time, and
//! malformed rows.

use mcctl_trace::BlockCountError;

use super::*;
use crate::workload::TextSpan;

pub(super) fn dataset(text: &str, options: &DatasetOptions) -> Dataset {
    // A small buffer, so that rows cross its boundaries.
    let input = std::io::BufReader::with_capacity(11, text.as_bytes());
    read(input, "t", options).unwrap_or_else(|error| panic!("{error}"))
}

pub(super) fn plain(text: &str) -> Dataset {
    dataset(text, &DatasetOptions::default())
}

pub(super) fn skipping() -> DatasetOptions {
    DatasetOptions { skip_bad: true, ..DatasetOptions::default() }
}

pub(super) fn with_size(size: u64) -> DatasetOptions {
    DatasetOptions { block_tokens: Some(size), ..DatasetOptions::default() }
}

pub(super) fn in_unit(unit: TimeUnit) -> DatasetOptions {
    DatasetOptions { time_unit: Some(unit), ..DatasetOptions::default() }
}

/// Prompt length and time in seconds of each turn, by conversation.
pub(super) fn shape(dataset: &Dataset) -> Vec<Vec<(u32, Option<f64>)>> {
    let turn = |turn: &PlannedTurn| match &turn.content {
        TurnContent::Made(spans) => (spans.tokens(), turn.at.map(|at| at.as_secs_f64())),
        other => panic!("{other:?}"),
    };
    dataset.conversations.iter().map(|conversation| conversation.turns.iter().map(turn).collect()).collect()
}

pub(super) fn block_error(text: &str, options: &DatasetOptions) -> (u64, BlockCountError) {
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
pub(super) fn check_skipping(text: &str) {
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
