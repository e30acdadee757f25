//! Endpoint flags: address, API, headers and TLS.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use hyper::header::{AUTHORIZATION, HOST, HeaderMap, HeaderName, HeaderValue};
use serde_json::{Map, Value};

use crate::commands::bench::multi_turn::args::api::Api;
use crate::commands::bench::multi_turn::args::backend::{Backend, DEFAULT_PORT};
use crate::commands::cli::args as parsers;
use crate::commands::cli::error::Failure;
use crate::commands::cli::time_flag::TimeParser;
use crate::engine::base::HostPort;
use crate::engine::load::target::{ExchangeLimits, HttpProtocol, LoadTarget, Tls, Trust};

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Endpoint")]
pub struct EndpointArgs {
    /// Server URL, http://HOST:PORT or https://HOST; overrides --host and --port
    #[arg(long, alias = "base-url", value_name = "URL")]
    pub url: Option<String>,
    /// Server host [default: localhost]
    #[arg(long)]
    pub host: Option<String>,
    /// Server port [default: 30000, or the default port of --backend]
    #[arg(long)]
    pub port: Option<u16>,
    /// API to use: generate (sends token IDs), chat or completions; sglang is an alias for
    /// generate, openai for chat
    #[arg(long, alias = "api-format", value_enum, default_value = "generate")]
    pub api: Api,
    /// Server type, as named by bench_serving; sets --api and the default port
    #[arg(long, value_enum, value_name = "NAME")]
    pub backend: Option<Backend>,
    /// Model name to send with chat and completions requests; also selects the tokenizer (a
    /// directory, or a name in the local Hugging Face cache) [default: the first entry in
    /// /v1/models]
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// Model name to send in requests, if it differs from --model
    #[arg(long, value_name = "NAME")]
    pub served_model_name: Option<String>,
    /// Wait up to this many seconds for the server to become ready; 0 means no wait [default: 0]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(..=86_400))]
    pub ready_check_timeout_sec: Option<u64>,
    /// Abort a request if the server sends nothing for this long
    #[arg(long, default_value = "10m", value_name = "TIME", value_parser = TimeParser::limit())]
    pub timeout: Duration,
    /// Connect timeout, including the TLS handshake
    #[arg(long, default_value = "10s", value_name = "TIME", value_parser = TimeParser::limit())]
    pub connect_timeout: Duration,
    /// Timeout for a whole request
    #[arg(long, default_value = "1h", value_name = "TIME", value_parser = TimeParser::limit())]
    pub request_timeout: Duration,
    /// Retry a request up to N times if the server returns 429 or 503 with Retry-After; latency is
    /// still measured from the first scheduled send time
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub retry_busy: u32,
    /// Extra header, NAME=VALUE or 'NAME: VALUE'; may be repeated. If no Authorization header is
    /// set, OPENAI_API_KEY is sent as a bearer token; if that variable is also unset, API_KEY is
    /// sent as the entire Authorization header
    #[arg(long, value_name = "HEADER", num_args = 1..)]
    pub header: Vec<String>,
    /// PEM file with trusted CA certificates, used instead of the system's certificates
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    pub cacert: Option<PathBuf>,
    /// Do not verify the server's certificate
    #[arg(long)]
    pub insecure: bool,
    /// Use HTTP/2: negotiated over TLS, with prior knowledge otherwise. Requests share connections,
    /// so timings are slightly less precise
    #[arg(long)]
    pub http2: bool,
    /// Maximum concurrent requests per HTTP/2 connection
    #[arg(long, default_value_t = 100, value_name = "N", requires = "http2", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub http2_streams: u32,
    /// JSON object to merge into every request body
    #[arg(long, value_name = "JSON", value_parser = object)]
    pub extra_request_body: Option<Map<String, Value>>,
}

/// The value passed to `--extra-request-body` is not a JSON object.
#[derive(Clone, Debug, thiserror::Error)]
#[error("'{text}' is not a JSON object: {reason}")]
struct JsonObjectError {
    text: String,
    reason: String,
}

fn object(text: &str) -> Result<Map<String, Value>, JsonObjectError> {
    serde_json::from_str(text).map_err(|error| JsonObjectError { text: text.to_owned(), reason: error.to_string() })
}

