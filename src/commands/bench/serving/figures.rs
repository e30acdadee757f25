//! Renders the `bench_serving` figures as text from its result line, with the same labels in the
//! same order.

use serde_json::Value;

/// Width of a label, and of the whole text.
const LABEL: usize = 40;
const WIDTH: usize = 50;

/// Returns a heading centered in a rule of `mark` characters.
fn heading(title: &str, mark: char) -> String {
    let left = (WIDTH.saturating_sub(title.len())) / 2;
    let right = WIDTH.saturating_sub(title.len() + left);
    let rule = |length: usize| mark.to_string().repeat(length);
    format!("{}{title}{}\n", rule(left), rule(right))
}

fn row(label: &str, value: String) -> String {
    format!("{label:<LABEL$} {value:<10}").trim_end().to_owned() + "\n"
}

fn shown(value: &Value, decimals: bool) -> String {
    match value {
        Value::Number(number) if decimals => format!("{:.2}", number.as_f64().unwrap_or(0.0)),
        Value::Null => "not measured".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Renders `line`, a result line in `bench_serving` format.
pub fn text(line: &Value) -> String {
    let whole = |label: &str, key: &str| row(label, shown(&line[key], false));
    let part = |label: &str, key: &str| row(label, shown(&line[key], true));
    let mut text = heading(" Serving Benchmark Result ", '=');
    text += &whole("Backend:", "backend");
    text += &whole("Traffic request rate:", "request_rate");
    let most =
        if line["max_concurrency"].is_null() { "not set".to_owned() } else { shown(&line["max_concurrency"], false) };
    text += &row("Max request concurrency:", most);
    text += &whole("Successful requests:", "completed");
    text += &part("Benchmark duration (s):", "duration");
    text += &whole("Total input tokens:", "total_input_tokens");
    text += &whole("Total input text tokens:", "total_input_text_tokens");
    text += &whole("Total generated tokens:", "total_output_tokens");
    text += &whole("Total generated tokens (retokenized):", "total_output_tokens_retokenized");
    text += &part("Request throughput (req/s):", "request_throughput");
    text += &part("Input token throughput (tok/s):", "input_throughput");
    text += &part("Output token throughput (tok/s):", "output_throughput");
    text += &part("Peak output token throughput (tok/s):", "max_output_tokens_per_s");
    text += &whole("Peak concurrent requests:", "max_concurrent_requests");
    text += &part("Total token throughput (tok/s):", "total_throughput");
    text += &part("Concurrency:", "concurrency");
    text += &goodput(line);
    for (title, name, key) in [
        ("End-to-End Latency", "E2E Latency", "e2e_latency"),
        ("Time to First Token", "TTFT", "ttft"),
        ("Time per Output Token (excl. 1st token)", "TPOT", "tpot"),
        ("Inter-Token Latency", "ITL", "itl"),
    ] {
        text += &heading(title, '-');
        for (word, stat) in [("Mean", "mean"), ("Median", "median"), ("P90", "p90"), ("P95", "p95"), ("P99", "p99")] {
            text += &part(&format!("{word} {name} (ms):"), &format!("{stat}_{key}_ms"));
        }
    }
    text += &part("Max ITL (ms):", "max_itl_ms");
    text += &cache(&line["cache_report"]);
    text + &"=".repeat(WIDTH) + "\n"
}

fn goodput(line: &Value) -> String {
    let Some(limits) = line["goodput_slos_ms"].as_object() else { return String::new() };
    let percent = |value: &Value| format!("{:.2}", value.as_f64().unwrap_or(0.0) * 100.0);
    let mut text = heading("Goodput", '-');
    let named: Vec<String> = limits.iter().map(|(name, limit)| format!("{name}:{limit}")).collect();
    text += &row("SLOs (ms):", named.join(" "));
    text += &row("Request goodput (req/s):", shown(&line["request_goodput"], true));
    text += &row("SLO attainment (%):", percent(&line["slo_attainment"]));
    for name in limits.keys() {
        let label = format!("{} SLO attainment (%):", name.to_uppercase());
        text += &row(&label, percent(&line["slo_attainment_by_metric"][name]));
    }
    text
}

fn cache(report: &Value) -> String {
    if report.is_null() {
        return String::new();
    }
    let tokens = |key: &str| report[key].as_u64().unwrap_or(0);
    let cached = tokens("total_cached_tokens");
    let storage = match report["storage_backend"].as_str() {
        Some(name) => format!("  Storage ({name}):"),
        None => "  Storage:".to_owned(),
    };
    let tiers = [
        ("  Device:", tokens("device_cached_tokens")),
        ("  Host:", tokens("host_cached_tokens")),
        (storage.as_str(), tokens("storage_cached_tokens")),
    ];
    let known = cached > 0 && !report["device_cached_tokens"].is_null();
    let tiers = tiers.iter().filter(|(label, count)| known && (*count > 0 || !label.starts_with("  Storage")));
    let mut text = heading("Cache Hit Details", '-');
    text += &row("Total prompt tokens:", tokens("total_prompt_tokens").to_string());
    text += &row("Total cached tokens:", cached.to_string());
    for (label, count) in tiers.clone() {
        text += &row(label, count.to_string());
    }
    text += &row("Cache hit rate:", format!("{:.1}%", report["cache_hit_rate_pct"].as_f64().unwrap_or(0.0)));
    for (label, count) in tiers {
        text += &row(label, format!("{:.1}%", 100.0 * *count as f64 / cached as f64));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn labels_and_columns_match_bench_serving() {
        let line = json!({
            "backend": "sglang", "request_rate": "inf", "max_concurrency": null, "completed": 7, "duration": 1.2345,
            "total_output_tokens_retokenized": null, "mean_ttft_ms": 3.456, "goodput_slos_ms": {"ttft": 500.0}, "request_goodput": 2.0,
            "slo_attainment": 0.5, "slo_attainment_by_metric": {"ttft": 0.5},
            "cache_report": {"total_prompt_tokens": 100, "total_cached_tokens": 50, "cache_hit_rate_pct": 50.0, "device_cached_tokens": 40,
                "host_cached_tokens": 0, "storage_cached_tokens": 10, "storage_backend": "MooncakeStore"},
        });
        let text = text(&line);
        for (label, value) in [
            ("Max request concurrency:", "not set"),
            ("Successful requests:", "7"),
            ("Benchmark duration (s):", "1.23"),
            ("Mean TTFT (ms):", "3.46"),
            ("TTFT SLO attainment (%):", "50.00"),
            ("  Storage (MooncakeStore):", "10"),
            ("Cache hit rate:", "50.0%"),
        ] {
            assert!(text.contains(&format!("{label:<40} {value}\n")), "{label} {value}\n{text}");
        }
        assert!(text.lines().all(|line| line.len() <= 60), "{text}");
        let plain = super::text(&json!({}));
        assert!(!plain.contains("Goodput") && !plain.contains("Cache Hit Details"), "{plain}");
    }
}
