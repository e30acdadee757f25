//! SGLang's servers, whose metrics show what the store is good for. The names are those of 0.5.23.

use super::panel::{DashboardPanel, panel, quantiles};

/// Hits by tier, latency and load. Counters of tokens have no rank; gauges of the scheduler repeat
/// for each rank.
pub(super) fn panels() -> Vec<DashboardPanel> {
    vec![
        panel(
            "Cached prompt tokens, by tier",
            "ops",
            &[
                (
                    "{{cache_source}}",
                    "sum by (cache_source) (rate(sglang:cached_tokens_total{$server}[$__rate_interval]))",
                ),
                ("all prompt tokens", "sum(rate(sglang:prompt_tokens_total{$server}[$__rate_interval]))"),
            ],
        ),
        panel(
            "Share of prompt tokens from the store",
            "percentunit",
            &[(
                "storage",
                "sum(rate(sglang:cached_tokens_total{$server,cache_source=\"storage\"}[$__rate_interval])) \
                 / (sum(rate(sglang:prompt_tokens_total{$server}[$__rate_interval])) > 0)",
            )],
        ),
        quantiles("Time to first token", "", "sglang:time_to_first_token_seconds_bucket{$server}"),
        quantiles("Inter-token latency", "", "sglang:inter_token_latency_seconds_bucket{$server}"),
        panel(
            "Requests of the servers",
            "short",
            &[
                ("running {{instance}}", "max by (instance) (sglang:num_running_reqs{$server})"),
                ("queued {{instance}}", "max by (instance) (sglang:num_queue_reqs{$server})"),
            ],
        ),
    ]
}
