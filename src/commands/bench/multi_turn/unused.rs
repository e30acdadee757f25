//! Flags that nothing looks at, and flags that contradict each other: told before anything is sent, so that nobody believes that
//! they did something.

use crate::commands::bench::multi_turn::Args;
use crate::commands::bench::multi_turn::args::{Api, Name, Phase};
use crate::commands::bench::multi_turn::preset::Preset;
use crate::commands::error::Failure;
use crate::commands::output;

impl Args {
    /// Say which flags are given for nothing; `compares`: two runs are compared, whatever the flags say.
    ///
    /// # Errors
    /// Two of them contradict each other.
    pub(super) fn look_over(&self, compares: bool) -> Result<(), Failure> {
        self.agree()?;
        self.accepted.warning().iter().for_each(|warning| output::say(format!("warning: {warning}")));
        self.unused(compares).iter().for_each(|why| output::say(format!("warning: {why}")));
        Ok(())
    }

    fn uses_https(&self) -> bool {
        let urls = [&self.endpoint.url, &self.compare.against];
        urls.into_iter().flatten().any(|url| url.starts_with("https://")) || self.server.has_https()
    }

    fn agree(&self) -> Result<(), Failure> {
        let calls = |phase: &Phase| {
            matches!(phase, Phase::Flush | Phase::Clear | Phase::Settle | Phase::EvictDevice | Phase::EvictHost)
        };
        if self.server.no_server_calls && (self.phases.flush_cache || self.phases.phases.iter().any(calls)) {
            return Err(Failure::usage(
                "--no-server-calls forbids the calls that the caches are emptied and watched with",
            )
            .found(if self.phases.flush_cache { "--flush-cache" } else { "--phases with such a phase" })
            .next("leave one of them out"));
        }
        if self.server.no_server_calls && self.profile.profile {
            return Err(Failure::usage("--no-server-calls forbids the calls that start and stop the profiler")
                .found("--profile")
                .next("leave one of them out"));
        }
        if self.workload.dataset.tokenize_prompt && self.endpoint.api == Api::Chat {
            return Err(
                Failure::usage("chat takes no token ids").next("leave --tokenize-prompt out, or use --api generate")
            );
        }
        self.endpoint.trust_is_used(self.uses_https())
    }

