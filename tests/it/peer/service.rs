//! The store services of mcctl and of the wheel: their client HTTP servers and the REST routes that
//! mount memory, after the same requests.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};

use super::cluster::{Make, Master};
use super::process::{PATIENCE, Process, free_port, http, http_get, wait_until};
use super::wheel::{mcctl, wheel};

/// A store service with its client HTTP server.
struct Service {
    process: Process,
    rest: u16,
    client: u16,
}

impl Service {
    fn start(make: Make, dir: &Path, master: &Master) -> Service {
        let rest = free_port();
        let client = free_port();
        let config = dir.join("service.json");
        let text = json!({
            "local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE", "master_server_address": master.address(),
            "global_segment_size": 32 << 20, "local_buffer_size": 16 << 20, "protocol": "tcp", "device_name": "",
            "enable_client_http_server": true, "client_http_port": client, "unknown_to_both": [1],
        });
        std::fs::write(&config, text.to_string()).unwrap();
        let mut command = match make {
            Make::Ours => {
                let mut command = mcctl();
                command.args(["serve", "store", "--host=127.0.0.1"]);
                command
            }
            Make::Real => {
                let mut command = wheel().python();
                command.args(["-m", "mooncake.mooncake_store_service"]);
                command
            }
        };
        command.arg("--config").arg(&config).args(["--port", &rest.to_string()]);
        let mut process = Process::start("service", command, dir);
        process.wait_port(rest);
        process.wait_port(client);
        Service { process, rest, client }
    }

    fn put(&self, key: &str) {
        let body = json!({ "key": key, "value": "hello" }).to_string();
        assert_eq!(http(self.rest, "PUT", "/api/put", &body).unwrap().0, 200);
    }
}

/// Responses of a client HTTP server after a put and a get over REST.
struct ClientHttpReport {
    families: BTreeSet<String>,
    /// Sample names with the names of their labels.
    samples: BTreeSet<String>,
    /// Section headings of the summary.
    summary: Vec<String>,
    /// Status and body of other requests.
    answers: Vec<(u16, String)>,
}

fn report(make: Make) -> ClientHttpReport {
    let dir = tempfile::tempdir().unwrap();
    let mut master = Master::start(make, dir.path(), &[]);
    let service = Service::start(make, dir.path(), &master);
    let health = || http_get(service.client, "/health").unwrap();
    wait_until("a healthy client", PATIENCE, || health().0 == 200);
    service.put("k");
    assert_eq!(http_get(service.rest, "/api/get/k").unwrap(), (200, "hello".to_owned()));
    let mut answers = vec![health()];
    for (method, path) in [("POST", "/health"), ("GET", "/nope"), ("DELETE", "/metrics")] {
        answers.push(http(service.client, method, path, "").unwrap());
    }
    let (_, text) = http_get(service.client, "/metrics").unwrap();
    let (_, summary) = http_get(service.client, "/metrics/summary").unwrap();
    master.kill();
    wait_until("the master's end to show", PATIENCE, || health().0 == 503);
    answers.push(health());
    ClientHttpReport {
        families: text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).map(str::to_owned).collect(),
        samples: text.lines().filter(|line| !line.starts_with('#')).map(labels).collect(),
        summary: summary.lines().filter(|line| line.starts_with("===")).map(str::to_owned).collect(),
        answers,
    }
}

