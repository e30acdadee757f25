//! Sends the same prompt twice: its pages are written through to L3, the upper tiers are emptied,
//! and the pages are read back.
//!
//! The first server writes the pages, is flushed, and reads them. The other servers have not
//! processed the prompt, so they need no flush. They show whether pages are shared.

use std::time::Duration;

use serde_json::{Value, json};

use crate::serving::ServingQuery;
use crate::serving::facts::{CachedTierTokens, Instance, L3Probe, L3Read, ServerSettings};
use crate::serving::metrics::metrics;
use crate::{Fact, Unavailable};
use mcctl_net::http::Fetcher;
use mcctl_sys::env::Env;

/// Timeout for a prompt. The first prompt that queries L3 waits until the page hash is compiled.
const GENERATE: Duration = Duration::from_secs(90);
/// Maximum wait until the pages are written.
const WRITTEN: Duration = Duration::from_secs(20);
/// Time to wait for writes if the server exports no metrics.
const BLIND: Duration = Duration::from_secs(5);
/// Maximum time during which a busy server may reject the flush.
const FLUSHED: Duration = Duration::from_secs(30);
const AGAIN: Duration = Duration::from_millis(250);
/// Token ids that exist in every model and do not end a prompt.
const TOKENS: std::ops::Range<u64> = 16..240;
/// Maximum length of the prompt, in tokens.
const PROMPT_MAX: u64 = 32_768;
/// Number of tokens to generate.
const NEW: u64 = 8;
/// Maximum response size, in bytes.
const ANSWER_BYTES_MAX: usize = 32 << 20;

/// Sends a new random prompt to each of `instances`, twice to the first one.
pub(super) async fn probe<E: Env>(env: &E, instances: &[Instance], query: &ServingQuery) -> Vec<L3Probe> {
    let seed = env.rng();
    let mut probes: Vec<L3Probe> = Vec::new();
    let mut first: Option<(Vec<u64>, Duration, Vec<u64>)> = None;
    for instance in instances {
        let Ok(info) = &instance.info else { continue };
        let tokens = first.as_ref().map_or_else(|| prompt(seed, length(info)), |(tokens, ..)| tokens.clone());
        let end = match (info.is_unified(), ProbeTarget::new(env, &instance.url, query)) {
            (false, _) => {
                Err("the server belongs to a prefill-decode pair and cannot serve requests on its own".into())
            }
            (_, Err(why)) => Err(why),
            (true, Ok(server)) => match &first {
                None => match server.write_flush_read(&tokens).await {
                    Ok((reading, cold, out)) => {
                        first = Some((tokens.clone(), cold, out));
                        Ok(reading)
                    }
                    Err(why) => Err(why),
                },
                Some((_, cold, out)) => server.read(&tokens, *cold, out, true, None).await,
            },
        };
        probes.push(L3Probe { url: instance.url.clone(), tokens: tokens.len() as u64, end });
    }
    probes
}

/// A prompt length above the L3 threshold that spans whole pages.
fn length(info: &ServerSettings) -> u64 {
    let pages = info.threshold().div_ceil(info.page_size()) * 2 + 1;
    (pages * info.page_size() + 3).clamp(600, PROMPT_MAX)
}

fn prompt(seed: u64, length: u64) -> Vec<u64> {
    let mut state = seed;
    let mut token = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        TOKENS.start + (state >> 33) % (TOKENS.end - TOKENS.start)
    };
    (0..length).map(|_| token()).collect()
}

struct ProbeTarget<'a, E: Env> {
    env: &'a E,
    url: &'a str,
    ask: Fetcher,
    generate: Fetcher,
}

