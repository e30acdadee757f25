//! Gathers the facts of SGLang servers.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use serde_json::Value;

use crate::serving::facts::{Instance, ServerSettings, ServingFacts};
use crate::serving::metrics::metrics;
use crate::serving::{ServingQuery, probe};
use crate::{Fact, Unavailable};
use mcctl_metadata::admin::AdminClient;
use mcctl_net::http::Fetcher;
use mcctl_sys::env::Env;

/// Maximum number of servers queried.
const INSTANCES_MAX: usize = 64;
/// Maximum number of concurrent queries.
const AT_ONCE: usize = 8;
/// Maximum response size, in bytes: the metrics of many ranks take a few MB.
const ANSWER_BYTES_MAX: usize = 32 << 20;

/// Gathers the facts that the checks in `wanted` need.
pub(super) async fn gather<E: Env>(env: &E, query: &ServingQuery, wanted: &dyn Fn(&str) -> bool) -> ServingFacts {
    let urls: Vec<String> =
        query.urls.iter().take(INSTANCES_MAX).map(|url| url.trim_end_matches('/').to_owned()).collect();
    let fetcher = |url: &str| {
        Fetcher::new(url.starts_with("https:"), query.limit, ANSWER_BYTES_MAX)
            .map(|fetcher| fetcher.with_bearer(query.api_key.clone()))
    };
    let query_one = async |url: &String| {
        let began = env.now();
        let mut instance = match fetcher(url) {
            Ok(fetcher) => instance(&fetcher, url).await,
            Err(error) => silent(url, error.to_string()),
        };
        instance.took = env.now().since(began);
        instance
    };
    let instances: Vec<Instance> = stream::iter(&urls).map(query_one).buffered(AT_ONCE).collect().await;
    let counters =
        match query.admin.clone().map(|admin| AdminClient::with_credentials(admin, query.limit, &query.credentials)) {
            Some(Ok(admin)) => admin.metrics().await.ok().filter(|samples| !samples.is_empty()),
            _ => None,
        };
    let probe = match query.probe && wanted("l3-probe") {
        true => Some(probe::probe(env, &instances, query).await),
        false => None,
    };
    ServingFacts { instances, master: query.master.clone(), counters, probe }
}

fn silent(url: &str, why: String) -> Instance {
    Instance {
        url: url.to_owned(),
        info: Err(why.into()),
        metrics: None,
        key_prefix: None,
        is_mla: None,
        took: Duration::ZERO,
    }
}

async fn instance(fetcher: &Fetcher, url: &str) -> Instance {
    let info = info(fetcher, url).await;
    if info.is_err() {
        return Instance { info, ..silent(url, String::new()) };
    }
    let layout = fetcher.get(&format!("{url}/get_hicache_l3_cache_layout")).await;
    let layout: Value = match layout {
        Ok(answer) if answer.is_ok() => serde_json::from_str(&answer.body).unwrap_or_default(),
        _ => Value::Null,
    };
    let of = |name: &str| layout.get("hicache_object_layout").and_then(|inner| inner.get(name));
    Instance {
        url: url.to_owned(),
        info,
        metrics: metrics(fetcher, url).await,
        key_prefix: of("key_prefix").and_then(Value::as_str).map(str::to_owned),
        is_mla: of("is_mla_backend").and_then(Value::as_bool),
        took: Duration::ZERO,
    }
}

/// Reads `/server_info`, called `/get_server_info` before about 0.5.5.
async fn info(fetcher: &Fetcher, url: &str) -> Fact<ServerSettings> {
    let mut why = String::new();
    for path in ["/server_info", "/get_server_info"] {
        let answer = fetcher
            .get(&format!("{url}{path}"))
            .await
            .map_err(|error| Unavailable::from(format!("GET {url}{path}: {error}")))?;
        if answer.is_ok() {
            return match serde_json::from_str(&answer.body) {
                Ok(Value::Object(map)) => Ok(ServerSettings(map)),
                _ => Err(format!("GET {url}{path}: {} is not an object of settings", answer.shown()).into()),
            };
        }
        why = format!("GET {url}{path}: {}", answer.shown());
    }
    Err(why.into())
}
