//! The caches of a session's endpoints: server settings, expected contents and counters.

use std::time::Duration;

use crate::RunStats;
use crate::ceiling::{HitCeiling, TierReach};
use crate::measure::Tally;
use crate::plan::{UnknownSizes, sizes_of};
use crate::server::observed::{ServerObservation, ShortfallWatcher, agree, compare, timeline};
use crate::server::{
    CounterHistory, CounterSample, MissingData, ObservationCaveat, ScrapeTrigger, Scraper, ServerInfo,
};
use crate::session::LoadEndpoint;
use crate::workload::expected_hits::CacheModels;
use mcctl_base::Mono;
use mcctl_sys::env::{Env, deadline};

const EVERY: Duration = Duration::from_secs(1);
/// If a server does not report its settings within this time, it is measured without them.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Maximum time to wait for a pass's last requests to appear in the counters.
const COUNTED: Duration = Duration::from_secs(3);

/// State kept while observing one endpoint.
#[derive(Debug, Default)]
pub(super) struct EndpointCaches {
    pub(super) info: Option<ServerInfo>,
    watch: Option<Scraper>,
    /// End of the previous pass.
    ended: Option<Mono>,
    /// Data that the server does not provide.
    missing: Vec<MissingData>,
    /// Sizes of the caches.
    sizes: Option<Result<TierReach, UnknownSizes>>,
    /// Caveats from control steps, reported with the next pass.
    pub(super) caveats: Vec<ObservationCaveat>,
}

/// A pass whose last request has ended.
pub(super) struct EndedPass<'a> {
    /// Index under which the endpoint's server is tracked.
    pub(super) server: usize,
    /// The server's counters at the start of the pass.
    pub(super) began: Option<CounterSample>,
    /// `None` if part of the pass ran before an interruption: the counters for that part are
    /// unknown.
    pub(super) tally: Option<&'a Tally>,
    pub(super) ran: &'a RunStats,
    pub(super) shortfalls: ShortfallWatcher,
}

/// State kept while observing all endpoints of a session.
#[derive(Debug, Default)]
pub(super) struct SessionCaches {
    pub(super) endpoints: Vec<EndpointCaches>,
    pub(super) book: CacheModels,
    /// For each endpoint, the index of the first endpoint on the same server. Endpoints on the same
    /// server share a cache.
    servers: Vec<usize>,
}

impl SessionCaches {
    /// Queries every server's settings and starts scraping the servers that expose counters.
    pub(super) async fn probe<E: Env>(env: &E, sides: &[LoadEndpoint]) -> SessionCaches {
        let mut caches = SessionCaches::default();
        for (at, side) in sides.iter().enumerate() {
            let mut endpoint = EndpointCaches::default();
            let base = |side: &LoadEndpoint| side.server.as_ref().map(|server| server.base().to_owned());
            let same = sides[..at].iter().position(|other| side.server.is_some() && base(other) == base(side));
            caches.servers.push(same.unwrap_or(at));
            if let Some(server) = side.server.as_ref().filter(|_| same.is_none()) {
                let info = deadline(env, ANSWER_LIMIT, server.info()).await;
                endpoint.info = info.ok().and_then(Result::ok).flatten();
                if endpoint.info.is_none() {
                    endpoint.missing.push(MissingData::ServerInfo);
                }
                let page = server.page_size().or(endpoint.info.as_ref().and_then(|info| info.page_size));
                let has_storage = endpoint.info.as_ref().is_some_and(|info| info.storage.is_some());
                match page {
                    Some(page) => caches.book.add_server(at, page, has_storage),
                    None => endpoint.missing.push(MissingData::PageSize),
                }
                let counters = deadline(env, ANSWER_LIMIT, server.counters(false)).await.ok().flatten();
                match &counters {
                    Some(_) => endpoint.watch = Some(Scraper::start(env, server.clone(), EVERY)),
                    None => endpoint.missing.push(MissingData::Counters),
                }
                let master = server.master().await;
                if server.has_master() && master.is_none() {
                    endpoint.missing.push(MissingData::StoreCounters);
                }
                let sizes = sizes_of(endpoint.info.as_ref(), counters.map(|counters| counters.now.host_total));
                let reach = sizes.map(|sizes| {
                    let info = endpoint.info.as_ref();
                    let per_token = info.and_then(|info| info.bytes_per_token);
                    let storage = master.zip(per_token).map(|(master, bytes)| master.capacity_bytes as f64 / bytes);
                    let policy = info.and_then(|info| info.write_policy.as_deref());
                    TierReach::of(&sizes, policy, storage.map(|tokens| tokens as u64))
                });
                if let Ok(reach) = reach {
                    caches.book.set_reach(at, reach);
                }
                endpoint.sizes = Some(reach);
            }
            caches.endpoints.push(endpoint);
        }
        caches
    }

