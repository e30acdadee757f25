//! Asking SGLang servers.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use serde_json::Value;

use crate::engine::doctor::Asked;
use crate::engine::doctor::serving::facts::{Facts, Info, Instance};
use crate::engine::doctor::serving::{Question, probe};
use crate::engine::env::Env;
use crate::engine::http::{Fetcher, Samples};

/// Servers that are asked.
const INSTANCES_MAX: usize = 64;
/// Servers that are asked at once.
const AT_ONCE: usize = 8;
/// The longest answer, bytes: a page of metrics of many ranks is a few MB.
const ANSWER_BYTES_MAX: usize = 32 << 20;

/// Everything that the checks of `wanted` need.
pub async fn gather<E: Env>(env: &E, question: &Question, wanted: &dyn Fn(&str) -> bool) -> Facts {
    let urls: Vec<String> =
        question.urls.iter().take(INSTANCES_MAX).map(|url| url.trim_end_matches('/').to_owned()).collect();
    let fetcher = |url: &str| {
        Fetcher::new(url.starts_with("https:"), question.limit, ANSWER_BYTES_MAX)
            .map(|fetcher| fetcher.with_bearer(question.api_key.clone()))
    };
    let asked = async |url: &String| {
        let began = env.now();
        let mut instance = match fetcher(url) {
            Ok(fetcher) => instance(&fetcher, url).await,
            Err(error) => silent(url, error.to_string()),
        };
        instance.took = env.now().since(began);
        instance
    };
    let instances: Vec<Instance> = stream::iter(&urls).map(asked).buffered(AT_ONCE).collect().await;
    let counters = match (&question.admin, Fetcher::new(false, question.limit, ANSWER_BYTES_MAX)) {
        (Some(admin), Ok(fetcher)) => metrics(&fetcher, &format!("http://{admin}")).await,
        _ => None,
    };
    let probe = match question.probe && wanted("l3-probe") {
        true => Some(probe::probe(env, &instances, question).await),
        false => None,
    };
    Facts { instances, master: question.master.clone(), counters, probe }
}

fn silent(url: &str, why: String) -> Instance {
    Instance {
        url: url.to_owned(),
        info: Err(why),
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

/// `/server_info`, called `/get_server_info` before 0.5.5 or so.
async fn info(fetcher: &Fetcher, url: &str) -> Asked<Info> {
    let mut why = String::new();
    for path in ["/server_info", "/get_server_info"] {
        let answer = fetcher.get(&format!("{url}{path}")).await.map_err(|error| format!("GET {url}{path}: {error}"))?;
        if answer.is_ok() {
            return match serde_json::from_str(&answer.body) {
                Ok(Value::Object(map)) => Ok(Info(map)),
                _ => Err(format!("GET {url}{path}: {} is no object of settings", answer.shown())),
            };
        }
        why = format!("GET {url}{path}: {}", answer.shown());
    }
    Err(why)
}

/// `/metrics` below `url`; `None` when there are none.
pub async fn metrics(fetcher: &Fetcher, url: &str) -> Option<Samples> {
    let mut answer = fetcher.get(&format!("{url}/metrics")).await.ok()?;
    if (300..400).contains(&answer.status) {
        answer = fetcher.get(&format!("{url}/metrics/")).await.ok()?;
    }
    Some(Samples::parse(&answer.body)).filter(|samples| answer.is_ok() && !samples.is_empty())
}
