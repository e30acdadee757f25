//! The plan of a comparison: conversations, blocks and rate, chosen before the run from the
//! servers' caches and speed.

use serde::Serialize;

use crate::commands::bench::env;
use crate::commands::bench::multi_turn::Args;
use crate::commands::cli::error::Failure;
use crate::commands::cli::output;
use crate::commands::cli::runtime::{self, Signals};
use crate::commands::cli::table::ReportSection;
use crate::engine::base::text::counted;
use crate::engine::load::LoadCaveat;
use crate::engine::load::compare::{CacheSizes, ComparedSides, ComparedTier, GivenLoad, WorkingSetPlan};
use crate::engine::load::plan::{Measurement, MeasurementKind, ProbeError, Survey, UnknownSizes};

/// The caches of one server.
#[derive(Clone, Debug, Serialize)]
pub(in crate::commands::bench) struct CachesOfSide {
    pub name: String,
    pub sizes: Option<CacheSizes>,
    /// Why the sizes are unknown.
    pub unknown: Option<String>,
}

/// A tier in question.
#[derive(Clone, Debug, Serialize)]
pub(in crate::commands::bench) struct TierInQuestion {
    pub tier: ComparedTier,
    /// The tier matters if the conversations of a block have more tokens than this.
    pub above_tokens: u64,
    pub reached: bool,
}

/// The plan, as shown before the run and in the report.
#[derive(Clone, Debug, Serialize)]
pub(in crate::commands::bench) struct ComparisonPlan {
    /// Conversations over all blocks.
    pub conversations: u32,
    pub blocks: u32,
    /// Tokens of the conversations of one block.
    pub working_set_tokens: u64,
    /// Requests per second; `None` without a limit.
    pub request_rate: Option<f64>,
    /// Estimated duration; `None` if the rate is not limited.
    pub estimated_s: Option<f64>,
    pub caches: Vec<CachesOfSide>,
    /// `None` if a size is unknown.
    pub tiers: Option<Vec<TierInQuestion>>,
    /// Flags that repeat this plan.
    pub flags: String,
    #[serde(skip)]
    primary: &'static str,
}

impl ComparisonPlan {
    /// Returns the tiers in question that the load does not reach.
    pub(crate) fn missed(&self) -> Vec<String> {
        let tiers = self.tiers.iter().flatten();
        tiers.filter(|tier| !tier.reached).map(|tier| tier.tier.to_string()).collect()
    }

    /// Returns the plan as text lines.
    pub(crate) fn lines(&self) -> Vec<String> {
        let rate = self.request_rate.map_or("no rate limit".to_owned(), |rate| format!("{rate} requests/s"));
        let time = self.estimated_s.map_or(String::new(), |seconds| format!(", about {}", duration(seconds)));
        let blocks = counted(self.blocks, "block");
        let mut lines = vec![format!(
            "Plan: {} decides; {} in {blocks} of about {} tokens, {rate}{time}",
            self.primary,
            counted(self.conversations, "conversation"),
            self.working_set_tokens
        )];
        let caches = self.caches.iter().map(|side| match (&side.sizes, &side.unknown) {
            (Some(sizes), _) => format!("{}: {sizes}", side.name),
            (None, reason) => format!("{}: unknown ({})", side.name, reason.as_deref().unwrap_or("not reported")),
        });
        lines.push(format!("Caches: {}", caches.collect::<Vec<_>>().join("; ")));
        if let Some(tiers) = self.tiers.as_ref().filter(|tiers| !tiers.is_empty()) {
            let tiers = tiers.iter().map(|one| {
                let reached = if one.reached { "reached" } else { "NOT reached" };
                format!("{} (above {} tokens): {reached}", one.tier, one.above_tokens)
            });
            lines.push(format!("Tiers in question: {}", tiers.collect::<Vec<_>>().join(", ")));
        }
        lines.push(format!("Same plan: {}", self.flags));
        lines
    }

    /// Returns the report section.
    pub(crate) fn section(&self) -> ReportSection {
        ReportSection { text: self.lines(), ..ReportSection::new("Plan") }
    }
}

fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 100.0 => format!("{s:.0} s"),
        s if s < 5_400.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3_600.0),
    }
}

