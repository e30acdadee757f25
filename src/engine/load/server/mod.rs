//! The server's other routes: what it is ([`info`]), emptying its caches, and what it counts ([`counters`], [`scrape`]).
//!
//! All of it is optional: a server that has none of these routes is measured all the same, and one line says what is missing. The
//! calls go over connections of their own, never over those that are measured.

pub mod counters;
pub mod explain;
pub mod info;
pub mod observed;
pub mod scrape;
mod served;

use std::time::Duration;

use hyper::header::HeaderMap;
use serde_json::Value;

use crate::engine::env::Env;
use crate::engine::http::{FetchError, Fetched, Fetcher, Samples};

pub use counters::{Counters, Master, Reasons};
pub use explain::{Reason, Short, explain};
pub use info::Info;
pub use observed::{Compared, Observed};
pub use scrape::{Bell, Point, Ring, Watch};
pub use served::{Models, Profile};

/// A metrics page or a document of the server is no longer than this.
pub const BYTES_MAX: usize = 16 << 20;
/// Each call is over by then.
pub const CALL: Duration = Duration::from_secs(30);
/// How long an L3 keeps what was just read from being removed: Mooncake's lease is 10 s by default.
const LEASE: Duration = Duration::from_secs(12);
/// Between two tries of what is not yet done.
const AGAIN: Duration = Duration::from_millis(250);

/// Why a call did not do what it is for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// No answer.
    #[error("{url}: {why}")]
    NoAnswer {
        /// What was asked.
        url: String,
        /// Why not.
        why: FetchError,
    },
    /// Another answer than the one that says that it is done.
    #[error("{url}: {says}")]
    Refused {
        /// What was asked.
        url: String,
        /// The status and the beginning of the words.
        says: String,
    },
    /// It is not done after so long.
    #[error("{url}: not done after {within:?}: {says}")]
    NotInTime {
        /// What was asked.
        url: String,
        /// How long it was tried.
        within: Duration,
        /// The last answer.
        says: String,
    },
}

/// What is left of an L3 that was cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cleared {
    /// Objects that the master still has; `None` where no master was asked.
    pub left: Option<u64>,
    /// How long it took.
    pub took: Duration,
}

/// How long the writing back took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The counters stand still, and all that is in L2 is in L3.
    Still,
    /// The counters stand still, and L3 lacks so many tokens of what L2 was given.
    Short(u64),
    /// The server tells no counters: it was waited for, no more.
    Unseen,
    /// It still writes.
    Busy,
}

/// What `of` finds on a metrics page. A page may be long: it is read on a thread of its own, so that no request waits for it.
async fn read<T: Send + 'static>(page: String, of: fn(&Samples) -> Option<T>) -> Option<T> {
    let reading = tokio::task::spawn_blocking(move || of(&Samples::parse(&page)));
    match reading.await.map_err(tokio::task::JoinError::try_into_panic) {
        Ok(found) => found,
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        // The runtime ends.
        Err(Err(_)) => None,
    }
}

/// A server's other routes.
#[derive(Clone, Debug)]
pub struct Server {
    /// `http://HOST:PORT`, without a slash at its end.
    base: String,
    /// Pages with its counters: more than one where a router has several servers behind it.
    pages: Vec<String>,
    /// The metrics page of the master of its L3.
    master: Option<String>,
    /// Tokens of a page, where somebody knows better than the server says.
    page_size: Option<u32>,
    fetcher: Fetcher,
    /// Time limit of a flush of L1 and L2, sent with the call.
    flush_timeout: Option<Duration>,
}

impl Server {
    /// The server at `base` (`http://HOST:PORT`), its counters on `pages` (its own `/metrics` where there is none), and the metrics
    /// page of its L3's master.
    pub fn new(base: &str, pages: Vec<String>, master: Option<String>, fetcher: Fetcher) -> Server {
        let base = base.trim_end_matches('/').to_owned();
        let pages = if pages.is_empty() { vec![format!("{base}/metrics")] } else { pages };
        Server { base, pages, master, page_size: None, fetcher, flush_timeout: None }
    }

    /// The same with pages of so many tokens, whatever the server says.
    #[must_use]
    pub fn with_page_size(self, page_size: Option<u32>) -> Server {
        Server { page_size, ..self }
    }

    /// Sets the time limit of a flush of L1 and L2.
    #[must_use]
    pub fn with_flush_timeout(self, flush_timeout: Option<Duration>) -> Server {
        Server { flush_timeout, ..self }
    }

    /// The time limit of a flush of L1 and L2, if the user set one.
    pub fn flush_timeout(&self) -> Option<Duration> {
        self.flush_timeout
    }

    /// Tokens of a page, where somebody knows better than the server says.
    pub fn page_size(&self) -> Option<u32> {
        self.page_size
    }

    /// The address.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Is it the same as `other`, whatever pages are read of either?
    pub fn is(&self, other: &Server) -> bool {
        self.base == other.base
    }

    /// Is the master of its L3 known?
    pub fn has_master(&self) -> bool {
        self.master.is_some()
    }

    async fn get(&self, url: &str) -> Result<Fetched, ControlError> {
        self.fetcher.get(url).await.map_err(|why| ControlError::NoAnswer { url: url.to_owned(), why })
    }

    async fn post(&self, url: &str) -> Result<Fetched, ControlError> {
        self.post_json(url, "{}".to_owned()).await
    }

    async fn post_json(&self, url: &str, json: String) -> Result<Fetched, ControlError> {
        let answer = self.fetcher.post(url, json).await;
        answer.map_err(|why| ControlError::NoAnswer { url: url.to_owned(), why })
    }

