//! Where requests go.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use serde_json::{Map, Value};

use crate::commands::args as parsers;
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
}

impl Api {
    /// Its words and its route.
    pub fn dialect(self) -> (Dialect, &'static str) {
        match self {
            Api::Generate => (Dialect::Generate, "/generate"),
            Api::Chat => (Dialect::Chat, "/v1/chat/completions"),
            Api::Completions => (Dialect::Completions, "/v1/completions"),
        }
    }
}

/// The server and how it is spoken to.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Endpoint")]
pub struct EndpointArgs {
    /// The server: http://HOST:PORT or https://HOST
    #[arg(long, alias = "base-url", value_name = "URL", conflicts_with_all = ["host", "port"])]
    pub url: Option<String>,
    /// Its host
    #[arg(long, default_value = "localhost")]
    pub host: String,
    /// Its port
    #[arg(long, default_value_t = 30000)]
    pub port: u16,
    /// Which of its routes: generate (with token ids), chat or completions; sglang and openai mean the first two
    #[arg(long, alias = "api-format", value_enum, default_value = "generate")]
    pub api: Api,
    /// The model that chat and completions name
    #[arg(long, alias = "served-model-name", default_value = "default", value_name = "NAME")]
    pub model: String,
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

/// A header of the command line. What it says may be a secret, so that no error repeats it.
fn header(text: &str) -> Result<(HeaderName, HeaderValue), Failure> {
    let at = text.find([':', '=']).ok_or_else(|| {
        Failure::usage("a --header has neither ':' nor '='").next("write NAME=VALUE or 'NAME: VALUE'")
    })?;
    let (name, value) = (text[..at].trim(), text[at + 1..].trim());
    let name = HeaderName::from_bytes(name.as_bytes())
        .map_err(|_| Failure::usage(format!("'{name}' is no name of a header")))?;
    Ok((name.clone(), secret(name.as_str(), value)?))
}

fn secret(name: &str, value: &str) -> Result<HeaderValue, Failure> {
    let mut value = HeaderValue::from_str(value)
        .map_err(|_| Failure::usage(format!("what {name} is to say cannot stand in a header")))?;
    value.set_sensitive(true);
    Ok(value)
}

impl EndpointArgs {
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

    fn tls(&self) -> Result<Tls, Failure> {
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
            None => self.target_at(HostPort::new(self.host.as_str(), self.port), "", false),
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
        let at = parsers::endpoint(host, if tls { 443 } else { 80 }).map_err(|error| wrong(&error))?;
        self.target_at(at, prefix.trim_end_matches('/'), tls)
    }

    /// Where the other routes of `target`'s server are: `http://HOST:PORT`, with the prefix that its path has.
    pub fn base_of(&self, target: &Target) -> String {
        let prefix = target.path.strip_suffix(self.api.dialect().1).unwrap_or_default();
        let scheme = if target.via.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}{prefix}", target.at)
    }

    /// The key that requests to `target` carry, if it is a bearer's.
    pub fn bearer_of(&self, target: &Target) -> Option<String> {
        let says = target.headers.get(hyper::header::AUTHORIZATION)?.to_str().ok()?;
        says.strip_prefix("Bearer ").map(str::to_owned)
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
            model: self.model.clone(),
            temperature: 0.0,
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
    }
}