impl<'a, E: Env> ProbeTarget<'a, E> {
    fn new(env: &'a E, url: &'a str, query: &ServingQuery) -> Fact<ProbeTarget<'a, E>> {
        let fetcher = |limit| {
            Fetcher::new(url.starts_with("https:"), limit, ANSWER_BYTES_MAX)
                .map(|fetcher| fetcher.with_bearer(query.api_key.clone()))
                .map_err(Unavailable::new)
        };
        Ok(ProbeTarget { env, url, ask: fetcher(query.limit)?, generate: fetcher(GENERATE)? })
    }

    async fn write_flush_read(&self, tokens: &[u64]) -> Fact<(L3Read, Duration, Vec<u64>)> {
        let before = self.count("sglang:backuped_tokens_total").await;
        let (out, _, cold) = self.send(tokens).await?;
        let written = self.written(before, tokens.len() as u64).await;
        self.flush().await?;
        let reading = self.read(tokens, cold, &out, false, written).await?;
        Ok((reading, cold, out))
    }

    async fn read(
        &self,
        tokens: &[u64],
        cold: Duration,
        out: &[u64],
        by_another: bool,
        written: Option<f64>,
    ) -> Fact<L3Read> {
        let before = self.unfulfilled().await;
        let (again, cached, warm) = self.send(tokens).await?;
        let after = self.unfulfilled().await;
        let was = |reason: &str| before.iter().find(|(known, _)| known == reason).map_or(0.0, |(_, n)| *n);
        let unfulfilled = after.iter().map(|(reason, n)| (reason.clone(), n - was(reason))).filter(|(_, n)| *n > 0.0);
        Ok(L3Read {
            by_another,
            written,
            cached,
            is_same: again == out,
            times: (cold, warm),
            unfulfilled: unfulfilled.collect(),
        })
    }

    /// Sends the prompt. Returns the generated tokens, the cached tokens by tier, and the duration.
    async fn send(&self, tokens: &[u64]) -> Fact<(Vec<u64>, CachedTierTokens, Duration)> {
        let sampling = json!({"temperature": 0, "max_new_tokens": NEW, "ignore_eos": true});
        let body = json!({"input_ids": tokens, "sampling_params": sampling}).to_string();
        let began = self.env.now();
        let answer = self.generate.post(&format!("{}/generate", self.url), body).await;
        let answer = answer.map_err(|error| Unavailable::from(format!("POST /generate: {error}")))?;
        let took = self.env.now().since(began);
        if !answer.is_ok() {
            return Err(format!("POST /generate: {}", answer.shown()).into());
        }
        let value: Value = serde_json::from_str(&answer.body)
            .map_err(|error| Unavailable::from(format!("POST /generate: {error}")))?;
        let ids = value.get("output_ids").and_then(Value::as_array);
        let out = ids.map(|ids| ids.iter().filter_map(Value::as_u64).collect()).unwrap_or_default();
        let details = value.get("meta_info").and_then(|meta| meta.get("cached_tokens_details"));
        let tier = |name: &str| details.and_then(|d| d.get(name)).and_then(Value::as_u64).unwrap_or(0);
        let cached = CachedTierTokens { device: tier("device"), host: tier("host"), storage: tier("storage") };
        Ok((out, cached, took))
    }

    async fn count(&self, name: &str) -> Option<f64> {
        let page = metrics(&self.ask, self.url).await?;
        Some(page.sum(name).unwrap_or(0.0))
    }

    async fn unfulfilled(&self) -> Vec<(String, f64)> {
        let page = metrics(&self.ask, self.url).await.unwrap_or_default();
        let by = page.by("sglang:storage_prefetch_unfulfilled_tokens_total", "reason");
        by.into_iter().map(|(reason, n)| (reason.to_owned(), n)).collect()
    }

    /// Waits until the prompt's pages are written, and returns the number of written tokens if the
    /// server reports it.
    async fn written(&self, before: Option<f64>, tokens: u64) -> Option<f64> {
        let Some(before) = before else {
            self.env.sleep(BLIND).await;
            return None;
        };
        let began = self.env.now();
        let mut last = 0.0;
        let mut quiet = 0;
        loop {
            let now = self.count("sglang:backuped_tokens_total").await? - before;
            quiet = if now > last { 0 } else { quiet + 1 };
            last = now;
            let is_all = now * 10.0 >= tokens as f64 * 9.0;
            if is_all || now > 0.0 && quiet >= 4 || self.env.now().since(began) > WRITTEN {
                return Some(now);
            }
            self.env.sleep(AGAIN).await;
        }
    }

    /// Empties the tiers above L3. A busy server rejects this for a while.
    async fn flush(&self) -> Fact<()> {
        let began = self.env.now();
        loop {
            let answer = self.ask.post(&format!("{}/flush_cache", self.url), String::new()).await;
            let why = match answer {
                Ok(answer) if answer.is_ok() => return Ok(()),
                Ok(answer) => answer.shown(),
                Err(error) => error.to_string(),
            };
            if self.env.now().since(began) > FLUSHED {
                return Err(format!("POST /flush_cache: {why}").into());
            }
            self.env.sleep(AGAIN).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_exceeds_the_threshold_and_depends_on_its_seed() {
        let info = |page: u64| {
            let value = json!({"page_size": page});
            ServerSettings(value.as_object().cloned().unwrap_or_default())
        };
        assert_eq!(length(&info(1)), 600);
        assert_eq!(length(&info(64)), 600);
        assert!(length(&info(1024)) > 2 * 1024);
        assert_ne!(prompt(1, 64), prompt(2, 64));
        assert!(prompt(3, 1000).iter().all(|token| TOKENS.contains(token)));
    }
}
