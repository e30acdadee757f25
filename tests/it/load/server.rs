//! A server of made-up answers: `/generate` frames on a schedule, and every way to misbehave.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What it does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// So many tokens, the first after the first time, the others that much apart.
    Answer(u32, Duration, Duration),
    /// Two tokens, then the connection is closed.
    CloseMidStream,
    /// Two tokens, then a proper end without the last frame.
    NoEnd,
    /// An answer cut into single bytes.
    ByteByByte,
    /// A frame of bytes that are no UTF-8, then an answer.
    Garbage,
    /// Another status.
    Status(u16, &'static str),
    /// An error in the stream.
    ErrorInStream,
    /// The same with raw control bytes and half a character in its words.
    RawErrorInStream,
    /// A page for people.
    Page,
    /// Nothing at all.
    Silence,
    /// A head, then nothing.
    SilenceAfterHead,
    /// Frames without a token, without an end and without a pause.
    Flood,
    /// No HTTP.
    Nonsense,
    /// A whole answer without a token.
    Empty,
    /// A good answer that says nothing of an end, after which the connection is closed.
    CloseAfter,
    /// A head without end.
    EndlessHead,
    /// A frame without end.
    EndlessFrame,
    /// Half of a frame, then a proper end of the body.
    HalfFrame,
}

/// Bodies of requests.
pub type Heard = std::sync::Arc<std::sync::Mutex<Vec<Vec<u8>>>>;

/// Serve on a free port of the loopback; request number `n` (from zero, over all connections) is met with `manner(n)`.
pub async fn serve(manner: impl Fn(usize) -> Manner + Send + Sync + 'static) -> u16 {
    serve_and_hear(manner, Heard::default()).await
}

/// The same, keeping what was asked.
pub async fn serve_and_hear(manner: impl Fn(usize) -> Manner + Send + Sync + 'static, heard: Heard) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    let shared = std::sync::Arc::new((manner, std::sync::atomic::AtomicUsize::new(0)));
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (shared, heard) = (shared.clone(), heard.clone());
            tokio::spawn(async move {
                let mut read = Vec::new();
                while let Some((head, body)) = request(&mut stream, &mut read).await {
                    if head.starts_with("GET ") || !head.contains("/generate ") && !head.contains(" /v1/") {
                        // It has no other route.
                        let none = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n";
                        if stream.write_all(none).await.is_err() {
                            break;
                        }
                        continue;
                    }
                    heard.lock().expect("nobody panics with it").push(body);
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

/// Read one request, and give its head and its body; nothing at the end.
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
    let ids: Vec<u32> = (1..=tokens).collect();
    let reason = if last { r#"{"type":"length"}"# } else { "null" };
    let meta =
        format!(r#"{{"finish_reason":{reason},"prompt_tokens":10,"completion_tokens":{tokens},"cached_tokens":0}}"#);
    chunk(format!("data: {{\"text\":\"\",\"output_ids\":{ids:?},\"meta_info\":{meta}}}\n\n").as_bytes())
}

fn done() -> Vec<u8> {
    [chunk(b"data: [DONE]\n\n"), b"0\r\n\r\n".to_vec()].concat()
}

/// Answer; false when the connection is to be closed.
async fn answer(stream: &mut TcpStream, manner: Manner) -> bool {
    let _ = stream.set_nodelay(true);
    let mut keep = true;
    let written = match manner {
        Manner::Answer(tokens, first, gap) => {
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
        Manner::ByteByByte => {
            let whole = [HEAD.as_bytes(), &frame(1, false), &frame(2, true), &done()].concat();
            for byte in whole {
                if stream.write_all(&[byte]).await.is_err() {
                    return false;
                }
                tokio::task::yield_now().await;
            }
            Ok(())
        }
        Manner::Garbage => {
            let bad = chunk(b"data: \xff\xfe\n\ndata: {half\n\n");
            stream.write_all(&[HEAD.as_bytes(), &bad, &frame(2, true), &done()].concat()).await
        }
        Manner::CloseMidStream => {
            keep = false;
            stream.write_all(&[HEAD.as_bytes(), &frame(1, false), &frame(2, false)].concat()).await
        }
        Manner::NoEnd => {
            stream.write_all(&[HEAD.as_bytes(), &frame(1, false), &frame(2, false), b"0\r\n\r\n"].concat()).await
        }
        Manner::Empty => stream.write_all(&[HEAD.as_bytes(), &done()].concat()).await,
        Manner::ErrorInStream => {
            let error = chunk(b"data: {\"error\":{\"message\":\"the prompt is too long\"}}\n\n");
            stream.write_all(&[HEAD.as_bytes(), &error, &done()].concat()).await
        }
        Manner::RawErrorInStream => {
            let error = chunk(b"data: {\"error\":{\"message\":\"caf\xe9 is\ttoo \x1b[1mlong\"}}\n\n");
            stream.write_all(&[HEAD.as_bytes(), &error, &done()].concat()).await
        }
        Manner::Page => {
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/html; charset=utf-8\r\ncontent-length: 30\r\n\r\n";
            stream.write_all(&[head.as_bytes(), b"<html>\n<body>sign in\n</html>\n "].concat()).await
        }
        Manner::Status(status, more) => {
            let text = format!("HTTP/1.1 {status} No\r\ncontent-length: 8\r\n{more}\r\ntry\nnext");
            stream.write_all(text.as_bytes()).await
        }
        Manner::Nonsense => {
            keep = false;
            stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").await
        }
        Manner::CloseAfter => {
            keep = false;
            stream.write_all(&[HEAD.as_bytes(), &frame(1, false), &frame(2, true), &done()].concat()).await
        }
        Manner::EndlessHead => {
            keep = false;
            let mut written = stream.write_all(b"HTTP/1.1 200 OK\r\n").await;
            while written.is_ok() {
                written = stream.write_all(format!("x-filler: {}\r\n", "y".repeat(1000)).as_bytes()).await;
            }
            written
        }
        Manner::EndlessFrame => {
            keep = false;
            let mut written = stream.write_all(HEAD.as_bytes()).await;
            let piece = chunk(&vec![b'x'; 1 << 20]);
            while written.is_ok() {
                written = stream.write_all(&piece).await;
            }
            written
        }
        Manner::HalfFrame => {
            let half = chunk(b"data: {\"text\":\"a\",\"meta_info\":{\"completion_");
            stream.write_all(&[HEAD.as_bytes(), &frame(1, false), &half, b"0\r\n\r\n"].concat()).await
        }
        Manner::SilenceAfterHead => {
            let _ = stream.write_all(HEAD.as_bytes()).await;
            std::future::pending().await
        }
        Manner::Flood => {
            let frames = chunk(&b"data: {\"text\":\"a\"}\n\n".repeat(3_000));
            let mut written = stream.write_all(HEAD.as_bytes()).await;
            while written.is_ok() {
                written = stream.write_all(&frames).await;
            }
            written
        }
        Manner::Silence => std::future::pending().await,
    };
    written.is_ok() && keep
}
