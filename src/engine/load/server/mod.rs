//! Client for the server's management routes: settings ([`info`]), cache flush, and counters
//! ([`counters`], [`scrape`]).
//!
//! All of these routes are optional. A server without them can still be benchmarked, and the report
//! lists what is missing. The calls use separate connections, never the measured ones.

pub mod counters;
pub mod description;
pub mod explain;
pub mod info;
pub mod observed;
mod ready;
pub mod scrape;
mod served;

use std::time::Duration;

use hyper::header::HeaderMap;
use serde_json::Value;

use mcctl_base::time::RoundedDuration;
use mcctl_net::http::{FetchError, FetchResponse, Fetcher, Samples};
use mcctl_sys::env::Env;

pub use counters::{Reasons, ServerCounters, StoreCounters};
pub use description::{CacheCapacity, ServerDescription, StorageTier};
pub use explain::{Shortfall, ShortfallReason, explain};
pub use info::ServerInfo;
pub use observed::{CounterCheck, MissingData, ObservationCaveat, ServerObservation};
pub use ready::{NotReady, wait_until_ready};
pub use scrape::{CounterHistory, CounterSample, ScrapeTrigger, Scraper};
pub use served::{Models, Profile};

/// Maximum size of a metrics page or JSON document, in bytes.
pub const BYTES_MAX: usize = 16 << 20;
/// Timeout for each call.
pub const CALL: Duration = Duration::from_secs(30);
/// How long L3 protects recently read objects from removal. Mooncake's default lease is 10 s.
const LEASE: Duration = Duration::from_secs(12);
const AGAIN: Duration = Duration::from_millis(250);

/// A call failed or had no effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServerCallError {
    #[error("{url}: {why}")]
    NoAnswer { url: String, why: FetchError },
    /// The response status did not indicate success.
    #[error("{url}: {response}")]
    Refused {
        url: String,
        /// Status and start of the body.
        response: String,
    },
    /// The operation did not complete within the time limit.
    #[error("{url}: not completed after {}: {response}", RoundedDuration(*within))]
    NotInTime {
        url: String,
        within: Duration,
        /// Last response: status and start of the body.
        response: String,
    },
}

/// The result of clearing L3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClearResult {
    /// Number of objects that the master still holds; `None` if the master is unknown.
    pub left: Option<u64>,
    pub took: Duration,
}

/// The result of waiting for write-back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettleResult {
    /// The counters are stable, and everything in L2 is also in L3.
    Idle,
    /// The counters are stable, but this many L2 tokens were not written to L3.
    Short(u64),
    /// The server reports no counters, so the wait had a fixed length.
    NoCounters,
    /// The server was still writing back at the time limit.
    Busy,
}

/// Extracts data from a metrics page. Parsing runs on another thread, so that a long page does not
/// delay requests.
async fn read<T: Send + 'static>(page: String, of: fn(&Samples) -> Option<T>) -> Option<T> {
    let reading = tokio::task::spawn_blocking(move || of(&Samples::parse(&page)));
    match reading.await.map_err(tokio::task::JoinError::try_into_panic) {
        Ok(found) => found,
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        // The runtime is shutting down.
        Err(Err(_)) => None,
    }
}

/// Client for a server's management routes.
#[derive(Clone, Debug)]
pub struct ServerClient {
    /// `http://HOST:PORT`, without a trailing slash.
    base: String,
    /// Metrics pages. A router with several servers has several pages.
    pages: Vec<String>,
    /// Metrics page of the L3 master.
    master: Option<String>,
    /// Tokens per page, if set by the user.
    page_size: Option<u32>,
    fetcher: Fetcher,
    /// Timeout parameter for flushing L1 and L2.
    flush_timeout: Option<Duration>,
}

impl ServerClient {
    /// Creates a client for the server at `base` (`http://HOST:PORT`). Counters are read from
    /// `pages` (by default, the server's own `/metrics`), and L3 counters from the `master` metrics
    /// page.
    pub fn new(base: &str, pages: Vec<String>, master: Option<String>, fetcher: Fetcher) -> ServerClient {
        let base = base.trim_end_matches('/').to_owned();
        let pages = if pages.is_empty() { vec![format!("{base}/metrics")] } else { pages };
        ServerClient { base, pages, master, page_size: None, fetcher, flush_timeout: None }
    }