/// Headers that mcctl sets itself because they define the message framing or contain the host.
/// Overriding them would break the connection.
const RESERVED_HEADERS: [&str; 11] = [
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

/// Parses a `--header` value. Errors omit the header's value because it may be a secret.
fn header(text: &str) -> Result<(HeaderName, HeaderValue), Failure> {
    let at = text.find([':', '=']).ok_or_else(|| {
        Failure::usage("--header needs ':' or '=' between the name and the value")
            .next("use NAME=VALUE or 'NAME: VALUE'")
    })?;
    let name = text[..at].trim();
    let value = text[at + 1..].trim();
    let name = HeaderName::from_bytes(name.as_bytes())
        .map_err(|_| Failure::usage(format!("'{name}' is not a valid header name")))?;
    if RESERVED_HEADERS.contains(&name.as_str()) {
        let failure = Failure::usage(format!("--header cannot set {name}"))
            .found("mcctl sets the host, framing and encoding headers itself");
        return Err(failure.next(if name == HOST { "set the host in --url" } else { "drop this header" }));
    }
    Ok((name.clone(), secret(name.as_str(), value)?))
}

fn secret(name: &str, value: &str) -> Result<HeaderValue, Failure> {
    let mut value = HeaderValue::from_str(value)
        .map_err(|_| Failure::usage(format!("the value of {name} is not a valid header value")))?;
    value.set_sensitive(true);
    Ok(value)
}

impl EndpointArgs {
    /// Returns the model name to send, if one is set.
    pub fn model_name(&self) -> Option<&str> {
        self.served_model_name.as_deref().or(self.model.as_deref())
    }

    fn headers(&self) -> Result<HeaderMap, Failure> {
        let mut headers = HeaderMap::new();
        for text in &self.header {
            let (name, value) = header(text)?;
            headers.append(name, value);
        }
        // The same variables as in SGLang's bench_serving.
        let key = |name: &str| std::env::var(name).ok().filter(|key| !key.is_empty());
        let authorization = key("OPENAI_API_KEY").map(|key| format!("Bearer {key}")).or_else(|| key("API_KEY"));
        if let Some(value) = authorization
            && !headers.contains_key(AUTHORIZATION)
        {
            headers.insert(AUTHORIZATION, secret("the API key from the environment", &value)?);
        }
        Ok(headers)
    }

    /// Returns the TLS settings from `--cacert` and `--insecure`.
    ///
    /// # Errors
    /// The certificates cannot be read.
    pub(super) fn tls(&self) -> Result<Tls, Failure> {
        let trust = match &self.cacert {
            None if self.insecure => Trust::AnyCertificate,
            None => Trust::System,
            Some(path) => Trust::These(std::fs::read(path).map_err(|error| {
                Failure::usage(format!("cannot read the certificates in {}", path.display())).found(error.to_string())
            })?),
        };
        let from = self.cacert.as_ref().map_or("the system certificates".to_owned(), |path| path.display().to_string());
        Tls::new(&trust)
            .map_err(|error| Failure::usage(format!("cannot set up TLS with {from}")).found(error.to_string()))
    }

    /// Returns whether no flag selects the server, so that the default address is used.
    pub fn is_default(&self) -> bool {
        self.url.is_none() && self.host.is_none() && self.port.is_none() && self.backend.is_none()
    }

    /// Returns the target from `--url`, or from `--host` and `--port`.
    ///
    /// # Errors
    /// The URL, a header or the TLS settings are invalid.
    pub fn target(&self) -> Result<LoadTarget, Failure> {
        match &self.url {
            None => {
                let port = self.port.unwrap_or(self.backend.map_or(DEFAULT_PORT, Backend::port));
                self.target_at(HostPort::new(self.host.as_deref().unwrap_or("localhost"), port), "", false)
            }
            Some(url) => self.target_of(url),
        }
    }

    /// Returns the target at `url`. All other settings come from these flags.
    ///
    /// # Errors
    /// Same as [`EndpointArgs::target`].
    pub fn target_of(&self, url: &str) -> Result<LoadTarget, Failure> {
        let wrong = |found: &str| {
            Failure::usage(format!("'{url}' is not a valid server URL"))
                .found(found)
                .next("use http://HOST:PORT or https://HOST")
        };
        let (rest, tls) = match (url.strip_prefix("http://"), url.strip_prefix("https://")) {
            (Some(rest), _) => (rest, false),
            (_, Some(rest)) => (rest, true),
            _ => return Err(wrong("the URL does not start with http:// or https://")),
        };
        let (host, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if host.contains('@') {
            return Err(wrong("credentials in the URL are not supported; use --header 'Authorization: Basic ...'"));
        }
        let at = parsers::endpoint(host, if tls { 443 } else { 80 }).map_err(|error| wrong(&error.to_string()))?;
        self.target_at(at, self.before_route(url, prefix.trim_end_matches('/'))?, tls)
    }

    /// Returns the part of `path` before the API route. Accepts URLs that already end with the
    /// route or with `/v1`.
    fn before_route<'a>(&self, url: &str, path: &'a str) -> Result<&'a str, Failure> {
        /// First path segment of all OpenAI routes.
        const V1: &str = "v1";
        // Match whole path segments only: /metagenerate does not end with /generate.
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
            return Err(Failure::usage(format!(
                "'{url}' ends with the route for --api {}, but --api is {own}",
                name(*other)
            ))
            .next(format!("use --api {}, or remove {} from the URL", name(*other), other.dialect().1)));
        }
        match (before(V1), self.api) {
            (Some(_), Api::Generate) => {
                Err(Failure::usage(format!("'{url}' is the base URL for OpenAI routes, but --api is generate"))
                    .next("use --api chat or --api completions, or remove /v1 from the URL"))
            }
            (Some(before), _) => Ok(before),
            (None, _) => Ok(path),
        }
    }

    /// Rejects `--cacert` without TLS. `https`: whether any URL uses TLS.
    ///
    /// # Errors
    /// `--cacert` is set, but no URL uses TLS.
    pub fn trust_is_used(&self, https: bool) -> Result<(), Failure> {
        if https || self.cacert.is_none() {
            return Ok(());
        }
        Err(Failure::usage("--cacert requires an https:// URL").next("use https:// in --url, or drop --cacert"))
    }

    /// Returns the base URL for the server's other routes: `http://HOST:PORT` with the path prefix
    /// from `target`.
    pub fn base_of(&self, target: &LoadTarget) -> String {
        let prefix = target.path.strip_suffix(self.api.dialect().1).unwrap_or_default();
        let scheme = if target.protocol.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}{prefix}", target.at)
    }

    fn target_at(&self, at: HostPort, prefix: &str, tls: bool) -> Result<LoadTarget, Failure> {
        let (dialect, route) = self.api.dialect();
        let path = if prefix.is_empty() { route.to_owned() } else { format!("/{prefix}{route}") };
        path.parse::<hyper::Uri>()
            .map_err(|error| Failure::usage(format!("'{path}' is not a valid URL path")).found(error.to_string()))?;
        Ok(LoadTarget {
            path,
            model: self.model_name().unwrap_or("default").to_owned(),
            extra: self.extra_request_body.clone().unwrap_or_default(),
            headers: self.headers()?,
            protocol: HttpProtocol {
                tls: if tls { Some(self.tls()?) } else { None },
                http2: self.http2,
                streams: self.http2_streams as usize,
            },
            limits: ExchangeLimits {
                connect: self.connect_timeout,
                silence: self.timeout,
                whole: self.request_timeout,
                busy_retries: self.retry_busy,
            },
            ..LoadTarget::new(at, dialect)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_accept_both_spellings_and_stay_secret() {
        for (text, name, value) in
            [("X-A=b:c", "x-a", "b:c"), ("Authorization: Bearer k=1", "authorization", "Bearer k=1"), ("x=", "x", "")]
        {
            let (found, parsed) = header(text).expect("a header");
            assert_eq!((found.as_str(), parsed.to_str().expect("text")), (name, value));
            assert!(!format!("{parsed:?}").contains("k=1"));
        }
        for bad in ["nothing", "a b=c", "a=\u{7}"] {
            assert!(header(bad).is_err(), "{bad}");
        }
        for reserved in
            ["Transfer-Encoding: chunked", "content-length=3", "HOST=x", "Connection=close", "accept-encoding=gzip"]
        {
            let failure = header(reserved).expect_err(reserved);
            assert!(failure.what.starts_with("--header cannot set ") && failure.next.is_some(), "{failure:?}");
        }
    }

    #[derive(clap::Parser)]
    struct EndpointCommandLine {
        #[command(flatten)]
        endpoint: EndpointArgs,
    }

    fn path(api: &str, url: &str) -> Result<String, Failure> {
        use clap::Parser;
        EndpointCommandLine::parse_from(["x", "--api", api]).endpoint.target_of(url).map(|target| target.path)
    }

    #[test]
    fn a_url_with_the_route_does_not_repeat_it() {
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
            assert!(failure.next.as_deref().is_some_and(|text| text.contains(next)), "{failure:?}");
        }
    }
}
