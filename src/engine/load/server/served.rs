//! What a server serves, and its profiler: the calls that `sglang.bench_serving` makes beside its requests.

use serde_json::Value;

use crate::engine::load::server::{ControlError, Server};

/// The answer of `/v1/models`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Models {
    /// Is the server ready? One that starts answers with 5xx, or not at all.
    pub ready: bool,
    /// The first model.
    pub first: Option<String>,
}

/// A call to a profiler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// `/start_profile` or `/stop_profile`.
    pub route: &'static str,
    /// The workers to profile (`http://HOST:PORT`); none: the server itself.
    pub workers: Vec<String>,
    /// A JSON object.
    pub body: String,
}

impl Server {
    /// The models it serves.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn models(&self) -> Result<Models, ControlError> {
        let answer = self.get(&format!("{}/v1/models", self.base())).await?;
        let told: Value = serde_json::from_str(&answer.body).unwrap_or(Value::Null);
        let first = told["data"][0]["id"].as_str().map(str::to_owned).filter(|_| answer.is_ok());
        Ok(Models { ready: answer.status < 500, first })
    }

    /// The path or name of its tokenizer (`/model_info`); nothing where it does not say.
    pub async fn tokenizer(&self) -> Option<String> {
        let answer = self.get(&format!("{}/model_info", self.base())).await.ok()?;
        let told: Value = serde_json::from_str(&answer.body).ok()?;
        let named = |key: &str| told[key].as_str().filter(|name| !name.is_empty()).map(str::to_owned);
        named("tokenizer_path").or_else(|| named("model_path"))
    }

    /// Make the call of `profile`. Gives what failed, a sentence each: a run without a profile is still a run.
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
