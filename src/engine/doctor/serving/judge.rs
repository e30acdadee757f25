//! What the facts of SGLang servers mean. Pure: a function per check.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use crate::engine::base::{ByteSize, HostPort};
use crate::engine::check::{Finding, Severity, Status};
use crate::engine::doctor::serving::facts::{Facts, Info, Instance, Probe, Reading};
use crate::engine::doctor::{finding, listed, plural, shown, status};
use crate::engine::plan::client::PLAIN_SEGMENT_BYTES_MIN;
use crate::engine::plan::size_text;

/// Tokens written after which some should have been read.
const TOKENS_WORTH: f64 = 10_000.0;
/// A threshold above this leaves out most prompts.
const THRESHOLD_LONG: u64 = 1024;
/// Share of found tokens that were not used, from which on their reason is told.
const UNUSED_SHARE: f64 = 0.25;

/// The status of the check `id`, and how long its facts took.
pub fn judge(id: &'static str, facts: &Facts) -> (Status, Duration) {
    let took = facts.instances.iter().map(|instance| instance.took).max().unwrap_or_default();
    if facts.instances.is_empty() {
        return (Status::Skipped("no SGLang server was named: give --sglang URL".to_owned()), Duration::ZERO);
    }
    let status = match id {
        "sglang-reached" => reached(facts),
        "hicache-on" => hicache(facts),
        "l3-attached" => attached(facts),
        "l3-master" => master(facts),
        "prefetch-policy" => policy(facts),
        "serving-metrics" => metrics(facts),
        "l3-read" => read(facts),
        "same-fingerprint" => fingerprint(facts),
        "l3-probe" => probe(facts),
        // The catalogue's test holds that every line has an arm.
        _ => Status::Skipped("nothing judges it".to_owned()),
    };
    (status, took)
}

/// The servers that told their settings.
fn told(facts: &Facts) -> impl Iterator<Item = (&Instance, &Info)> {
    facts.instances.iter().filter_map(|instance| Some((instance, instance.info.as_ref().ok()?)))
}

/// Those of them whose third tier is the store.
fn with_store(facts: &Facts) -> impl Iterator<Item = (&Instance, &Info)> {
    told(facts).filter(|(_, info)| info.text("hicache_storage_backend").as_deref() == Some("mooncake"))
}

fn nobody(facts: &Facts) -> Option<Status> {
    told(facts).next().is_none().then(|| Status::Skipped("no server tells its settings".to_owned()))
}

fn reached(facts: &Facts) -> Status {
    let silent = facts.instances.iter().filter_map(|instance| {
        let why = instance.info.as_ref().err()?;
        Some(finding(
            "sglang-reached",
            Severity::Error,
            format!("the SGLang server at {} does not tell its settings", instance.url),
            why,
            "start it, give its URL as --sglang http://HOST:PORT, and its key if it wants one",
        ))
    });
    status(silent.collect(), || {
        let versions: Vec<String> = told(facts).filter_map(|(_, info)| info.text("version")).collect();
        format!("{}, release {}", plural(facts.instances.len(), "server"), listed(&versions))
    })
}

fn hicache(facts: &Facts) -> Status {
    if let Some(skipped) = nobody(facts) {
        return skipped;
    }
    let off = told(facts).filter(|(_, info)| !info.is_on("enable_hierarchical_cache")).map(|(instance, info)| {
        let (severity, what) = match info.is_decode() {
            true => (
                Severity::Info,
                "a decode server has no hierarchical cache, which is usual: its prefill server has one",
            ),
            false => (Severity::Error, "the hierarchical cache is off: the store is neither written nor read"),
        };
        finding(
            "hicache-on",
            severity,
            what,
            format!("{}: enable_hierarchical_cache is false", instance.url),
            "start it with --enable-hierarchical-cache --hicache-storage-backend mooncake",
        )
    });
    status(off.collect(), || "on".to_owned())
}

