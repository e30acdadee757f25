//! What `bench verify` checks, from its flags and the server's settings.

use std::fs::File;
use std::io::BufReader;

use crate::commands::bench::env;
use crate::commands::bench::multi_turn::args::Api;
use crate::commands::bench::verify::Args;
use crate::commands::bench::verify::caveat::VerifyCaveat;
use crate::commands::cli::error::Failure;
use crate::engine::env::Env;
use crate::engine::load::Seed;
use crate::engine::load::server::ServerInfo;
use crate::engine::load::verify::{
    PlanError, PromptFileError, SampleSize, VERIFIED_MIN, VerifyApi, VerifyPass, VerifyPlan, read_prompts,
};

/// Page size of a server that does not report it: vLLM's default.
const PAGE_DEFAULT: u32 = 16;
/// Largest page size, as for `--page-size`.
const PAGE_MAX: u32 = 1 << 20;
/// Maximum number of prompts, given or random.
pub(super) const PROMPTS_MAX: u32 = 100_000;

impl Args {
    /// Returns the flags that are set and have no effect. The requests of a check are not load.
    pub(super) fn unused_flags(&self) -> Vec<&'static str> {
        let endpoint = &self.endpoint;
        let flags = [
            ("--ready-check-timeout-sec", endpoint.ready_check_timeout_sec.is_some_and(|seconds| seconds > 0)),
            ("--retry-busy", endpoint.retry_busy > 0),
            ("--http2", endpoint.http2),
        ];
        flags.into_iter().filter(|(_, is_set)| *is_set).map(|(flag, _)| flag).collect()
    }

    /// Returns what the run can find.
    pub(super) fn sample_size(&self) -> Result<SampleSize, Failure> {
        /// A probability of 1 would need an infinite number of prompts.
        const POWER_MAX: f64 = 99.9999;
        if self.power > POWER_MAX {
            return Err(Failure::usage(format!("--power {} is not possible", self.power))
                .next(format!("use a value above 0 and at most {POWER_MAX}")));
        }
        if self.affected > 100.0 {
            return Err(Failure::usage(format!("--affected {} is above 100 %", self.affected))
                .next("use a value of at most 100"));
        }
        Ok(SampleSize { affected: self.affected / 100.0, power: self.power / 100.0 })
    }

    /// Returns the API to use.
    pub(super) fn api(&self, info: Option<&ServerInfo>, base: &str) -> Result<VerifyApi, Failure> {
        if self.endpoint.api == Api::Generate {
            return match info {
                Some(_) => Ok(VerifyApi::Generate),
                None => Err(Failure::unreachable(format!("{base} does not return the settings of an SGLang server"))
                    .tried("GET /server_info")
                    .next("for other servers, use --api completions with --model NAME; if the server needs an API key, use --header")),
            };
        }
        let model = self.endpoint.model_name();
        let model =
            model.ok_or_else(|| Failure::usage("--api completions needs the model's name").next("add --model NAME"))?;
        Ok(VerifyApi::Completions { model: model.to_owned() })
    }

    /// Reads the user's prompts, if any.
    fn given(&self) -> Result<Vec<Vec<u32>>, Failure> {
        let Some(path) = &self.prompt_file else { return Ok(Vec::new()) };
        let file = File::open(path).map_err(|error| PromptFileError::Read(error.to_string()));
        file.and_then(|file| read_prompts(BufReader::new(file), PROMPTS_MAX)).map_err(|error| {
            let next = match error {
                PromptFileError::TooMany { most } => format!("use at most {most} prompts, or a file for each run"),
                _ => "write one JSON list of token IDs per line, such as [12, 845, 33]".to_owned(),
            };
            Failure::usage(format!("cannot use the prompts in {}", path.display())).found(error.to_string()).next(next)
        })
    }

    /// Returns the prompts and tiers, with caveats about tiers that are not checked.
    pub(super) fn plan(
        &self,
        info: Option<&ServerInfo>,
        size: SampleSize,
    ) -> Result<(VerifyPlan, Vec<VerifyCaveat>), Failure> {
        let mut caveats = Vec::new();
        let known = info.cloned().unwrap_or_default();
        let mut tiers = match info {
            Some(info) => VerifyPlan::tiers_of(info, self.restart.is_some()),
            None => {
                caveats.push(VerifyCaveat::NoTiers);
                vec![VerifyPass::Device, VerifyPass::Storage]
            }
        };
        if let Some(absent) = self.tiers.iter().find(|tier| !tiers.contains(tier)) {
            return Err(Failure::usage(format!("--tiers {}: the server does not have this tier", absent.name()))
                .found(format!("tiers: {}", tiers.iter().map(|tier| tier.name()).collect::<Vec<_>>().join(", "))));
        }
        // L1 is always verified, because the others are compared with it.
        if !self.tiers.is_empty() {
            let always = [VerifyPass::Device, VerifyPass::Restarted];
            tiers.retain(|tier| self.tiers.contains(tier) || always.contains(tier));
        }
        if self.restart.is_some() && !tiers.contains(&VerifyPass::Restarted) {
            return Err(Failure::usage("--restart needs an SGLang server with L3")
                .found("the server does not report a storage backend"));
        }
        if self.endpoint.api == Api::Completions {
            caveats.push(VerifyCaveat::GeneratedOnly);
        }
        let given = self.given()?;
        // IDs of other tokens could be outside the model's vocabulary.
        let highest = given.iter().flatten().max();
        let vocabulary = highest.map_or(self.vocab_size, |highest| highest.saturating_add(1));
        let count = if given.is_empty() { self.prompts } else { u32::try_from(given.len()).ok() };
        let prompts = match count {
            Some(count) => count,
            None => planned_prompts(size)?,
        };
        let plan = VerifyPlan {
            prompts,
            given,
            length: self.length,
            forced: self.continuation,
            uncached: if self.endpoint.api == Api::Generate { self.continuation } else { 1 },
            has_tiers: info.is_some(),
            generated: self.output_length,
            vocabulary,
            seed: Seed(self.seed.unwrap_or_else(|| env().rng() >> 16)),
            run: env().rng(),
            page: self.server.page_size.or(known.page_size).unwrap_or(PAGE_DEFAULT).min(PAGE_MAX),
            device_tokens: known.device_tokens,
            tiers,
        };
        let from = if self.prompt_file.is_some() { "in --prompt-file, use" } else { "set --length to" };
        plan.check(&known).map_err(|error| {
            let next = match error {
                PlanError::PromptTooLong { most, least, .. } if most < least => {
                    "use a server with a larger L1, or fewer tiers: --tiers device".to_owned()
                }
                PlanError::PromptTooLong { most, .. } => format!("{from} at most {most} tokens"),
                PlanError::PromptTooShort { least, .. } => format!("{from} at least {least} tokens"),
                PlanError::SharedPage { .. } => "use prompts that differ in their first tokens".to_owned(),
            };
            Failure::usage(error.to_string()).next(next)
        })?;
        Ok((plan, caveats))
    }
}

/// Returns the number of prompts for `size`, with some in reserve: a tier may miss a few of them.
fn planned_prompts(size: SampleSize) -> Result<u32, Failure> {
    let planned = (f64::from(size.prompts()) / VERIFIED_MIN).ceil();
    if planned > f64::from(PROMPTS_MAX) {
        return Err(Failure::usage(format!(
            "--affected {} needs more than {PROMPTS_MAX} prompts",
            size.affected * 100.0
        ))
        .next("raise --affected, or lower --power"));
    }
    Ok(planned as u32)
}
