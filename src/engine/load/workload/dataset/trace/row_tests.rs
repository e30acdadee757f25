//! Tests of rows with Mooncake's fields, and of their conversations.

use super::*;
use crate::workload::TextSpan;

fn dataset(text: &str, reading: &DatasetOptions) -> Dataset {
    read(text.as_bytes(), "t", reading).expect("a trace")
}

fn reason(text: &str) -> RowError {
    match read(text.as_bytes(), "t", &DatasetOptions::default()) {
        Err(DatasetError::Row { bad, .. }) => bad.reason,
        other => panic!("{other:?}"),
    }
}

const PLAIN: &str = r#"{"timestamp": 2500, "input_length": 1100, "output_length": 52, "hash_ids": [7, 8, 9]}
{"timestamp": 500, "input_length": 512, "output_length": 0, "hash_ids": [7]}
{"timestamp": 500.5, "hash_ids": [7, 8]}
"#;

#[test]
fn each_id_is_one_block_and_the_last_one_is_cut() {
    let read = dataset(PLAIN, &DatasetOptions::default());
    let turns: Vec<&PlannedTurn> = read.conversations.iter().map(|conversation| &conversation.turns[0]).collect();
    let block = |number, tokens| TextSpan::Drawn { purpose: "block", number, tokens };
    assert_eq!(turns[0].content, TurnContent::made(vec![block(7, 512)]));
    assert_eq!(turns[1].content, TurnContent::made(vec![block(7, 512), block(8, 512)]));
    assert_eq!(turns[2].content, TurnContent::made(vec![block(7, 512), block(8, 512), block(9, 76)]));
    assert_eq!(turns.iter().map(|turn| turn.max_tokens).collect::<Vec<_>>(), [1, 1, 52]);
    assert!(turns.iter().all(|turn| turn.whole));
    let small = dataset(
        "{\"input_length\": 40, \"hash_ids\": [1, 2, 3]}",
        &DatasetOptions { block_tokens: Some(16), ..DatasetOptions::default() },
    );
    assert_eq!(
        small.conversations[0].turns[0].content,
        TurnContent::made(vec![block(1, 16), block(2, 16), block(3, 8)])
    );
}

#[test]
fn further_rounds_repeat_the_prompt_after_the_answers() {
    let read = dataset(PLAIN, &DatasetOptions { rounds: 3, ..DatasetOptions::default() });
    let turns = &read.conversations[2].turns;
    assert_eq!(
        turns.iter().map(|turn| (turn.whole, turn.max_tokens)).collect::<Vec<_>>(),
        [(true, 52), (false, 52), (false, 52)]
    );
    assert_eq!((turns[0].at.is_some(), turns[1].at, &turns[1].content), (true, None, &turns[0].content));
    assert_eq!((read.rows, read.left_out), (3, 0));
}

#[test]
fn request_times_are_relative_to_the_first() {
    let at = |slowdown| {
        let read = dataset(PLAIN, &DatasetOptions { slowdown, ..DatasetOptions::default() });
        let at = |conversation: &Conversation| conversation.turns[0].at.expect("a time").as_secs_f64() * 1e3;
        read.conversations.iter().map(at).collect::<Vec<_>>()
    };
    assert_eq!(at(1.0), [0.0, 0.5, 2000.0]);
    assert_eq!(at(0.5), [0.0, 0.25, 1000.0]);
}

