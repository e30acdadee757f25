//! Where the nodes of a cluster are found, when nobody said: the metadata service in its usual place, if it knows them.

use std::time::Duration;

use crate::engine::base::HostPort;
use crate::engine::http::Fetcher;
use crate::engine::metadata::{KeySpace, escape};

/// Where a metadata service listens unless it was told otherwise.
const PORT: u16 = 8080;
/// It is near, or not there.
const PATIENCE: Duration = Duration::from_secs(1);
/// A list of segments, or a record.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// The URL of the metadata service on port 8080 of `host`, the master's, if it has the record of a segment that the master lists.
pub(super) async fn in_the_usual_place(admin: &HostPort, host: &str) -> Option<String> {
    at(admin, &HostPort::new(host, PORT)).await
}

async fn at(admin: &HostPort, service: &HostPort) -> Option<String> {
    let fetcher = Fetcher::new(false, PATIENCE, ANSWER_BYTES_MAX).ok()?;
    let listed = fetcher.get(&format!("http://{admin}/get_all_segments")).await.ok().filter(|answer| answer.is_ok())?;
    let segment = listed.body.lines().next().filter(|name| !name.is_empty())?;
    let keys = KeySpace::new(std::env::var("MC_METADATA_CLUSTER_ID").ok().as_deref());
    let url = format!("http://{service}/metadata");
    let record = fetcher.get(&format!("{url}?key={}", escape(&keys.ram_key(segment)))).await.ok()?;
    record.is_ok().then_some(url)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::engine::env::RealEnv;
    use crate::engine::http::{self, Handler, Limits, Request, Response, StatusCode, answer};

    /// Lists `a:1`, and has its record when `knows`.
    struct Both {
        knows: bool,
    }

    impl Handler for Both {
        async fn handle(&self, request: Request) -> Response {
            match (request.path(), request.param("key")) {
                ("/get_all_segments", _) => answer(StatusCode::OK, "text/plain", "a:1\nb:2\n"),
                ("/metadata", Some("mooncake%2Fram%2Fa%3A1")) if self.knows => {
                    answer(StatusCode::OK, "application/json", "{}")
                }
                _ => answer(StatusCode::NOT_FOUND, "", "metadata not found"),
            }
        }
    }

    #[tokio::test]
    async fn a_service_is_taken_if_it_knows_a_node_and_not_for_being_there() {
        for knows in [true, false] {
            let here = HostPort::new("127.0.0.1", 0);
            let server = http::start(RealEnv::new(), &here, Limits::SMALL, Arc::new(Both { knows })).await;
            let server = server.expect("a free port");
            let found = at(server.at(), server.at()).await;
            assert_eq!(found, knows.then(|| format!("http://{}/metadata", server.at())));
        }
        let nobody = HostPort::new("127.0.0.1", 1);
        assert_eq!(at(&nobody, &nobody).await, None);
    }
}