fn attached(facts: &Facts) -> Status {
    if let Some(skipped) = nobody(facts) {
        return skipped;
    }
    let mut findings: Vec<Finding> = Vec::new();
    for (instance, info) in told(facts).filter(|(_, info)| info.is_on("enable_hierarchical_cache")) {
        let backend = info.text("hicache_storage_backend");
        let layout = info.text("hicache_mem_layout").unwrap_or_default();
        match backend.as_deref() {
            Some("mooncake") if layout == "layer_first" && instance.is_mla != Some(true) => findings.push(finding(
                "l3-attached",
                Severity::Warning,
                "the layout of the host's pages does not fit the store: only MLA models can write layer_first pages",
                format!("{}: hicache_mem_layout layer_first", instance.url),
                "--hicache-mem-layout page_first (with --hicache-io-backend kernel) or page_first_direct (with direct)",
            )),
            Some("mooncake") => {}
            Some(other) => findings.push(finding(
                "l3-attached",
                Severity::Warning,
                "the third tier is not the Mooncake store",
                format!("{}: hicache_storage_backend {other}", instance.url),
                "--hicache-storage-backend mooncake",
            )),
            None => findings.push(finding(
                "l3-attached",
                Severity::Error,
                "there is no third tier: pages end in the host's memory, and nothing is shared",
                format!("{}: hicache_storage_backend is not set", instance.url),
                "--hicache-storage-backend mooncake, or attach it: PUT /hicache/storage-backend",
            )),
        }
    }
    if findings.is_empty() && with_store(facts).next().is_none() {
        return Status::Skipped("the hierarchical cache is off".to_owned());
    }
    status(findings, || "mooncake".to_owned())
}

fn master(facts: &Facts) -> Status {
    let mut findings: Vec<Finding> = Vec::new();
    let mut known = 0;
    for (instance, info) in with_store(facts) {
        let extra = info.extra();
        let at = extra.get("master_server_address").and_then(Value::as_str);
        known += usize::from(at.is_some());
        if let (Some(at), Some(master)) = (at, &facts.master)
            && let Ok(theirs) = at.parse::<HostPort>()
            && (theirs.port != master.port
                || theirs.host != master.host && !(theirs.is_loopback() || master.is_loopback()))
        {
            findings.push(finding(
                "l3-master",
                Severity::Warning,
                "the server uses another master than the one that is checked here",
                format!("{}: master_server_address {at}, checked {master}", instance.url),
                "give both the same address, or check that master: --master HOST:PORT",
            ));
        }
        let size = |name: &str| info.number(name).unwrap_or(1).max(1);
        let groups = if info.is_on("enable_dp_attention") { size("dp_size") } else { 1 };
        let ranks = (size("tp_size") / groups).max(1).saturating_mul(size("pp_size"));
        if let Some(bytes) = extra.get("global_segment_size").and_then(segment_bytes) {
            let rank = bytes / ranks;
            if bytes > 0 && rank < PLAIN_SEGMENT_BYTES_MIN {
                findings.push(finding(
                    "l3-master",
                    Severity::Error,
                    "a rank's share of global_segment_size is below 16 MiB: it mounts nothing",
                    format!("{}: {} over {ranks} ranks is {}", instance.url, ByteSize(bytes), ByteSize(rank)),
                    "global_segment_size is per server and divided by tp x pp: raise it, or set 0 and use store nodes",
                ));
            }
        }
    }
    if with_store(facts).next().is_none() {
        return Status::Skipped("no server uses the store".to_owned());
    }
    if findings.is_empty() && known == 0 {
        return Status::Skipped(
            "the servers take the master from their environment, which they do not tell".to_owned(),
        );
    }
    status(findings, || plural(known, "server"))
}

