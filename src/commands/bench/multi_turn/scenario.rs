//! Interactivity of agentic load, and the rules of `--preset agentx`.

use serde::Serialize;

use crate::commands::bench::multi_turn::Args;
use crate::commands::bench::multi_turn::args::{DatasetName, SessionStart, UniquePrefix};
use crate::commands::bench::multi_turn::execute::MeasuredRun;
use crate::commands::bench::multi_turn::preset::Preset;
use crate::commands::cli::table::{ReportSection, ReportTable};
use crate::engine::load::measure::interactivity::InteractivityReport;
use crate::engine::load::scenario::{self, RuleCheck, ScenarioRun};
use crate::engine::trace::TimeUnit;

/// Whether a run has followed the rules of a scenario.
#[derive(Debug, Serialize)]
pub(in crate::commands::bench) struct ScenarioReport {
    pub name: &'static str,
    /// Whether all rules were followed. A result with `false` must not be published as a result of
    /// the scenario.
    pub valid: bool,
    pub rules: Vec<RuleCheck>,
}

impl ScenarioReport {
    /// Checks the rules; `None` without `--preset agentx`.
    pub(super) fn of(args: &Args, measured: &MeasuredRun) -> Option<ScenarioReport> {
        if args.preset.preset != Some(Preset::Agentx) {
            return None;
        }
        let (sessions, dataset) = (&args.workload.sessions, &args.workload.dataset);
        let passes = &measured.executed.passes;
        let sum = |of: fn(&crate::engine::load::measure::Tally) -> u64| passes.iter().map(|pass| of(&pass.tally)).sum();
        // Requests are sent until the end of the duration, and then those in flight end.
        let took = passes.iter().map(|pass| pass.tally.took()).max().unwrap_or_default();
        let is_unchanged = dataset.sharegpt_output_len.is_none()
            && dataset.sharegpt_context_len.is_none()
            && dataset.max_turns.is_none()
            && dataset.time_unit.is_none_or(|unit| unit == TimeUnit::Seconds)
            && !dataset.skip_bad
            && dataset.num_prompts.is_none()
            && dataset.dataset_offset == 0
            && !dataset.first_turn_only
            && args.load.max_parallel.is_none()
            && args.phases.phases.is_empty()
            && args.endpoint.extra_request_body.is_none()
            && dataset.mooncake_num_rounds == 1
            && dataset.speed_up == 1.0
            && dataset.mooncake_slowdown_factor == 1.0;
        let rules = scenario::check(&ScenarioRun {
            has_session_trees: dataset.dataset_name == Some(DatasetName::Mooncake) && measured.has_session_trees,
            live_sessions: sessions.live_sessions,
            starts_midway: sessions.session_start == SessionStart::Random,
            has_unique_prefix: sessions.unique_prefix == UniquePrefix::Run,
            idle_max: sessions.idle_max,
            is_unchanged,
            streams: !args.request.disable_stream,
            ignores_eos: !args.request.disable_ignore_eos,
            has_seed: args.load.seed.is_some(),
            sent_for: took.min(args.load.duration),
            is_incomplete: measured.signal.is_some() || measured.executed.failed_step.is_some(),
            requests: sum(|tally| tally.all.requests + tally.failed()),
            context_overflows: sum(|tally| tally.context_overflows),
        });
        Some(ScenarioReport { name: "agentx", valid: rules.iter().all(|rule| rule.met), rules })
    }

    /// Returns the report section.
    pub(super) fn section(&self) -> ReportSection {
        let mut section = ReportSection::new("Rules of AgentX");
        let broken: Vec<&str> = self.rules.iter().filter(|rule| !rule.met).map(|rule| rule.rule).collect();
        section.text.push(match broken.is_empty() {
            true => "valid: the run has followed all rules. The trace itself is not checked".to_owned(),
            false => format!("not valid: {}", broken.join(", ")),
        });
        let mut table = ReportTable::new("", &["rule", "followed", "required", "found"]);
        for rule in &self.rules {
            let met = if rule.met { "yes" } else { "no" };
            table.row([rule.rule.to_owned(), met.to_owned(), rule.required.to_owned(), rule.found.clone()]);
        }
        section.tables.push(table);
        section
    }
}

/// Returns the report section of a pass.
pub(super) fn interactivity_section(report: &InteractivityReport) -> ReportSection {
    let mut section = ReportSection::new("Interactivity");
    let head = ["", "interactivity p50, tokens/s", "p90, tokens/s", "tokens/s", "output tokens/s"];
    let mut table = ReportTable::new("", &head);
    let one = |value: f64| format!("{value:.1}");
    table.row([
        "all".to_owned(),
        one(report.p50_interactivity),
        one(report.p90_interactivity),
        one(report.tokens_per_s),
        one(report.output_tokens_per_s),
    ]);
    if let Some(per_gpu) = &report.per_gpu {
        let (tokens, output) = (one(per_gpu.tokens_per_s), one(per_gpu.output_tokens_per_s));
        table.row([format!("per GPU ({})", per_gpu.gpus), "-".to_owned(), "-".to_owned(), tokens, output]);
    }
    table.notes.push(
        "Interactivity: the inverse of a percentile of E2E latency per output token (AgentX publishes p90). Tokens per second include prompt \
         tokens, also cached ones"
            .to_owned(),
    );
    section.tables.push(table);
    section
}
