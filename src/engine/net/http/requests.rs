//! Counts HTTP requests and their durations for a `/metrics` page.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::{Method, StatusCode};

/// Upper bounds of the duration histogram's buckets, in seconds.
const BOUNDS_S: [f64; 6] = [0.001, 0.005, 0.025, 0.1, 0.5, 2.5];

/// The request counts of one or more servers.
#[derive(Debug, Default)]
pub struct Requests(Mutex<RequestCounts>);

#[derive(Debug, Default)]
struct RequestCounts {
    answered: BTreeMap<(&'static str, &'static str, u16), u64>,
    took: BTreeMap<&'static str, DurationHistogram>,
}

#[derive(Debug, Default)]
struct DurationHistogram {
    /// Number of requests per bucket. Requests that took longer than the last bound are included
    /// only in the total count.
    buckets: [u64; BOUNDS_S.len()],
    count: u64,
    sum: Duration,
}

impl Requests {
    /// Counts a request on `route` whose response started after `duration`.
    pub fn record(&self, route: &'static str, method: &Method, status: StatusCode, duration: Duration) {
        let mut counts = self.lock();
        *counts.answered.entry((route, label(method), status.as_u16())).or_default() += 1;
        let took = counts.took.entry(route).or_default();
        took.count += 1;
        took.sum += duration;
        if let Some(bucket) = BOUNDS_S.iter().position(|bound| duration.as_secs_f64() <= *bound) {
            took.buckets[bucket] += 1;
        }
    }

    /// Renders both metric families in the Prometheus text format.
    pub fn exposition(&self) -> String {
        let counts = self.lock();
        let mut text = String::from(
            "# HELP mcctl_http_requests_total HTTP requests answered\n# TYPE mcctl_http_requests_total counter\n",
        );
        for ((route, method, code), count) in &counts.answered {
            let _ = writeln!(
                text,
                "mcctl_http_requests_total{{route=\"{route}\",method=\"{method}\",code=\"{code}\"}} {count}"
            );
        }
        let name = "mcctl_http_request_duration_seconds";
        let _ = writeln!(
            text,
            "# HELP {name} Time from the head of an HTTP request to the start of its response\n# TYPE {name} histogram"
        );
        for (route, took) in &counts.took {
            let mut below = 0;
            for (bound, count) in BOUNDS_S.iter().zip(took.buckets) {
                below += count;
                let _ = writeln!(text, "{name}_bucket{{route=\"{route}\",le=\"{bound}\"}} {below}");
            }
            let count = took.count;
            let sum = took.sum.as_secs_f64();
            let _ = writeln!(
                text,
                "{name}_bucket{{route=\"{route}\",le=\"+Inf\"}} {count}\n\
                 {name}_sum{{route=\"{route}\"}} {sum}\n\
                 {name}_count{{route=\"{route}\"}} {count}"
            );
        }
        text
    }

    fn lock(&self) -> MutexGuard<'_, RequestCounts> {
        // These are plain numbers: a panic leaves at most one request partially counted.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the method as one of a few labels, because a client can send any token.
fn label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::PUT => "PUT",
        Method::POST => "POST",
        Method::DELETE => "DELETE",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_route_method_and_code() {
        let requests = Requests::default();
        let custom = Method::from_bytes(b"MINE").expect("a token");
        requests.record("/health", &Method::GET, StatusCode::OK, Duration::from_micros(400));
        requests.record("/health", &Method::HEAD, StatusCode::OK, Duration::from_millis(30));
        requests.record("/health", &Method::GET, StatusCode::OK, Duration::from_secs(3));
        requests.record("other", &custom, StatusCode::NOT_FOUND, Duration::ZERO);
        let text = requests.exposition();
        for line in [
            "mcctl_http_requests_total{route=\"/health\",method=\"GET\",code=\"200\"} 2",
            "mcctl_http_requests_total{route=\"other\",method=\"other\",code=\"404\"} 1",
            "mcctl_http_request_duration_seconds_bucket{route=\"/health\",le=\"0.001\"} 1",
            "mcctl_http_request_duration_seconds_bucket{route=\"/health\",le=\"2.5\"} 2",
            "mcctl_http_request_duration_seconds_bucket{route=\"/health\",le=\"+Inf\"} 3",
            "mcctl_http_request_duration_seconds_count{route=\"/health\"} 3",
            "mcctl_http_request_duration_seconds_sum{route=\"/health\"} 3.0304",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
