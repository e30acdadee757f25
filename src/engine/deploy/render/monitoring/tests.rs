//! Rules and dashboards of deployments of different kinds.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::render::{RenderFormat, render};
use crate::{DeploymentSpec, FileFormat, SglangClient, parse};
use mcctl_base::upstream::DeployedRelease;

const MODEL: &str = "[model]\npath = \"m\"\n[serving]\nhosts = [\"10.0.2.1\"]\n";
const ONE_MASTER: &str = "[master]\nhosts = [\"10.0.0.1\"]\n";
const THREE_MASTERS: &str = "[master]\nhosts = [\"10.0.0.1\", \"10.0.0.2\", \"10.0.0.3\"]\n\
    [master.ha]\netcd = [\"10.0.0.9:2379\"]\nreplicas = 3\n";
const NODES: &str = "[nodes]\nhosts = [\"10.0.1.1\", \"10.0.1.2\"]\nnuma = [0, 1]\n";

fn spec(programs: &str, parts: &[&str]) -> DeploymentSpec {
    let text = format!("name = \"a\"\nprograms = \"{programs}\"\n{MODEL}{}", parts.concat());
    parse(&text, FileFormat::Toml, &[]).unwrap()
}

/// The parsed files `prometheus.yml`, of the recording rules and of the alerts.
fn prometheus(spec: &DeploymentSpec) -> [Value; 3] {
    let files = render(spec, RenderFormat::Prometheus, "a.toml").unwrap();
    let parsed: Vec<Value> = files.iter().map(|file| serde_yaml_ng::from_str(&file.text).unwrap()).collect();
    parsed.try_into().unwrap()
}

fn rules(spec: &DeploymentSpec) -> Vec<Value> {
    let [_, recording, alerts] = prometheus(spec);
    [recording, alerts].iter().flat_map(|file| file["groups"][0]["rules"].as_array().unwrap().clone()).collect()
}

fn alert_names(spec: &DeploymentSpec) -> BTreeSet<String> {
    rules(spec).iter().filter_map(|rule| Some(rule["alert"].as_str()?.to_owned())).collect()
}

fn panel_titles(spec: &DeploymentSpec) -> Vec<String> {
    all_panels(&dashboard(spec)).iter().map(|panel| panel["title"].as_str().unwrap().to_owned()).collect()
}

/// All panels, with those of collapsed rows.
fn all_panels(dashboard: &Value) -> Vec<&Value> {
    let panels = dashboard["panels"].as_array().unwrap();
    panels.iter().chain(panels.iter().filter_map(|row| row["panels"].as_array()).flatten()).collect()
}

fn dashboard(spec: &DeploymentSpec) -> Value {
    let files = render(spec, RenderFormat::Grafana, "a.toml").unwrap();
    serde_json::from_str(&files[0].text).unwrap()
}

fn targets(spec: &DeploymentSpec, job: &str) -> Vec<String> {
    let [config, ..] = prometheus(spec);
    let jobs = config["scrape_configs"].as_array().unwrap();
    let found = jobs.iter().find(|found| found["job_name"] == job);
    let list = found.map_or(Vec::new(), |job| job["static_configs"][0]["targets"].as_array().unwrap().clone());
    list.iter().map(|target| target.as_str().unwrap().to_owned()).collect()
}

#[test]
fn each_role_is_a_job_with_the_ports_that_have_metrics() {
    let ours = spec("mcctl", &[THREE_MASTERS, NODES]);
    assert_eq!(targets(&ours, "a-master"), ["10.0.0.1:9003", "10.0.0.2:9003", "10.0.0.3:9003"]);
    assert_eq!(targets(&ours, "a-store"), ["10.0.1.1:8088", "10.0.1.1:8089", "10.0.1.2:8088", "10.0.1.2:8089"]);
    assert_eq!(targets(&ours, "a-server"), ["10.0.2.1:30000"]);
    let upstream = spec("upstream", &[ONE_MASTER, NODES]);
    assert_eq!(targets(&upstream, "a-store")[0], "10.0.1.1:9300");
    let old = DeploymentSpec { mooncake: DeployedRelease::ALL[0], ..upstream };
    assert_eq!(targets(&old, "a-store"), [""; 0]);
}

#[test]
fn only_the_first_rank_of_a_server_is_scraped() {
    let servers = "[serving]\nmode = \"distributed\"\nnnodes = 2\nhosts = [\"10.0.2.1\", \"10.0.2.2\"]\n";
    let text = format!("name = \"a\"\n[model]\npath = \"m\"\ntp = 2\n{servers}{ONE_MASTER}");
    let spec = parse(&text, FileFormat::Toml, &[]).unwrap();
    assert_eq!(targets(&spec, "a-server"), ["10.0.2.1:30000"]);
}

