//! A real server whose answers are checked.

use std::process::Stdio;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::server::{ServerCallError, ServerClient};
use crate::verify::run::VerifyRequestError;
use crate::verify::{RestartError, VerifyAnswer, VerifyRequest, VerifyServer, answer, openai};
use mcctl_base::text::one_line;
use mcctl_sys::env::Env;
use mcctl_sys::process_group::ProcessGroup;

/// How long to retry a flush while the server is busy.
const FLUSH: Duration = Duration::from_secs(60);
/// Maximum wait for write-back to finish.
const SETTLE: Duration = Duration::from_secs(120);

/// The API that the prompts are sent to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VerifyApi {
    /// SGLang's `/generate`.
    Generate,
    /// The completions API, with this model name.
    Completions { model: String },
}

impl VerifyApi {
    fn route(&self) -> &'static str {
        match self {
            VerifyApi::Generate => "/generate",
            VerifyApi::Completions { .. } => "/v1/completions",
        }
    }
}

/// A server, reached over HTTP.
#[derive(Clone, Debug)]
pub struct VerifiedEndpoint<E: Env> {
    pub env: E,
    pub server: ServerClient,
    pub api: VerifyApi,
    /// Members that override those of each request.
    pub extra: Map<String, Value>,
    /// Time limit of a request.
    pub limit: Duration,
    /// The user's command, run by `sh -c`. Its output goes to stderr.
    pub restart: Option<String>,
}

impl<E: Env> VerifiedEndpoint<E> {
    async fn post(&self, request: &VerifyRequest) -> Result<String, ServerCallError> {
        let body = match &self.api {
            VerifyApi::Generate => request.generate_body(&self.extra),
            VerifyApi::Completions { model } => request.completions_body(model, &self.extra),
        };
        self.server.post_route(self.api.route(), body, self.limit).await
    }
}

impl<E: Env> VerifyServer for VerifiedEndpoint<E> {
    async fn ask(&self, request: &VerifyRequest) -> Result<VerifyAnswer, VerifyRequestError> {
        let body = self.post(request).await?;
        Ok(match self.api {
            VerifyApi::Generate => answer::read_generate(&body, request)?,
            VerifyApi::Completions { .. } => openai::read_completion(&body)?,
        })
    }

    async fn send(&self, request: &VerifyRequest) -> Result<(), VerifyRequestError> {
        self.post(request).await?;
        Ok(())
    }

    async fn flush(&self) -> Result<(), ServerCallError> {
        self.server.flush(&self.env, self.server.flush_timeout().unwrap_or(FLUSH)).await
    }

    async fn settle(&self) {
        // A pass that the write-back did not finish for is not reached, which its answers show.
        let _ = self.server.settle(&self.env, SETTLE).await;
    }

    async fn restart(&self) -> Result<(), RestartError> {
        let Some(command) = &self.restart else { return Ok(()) };
        let not_started = |error: std::io::Error| RestartError::NotStarted(error.to_string());
        // stdout is for the report.
        let stderr = std::io::stderr();
        let output = std::os::fd::AsFd::as_fd(&stderr).try_clone_to_owned().map_err(not_started)?;
        let mut child = tokio::process::Command::new("sh")
            .args(["-c", command])
            .stdin(Stdio::null())
            .stdout(Stdio::from(output))
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(not_started)?;
        // If the run is stopped, what the shell has started must end, too.
        let group = child.id().map(ProcessGroup::led_by);
        let status = child.wait().await.map_err(not_started)?;
        if let Some(group) = group {
            group.release();
        }
        if status.success() { Ok(()) } else { Err(RestartError::Failed(one_line(&status.to_string(), 80))) }
    }
}
