//! Tests of whole traces, by format.

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;
use crate::request::TracePrompt;

fn read_with(text: impl AsRef<[u8]>, options: &TraceOptions) -> Result<Trace, TraceError> {
    // A small buffer, so that rows cross its boundaries.
    read(std::io::BufReader::with_capacity(11, text.as_ref()), options, |_| {})
}

fn read_ok(text: impl AsRef<[u8]>) -> Trace {
    read_with(text, &TraceOptions::default()).expect("a valid trace")
}

fn read_err(text: impl AsRef<[u8]>) -> TraceError {
    read_with(text, &TraceOptions::default()).expect_err("an invalid trace")
}

fn skipping() -> TraceOptions {
    TraceOptions { skip_bad: true, ..TraceOptions::default() }
}

fn with_size(size: u64) -> TraceOptions {
    TraceOptions { block_tokens: Some(size), ..TraceOptions::default() }
}

fn block_error(error: TraceError) -> (u64, crate::BlockCountError) {
    match error {
        TraceError::Row(BadRow { line, reason: RowError::BlockCount(count), .. }) => (line, count),
        other => panic!("{other}"),
    }
}

/// Number of blocks that two requests share from the start.
fn shared(trace: &Trace, a: usize, b: usize) -> usize {
    let keys = |at: usize| match &trace.requests[at].prompt {
        TracePrompt::Blocks { keys, .. } => &trace.keys[keys.clone()],
        TracePrompt::Continued { .. } => &[],
    };
    keys(a).iter().zip(keys(b)).take_while(|(a, b)| a == b).count()
}

fn prefixes(trace: &Trace) -> Vec<(u64, u64)> {
    let prefix = |request: &TraceRequest| match request.prompt {
        TracePrompt::Continued { prefix } => (request.input, prefix),
        TracePrompt::Blocks { .. } => panic!("no blocks"),
    };
    trace.requests.iter().map(prefix).collect()
}

fn times(trace: &Trace) -> Vec<f64> {
    trace.requests.iter().map(|request| request.at.expect("a time")).collect()
}

const MOONCAKE: &str = r#"{"timestamp": 1000, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 3]}
{"timestamp": 2500, "input_length": 1024, "output_length": 0, "hash_ids": [1, 2]}

{"timestamp": 4000, "input_length": 1537, "output_length": 7, "hash_ids": [1, 9, 3, 4]}
"#;

#[test]
fn mooncake_trace_has_blocks_lengths_and_times() {
    let trace = read_ok(MOONCAKE);
    assert_eq!((trace.format, trace.block_tokens, trace.sample_shift), (TraceFormat::Mooncake, 512, 0));
    assert_eq!((trace.rows, trace.skipped, trace.block_ids, trace.keys.len()), (3, 0, 9, 9));
    assert_eq!(times(&trace), [0.0, 1.5, 3.0]);
    assert_eq!(trace.requests[0].prompt, TracePrompt::Blocks { keys: 0..3, last_tokens: 1100 - 1024 });
    assert_eq!(trace.requests[1].prompt, TracePrompt::Blocks { keys: 3..5, last_tokens: 512 });
    assert_eq!((trace.requests[1].output, trace.requests[2].line), (1, 4));
    assert_eq!((shared(&trace, 0, 1), shared(&trace, 0, 2)), (2, 1), "block 3 follows another prefix");
    assert_eq!(trace.caveats, []);
    let sessions: HashSet<_> = trace.requests.iter().map(|request| request.session).collect();
    assert_eq!(sessions.len(), 3);
}

