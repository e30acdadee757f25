//! A minimal HTTP/1.1 client that sends exact bytes, and the fixtures of captured exchanges.

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub content_type: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

pub struct Connection<S = TcpStream>(BufReader<S>);

impl Connection {
    pub async fn to(port: u16) -> Connection {
        Connection::over(TcpStream::connect(("127.0.0.1", port)).await.unwrap())
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    pub fn over(stream: S) -> Connection<S> {
        Connection(BufReader::new(stream))
    }

    pub async fn ask(&mut self, method: &str, target: &str, body: &[u8]) -> Answer {
        let length = if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
        let mut bytes = format!("{method} {target} HTTP/1.1\r\nHost: test\r\n{length}\r\n").into_bytes();
        bytes.extend_from_slice(body);
        self.send(&bytes).await;
        self.answer(method == "HEAD").await
    }

    pub async fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).await.unwrap();
    }

    /// Sends `bytes`; an error if the server has closed the connection.
    pub async fn try_send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.0.write_all(bytes).await
    }

    /// Reads until the server closes. Returns the number of bytes.
    pub async fn read_to_the_end(&mut self) -> usize {
        let mut page = vec![0; 1 << 20];
        let mut total = 0;
        while let Ok(read @ 1..) = self.0.read(&mut page).await {
            total += read;
        }
        total
    }

    /// Reads once, at most `most` bytes; 0 if the server has closed.
    pub async fn read_some(&mut self, most: usize) -> usize {
        let mut page = vec![0; most];
        self.0.read(&mut page).await.unwrap_or(0)
    }

    /// Returns true if the server closes without sending another byte.
    pub async fn is_closed(&mut self) -> bool {
        matches!(self.0.read(&mut [0]).await, Ok(0) | Err(_))
    }

    pub async fn answer(&mut self, without_body: bool) -> Answer {
        let status = self.line().await.split(' ').nth(1).unwrap().parse().unwrap();
        let mut length = 0;
        let mut content_type = "-".to_owned();
        let mut chunked = false;
        loop {
            let line = self.line().await;
            let Some((name, value)) = line.split_once(": ") else { break };
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = value.parse().unwrap(),
                "content-type" => content_type = value.to_owned(),
                "transfer-encoding" => chunked = value == "chunked",
                _ => {}
            }
        }
        let mut body = Vec::new();
        if chunked {
            loop {
                let size = usize::from_str_radix(&self.line().await, 16).unwrap();
                let start = body.len();
                body.resize(start + size, 0);
                self.0.read_exact(&mut body[start..]).await.unwrap();
                self.line().await;
                if size == 0 {
                    break;
                }
            }
        } else if !without_body {
            body.resize(length, 0);
            self.0.read_exact(&mut body).await.unwrap();
        }
        Answer { status, content_type, body }
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).await.unwrap();
        line.trim_end().to_owned()
    }
}

/// One request and answer of a fixture.
pub struct Exchange {
    pub method: String,
    pub target: String,
    pub body: String,
    pub status: u16,
    pub content_type: String,
    pub answer: String,
}

/// Reads the exchanges of `fixtures/http/<name>`: `> method target body`, then
/// `< status content-type body`. `-` stands for an empty part, `\n` in a body for a line end. Lines
/// that begin with `#` or `!` are comments.
pub fn fixture(name: &str) -> Vec<Exchange> {
    let path = format!("{}/fixtures/http/{name}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap();
    let part = |text: &str| if text == "-" { String::new() } else { text.replace("\\n", "\n") };
    let lines: Vec<_> = text.lines().filter(|l| l.starts_with(['>', '<'])).collect();
    assert!(!lines.is_empty() && lines.len().is_multiple_of(2), "{path}");
    lines
        .chunks(2)
        .map(|pair| {
            let mut request = pair[0].strip_prefix("> ").unwrap().splitn(3, ' ');
            // A content type may contain a space after its semicolon.
            let answer = pair[1].strip_prefix("< ").unwrap().replace("; ", ";");
            let mut answer = answer.splitn(3, ' ');
            Exchange {
                method: request.next().unwrap().to_owned(),
                target: request.next().unwrap().to_owned(),
                body: part(request.next().unwrap()),
                status: answer.next().unwrap().parse().unwrap(),
                content_type: answer.next().unwrap().replace(';', "; "),
                answer: part(answer.next().unwrap()),
            }
        })
        .collect()
}

/// Sends every request of the fixture over one connection and compares the answers; JSON by value.
pub async fn replay(name: &str, port: u16) {
    let mut connection = Connection::to(port).await;
    for exchange in fixture(name) {
        let answer = connection.ask(&exchange.method, &exchange.target, exchange.body.as_bytes()).await;
        let what = format!("{} {} {}", exchange.method, exchange.target, exchange.body);
        assert_eq!(answer.status, exchange.status, "{what}: {}", answer.text());
        assert_eq!(answer.content_type, exchange.content_type, "{what}");
        let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).ok();
        let same_json = json(answer.text()).is_some_and(|value| json(&exchange.answer) == Some(value));
        assert!(same_json || answer.text() == exchange.answer, "{what}: {}", answer.text());
    }
}
