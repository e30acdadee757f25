//! Judges the facts of SGLang servers: one pure function per check.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use crate::serving::facts::{Instance, L3Probe, L3Read, ServerSettings, ServingFacts};
use crate::{finding, listed, status};
use mcctl_base::check::{CheckStatus, Finding, Severity};
use mcctl_base::text::counted;
use mcctl_base::time::RoundedDuration;
use mcctl_base::{ByteSize, HostPort};
use mcctl_deploy::plan::client::PLAIN_SEGMENT_BYTES_MIN;
use mcctl_deploy::plan::size_text;

/// Number of written tokens above which reads are expected.
const TOKENS_WORTH: f64 = 10_000.0;
/// A threshold above this excludes most prompts.
const THRESHOLD_LONG: u64 = 1024;
/// If the share of tokens that were found but not used exceeds this value, the reason is reported.
const UNUSED_SHARE: f64 = 0.25;

/// The status of the check `id`, and how long gathering its facts took.
pub(super) fn judge(id: &'static str, facts: &ServingFacts) -> (CheckStatus, Duration) {
    let took = facts.instances.iter().map(|instance| instance.took).max().unwrap_or_default();
    if facts.instances.is_empty() {
        return (CheckStatus::Skipped("no SGLang server specified: use --sglang URL".to_owned()), Duration::ZERO);
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
        // A test asserts that every check in this group has a match arm.
        _ => CheckStatus::Skipped("not implemented".to_owned()),
    };
    (status, took)
}

/// The servers that reported their settings.
fn with_settings(facts: &ServingFacts) -> impl Iterator<Item = (&Instance, &ServerSettings)> {
    facts.instances.iter().filter_map(|instance| Some((instance, instance.info.as_ref().ok()?)))
}

/// The servers that reported their settings and use the store as L3.
fn with_store(facts: &ServingFacts) -> impl Iterator<Item = (&Instance, &ServerSettings)> {
    with_settings(facts).filter(|(_, info)| info.has_mooncake_backend())
}

fn no_settings(facts: &ServingFacts) -> Option<CheckStatus> {
    with_settings(facts).next().is_none().then(|| CheckStatus::Skipped("no server reported its settings".to_owned()))
}

fn reached(facts: &ServingFacts) -> CheckStatus {
    let silent = facts.instances.iter().filter_map(|instance| {
        let why = instance.info.as_ref().err()?;
        Some(finding(
            "sglang-reached",
            Severity::Error,
            format!("the SGLang server at {} did not report its settings", instance.url),
            why,
            "start the server, check --sglang http://HOST:PORT, and set SGLANG_API_KEY if the server requires a key",
        ))
    });
    status(silent.collect(), || {
        let versions: Vec<String> = with_settings(facts).filter_map(|(_, info)| info.text("version")).collect();
        format!("{}, release {}", counted(facts.instances.len(), "server"), listed(&versions))
    })
}

fn hicache(facts: &ServingFacts) -> CheckStatus {
    if let Some(skipped) = no_settings(facts) {
        return skipped;
    }
    let off =
        with_settings(facts).filter(|(_, info)| !info.is_on("enable_hierarchical_cache")).map(|(instance, info)| {
            let (severity, what) = match info.is_decode() {
                true => (
                    Severity::Info,
                    "a decode server has no hierarchical cache; this is normal, because its prefill server has one",
                ),
                false => (
                    Severity::Error,
                    "the hierarchical cache is disabled: the store is neither written to nor read from",
                ),
            };
            finding(
                "hicache-on",
                severity,
                what,
                format!("{}: enable_hierarchical_cache is false", instance.url),
                "start the server with --enable-hierarchical-cache --hicache-storage-backend mooncake",
            )
        });
    status(off.collect(), || "enabled".to_owned())
}