#[test]
fn block_size_is_derived_or_checked() {
    let rows = |size: u64, lengths: &[u64]| -> String {
        let row = |length: &u64| {
            let ids: Vec<u64> = (0..length.div_ceil(size)).collect();
            format!("{{\"timestamp\": 0, \"input_length\": {length}, \"hash_ids\": {ids:?}}}\n")
        };
        lengths.iter().map(row).collect()
    };
    assert_eq!(read_ok(rows(512, &[600, 5000])).block_tokens, 512);
    assert_eq!(read_ok(rows(64, &[600, 5000, 6400, 6401])).block_tokens, 64);
    assert_eq!(read_ok(rows(100, &[600, 5000, 10_000, 10_001])).block_tokens, 100);
    assert_eq!(read_with(rows(100, &[600]), &with_size(110)).expect("110 fits").block_tokens, 110);
    let wrong = read_with(rows(64, &[600, 5000, 6400, 6401]), &with_size(512)).expect_err("512 does not fit");
    let (line, count) = block_error(wrong);
    assert_eq!((line, count.tokens, count.blocks, count.block_tokens), (1, 600, 10, 512));
    assert_eq!(count.row_sizes, Some(BlockSizes { min: 60, max: 66 }));
    assert_eq!(count.suggested, Some(64));
}

#[test]
fn later_row_that_fits_no_size_is_an_error_or_skipped() {
    let many: String = (1..1501)
        .map(|at| format!("{{\"timestamp\": {at}000, \"input_length\": 1000, \"hash_ids\": [{at}, 2]}}\n"))
        .collect();
    let text = format!("{many}{{\"timestamp\": 0, \"input_length\": 5, \"hash_ids\": [1, 2, 3]}}\n");
    let (line, count) = block_error(read_err(&text));
    assert_eq!((line, count.block_tokens, count.common_sizes, count.suggested), (1501, 512, None, None));
    let trace = read_with(&text, &skipping()).expect("one row is skipped");
    assert_eq!((trace.rows, trace.skipped, trace.requests.len(), trace.block_tokens), (1501, 1, 1500, 512));
    assert_eq!(trace.first_bad.expect("a bad row").line, 1501);
    assert!(trace.common_sizes.is_some());
}

#[test]
fn block_size_is_that_of_most_rows_if_bad_ones_are_skipped() {
    let bad = "{\"input_length\": 3, \"hash_ids\": [1, 2, 3]}\n";
    let good = "{\"input_length\": 160, \"hash_ids\": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]}\n";
    let trace = read_with([bad, good, good].concat(), &skipping()).expect("a trace");
    assert_eq!((trace.block_tokens, trace.skipped), (16, 1));
}

#[test]
fn broken_rows_are_errors_or_skipped() {
    let text = format!("{{\"broken\n{MOONCAKE}{{\"input_length\": 0, \"hash_ids\": [1]}}\n\u{fffd}\n{{}}\n");
    assert!(matches!(read_err(&text), TraceError::Row(BadRow { line: 1, reason: RowError::Json { .. }, .. })));
    let trace = read_with(&text, &skipping()).expect("the valid rows");
    assert_eq!((trace.rows, trace.skipped, trace.requests.len()), (7, 4, 3));
    let first = trace.first_bad.expect("a bad row");
    assert_eq!(first.line, 1);
    let all_bad = read_with("{\"broken\n{\n", &skipping()).expect_err("no valid row");
    assert!(matches!(all_bad, TraceError::AllRowsBad { rows: 2, .. }), "{all_bad}");
    let one_bad = read_with(MOONCAKE, &TraceOptions { block_tokens: Some(16), ..skipping() });
    assert!(matches!(one_bad, Err(TraceError::AllRowsBad { rows: 3, .. })));
}

#[test]
fn first_bad_row_is_the_one_with_the_smallest_line() {
    let bad = "{\"input_length\": 3, \"hash_ids\": [1, 2, 3, 4]}\n";
    let trace = read_with([bad, MOONCAKE, "{\n"].concat(), &skipping()).expect("a trace");
    assert_eq!((trace.skipped, trace.first_bad.expect("a bad row").line), (2, 1));
}

#[test]
fn failure_of_the_input_has_a_line() {
    struct Failing;
    impl std::io::Read for Failing {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("no disk"))
        }
    }
    let input = std::io::Read::chain(MOONCAKE.as_bytes(), Failing);
    let failed = read(std::io::BufReader::new(input), &TraceOptions::default(), |_| {});
    assert!(matches!(failed, Err(TraceError::Io { line: 5, .. })), "{failed:?}");
}

