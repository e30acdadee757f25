//! The counters over time, on the clock of the load: at the start, each second, at the end of each pass, and at once when a request
//! got less from the caches than it should have. Memory is bounded: a long run keeps fewer points.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tokio::sync::Notify;

use crate::engine::base::Mono;
use crate::engine::env::{Env, deadline};
use crate::engine::load::server::{Counters, Master, Server};

/// Points that are kept at most.
pub const POINTS_MAX: usize = 4096;
/// Between two scrapes at least, however many are wanted.
const LEAST_GAP: Duration = Duration::from_millis(20);

/// What was counted at an instant.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// When the pages had been read.
    #[serde(skip)]
    pub at: Mono,
    /// The server's.
    pub server: Option<Counters>,
    /// The master's.
    pub master: Option<Master>,
}

/// Points in the order of time. When there are too many, every second one goes, but for the first, the last and those that mark
/// something. Pure.
#[derive(Clone, Debug, Default)]
pub struct Ring {
    points: Vec<(Point, bool)>,
    /// The least by which L3 was ever behind L2: tokens that will never be written.
    least_behind: Option<i64>,
}

/// By how many tokens L3 is behind what L2 was given.
fn behind(counters: &Counters) -> i64 {
    let signed = |tokens: u64| i64::try_from(tokens).unwrap_or(i64::MAX);
    signed(counters.backed_up) - signed(counters.stored)
}

impl Ring {
    /// Add a point; `marks` when it is to stay (the end of a pass, a shortfall).
    pub fn push(&mut self, point: Point, marks: bool) {
        if self.points.last().is_some_and(|(last, _)| last.at > point.at) {
            return;
        }
        if let Some(counters) = &point.server {
            self.least_behind = Some(self.least_behind.unwrap_or(i64::MAX).min(behind(counters)));
        }
        self.points.push((point, marks));
        if self.points.len() > POINTS_MAX {
            // Those that mark something give way only where nothing else is left.
            let spare = self.points.iter().filter(|(_, marks)| !marks).count() >= POINTS_MAX / 8;
            let (mut place, last) = (0, self.points.len() - 1);
            self.points.retain(|(_, marks)| {
                let at = place;
                place += 1;
                at == 0 || at == last || (*marks && spare) || at % 2 == 0
            });
        }
    }

    /// The last point at or before `at`; the first of all where there is none.
    pub fn before(&self, at: Mono) -> Option<&Point> {
        let place = self.points.partition_point(|(point, _)| point.at <= at);
        self.points.get(place.saturating_sub(1)).map(|(point, _)| point)
    }

    /// The first point at or after `at`; the last of all where there is none.
    pub fn after(&self, at: Mono) -> Option<&Point> {
        let place = self.points.partition_point(|(point, _)| point.at < at);
        self.points.get(place).or(self.points.last()).map(|(point, _)| point)
    }

    /// The points from `from` to `to`.
    pub fn between(&self, from: Mono, to: Mono) -> impl Iterator<Item = &Point> {
        self.points.iter().map(|(point, _)| point).filter(move |point| point.at >= from && point.at <= to)
    }

    /// Tokens that were still to be written to L3 when a request came, at `came`: as they were looked at last before it, if that was not
    /// before `since`, when what it asks for was answered. Else as they were looked at next, without the request's `own` tokens, which
    /// may be among them then.
    pub fn unwritten_at(&self, since: Mono, came: Mono, own: u64) -> u64 {
        let last = self.before(came).filter(|point| point.at >= since && point.at <= came);
        match last {
            Some(point) => self.unwritten(point),
            None => self.after(came).map_or(0, |point| self.unwritten(point).saturating_sub(own)),
        }
    }

    /// Tokens that at `point` were still to be written to L3: by how much it was behind L2 then, beyond what it always was.
    fn unwritten(&self, point: &Point) -> u64 {
        let (Some(counters), Some(least)) = (&point.server, self.least_behind) else { return 0 };
        u64::try_from(behind(counters).saturating_sub(least)).unwrap_or(0)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.points.len()
    }

