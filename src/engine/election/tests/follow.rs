//! Following the leader of a cluster in a fake etcd.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, missing_docs, reason = "tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use mcctl_base::{HostPort, Mono, Unix};
use mcctl_election::{EtcdElection, follow};
use mcctl_net::etcd::{EtcdClient, EtcdOptions};
use mcctl_net::http::{self, Handler, HttpLimits, HttpRequest, HttpServer, Response, ResponseBody, StatusCode, answer};
use mcctl_sys::env::{Env, RealEnv, deadline};

/// The follower's pause after a failed watch.
const READ_PAUSE: Duration = Duration::from_secs(1);

/// The real environment, in which the pause after a failure does not end, and all other waits are
/// short.
#[derive(Clone, Default)]
struct PausedEnv {
    real: RealEnv,
    pauses: Arc<AtomicUsize>,
}

impl Env for PausedEnv {
    type Net = <RealEnv as Env>::Net;
    fn net(&self) -> &Self::Net {
        self.real.net()
    }
    fn now(&self) -> Mono {
        self.real.now()
    }
    fn unix(&self) -> Unix {
        self.real.unix()
    }
    async fn sleep(&self, duration: Duration) {
        if duration == READ_PAUSE {
            self.pauses.fetch_add(1, Ordering::Relaxed);
            std::future::pending().await
        }
        self.real.sleep(Duration::from_millis(10)).await;
    }
    fn rng(&self) -> u64 {
        self.real.rng()
    }
}

/// A fake etcd without keys. Counts requests.
struct EmptyEtcd {
    can_watch: bool,
    reads: AtomicUsize,
    watches: AtomicUsize,
}

impl Handler for EmptyEtcd {
    async fn handle(&self, request: HttpRequest) -> Response {
        if request.path() != "/v3/watch" {
            self.reads.fetch_add(1, Ordering::Relaxed);
            let range = r#"{"response_range":{"header":{"revision":"5"}}}"#;
            let body = format!(r#"{{"header":{{"revision":"5"}},"succeeded":true,"responses":[{range},{range}]}}"#);
            return answer(StatusCode::OK, "application/json", body);
        }
        self.watches.fetch_add(1, Ordering::Relaxed);
        if !self.can_watch {
            return answer(StatusCode::SERVICE_UNAVAILABLE, "", "");
        }
        let mut first = Some(bytes::Bytes::from_static(b"{\"result\":{\"created\":true}}\n"));
        let lines = move |_: &mut std::task::Context<'_>| match first.take() {
            Some(line) => Poll::Ready(Some(line)),
            None => Poll::Pending,
        };
        answer(StatusCode::OK, "application/json", ResponseBody::Streamed(Box::new(lines)))
    }
}

async fn start(can_watch: bool) -> (Arc<EmptyEtcd>, HttpServer, EtcdElection) {
    let etcd = Arc::new(EmptyEtcd { can_watch, reads: AtomicUsize::new(0), watches: AtomicUsize::new(0) });
    let here = HostPort::new("127.0.0.1", 0);
    let server = http::start(RealEnv::new(), &here, HttpLimits::SMALL, etcd.clone()).await.expect("a free port");
    let options = EtcdOptions::parse(&server.at().to_string(), Duration::from_secs(5)).expect("an address");
    (etcd, server, EtcdElection::new(EtcdClient::new(options).expect("a client"), "c"))
}

async fn wait_until(is_done: impl Fn() -> bool) {
    let env = RealEnv::new();
    let wait = async {
        while !is_done() {
            env.sleep(Duration::from_millis(5)).await;
        }
    };
    deadline(&env, Duration::from_secs(30), wait).await.expect("within the limit");
}

#[tokio::test]
async fn a_watch_that_ends_without_a_change_is_followed_by_the_next() {
    let (etcd, _server, election) = start(true).await;
    let env = PausedEnv::default();
    let _followed = follow(env.clone(), election).await.expect("etcd responds");
    wait_until(|| etcd.watches.load(Ordering::Relaxed) >= 3).await;
    assert_eq!(env.pauses.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn the_key_is_not_read_before_the_pause_after_a_failed_watch() {
    let (etcd, _server, election) = start(false).await;
    let env = PausedEnv::default();
    let _followed = follow(env.clone(), election).await.expect("etcd responds");
    wait_until(|| env.pauses.load(Ordering::Relaxed) == 1).await;
    assert_eq!((etcd.reads.load(Ordering::Relaxed), etcd.watches.load(Ordering::Relaxed)), (1, 1));
}