#[test]
fn unusable_files_are_refused() {
    assert!(matches!(read_err(""), TraceError::Empty));
    assert!(matches!(read_err("\n \n"), TraceError::Empty));
    assert!(matches!(read_err([0x1f, 0x8b, 8, 0]), TraceError::Gzip));
    assert!(matches!(read_err([b'a', 0xff]), TraceError::Row(BadRow { reason: RowError::InvalidUtf8 { at: 2 }, .. })));
    assert!(matches!(read_err("hello"), TraceError::UnknownFormat { .. }));
    let refusal = |text: &str| match read_err(text) {
        TraceError::Refused(refusal) => refusal,
        other => panic!("{other}"),
    };
    assert_eq!(refusal("{\"messages\": [], \"output_length\": 5}"), TraceRefusal::TextOnly);
    assert_eq!(refusal("{\"text_input\": \"a\"}"), TraceRefusal::TextOnly);
    assert_eq!(refusal("{\"timestamp\": 1, \"input_length\": 5}"), TraceRefusal::NoPrefixes);
    assert_eq!(refusal("[\n  {\n    \"conversations\": []}]"), TraceRefusal::ShareGpt);
    assert_eq!(refusal("[\n  {\n    \"hash_ids\": []}]"), TraceRefusal::JsonArray);
    assert!(matches!(
        read_err("{\"session_id\": \"s\", \"input_tokens_total\": 0}"),
        TraceError::NoRequests { rows: 1 }
    ));
    assert_eq!(refusal("{\"startTime\": 1, \"prompt_tokens\": 5}"), TraceRefusal::NoPrefixes);
}

#[test]
fn mooncake_session_rows_without_ids_continue_the_session() {
    let text = r#"{"session_id": "a", "timestamp": 5000, "input_length": 100, "output_length": 10}
{"session_id": "b", "timestamp": 6000, "input_tokens": 7, "output_tokens": 1}
{"session_id": "a", "delay": 500, "input_length": 20, "output_length": 5}
{"session_id": "a", "delay_ms": 2000, "input_length": 1}
"#;
    let trace = read_ok(text);
    assert_eq!(times(&trace), [0.0, 0.5, 1.0, 2.5]);
    assert_eq!(prefixes(&trace), [(100, 0), (130, 110), (7, 0), (136, 135)]);
    let expected = [TraceCaveat::NotInTimeOrder { rows: 1 }, TraceCaveat::DelaysWithoutDurations { rows: 2 }];
    assert_eq!(trace.caveats, expected);
}

#[test]
fn missing_times_are_a_caveat() {
    let text = "{\"input_length\": 5, \"hash_ids\": [1]}\n{\"timestamp\": 0, \"input_length\": 5, \"hash_ids\": [1]}\n";
    let trace = read_ok(text);
    assert!(!trace.has_times && trace.requests.iter().all(|request| request.at.is_none()));
    assert_eq!(trace.caveats, [TraceCaveat::MissingTimes { rows: 1 }]);
}

#[test]
fn rows_out_of_time_order_are_sorted_stably() {
    let text: String = [30, 10, 20, 10]
        .iter()
        .map(|at| format!("{{\"timestamp\": {at}, \"input_length\": 5, \"hash_ids\": [1]}}\n"))
        .collect();
    let trace = read_ok(text);
    let lines: Vec<u64> = trace.requests.iter().map(|request| request.line).collect();
    assert_eq!((lines, times(&trace)), (vec![2, 4, 3, 1], vec![0.0, 0.0, 0.01, 0.02]));
    assert_eq!(trace.caveats, [TraceCaveat::NotInTimeOrder { rows: 3 }]);
}