    /// Returns the index under which endpoint `at`'s server is tracked.
    pub(super) fn server(&self, at: usize) -> usize {
        self.servers.get(at).copied().unwrap_or(at)
    }

    /// Starts a pass at endpoint `at`. Only later counts are attributed to it.
    pub(super) async fn pass_started<E: Env>(&mut self, env: &E, at: usize) -> Option<CounterSample> {
        self.book.select(at);
        // Earlier statistics belong to control steps.
        self.book.take_statistics(at);
        match &self.endpoints.get(at)?.watch {
            Some(watch) => Some(watch.point(env).await),
            None => None,
        }
    }

    /// Ends `pass` and returns what was observed on the server.
    pub(super) async fn pass_ended<E: Env>(&mut self, env: &E, pass: EndedPass<'_>) -> Option<ServerObservation> {
        let EndedPass { server: at, began: from, tally, ran, shortfalls } = pass;
        let endpoint = self.endpoints.get_mut(at)?;
        let before = endpoint.ended.replace(env.now());
        if endpoint.info.is_none() && endpoint.watch.is_none() && endpoint.missing.is_empty() {
            return None;
        }
        let mut observed = ServerObservation {
            info: endpoint.info.clone(),
            missing: endpoint.missing.clone(),
            caveats: std::mem::take(&mut endpoint.caveats),
            ..ServerObservation::default()
        };
        if let (Some(watch), Some(from)) = (&endpoint.watch, from) {
            let ended = env.now();
            let counted = loop {
                let to = watch.point(env).await;
                let (Some(before), Some(after)) = (&from.server, &to.server) else { break None };
                let counters = after.clone().since(before);
                let rows = tally.map_or_else(Vec::new, |tally| compare(tally, &counters));
                // The last requests may not be counted yet, and failed requests may be counted in
                // part.
                let failed = tally.map_or(0, Tally::failed) + ran.unfinished;
                if agree(&rows) || env.now().since(ended) >= COUNTED || failed > 0 {
                    let master = to.master.zip(from.master).map(|(to, from)| to.since(&from));
                    break Some((counters, rows, master));
                }
                env.sleep(Duration::from_millis(100)).await;
            };
            let ring = watch.history();
            observed.short = shortfalls.explained(ran.started, before, &ring, endpoint.info.as_ref());
            observed.timeline = timeline(&ring, ran.started, ended);
            match counted {
                Some((counters, rows, master)) => {
                    observed.agrees = tally.is_some().then(|| agree(&rows));
                    observed.counters = Some(counters);
                    observed.compared = rows;
                    observed.master = master;
                }
                None => observed.missing.push(MissingData::CountersOfPass),
            }
        } else {
            observed.short =
                shortfalls.explained(ran.started, before, &CounterHistory::default(), endpoint.info.as_ref());
        }
        let noted = self.book.take_statistics(at);
        let is_full = self.book.is_full(at);
        if let Some(noted) = &noted {
            observed.expectation = Some(noted.expectation.clone());
            observed.is_near = noted.is_near;
            observed.reuse = noted.reuse.rows();
            let sizes = endpoint.sizes.unwrap_or(Err(UnknownSizes::NoCalls));
            observed.ceiling = HitCeiling::of(&noted.ceiling, sizes);
        }
        observed.judge(noted.as_ref(), is_full);
        Some(observed)
    }

    /// Returns a trigger that scrapes immediately after a shortfall.
    pub(super) fn trigger(&self, at: usize) -> Option<ScrapeTrigger> {
        Some(self.endpoints.get(at)?.watch.as_ref()?.trigger())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::ServerClient;
    use crate::session::tests::side;
    use mcctl_net::http::Fetcher;
    use mcctl_sys::env::RealEnv;

    #[tokio::test]
    async fn endpoints_of_the_same_server_share_their_state() {
        let of = |base: &str| {
            let fetcher = Fetcher::new(false, Duration::from_secs(1), 1 << 10).expect("a client");
            let mut side = side(100);
            side.server = Some(ServerClient::new(base, Vec::new(), None, fetcher));
            side
        };
        let sides =
            [of("http://127.0.0.1:1"), side(100), of("http://127.0.0.1:2"), of("http://127.0.0.1:1/"), side(100)];
        let caches = SessionCaches::probe(&RealEnv::new(), &sides).await;
        assert_eq!((0..5).map(|at| caches.server(at)).collect::<Vec<_>>(), [0, 1, 2, 0, 4]);
        assert!(caches.endpoints[3].missing.is_empty() && !caches.endpoints[0].missing.is_empty());
    }
}