#[test]
fn rules_fit_the_deployment() {
    let single = alert_names(&spec("mcctl", &[ONE_MASTER]));
    let elected = alert_names(&spec("mcctl", &[THREE_MASTERS, NODES]));
    let upstream = alert_names(&spec("upstream", &[THREE_MASTERS, NODES]));
    for name in ["McctlNoLeader", "McctlNoStandbyInSync", "McctlEtcdUnreachable", "McctlNodeDown", "McctlNodesMissing"]
    {
        assert!(elected.contains(name) && !single.contains(name), "{name}");
    }
    for name in [
        "McctlMemoryOnly",
        "McctlDiskStalled",
        "McctlDiskAlmostFull",
        "McctlDiskFilling",
        "McctlSnapshotsFail",
        "McctlLogNotSynced",
        "McctlReleasesDiffer",
        "McctlReplicasLost",
        "McctlRpcSlow",
    ] {
        assert!(elected.contains(name) && single.contains(name) && !upstream.contains(name), "{name}");
    }
    let mut mixed = spec("upstream", &[ONE_MASTER]);
    mixed.serving.client = SglangClient::Mcctl;
    let mixed = alert_names(&mixed);
    for (name, needs_master) in [("McctlChecksumMismatch", false), ("McctlSuspiciousPutEnds", true)] {
        assert!(elected.contains(name) && !upstream.contains(name) && mixed.contains(name) != needs_master, "{name}");
    }
    let in_memory = spec("mcctl", &["[master]\nhosts = [\"10.0.0.1\"]\ndata_dir = \"\"\n"]);
    assert!(!alert_names(&in_memory).contains("McctlMemoryOnly"));
    let unsynced = spec("mcctl", &["[master]\nhosts = [\"10.0.0.1\"]\nextra_flags = [\"--fsync=never\"]\n"]);
    assert!(
        !alert_names(&unsynced).contains("McctlLogNotSynced") && alert_names(&unsynced).contains("McctlMemoryOnly")
    );
}

#[test]
fn every_alert_has_a_severity_two_texts_and_a_runbook() {
    for rule in rules(&spec("mcctl", &[THREE_MASTERS, NODES])) {
        if rule["alert"].is_null() {
            continue;
        }
        assert!(["critical", "warning"].contains(&rule["labels"]["severity"].as_str().unwrap()), "{rule}");
        let text = |name: &str| rule["annotations"][name].as_str().unwrap_or_default().to_owned();
        assert!(!text("summary").is_empty() && !text("description").is_empty(), "{rule}");
        let runbook = text("runbook");
        assert!(runbook.starts_with("/usr/share/doc/mcctl/docs/") && runbook.contains(".md#"), "{rule}");
    }
}

#[test]
fn a_base_makes_runbooks_urls() {
    let base = "[monitoring]\nrunbook_base = \"https://wiki.example/mcctl/docs/\"\n";
    for rule in rules(&spec("mcctl", &[ONE_MASTER, base])).iter().filter(|rule| !rule["alert"].is_null()) {
        let url = rule["annotations"]["runbook_url"].as_str().unwrap_or_default();
        let section = url.strip_prefix("https://wiki.example/mcctl/docs/").unwrap_or_default();
        assert!(section.contains(".md#") && !section.starts_with('/'), "{rule}");
        assert!(rule["annotations"]["runbook"].is_null(), "{rule}");
    }
    for base in ["wiki", "ftp://a", "https://", "https:///x", "https://a/{{ $value }}", "https://a#b"] {
        let text = format!("name = \"a\"\n{MODEL}[monitoring]\nrunbook_base = \"{base}\"\n");
        let invalid = parse(&text, FileFormat::Toml, &[]).and_then(|spec| render(&spec, RenderFormat::Prometheus, "a"));
        assert!(invalid.is_err_and(|error| error.to_string().contains("monitoring.runbook_base")), "{base}");
    }
}

