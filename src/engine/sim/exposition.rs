//! The `/metrics` page, with SGLang's metric names and labels. No I/O.

use std::fmt::Write as _;

use crate::config::Config;
use crate::counters::{PromHistogram, SimCounters};
use crate::scheduler::SimGauges;

struct MetricsPage {
    text: String,
}

impl MetricsPage {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn sample(&mut self, name: &str, labels: &str, value: f64) {
        let _ = writeln!(self.text, "{name}{{{labels}}} {value:?}");
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, labels: &str, value: f64) {
        self.head(name, kind, help);
        self.sample(name, labels, value);
    }

    fn counts(&mut self, name: &str, labels: &str, buckets: &PromHistogram) {
        let mut below = 0;
        let bounds = buckets.bounds.iter().map(|bound| format!("{bound:?}")).chain(["+Inf".to_owned()]);
        for (bound, count) in bounds.zip(&buckets.counts) {
            below += count;
            self.sample(&format!("{name}_bucket"), &format!("{labels},le=\"{bound}\""), below as f64);
        }
        self.sample(&format!("{name}_sum"), labels, buckets.sum);
        self.sample(&format!("{name}_count"), labels, buckets.count() as f64);
    }
}

/// Renders the metrics page.
pub(crate) fn page(config: &Config, counters: &SimCounters, gauges: &SimGauges) -> String {
    let name = escaped(&config.model);
    let engine = format!("engine_type=\"unified\",model_name=\"{name}\",moe_ep_rank=\"0\",pp_rank=\"0\",tp_rank=\"0\"");
    let radix = "cache_type=\"UnifiedRadixCache\",dp_rank=\"0\",pp_rank=\"0\",tp_rank=\"0\"";
    let storage = "attn_cp_rank=\"0\",attn_cp_size=\"1\",dp_rank=\"0\",pp_rank=\"0\",pp_size=\"1\",storage_backend=\"mooncake\",tp_rank=\"0\"";
    let front = format!("engine_type=\"unified\",model_name=\"{name}\"");
    let mut page = MetricsPage { text: String::new() };
    page.one("mcctl_sim_info", "gauge", "This is a simulator; no model runs.", "simulator=\"true\"", 1.0);
    requests(&mut page, &front, counters);
    let gauge = |page: &mut MetricsPage, name: &str, help: &str, value: u64| {
        page.one(&format!("sglang:{name}"), "gauge", help, &engine, value as f64);
    };
    gauge(&mut page, "num_running_reqs", "Running requests.", gauges.running);
    gauge(&mut page, "num_queue_reqs", "Waiting requests.", gauges.queued);
    gauge(&mut page, "num_used_tokens", "Used device tokens.", gauges.used);
    gauge(&mut page, "kv_used_tokens", "Used device tokens.", gauges.used);
    gauge(&mut page, "kv_available_tokens", "Free device tokens.", gauges.available);
    gauge(&mut page, "kv_evictable_tokens", "Cached device tokens that can be evicted.", gauges.evictable);
    gauge(&mut page, "max_total_num_tokens", "Device capacity in tokens.", config.device_tokens);
    gauge(&mut page, "page_size", "Tokens per page.", config.page_size);
    gauge(&mut page, "num_pages", "Device capacity in pages.", config.device_tokens / config.page_size);
    gauge(&mut page, "context_len", "Maximum tokens per request.", config.context_length);
    gauge(&mut page, "hicache_host_used_tokens", "Used host tokens.", gauges.host_used);
    gauge(&mut page, "hicache_host_total_tokens", "Host capacity in tokens.", config.host_tokens);
    let usage = gauges.used as f64 / config.device_tokens as f64;
    page.one("sglang:token_usage", "gauge", "Share of the device capacity in use.", &engine, usage);
    page.one("sglang:full_token_usage", "gauge", "Share of the device capacity in use.", &engine, usage);
    prefill(&mut page, &engine, counters);
    page.head("sglang:queue_time_seconds", "histogram", "Queue time.");
    page.counts("sglang:queue_time_seconds", &engine, &counters.queue);
    let bytes = |tokens: u64| (tokens * config.bytes_per_token) as f64;
    let pool = format!("pool=\"kv\",{radix}");
    let evicted = "Tokens evicted from the device.";
    page.one("sglang:evicted_tokens_total", "counter", evicted, radix, counters.evicted as f64);
    if config.host_tokens > 0 {
        let backup = counters.host_backup;
        page.one("sglang:hicache_backup_tokens_total", "counter", "Tokens copied to the host.", &pool, backup as f64);
        page.one("sglang:hicache_backup_bytes_total", "counter", "Bytes copied to the host.", radix, bytes(backup));
        let load_back = counters.load_back;
        page.one("sglang:load_back_tokens_total", "counter", "Tokens loaded from the host.", &pool, load_back as f64);
        page.one("sglang:load_back_bytes_total", "counter", "Bytes loaded from the host.", radix, bytes(load_back));
    }
    if config.storage {
        tier(&mut page, storage, counters);
    }
    page.text
}