#[test]
fn doubtful_time_units_are_caveats() {
    let rows = |step: f64| -> String {
        (0..100)
            .map(|at| format!("{{\"timestamp\": {}, \"input_length\": 600, \"hash_ids\": [1, 2]}}\n", at as f64 * step))
            .collect()
    };
    let doubted = |text: &str, options: &TraceOptions| {
        let trace = read_with(text, options).expect("a trace");
        trace.caveats.iter().any(|caveat| matches!(caveat, TraceCaveat::TimeUnitDoubt { .. }))
    };
    assert!(doubted(&rows(0.5), &TraceOptions::default()), "2,000 requests/s as milliseconds");
    assert!(!doubted(&rows(200.0), &TraceOptions::default()));
    let seconds = TraceOptions { time_unit: Some(TimeUnit::Seconds), ..TraceOptions::default() };
    assert!(!doubted(&rows(0.5), &seconds));
    assert_eq!(times(&read_with(rows(0.5), &seconds).expect("a trace"))[99], 49.5);
    let bailian = |step: u64| -> String {
        (0..100)
            .map(|at| format!("{{\"chat_id\": {at}, \"parent_chat_id\": -1, \"timestamp\": {}, \"input_length\": 5, \"hash_ids\": [1]}}\n", at * step))
            .collect()
    };
    assert!(doubted(&bailian(1000), &TraceOptions::default()), "0.001 requests/s as seconds");
    assert!(!doubted(&bailian(1), &TraceOptions::default()));
}

#[test]
fn fractional_times_and_blocks_of_16_are_a_vllm_timed_trace() {
    let text = "{\"timestamp\": 0.5, \"input_length\": 201, \"output_length\": 1, \"hash_ids\": [1,2,3,4,5,6,7,8,9,10,11,12,13]}\n\
                {\"timestamp\": 2, \"input_length\": 32, \"output_length\": 1, \"hash_ids\": [1, 2]}\n";
    let trace = read_ok(text);
    assert_eq!((trace.format, trace.block_tokens, times(&trace)[1]), (TraceFormat::VllmTimed, 16, 1.5));
}

const BAILIAN: &str = r#"{"chat_id": 0, "parent_chat_id": -1, "timestamp": 0.0, "input_length": 48, "output_length": 20, "type": "text", "turn": 1, "hash_ids": [11, 12, 13]}
{"chat_id": 1, "parent_chat_id": -1, "timestamp": 1.25, "input_length": 40, "output_length": 12, "type": "search", "turn": 1, "hash_ids": [11, 12, 19]}
{"chat_id": 2, "parent_chat_id": 0, "timestamp": 3.5, "input_length": 80, "output_length": 30, "type": "text", "turn": 2, "hash_ids": [11, 12, 13, 14, 15]}
{"chat_id": 3, "parent_chat_id": 2, "timestamp": 4.5, "input_length": 80, "output_length": 30, "type": "text", "turn": 3, "hash_ids": [11, 19, 13, 14, 15]}
"#;

#[test]
fn bailian_trace_is_in_seconds_with_blocks_of_16() {
    let trace = read_ok(BAILIAN);
    assert_eq!((trace.format, trace.block_tokens), (TraceFormat::Bailian, 16));
    assert_eq!(times(&trace), [0.0, 1.25, 3.5, 4.5]);
    let sessions: Vec<_> = trace.requests.iter().map(|request| request.session).collect();
    assert_eq!(sessions, [0, 1, 0, 0]);
    assert_eq!((shared(&trace, 0, 1), shared(&trace, 0, 2), shared(&trace, 2, 3)), (2, 3, 1));
    let (line, count) = block_error(read_with(BAILIAN, &with_size(512)).expect_err("512 does not fit"));
    assert_eq!((line, count.tokens, count.blocks, count.suggested), (1, 48, 3, Some(16)));
    assert_eq!(count.row_sizes, Some(BlockSizes { min: 16, max: 23 }));
    let text = count.to_string();
    assert!(text.contains("fits blocks of 16 to 23 tokens") && text.ends_with("fit blocks of 16 tokens"), "{text}");
}