    /// Is there none?
    pub fn is_empty(&self) -> bool {
        self.points.is_empty()
    }
}

/// What the scraper and those who ask it share.
#[derive(Debug, Default)]
struct Shared {
    ring: Mutex<Ring>,
    wanted: Notify,
}

impl Shared {
    fn push(&self, point: Point, marks: bool) {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner).push(point, marks);
    }
}

/// Asks for a point as soon as possible; nobody waits for it.
#[derive(Clone, Debug)]
pub struct Bell(Arc<Shared>);

impl Bell {
    /// Ask.
    pub fn ring(&self) {
        self.0.wanted.notify_one();
    }
}

/// Scrapes a server's pages while it lives.
#[derive(Debug)]
pub struct Watch {
    server: Server,
    shared: Arc<Shared>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn point<E: Env>(env: &E, server: &Server, woken: bool) -> Point {
    let (counters, master) = tokio::join!(server.counters(woken), server.master());
    Point { at: env.now(), server: counters, master }
}

impl Watch {
    /// Scrape `server` `every` so often, from now on.
    pub fn start<E: Env>(env: &E, server: Server, every: Duration) -> Watch {
        let shared = Arc::new(Shared::default());
        let (env, scraped, mine) = (env.clone(), server.clone(), Arc::clone(&shared));
        let task = tokio::spawn(async move {
            loop {
                let wanted = deadline(&env, every, mine.wanted.notified()).await.is_ok();
                mine.push(point(&env, &scraped, wanted).await, wanted);
                env.sleep(LEAST_GAP).await;
            }
        });
        Watch { server, shared, task }
    }

    /// A point now, marked.
    pub async fn point<E: Env>(&self, env: &E) -> Point {
        let point = point(env, &self.server, true).await;
        self.shared.push(point.clone(), true);
        point
    }

    /// What asks for a point as soon as possible.
    pub fn bell(&self) -> Bell {
        Bell(Arc::clone(&self.shared))
    }

    /// The points so far.
    pub fn ring(&self) -> Ring {
        self.shared.ring.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(ms: u64) -> Point {
        Point { at: Mono::from_ms(ms), server: None, master: None }
    }

    #[test]
    fn a_long_run_keeps_its_ends_what_marks_something_and_no_more_than_the_bound() {
        let mut ring = Ring::default();
        for ms in 0..100_000 {
            ring.push(point(ms), ms % 1000 == 7);
        }
        assert!(ring.len() <= POINTS_MAX, "{}", ring.len());
        assert_eq!(
            (ring.points[0].0.at, ring.points.last().map(|p| p.0.at)),
            (Mono::ZERO, Some(Mono::from_ms(99_999)))
        );
        assert_eq!(ring.points.iter().filter(|(_, marks)| *marks).count(), 100);
        let mut all = Ring::default();
        (0..20_000).for_each(|ms| all.push(point(ms), true));
        assert!(all.len() <= POINTS_MAX);
    }

    #[test]
    fn an_instant_lies_between_the_points_around_it() {
        let mut ring = Ring::default();
        assert_eq!((ring.before(Mono::ZERO), ring.after(Mono::ZERO)), (None, None));
        for ms in [10, 20, 30] {
            ring.push(point(ms), false);
        }
        let at = |found: Option<&Point>| found.map(|point| point.at.0 / 1_000_000);
        assert_eq!((at(ring.before(Mono::from_ms(25))), at(ring.after(Mono::from_ms(25)))), (Some(20), Some(30)));
        assert_eq!((at(ring.before(Mono::from_ms(5))), at(ring.after(Mono::from_ms(35)))), (Some(10), Some(30)));
        assert_eq!((at(ring.before(Mono::from_ms(20))), at(ring.after(Mono::from_ms(20)))), (Some(20), Some(20)));
        assert_eq!(ring.between(Mono::from_ms(10), Mono::from_ms(20)).count(), 2);
    }
}