fn requests(page: &mut MetricsPage, front: &str, counters: &SimCounters) {
    let labels = |streamed: usize| format!("{front},is_streaming=\"{}\"", streamed == 1);
    type CountOf = fn(&crate::counters::FinishedStats) -> u64;
    let totals: [(&str, &str, CountOf); 3] = [
        ("sglang:prompt_tokens_total", "Prompt tokens.", |kind| kind.prompt),
        ("sglang:generation_tokens_total", "Generated tokens.", |kind| kind.generation),
        ("sglang:num_requests_total", "Successful requests.", |kind| kind.requests),
    ];
    for (name, help, count) in totals {
        page.head(name, "counter", help);
        for (streamed, kind) in counters.finished.iter().enumerate().filter(|(_, kind)| kind.requests > 0) {
            page.sample(name, &labels(streamed), count(kind) as f64);
        }
    }
    type HistogramOf = fn(&crate::counters::FinishedStats) -> &PromHistogram;
    let times: [(&str, &str, HistogramOf); 3] = [
        ("sglang:time_to_first_token_seconds", "Time to the first token.", |kind| &kind.first_token),
        ("sglang:e2e_request_latency_seconds", "Time to the end of the response.", |kind| &kind.whole),
        ("sglang:inter_token_latency_seconds", "Inter-token latency.", |kind| &kind.gaps),
    ];
    for (name, help, buckets) in times {
        page.head(name, "histogram", help);
        for (streamed, kind) in counters.finished.iter().enumerate().filter(|(_, kind)| kind.requests > 0) {
            page.counts(name, &labels(streamed), buckets(kind));
        }
    }
    page.one("sglang:num_aborted_requests_total", "counter", "Aborted requests.", front, counters.aborted as f64);
    page.head("sglang:cached_tokens_total", "counter", "Cached prompt tokens by tier.");
    let cached = counters.cached;
    for (source, tokens) in [("device", cached.device), ("host", cached.host), ("storage", cached.storage)] {
        // Like a labeled series in the Prometheus Python client, it appears with its first event.
        if tokens > 0 {
            page.sample("sglang:cached_tokens_total", &format!("cache_source=\"{source}\",{front}"), tokens as f64);
        }
    }
}

fn prefill(page: &mut MetricsPage, engine: &str, counters: &SimCounters) {
    let prefill = counters.prefill;
    page.head("sglang:prefill_effective_tokens_total", "counter", "Prompt tokens by source.");
    let modes = [
        ("input", prefill.computed),
        ("device_hit", prefill.device),
        ("host_hit", prefill.host),
        ("storage_hit", prefill.storage),
    ];
    for (mode, tokens) in modes {
        page.sample("sglang:prefill_effective_tokens_total", &format!("mode=\"{mode}\",{engine}"), tokens as f64);
    }
    page.head("sglang:realtime_tokens_total", "counter", "Tokens processed, by mode.");
    let cached = prefill.device + prefill.host + prefill.storage;
    for (mode, tokens) in
        [("prefill_compute", prefill.computed), ("prefill_cache", cached), ("decode", counters.decoded)]
    {
        page.sample("sglang:realtime_tokens_total", &format!("mode=\"{mode}\",{engine}"), tokens as f64);
    }
}