    /// Overrides the page size reported by the server.
    #[must_use]
    pub fn with_page_size(self, page_size: Option<u32>) -> ServerClient {
        ServerClient { page_size, ..self }
    }

    /// Sets the timeout for flushing L1 and L2.
    #[must_use]
    pub fn with_flush_timeout(self, flush_timeout: Option<Duration>) -> ServerClient {
        ServerClient { flush_timeout, ..self }
    }

    /// Returns the timeout for flushing L1 and L2, if set.
    pub fn flush_timeout(&self) -> Option<Duration> {
        self.flush_timeout
    }

    /// Returns the page size set by the user, if any.
    pub fn page_size(&self) -> Option<u32> {
        self.page_size
    }

    /// Returns the base URL.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Returns whether `other` has the same address, regardless of its metrics pages.
    pub fn is(&self, other: &ServerClient) -> bool {
        self.base == other.base
    }

    /// Returns whether the L3 master's metrics page is known.
    pub fn has_master(&self) -> bool {
        self.master.is_some()
    }

    async fn get(&self, url: &str) -> Result<FetchResponse, ServerCallError> {
        self.fetcher.get(url).await.map_err(|why| ServerCallError::NoAnswer { url: url.to_owned(), why })
    }

    async fn post(&self, url: &str) -> Result<FetchResponse, ServerCallError> {
        self.post_json(url, "{}".to_owned()).await
    }

    async fn post_json(&self, url: &str, json: String) -> Result<FetchResponse, ServerCallError> {
        let answer = self.fetcher.post(url, json).await;
        answer.map_err(|why| ServerCallError::NoAnswer { url: url.to_owned(), why })
    }

    /// Sends `json` to a route of the server, such as `/generate`, and returns the body of the
    /// response.
    ///
    /// # Errors
    /// The server does not respond within `limit`, or refuses the request.
    pub async fn post_route(&self, route: &str, json: String, limit: Duration) -> Result<String, ServerCallError> {
        let url = format!("{}{route}", self.base);
        let answer = self.fetcher.clone().with_limit(limit).post(&url, json).await;
        match answer.map_err(|why| ServerCallError::NoAnswer { url: url.clone(), why })? {
            answer if answer.is_ok() => Ok(answer.body),
            answer => Err(ServerCallError::Refused { url, response: answer.shown() }),
        }
    }

    /// Reads the server's settings. Returns `None` if the server is not SGLang.
    ///
    /// # Errors
    /// The server does not respond.
    pub async fn info(&self) -> Result<Option<ServerInfo>, ServerCallError> {
        for name in ["/server_info", "/get_server_info"] {
            let answer = self.get(&format!("{}{name}", self.base)).await?;
            if answer.is_ok() {
                let document: Value = serde_json::from_str(&answer.body).unwrap_or(Value::Null);
                return Ok(ServerInfo::read(&document));
            }
        }
        Ok(None)
    }

    /// Reads the current counters, summed over all pages. Returns `None` if any page does not come
    /// from SGLang. If `woken` is set, queries `/server_info` first, which makes an idle scheduler
    /// update its counters.
    pub async fn counters(&self, woken: bool) -> Option<ServerCounters> {
        if woken {
            let _ = self.get(&format!("{}/server_info", self.base)).await;
        }
        let mut all: Option<ServerCounters> = None;
        for page in &self.pages {
            let answer = self.get(page).await.ok().filter(FetchResponse::is_ok)?;
            let one = read(answer.body, ServerCounters::read).await?;
            all = Some(match all {
                Some(all) => all.plus(&one),
                None => one,
            });
        }
        all
    }

    /// Reads the master's current counters.
    pub async fn master(&self) -> Option<StoreCounters> {
        // Headers for the endpoint, especially its API key, must not be sent to the master.
        let page = self.master.as_ref()?;
        let answer = self.fetcher.clone().with_bearer(None).with_headers(HeaderMap::new()).get(page).await;
        let answer = answer.ok().filter(FetchResponse::is_ok)?;
        read(answer.body, StoreCounters::read).await
    }