#[test]
fn kvcache_simulator_rows_have_their_block_size() {
    let text = "{\"block_size\": 64, \"hash_ids\": [1, 2], \"input_length\": 128}\n\
                {\"block_size\": 64, \"hash_ids\": [1, 2], \"input_length\": 150}\n\
                {\"block_size\": 64, \"hash_ids\": [1, 2, 3], \"input_length\": 150}\n";
    let trace = read_ok(text);
    assert_eq!((trace.format, trace.block_tokens, trace.has_times), (TraceFormat::KvcacheSimulator, 64, false));
    assert_eq!(trace.caveats, []);
    let last: Vec<u64> = trace.requests.iter().map(last_tokens).collect();
    assert_eq!(last, [64, 64, 22]);
    let other = format!("{text}{{\"block_size\": 32, \"hash_ids\": [1], \"input_length\": 32}}\n");
    let reason = RowError::OtherBlockSize { found: 32, used: 64 };
    assert!(matches!(read_err(other), TraceError::Row(bad) if bad.reason == reason && bad.line == 4));
    let zero = "{\"block_size\": 0, \"hash_ids\": [1], \"input_length\": 32}\n";
    assert!(matches!(read_err(zero), TraceError::Row(bad) if bad.reason != reason));
}

fn last_tokens(request: &TraceRequest) -> u64 {
    match request.prompt {
        TracePrompt::Blocks { last_tokens, .. } => last_tokens,
        TracePrompt::Continued { .. } => 0,
    }
}

const WEKA: &str = r#"{"id": "a", "models": ["m"], "block_size": 64, "hash_id_scope": "local", "requests": [
 {"t": 0.0, "type": "n", "model": "m", "in": 130, "out": 9, "hash_ids": [1, 2], "api_time": 2.0},
 {"t": 1.0, "type": "subagent", "agent_id": "x", "duration_ms": 3000, "requests": [
  {"t": 0.5, "type": "s", "model": "m", "in": 192, "out": 9, "hash_ids": [1, 2, 3], "api_time": 1.0}]},
 {"t": 6.0, "type": "n", "model": "m", "in": 63, "out": 9, "hash_ids": [], "api_time": 4.0}]}
{"id": "b", "block_size": 64, "requests": [{"t": 2.0, "type": "n", "in": 128, "out": 9, "hash_ids": [1, 2], "api_time": 1}]}
"#;

#[test]
fn weka_session_starts_when_another_one_ends() {
    let trace = read_with(WEKA, &TraceOptions { live_sessions: 1, ..TraceOptions::default() }).expect("a trace");
    assert_eq!((trace.format, trace.block_tokens, trace.rows), (TraceFormat::Weka, 64, 4));
    assert_eq!(times(&trace), [0.0, 1.5, 6.0, 10.0]);
    assert_eq!((shared(&trace, 0, 1), shared(&trace, 0, 3)), (2, 0), "IDs are local to the session");
    assert_eq!(trace.requests.iter().map(last_tokens).collect::<Vec<_>>(), [64, 64, 0, 64]);
    assert_eq!(trace.requests.iter().map(|request| request.session).collect::<Vec<_>>(), [0, 0, 0, 1]);
    assert_eq!(trace.caveats, [TraceCaveat::AssumedSessionStarts { live: 1, sessions: 2 }]);
    assert_eq!(times(&read_ok(WEKA)), [0.0, 0.0, 1.5, 6.0]);
}

#[test]
fn weka_request_with_a_wrong_count_is_reported_with_its_position() {
    let wrong = WEKA.replace("\"in\": 192", "\"in\": 256");
    let TraceError::Row(bad) = read_err(&wrong) else { panic!("a bad row") };
    assert_eq!((bad.line, bad.request), (1, Some(2)));
    assert!(bad.to_string().starts_with("line 1, request 2 of the session: 256 tokens"), "{bad}");
    let trace = read_with(&wrong, &skipping()).expect("the other requests");
    assert_eq!((trace.rows, trace.skipped, trace.requests.len()), (4, 1, 3));
    let (_, count) = block_error(read_with(WEKA, &with_size(512)).expect_err("512 does not fit"));
    assert_eq!(count.suggested, Some(64));
}

