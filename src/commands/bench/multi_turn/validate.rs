//! Validates flags before anything is sent: rejects conflicting flags and warns about flags without
//! effect.

use thiserror::Error;

use crate::commands::bench::multi_turn::Args;
use crate::commands::bench::multi_turn::args::{Api, DatasetName, GapDistribution, PhaseName, PrimaryMetric};
use crate::commands::bench::multi_turn::preset::Preset;
use crate::commands::cli::error::Failure;
use crate::commands::cli::output;

/// A flag that has no effect in combination with the other flags.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{flag} has no effect: {reason}")]
struct UnusedFlag {
    /// Flag name with its leading dashes.
    flag: &'static str,
    reason: &'static str,
}

impl Args {
    /// Warns about flags without effect. `compares`: two runs are compared, regardless of the
    /// flags.
    ///
    /// # Errors
    /// Two flags conflict.
    pub(super) fn validate(&self, compares: bool) -> Result<(), Failure> {
        self.check_conflicts()?;
        self.accepted.warning().iter().for_each(|warning| output::say(format!("warning: {warning}")));
        self.unused_flags(compares).iter().for_each(|unused| output::say(format!("warning: {unused}")));
        Ok(())
    }

    fn uses_https(&self) -> bool {
        let urls = [&self.endpoint.url, &self.compare.against];
        urls.into_iter().flatten().any(|url| url.starts_with("https://")) || self.server.has_https()
    }

    fn check_conflicts(&self) -> Result<(), Failure> {
        let calls = |phase: &PhaseName| {
            matches!(
                phase,
                PhaseName::Flush
                    | PhaseName::Clear
                    | PhaseName::FlushWait
                    | PhaseName::EvictDevice
                    | PhaseName::EvictHost
            )
        };
        if self.server.no_server_calls && (self.phases.flush_cache || self.phases.phases.iter().any(calls)) {
            let other = if self.phases.flush_cache { "--flush-cache" } else { "--phases" };
            return Err(Failure::usage(format!("--no-server-calls and {other} are mutually exclusive"))
                .found("flushing and observing caches requires calls to the server")
                .next("drop one of them"));
        }
        if self.server.no_server_calls && self.profile.profile {
            return Err(Failure::usage("--no-server-calls and --profile are mutually exclusive")
                .found("starting and stopping the profiler requires calls to the server")
                .next("drop one of them"));
        }
        if self.workload.dataset.tokenize_prompt && self.endpoint.api == Api::Chat {
            return Err(Failure::usage("--tokenize-prompt does not work with --api chat")
                .next("drop --tokenize-prompt, or use --api generate"));
        }
        self.check_input_is_kept()?;
        self.endpoint.trust_is_used(self.uses_https())
    }

    /// Rejects an output file that is the dataset.
    fn check_input_is_kept(&self) -> Result<(), Failure> {
        let output = &self.output;
        let Some(input) = self.workload.dataset.dataset_path.as_ref().and_then(|path| path.canonicalize().ok()) else {
            return Ok(());
        };
        let outputs = [
            ("--records", &output.records),
            ("--csv", &output.csv),
            ("--json", &output.json),
            ("--html", &output.html),
            ("--output-file", &output.output_file),
            ("--log-file", &output.log_file),
        ];
        let is_input = |path: &std::path::PathBuf| path.canonicalize().is_ok_and(|path| path == input);
        match outputs.into_iter().find(|(_, path)| path.as_ref().is_some_and(is_input)) {
            Some((flag, _)) => Err(Failure::usage(format!("{flag} would replace the dataset"))
                .found(input.display().to_string())
                .next(format!("use another file for {flag}"))),
            None => Ok(()),
        }
    }