/// As SGLang reads it: whole bytes, or a whole number of `gb` of 1024^3.
fn segment_bytes(value: &Value) -> Option<u64> {
    match value {
        Value::String(text) => size_text::sglang_segment(text).ok(),
        other => other.as_u64(),
    }
}

fn policy(facts: &Facts) -> Status {
    if with_store(facts).next().is_none() {
        return Status::Skipped("no server uses the store".to_owned());
    }
    let mut findings: Vec<Finding> = Vec::new();
    for (instance, info) in with_store(facts) {
        let mut add = |severity, what: String, evidence: String, remedy: &str| {
            findings.push(finding("prefetch-policy", severity, what, format!("{}: {evidence}", instance.url), remedy));
        };
        let policy = info.text("hicache_storage_prefetch_policy").unwrap_or_default();
        if policy == "best_effort" {
            add(
                Severity::Warning,
                "reads from the third tier are given up as soon as the GPU is free: on an idle server nearly all of them".to_owned(),
                "hicache_storage_prefetch_policy best_effort".to_owned(),
                "--hicache-storage-prefetch-policy timeout (bounded) or wait_complete (every hit is used)",
            );
        }
        if policy == "wait_complete" && info.number("tp_size").unwrap_or(1) > 1 {
            add(
                Severity::Info,
                "a read that hangs holds all ranks: wait_complete has no limit of its own".to_owned(),
                format!("wait_complete with tp_size {}", info.number("tp_size").unwrap_or(1)),
                "--hicache-storage-prefetch-policy timeout bounds the wait",
            );
        }
        let extra = info.extra();
        let seconds = |name: &str| extra.get(name).and_then(Value::as_f64);
        if policy == "timeout" && seconds("prefetch_timeout_base").is_some_and(|base| base < 0.05) {
            add(
                Severity::Warning,
                "the time that a read may take is shorter than most reads".to_owned(),
                format!("prefetch_timeout_base {} s", seconds("prefetch_timeout_base").unwrap_or(0.0)),
                "leave prefetch_timeout_base at 1 and prefetch_timeout_per_ki_token at 0.25",
            );
        }
        let threshold = info.threshold();
        if threshold >= THRESHOLD_LONG {
            add(
                Severity::Warning,
                format!("prompts with fewer than {threshold} new tokens never ask the third tier"),
                format!("prefetch_threshold {threshold}, page_size {}", info.page_size()),
                "lower prefetch_threshold in --hicache-storage-backend-extra-config, or --page-size if that is what raises it",
            );
        }
        if info.page_size() < 16 {
            add(
                Severity::Info,
                "pages are small: every page is an object (two with MHA), and the master is asked for each".to_owned(),
                format!("page_size {}", info.page_size()),
                "--page-size 64 is the usual one with a third tier",
            );
        }
        let write = info.text("hicache_write_policy").unwrap_or_default();
        if write == "write_back" || write == "write_through_selective" {
            add(
                Severity::Info,
                "pages reach the third tier late: only when they are evicted, or hit a second time".to_owned(),
                format!("hicache_write_policy {write}"),
                "--hicache-write-policy write_through, where servers are to share what they have just computed",
            );
        }
    }
    status(findings, || {
        let policies: Vec<String> = with_store(facts)
            .map(|(_, info)| {
                format!(
                    "{} from {} tokens on",
                    info.text("hicache_storage_prefetch_policy").unwrap_or_default(),
                    info.threshold()
                )
            })
            .collect();
        listed(&policies)
    })
}

fn metrics(facts: &Facts) -> Status {
    if let Some(skipped) = nobody(facts) {
        return skipped;
    }
    let off = told(facts).filter(|(instance, _)| instance.metrics.is_none()).map(|(instance, info)| {
        finding(
            "serving-metrics",
            Severity::Info,
            "the server counts nothing, so nobody sees which tier answers",
            format!("{}/metrics has no samples, enable_metrics is {}", instance.url, info.is_on("enable_metrics")),
            "start it with --enable-metrics (and --enable-cache-report for cached tokens in each answer)",
        )
    });
    status(off.collect(), || "on".to_owned())
}

