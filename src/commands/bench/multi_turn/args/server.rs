//! The server's other routes: what is asked of it beside what is measured.

use crate::commands::bench::multi_turn::args::EndpointArgs;
use crate::commands::error::Failure;
use crate::engine::base::HostPort;
use crate::engine::http::Fetcher;
use crate::engine::load::server::{BYTES_MAX, CALL, Server};
use crate::engine::load::target::Target;

/// Where its counters are.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Counters")]
pub struct ServerArgs {
    /// A page with the server's counters, one per server behind a router [default: /metrics of the server]
    #[arg(long, value_name = "URL", value_parser = page)]
    pub metrics_url: Vec<String>,
    /// The admin port of the L3's master: its fill and evictions are followed, and that a cleared L3 is empty is seen there
    #[arg(long, value_name = "HOST:PORT", value_parser = page)]
    pub master_metrics: Option<String>,
    /// Tokens of a page of the server's caches [default: what it says]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub page_size: Option<u32>,
    /// Ask the server nothing but what is measured: no settings, no counters, no expected hits
    #[arg(long, conflicts_with_all = ["metrics_url", "master_metrics"])]
    pub no_server_calls: bool,
}

/// The address of a page with counters: a URL, or `HOST:PORT`; `/metrics` where no path is written.
fn page(text: &str) -> Result<String, String> {
    let bad =
        |why: &str| format!("'{text}' is no page with counters ({why}): write HOST:PORT or http://HOST:PORT/metrics");
    let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
    if !["", "http", "https"].contains(&scheme) {
        return Err(bad("it begins with neither http:// nor https://"));
    }
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (_, port) = HostPort::split(host).map_err(|error| bad(&error.to_string()))?;
    if scheme.is_empty() && port.is_none() {
        return Err(bad("it has no port"));
    }
    let (scheme, path) =
        (if scheme.is_empty() { "http" } else { scheme }, if path.is_empty() { "metrics" } else { path });
    let url = format!("{scheme}://{host}/{path}");
    url.parse::<hyper::Uri>().map(|_| url).map_err(|error| bad(&error.to_string()))
}

impl ServerArgs {
    /// The other routes of the server of `target`, spoken to as `endpoint` says. `own_pages` when the counters of `--metrics-url` are
    /// this server's. `None` when they are not to be used.
    ///
    /// # Errors
    /// There is no TLS as it is asked for, or this host's HTTP library cannot be set up.
    pub fn server(&self, endpoint: &EndpointArgs, target: &Target, own_pages: bool) -> Result<Option<Server>, Failure> {
        if self.no_server_calls {
            return Ok(None);
        }
        let base = endpoint.base_of(target);
        let pages = if own_pages { self.metrics_url.clone() } else { Vec::new() };
        let urls = || pages.iter().chain(&self.master_metrics).chain(std::iter::once(&base));
        let unusable =
            |error: crate::engine::http::FetchError| Failure::host("cannot ask the server").found(error.to_string());
        let fetcher = match urls().any(|url| url.starts_with("https:")) {
            true => Fetcher::trusting(Some(endpoint.tls()?.client()), CALL, BYTES_MAX),
            false => Fetcher::new(false, CALL, BYTES_MAX),
        };
        let fetcher = fetcher.map_err(unusable)?.with_headers(target.headers.clone());
        let server = Server::new(&base, pages, self.master_metrics.clone(), fetcher);
        Ok(Some(server.with_page_size(self.page_size)))
    }

    /// Does any of its pages need TLS?
    pub fn has_https(&self) -> bool {
        self.metrics_url.iter().chain(&self.master_metrics).any(|url| url.starts_with("https:"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_a_url_or_a_host_with_its_port() {
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