fn attached(facts: &ServingFacts) -> CheckStatus {
    if let Some(skipped) = no_settings(facts) {
        return skipped;
    }
    let mut findings: Vec<Finding> = Vec::new();
    for (instance, info) in with_settings(facts).filter(|(_, info)| info.is_on("enable_hierarchical_cache")) {
        let backend = info.text("hicache_storage_backend");
        let layout = info.text("hicache_mem_layout").unwrap_or_default();
        match backend.as_deref() {
            Some(_) if info.has_mooncake_backend() && layout == "layer_first" && instance.is_mla != Some(true) => findings.push(finding(
                "l3-attached",
                Severity::Warning,
                "the host memory layout is incompatible with the store: only MLA models can store layer_first pages",
                format!("{}: hicache_mem_layout layer_first", instance.url),
                "set --hicache-mem-layout to page_first (with --hicache-io-backend kernel) or page_first_direct (with direct)",
            )),
            Some(_) if info.has_mooncake_backend() => {}
            Some(other) => findings.push(finding(
                "l3-attached",
                Severity::Warning,
                "the L3 tier is not the Mooncake store",
                format!("{}: hicache_storage_backend {other}", instance.url),
                "set --hicache-storage-backend to mooncake, or load mcctl's client with dynamic (docs/engines.md)",
            )),
            None => findings.push(finding(
                "l3-attached",
                Severity::Error,
                "no L3 tier is configured: pages stay in host memory and are not shared",
                format!("{}: hicache_storage_backend is not set", instance.url),
                "set --hicache-storage-backend to mooncake, or attach it at run time: PUT /hicache/storage-backend",
            )),
        }
    }
    if findings.is_empty() && with_store(facts).next().is_none() {
        return CheckStatus::Skipped("the hierarchical cache is disabled".to_owned());
    }
    status(findings, || "mooncake".to_owned())
}

fn master(facts: &ServingFacts) -> CheckStatus {
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
                "the server uses a different master than the one checked here",
                format!("{}: master_server_address {at}, checked {master}", instance.url),
                "set the same address for both, or check the server's master: --master HOST:PORT",
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
                    "a rank's share of global_segment_size is below 16 MiB, so it mounts no segment",
                    format!("{}: {} across {ranks} ranks is {} each", instance.url, ByteSize(bytes), ByteSize(rank)),
                    "global_segment_size is per server and divided by tp x pp: raise it, or set it to 0 and use store nodes",
                ));
            }
        }
    }
    if with_store(facts).next().is_none() {
        return CheckStatus::Skipped("no server uses the store".to_owned());
    }
    if findings.is_empty() && known == 0 {
        return CheckStatus::Skipped(
            "the servers read the master address from their environment, which they do not report".to_owned(),
        );
    }
    status(findings, || counted(known, "server"))
}

/// Parses a size as SGLang does: whole bytes, or a whole number of `gb` (1024^3 bytes).
fn segment_bytes(value: &Value) -> Option<u64> {
    match value {
        Value::String(text) => size_text::sglang_segment(text).ok(),
        other => other.as_u64(),
    }
}