    /// A sentence for each.
    fn unused(&self, compares: bool) -> Vec<String> {
        let (compare, workload, output) = (&self.compare, &self.workload, &self.output);
        let is_dataset = workload.dataset.dataset_name.is_some();
        let compares = compares || compare.against.is_some() || compare.a_a;
        let kep74 = self.preset.preset == Some(Preset::Kep74);
        let mut unused = Vec::new();
        if self.endpoint.url.is_some() {
            let given = [("--host", self.endpoint.host.is_some()), ("--port", self.endpoint.port.is_some())];
            let given: Vec<&str> = given.into_iter().filter_map(|(flag, is_given)| is_given.then_some(flag)).collect();
            if !given.is_empty() {
                unused.push(format!("{} is not looked at: the URL names the server", given.join(", ")));
            }
        }
        if !self.profile.profile && !self.profile.details().is_empty() {
            unused.push(format!(
                "{} is not looked at: nothing is profiled (--profile)",
                self.profile.details().join(", ")
            ));
        }
        let mut told = |flag: &str, given: bool, why: &str| {
            if given {
                unused.push(format!("{flag} is not looked at: {why}"));
            }
        };
        let why = if kep74 {
            "the preset kep74 has a table, no comparison"
        } else {
            "nothing is compared (--against, --a-a)"
        };
        let compares = compares && !kep74;
        told("--blocks", compare.blocks.is_some() && !compares, why);
        told("--margin", compare.margin.is_some() && !compares, why);
        told("--lag-limit", compare.lag_limit.is_some() && !compares, why);
        let sweeps = self.sweep.sweep().is_some();
        let can_fail = sweeps && !self.goals.goodput.is_empty();
        let why = if sweeps {
            "no load of the sweep has limits to fail (--goodput)"
        } else {
            "there is no sweep (--sweep-rate)"
        };
        told("--sweep-all", self.sweep.sweep_all && !can_fail, why);
        if is_dataset {
            let why = "the conversations are those of a dataset";
            told("--system-groups", workload.system_groups > 0, why);
            told("--system-length", workload.system_length.is_some(), why);
            told("--sub-question-input-length", workload.sub_question_input_length.is_some(), why);
        } else {
            let why = "conversations share no system prompts (--system-groups)";
            told("--system-length", workload.system_length.is_some() && workload.system_groups == 0, why);
            let why = "made-up conversations with --api completions are texts";
            told("--tokenize-prompt", workload.dataset.tokenize_prompt && self.endpoint.api == Api::Completions, why);
        }
        let lines = output.output_file.is_some() || output.log_file.is_some();
        told("--tag", output.tag.is_some() && !lines, "there is no line to carry it (--output-file, --log-file)");
        let why = "the server is asked for no counters (--no-server-calls)";
        told("--page-size", self.server.page_size.is_some() && self.server.no_server_calls, why);
        let (request, api) = (&self.request, self.endpoint.api);
        let why = "only --api generate has it";
        told("--token-ids-logprob", !request.token_ids_logprob.is_empty() && api != Api::Generate, why);
        told("--logprob-start-len", request.logprob_start_len != -1 && api != Api::Generate, why);
        told("--return-routed-experts", request.return_routed_experts && api != Api::Generate, why);
        let lists = request.top_logprobs_num > 0;
        let why = "of completions, log probabilities come with --top-logprobs-num";
        let is_completions = matches!(api, Api::Completions | Api::Truss);
        told("--return-logprob", request.return_logprob && is_completions && !lists, why);
        let why = "it needs --return-logprob";
        told("--top-logprobs-num", lists && api != Api::Generate && !request.return_logprob, why);
        let dataset = &workload.dataset;
        let is_of = |names: &[Name]| dataset.dataset_name.is_some_and(|name| names.contains(&name));
        let why = "only the dataset speed-bench has categories";
        told("--speed-bench-category", dataset.speed_bench_category.is_some() && !is_of(&[Name::SpeedBench]), why);
        let why = "only the datasets sharegpt and custom have it";
        told("--prompt-suffix", !dataset.prompt_suffix.is_empty() && !is_of(&[Name::Sharegpt, Name::Custom]), why);
        let why = "only the datasets sharegpt, custom and speed-bench have it";
        let has_template = is_of(&[Name::Sharegpt, Name::Custom, Name::SpeedBench]);
        told("--apply-chat-template", dataset.apply_chat_template && !has_template, why);
        let why = "only the dataset mooncake has rounds";
        told("--mooncake-num-rounds", dataset.mooncake_num_rounds > 1 && !is_of(&[Name::Mooncake]), why);
        let empties = self.phases.flush_cache
            || self.phases.phases.iter().any(|phase| matches!(phase, Phase::Flush | Phase::Clear))
            || compares
            || sweeps
            || kep74;
        let why = "no cache is emptied (--flush-cache, --phases)";
        told("--flush-cache-timeout", self.phases.flush_cache_timeout.is_some() && !empties, why);
        told("--insecure", self.endpoint.insecure && !self.uses_https(), "nothing is spoken to by https");
        unused
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn args(line: &str) -> Args {
        Line::parse_from(std::iter::once("x").chain(line.split_whitespace())).args
    }

    #[test]
    fn a_flag_that_nothing_looks_at_is_named() {
        for (line, flags) in [
            ("--blocks 4 --margin 2 --lag-limit 1ms", &["--blocks", "--margin", "--lag-limit"][..]),
            ("--preset kep74 --against http://h --blocks 4", &["--blocks"]),
            ("--sweep-all", &["--sweep-all"]),
            ("--sweep-all --sweep-rate 1,2", &["--sweep-all"]),
            ("--system-length 9", &["--system-length"]),
            ("--dataset-name random-ids --system-length 9 --system-groups 1", &["--system-groups", "--system-length"]),
            ("--tag x", &["--tag"]),
            ("--tokenize-prompt --api completions", &["--tokenize-prompt"]),
            ("--insecure --url http://h", &["--insecure"]),
            ("--page-size 16 --no-server-calls", &["--page-size"]),
            ("--base-url http://h --host x --port 3", &["--host, --port"]),
            ("--profile-steps 3 --profile-prefix p", &["--profile-steps, --profile-prefix"]),
            ("--api chat --token-ids-logprob 1 --top-logprobs-num 2", &["--token-ids-logprob", "--top-logprobs-num"]),
            ("--api completions --return-logprob", &["--return-logprob"]),
            ("--prompt-suffix x --flush-cache-timeout 3", &["--prompt-suffix", "--flush-cache-timeout"]),
            (
                "--dataset-name random-ids --apply-chat-template --mooncake-num-rounds 2",
                &["--apply-chat-template", "--mooncake-num-rounds"],
            ),
        ] {
            let args = args(line);
            assert!(args.agree().is_ok(), "{line}");
            let told = args.unused(false);
            assert_eq!(told.len(), flags.len(), "{line}: {told:?}");
            assert!(told.iter().zip(flags).all(|(told, flag)| told.starts_with(flag)), "{line}: {told:?}");
        }
    }

    #[test]
    fn what_is_used_is_no_matter_to_talk_of() {
        for line in [
            "",
            "--against http://h --blocks 4 --margin 2 --lag-limit 1ms",
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
            assert!(args.agree().is_ok(), "{line}");
            assert_eq!(args.unused(false), Vec::<String>::new(), "{line}");
        }
        assert_eq!(args("--blocks 4").unused(true), Vec::<String>::new(), "two runs from files");
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
            assert!(args(line).agree().is_err(), "{line}");
        }
        for line in ["--cacert f --url https://h", "--phases warm,first --no-server-calls"] {
            assert!(args(line).agree().is_ok(), "{line}");
        }
    }

    #[test]
    fn a_negative_number_is_a_wrong_number_and_no_flag() {
        for flag in ["--request-rate", "--num-clients", "--seed", "--margin", "--think-time", "--max-parallel"] {
            for value in ["-1", "-0.5"] {
                let error = Line::try_parse_from(["x", flag, value]).err().expect(flag).to_string();
                assert!(error.contains(&format!("invalid value '{value}' for '{flag}")), "{error}");
            }
        }
    }
}
