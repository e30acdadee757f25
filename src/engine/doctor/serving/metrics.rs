//! Reads the metrics of a server or a master.

use mcctl_net::http::{Fetcher, Samples};

/// Reads `/metrics` below `url`; `None` if there are no samples.
pub(super) async fn metrics(fetcher: &Fetcher, url: &str) -> Option<Samples> {
    let mut answer = fetcher.get(&format!("{url}/metrics")).await.ok()?;
    if (300..400).contains(&answer.status) {
        answer = fetcher.get(&format!("{url}/metrics/")).await.ok()?;
    }
    Some(Samples::parse(&answer.body)).filter(|samples| answer.is_ok() && !samples.is_empty())
}
