//! A scripted server: `/generate` frames on a schedule, and all kinds of misbehaviour.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// The behaviour for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// Number of tokens, TTFT, and gap between further tokens.
    Answer(u32, Duration, Duration),
    /// An answer of one token that reports this number of cached tokens.
    Cached(u32),
    /// Two tokens, then the connection closes.
    CloseMidStream,
    /// Two tokens, then the body ends without the final frame.
    NoEnd,
    /// A valid answer, sent byte by byte.
    ByteByByte,
    /// A frame that is not UTF-8, then a valid answer.
    Garbage,
    Status(u16, &'static str),
    /// An error in the stream.
    ErrorInStream,
    /// An error with raw control bytes and invalid UTF-8 in its message.
    RawErrorInStream,
    Page,
    Silence,
    /// A head, then nothing.
    SilenceAfterHead,
    /// Endless frames without a token and without a pause.
    Flood,
    Nonsense,
    /// A complete answer without a token.
    Empty,
    /// A valid answer without a keep-alive hint, after which the connection closes.
    CloseAfter,
    EndlessHead,
    EndlessFrame,
    /// Half of a frame, then the body ends properly.
    HalfFrame,
}

/// Bodies of received requests.
pub type RequestBodies = std::sync::Arc<std::sync::Mutex<Vec<Vec<u8>>>>;

/// Serves on a free loopback port. Request number `n` (from zero, over all connections) gets
/// behaviour `behaviour(n)`.
pub async fn serve(behaviour: impl Fn(usize) -> Behaviour + Send + Sync + 'static) -> u16 {
    serve_and_record(behaviour, RequestBodies::default()).await
}

/// Like [`serve`], and stores request bodies in `bodies`.
pub async fn serve_and_record(
    behaviour: impl Fn(usize) -> Behaviour + Send + Sync + 'static,
    bodies: RequestBodies,
) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    let shared = std::sync::Arc::new((behaviour, std::sync::atomic::AtomicUsize::new(0)));
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let shared = shared.clone();
            let bodies = bodies.clone();
            tokio::spawn(async move {
                let mut read = Vec::new();
                while let Some((head, body)) = request(&mut stream, &mut read).await {
                    if head.starts_with("GET ") || !head.contains("/generate ") && !head.contains(" /v1/") {
                        // All other routes are missing.
                        let none = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n";
                        if stream.write_all(none).await.is_err() {
                            break;
                        }
                        continue;
                    }
                    bodies.lock().expect("lock is not poisoned").push(body);
                    let number = shared.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    if !answer(&mut stream, shared.0(number)).await {
                        break;
                    }
                }
            });
        }
    });
    port
}

/// Reads a request. Returns its head and body, or `None` at the end of the stream.
pub(super) async fn request(stream: &mut TcpStream, read: &mut Vec<u8>) -> Option<(String, Vec<u8>)> {
    loop {
        let text = String::from_utf8_lossy(read).into_owned();
        if let Some(head) = text.find("\r\n\r\n") {
            let length = text[..head].lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
            });
            let whole = head + 4 + length.unwrap_or(0);
            if read.len() >= whole {
                return Some((text[..head].to_owned(), read.drain(..whole).skip(head + 4).collect()));
            }
        }
        let mut piece = [0; 4096];
        match stream.read(&mut piece).await {
            Ok(0) | Err(_) => return None,
            Ok(n) => read.extend_from_slice(&piece[..n]),
        }
    }
}

const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

fn chunk(text: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", text.len()).as_bytes(), text, b"\r\n"].concat()
}

fn frame(tokens: u32, last: bool) -> Vec<u8> {
    frame_with(tokens, last, 0)
}

