//! Flags for the server's management routes: settings, counters and cache control.

use crate::commands::bench::multi_turn::args::EndpointArgs;
use crate::commands::cli::error::Failure;
use crate::engine::base::HostPort;
use crate::engine::http::Fetcher;
use crate::engine::load::server::{BYTES_MAX, CALL, ServerClient};
use crate::engine::load::target::LoadTarget;

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Counters")]
pub struct ServerArgs {
    /// Metrics URL; may be repeated, once per server behind a router [default: /metrics on the
    /// server]
    #[arg(long, value_name = "URL", value_parser = page)]
    pub metrics_url: Vec<String>,
    /// Admin address of the Mooncake master behind L3; used to report L3 usage and evictions and to
    /// verify that a cleared L3 is empty
    #[arg(long, value_name = "HOST:PORT", value_parser = page)]
    pub master_metrics: Option<String>,
    /// Tokens per KV cache page on the server [default: reported by the server]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub page_size: Option<u32>,
    /// Send only measured requests. Settings and counters are not read, so expected hits are
    /// unknown
    #[arg(long, conflicts_with_all = ["metrics_url", "master_metrics"])]
    pub no_server_calls: bool,
}

/// The address of a metrics page is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not a metrics address ({reason}): use HOST:PORT or http://HOST:PORT/metrics")]
struct MetricsUrlError {
    text: String,
    reason: String,
}

/// Parses a metrics address, which is a URL or `HOST:PORT`. The default path is `/metrics`.
fn page(text: &str) -> Result<String, MetricsUrlError> {
    let bad = |reason: &str| MetricsUrlError { text: text.to_owned(), reason: reason.to_owned() };
    let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
    if !["", "http", "https"].contains(&scheme) {
        return Err(bad("the scheme is not http or https"));
    }
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (_, port) = HostPort::split(host).map_err(|error| bad(&error.to_string()))?;
    if scheme.is_empty() && port.is_none() {
        return Err(bad("the port is missing"));
    }
    let (scheme, path) =
        (if scheme.is_empty() { "http" } else { scheme }, if path.is_empty() { "metrics" } else { path });
    let url = format!("{scheme}://{host}/{path}");
    url.parse::<hyper::Uri>().map(|_| url).map_err(|error| bad(&error.to_string()))
}

impl ServerArgs {
    /// Returns a client for the management routes of the server at `target`, or `None` with
    /// `--no-server-calls`. `own_pages`: whether the `--metrics-url` pages belong to this server.
    ///
    /// # Errors
    /// The TLS settings are invalid, or the HTTP client cannot be created.
    pub fn server(
        &self,
        endpoint: &EndpointArgs,
        target: &LoadTarget,
        own_pages: bool,
    ) -> Result<Option<ServerClient>, Failure> {
        if self.no_server_calls {
            return Ok(None);
        }
        let base = endpoint.base_of(target);
        let pages = if own_pages { self.metrics_url.clone() } else { Vec::new() };
        let urls = || pages.iter().chain(&self.master_metrics).chain(std::iter::once(&base));
        let unusable = |error: crate::engine::http::FetchError| {
            Failure::host("cannot create an HTTP client for the server's management routes").found(error.to_string())
        };
        let fetcher = match urls().any(|url| url.starts_with("https:")) {
            true => Fetcher::with_tls(Some(endpoint.tls()?.client()), CALL, BYTES_MAX),
            false => Fetcher::new(false, CALL, BYTES_MAX),
        };
        let fetcher = fetcher.map_err(unusable)?.with_headers(target.headers.clone());
        let server = ServerClient::new(&base, pages, self.master_metrics.clone(), fetcher);
        Ok(Some(server.with_page_size(self.page_size)))
    }

    /// Returns whether any metrics page uses TLS.
    pub fn has_https(&self) -> bool {
        self.metrics_url.iter().chain(&self.master_metrics).any(|url| url.starts_with("https:"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metrics_address_is_a_url_or_host_and_port() {
        for (text, url) in [
            ("h:1", "http://h:1/metrics"),
            ("h:1/a", "http://h:1/a"),
            ("[::1]:9003", "http://[::1]:9003/metrics"),
            ("http://h", "http://h/metrics"),
            ("https://h:1/", "https://h:1/metrics"),
            ("http://h:1/a/b?c=d", "http://h:1/a/b?c=d"),
        ] {
            assert_eq!(page(text).as_deref(), Ok(url), "{text}");
        }
        for bad in ["foo", "", "h:x", "ftp://h:1", "http://", "http:///metrics", "http://h:1/a b"] {
            assert!(page(bad).is_err(), "{bad}");
        }
    }
}
