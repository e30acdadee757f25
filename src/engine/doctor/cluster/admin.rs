//! Reads a master's admin HTTP endpoints. An endpoint that an older release lacks is not an error.

use serde::Deserialize;

use crate::engine::base::HostPort;
use crate::engine::base::text::escaped;
use crate::engine::doctor::cluster::facts::{HealthFacts, ListedSegment, MemoryUsage, SegmentListing};
use crate::engine::doctor::{Fact, Unavailable};
use crate::engine::env::Env;
use crate::engine::http::{Fetcher, Samples};

/// Maximum number of segments inspected. Any further segments are not judged.
const SEGMENTS_MAX: usize = 4096;

/// Reads `/health` of the master at `at`.
pub async fn health(fetcher: &Fetcher, at: &HostPort) -> Fact<HealthFacts> {
    let answer = fetcher.get(&format!("http://{at}/health")).await.map_err(Unavailable::new)?;
    // If the master's RPC workers are stuck, it returns status 503 with a JSON document.
    if !answer.is_ok() && answer.status != 503 {
        return Err(answer.shown().into());
    }
    parse_health(&answer.body).ok_or_else(|| format!("{}: not a master health document", answer.shown()).into())
}

/// Whether the master serves `/role`.
pub async fn has_role(fetcher: &Fetcher, at: &HostPort) -> Option<bool> {
    let answer = fetcher.get(&format!("http://{at}/role")).await.ok()?;
    Some(answer.is_ok())
}

/// Whether the master is mcctl's. Only mcctl serves `/ready`; `mooncake_master` up to 0.3.13 does not.
pub async fn is_mcctl(fetcher: &Fetcher, at: &HostPort) -> Option<bool> {
    let answer = fetcher.get(&format!("http://{at}/ready")).await.ok()?;
    Some(answer.is_ok() || answer.status == 503)
}

/// Reads `/metrics` of a master.
pub async fn metrics(fetcher: &Fetcher, at: &HostPort) -> Option<Samples> {
    let answer = fetcher.get(&format!("http://{at}/metrics")).await.ok()?;
    Some(Samples::parse(&answer.body)).filter(|samples| answer.is_ok() && !samples.is_empty())
}

/// Reads `/metrics/summary` of a master.
pub async fn summary(fetcher: &Fetcher, at: &HostPort) -> Option<String> {
    let answer = fetcher.get(&format!("http://{at}/metrics/summary")).await.ok()?;
    answer.is_ok().then_some(answer.body)
}

/// Lists the mounted segments: with details, or only their names if the master is older than 0.3.12.
pub async fn segments<E: Env>(env: &E, fetcher: &Fetcher, at: &HostPort) -> Fact<SegmentListing> {
    let asked = env.now();
    let detail = fetcher.get(&format!("http://{at}/get_segments_detail")).await.map_err(Unavailable::new)?;
    let took = || env.now().since(asked);
    if detail.is_ok() {
        let segments = parse_detail(&detail.body)?;
        return Ok(SegmentListing { is_detailed: true, segments, took: took() });
    }
    if detail.status != 404 {
        return Err(detail.shown().into());
    }
    let names = fetcher.get(&format!("http://{at}/get_all_segments")).await.map_err(Unavailable::new)?;
    if !names.is_ok() {
        return Err(names.shown().into());
    }
    Ok(SegmentListing { is_detailed: false, segments: parse_names(&names.body), took: took() })
}

/// Parses `/health`. Before 0.3.11, the body is the string `OK`, and a master that returns it with status 200 serves clients.
fn parse_health(body: &str) -> Option<HealthFacts> {
    #[derive(Deserialize)]
    struct HealthJson {
        #[serde(default)]
        role: String,
        #[serde(default)]
        ha_state: String,
        service_ready: bool,
        leader_address: Option<String>,
        view_version: Option<i64>,
    }
    if let Ok(body) = serde_json::from_str::<HealthJson>(body) {
        return Some(HealthFacts {
            role: escaped(&body.role),
            state: escaped(&body.ha_state),
            is_ready: body.service_ready,
            leader: body.leader_address.filter(|leader| !leader.is_empty()).map(|leader| escaped(&leader)),
            view: body.view_version,
        });
    }
    let is_word = body.trim().eq_ignore_ascii_case("ok");
    is_word.then(|| HealthFacts { is_ready: true, ..HealthFacts::default() })
}

fn parse_detail(body: &str) -> Fact<Vec<ListedSegment>> {
    #[derive(Deserialize)]
    struct SegmentsJson {
        segments: Vec<SegmentJson>,
    }
    #[derive(Deserialize)]
    #[serde(default)]
    #[derive(Default)]
    struct SegmentJson {
        segment_name: String,
        client_id: String,
        size_bytes: u64,
        te_endpoint: String,
        protocol: String,
        status: String,
        allocator_used_bytes: u64,
        allocator_capacity_bytes: u64,
    }
    let body: SegmentsJson =
        serde_json::from_str(body).map_err(|error| Unavailable::from(format!("/get_segments_detail: {error}")))?;
    let segment = |item: SegmentJson| ListedSegment {
        endpoint: if item.te_endpoint.is_empty() { item.segment_name.clone() } else { item.te_endpoint },
        name: item.segment_name,
        client: item.client_id,
        bytes: item.size_bytes,
        protocol: item.protocol,
        status: item.status,
        usage: (item.allocator_capacity_bytes > 0)
            .then_some(MemoryUsage { used: item.allocator_used_bytes, capacity: item.allocator_capacity_bytes }),
    };
    Ok(body.segments.into_iter().take(SEGMENTS_MAX).map(segment).collect())
}

fn parse_names(body: &str) -> Vec<ListedSegment> {
    let names = body.lines().map(str::trim).filter(|name| !name.is_empty());
    let segment =
        |name: &str| ListedSegment { name: name.to_owned(), endpoint: name.to_owned(), ..ListedSegment::default() };
    names.take(SEGMENTS_MAX).map(segment).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_of_every_release_is_parsed() {
        // Recorded from a 0.3.13 master.
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
    fn segments_are_parsed_from_both_lists() {
        let detail = r#"{"total_segments":1,"segments":[{"segment_name":"localhost:12805","segment_id":"1-2","client_id":"3-4",
            "base_address":"0x7f","size_bytes":67108864,"size_human":"0.0625 GiB","te_endpoint":"10.77.0.1:15825","protocol":"tcp",
            "status":"OK","allocator_used_bytes":10,"allocator_capacity_bytes":67108864,"allocator_usage_percent":0.0}]}"#;
        let segments = parse_detail(detail).expect("segments");
        assert_eq!(
            (&*segments[0].endpoint, segments[0].bytes, &*segments[0].client),
            ("10.77.0.1:15825", 64 << 20, "3-4")
        );
        assert_eq!(segments[0].usage, Some(MemoryUsage { used: 10, capacity: 64 << 20 }));
        assert!(parse_detail("{}").expect_err("no list").to_string().contains("get_segments_detail"));
        let names = parse_names("a:1\na:1\n\n");
        assert_eq!((names.len(), &*names[0].endpoint), (2, "a:1"));
    }
}