#[test]
fn all_servers_down_are_critical_and_one_of_several_a_warning() {
    let severities = |hosts: &str| -> Vec<String> {
        let text = format!("name = \"a\"\n[model]\npath = \"m\"\n[serving]\nhosts = [{hosts}]\n{ONE_MASTER}");
        let rules = rules(&parse(&text, FileFormat::Toml, &[]).unwrap());
        let down = rules.iter().filter(|rule| rule["alert"] == "McctlServerDown");
        down.map(|rule| rule["labels"]["severity"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(severities("\"10.0.2.1\""), ["critical"]);
    assert_eq!(severities("\"10.0.2.1\", \"10.0.2.2\""), ["critical", "warning"]);
}

#[test]
fn queries_select_the_processes_of_their_deployment() {
    let spec = spec("mcctl", &[THREE_MASTERS, NODES]);
    for rule in rules(&spec) {
        let query = rule["expr"].as_str().unwrap();
        assert!(
            query.contains("{job=\"a-") || query.contains("{job=~\"a-") || query.contains("{deployment=\"a\""),
            "{query}"
        );
        assert!(!query.contains('$') && rule["labels"]["deployment"] == "a", "{rule}");
    }
}

#[test]
fn panels_fit_the_deployment() {
    let elected = panel_titles(&spec("mcctl", &[THREE_MASTERS, NODES]));
    let upstream = panel_titles(&spec("upstream", &[THREE_MASTERS, NODES]));
    for title in
        ["Standbys", "Log", "Read from nodes", "HTTP requests, p99", "RPC calls, p99", "Failed operations, by peer"]
    {
        let has = |titles: &[String]| titles.iter().any(|found| found == title);
        assert!(has(&elected) && !has(&upstream), "{title}");
    }
}

/// Everything but the default values of its variables and the collapsed rows.
#[test]
fn a_dashboard_shows_any_deployment_of_the_same_programs() {
    let queries = |spec: &DeploymentSpec| -> BTreeSet<String> {
        let dashboard = dashboard(spec);
        let targets = all_panels(&dashboard).into_iter().filter_map(|panel| panel["targets"].as_array());
        targets.flatten().map(|target| target["expr"].as_str().unwrap().to_owned()).collect()
    };
    let elected = spec("mcctl", &[THREE_MASTERS, NODES]);
    let other = DeploymentSpec { name: "other".to_owned(), ..spec("mcctl", &[ONE_MASTER]) };
    assert_eq!(queries(&elected), queries(&other));
    assert!(queries(&elected).iter().all(|query| query.contains("$deployment") && !query.contains("$master")));
    let collapsed = |spec: &DeploymentSpec| -> Vec<String> {
        let dashboard = dashboard(spec);
        let rows = dashboard["panels"].as_array().unwrap().iter().filter(|panel| panel["collapsed"] == true);
        rows.map(|row| row["title"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!((collapsed(&elected), collapsed(&other)), (vec![], vec!["Election and standbys".to_owned()]));
    assert_eq!(dashboard(&other)["templating"]["list"][1]["current"]["value"], "other");
}

#[test]
fn panels_do_not_overlap_and_have_different_ids() {
    let dashboard = dashboard(&spec("mcctl", &[THREE_MASTERS, NODES]));
    let mut cells = BTreeSet::new();
    let mut ids = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let at = |name: &str| panel["gridPos"][name].as_u64().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()) && at("x") + at("w") <= 24, "{panel}");
        for (x, y) in (at("x")..at("x") + at("w")).flat_map(|x| (at("y")..at("y") + at("h")).map(move |y| (x, y))) {
            assert!(cells.insert((x, y)), "{panel}");
        }
    }
}

#[test]
fn a_host_with_an_ipv6_address_is_escaped_in_a_pattern() {
    let nodes = "[nodes]\nhosts = [\"fd00::1\"]\n";
    let rules = rules(&spec("mcctl", &[ONE_MASTER, nodes]));
    let missing = rules.iter().find(|rule| rule["alert"] == "McctlNodesMissing").unwrap();
    let query = missing["expr"].as_str().unwrap();
    assert!(query.contains(r#"segment=~"(\\[fd00::1\\]):[0-9]+""#), "{query}");
}

#[test]
fn pods_are_found_by_the_names_of_their_services() {
    let text = "name = \"a\"\nprograms = \"mcctl\"\n[model]\npath = \"m\"\n[nodes]\nreplicas = 2\n[kubernetes]\nnamespace = \"n\"\n\
                tls_secret = \"t\"\n[access]\nmonitoring_ca = \"/ca\"\n";
    let spec = parse(text, FileFormat::Toml, &[]).unwrap();
    let [config, ..] = prometheus(&spec);
    let jobs = config["scrape_configs"].as_array().unwrap();
    assert_eq!(
        jobs.iter().map(|job| job["job_name"].as_str().unwrap()).collect::<Vec<_>>(),
        ["a-master", "a-store", "a-server"]
    );
    for (job, name) in jobs.iter().zip(["a-master.n.svc", "a-store.n.svc", "a-server-pods.n.svc"]) {
        assert_eq!(job["dns_sd_configs"][0]["names"][0], name);
        assert_eq!(job["relabel_configs"][0]["replacement"], "a");
        assert!(job["static_configs"].is_null());
        let is_server = job["job_name"] == "a-server";
        assert_eq!(job["scheme"] == "https" && job["tls_config"]["ca_file"] == "/ca", !is_server, "{job}");
    }
    // Segments have addresses that are not known in advance.
    assert!(!alert_names(&spec).contains("McctlNodesMissing") && alert_names(&spec).contains("McctlNodeDown"));
}
