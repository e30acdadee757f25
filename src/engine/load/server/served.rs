//! Models, tokenizer and profiler: the calls that `sglang.bench_serving` makes in addition to its
//! requests. And the server's description.

use serde_json::Value;

use crate::server::{ServerCallError, ServerClient, ServerDescription, read};
use mcctl_base::text::one_line;
use mcctl_net::http::{FetchResponse, Samples};

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

    /// Returns what the server reports about itself, from its settings, metrics, models and, if
    /// known, its Mooncake master. Everything that the server does not provide is missing.
    pub(super) async fn description(&self) -> ServerDescription {
        let settings = match self.document("/server_info").await {
            None => self.document("/get_server_info").await,
            document => document,
        };
        let page = self.first_page().await;
        let mut described = match settings.as_ref().and_then(ServerDescription::of_sglang) {
            Some(mut described) => {
                described.add_host_tokens(page.as_ref().map_or(0, ServerDescription::host_tokens));
                if let Some(loads) = self.document("/v1/loads?include=core").await {
                    described.add_accelerator(&loads);
                }
                described
            }
            None => match page.filter(ServerDescription::is_vllm_page) {
                Some(page) => ServerDescription::of_vllm(&page, self.document("/version").await.as_ref()),
                None => ServerDescription::default(),
            },
        };
        if described.model.is_none() {
            described.model = self.models().await.ok().and_then(|models| models.first).map(|name| one_line(&name, 120));
        }
        if let Some(master) = self.master().await {
            described.add_store(&master);
        }
        described
    }

    /// Returns the JSON document at `route`, if the server has it.
    async fn document(&self, route: &str) -> Option<Value> {
        let answer = self.get(&format!("{}{route}", self.base())).await.ok().filter(FetchResponse::is_ok)?;
        serde_json::from_str(&answer.body).ok()
    }

    /// Returns the first metrics page.
    async fn first_page(&self) -> Option<Samples> {
        let answer = self.get(self.pages.first()?).await.ok().filter(FetchResponse::is_ok)?;
        read(answer.body, |page| Some(page.clone())).await
    }

    /// Calls the profiler. Returns one message per failed worker instead of an error, because a run
    /// without a profile is still valid.
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