#[test]
fn session_rows_form_one_conversation_of_whole_or_delta_turns() {
    let text = r#"{"session_id": "a", "messages": [{"role": "user", "content": "x"}], "timestamp": 0, "output_length": 5}
{"session_id": 2, "message_mode": "delta", "messages": [{"role": "user", "content": "q"}], "tools": [{"b": 1, "a": 2}]}
{"session_id": "a", "messages": [{"role": "user", "content": "y"}], "delay": 1500, "extra": {"top_p": 0.5}}
{"session_id": 2, "message_mode": "delta", "messages": [{"role": "user", "content": "r"}]}
"#;
    let read = dataset(text, &DatasetOptions::default());
    let shape = |conversation: &Conversation| conversation.turns.iter().map(|turn| turn.whole).collect::<Vec<_>>();
    let mut shapes: Vec<Vec<bool>> = read.conversations.iter().map(shape).collect();
    shapes.sort();
    assert_eq!(shapes, [[false, false], [true, true]]);
    let whole = read.conversations.iter().find(|found| found.turns[0].whole).expect("a whole conversation");
    assert_eq!((whole.turns[0].max_tokens, whole.turns[1].delay), (5, Duration::from_millis(1500)));
    assert_eq!(whole.turns[1].extra.iter().collect::<Vec<_>>(), [("top_p", "0.5")]);
    let news = read.conversations.iter().find(|found| !found.turns[0].whole).expect("a delta conversation");
    assert_eq!(news.turns[1].extra.iter().collect::<Vec<_>>(), [("tools", r#"[{"b": 1, "a": 2}]"#)]);
}

#[test]
fn text_and_length_rows_continue_the_conversation() {
    let text =
        "{\"session_id\": 1, \"text_input\": \"hi\"}\n{\"session_id\": 1, \"input_length\": 9, \"output_length\": 3}";
    let turns = dataset(text, &DatasetOptions::default()).conversations.remove(0).turns;
    assert_eq!((&turns[0].content, turns[0].max_tokens), (&TurnContent::Text("hi".into()), 256));
    assert_eq!(turns[1].content, TurnContent::made(vec![TextSpan::Drawn { purpose: "row", number: 2, tokens: 9 }]));
    assert!(!turns[1].whole && turns[1].max_tokens == 3);
}

#[test]
fn contradictory_rows_are_refused() {
    use RowError as E;
    use mcctl_trace::RowError::BlockCount;
    type Expected = fn(&RowError) -> bool;
    let cases: [(&str, Expected); 13] = [
        ("{}", |e| matches!(e, E::NoPrompt)),
        ("{\"hash_ids\": []}", |e| matches!(e, E::EmptyPrompt)),
        (
            "{\"hash_ids\": [1, 2], \"input_length\": 1}",
            |e| matches!(e, E::Trace(error) if matches!(**error, BlockCount(_))),
        ),
        ("{\"hash_ids\": [-1]}", |e| matches!(e, E::Member { name: "hash_ids", .. })),
        ("{\"hash_ids\": [99999999999999999999999]}", |e| matches!(e, E::Member { name: "hash_ids", .. })),
        ("{\"hash_ids\": [1], \"timestamp\": -5}", |e| matches!(e, E::InvalidTime { value, .. } if value == "-5")),
        ("{\"hash_ids\": [1], \"timestamp\": 1e300}", |e| matches!(e, E::InvalidTime { .. })),
        ("{\"hash_ids\": [1], \"text_input\": \"x\"}", |e| matches!(e, E::SeveralPrompts)),
        ("{\"input_length\": 99999999999}", |e| matches!(e, E::InvalidTokens { .. })),
        ("{\"text_input\": \"x\", \"message_mode\": \"delta\"}", |e| matches!(e, E::ModeWithoutMessages)),
        ("{\"text_input\": \"x\", \"message_mode\": \"both\"}", |e| matches!(e, E::InvalidMessageMode(_))),
        ("{\"text_input\": \"x\", \"tools\": []}", |e| matches!(e, E::ToolsWithoutMessages)),
        ("1", |e| matches!(e, E::NotAnObject)),
    ];
    for (text, expected) in cases {
        assert!(expected(&reason(text)), "{text}: {}", reason(text));
    }
    let mixed = r#"{"session_id": 1, "messages": [{"role": "user"}]}
{"session_id": 1, "messages": [{"role": "user"}], "message_mode": "delta"}"#;
    assert_eq!(reason(mixed), RowError::MixedMessageModes { line: 1 });
}

#[test]
fn limit_stops_reading_and_context_skips_long_rows() {
    let cut = format!("{PLAIN}oops");
    assert_eq!(dataset(&cut, &DatasetOptions { limit: 2, ..DatasetOptions::default() }).conversations.len(), 2);
    let read = dataset(PLAIN, &DatasetOptions { context: Some(600), ..DatasetOptions::default() });
    assert_eq!((read.conversations.len(), read.left_out), (1, 2));
    let read = dataset(&cut, &DatasetOptions { skip_bad: true, ..DatasetOptions::default() });
    assert_eq!((read.conversations.len(), read.skipped, read.first_bad.expect("kept").line), (3, 1, 4));
}