fn tier(page: &mut MetricsPage, labels: &str, counters: &SimCounters) {
    for (name, help, tokens) in [
        ("backuped_tokens_total", "Tokens written to storage.", counters.storage_backup),
        ("hicache_backup_dropped_tokens_total", "Tokens not written to storage.", counters.storage_backup_dropped),
        ("storage_prefetch_hit_tokens_total", "Tokens found in storage.", counters.storage_hit),
        ("prefetched_tokens_total", "Tokens fetched from storage.", counters.prefetched),
    ] {
        page.one(&format!("sglang:{name}"), "counter", help, labels, tokens as f64);
    }
    let name = "sglang:storage_prefetch_unfulfilled_tokens_total";
    page.head(name, "counter", "Tokens found in storage but not used, by reason.");
    let lost = counters.unfulfilled;
    for (reason, tokens) in [
        ("below_threshold", lost.below_threshold),
        ("host_capacity", lost.host_capacity),
        ("device_capacity", 0),
        ("device_covered", 0),
        ("storage_transfer", lost.storage_transfer),
        ("deadline", 0),
        ("anchor_lost", lost.anchor_lost),
        ("aux_window_trim", 0),
        ("device_overlap", lost.device_overlap),
        ("cache_admission_shortfall", lost.cache_admission_shortfall),
        ("dropped", 0),
    ] {
        page.sample(name, &format!("reason=\"{reason}\",{labels}"), tokens as f64);
    }
    for (name, help, buckets) in [
        ("backup_pgs", "Pages per batch written to storage.", &counters.backup_pages),
        ("backup_bandwidth", "Bandwidth of a batch written to storage, GB/s.", &counters.backup_bandwidth),
        ("prefetch_pgs", "Pages per batch read from storage.", &counters.prefetch_pages),
        ("prefetch_bandwidth", "Bandwidth of a batch read from storage, GB/s.", &counters.prefetch_bandwidth),
    ] {
        page.head(&format!("sglang:{name}"), "histogram", help);
        page.counts(&format!("sglang:{name}"), labels, buckets);
    }
}

/// Escapes a label value.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcctl_net::http::Samples;

    #[test]
    fn page_parses_and_identifies_the_simulator() {
        let mut counters = SimCounters::default();
        counters.finished[1].requests = 3;
        counters.finished[1].gaps.record_times(0.01, 7);
        counters.cached.storage = 64;
        let config = Config { model: "a \"model\"".to_owned(), storage: true, host_tokens: 100, ..Config::small() };
        let text = page(&config, &counters, &SimGauges::default());
        let samples = Samples::parse(&text);
        assert_eq!(samples.sum("mcctl_sim_info"), Some(1.0));
        assert_eq!(samples.sum_where("sglang:num_requests_total", "model_name", "a \"model\""), Some(3.0));
        assert_eq!(samples.by("sglang:cached_tokens_total", "cache_source"), [("storage", 64.0)]);
        assert_eq!(samples.sum("sglang:inter_token_latency_seconds_count"), Some(7.0));
        assert_eq!(samples.sum_where("sglang:inter_token_latency_seconds_bucket", "le", "0.008"), Some(0.0));
        assert_eq!(samples.sum_where("sglang:inter_token_latency_seconds_bucket", "le", "+Inf"), Some(7.0));
        assert_eq!(samples.by("sglang:storage_prefetch_unfulfilled_tokens_total", "reason").len(), 11);
    }
}
