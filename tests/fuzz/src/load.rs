//! Targets of the load generator: HTTP/1.1 responses of inference servers, and their streams.

use std::time::Duration;

use mcctl::engine::load::answer::{AnswerReader, Dialect, ModelAnswer};
use mcctl::engine::load::target::http1::{HEAD_BYTES_MAX, Piece, ResponseHead, ResponseParser};

use super::fixtures;

/// A parsed response: head, body, whether it ended, bytes consumed. `None`: not a valid HTTP
/// response.
type ParsedResponse = Option<(Option<ResponseHead>, Vec<u8>, bool, usize)>;

fn read<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> ParsedResponse {
    let mut parser = ResponseParser::new();
    let mut head = None;
    let mut body = Vec::new();
    let mut used = 0;
    for piece in pieces {
        let mut rest = piece;
        loop {
            let before = rest.len();
            let (what, took) = parser.take(rest).ok()?;
            rest = &rest[took..];
            used += took;
            match what {
                Piece::Head(it) => assert_eq!(head.replace(it), None, "a response has one head"),
                Piece::Data(data) => {
                    assert!(head.is_some() && !data.is_empty() && data.len() <= before, "a body follows its head");
                    body.extend_from_slice(data);
                }
                Piece::End => return Some((head, body, true, used)),
                Piece::More => {
                    assert!(rest.is_empty(), "unread bytes before More");
                    break;
                }
            }
        }
    }
    Some((head, body, parser.ends(), used))
}

/// Target: one response. The result must not depend on how it is split. The first byte is the size
/// of the pieces.
pub fn answer(data: &[u8]) {
    let Some((step, bytes)) = data.split_first() else { return };
    let whole = read(std::iter::once(bytes));
    let split = read(bytes.chunks(usize::from(*step).max(1)));
    assert_eq!(whole, split);
    if let Some((Some(head), ..)) = &whole {
        assert!((200..=999).contains(&head.status), "{head:?}");
        let texts = head.location.iter().chain(&head.kind);
        assert!(texts.clone().all(|text| text.chars().count() <= 200 && !text.chars().any(char::is_control)));
    }
    // A head without an end is refused once it exceeds the limit.
    if bytes.len() > HEAD_BYTES_MAX + 4 && !bytes.contains(&b'\n') {
        assert_eq!(whole, None);
    }
}

/// Seeds: bodies of every framing, each split into pieces of three sizes.
pub fn answer_seeds() -> Vec<Vec<u8>> {
    let heads = [
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0A;x=y\r\n0123456789\r\n0\r\nt: 1\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 3\r\n\r\nabcd",
        "HTTP/1.0 302 Found\r\nlocation: http://other/login\r\nconnection: keep-alive\r\n\r\nall",
        "HTTP/1.1 103 Early\r\nlink: x\r\n\r\nHTTP/1.1 503 Busy\r\nretry-after: 7\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 204 No\n\n",
    ];
    heads.iter().flat_map(|head| [1, 7, 255].map(|step| [&[step], head.as_bytes()].concat())).collect()
}

fn parse_stream(dialect: Dialect, bytes: &[u8], step: usize) -> Option<(ModelAnswer, u64)> {
    let mut reader = AnswerReader::new(dialect);
    let mut tokens = 0;
    for piece in bytes.chunks(step.max(1)) {
        reader.push(piece, Duration::ZERO, |arrival| tokens += u64::from(arrival.tokens)).ok()?;
    }
    let (answer, late) = reader.finish();
    Some((answer, tokens + u64::from(late)))
}

/// Target: one stream. The result must not depend on how it is split. The first byte selects the
/// dialect, the second the size of the pieces.
pub fn stream(data: &[u8]) {
    let [which, step, bytes @ ..] = data else { return };
    let all = [Dialect::Generate, Dialect::Chat, Dialect::Completions, Dialect::TensorRt];
    let dialect = all[usize::from(*which) % all.len()];
    let whole = parse_stream(dialect, bytes, usize::MAX);
    let split = parse_stream(dialect, bytes, usize::from(*step));
    // The server's times may be NaN, which does not equal itself. So the texts are compared.
    assert_eq!(format!("{whole:?}"), format!("{split:?}"));
    if let Some((answer, _)) = &whole {
        let texts = answer.error.iter().chain(&answer.finish_reason).chain(&answer.bad_frame);
        assert!(texts.clone().all(|text| text.chars().count() <= 300 && !text.chars().any(char::is_control)));
    }
}

/// Seeds: the captured streams, and failures.
pub fn stream_seeds() -> Vec<Vec<u8>> {
    let captured = [(0, "generate.sse"), (1, "chat.sse"), (2, "completions.sse")];
    let mut out: Vec<Vec<u8>> = captured
        .iter()
        .map(|(which, name)| {
            let bytes = std::fs::read(fixtures().join("load").join(name)).expect("fixtures/load exists");
            [&[*which, 64], &bytes[..]].concat()
        })
        .collect();
    for which in 0..3 {
        out.push([&[which, 3], &b"data: {\"error\":{\"message\":\"too\x1b long\"}}\n\ndata: [DONE]\n\n"[..]].concat());
    }
    out
}