fn read(facts: &Facts) -> Status {
    let counted: Vec<(&Instance, &crate::engine::http::Samples)> =
        with_store(facts).filter_map(|(instance, _)| Some((instance, instance.metrics.as_ref()?))).collect();
    if counted.is_empty() {
        return Status::Skipped("no server that uses the store counts (--enable-metrics)".to_owned());
    }
    let master = facts.counters.as_ref().map_or(String::new(), |page| {
        format!("; the master's valid_get_nums_ is {}", page.sum("valid_get_nums_").unwrap_or(0.0))
    });
    let mut findings: Vec<Finding> = Vec::new();
    let mut shares: Vec<String> = Vec::new();
    for (instance, page) in counted {
        let value = |name: &str| page.sum(&format!("sglang:{name}")).unwrap_or(0.0);
        let (host, written) = (value("hicache_backup_tokens_total"), value("backuped_tokens_total"));
        let (found, fetched) = (value("storage_prefetch_hit_tokens_total"), value("prefetched_tokens_total"));
        let used = page.sum_where("sglang:cached_tokens_total", "cache_source", "storage").unwrap_or(0.0);
        let seen = format!(
            "{}: {host} tokens written to the host, {written} to the store, {found} found there, {fetched} fetched, {used} used{master}",
            instance.url
        );
        let mut add = |severity, what: &str, evidence: String, remedy: &str| {
            findings.push(finding("l3-read", severity, what, evidence, remedy));
        };
        if host >= TOKENS_WORTH && written == 0.0 {
            add(
                Severity::Error,
                "pages are backed up to the host and none reaches the store",
                seen,
                "see the server's log for -900 (another Mooncake release), -200 (no room) and -800 (nodes out of reach)",
            );
        } else if written >= TOKENS_WORTH && fetched == 0.0 && used == 0.0 {
            let (severity, why) = match found {
                // As on every server whose upper tiers hold all that comes again.
                0.0 => (
                    Severity::Info,
                    "nothing that was asked for is found: no prompt comes again, its data is still in the tiers above, or keys differ",
                ),
                _ => (Severity::Warning, "what is found is not fetched"),
            };
            add(
                severity,
                "the third tier is written and never read",
                format!("{seen}; {why}"),
                "send a prompt twice with a flush between: --probe-serving; compare the servers: --sglang URL for each",
            );
        }
        let unused = page.by("sglang:storage_prefetch_unfulfilled_tokens_total", "reason");
        let worst = unused.iter().max_by(|a, b| a.1.total_cmp(&b.1)).filter(|(_, tokens)| *tokens > 0.0);
        if let Some((reason, tokens)) = worst
            && *tokens >= (found * UNUSED_SHARE).max(TOKENS_WORTH)
        {
            add(
                Severity::Info,
                "much of what the third tier has is not used",
                format!("{}: {tokens} tokens for the reason {reason}, {found} found", instance.url),
                reason_remedy(reason),
            );
        }
        shares.push(format!("{written} tokens written, {used} used from the store"));
    }
    status(findings, || listed(&shares))
}

fn reason_remedy(reason: &str) -> &'static str {
    match reason {
        "below_threshold" => "lower prefetch_threshold in --hicache-storage-backend-extra-config",
        "host_capacity" => "a larger --hicache-size: reads may take half of the host's pool",
        "device_capacity" => "more KV cache on the GPU (--mem-fraction-static), or fewer requests at once",
        "deadline" => "--hicache-storage-prefetch-policy wait_complete, or longer prefetch_timeout_base",
        "storage_transfer" => "see the nodes: mcctl doctor --only cluster",
        _ => "see SGLang's log of that time",
    }
}

