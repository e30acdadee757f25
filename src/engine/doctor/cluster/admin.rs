//! Reading a master's admin HTTP, of any release: what an older one has not is not missed.

use serde::Deserialize;

use crate::engine::base::HostPort;
use crate::engine::base::text::escaped;
use crate::engine::doctor::Asked;
use crate::engine::doctor::cluster::facts::{Health, Listing, Segment, Usage};
use crate::engine::env::Env;
use crate::engine::http::{Fetcher, Samples};

/// Segments that are looked at; a master with more is judged by these.
const SEGMENTS_MAX: usize = 4096;

/// `/health` of the master at `at`.
pub async fn health(fetcher: &Fetcher, at: &HostPort) -> Asked<Health> {
    let answer = fetcher.get(&format!("http://{at}/health")).await.map_err(|error| error.to_string())?;
    // 503 comes with a document when the master's RPC workers are stuck.
    if !answer.is_ok() && answer.status != 503 {
        return Err(answer.shown());
    }
    parse_health(&answer.body).ok_or_else(|| format!("{}: no master's words", answer.shown()))
}

/// Has it `/role`?
pub async fn has_role(fetcher: &Fetcher, at: &HostPort) -> Option<bool> {
    let answer = fetcher.get(&format!("http://{at}/role")).await.ok()?;
    Some(answer.is_ok())
}

/// Is it a master of mcctl? It has `/ready`, which no `mooncake_master` up to 0.3.13 has.
pub async fn is_mcctl(fetcher: &Fetcher, at: &HostPort) -> Option<bool> {
    let answer = fetcher.get(&format!("http://{at}/ready")).await.ok()?;
    Some(answer.is_ok() || answer.status == 503)
}

/// `/metrics`.
pub async fn metrics(fetcher: &Fetcher, at: &HostPort) -> Option<Samples> {
    let answer = fetcher.get(&format!("http://{at}/metrics")).await.ok()?;
    Some(Samples::parse(&answer.body)).filter(|samples| answer.is_ok() && !samples.is_empty())
}

/// `/metrics/summary`.
pub async fn summary(fetcher: &Fetcher, at: &HostPort) -> Option<String> {
    let answer = fetcher.get(&format!("http://{at}/metrics/summary")).await.ok()?;
    answer.is_ok().then_some(answer.body)
}

/// The mounted segments: with their details, or from a master before 0.3.12 their names.
pub async fn segments<E: Env>(env: &E, fetcher: &Fetcher, at: &HostPort) -> Asked<Listing> {
    let asked = env.now();
    let detail = fetcher.get(&format!("http://{at}/get_segments_detail")).await.map_err(|error| error.to_string())?;
    let took = || env.now().since(asked);
    if detail.is_ok() {
        let segments = parse_detail(&detail.body)?;
        return Ok(Listing { is_detailed: true, segments, took: took() });
    }
    if detail.status != 404 {
        return Err(detail.shown());
    }
    let names = fetcher.get(&format!("http://{at}/get_all_segments")).await.map_err(|error| error.to_string())?;
    if !names.is_ok() {
        return Err(names.shown());
    }
    Ok(Listing { is_detailed: false, segments: parse_names(&names.body), took: took() })
}

/// Before 0.3.11 the body is a word; a master that says anything with 200 serves.
fn parse_health(body: &str) -> Option<Health> {
    #[derive(Deserialize)]
    struct Body {
        #[serde(default)]
        role: String,
        #[serde(default)]
        ha_state: String,
        service_ready: bool,
        leader_address: Option<String>,
        view_version: Option<i64>,
    }
    if let Ok(body) = serde_json::from_str::<Body>(body) {
        return Some(Health {
            role: escaped(&body.role),
            state: escaped(&body.ha_state),
            is_ready: body.service_ready,
            leader: body.leader_address.filter(|leader| !leader.is_empty()).map(|leader| escaped(&leader)),
            view: body.view_version,
        });
    }
    let is_word = body.trim().eq_ignore_ascii_case("ok");
    is_word.then(|| Health { is_ready: true, ..Health::default() })
}

fn parse_detail(body: &str) -> Asked<Vec<Segment>> {
    #[derive(Deserialize)]
    struct Body {
        segments: Vec<Item>,
    }
    #[derive(Deserialize)]
    #[serde(default)]
    #[derive(Default)]
    struct Item {
        segment_name: String,
        client_id: String,
        size_bytes: u64,
        te_endpoint: String,
        protocol: String,
        status: String,
        allocator_used_bytes: u64,
        allocator_capacity_bytes: u64,
    }
    let body: Body = serde_json::from_str(body).map_err(|error| format!("/get_segments_detail: {error}"))?;
    let segment = |item: Item| Segment {
        endpoint: if item.te_endpoint.is_empty() { item.segment_name.clone() } else { item.te_endpoint },
        name: item.segment_name,
        client: item.client_id,
        bytes: item.size_bytes,
        protocol: item.protocol,
        status: item.status,
        usage: (item.allocator_capacity_bytes > 0)
            .then_some(Usage { used: item.allocator_used_bytes, capacity: item.allocator_capacity_bytes }),
    };
    Ok(body.segments.into_iter().take(SEGMENTS_MAX).map(segment).collect())
}

fn parse_names(body: &str) -> Vec<Segment> {
    let names = body.lines().map(str::trim).filter(|name| !name.is_empty());
    let segment = |name: &str| Segment { name: name.to_owned(), endpoint: name.to_owned(), ..Segment::default() };
    names.take(SEGMENTS_MAX).map(segment).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_is_read_as_every_release_writes_it() {
        // As a 0.3.13 master answered.
        let alone = r#"{"status":"ok","role":"leader","ha_state":"serving","service_ready":true,"leader_address":null,"view_version":null}"#;
        let health = parse_health(alone).expect("health");
        assert!(health.is_ready && health.role == "leader" && health.leader.is_none());
        let standby = r#"{"status":"ok","role":"standby","ha_state":"standby","service_ready":false,"leader_address":"10.77.0.1:50051","view_version":2}"#;
        let health = parse_health(standby).expect("health");
        assert_eq!((health.is_ready, health.leader.as_deref(), health.view), (false, Some("10.77.0.1:50051"), Some(2)));
        assert!(parse_health("OK").is_some_and(|health| health.is_ready));
        assert_eq!(parse_health("<html>hello</html>"), None);
    }

    #[test]
    fn segments_are_read_from_either_list() {
        let detail = r#"{"total_segments":1,"segments":[{"segment_name":"localhost:12805","segment_id":"1-2","client_id":"3-4",
            "base_address":"0x7f","size_bytes":67108864,"size_human":"0.0625 GiB","te_endpoint":"10.77.0.1:15825","protocol":"tcp",
            "status":"OK","allocator_used_bytes":10,"allocator_capacity_bytes":67108864,"allocator_usage_percent":0.0}]}"#;
        let segments = parse_detail(detail).expect("segments");
        assert_eq!(
            (&*segments[0].endpoint, segments[0].bytes, &*segments[0].client),
            ("10.77.0.1:15825", 64 << 20, "3-4")
        );
        assert_eq!(segments[0].usage, Some(Usage { used: 10, capacity: 64 << 20 }));
        assert!(parse_detail("{}").expect_err("no list").contains("get_segments_detail"));
        let names = parse_names("a:1\na:1\n\n");
        assert_eq!((names.len(), &*names[0].endpoint), (2, "a:1"));
    }
}
