//! Models, tokenizer and profiler: the calls that `sglang.bench_serving` makes in addition to its requests.

use serde_json::Value;

use crate::engine::load::server::{ServerCallError, ServerClient};

/// The response from `/v1/models`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Models {
    /// Whether the server is ready. A server that is starting responds with 5xx or not at all.
    pub ready: bool,
    pub first: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// `/start_profile` or `/stop_profile`.
    pub route: &'static str,
    /// Workers to profile (`http://HOST:PORT`). If empty, the server itself is profiled.
    pub workers: Vec<String>,
    pub body: String,
}

impl ServerClient {
    /// Returns the served models.
    ///
    /// # Errors
    /// The server does not respond.
    pub async fn models(&self) -> Result<Models, ServerCallError> {
        let answer = self.get(&format!("{}/v1/models", self.base())).await?;
        let document: Value = serde_json::from_str(&answer.body).unwrap_or(Value::Null);
        let first = document["data"][0]["id"].as_str().map(str::to_owned).filter(|_| answer.is_ok());
        Ok(Models { ready: answer.status < 500, first })
    }

    /// Returns the path or name of the tokenizer from `/model_info`, if reported.
    pub async fn tokenizer(&self) -> Option<String> {
        let answer = self.get(&format!("{}/model_info", self.base())).await.ok()?;
        let document: Value = serde_json::from_str(&answer.body).ok()?;
        let named = |key: &str| document[key].as_str().filter(|name| !name.is_empty()).map(str::to_owned);
        named("tokenizer_path").or_else(|| named("model_path"))
    }

    /// Calls the profiler. Returns one message per failed worker instead of an error, because a run without a profile is still valid.
    pub async fn profile(&self, profile: &Profile) -> Vec<String> {
        let own = [self.base().to_owned()];
        let workers = if profile.workers.is_empty() { &own[..] } else { &profile.workers };
        let mut failed = Vec::new();
        for worker in workers {
            let url = format!("{}{}", worker.trim_end_matches('/'), profile.route);
            match self.post_json(&url, profile.body.clone()).await {
                Ok(answer) if answer.is_ok() => {}
                Ok(answer) => failed.push(format!("{url}: {}", answer.shown())),
                Err(error) => failed.push(error.to_string()),
            }
        }
        failed
    }
}