    fn unused_flags(&self, compares: bool) -> Vec<UnusedFlag> {
        let compare = &self.compare;
        let workload = &self.workload;
        let output = &self.output;
        let is_dataset = workload.dataset.dataset_name.is_some();
        let compares = compares || compare.against.is_some() || compare.self_compare;
        let kep74 = self.preset.preset == Some(Preset::Kep74);
        let mut unused = Vec::new();
        let mut check = |flag: &'static str, is_unused: bool, reason: &'static str| {
            if is_unused {
                unused.push(UnusedFlag { flag, reason });
            }
        };
        let has_url = self.endpoint.url.is_some();
        check("--host", has_url && self.endpoint.host.is_some(), "--url overrides it");
        check("--port", has_url && self.endpoint.port.is_some(), "--url overrides it");
        for flag in self.profile.details() {
            check(flag, !self.profile.profile, "--profile is not set");
        }
        let reason = if kep74 {
            "--preset kep74 does not compute a comparison"
        } else {
            "no comparison is configured (--against, --self-compare)"
        };
        let compares = compares && !kep74;
        check("--blocks", compare.blocks.is_some() && !compares, reason);
        check("--label-b", compare.label_b != "B" && !compares && !kep74, reason);
        check("--primary", compare.primary != PrimaryMetric::Ttft && !compares, reason);
        check("--margin", compare.margin.is_some() && !compares, reason);
        check("--lag-limit", compare.lag_limit.is_some() && !compares, reason);
        let is_live = workload.sessions.live_sessions.is_some();
        let reason = "with --live-sessions, each request waits for what it waited for when it was recorded";
        check("--request-rate", is_live && !self.serving && self.load.request_rate.is_some(), reason);
        check("--ignore-trace-timestamps", is_live && workload.dataset.ignore_trace_timestamps, reason);
        check("--distribution", is_live && self.load.distribution != GapDistribution::Poisson, reason);
        check("--enable-round-barrier", is_live && self.load.enable_round_barrier, reason);
        let sweeps = self.sweep.sweep().is_some();
        let can_fail = sweeps && !self.goals.goodput.is_empty();
        let reason = if sweeps {
            "no limits are set for the sweep (--goodput)"
        } else {
            "no sweep is configured (--sweep-rate)"
        };
        check("--sweep-all", self.sweep.sweep_all && !can_fail, reason);
        if is_dataset {
            let reason = "the conversations come from a dataset";
            check("--system-groups", workload.system_groups > 0, reason);
            check("--system-length", workload.system_length.is_some(), reason);
            check("--sub-question-input-length", workload.sub_question_input_length.is_some(), reason);
        } else {
            let reason = "--system-groups is 0";
            check("--system-length", workload.system_length.is_some() && workload.system_groups == 0, reason);
            let reason = "synthetic conversations are sent as text with --api completions";
            check(
                "--tokenize-prompt",
                workload.dataset.tokenize_prompt && self.endpoint.api == Api::Completions,
                reason,
            );
        }
        let lines = output.output_file.is_some() || output.log_file.is_some();
        check("--tag", output.tag.is_some() && !lines, "neither --output-file nor --log-file is set");
        let reason = "counters are not read (--no-server-calls)";
        check("--page-size", self.server.page_size.is_some() && self.server.no_server_calls, reason);
        let request = &self.request;
        let api = self.endpoint.api;
        let reason = "only --api generate supports it";
        check("--token-ids-logprob", !request.token_ids_logprob.is_empty() && api != Api::Generate, reason);
        check("--logprob-start-len", request.logprob_start_len != -1 && api != Api::Generate, reason);
        check("--return-routed-experts", request.return_routed_experts && api != Api::Generate, reason);
        let lists = request.top_logprobs_num > 0;
        let reason = "--api completions also requires --top-logprobs-num";
        let is_completions = matches!(api, Api::Completions | Api::Truss);
        check("--return-logprob", request.return_logprob && is_completions && !lists, reason);
        let reason = "it requires --return-logprob";
        check("--top-logprobs-num", lists && api != Api::Generate && !request.return_logprob, reason);
        let dataset = &workload.dataset;
        let is_of = |names: &[DatasetName]| dataset.dataset_name.is_some_and(|name| names.contains(&name));
        let reason = "only the dataset speed-bench supports it";
        check(
            "--speed-bench-category",
            dataset.speed_bench_category.is_some() && !is_of(&[DatasetName::SpeedBench]),
            reason,
        );
        let reason = "only the datasets sharegpt and custom support it";
        check(
            "--prompt-suffix",
            !dataset.prompt_suffix.is_empty() && !is_of(&[DatasetName::Sharegpt, DatasetName::Custom]),
            reason,
        );
        let reason = "only the datasets sharegpt, custom and speed-bench support it";
        let has_template = is_of(&[DatasetName::Sharegpt, DatasetName::Custom, DatasetName::SpeedBench]);
        check("--apply-chat-template", dataset.apply_chat_template && !has_template, reason);
        let reason = "only the dataset mooncake supports it";
        let is_trace = is_of(&[DatasetName::Mooncake]);
        check("--mooncake-num-rounds", dataset.mooncake_num_rounds > 1 && !is_trace, reason);
        check("--block-size", dataset.block_size.is_some() && !is_trace, reason);
        check("--time-unit", dataset.time_unit.is_some() && !is_trace, reason);
        let empties = self.phases.flush_cache
            || self.phases.phases.iter().any(|phase| matches!(phase, PhaseName::Flush | PhaseName::Clear))
            || compares
            || sweeps
            || kep74;
        let reason = "no cache flush is configured (--flush-cache, --phases)";
        check("--flush-cache-timeout", self.phases.flush_cache_timeout.is_some() && !empties, reason);
        check("--insecure", self.endpoint.insecure && !self.uses_https(), "no URL uses HTTPS");
        unused
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct MultiTurnCommandLine {
        #[command(flatten)]
        args: Args,
    }

    fn args(line: &str) -> Args {
        MultiTurnCommandLine::parse_from(std::iter::once("x").chain(line.split_whitespace())).args
    }

    #[test]
    fn flags_without_effect_are_named() {
        for (line, flags) in [
            ("--blocks 4 --margin 2 --lag-limit 1ms", &["--blocks", "--margin", "--lag-limit"][..]),
            ("--label-b x --primary itl", &["--label-b", "--primary"]),
            ("--preset kep74 --against http://h --blocks 4", &["--blocks"]),
            ("--sweep-all", &["--sweep-all"]),
            ("--sweep-all --sweep-rate 1,2", &["--sweep-all"]),
            ("--system-length 9", &["--system-length"]),
            ("--dataset-name random-ids --system-length 9 --system-groups 1", &["--system-groups", "--system-length"]),
            ("--tag x", &["--tag"]),
            ("--tokenize-prompt --api completions", &["--tokenize-prompt"]),
            ("--insecure --url http://h", &["--insecure"]),
            ("--page-size 16 --no-server-calls", &["--page-size"]),
            ("--base-url http://h --host x --port 3", &["--host", "--port"]),
            ("--profile-steps 3 --profile-prefix p", &["--profile-steps", "--profile-prefix"]),
            ("--api chat --token-ids-logprob 1 --top-logprobs-num 2", &["--token-ids-logprob", "--top-logprobs-num"]),
            ("--api completions --return-logprob", &["--return-logprob"]),
            ("--prompt-suffix x --flush-cache-timeout 3", &["--prompt-suffix", "--flush-cache-timeout"]),
            (
                "--dataset-name random-ids --apply-chat-template --mooncake-num-rounds 2",
                &["--apply-chat-template", "--mooncake-num-rounds"],
            ),
        ] {
            let args = args(line);
            assert!(args.check_conflicts().is_ok(), "{line}");
            let unused: Vec<&str> = args.unused_flags(false).iter().map(|unused| unused.flag).collect();
            assert_eq!(unused, flags, "{line}");
        }
    }

    #[test]
    fn flags_with_effect_cause_no_warning() {
        for line in [
            "",
            "--against http://h --blocks 4 --margin 2 --lag-limit 1ms",
            "--self-compare --blocks 4",
            "--a-a --blocks 4",
            "--sweep-rate 1,2 --goodput ttft:5 --sweep-all",
            "--system-groups 2 --system-length 9",
            "--tag x --log-file f",
            "--tokenize-prompt",
            "--insecure --url https://h",
            "--insecure --against https://h",
            "--insecure --metrics-url https://h:1",
        ] {
            let args = args(line);
            assert!(args.check_conflicts().is_ok(), "{line}");
            assert_eq!(args.unused_flags(false), [], "{line}");
        }
        assert_eq!(args("--blocks 4").unused_flags(true), [], "two runs from files");
    }

    #[test]
    fn flags_that_contradict_each_other_are_refused() {
        for line in [
            "--flush-cache --no-server-calls",
            "--phases flush,first --no-server-calls",
            "--tokenize-prompt --api chat",
            "--cacert f --url http://h",
            "--cacert f",
        ] {
            assert!(args(line).check_conflicts().is_err(), "{line}");
        }
        for line in ["--cacert f --url https://h", "--phases warm,first --no-server-calls"] {
            assert!(args(line).check_conflicts().is_ok(), "{line}");
        }
    }

    #[test]
    fn a_negative_number_is_a_value_not_a_flag() {
        for flag in ["--request-rate", "--num-clients", "--seed", "--margin", "--think-time", "--max-parallel"] {
            for value in ["-1", "-0.5"] {
                let error = MultiTurnCommandLine::try_parse_from(["x", flag, value]).err().expect(flag).to_string();
                assert!(error.contains(&format!("invalid value '{value}' for '{flag}")), "{error}");
            }
        }
    }
}
