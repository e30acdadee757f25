//! The caches of a session's endpoints: what is known of each server, what it should have, and what it counts meanwhile.

use std::time::Duration;

use crate::engine::base::Mono;
use crate::engine::env::{Env, deadline};
use crate::engine::load::Ran;
use crate::engine::load::measure::Tally;
use crate::engine::load::server::observed::{Observed, Shortfalls, agree, compare, timeline};
use crate::engine::load::server::{Bell, Info, Point, Ring, Watch};
use crate::engine::load::session::Side;
use crate::engine::load::workload::foreseen::Book;

/// Between two scrapes.
const EVERY: Duration = Duration::from_secs(1);
/// A server that does not tell what it is by then is measured without.
const FIRST_WORD: Duration = Duration::from_secs(10);
/// So long the last requests of a pass may take to be counted.
const COUNTED: Duration = Duration::from_secs(3);

/// What is known of one endpoint.
#[derive(Debug, Default)]
pub(super) struct Sight {
    /// What the server says of itself.
    pub(super) info: Option<Info>,
    watch: Option<Watch>,
    /// When the pass before ended.
    ended: Option<Mono>,
    /// What cannot be seen of it.
    missing: Vec<String>,
    /// What control steps left to be doubted in the next pass.
    pub(super) doubts: Vec<String>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Caches {
    pub(super) sights: Vec<Sight>,
    pub(super) book: Book,
    /// Of each endpoint, the first one that is the same server: what one sends the other finds.
    servers: Vec<usize>,
}

impl Caches {
    /// Ask every server what it is, and begin to watch those that count.
    pub(super) async fn look<E: Env>(env: &E, sides: &[Side]) -> Caches {
        let mut caches = Caches::default();
        for (at, side) in sides.iter().enumerate() {
            let mut sight = Sight::default();
            let base = |side: &Side| side.server.as_ref().map(|server| server.base().to_owned());
            let same = sides[..at].iter().position(|other| side.server.is_some() && base(other) == base(side));
            caches.servers.push(same.unwrap_or(at));
            if let Some(server) = side.server.as_ref().filter(|_| same.is_none()) {
                let told = deadline(env, FIRST_WORD, server.info()).await;
                sight.info = told.ok().and_then(Result::ok).flatten();
                if sight.info.is_none() {
                    sight.missing.push("the server tells no settings of SGLang's (/server_info)".to_owned());
                }
                let page = server.page_size().or(sight.info.as_ref().and_then(|info| info.page_size));
                let has_storage = sight.info.as_ref().is_some_and(|info| info.storage.is_some());
                match page {
                    Some(page) => caches.book.know(at, page, has_storage),
                    None => {
                        sight.missing.push("the size of its pages, so no hits are expected (--page-size)".to_owned())
                    }
                }
                match deadline(env, FIRST_WORD, server.counters(false)).await {
                    Ok(Some(_)) => sight.watch = Some(Watch::start(env, server.clone(), EVERY)),
                    _ => sight
                        .missing
                        .push("its counters (SGLang with --enable-metrics has them; else --metrics-url)".to_owned()),
                }
                if server.has_master() && server.master().await.is_none() {
                    sight.missing.push("the counters of the master (--master-metrics)".to_owned());
                }
            }
            caches.sights.push(sight);
        }
        caches
    }

    /// The index under which the server of endpoint `at` is known here.
    pub(super) fn server(&self, at: usize) -> usize {
        self.servers.get(at).copied().unwrap_or(at)
    }

    /// A pass begins at `at`: what is counted from here on is its own.
    pub(super) async fn begins<E: Env>(&mut self, env: &E, at: usize) -> Option<Point> {
        self.book.on(at);
        // What was noted before it belongs to control steps.
        self.book.noted(at);
        match &self.sights.get(at)?.watch {
            Some(watch) => Some(watch.point(env).await),
            None => None,
        }
    }

    /// The pass at `at` is over. Without a tally, a part of it ran before, whose counters nobody has.
    pub(super) async fn ends<E: Env>(
        &mut self,
        env: &E,
        at: usize,
        from: Option<Point>,
        (tally, ran): (Option<&Tally>, &Ran),
        falls: Shortfalls,
    ) -> Option<Observed> {
        let sight = self.sights.get_mut(at)?;
        let before = sight.ended.replace(env.now());
        if sight.info.is_none() && sight.watch.is_none() && sight.missing.is_empty() {
            return None;
        }
        let mut observed = Observed {
            info: sight.info.clone(),
            missing: sight.missing.clone(),
            doubts: std::mem::take(&mut sight.doubts),
            ..Observed::default()
        };
        if let (Some(watch), Some(from)) = (&sight.watch, from) {
            let ended = env.now();
            let counted = loop {
                let to = watch.point(env).await;
                let (Some(before), Some(after)) = (&from.server, &to.server) else { break None };
                let counters = after.clone().since(before);
                let rows = tally.map_or_else(Vec::new, |tally| compare(tally, &counters));
                // What ended last may not have been counted yet; what failed may have been counted in part.
                let failed = tally.map_or(0, Tally::failed) + ran.unfinished;
                if agree(&rows) || env.now().since(ended) >= COUNTED || failed > 0 {
                    let master = to.master.zip(from.master).map(|(to, from)| to.since(&from));
                    break Some((counters, rows, master));
                }
                env.sleep(Duration::from_millis(100)).await;
            };
            let ring = watch.ring();
            observed.short = falls.explained(ran.started, before, &ring, sight.info.as_ref());
            observed.timeline = timeline(&ring, ran.started, ended);
            match counted {
                Some((counters, rows, master)) => {
                    observed.agrees = tally.is_some().then(|| agree(&rows));
                    (observed.counters, observed.compared, observed.master) = (Some(counters), rows, master);
                }
                None => observed.missing.push("its counters at the pass's start or end".to_owned()),
            }
        } else {
            observed.short = falls.explained(ran.started, before, &Ring::default(), sight.info.as_ref());
        }
        let noted = self.book.noted(at);
        let is_full = self.book.is_full(at);
        if let Some(noted) = &noted {
            observed.expectation = Some(noted.expectation.clone());
            (observed.is_near, observed.reuse) = (noted.is_near, noted.reuse.rows());
        }
        observed.judge(noted.as_ref(), is_full);
        Some(observed)
    }

    /// What is rung when a request got too little, so that the counters are looked at at once.
    pub(super) fn bell(&self, at: usize) -> Option<Bell> {
        Some(self.sights.get(at)?.watch.as_ref()?.bell())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::env::RealEnv;
    use crate::engine::http::Fetcher;
    use crate::engine::load::server::Server;
    use crate::engine::load::session::tests::side;

    #[tokio::test]
    async fn endpoints_that_are_the_same_server_are_known_as_one() {
        let of = |base: &str| {
            let fetcher = Fetcher::new(false, Duration::from_secs(1), 1 << 10).expect("a client");
            let mut side = side(100);
            side.server = Some(Server::new(base, Vec::new(), None, fetcher));
            side
        };
        let sides =
            [of("http://127.0.0.1:1"), side(100), of("http://127.0.0.1:2"), of("http://127.0.0.1:1/"), side(100)];
        let caches = Caches::look(&RealEnv::new(), &sides).await;
        assert_eq!((0..5).map(|at| caches.server(at)).collect::<Vec<_>>(), [0, 1, 2, 0, 4]);
        assert!(caches.sights[3].missing.is_empty() && !caches.sights[0].missing.is_empty());
    }
}