fn policy(facts: &ServingFacts) -> CheckStatus {
    if with_store(facts).next().is_none() {
        return CheckStatus::Skipped("no server uses the store".to_owned());
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
                "best_effort cancels L3 reads as soon as the GPU is free: on an idle server, nearly all L3 reads are canceled"
                    .to_owned(),
                "hicache_storage_prefetch_policy best_effort".to_owned(),
                "set --hicache-storage-prefetch-policy to timeout (bounded) or wait_complete (every hit is used)",
            );
        }
        if policy == "wait_complete" && info.number("tp_size").unwrap_or(1) > 1 {
            add(
                Severity::Info,
                "a hanging L3 read blocks all ranks: wait_complete has no timeout".to_owned(),
                format!("wait_complete with tp_size {}", info.number("tp_size").unwrap_or(1)),
                "set --hicache-storage-prefetch-policy to timeout to bound the wait",
            );
        }
        let extra = info.extra();
        let seconds = |name: &str| extra.get(name).and_then(Value::as_f64);
        if policy == "timeout" && seconds("prefetch_timeout_base").is_some_and(|base| base < 0.05) {
            add(
                Severity::Warning,
                "the prefetch timeout is shorter than most L3 reads".to_owned(),
                format!("prefetch_timeout_base {} s", seconds("prefetch_timeout_base").unwrap_or(0.0)),
                "leave prefetch_timeout_base at 1 and prefetch_timeout_per_ki_token at 0.25",
            );
        }
        let threshold = info.threshold();
        if threshold >= THRESHOLD_LONG {
            add(
                Severity::Warning,
                format!("prompts with fewer than {threshold} uncached tokens never query L3"),
                format!("prefetch_threshold {threshold}, page_size {}", info.page_size()),
                "lower prefetch_threshold in --hicache-storage-backend-extra-config, or lower --page-size if it raises the threshold",
            );
        }
        if info.page_size() < 16 {
            add(
                Severity::Info,
                "the page size is small: each page is an object (two with MHA) and requires a lookup on the master"
                    .to_owned(),
                format!("page_size {}", info.page_size()),
                "--page-size 64 is common with an L3 tier",
            );
        }
        let write = info.text("hicache_write_policy").unwrap_or_default();
        if write == "write_back" || write == "write_through_selective" {
            add(
                Severity::Info,
                "pages reach L3 late: only when they are evicted or hit a second time".to_owned(),
                format!("hicache_write_policy {write}"),
                "set --hicache-write-policy to write_through if servers should share new pages immediately",
            );
        }
    }
    status(findings, || {
        let policies: Vec<String> = with_store(facts)
            .map(|(_, info)| {
                format!(
                    "{}, threshold {} tokens",
                    info.text("hicache_storage_prefetch_policy").unwrap_or_default(),
                    info.threshold()
                )
            })
            .collect();
        listed(&policies)
    })
}

fn metrics(facts: &ServingFacts) -> CheckStatus {
    if let Some(skipped) = no_settings(facts) {
        return skipped;
    }
    let off = with_settings(facts).filter(|(instance, _)| instance.metrics.is_none()).map(|(instance, info)| {
        finding(
            "serving-metrics",
            Severity::Info,
            "the server does not export metrics, so the hits per tier are unknown",
            format!("{}/metrics has no samples, enable_metrics is {}", instance.url, info.is_on("enable_metrics")),
            "start the server with --enable-metrics (and --enable-cache-report for cached tokens in each response)",
        )
    });
    status(off.collect(), || "enabled".to_owned())
}