fn round(session: &str, index: u64, second: u64, input: u64, prefix: u64, output: u64) -> String {
    format!(
        "{{\"provider\": \"claude\", \"session_id\": \"{session}\", \"round_index\": {index}, \"input_tokens_total\": {input}, \
         \"prefix_tokens\": {prefix}, \"newly_append_tokens\": {}, \"output_tokens\": {output}, \"tools\": [{{\"x\": 1}}], \
         \"timing_events\": [{{\"event_type\": \"user_message\", \"timestamp\": \"2026-05-31T12:00:{second:02}.500Z\"}}]}}\n",
        input - prefix
    )
}

#[test]
fn tracelab_rounds_continue_their_session() {
    let text = [
        round("a", 0, 10, 100, 30, 5),
        round("a", 1, 12, 150, 105, 5),
        round("b", 0, 11, 70, 0, 1),
        // The provider had dropped the prefix.
        round("a", 2, 40, 180, 0, 5),
        // The context was compacted.
        round("a", 3, 50, 90, 20, 5),
        round("a", 4, 50, 0, 0, 5),
        round("a", 5, 51, 95, 95, 5),
        "{\"session_id\": \"a\", \"input_tokens_total\": 5}\n".to_owned(),
    ];
    let trace = read_ok(text.concat());
    assert_eq!((trace.format, trace.rows, trace.keys.len()), (TraceFormat::TraceLab, 8, 0));
    assert_eq!(times(&trace), [0.0, 1.0, 2.0, 30.0, 40.0, 41.0]);
    assert_eq!(prefixes(&trace), [(100, 0), (70, 0), (150, 105), (180, 150), (90, 20), (95, 95)]);
    assert_eq!(
        trace.caveats,
        [
            TraceCaveat::LeftOut { no_tokens: 1, no_time: 1, no_hashes: 0 },
            TraceCaveat::PrefixFromOtherSessions { sessions: 1, tokens: 30 },
            TraceCaveat::ProviderCacheMisses { rounds: 1 },
        ]
    );
    let broken = format!("{}{{\"session_id\": 1}}\n", text[0]);
    assert!(matches!(read_err(&broken), TraceError::Row(BadRow { line: 2, .. })));
    assert_eq!(read_with(&broken, &skipping()).expect("one round").skipped, 1);
}

fn spend(second: u64, tokens: u64, hashes: &[&str], size: &str) -> String {
    let hashes: Vec<String> = hashes.iter().map(|hash| format!("\"{hash:0>16}\"")).collect();
    format!(
        "{{\"request_id\": \"r\", \"startTime\": \"2026-11-16T10:00:{second:02}Z\", \"prompt_tokens\": {tokens}, \"completion_tokens\": 2, \
         \"metadata\": {{\"prefix_block_hashes\": {{\"hashes\": [{}]{size}}}}}}}\n",
        hashes.join(",")
    )
}

#[test]
fn litellm_log_may_be_in_any_order() {
    let failed = "{\"startTime\": \"2026-11-16T09:00:00Z\", \"prompt_tokens\": 0, \"metadata\": {}}\n";
    let text = [
        spend(9, 60, &["a", "b"], ""),
        failed.to_owned(),
        spend(2, 33, &["a", "c"], ""),
        spend(3, 128, &["a", "b", "d", "e"], ""),
    ];
    let trace = read_ok(text.concat());
    assert_eq!((trace.format, trace.block_tokens, trace.rows), (TraceFormat::LiteLlm, 32, 4));
    assert_eq!(times(&trace), [0.0, 1.0, 7.0]);
    assert_eq!((shared(&trace, 0, 1), shared(&trace, 1, 2)), (1, 2));
    let left_out = TraceCaveat::LeftOut { no_tokens: 1, no_time: 0, no_hashes: 0 };
    assert_eq!(trace.caveats, [left_out]);
}

