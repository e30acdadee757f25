//! The lists in `src/engine/base/upstream` against what the real programs print and contain.
//!
//! `fixtures/help` has the output of `--help` of each known release. The tests that need the wheel
//! compare the lists and the fixtures with the installed release.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use fancy_regex::Regex;
use mcctl::engine::base::ByteSize;
use mcctl::engine::deploy::{DeploymentSpec, FileFormat, commented};
use mcctl::engine::master::StorePolicy;
use mcctl::engine::upstream::{
    ADMIN_ROUTES, CLIENT_FLAGS, CLIENT_METRICS, CLIENT_ROUTES, DeployedRelease, ENGINE_VARIABLES, FlagKind,
    LIBRARY_FLAGS, MASTER_FLAGS, MASTER_METRICS, METADATA_ROUTES, METADATA_SERVER_FLAGS, MetricFamily,
    NOT_IN_THE_WHEEL, OTHER_VARIABLES, SERVICE_VARIABLES, STORE_KEYS, STORE_ROUTES, STORE_SERVICE_FLAGS, UpstreamFlag,
    VARIABLE_PREFIXES, find, known_variables,
};
use serde_json::Value;

use crate::peer::wheel::{Wheel, root, wheel};

/// The programs that print their flags, with their own flags.
const PROGRAMS: [(&str, &[UpstreamFlag]); 2] = [("mooncake_master", MASTER_FLAGS), ("mooncake_client", CLIENT_FLAGS)];
/// Names in the wheel that are not variables: a fragment, and a switch of upstream's own tests.
const NOT_VARIABLES: [&str; 2] = ["MC_MAX_EP_PI", "MOONCAKE_MASTER_SERVICE_SNAPSHOT_TEST_SKIP_CLEANUP"];
/// A variable that mcctl reads and no file of the wheel contains.
const ONLY_OURS: &str = "MOONCAKE_HOST_ID";

