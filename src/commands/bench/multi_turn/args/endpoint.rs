//! Where requests go.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use hyper::header::{AUTHORIZATION, HOST, HeaderMap, HeaderName, HeaderValue};
use serde_json::{Map, Value};

use crate::commands::args as parsers;
use crate::commands::bench::multi_turn::args::backend::{Backend, DEFAULT_PORT};
use crate::commands::error::Failure;
use crate::engine::base::HostPort;
use crate::engine::load::answer::Dialect;
use crate::engine::load::target::{Limits, Target, Tls, Trust, Via};

/// Which words the server is spoken to in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Api {
    /// SGLang's /generate
    #[value(alias = "sglang")]
    Generate,
    /// /v1/chat/completions
    #[value(alias = "openai")]
    Chat,
    /// /v1/completions
    Completions,
    /// /v1/completions under the path of Truss
    #[value(skip)]
    Truss,
    /// TensorRT-LLM's generate_stream
    #[value(skip)]
    TensorRt,
}

impl Api {
    /// Its words and its route.
    pub fn dialect(self) -> (Dialect, &'static str) {
        match self {
            Api::Generate => (Dialect::Generate, "/generate"),
            Api::Chat => (Dialect::Chat, "/v1/chat/completions"),
            Api::Completions => (Dialect::Completions, "/v1/completions"),
            Api::Truss => (Dialect::Completions, "/v1/models/model:predict"),
            Api::TensorRt => (Dialect::TensorRt, "/v2/models/ensemble/generate_stream"),
        }
    }
}

/// The server and how it is spoken to.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Endpoint")]
pub struct EndpointArgs {
    /// The server: http://HOST:PORT or https://HOST. It wins over --host and --port
    #[arg(long, alias = "base-url", value_name = "URL")]
    pub url: Option<String>,
    /// Host of the server [default: localhost]
    #[arg(long)]
    pub host: Option<String>,
    /// Port of the server [default: 30000, or that of --backend]
    #[arg(long)]
    pub port: Option<u16>,
    /// Route of the server: generate (with token ids), chat or completions; sglang and openai mean the first two
    #[arg(long, alias = "api-format", value_enum, default_value = "generate")]
    pub api: Api,
    /// Server and route by the names of bench_serving; sets --api and the default port
    #[arg(long, value_enum, value_name = "NAME")]
    pub backend: Option<Backend>,
    /// Model of the server: its name in requests to chat and completions, and the tokenizer's folder or its name in the local Hugging Face
    /// cache [default: the first of /v1/models]
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// Name of the model in requests, where it differs from --model
    #[arg(long, value_name = "NAME")]
    pub served_model_name: Option<String>,
    /// Wait up to this long for the server to be ready, seconds; 0 does not wait [default: 0]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(..=86_400))]
    pub ready_check_timeout_sec: Option<u64>,
    /// Longest silence of the server before a request is given up
    #[arg(long, default_value = "10m", value_name = "TIME", value_parser = parsers::limit)]
    pub timeout: Duration,
    /// Longest time to connect, TLS included
    #[arg(long, default_value = "10s", value_name = "TIME", value_parser = parsers::limit)]
    pub connect_timeout: Duration,
    /// Longest time of a request in all
    #[arg(long, default_value = "1h", value_name = "TIME", value_parser = parsers::limit)]
    pub request_timeout: Duration,
    /// Send a request again, up to N times, to a server that is busy (429 or 503) and says when to come back; its latency counts
    /// from its first plan
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub retry_busy: u32,
    /// More headers, NAME=VALUE or 'NAME: VALUE'. Without one for authorization, OPENAI_API_KEY of the environment is sent as the
    /// bearer, or API_KEY as it is
    #[arg(long, value_name = "HEADER", num_args = 1..)]
    pub header: Vec<String>,
    /// Certificates (PEM) that are believed, instead of the system's
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    pub cacert: Option<PathBuf>,
    /// Believe any certificate
    #[arg(long)]
    pub insecure: bool,
    /// HTTP/2: over TLS if the server agrees, else at once. Requests share connections then, and their times are a little less exact
    #[arg(long)]
    pub http2: bool,
    /// Requests that share a connection of HTTP/2, at most
    #[arg(long, default_value_t = 100, value_name = "N", requires = "http2", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub http2_streams: u32,
    /// More members of every request, a JSON object
    #[arg(long, value_name = "JSON", value_parser = object)]
    pub extra_request_body: Option<Map<String, Value>>,
}

fn object(text: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(text).map_err(|error| format!("'{text}' is no JSON object: {error}"))
}