/// What has to be the same in all servers for one to find what another has written.
const FINGERPRINT: &[&str] = &[
    "served_model_name",
    "page_size",
    "tp_size",
    "pp_size",
    "kv_cache_dtype",
    "dtype",
    "hicache_mem_layout",
    "enable_dp_attention",
    "attn_cp_size",
];

fn fingerprint(facts: &Facts) -> Status {
    let servers: Vec<(&Instance, &Info)> = with_store(facts).collect();
    if servers.len() < 2 {
        return Status::Skipped("fewer than two servers that use the store were named".to_owned());
    }
    let mut findings: Vec<Finding> = Vec::new();
    let is_mla = servers.iter().all(|(instance, _)| instance.is_mla == Some(true));
    let mut compare = |name: &str, values: Vec<(String, &str)>| {
        let mut by: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for (value, url) in values {
            by.entry(value).or_default().push(url);
        }
        if by.len() < 2 {
            return;
        }
        let shown: Vec<String> = by.iter().map(|(value, urls)| format!("{value}: {}", listed(urls))).collect();
        let is_harmless = name == "tp_size" && is_mla || name == "version" || name == "hicache_mem_layout";
        let (severity, what) = match is_harmless {
            true => (Severity::Info, format!("servers differ in {name}, which may keep them from sharing pages")),
            false => (Severity::Error, format!("servers differ in {name}: none finds what the others have written")),
        };
        let remedy = "start all of them with the same settings, or on purpose with different extra_backend_tag";
        findings.push(finding("same-fingerprint", severity, what, format!("{name}: {}", shown.join("; ")), remedy));
    };
    for name in FINGERPRINT {
        let of =
            |(instance, info): &(&'_ Instance, &'_ Info)| info.text(name).unwrap_or_default() + "\u{0}" + &instance.url;
        let texts: Vec<String> = servers.iter().map(of).collect();
        let values =
            texts.iter().filter_map(|text| text.split_once('\u{0}')).map(|(value, url)| (value.to_owned(), url));
        compare(name, values.collect());
    }
    let tag = |info: &Info| info.extra().get("extra_backend_tag").map(Value::to_string).unwrap_or_default();
    compare("extra_backend_tag", servers.iter().map(|(i, info)| (tag(info), &*i.url)).collect());
    compare("version", servers.iter().map(|(i, info)| (info.text("version").unwrap_or_default(), &*i.url)).collect());
    let prefixes: Vec<(String, &str)> =
        servers.iter().filter_map(|(i, _)| Some((i.key_prefix.clone()?, &*i.url))).collect();
    compare("key_prefix", prefixes);
    let masters: Vec<(String, &str)> = servers
        .iter()
        .filter_map(|(i, info)| Some((info.extra().get("master_server_address")?.to_string(), &*i.url)))
        .collect();
    compare("master_server_address", masters);
    status(findings, || format!("{} agree", plural(servers.len(), "server")))
}

fn probe(facts: &Facts) -> Status {
    let Some(probes) = &facts.probe else {
        return Status::Skipped(
            "it sends a prompt and empties a server's caches: ask for it with --probe-serving".to_owned(),
        );
    };
    if probes.is_empty() {
        return Status::Skipped("no server tells its settings".to_owned());
    }
    let mut findings: Vec<Finding> = Vec::new();
    for probe in probes {
        match &probe.end {
            Err(why) => findings.push(finding(
                "l3-probe",
                Severity::Warning,
                "the prompt could not be sent twice",
                format!("{}: {why}", probe.url),
                "see whether the server is idle, and whether it takes token ids on /generate",
            )),
            Ok(reading) => findings.extend(judge_reading(probe, reading)),
        }
    }
    status(findings, || {
        let ends: Vec<String> =
            probes.iter().filter_map(|probe| Some(came_back(probe, probe.end.as_ref().ok()?))).collect();
        listed(&ends)
    })
}

