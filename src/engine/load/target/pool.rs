//! A target's connection pool. Connections are opened before a run and reused.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::stream;
use futures_util::{StreamExt, TryStreamExt};

use crate::LatencyHistogram;
use crate::answer::TokenArrival;
use crate::target::connection::{ExchangeEnd, Http1Connection};
use crate::target::http2::Http2Connection;
use crate::target::response::ResponseAccumulator;
use crate::target::wire::{ConnectError, NewConnection, WireStream};
use crate::target::{EncodedRequest, Exchange, LoadTarget};
use mcctl_base::Mono;
use mcctl_sys::env::Env;

/// Maximum number of connections opened at a time. Equals the listen backlog of common servers.
const OPENING_MAX: usize = 64;

/// A pool of HTTP/1.1 or HTTP/2 connections.
pub struct HttpConnectionPool<E: Env + Unpin> {
    env: E,
    target: LoadTarget,
    start: Mono,
    idle: Mutex<Vec<Http1Connection<E>>>,
    lines: Mutex<Vec<Http2Connection<E>>>,
    /// Locked while an HTTP/2 connection is being opened, so that concurrent exchanges share it.
    opening: tokio::sync::Mutex<()>,
    resent: AtomicU64,
    opened: AtomicU64,
    delays: Mutex<LatencyHistogram>,
    /// Number of reads for which the kernel provided an arrival timestamp.
    timestamped: AtomicU64,
}

/// A connection taken from the pool.
enum PooledConnection<E: Env + Unpin> {
    Http1(Http1Connection<E>),
    Http2(Http2Connection<E>),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<E: Env + Unpin> HttpConnectionPool<E> {
    /// Opens a pool with connections for `exchanges` concurrent exchanges. Connection errors are
    /// ignored here, because the first request will report them.
    pub async fn open(env: E, target: LoadTarget, exchanges: usize) -> HttpConnectionPool<E> {
        let start = env.now();
        let pool = HttpConnectionPool {
            env,
            target,
            start,
            idle: Mutex::default(),
            lines: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
            resent: AtomicU64::new(0),
            opened: AtomicU64::new(0),
            delays: Mutex::default(),
            timestamped: AtomicU64::new(0),
        };
        let wanted = if pool.target.protocol.http2 {
            exchanges.div_ceil(pool.target.protocol.streams.max(1))
        } else {
            exchanges
        };
        // Open a single connection first, to find out whether the server is reachable.
        if wanted > 0 && pool.add().await.is_ok() {
            // Stop at the first failure instead of waiting for a timeout on every connection.
            let more = stream::iter(1..wanted).map(|_| pool.add()).buffer_unordered(OPENING_MAX);
            let _ = more.try_for_each(|()| std::future::ready(Ok(()))).await;
        }
        pool
    }

    /// Restarts the clock. Times are relative to the moment of this call.
    pub fn start_clock(&mut self) -> Mono {
        self.start = self.env.now();
        self.start
    }

    /// Returns the target of the connections.
    pub fn target(&self) -> &LoadTarget {
        &self.target
    }

    /// Returns the number of requests that were resent because their idle connection had been
    /// closed.
    pub fn resent(&self) -> u64 {
        self.resent.load(Ordering::Relaxed)
    }

    /// Returns the number of connections opened.
    pub fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    /// Returns the number of reads for which the kernel provided an arrival timestamp. Delaying
    /// such reads does not change token times.
    pub fn timestamped_reads(&self) -> u64 {
        self.timestamped.load(Ordering::Relaxed)
    }

    /// Returns the distribution of the client read delay.
    pub fn delays(&self) -> LatencyHistogram {
        lock(&self.delays).clone()
    }

    /// Opens one more connection and leaves it idle.
    async fn add(&self) -> Result<(), ConnectError> {
        match self.fresh().await? {
            PooledConnection::Http1(connection) => lock(&self.idle).push(connection),
            PooledConnection::Http2(line) => lock(&self.lines).push(line),
        }
        Ok(())
    }

    async fn fresh(&self) -> Result<PooledConnection<E>, ConnectError> {
        let NewConnection { wire, stamps, http2 } = WireStream::open(&self.env, &self.target).await?;
        self.opened.fetch_add(1, Ordering::Relaxed);
        Ok(match http2 {
            true => PooledConnection::Http2(Http2Connection::open(&self.env, &self.target, wire, stamps).await?),
            false => PooledConnection::Http1(Http1Connection::new(self.env.clone(), wire, stamps)),
        })
    }

    /// Returns an open connection and whether it has been used before.
    async fn take(&self) -> Result<(PooledConnection<E>, bool), ConnectError> {
        if let Some(idle) = self.kept() {
            return Ok((idle, true));
        }
        if !self.target.protocol.http2 {
            return Ok((self.fresh().await?, false));
        }
        let _opening = self.opening.lock().await;
        if let Some(line) = self.kept() {
            return Ok((line, true));
        }
        let taken = self.fresh().await?;
        if let PooledConnection::Http2(line) = &taken {
            lock(&self.lines).push(line.clone());
        }
        Ok((taken, false))
    }

    /// Returns an idle or shareable connection, if one exists.
    fn kept(&self) -> Option<PooledConnection<E>> {
        let mut idle = lock(&self.idle);
        while let Some(mut connection) = idle.pop() {
            if connection.is_open() {
                return Some(PooledConnection::Http1(connection));
            }
        }
        drop(idle);
        let mut lines = lock(&self.lines);
        lines.retain(Http2Connection::is_open);
        let least = lines.iter().min_by_key(|line| line.streams())?;
        (least.streams() < self.target.protocol.streams).then(|| PooledConnection::Http2(least.clone()))
    }

    /// Performs an exchange that started at `begun`. `on_arrival` is called for every token
    /// arrival.
    ///
    /// If an idle connection turns out to be closed before the request has been written, the
    /// request is sent once more on a new connection.
    pub async fn exchange(
        &self,
        request: EncodedRequest,
        begun: Duration,
        on_arrival: impl FnMut(TokenArrival),
    ) -> Exchange {
        let mut response = ResponseAccumulator::new(self.target.answer_reader(), self.start, begun, on_arrival);
        let delays = |delay: Duration| {
            lock(&self.delays).record(delay, 1);
            self.timestamped.fetch_add(u64::from(!delay.is_zero()), Ordering::Relaxed);
        };
        let mut again = false;
        loop {
            let taken = match again {
                false => self.take().await,
                true => self.fresh().await.map(|taken| (taken, false)),
            };
            let end = match taken {
                Err(error) => {
                    return Exchange::without_connection(begun, self.env.now().since(self.start), error.to_string());
                }
                Ok((PooledConnection::Http1(mut connection), _)) => {
                    let end = connection.exchange(&self.target, &request, &mut response, delays).await;
                    if connection.is_open() {
                        lock(&self.idle).push(connection);
                    }
                    end
                }
                Ok((PooledConnection::Http2(mut line), kept)) => {
                    let _place = line.place();
                    line.exchange(&self.target, request.clone(), &mut response, kept, delays).await
                }
            };
            match end {
                ExchangeEnd::Unsent if !again => {
                    again = true;
                    self.resent.fetch_add(1, Ordering::Relaxed);
                }
                ExchangeEnd::Unsent => unreachable!("a new connection is never idle"),
                ExchangeEnd::Ended(at, outcome) => return response.finish(at, outcome),
            }
        }
    }
}