impl Args {
    /// Chooses the conversations, blocks and rate that the flags leave open, sets them, and prints
    /// the plan. Also returns caveats.
    ///
    /// # Errors
    /// The workload is invalid.
    pub(super) fn plan_comparison(
        &mut self,
        measurement: &mut Measurement,
    ) -> Result<(ComparisonPlan, Vec<LoadCaveat>), Failure> {
        let measure_speed = self.load.request_rate.is_none() && !self.server.no_server_calls;
        if measure_speed && !self.output.quiet {
            output::say("measuring the speed of both servers with a few unrelated prompts");
        }
        let env = env();
        let survey = runtime::block_on(0, async {
            let mut signals = Signals::take()?;
            tokio::select! {
                survey = measurement.survey(&env, measure_speed) => survey.map_err(no_response),
                signal = signals.next() => Err(Failure::interrupted(format!("{signal}: stopped before the first measurement"))),
            }
        })?;
        let is_dataset = measurement.is_dataset;
        let conversations =
            self.workload.num_clients.or(self.server.no_server_calls.then(|| self.workload.conversations()));
        let given = GivenLoad {
            conversations: if is_dataset { Some(survey.conversations) } else { conversations },
            blocks: self.compare.blocks,
            rate: Some(self.load.rate()).filter(|rate| rate.is_finite()),
        };
        let sizes = match survey.sizes {
            [Ok(a), Ok(b)] => Some([a, b]),
            _ => None,
        };
        let choose = |given: &GivenLoad| WorkingSetPlan::choose(&survey.shape, given, sizes.as_ref());
        let (chosen, rate) = match survey.speed.filter(|_| self.load.request_rate.is_none()) {
            None => (choose(&given), self.load.rate()),
            Some(speed) => {
                // The rate depends on the conversations of a block, and their number on the time
                // that a block takes.
                let at = |rate: f64| choose(&GivenLoad { rate: Some(rate), ..given });
                let first = at(speed.rate(u32::MAX));
                let rate = speed.rate(first.conversations / first.blocks.max(1));
                (at(rate), rate)
            }
        };
        let was_open = given.conversations.is_none();
        self.load.request_rate = Some(rate);
        self.compare.blocks = Some(chosen.blocks);
        if is_dataset {
            measurement.kind = MeasurementKind::Comparison { blocks: chosen.blocks };
            measurement.load = self.offered_load();
        } else {
            self.workload.num_clients = Some(chosen.conversations);
            *measurement = self.measurement()?;
        }
        let passes = if ComparedSides::of(measurement.sides.len()).floor.is_some() { 2.0 } else { 1.0 };
        let flags = self.plan_flags(is_dataset);
        let tiers = chosen.questions.as_ref().map(|questions| {
            let of = |question: &crate::engine::load::compare::TierQuestion| TierInQuestion {
                tier: question.tier,
                above_tokens: question.above,
                reached: chosen.working_set > question.above,
            };
            questions.iter().map(of).collect()
        });
        let names = self.compare.labels();
        let plan = ComparisonPlan {
            conversations: chosen.conversations,
            blocks: chosen.blocks,
            working_set_tokens: chosen.working_set,
            request_rate: Some(rate).filter(|rate| rate.is_finite()),
            estimated_s: chosen.seconds.map(|seconds| seconds * passes),
            caches: names.iter().zip(&survey.sizes).map(|(name, sizes)| caches_of(name, sizes)).collect(),
            tiers,
            flags,
            primary: self.compare.primary().word(),
        };
        if !self.output.quiet {
            plan.lines().iter().for_each(output::say);
        }
        let caveats = caveats(&chosen, &survey, names, was_open);
        if !self.output.quiet {
            caveats.iter().for_each(|caveat| output::say(format!("caveat: {caveat}")));
        }
        Ok((plan, caveats))
    }

    /// Returns the flags that repeat the plan.
    fn plan_flags(&self, is_dataset: bool) -> String {
        let clients =
            if is_dataset { String::new() } else { format!("--num-clients {} ", self.workload.conversations()) };
        format!(
            "{clients}--blocks {} --request-rate {} --seed {}",
            self.compare.blocks(),
            self.load.rate(),
            self.load.seed()
        )
    }
}

fn no_response(error: ProbeError) -> Failure {
    let ProbeError { name, url, reason } = error;
    Failure::unreachable(format!("{name} does not respond: {url}"))
        .tried("its settings, and a few requests of the workload's average length")
        .found(reason)
        .next("check the server's log")
}

fn caches_of(name: &str, sizes: &Result<CacheSizes, UnknownSizes>) -> CachesOfSide {
    CachesOfSide { name: name.to_owned(), sizes: sizes.ok(), unknown: sizes.err().map(|reason| reason.to_string()) }
}

/// Returns the caveats about what the load cannot show.
fn caveats(chosen: &WorkingSetPlan, survey: &Survey, names: [&str; 2], was_open: bool) -> Vec<LoadCaveat> {
    let working_set = chosen.working_set;
    if chosen.questions.is_none() {
        let unknown = names.iter().zip(&survey.sizes).filter_map(|(name, sizes)| Some((*name, sizes.err()?)));
        let unknown: Vec<(&str, UnknownSizes)> = unknown.collect();
        let reason = unknown.first().map_or(UnknownSizes::NoCalls, |(_, reason)| *reason);
        let names = unknown.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(" and ");
        return vec![LoadCaveat::CacheSizesUnknown { names, reason: reason.to_string(), working_set }];
    }
    let missed = chosen.missed();
    if missed.is_empty() {
        return Vec::new();
    }
    let tiers = missed.iter().map(|one| (one.tier.to_string(), one.above)).collect();
    let required = chosen.required.unwrap_or(0);
    let too_long = was_open;
    vec![LoadCaveat::TiersNotReached { tiers, working_set, required, too_long }]
}