fn frame_with(tokens: u32, last: bool, cached: u32) -> Vec<u8> {
    let ids: Vec<u32> = (1..=tokens).collect();
    let reason = if last { r#"{"type":"length"}"# } else { "null" };
    let meta = format!(
        r#"{{"finish_reason":{reason},"prompt_tokens":10,"completion_tokens":{tokens},"cached_tokens":{cached}}}"#
    );
    chunk(format!("data: {{\"text\":\"\",\"output_ids\":{ids:?},\"meta_info\":{meta}}}\n\n").as_bytes())
}

fn done() -> Vec<u8> {
    [chunk(b"data: [DONE]\n\n"), b"0\r\n\r\n".to_vec()].concat()
}

/// Sends the response. Returns false if the connection is to be closed.
async fn answer(stream: &mut TcpStream, behaviour: Behaviour) -> bool {
    let _ = stream.set_nodelay(true);
    let mut keep = true;
    let written = match behaviour {
        Behaviour::Answer(tokens, first, gap) => {
            tokio::time::sleep(first).await;
            let mut written = stream.write_all(HEAD.as_bytes()).await;
            for token in 1..=tokens {
                if token > 1 {
                    tokio::time::sleep(gap).await;
                }
                written = written.and(stream.write_all(&frame(token, token == tokens)).await);
            }
            written.and(stream.write_all(&done()).await)
        }
        Behaviour::Cached(cached) => {
            stream.write_all(&[HEAD.as_bytes(), &frame_with(1, true, cached), &done()].concat()).await
        }
        Behaviour::ByteByByte => {
            let whole = [HEAD.as_bytes(), &frame(1, false), &frame(2, true), &done()].concat();
            for byte in whole {
                if stream.write_all(&[byte]).await.is_err() {
                    return false;
                }
                tokio::task::yield_now().await;
            }
            Ok(())
        }
        Behaviour::Garbage => {
            let bad = chunk(b"data: \xff\xfe\n\ndata: {half\n\n");
            stream.write_all(&[HEAD.as_bytes(), &bad, &frame(2, true), &done()].concat()).await
        }
        Behaviour::CloseMidStream => {
            keep = false;
            stream.write_all(&[HEAD.as_bytes(), &frame(1, false), &frame(2, false)].concat()).await
        }
        Behaviour::NoEnd => {
            stream.write_all(&[HEAD.as_bytes(), &frame(1, false), &frame(2, false), b"0\r\n\r\n"].concat()).await
        }
        Behaviour::Empty => stream.write_all(&[HEAD.as_bytes(), &done()].concat()).await,
        Behaviour::ErrorInStream => {
            let error = chunk(b"data: {\"error\":{\"message\":\"the prompt is too long\"}}\n\n");
            stream.write_all(&[HEAD.as_bytes(), &error, &done()].concat()).await
        }
        Behaviour::RawErrorInStream => {
            let error = chunk(b"data: {\"error\":{\"message\":\"caf\xe9 is\ttoo \x1b[1mlong\"}}\n\n");
            stream.write_all(&[HEAD.as_bytes(), &error, &done()].concat()).await
        }
        Behaviour::Page => {
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/html; charset=utf-8\r\ncontent-length: 30\r\n\r\n";
            stream.write_all(&[head.as_bytes(), b"<html>\n<body>sign in\n</html>\n "].concat()).await
        }
        Behaviour::Status(status, more) => {
            let text = format!("HTTP/1.1 {status} No\r\ncontent-length: 8\r\n{more}\r\ntry\nnext");
            stream.write_all(text.as_bytes()).await
        }
        Behaviour::Nonsense => {
            keep = false;
            stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").await
        }
        Behaviour::CloseAfter => {
            keep = false;
            stream.write_all(&[HEAD.as_bytes(), &frame(1, false), &frame(2, true), &done()].concat()).await
        }
        Behaviour::EndlessHead => {
            keep = false;
            let mut written = stream.write_all(b"HTTP/1.1 200 OK\r\n").await;
            while written.is_ok() {
                written = stream.write_all(format!("x-filler: {}\r\n", "y".repeat(1000)).as_bytes()).await;
            }
            written
        }
        Behaviour::EndlessFrame => {
            keep = false;
            let mut written = stream.write_all(HEAD.as_bytes()).await;
            let piece = chunk(&vec![b'x'; 1 << 20]);
            while written.is_ok() {
                written = stream.write_all(&piece).await;
            }
            written
        }
        Behaviour::HalfFrame => {
            let half = chunk(b"data: {\"text\":\"a\",\"meta_info\":{\"completion_");
            stream.write_all(&[HEAD.as_bytes(), &frame(1, false), &half, b"0\r\n\r\n"].concat()).await
        }
        Behaviour::SilenceAfterHead => {
            let _ = stream.write_all(HEAD.as_bytes()).await;
            std::future::pending().await
        }
        Behaviour::Flood => {
            let frames = chunk(&b"data: {\"text\":\"a\"}\n\n".repeat(3_000));
            let mut written = stream.write_all(HEAD.as_bytes()).await;
            while written.is_ok() {
                written = stream.write_all(&frames).await;
            }
            written
        }
        Behaviour::Silence => std::future::pending().await,
    };
    written.is_ok() && keep
}
