//! The connections to a target: opened ahead, kept, and opened anew.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::stream;
use futures_util::{StreamExt, TryStreamExt};

use crate::engine::base::Mono;
use crate::engine::env::Env;
use crate::engine::load::Histogram;
use crate::engine::load::answer::Arrival;
use crate::engine::load::target::connection::{Connection, End};
use crate::engine::load::target::hearing::Hearing;
use crate::engine::load::target::http2::Line;
use crate::engine::load::target::wire::{Opened, Wire};
use crate::engine::load::target::{Asking, Exchange, Target};

/// Connections that are opened ahead at a time: a server's backlog takes so many.
const OPENING_MAX: usize = 64;

/// See the module.
pub struct Pool<E: Env + Unpin> {
    env: E,
    target: Target,
    start: Mono,
    idle: Mutex<Vec<Connection<E>>>,
    lines: Mutex<Vec<Line<E>>>,
    /// Held while a line is opened, so that all who wait for one do not open one each.
    opening: tokio::sync::Mutex<()>,
    resent: AtomicU64,
    opened: AtomicU64,
    delays: Mutex<Histogram>,
    /// Reads of bytes whose arrival the system had noted.
    noted: AtomicU64,
}

/// A connection to use.
enum Taken<E: Env + Unpin> {
    One(Connection<E>),
    Two(Line<E>),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<E: Env + Unpin> Pool<E> {
    /// A pool with connections for `exchanges` at once, if the server takes them: one that takes none is met again by the first
    /// request, and told there. Times count from `start`.
    pub async fn open(env: E, target: Target, exchanges: usize) -> Pool<E> {
        let start = env.now();
        let pool = Pool {
            env,
            target,
            start,
            idle: Mutex::default(),
            lines: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
            resent: AtomicU64::new(0),
            opened: AtomicU64::new(0),
            delays: Mutex::default(),
            noted: AtomicU64::new(0),
        };
        let wanted = if pool.target.via.http2 { exchanges.div_ceil(pool.target.via.streams.max(1)) } else { exchanges };
        // One first, to learn whether there is anybody.
        if wanted > 0 && pool.add().await.is_ok() {
            // A server that takes no more is not waited for as often as there are connections.
            let more = stream::iter(1..wanted).map(|_| pool.add()).buffer_unordered(OPENING_MAX);
            let _ = more.try_for_each(|()| std::future::ready(Ok(()))).await;
        }
        pool
    }

    /// The run starts now: times count from here on.
    pub fn starts(&mut self) -> Mono {
        self.start = self.env.now();
        self.start
    }

    /// Where its connections lead.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Requests that were sent a second time, since their connection had been closed while it was idle.
    pub fn resent(&self) -> u64 {
        self.resent.load(Ordering::Relaxed)
    }

    /// Connections that were opened in all.
    pub fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    /// Reads so far of bytes whose arrival the system had noted: when these are read does not change their times.
    pub fn noted(&self) -> u64 {
        self.noted.load(Ordering::Relaxed)
    }

    /// How long bytes had lain in the system when they were read.
    pub fn delays(&self) -> Histogram {
        lock(&self.delays).clone()
    }

    /// One more connection, left idle.
    async fn add(&self) -> Result<(), String> {
        match self.fresh().await? {
            Taken::One(connection) => lock(&self.idle).push(connection),
            Taken::Two(line) => lock(&self.lines).push(line),
        }
        Ok(())
    }

    async fn fresh(&self) -> Result<Taken<E>, String> {
        let Opened { wire, stamps, http2 } = Wire::open(&self.env, &self.target).await?;
        self.opened.fetch_add(1, Ordering::Relaxed);
        Ok(match http2 {
            true => Taken::Two(Line::open(&self.env, &self.target, wire, stamps).await?),
            false => Taken::One(Connection::new(self.env.clone(), wire, stamps)),
        })
    }

    /// An open connection, and whether it was used before.
    async fn take(&self) -> Result<(Taken<E>, bool), String> {
        if let Some(idle) = self.kept() {
            return Ok((idle, true));
        }
        if !self.target.via.http2 {
            return Ok((self.fresh().await?, false));
        }
        let _opening = self.opening.lock().await;
        if let Some(line) = self.kept() {
            return Ok((line, true));
        }
        let taken = self.fresh().await?;
        if let Taken::Two(line) = &taken {
            lock(&self.lines).push(line.clone());
        }
        Ok((taken, false))
    }

    /// A connection that is there.
    fn kept(&self) -> Option<Taken<E>> {
        let mut idle = lock(&self.idle);
        while let Some(mut connection) = idle.pop() {
            if connection.is_open() {
                return Some(Taken::One(connection));
            }
        }
        drop(idle);
        let mut lines = lock(&self.lines);
        lines.retain(Line::is_open);
        let least = lines.iter().min_by_key(|line| line.streams())?;
        (least.streams() < self.target.via.streams).then(|| Taken::Two(least.clone()))
    }

    /// Send `asking` and hear the answer; `told` hears of tokens as they come. The exchange was taken up at `begun`.
    ///
    /// A request whose kept connection turns out to have been closed before the request was written is sent once more, on a new one.
    pub async fn exchange(&self, asking: Asking, begun: Duration, told: impl FnMut(Arrival)) -> Exchange {
        let mut hearing = Hearing::new((self.target.dialect, self.target.stream), self.start, begun, told);
        let delays = |delay: Duration| {
            lock(&self.delays).record(delay, 1);
            self.noted.fetch_add(u64::from(!delay.is_zero()), Ordering::Relaxed);
        };
        let mut again = false;
        loop {
            let taken = match again {
                false => self.take().await,
                true => self.fresh().await.map(|taken| (taken, false)),
            };
            let end = match taken {
                Err(why) => return Exchange::without_connection(begun, self.env.now().since(self.start), why),
                Ok((Taken::One(mut connection), _)) => {
                    let end = connection.exchange(&self.target, &asking, &mut hearing, delays).await;
                    if connection.is_open() {
                        lock(&self.idle).push(connection);
                    }
                    end
                }
                Ok((Taken::Two(mut line), kept)) => {
                    let _place = line.place();
                    line.exchange(&self.target, asking.clone(), &mut hearing, kept, delays).await
                }
            };
            match end {
                End::Unsent if !again => {
                    again = true;
                    self.resent.fetch_add(1, Ordering::Relaxed);
                }
                End::Unsent => unreachable!("a fresh connection was not closed while it was idle"),
                End::Ended(at, outcome) => return hearing.finish(at, outcome),
            }
        }
    }
}