/// What cuts requests and answers apart, and names the host, is ours to say: anything else there breaks the connection.
const OURS: [&str; 11] = [
    "accept-encoding",
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// A header of the command line. What it says may be a secret, so that no error repeats it.
fn header(text: &str) -> Result<(HeaderName, HeaderValue), Failure> {
    let at = text.find([':', '=']).ok_or_else(|| {
        Failure::usage("a --header has neither ':' nor '='").next("write NAME=VALUE or 'NAME: VALUE'")
    })?;
    let (name, value) = (text[..at].trim(), text[at + 1..].trim());
    let name = HeaderName::from_bytes(name.as_bytes())
        .map_err(|_| Failure::usage(format!("'{name}' is no name of a header")))?;
    if OURS.contains(&name.as_str()) {
        let failure = Failure::usage(format!("--header cannot set {name}"))
            .found("mcctl says itself whom it speaks to, and how requests and answers are cut apart and packed");
        return Err(failure.next(if name == HOST { "name the host in --url" } else { "leave it out" }));
    }
    Ok((name.clone(), secret(name.as_str(), value)?))
}

fn secret(name: &str, value: &str) -> Result<HeaderValue, Failure> {
    let mut value = HeaderValue::from_str(value)
        .map_err(|_| Failure::usage(format!("what {name} is to say cannot stand in a header")))?;
    value.set_sensitive(true);
    Ok(value)
}

impl EndpointArgs {
    /// The model's name in requests, where one is given.
    pub fn model_name(&self) -> Option<&str> {
        self.served_model_name.as_deref().or(self.model.as_deref())
    }

    fn headers(&self) -> Result<HeaderMap, Failure> {
        let mut headers = HeaderMap::new();
        for text in &self.header {
            let (name, value) = header(text)?;
            headers.append(name, value);
        }
        // As SGLang's bench_serving has it.
        let key = |name: &str| std::env::var(name).ok().filter(|key| !key.is_empty());
        let says = key("OPENAI_API_KEY").map(|key| format!("Bearer {key}")).or_else(|| key("API_KEY"));
        if let Some(says) = says
            && !headers.contains_key(AUTHORIZATION)
        {
            headers.insert(AUTHORIZATION, secret("the key of the environment", &says)?);
        }
        Ok(headers)
    }

    /// TLS as `--cacert` and `--insecure` have it.
    ///
    /// # Errors
    /// The certificates cannot be read.
    pub(super) fn tls(&self) -> Result<Tls, Failure> {
        let trust = match &self.cacert {
            None if self.insecure => Trust::Anybody,
            None => Trust::System,
            Some(path) => Trust::These(std::fs::read(path).map_err(|error| {
                Failure::usage(format!("cannot read the certificates of {}", path.display())).found(error.to_string())
            })?),
        };
        let from =
            self.cacert.as_ref().map_or("the system's certificates".to_owned(), |path| path.display().to_string());
        Tls::new(&trust).map_err(|error| Failure::usage(format!("no TLS with {from}")).found(error.to_string()))
    }

    /// The target of `--url`, or of `--host` and `--port`.
    ///
    /// # Errors
    /// It is none.
    pub fn target(&self) -> Result<Target, Failure> {
        match &self.url {
            None => {
                let port = self.port.unwrap_or(self.backend.map_or(DEFAULT_PORT, Backend::port));
                self.target_at(HostPort::new(self.host.as_deref().unwrap_or("localhost"), port), "", false)
            }
            Some(url) => self.target_of(url),
        }
    }

    /// The target of another URL, spoken to likewise.
    ///
    /// # Errors
    /// It is none.
    pub fn target_of(&self, url: &str) -> Result<Target, Failure> {
        let wrong = |found: &str| {
            Failure::usage(format!("'{url}' is no server")).found(found).next("write http://HOST:PORT or https://HOST")
        };
        let (rest, tls) = match (url.strip_prefix("http://"), url.strip_prefix("https://")) {
            (Some(rest), _) => (rest, false),
            (_, Some(rest)) => (rest, true),
            _ => return Err(wrong("it begins with neither http:// nor https://")),
        };
        let (host, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if host.contains('@') {
            return Err(wrong(
                "a user name and password in the URL are not supported; give --header 'Authorization: Basic ...'",
            ));
        }
        let at = parsers::endpoint(host, if tls { 443 } else { 80 }).map_err(|error| wrong(&error))?;
        self.target_at(at, self.before_route(url, prefix.trim_end_matches('/'))?, tls)
    }

    /// What of a path comes before the route. People write the route, too, or the `/v1` that other tools want.
    fn before_route<'a>(&self, url: &str, path: &'a str) -> Result<&'a str, Failure> {
        /// What OpenAI's routes have in common.
        const V1: &str = "v1";
        // Whole words of a path, so that /metagenerate is no route.
        let before = |route: &str| {
            let before = path.strip_suffix(route.trim_start_matches('/'))?;
            if before.is_empty() { Some(before) } else { before.strip_suffix('/') }
        };
        if let Some(before) = before(self.api.dialect().1) {
            return Ok(before);
        }
        let name = |api: Api| api.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned());
        let own = name(self.api);
        let others = Api::value_variants().iter().filter(|api| **api != self.api);
        if let Some(other) = others.into_iter().find(|api| before(api.dialect().1).is_some()) {
            return Err(Failure::usage(format!("'{url}' is a route of its own, and not that of --api {own}"))
                .next(format!("add --api {}, or leave {} off", name(*other), other.dialect().1)));
        }
        match (before(V1), self.api) {
            (Some(_), Api::Generate) => {
                Err(Failure::usage(format!("'{url}' is where OpenAI's routes are, and /generate is none of them"))
                    .next("add --api chat or --api completions, or leave /v1 off"))
            }
            (Some(before), _) => Ok(before),
            (None, _) => Ok(path),
        }
    }

    /// Certificates are believed where there are some.
    ///
    /// # Errors
    /// There are none: `https` says whether any URL wants TLS.
    pub fn trust_is_used(&self, https: bool) -> Result<(), Failure> {
        if https || self.cacert.is_none() {
            return Ok(());
        }
        Err(Failure::usage("--cacert is for https, and nothing here is spoken to by that")
            .next("write https:// in --url, or leave --cacert out"))
    }

    /// Where the other routes of `target`'s server are: `http://HOST:PORT`, with the prefix that its path has.
    pub fn base_of(&self, target: &Target) -> String {
        let prefix = target.path.strip_suffix(self.api.dialect().1).unwrap_or_default();
        let scheme = if target.via.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}{prefix}", target.at)
    }

    fn target_at(&self, at: HostPort, prefix: &str, tls: bool) -> Result<Target, Failure> {
        let (dialect, route) = self.api.dialect();
        let path = if prefix.is_empty() { route.to_owned() } else { format!("/{prefix}{route}") };
        path.parse::<hyper::Uri>()
            .map_err(|error| Failure::usage(format!("'{path}' is no path")).found(error.to_string()))?;
        Ok(Target {
            at,
            path,
            dialect,
            model: self.model_name().unwrap_or("default").to_owned(),
            temperature: 0.0,
            top_p: None,
            stream: true,
            ignore_eos: true,
            extra: self.extra_request_body.clone().unwrap_or_default(),
            headers: self.headers()?,
            via: Via {
                tls: if tls { Some(self.tls()?) } else { None },
                http2: self.http2,
                streams: self.http2_streams as usize,
            },
            limits: Limits {
                connect: self.connect_timeout,
                silence: self.timeout,
                whole: self.request_timeout,
                busy_retries: self.retry_busy,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_taken_in_both_spellings_and_kept_secret() {
        for (text, name, value) in
            [("X-A=b:c", "x-a", "b:c"), ("Authorization: Bearer k=1", "authorization", "Bearer k=1"), ("x=", "x", "")]
        {
            let (found, said) = header(text).expect("a header");
            assert_eq!((found.as_str(), said.to_str().expect("text")), (name, value));
            assert!(!format!("{said:?}").contains("k=1"));
        }
        for bad in ["nothing", "a b=c", "a=\u{7}"] {
            assert!(header(bad).is_err(), "{bad}");
        }
        for ours in
            ["Transfer-Encoding: chunked", "content-length=3", "HOST=x", "Connection=close", "accept-encoding=gzip"]
        {
            let failure = header(ours).expect_err(ours);
            assert!(failure.what.starts_with("--header cannot set ") && failure.next.is_some(), "{failure:?}");
        }
    }

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        endpoint: EndpointArgs,
    }

    fn path(api: &str, url: &str) -> Result<String, Failure> {
        use clap::Parser;
        Line::parse_from(["x", "--api", api]).endpoint.target_of(url).map(|target| target.path)
    }

    #[test]
    fn a_route_that_is_written_out_is_not_said_twice() {
        for (api, url, expected) in [
            ("generate", "http://h:1", "/generate"),
            ("generate", "http://h:1/generate", "/generate"),
            ("generate", "http://h:1/a/generate/", "/a/generate"),
            ("generate", "http://h:1/degenerate", "/degenerate/generate"),
            ("chat", "http://h:1/v1", "/v1/chat/completions"),
            ("chat", "http://h:1/v1/chat/completions", "/v1/chat/completions"),
            ("completions", "https://h/a/v1/", "/a/v1/completions"),
            ("completions", "https://h/a/v1/completions", "/a/v1/completions"),
        ] {
            assert_eq!(path(api, url).as_deref().ok(), Some(expected), "{api} {url}");
        }
        for (api, url, next) in [
            ("generate", "http://h:1/v1", "--api chat"),
            ("generate", "http://h:1/v1/chat/completions", "--api chat"),
            ("chat", "http://h:1/generate", "--api generate"),
            ("completions", "http://h:1/v1/chat/completions", "--api chat"),
        ] {
            let failure = path(api, url).expect_err(url);
            assert!(failure.next.as_deref().is_some_and(|told| told.contains(next)), "{failure:?}");
        }
    }
}