    /// Flushes L1 and L2. Retries while the server is busy, until `within` has passed.
    ///
    /// # Errors
    /// The server does not have this route, does not respond, or is still busy at the time limit.
    pub async fn flush<E: Env>(&self, env: &E, within: Duration) -> Result<(), ServerCallError> {
        let mut url = format!("{}/flush_cache", self.base);
        // SGLang waits up to this long for requests in flight. Without the parameter, it rejects
        // the flush immediately if any are in flight.
        if let Some(timeout) = self.flush_timeout {
            url.push_str(&format!("?timeout={}", timeout.as_secs_f64()));
        }
        let begun = env.now();
        loop {
            let answer = self.post(&url).await?;
            let over = env.now().since(begun) >= within;
            match answer.status {
                200..=299 => return Ok(()),
                // vLLM's name for this route.
                404 if url.contains("/flush_cache") => url = format!("{}/reset_prefix_cache", self.base),
                400 | 409 | 503 if !over => env.sleep(AGAIN).await,
                400 | 409 | 503 => return Err(ServerCallError::NotInTime { url, within, response: answer.shown() }),
                _ => return Err(ServerCallError::Refused { url, response: answer.shown() }),
            }
        }
    }

    /// Clears L3. Recently read objects are leased and are not removed, although the server reports
    /// success. The call is therefore repeated until the master has no objects or their number
    /// stops falling. Without a master, it is repeated once after the leases have expired.
    ///
    /// # Errors
    /// The server does not have this route, has no L3, or does not respond.
    pub async fn clear<E: Env>(&self, env: &E, within: Duration) -> Result<ClearResult, ServerCallError> {
        let url = format!("{}/hicache/storage-backend/clear", self.base);
        let begun = env.now();
        let mut least = u64::MAX;
        let mut fell = begun;
        loop {
            let answer = self.post(&url).await?;
            if !answer.is_ok() {
                return Err(ServerCallError::Refused { url, response: answer.shown() });
            }
            let now = env.now();
            let took = now.since(begun);
            let left = self.master().await.map(|master| master.keys);
            if left == Some(0) {
                return Ok(ClearResult { left, took });
            }
            if left.is_some_and(|left| left < least) {
                least = left.unwrap_or(0);
                fell = now;
            }
            if now.since(fell) >= LEASE || took >= within {
                return Ok(ClearResult { left, took });
            }
            env.sleep(if left.is_some() { AGAIN * 2 } else { LEASE }).await;
        }
    }

    /// Waits until the server has finished writing back from L1 to L2 and from L2 to L3.
    pub async fn settle<E: Env>(&self, env: &E, within: Duration) -> SettleResult {
        /// Counters that have been stable for this long are final.
        const STILL: Duration = Duration::from_secs(2);
        const POLL: Duration = Duration::from_millis(50);
        let begun = env.now();
        let mut before = None;
        let mut since = begun;
        loop {
            let Some(now) = self.counters(true).await else {
                env.sleep(STILL.min(within)).await;
                return SettleResult::NoCounters;
            };
            let at = env.now();
            let is_idle = now.now.running == 0 && now.now.queued == 0;
            let here = (now.backed_up, now.stored, now.requests);
            if before != Some(here) {
                before = Some(here);
                since = at;
            } else if is_idle && now.stored >= now.backed_up {
                return SettleResult::Idle;
            } else if at.since(since) >= STILL {
                return if now.stored == 0 {
                    SettleResult::Idle
                } else {
                    SettleResult::Short(now.backed_up.saturating_sub(now.stored))
                };
            }
            if at.since(begun) >= within {
                return SettleResult::Busy;
            }
            env.sleep(POLL).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pages_are_parsed_on_another_thread() {
        let reads = read("a 1\nb 2\n".to_owned(), |page| Some((page.clone(), std::thread::current().id()))).await;
        let (page, thread) = reads.expect("a page");
        assert_eq!(page, Samples::parse("a 1\nb 2\n"));
        assert_ne!(thread, std::thread::current().id());
    }
}
