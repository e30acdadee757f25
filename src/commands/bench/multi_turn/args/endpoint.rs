//! Where requests go.

use std::time::Duration;

use clap::ValueEnum;
use serde_json::{Map, Value};

use crate::commands::args as parsers;
use crate::commands::error::Failure;
use crate::engine::base::HostPort;
use crate::engine::load::answer::Dialect;
use crate::engine::load::target::{Limits, Target};

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
    /// The server: http://HOST:PORT
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
    /// More members of every request, a JSON object
    #[arg(long, value_name = "JSON", value_parser = object)]
    pub extra_request_body: Option<Map<String, Value>>,
}

fn object(text: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(text).map_err(|error| format!("'{text}' is no JSON object: {error}"))
}

impl EndpointArgs {
    /// The target of `--url`, or of `--host` and `--port`.
    ///
    /// # Errors
    /// It is none.
    pub fn target(&self) -> Result<Target, Failure> {
        match &self.url {
            None => self.target_at(HostPort::new(self.host.as_str(), self.port), ""),
            Some(url) => self.target_of(url),
        }
    }

    /// The target of another URL, spoken to likewise.
    ///
    /// # Errors
    /// It is none.
    pub fn target_of(&self, url: &str) -> Result<Target, Failure> {
        let wrong =
            |found: &str| Failure::usage(format!("'{url}' is no server")).found(found).next("write http://HOST:PORT");
        let rest = url.strip_prefix("http://").ok_or_else(|| wrong("it does not begin with http://"))?;
        let (host, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        self.target_at(parsers::endpoint(host, 80).map_err(|error| wrong(&error))?, prefix.trim_end_matches('/'))
    }

    fn target_at(&self, at: HostPort, prefix: &str) -> Result<Target, Failure> {
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
            headers: hyper::HeaderMap::new(),
            limits: Limits { silence: self.timeout, ..Limits::default() },
        })
    }
}