fn fixture(release: DeployedRelease, program: &str) -> PathBuf {
    root().join("fixtures/help").join(release.text()).join(format!("{program}.txt"))
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Name, type and default of each flag in the output of gflags' `--help`.
fn parsed(help: &str) -> BTreeMap<String, (String, String)> {
    let flat = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let flag = Regex::new(r#" -([A-Za-z0-9_]+) \(.*?\) type: (\w+) default: (?:"([^"]*)"|(\S+))"#).unwrap();
    let found = flag.captures_iter(flat.as_str()).map(|m| {
        let m = m.unwrap();
        let default = m.get(3).or(m.get(4)).map_or("", |text| text.as_str());
        (m[1].to_owned(), (m[2].to_owned(), default.to_owned()))
    });
    found.collect()
}

/// gflags prints all digits of a number: 0.80000000000000004.
fn same_default(row: &UpstreamFlag, printed: &str) -> bool {
    match row.kind {
        FlagKind::Number | FlagKind::Ratio => row.default.parse::<f64>().unwrap() == printed.parse::<f64>().unwrap(),
        _ => row.default == printed,
    }
}

#[test]
fn the_help_of_each_release_lists_the_flags_of_that_release() {
    for release in DeployedRelease::ALL {
        for (program, own) in PROGRAMS {
            let printed = parsed(&text(&fixture(release, program)));
            let rows: Vec<_> = own.iter().chain(LIBRARY_FLAGS).filter(|row| release.has(row.since)).collect();
            let listed: BTreeSet<_> = rows.iter().map(|row| row.name.to_owned()).collect();
            let printed_names: BTreeSet<_> = printed.keys().cloned().collect();
            let unlisted = &printed_names - &listed;
            let unprinted = &listed - &printed_names;
            let what = format!("{program} {}: not listed {unlisted:?}, not printed {unprinted:?}", release.text());
            assert!(unlisted.is_empty() && unprinted.is_empty(), "{what}");
            for row in rows {
                let (kind, default) = &printed[row.name];
                assert_eq!(row.kind.gflags_type(), kind, "{program} {} {}", release.text(), row.name);
                // The rows have the defaults of the tested release.
                if release == DeployedRelease::TESTED {
                    assert!(same_default(row, default), "{program} {}: {default}", row.name);
                }
            }
        }
    }
}

#[test]
fn the_install_script_and_the_deployment_file_name_the_known_releases() {
    let install = text(&root().join("tests/peers/install"));
    assert!(install.contains(&format!("${{MOONCAKE_PEER_VERSION:-{}}}", DeployedRelease::TESTED.text())));
    let file = commented(&DeploymentSpec::default(), FileFormat::Toml);
    for release in DeployedRelease::ALL {
        assert!(file.contains(release.text()), "src/engine/deploy/keys.rs does not name {}", release.text());
    }
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn the_wheel_prints_the_recorded_help() {
    for (program, _) in PROGRAMS {
        let out =
            wheel().program(program).env_remove("POD_NAME").env_remove("POD_NAMESPACE").arg("--help").output().unwrap();
        assert_eq!(String::from_utf8_lossy(&out.stdout), text(&fixture(DeployedRelease::TESTED, program)), "{program}");
    }
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn the_services_of_the_wheel_have_the_listed_flags() {
    let name = Regex::new(r"--([a-z-]+)").unwrap();
    for (module, rows) in
        [("mooncake_store_service", STORE_SERVICE_FLAGS), ("http_metadata_server", METADATA_SERVER_FLAGS)]
    {
        let help = python(wheel().python().args(["-m", &format!("mooncake.{module}"), "--help"]));
        let printed: BTreeSet<_> = name.captures_iter(help.as_str()).map(|m| m.unwrap()[1].replace('-', "_")).collect();
        let listed: BTreeSet<_> = rows.iter().map(|row| row.name.to_owned()).chain(["help".to_owned()]).collect();
        assert_eq!(printed, listed, "{module}");
        // Not all defaults are printed.
        for row in rows.iter().filter(|row| ["port", "host", "max_wait_time"].contains(&row.name)) {
            assert!(help.contains(&format!("(default: {})", row.default)), "{module} {}", row.name);
        }
    }
}

/// Standard output of a Python program.
fn python(command: &mut Command) -> String {
    let out = command.output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// The store service's settings with these variables, as a JSON object.
fn settings(variables: &[(&str, &str)]) -> Value {
    let script = "import dataclasses, json, mooncake.mooncake_config as c; \
                  print(json.dumps(dataclasses.asdict(c.MooncakeConfig.load_from_env())))";
    serde_json::from_str(&python(wheel().python().args(["-c", script]).envs(variables.iter().copied()))).unwrap()
}

/// The value of a setting that is written as `text`.
fn value(kind: FlagKind, text: &str) -> Value {
    match kind {
        FlagKind::Size => text.parse::<ByteSize>().unwrap().0.into(),
        FlagKind::Switch => (text == "true").into(),
        FlagKind::Port => text.parse::<u16>().unwrap().into(),
        _ => text.into(),
    }
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn the_store_service_reads_the_listed_settings_from_the_listed_variables() {
    let master = "MOONCAKE_MASTER";
    let defaults = settings(&[(master, "m:1")]);
    let keys: BTreeSet<_> = defaults.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys, STORE_KEYS.iter().map(|row| row.key).collect());
    for row in STORE_KEYS.iter().filter(|row| row.variable != master) {
        assert_eq!(defaults[row.key], value(row.kind, row.default), "{}", row.key);
    }
    let other = |kind| match kind {
        FlagKind::Size => "5mb",
        FlagKind::Switch => "true",
        FlagKind::Port => "9301",
        _ => "other",
    };
    let all: Vec<_> = STORE_KEYS.iter().map(|row| (row.variable, other(row.kind))).collect();
    let set = settings(&all);
    for row in STORE_KEYS {
        assert_eq!(set[row.key], value(row.kind, other(row.kind)), "{}", row.key);
    }
}

/// Names of the form `MC_...` and `MOONCAKE_...` in the wheel's programs, libraries and scripts.
fn names_in(wheel: &Wheel) -> BTreeSet<String> {
    let is_word = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
    let mut names = BTreeSet::new();
    // Compiled Python files put other letters directly after a name.
    for path in files_below(wheel.package()).into_iter().filter(|path| path.extension().is_none_or(|e| e != "pyc")) {
        let bytes = std::fs::read(&path).unwrap();
        for at in memchr::memchr_iter(b'M', &bytes) {
            let starts_a_word = at == 0 || !bytes[at - 1].is_ascii_alphanumeric() && bytes[at - 1] != b'_';
            let rest = &bytes[at..];
            if !starts_a_word || !(rest.starts_with(b"MC_") || rest.starts_with(b"MOONCAKE_")) {
                continue;
            }
            let end = rest.iter().position(|byte| !is_word(*byte)).unwrap_or(rest.len());
            names.insert(String::from_utf8_lossy(&rest[..end]).into_owned());
        }
    }
    names
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn the_wheel_contains_the_listed_variables_and_no_others() {
    let found = names_in(wheel());
    let listed = || [ENGINE_VARIABLES, SERVICE_VARIABLES, OTHER_VARIABLES].into_iter().flatten().copied();
    let lacking: BTreeSet<_> = listed().filter(|name| !found.contains(*name)).collect();
    assert_eq!(lacking, NOT_IN_THE_WHEEL.iter().copied().collect());
    let is_known = |name: &str| {
        let is_prefix = ["MC_", "MOONCAKE_"].contains(&name) || VARIABLE_PREFIXES.iter().any(|p| name.starts_with(p));
        is_prefix || NOT_VARIABLES.contains(&name) || known_variables().any(|known| known == name)
    };
    let unknown: Vec<_> = found.iter().filter(|name| !is_known(name)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn the_wheel_contains_the_listed_routes() {
    for (file, routes) in [("mooncake_master", ADMIN_ROUTES), ("mooncake_store_service.py", STORE_ROUTES)] {
        let bytes = std::fs::read(wheel().package().join(file)).unwrap();
        for route in routes {
            assert!(memchr::memmem::find(&bytes, route.path.as_bytes()).is_some(), "{file}: {}", route.path);
        }
    }
}

/// Routes of features that mcctl does not have.
const NOT_SERVED: [&str; 2] = ["/api/v1/drain_jobs", "/api/v1/tenant_quotas"];

#[test]
fn the_sources_serve_the_listed_routes() {
    let (master, store, metadata) =
        (sources("src/engine/metadata/admin"), sources("src/engine/store"), sources("src/engine/metadata"));
    let is_served = |path: &str| !NOT_SERVED.iter().any(|feature| path.starts_with(feature));
    let has = |code: &str, path: &str| code.contains(&format!("\"{}\"", path.trim_end_matches("{key}")));
    for (code, routes) in
        [(&master, ADMIN_ROUTES), (&store, STORE_ROUTES), (&store, CLIENT_ROUTES), (&metadata, METADATA_ROUTES)]
    {
        for route in routes {
            assert_eq!(has(code, route.path), is_served(route.path), "{}", route.path);
        }
    }
}

#[test]
fn the_default_policy_of_the_master_has_upstream_defaults() {
    let default = |name| find(MASTER_FLAGS, name).default;
    let ms = |name| Duration::from_millis(default(name).parse().unwrap());
    let seconds = |name| Duration::from_secs(default(name).parse().unwrap());
    let ratio = |name| default(name).parse::<f64>().unwrap();
    let policy = StorePolicy::default();
    assert_eq!(policy.lease_ttl, ms("default_kv_lease_ttl"));
    assert_eq!(policy.soft_pin_ttl, ms("default_kv_soft_pin_ttl"));
    assert_eq!(policy.soft_pin_ttl_max, ms("max_kv_soft_pin_ttl"));
    assert_eq!(policy.evict_soft_pinned.to_string(), default("allow_evict_soft_pinned_objects"));
    assert_eq!(
        (policy.eviction_ratio, policy.watermark),
        (ratio("eviction_ratio"), ratio("eviction_high_watermark_ratio"))
    );
    assert_eq!(policy.client_ttl, seconds("client_ttl"));
    assert_eq!(policy.put_discard_after, seconds("put_start_discard_timeout_sec"));
    assert_eq!(policy.put_release_after, seconds("put_start_release_timeout_sec"));
}

/// Text of the Rust sources below `folder`, without `src/engine/base/upstream`.
fn sources(folder: &str) -> String {
    let files = files_below(&root().join(folder)).into_iter();
    let is_rust = |path: &PathBuf| path.extension().is_some_and(|e| e == "rs");
    let is_list = |path: &PathBuf| path.starts_with(root().join("src/engine/base/upstream"));
    files.filter(|path| is_rust(path) && !is_list(path)).map(|path| text(&path)).collect()
}

#[test]
fn the_sources_name_only_listed_variables() {
    let name = Regex::new(r#""((?:MC|MOONCAKE)_[A-Z0-9_]+)""#).unwrap();
    let all = sources("src");
    let unknown: BTreeSet<_> = name.captures_iter(all.as_str()).map(|m| m.unwrap()[1].to_owned()).collect();
    let unknown: Vec<_> = unknown.into_iter().filter(|name| !known_variables().any(|known| known == name)).collect();
    assert_eq!(unknown, [ONLY_OURS]);
}

#[test]
fn the_sources_read_only_listed_metrics() {
    let name = Regex::new(r#"(?:sum|value|metric|grew)\("(master_\w+|\w+_nums_)"\)"#).unwrap();
    let mut count = 0;
    let all = sources("src/engine/doctor") + &sources("src/engine/load");
    for found in name.captures_iter(all.as_str()).map(Result::unwrap) {
        let family = found[1].trim_end_matches("_sum").trim_end_matches("_count").trim_end_matches("_bucket");
        let is_listed = |name: &str| MASTER_METRICS.iter().any(|metric| metric.name == name);
        assert!(is_listed(&found[1]) || is_listed(family), "{}", &found[1]);
        count += 1;
    }
    assert!(count > 20, "{count}");
}

#[test]
fn the_recorded_metrics_are_the_listed_ones() {
    let recorded = |name: &str| {
        let lines = text(&root().join("fixtures/http").join(name));
        lines.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>()
    };
    let listed = |rows: &[MetricFamily]| {
        rows.iter().map(|metric| format!("{} {}", metric.name, metric.kind.text())).collect::<Vec<_>>()
    };
    assert_eq!(listed(MASTER_METRICS), recorded("master-metrics-families.txt"));
    assert_eq!(listed(CLIENT_METRICS), recorded("client-metrics-families.txt"));
}