#[test]
fn litellm_lengths_may_disagree_if_the_block_size_is_recorded() {
    let size = ", \"block_size\": 32";
    let trace = read_ok([spend(1, 64, &["a", "b"], size), spend(2, 64, &["a", "b", "c"], size)].concat());
    assert_eq!((trace.block_tokens, shared(&trace, 0, 1), trace.keys.len()), (32, 2, 4));
    assert_eq!(trace.caveats, [TraceCaveat::HashCount { rows: 1 }]);
}

#[test]
fn sample_is_kept_above_the_maximum_number_of_keys() {
    let text: String = (0..50)
        .map(|at| {
            format!(
                "{{\"timestamp\": {at}, \"input_length\": 10240, \"hash_ids\": {:?}}}\n",
                (0..20).map(|id| if id < 10 { id } else { id + 100 * at }).collect::<Vec<_>>()
            )
        })
        .collect();
    let all = read_ok(&text);
    let some = read_with(&text, &TraceOptions { keys_max: 300, ..TraceOptions::default() }).expect("a trace");
    assert_eq!((all.sample_shift, all.block_ids, some.block_ids), (0, 1000, 1000));
    assert!(some.sample_shift >= 2 && some.keys.len() <= 300);
    let kept: Vec<u64> = all.keys.iter().copied().filter(|key| key >> (64 - some.sample_shift) == 0).collect();
    assert_eq!(some.keys, kept);
}

#[test]
fn progress_reaches_the_size_of_the_input() {
    let mut last = 0;
    let text = MOONCAKE.repeat(10_000);
    read(text.as_bytes(), &TraceOptions::default(), |bytes| last = bytes).expect("a trace");
    assert_eq!(last, text.len() as u64);
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), skip_bad: bool) {
        let _ = read_with(bytes, &TraceOptions { skip_bad, ..TraceOptions::default() });
    }

    #[test]
    fn arbitrary_members_never_panic(
        names in proptest::collection::vec(
            proptest::sample::select(vec![
                "timestamp", "input_length", "output_length", "hash_ids", "session_id", "delay", "block_size", "chat_id", "parent_chat_id",
                "requests", "t", "in", "out", "api_time", "duration_ms", "input_tokens_total", "prefix_tokens", "timing_events", "startTime",
                "prompt_tokens", "metadata", "prefix_block_hashes", "messages", "schema",
            ]),
            1..8,
        ),
        values in proptest::collection::vec(
            proptest::sample::select(vec![
                "0", "1", "-1", "16", "512", "1e300", "1e-300", "18446744073709551615", "18446744073709551616", "null", "true", "\"a\"", "[]",
                "{}", "[1,2]", "[18446744073709551615]", "[{\"t\": 1, \"in\": 64, \"hash_ids\": [1]}]", "[\"00000000000000ff\"]",
                "[{\"event_type\": \"text\", \"timestamp\": 1e12}]", "{\"prefix_block_hashes\": [\"ffffffffffffffff\"]}", "NaN",
            ]),
            8,
        ),
        rows in 1..4_usize,
        skip_bad: bool,
        keys_max in 0..3_usize,
        size in proptest::option::of(0..600_u64),
    ) {
        let members: Vec<String> = names.iter().zip(&values).map(|(name, value)| format!("\"{name}\": {value}")).collect();
        let text = format!("{{{}}}\n", members.join(", ")).repeat(rows);
        let options = TraceOptions { skip_bad, keys_max, block_tokens: size, ..TraceOptions::default() };
        let _ = read_with(text, &options);
    }

    #[test]
    fn mutated_traces_never_panic(
        which in 0..3_usize, at in 0..2000_usize, byte: u8, cut in 0..2000_usize, skip_bad: bool,
    ) {
        let mut text = [MOONCAKE, BAILIAN, WEKA][which].as_bytes().to_vec();
        let length = text.len();
        text[at % length] = byte;
        text.truncate(length - cut % length);
        let _ = read_with(text, &TraceOptions { skip_bad, ..TraceOptions::default() });
    }
}