fn came_back(probe: &Probe, reading: &Reading) -> String {
    format!(
        "{} of {} tokens from the store in {} (cold {})",
        reading.cached.storage,
        probe.tokens,
        shown(reading.times.1),
        shown(reading.times.0)
    )
}

fn judge_reading(probe: &Probe, reading: &Reading) -> Option<Finding> {
    let cached = reading.cached;
    let tiers = format!(
        "device {}, host {}, storage {} of {} tokens",
        cached.device, cached.host, cached.storage, probe.tokens
    );
    let written = reading.written.map_or(String::new(), |tokens| format!("; {tokens} were written"));
    let unused: Vec<String> = reading.unfulfilled.iter().map(|(reason, n)| format!("{n} {reason}")).collect();
    let unused = if unused.is_empty() { String::new() } else { format!("; not used: {}", unused.join(", ")) };
    let evidence = format!("{}: {tiers}{written}{unused}", probe.url);
    let found =
        |severity, what: &str, remedy: &str| Some(finding("l3-probe", severity, what, evidence.clone(), remedy));
    match () {
        () if cached.storage > 0 && !reading.is_same => found(
            Severity::Warning,
            "the prompt came back from the store, and other tokens were generated than without it",
            "run it again: batches of different sizes may differ in the last bits; if it stays, compare dtype and release of the servers",
        ),
        () if cached.storage > 0 => None,
        () if cached.device + cached.host > 0 => found(
            Severity::Warning,
            "the prompt was still in the tiers above the store, so nothing is known of the third one",
            "run it again when the server is idle: a busy one is not flushed",
        ),
        () if reading.written == Some(0.0) => found(
            Severity::Error,
            "no page of the prompt was written to the store",
            "see hicache_write_policy, and the server's log for -900 (another release), -200 (no room), -800 (nodes out of reach)",
        ),
        () if reading.by_another => found(
            Severity::Error,
            "what one server has written another one does not find",
            "see same-fingerprint: model name, page size, tp and dtype have to be the same, and the master, too",
        ),
        () => found(
            Severity::Error,
            "pages are written to the store and not read back",
            "see prefetch-policy; the first prompt after a start may be too early (its page hash is compiled): run it again",
        ),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::engine::doctor::serving::CHECKS;
    use crate::engine::doctor::serving::facts::Cached;
    use crate::engine::http::Samples;

    fn info(more: Value) -> Info {
        let mut base = json!({
            "version": "0.5.23", "served_model_name": "m", "page_size": 64, "tp_size": 2, "pp_size": 1, "dtype": "bfloat16",
            "kv_cache_dtype": "auto", "enable_hierarchical_cache": true, "hicache_storage_backend": "mooncake",
            "hicache_mem_layout": "page_first", "hicache_write_policy": "write_through",
            "hicache_storage_prefetch_policy": "timeout", "hicache_storage_backend_extra_config": null,
            "enable_metrics": true, "disaggregation_mode": "null",
        });
        for (name, value) in more.as_object().expect("settings") {
            base[name] = value.clone();
        }
        Info(base.as_object().cloned().expect("an object"))
    }

    const READ: &str = "sglang:hicache_backup_tokens_total 50000\nsglang:backuped_tokens_total 50000\n\
        sglang:storage_prefetch_hit_tokens_total 30000\nsglang:prefetched_tokens_total 30000\n\
        sglang:cached_tokens_total{cache_source=\"storage\"} 30000\n";

    fn instance(url: &str, more: Value) -> Instance {
        Instance {
            url: url.to_owned(),
            info: Ok(info(more)),
            metrics: Some(Samples::parse(READ)),
            key_prefix: None,
            is_mla: Some(false),
            took: Duration::from_millis(3),
        }
    }

    fn one(more: Value) -> Facts {
        Facts { instances: vec![instance("http://a:1", more)], master: None, counters: None, probe: None }
    }

    #[track_caller]
    fn says(status: &Status, severity: Severity, part: &str) {
        let Status::Found(findings) = status else { panic!("nothing found: {status:?}") };
        assert!(findings.iter().any(|f| f.severity == severity && f.finding.contains(part)), "{findings:?}");
    }

    #[test]
    fn a_server_as_it_should_be_has_nothing_to_say_and_every_check_has_an_arm() {
        let mut facts = one(json!({}));
        facts.instances.push(instance("http://b:1", json!({})));
        for check in CHECKS {
            let (status, _) = judge(check.id, &facts);
            assert!(!matches!(status, Status::Found(_)), "{}: {status:?}", check.id);
            assert_ne!(status, Status::Skipped("nothing judges it".to_owned()), "{}", check.id);
        }
    }

    #[test]
    fn a_server_that_is_away_without_hicache_without_l3_or_with_another_one_is_found() {
        let mut away = one(json!({}));
        away.instances[0].info = Err("Connection refused".to_owned());
        says(&reached(&away), Severity::Error, "does not tell its settings");
        assert!(matches!(hicache(&away), Status::Skipped(_)));
        says(&hicache(&one(json!({"enable_hierarchical_cache": false}))), Severity::Error, "is off");
        let decode = json!({"enable_hierarchical_cache": false, "disaggregation_mode": "decode"});
        says(&hicache(&one(decode)), Severity::Info, "decode server");
        says(&attached(&one(json!({"hicache_storage_backend": null}))), Severity::Error, "no third tier");
        says(&attached(&one(json!({"hicache_storage_backend": "file"}))), Severity::Warning, "not the Mooncake store");
        says(
            &attached(&one(json!({"hicache_mem_layout": "layer_first"}))),
            Severity::Warning,
            "does not fit the store",
        );
    }

    #[test]
    fn policies_that_keep_the_third_tier_from_being_read_are_found() {
        says(&policy(&one(json!({"hicache_storage_prefetch_policy": "best_effort"}))), Severity::Warning, "given up");
        says(&policy(&one(json!({"page_size": 2048}))), Severity::Warning, "fewer than 2048");
        let extra = json!({"hicache_storage_backend_extra_config": "{\"prefetch_threshold\": 5000}"});
        says(&policy(&one(extra)), Severity::Warning, "fewer than 5000");
        let short = json!({"hicache_storage_backend_extra_config": {"prefetch_timeout_base": 0.001}});
        says(&policy(&one(short)), Severity::Warning, "shorter than most reads");
        says(&policy(&one(json!({"page_size": 1}))), Severity::Info, "pages are small");
        says(&policy(&one(json!({"hicache_write_policy": "write_back"}))), Severity::Info, "late");
        says(
            &policy(&one(json!({"hicache_storage_prefetch_policy": "wait_complete"}))),
            Severity::Info,
            "holds all ranks",
        );
    }

    #[test]
    fn another_master_and_a_rank_segment_below_16_mib_are_found() {
        let mut facts = one(json!({"hicache_storage_backend_extra_config":
            {"master_server_address": "10.0.0.9:50051", "global_segment_size": "4gb"}}));
        facts.master = Some(HostPort::new("10.0.0.9", 50_051));
        assert!(matches!(master(&facts), Status::Passed(_)));
        facts.master = Some(HostPort::new("10.0.0.8", 50_051));
        says(&master(&facts), Severity::Warning, "another master");
        let small = json!({"hicache_storage_backend_extra_config": {"global_segment_size": 33_554_430}});
        says(&master(&one(small)), Severity::Error, "below 16 MiB");
        // Each of two ranks is an attention group of its own, and has the whole.
        let whole = json!({"hicache_storage_backend_extra_config": {"global_segment_size": 16_777_216},
            "enable_dp_attention": true, "dp_size": 2, "tp_size": 2});
        assert!(matches!(master(&one(whole)), Status::Skipped(_)));
        assert!(matches!(master(&one(json!({}))), Status::Skipped(_)));
    }

    #[test]
    fn a_tier_that_is_not_written_or_not_read_is_told_from_one_that_is() {
        let with = |text: &str| {
            let mut facts = one(json!({}));
            facts.instances[0].metrics = Some(Samples::parse(text));
            facts
        };
        says(&read(&with("sglang:hicache_backup_tokens_total 50000\n")), Severity::Error, "none reaches the store");
        let written = "sglang:hicache_backup_tokens_total 50000\nsglang:backuped_tokens_total 50000\n";
        says(&read(&with(written)), Severity::Info, "written and never read");
        let found = format!("{written}sglang:storage_prefetch_hit_tokens_total 20000\n");
        says(&read(&with(&found)), Severity::Warning, "written and never read");
        let few = "sglang:hicache_backup_tokens_total 500\nsglang:backuped_tokens_total 500\n";
        assert!(matches!(read(&with(few)), Status::Passed(_)));
        let unused = format!("{READ}sglang:storage_prefetch_unfulfilled_tokens_total{{reason=\"deadline\"}} 20000\n");
        says(&read(&with(&unused)), Severity::Info, "not used");
        let mut blind = one(json!({}));
        blind.instances[0].metrics = None;
        says(&metrics(&blind), Severity::Info, "counts nothing");
    }

    #[test]
    fn servers_that_differ_in_what_makes_a_key_share_nothing() {
        for (name, value) in [
            ("page_size", json!(32)),
            ("tp_size", json!(4)),
            ("served_model_name", json!("other")),
            ("kv_cache_dtype", json!("fp8_e4m3")),
            ("hicache_storage_backend_extra_config", json!({"extra_backend_tag": "blue"})),
        ] {
            let mut facts = one(json!({}));
            facts.instances.push(instance("http://b:1", json!({name: value})));
            says(&fingerprint(&facts), Severity::Error, "none finds what the others have written");
        }
        let mut mla = one(json!({}));
        mla.instances.push(instance("http://b:1", json!({"tp_size": 4})));
        mla.instances.iter_mut().for_each(|instance| instance.is_mla = Some(true));
        says(&fingerprint(&mla), Severity::Info, "tp_size");
        assert!(matches!(fingerprint(&one(json!({}))), Status::Skipped(_)));
    }

    #[test]
    fn the_probes_verdict_has_the_numbers() {
        let with = |written, cached, by_another, is_same| {
            let times = (Duration::from_millis(150), Duration::from_millis(35));
            let end = Ok(Reading { by_another, written, cached, is_same, times, unfulfilled: Vec::new() });
            let mut facts = one(json!({}));
            facts.probe = Some(vec![Probe { url: "http://a:1".to_owned(), tokens: 800, end }]);
            probe(&facts)
        };
        let stored = Cached { device: 0, host: 0, storage: 784 };
        assert_eq!(
            with(Some(784.0), stored, false, true),
            Status::Passed("784 of 800 tokens from the store in 35.0 ms (cold 150.0 ms)".to_owned())
        );
        says(&with(Some(784.0), stored, false, false), Severity::Warning, "other tokens");
        says(&with(Some(0.0), Cached::default(), false, true), Severity::Error, "no page of the prompt was written");
        says(&with(Some(784.0), Cached::default(), false, true), Severity::Error, "not read back");
        says(&with(None, Cached::default(), true, true), Severity::Error, "another one does not find");
        let above = Cached { device: 784, host: 0, storage: 0 };
        says(&with(Some(784.0), above, false, true), Severity::Warning, "still in the tiers above");
        let mut failed = one(json!({}));
        failed.probe = Some(vec![Probe { url: "http://a:1".to_owned(), tokens: 800, end: Err("HTTP 400".to_owned()) }]);
        says(&probe(&failed), Severity::Warning, "could not be sent");
        assert!(matches!(probe(&one(json!({}))), Status::Skipped(_)));
    }
}