/// `name{a,b}` of a sample `name{a="1",b="2"} 3`. No value here contains a comma.
fn labels(sample: &str) -> String {
    let Some((name, rest)) = sample.split_once('{') else { return sample.split(' ').next().unwrap().to_owned() };
    let mut names: Vec<_> = rest.split(',').filter_map(|pair| pair.split_once("=\"")).map(|(name, _)| name).collect();
    names.sort_unstable();
    format!("{name}{{{}}}", names.join(","))
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn the_client_http_server_shows_what_the_real_clients_shows() {
    let real = report(Make::Real);
    let ours = report(Make::Ours);
    let upstreams = |family: &&String| !family.starts_with("mcctl_client_");
    assert_eq!(ours.families.iter().filter(upstreams).collect::<Vec<_>>(), real.families.iter().collect::<Vec<_>>());
    let captured = include_str!("../../../fixtures/http/client-metrics-families.txt");
    let captured: BTreeSet<_> = captured.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect();
    assert_eq!(real.families, captured);
    // Upstream leaves the labels of the transfer histograms' sums and counts out.
    let unlabelled = |sample: &String| !sample.contains('{');
    let missing: Vec<_> = real.samples.difference(&ours.samples).filter(|sample| !unlabelled(sample)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    for sample in real.samples.iter().filter(|sample| unlabelled(sample)) {
        assert!(ours.samples.contains(&format!("{sample}{{client_mode}}")), "{sample}");
    }
    assert_eq!(ours.summary, real.summary);
    assert_eq!(ours.answers, real.answers);
}

/// Status and body of each request, without mcctl's reasons, and with segment ids numbered in order
/// of appearance.
fn mounting(make: Make) -> Vec<(String, u16, Value)> {
    let dir = tempfile::tempdir().unwrap();
    let master = Master::start(make, dir.path(), &[]);
    let service = Service::start(make, dir.path(), &master);
    wait_until("a healthy client", PATIENCE, || {
        http_get(service.client, "/health").is_ok_and(|(status, _)| status == 200)
    });
    let mut ids: Vec<String> = Vec::new();
    let mut answers = Vec::new();
    let mut post = |path: &str, body: &str| {
        let mut body = body.to_owned();
        for (nth, id) in ids.iter().enumerate() {
            body = body.replace(&format!("ID{nth}"), id);
        }
        let (status, text) = http(service.rest, "POST", path, &body).unwrap();
        let mut answer: Value = serde_json::from_str(&text).unwrap();
        answer.as_object_mut().unwrap().remove("reason");
        for name in ["segment_ids", "failed_segment_ids"] {
            let Some(Value::Array(found)) = answer.get_mut(name) else { continue };
            for id in found {
                let text = id.as_str().unwrap().to_owned();
                let nth = ids.iter().position(|known| *known == text).unwrap_or_else(|| {
                    ids.push(text.clone());
                    ids.len() - 1
                });
                *id = format!("ID{nth}").into();
            }
        }
        answers.push((format!("{path} {body}"), status, answer));
        let segments: Value = serde_json::from_str(&http_get(master.admin, "/get_segments_detail").unwrap().1).unwrap();
        answers.push(("segments".to_owned(), 0, segments["total_segments"].clone()));
    };
    post("/api/mount", r#"{"size": 1}"#);
    post("/api/mount", r#"{"size": 16777217}"#);
    post("/api/mount", r#"{"size": 20000000, "location": "cpu:0"}"#);
    post("/api/mount", r#"{"size": 99999999999999}"#);
    post("/api/unmount", r#"{"segment_ids": ["ID1", "1-2"]}"#);
    post("/api/unmount", r#"{"segment_ids": "ID0"}"#);
    post("/api/unmount", r#"{"segment_ids": "ID0"}"#);
    post("/api/unmount", r#"{"segment_ids": ["ID2"], "grace_period_seconds": 600}"#);
    post("/api/unmount", r#"{"segment_ids": "nonsense"}"#);
    post("/api/mount_shm", r#"{"name": "no-such-file", "size": 16777216}"#);
    post("/api/unmount_shm", r#"{"segment_ids": ["7-8", "9-10"]}"#);
    post("/api/reconfigure", r#"{"mode": "decode", "path": "/dev/shm/no-such-file", "size": 16777216}"#);
    post("/api/reconfigure", r#"{"mode": "prefill"}"#);
    post("/api/unmount_local_disk", r#"{"grace_period_seconds": 1}"#);
    // Ids differ from run to run, so a request is named by its number and path.
    answers
        .into_iter()
        .enumerate()
        .map(|(n, (what, status, answer))| {
            let what = what.split(' ').next().unwrap().to_owned();
            (format!("{n} {what}"), status, answer)
        })
        .collect()
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn mounting_and_unmounting_over_rest_equals_the_real_service() {
    for (ours, real) in mounting(Make::Ours).into_iter().zip(mounting(Make::Real)) {
        assert_eq!(ours, real);
    }
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn the_real_service_still_answers_the_fixture() {
    let dir = tempfile::tempdir().unwrap();
    let master = Master::start(Make::Real, dir.path(), &[]);
    let service = Service::start(Make::Real, dir.path(), &master);
    for exchange in crate::http::fixture("rest-segments.txt") {
        let (status, text) = http(service.rest, &exchange.method, &exchange.target, &exchange.body).unwrap();
        assert_eq!((status, text), (exchange.status, exchange.answer), "{} {}", exchange.target, exchange.body);
    }
}
