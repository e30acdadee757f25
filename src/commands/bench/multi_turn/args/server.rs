//! The server's other routes: what is asked of it beside what is measured.

use crate::commands::error::Failure;
use crate::engine::http::Fetcher;
use crate::engine::load::server::{BYTES_MAX, CALL, Server};

/// Where its counters are.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Counters")]
pub struct ServerArgs {
    /// A page with the server's counters, one per server behind a router [default: /metrics of the server]
    #[arg(long, value_name = "URL")]
    pub metrics_url: Vec<String>,
    /// The admin port of the L3's master: its fill and evictions are followed, and that a cleared L3 is empty is seen there
    #[arg(long, value_name = "HOST:PORT")]
    pub master_metrics: Option<String>,
    /// Tokens of a page of the server's caches [default: what it says]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub page_size: Option<u32>,
    /// Ask the server nothing but what is measured: no settings, no counters, no expected hits
    #[arg(long, conflicts_with_all = ["metrics_url", "master_metrics"])]
    pub no_server_calls: bool,
}

fn url_of(text: &str, path: &str) -> String {
    match text.split_once("://") {
        Some(_) => text.to_owned(),
        None => format!("http://{text}{path}"),
    }
}

impl ServerArgs {
    /// The other routes of the server at `base` (`http://HOST:PORT`); with `bearer` where it wants a key. `own_pages` when the counters
    /// of `--metrics-url` are this server's. `None` when they are not to be used.
    ///
    /// # Errors
    /// This host's HTTP library cannot be set up.
    pub fn server(&self, base: &str, bearer: Option<String>, own_pages: bool) -> Result<Option<Server>, Failure> {
        if self.no_server_calls {
            return Ok(None);
        }
        let master = self.master_metrics.as_deref().map(|at| url_of(at, "/metrics"));
        let pages: Vec<String> = match own_pages {
            true => self.metrics_url.iter().map(|url| url_of(url, "/metrics")).collect(),
            false => Vec::new(),
        };
        let tls = pages.iter().chain(&master).any(|url| url.starts_with("https:")) || base.starts_with("https:");
        let fetcher = Fetcher::new(tls, CALL, BYTES_MAX)
            .map_err(|error| Failure::host("cannot ask the server").found(error.to_string()))?;
        let server = Server::new(base, pages, master, fetcher.with_bearer(bearer));
        Ok(Some(server.with_page_size(self.page_size)))
    }
}