    /// What it says of itself; nothing where it is no SGLang.
    ///
    /// # Errors
    /// It does not answer at all.
    pub async fn info(&self) -> Result<Option<Info>, ControlError> {
        for name in ["/server_info", "/get_server_info"] {
            let answer = self.get(&format!("{}{name}", self.base)).await?;
            if answer.is_ok() {
                let told: Value = serde_json::from_str(&answer.body).unwrap_or(Value::Null);
                return Ok(Info::read(&told));
            }
        }
        Ok(None)
    }

    /// Its counters now, all pages together; nothing where a page is none of SGLang. With `woken`, its scheduler is asked first, which
    /// counts what it has done since it fell idle.
    pub async fn counters(&self, woken: bool) -> Option<Counters> {
        if woken {
            let _ = self.get(&format!("{}/server_info", self.base)).await;
        }
        let mut all: Option<Counters> = None;
        for page in &self.pages {
            let answer = self.get(page).await.ok().filter(Fetched::is_ok)?;
            let one = read(answer.body, Counters::read).await?;
            all = Some(match all {
                Some(all) => all.plus(&one),
                None => one,
            });
        }
        all
    }

    /// The master's counters now.
    pub async fn master(&self) -> Option<Master> {
        // What the endpoint is told in headers, its key above all, is nobody else's business.
        let page = self.master.as_ref()?;
        let answer = self.fetcher.clone().with_bearer(None).with_headers(HeaderMap::new()).get(page).await;
        let answer = answer.ok().filter(Fetched::is_ok)?;
        read(answer.body, Master::read).await
    }

    /// Empty L1 and L2. A server that is still busy is asked again, until `within` is over.
    ///
    /// # Errors
    /// It has no such route, or it is not done in time.
    pub async fn flush<E: Env>(&self, env: &E, within: Duration) -> Result<(), ControlError> {
        let mut url = format!("{}/flush_cache", self.base);
        // SGLang waits this long for its requests in flight. Without a limit it refuses at once while there are some.
        if let Some(timeout) = self.flush_timeout {
            url.push_str(&format!("?timeout={}", timeout.as_secs_f64()));
        }
        let begun = env.now();
        loop {
            let answer = self.post(&url).await?;
            let over = env.now().since(begun) >= within;
            match answer.status {
                200..=299 => return Ok(()),
                // vLLM's name for the same.
                404 if url.contains("/flush_cache") => url = format!("{}/reset_prefix_cache", self.base),
                400 | 409 | 503 if !over => env.sleep(AGAIN).await,
                400 | 409 | 503 => return Err(ControlError::NotInTime { url, within, says: answer.shown() }),
                _ => return Err(ControlError::Refused { url, says: answer.shown() }),
            }
        }
    }

    /// Empty L3. What was read a moment ago is leased and stays, though the server says that it is done: so it is cleared again until
    /// the master has no object, or its number no longer falls; without a master once more when the leases are over.
    ///
    /// # Errors
    /// The server has no such route, or no L3.
    pub async fn clear<E: Env>(&self, env: &E, within: Duration) -> Result<Cleared, ControlError> {
        let url = format!("{}/hicache/storage-backend/clear", self.base);
        let begun = env.now();
        let (mut least, mut fell) = (u64::MAX, begun);
        loop {
            let answer = self.post(&url).await?;
            if !answer.is_ok() {
                return Err(ControlError::Refused { url, says: answer.shown() });
            }
            let now = env.now();
            let took = now.since(begun);
            let left = self.master().await.map(|master| master.keys);
            if left == Some(0) {
                return Ok(Cleared { left, took });
            }
            if left.is_some_and(|left| left < least) {
                (least, fell) = (left.unwrap_or(0), now);
            }
            if now.since(fell) >= LEASE || took >= within {
                return Ok(Cleared { left, took });
            }
            env.sleep(if left.is_some() { AGAIN * 2 } else { LEASE }).await;
        }
    }

    /// Wait until the server has written back what it has to: L1 to L2, and L2 to L3 where there is one.
    pub async fn settle<E: Env>(&self, env: &E, within: Duration) -> Settled {
        /// Counters that stand still for so long will not move on.
        const STILL: Duration = Duration::from_secs(2);
        /// Between two looks.
        const LOOK: Duration = Duration::from_millis(50);
        let begun = env.now();
        let (mut before, mut since) = (None, begun);
        loop {
            let Some(now) = self.counters(true).await else {
                env.sleep(STILL.min(within)).await;
                return Settled::Unseen;
            };
            let at = env.now();
            let is_idle = now.now.running == 0 && now.now.queued == 0;
            let here = (now.backed_up, now.stored, now.requests);
            if before != Some(here) {
                (before, since) = (Some(here), at);
            } else if is_idle && now.stored >= now.backed_up {
                return Settled::Still;
            } else if at.since(since) >= STILL {
                return if now.stored == 0 {
                    Settled::Still
                } else {
                    Settled::Short(now.backed_up.saturating_sub(now.stored))
                };
            }
            if at.since(begun) >= within {
                return Settled::Busy;
            }
            env.sleep(LOOK).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_page_is_read_on_another_thread_than_that_of_the_load() {
        let reads = read("a 1\nb 2\n".to_owned(), |page| Some((page.clone(), std::thread::current().id()))).await;
        let (page, thread) = reads.expect("it is read");
        assert_eq!(page, Samples::parse("a 1\nb 2\n"));
        assert_ne!(thread, std::thread::current().id());
    }
}