fn read(facts: &ServingFacts) -> CheckStatus {
    let counted: Vec<(&Instance, &mcctl_net::http::Samples)> =
        with_store(facts).filter_map(|(instance, _)| Some((instance, instance.metrics.as_ref()?))).collect();
    if counted.is_empty() {
        return CheckStatus::Skipped("no server that uses the store exports metrics (--enable-metrics)".to_owned());
    }
    let master = facts.counters.as_ref().map_or(String::new(), |page| {
        format!("; the master's valid_get_nums_ is {}", page.sum("valid_get_nums_").unwrap_or(0.0))
    });
    let mut findings: Vec<Finding> = Vec::new();
    let mut shares: Vec<String> = Vec::new();
    for (instance, page) in counted {
        let value = |name: &str| page.sum(&format!("sglang:{name}")).unwrap_or(0.0);
        let host = value("hicache_backup_tokens_total");
        let written = value("backuped_tokens_total");
        let found = value("storage_prefetch_hit_tokens_total");
        let fetched = value("prefetched_tokens_total");
        let used = page.sum_where("sglang:cached_tokens_total", "cache_source", "storage").unwrap_or(0.0);
        let seen = format!(
            "{}: {host} tokens written to the host, {written} to the store, {found} found in the store, {fetched} fetched, {used} used{master}",
            instance.url
        );
        let mut add = |severity, what: &str, evidence: String, remedy: &str| {
            findings.push(finding("l3-read", severity, what, evidence, remedy));
        };
        if host >= TOKENS_WORTH && written == 0.0 {
            add(
                Severity::Error,
                "pages are backed up to host memory, but none reaches the store",
                seen,
                "check the server's log for -900 (different Mooncake release), -200 (no space) and -800 (nodes unreachable)",
            );
        } else if written >= TOKENS_WORTH && fetched == 0.0 && used == 0.0 {
            let (severity, why) = match found {
                // Typical of a server whose upper tiers hold everything that is requested again.
                0.0 => (
                    Severity::Info,
                    "lookups have no hits: no prompt is repeated, the pages are still in L1 or L2, or keys differ",
                ),
                _ => (Severity::Warning, "found pages are not fetched"),
            };
            add(
                severity,
                "L3 is written to but never read from",
                format!("{seen}; {why}"),
                "verify with --probe-serving (a prompt sent twice with a flush in between), and compare the servers (--sglang URL for each)",
            );
        }
        let unused = page.by("sglang:storage_prefetch_unfulfilled_tokens_total", "reason");
        let worst = unused.iter().max_by(|a, b| a.1.total_cmp(&b.1)).filter(|(_, tokens)| *tokens > 0.0);
        if let Some((reason, tokens)) = worst
            && *tokens >= (found * UNUSED_SHARE).max(TOKENS_WORTH)
        {
            add(
                Severity::Info,
                "many tokens found in L3 are not used",
                format!("{}: {tokens} tokens unused (reason: {reason}), {found} found", instance.url),
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
        "host_capacity" => "increase --hicache-size: reads may use half of the host pool",
        "device_capacity" => "increase the KV cache on the GPU (--mem-fraction-static), or reduce concurrency",
        "deadline" => "set --hicache-storage-prefetch-policy to wait_complete, or raise prefetch_timeout_base",
        "storage_transfer" => "check the nodes: mcctl doctor --only cluster",
        _ => "check SGLang's log",
    }
}

/// Settings that must match on all servers for pages to be shared.
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

fn fingerprint(facts: &ServingFacts) -> CheckStatus {
    let servers: Vec<(&Instance, &ServerSettings)> = with_store(facts).collect();
    if servers.len() < 2 {
        return CheckStatus::Skipped("fewer than two servers that use the store were specified".to_owned());
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
            true => (Severity::Info, format!("servers differ in {name}, which may prevent them from sharing pages")),
            false => (Severity::Error, format!("servers differ in {name}: they cannot read each other's pages")),
        };
        let remedy =
            "start all servers with the same settings, or separate them with different extra_backend_tag values";
        findings.push(finding("same-fingerprint", severity, what, format!("{name}: {}", shown.join("; ")), remedy));
    };
    for name in FINGERPRINT {
        let of = |(instance, info): &(&'_ Instance, &'_ ServerSettings)| {
            info.text(name).unwrap_or_default() + "\u{0}" + &instance.url
        };
        let texts: Vec<String> = servers.iter().map(of).collect();
        let values =
            texts.iter().filter_map(|text| text.split_once('\u{0}')).map(|(value, url)| (value.to_owned(), url));
        compare(name, values.collect());
    }
    let tag = |info: &ServerSettings| info.extra().get("extra_backend_tag").map(Value::to_string).unwrap_or_default();
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
    status(findings, || format!("{} agree", counted(servers.len(), "server")))
}

fn probe(facts: &ServingFacts) -> CheckStatus {
    let Some(probes) = &facts.probe else {
        return CheckStatus::Skipped(
            "this check sends a prompt and empties a server's caches; enable it with --probe-serving".to_owned(),
        );
    };
    if probes.is_empty() {
        return CheckStatus::Skipped("no server reported its settings".to_owned());
    }
    let mut findings: Vec<Finding> = Vec::new();
    for probe in probes {
        match &probe.end {
            Err(why) => findings.push(finding(
                "l3-probe",
                Severity::Warning,
                "the prompt could not be sent twice",
                format!("{}: {why}", probe.url),
                "check that the server is idle and accepts token IDs on /generate",
            )),
            Ok(reading) => findings.extend(judge_reading(probe, reading)),
        }
    }
    status(findings, || {
        let ends: Vec<String> =
            probes.iter().filter_map(|probe| Some(describe_read(probe, probe.end.as_ref().ok()?))).collect();
        listed(&ends)
    })
}

fn describe_read(probe: &L3Probe, reading: &L3Read) -> String {
    format!(
        "{} of {} tokens from the store in {} (cold {})",
        reading.cached.storage,
        probe.tokens,
        RoundedDuration(reading.times.1),
        RoundedDuration(reading.times.0)
    )
}

fn judge_reading(probe: &L3Probe, reading: &L3Read) -> Option<Finding> {
    let cached = reading.cached;
    let tiers = format!(
        "device {}, host {}, storage {} of {} tokens",
        cached.device, cached.host, cached.storage, probe.tokens
    );
    let written = reading.written.map_or(String::new(), |tokens| format!("; {tokens} written"));
    let unused: Vec<String> = reading.unfulfilled.iter().map(|(reason, n)| format!("{n} {reason}")).collect();
    let unused = if unused.is_empty() { String::new() } else { format!("; not used: {}", unused.join(", ")) };
    let evidence = format!("{}: {tiers}{written}{unused}", probe.url);
    let found =
        |severity, what: &str, remedy: &str| Some(finding("l3-probe", severity, what, evidence.clone(), remedy));
    match () {
        () if cached.storage > 0 && !reading.is_same => found(
            Severity::Warning,
            "with pages loaded from the store, the server generated different tokens than without them",
            "run the check again: results from batches of different sizes may differ in the last bits; \
             if the difference persists, compare the servers' dtype and release",
        ),
        () if cached.storage > 0 => None,
        () if cached.device + cached.host > 0 => found(
            Severity::Warning,
            "the prompt was still cached in L1 or L2, so L3 was not exercised",
            "run the check again when the server is idle: a busy server cannot be flushed",
        ),
        () if reading.written == Some(0.0) => found(
            Severity::Error,
            "no page of the prompt was written to the store",
            "check hicache_write_policy, and the server's log for -900 (different release), -200 (no space), -800 (nodes unreachable)",
        ),
        () if reading.by_another => found(
            Severity::Error,
            "one server cannot read the pages that another one wrote",
            "see same-fingerprint: model name, page size, tp, dtype and master must match",
        ),
        () => found(
            Severity::Error,
            "pages are written to the store but not read back",
            "see prefetch-policy; the first prompt after startup may be too early (the page hash is still being compiled): run the check again",
        ),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::serving::CHECKS;
    use crate::serving::facts::CachedTierTokens;
    use mcctl_net::http::Samples;

    fn info(more: Value) -> ServerSettings {
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
        ServerSettings(base.as_object().cloned().expect("an object"))
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

    fn one(more: Value) -> ServingFacts {
        ServingFacts { instances: vec![instance("http://a:1", more)], master: None, counters: None, probe: None }
    }

    #[track_caller]
    fn assert_found(status: &CheckStatus, severity: Severity, part: &str) {
        let CheckStatus::Found(findings) = status else { panic!("nothing found: {status:?}") };
        assert!(findings.iter().any(|f| f.severity == severity && f.finding.contains(part)), "{findings:?}");
    }

    #[test]
    fn a_healthy_server_passes_and_every_check_is_implemented() {
        let mut facts = one(json!({}));
        facts.instances.push(instance("http://b:1", json!({})));
        for check in CHECKS {
            let (status, _) = judge(check.id, &facts);
            assert!(!matches!(status, CheckStatus::Found(_)), "{}: {status:?}", check.id);
            assert_ne!(status, CheckStatus::Skipped("not implemented".to_owned()), "{}", check.id);
        }
    }

    #[test]
    fn unreachable_servers_and_missing_l3_are_found() {
        let mut away = one(json!({}));
        away.instances[0].info = Err("Connection refused".into());
        assert_found(&reached(&away), Severity::Error, "did not report its settings");
        assert!(matches!(hicache(&away), CheckStatus::Skipped(_)));
        assert_found(&hicache(&one(json!({"enable_hierarchical_cache": false}))), Severity::Error, "is disabled");
        let decode = json!({"enable_hierarchical_cache": false, "disaggregation_mode": "decode"});
        assert_found(&hicache(&one(decode)), Severity::Info, "decode server");
        assert_found(&attached(&one(json!({"hicache_storage_backend": null}))), Severity::Error, "no L3 tier");
        assert_found(
            &attached(&one(json!({"hicache_storage_backend": "file"}))),
            Severity::Warning,
            "not the Mooncake store",
        );
        assert_found(
            &attached(&one(json!({"hicache_mem_layout": "layer_first"}))),
            Severity::Warning,
            "is incompatible with the store",
        );
        let dynamic = |module: &str| {
            let extra = format!("{{\"module_path\": \"{module}\", \"class_name\": \"X\"}}");
            one(json!({"hicache_storage_backend": "dynamic", "hicache_storage_backend_extra_config": extra}))
        };
        assert!(matches!(attached(&dynamic("mcctl_mooncake.sglang")), CheckStatus::Passed(_)));
        assert_eq!(with_store(&dynamic("mcctl_mooncake.sglang")).count(), 1);
        assert_found(&attached(&dynamic("other")), Severity::Warning, "not the Mooncake store");
    }

    #[test]
    fn policies_that_prevent_l3_reads_are_found() {
        assert_found(
            &policy(&one(json!({"hicache_storage_prefetch_policy": "best_effort"}))),
            Severity::Warning,
            "cancels L3 reads",
        );
        assert_found(&policy(&one(json!({"page_size": 2048}))), Severity::Warning, "fewer than 2048");
        let extra = json!({"hicache_storage_backend_extra_config": "{\"prefetch_threshold\": 5000}"});
        assert_found(&policy(&one(extra)), Severity::Warning, "fewer than 5000");
        let short = json!({"hicache_storage_backend_extra_config": {"prefetch_timeout_base": 0.001}});
        assert_found(&policy(&one(short)), Severity::Warning, "shorter than most");
        assert_found(&policy(&one(json!({"page_size": 1}))), Severity::Info, "page size is small");
        assert_found(&policy(&one(json!({"hicache_write_policy": "write_back"}))), Severity::Info, "late");
        assert_found(
            &policy(&one(json!({"hicache_storage_prefetch_policy": "wait_complete"}))),
            Severity::Info,
            "blocks all ranks",
        );
    }

    #[test]
    fn a_different_master_and_a_small_rank_segment_are_found() {
        let mut facts = one(json!({"hicache_storage_backend_extra_config":
            {"master_server_address": "10.0.0.9:50051", "global_segment_size": "4gb"}}));
        facts.master = Some(HostPort::new("10.0.0.9", 50_051));
        assert!(matches!(master(&facts), CheckStatus::Passed(_)));
        facts.master = Some(HostPort::new("10.0.0.8", 50_051));
        assert_found(&master(&facts), Severity::Warning, "different master");
        let small = json!({"hicache_storage_backend_extra_config": {"global_segment_size": 33_554_430}});
        assert_found(&master(&one(small)), Severity::Error, "below 16 MiB");
        // Each of the two ranks is its own attention group and has the whole segment.
        let whole = json!({"hicache_storage_backend_extra_config": {"global_segment_size": 16_777_216},
            "enable_dp_attention": true, "dp_size": 2, "tp_size": 2});
        assert!(matches!(master(&one(whole)), CheckStatus::Skipped(_)));
        assert!(matches!(master(&one(json!({}))), CheckStatus::Skipped(_)));
    }

    #[test]
    fn an_unwritten_or_unread_l3_tier_is_found() {
        let with = |text: &str| {
            let mut facts = one(json!({}));
            facts.instances[0].metrics = Some(Samples::parse(text));
            facts
        };
        assert_found(
            &read(&with("sglang:hicache_backup_tokens_total 50000\n")),
            Severity::Error,
            "none reaches the store",
        );
        let written = "sglang:hicache_backup_tokens_total 50000\nsglang:backuped_tokens_total 50000\n";
        assert_found(&read(&with(written)), Severity::Info, "written to but never read from");
        let found = format!("{written}sglang:storage_prefetch_hit_tokens_total 20000\n");
        assert_found(&read(&with(&found)), Severity::Warning, "written to but never read from");
        let few = "sglang:hicache_backup_tokens_total 500\nsglang:backuped_tokens_total 500\n";
        assert!(matches!(read(&with(few)), CheckStatus::Passed(_)));
        let unused = format!("{READ}sglang:storage_prefetch_unfulfilled_tokens_total{{reason=\"deadline\"}} 20000\n");
        assert_found(&read(&with(&unused)), Severity::Info, "not used");
        let mut blind = one(json!({}));
        blind.instances[0].metrics = None;
        assert_found(&metrics(&blind), Severity::Info, "does not export metrics");
    }

    #[test]
    fn servers_with_different_key_settings_are_found() {
        for (name, value) in [
            ("page_size", json!(32)),
            ("tp_size", json!(4)),
            ("served_model_name", json!("other")),
            ("kv_cache_dtype", json!("fp8_e4m3")),
            ("hicache_storage_backend_extra_config", json!({"extra_backend_tag": "blue"})),
        ] {
            let mut facts = one(json!({}));
            facts.instances.push(instance("http://b:1", json!({name: value})));
            assert_found(&fingerprint(&facts), Severity::Error, "cannot read each other's pages");
        }
        let mut mla = one(json!({}));
        mla.instances.push(instance("http://b:1", json!({"tp_size": 4})));
        mla.instances.iter_mut().for_each(|instance| instance.is_mla = Some(true));
        assert_found(&fingerprint(&mla), Severity::Info, "tp_size");
        assert!(matches!(fingerprint(&one(json!({}))), CheckStatus::Skipped(_)));
    }

    #[test]
    fn the_probe_result_is_judged_by_its_numbers() {
        let with = |written, cached, by_another, is_same| {
            let times = (Duration::from_millis(150), Duration::from_millis(35));
            let end = Ok(L3Read { by_another, written, cached, is_same, times, unfulfilled: Vec::new() });
            let mut facts = one(json!({}));
            facts.probe = Some(vec![L3Probe { url: "http://a:1".to_owned(), tokens: 800, end }]);
            probe(&facts)
        };
        let stored = CachedTierTokens { device: 0, host: 0, storage: 784 };
        let CheckStatus::Passed(observation) = with(Some(784.0), stored, false, true) else { panic!("not passed") };
        for number in ["784 of 800", "35 ms", "150 ms"] {
            assert!(observation.contains(number), "{observation}");
        }
        assert_found(&with(Some(784.0), stored, false, false), Severity::Warning, "different tokens");
        assert_found(
            &with(Some(0.0), CachedTierTokens::default(), false, true),
            Severity::Error,
            "no page of the prompt was written",
        );
        assert_found(&with(Some(784.0), CachedTierTokens::default(), false, true), Severity::Error, "not read back");
        assert_found(&with(None, CachedTierTokens::default(), true, true), Severity::Error, "one server cannot read");
        let above = CachedTierTokens { device: 784, host: 0, storage: 0 };
        assert_found(&with(Some(784.0), above, false, true), Severity::Warning, "still cached in L1 or L2");
        let mut failed = one(json!({}));
        failed.probe = Some(vec![L3Probe { url: "http://a:1".to_owned(), tokens: 800, end: Err("HTTP 400".into()) }]);
        assert_found(&probe(&failed), Severity::Warning, "could not be sent");
        assert!(matches!(probe(&one(json!({}))), CheckStatus::Skipped(_)));
    }
}
