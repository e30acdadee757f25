//! Converts the flags to a measurement, checks its endpoints and plans its session.

use std::time::Duration;

use crate::commands::bench::env;
use crate::commands::bench::multi_turn::Args;
use crate::commands::bench::multi_turn::comparison_plan::ComparisonPlan;
use crate::commands::bench::multi_turn::preflight::{silent_server, unreachable};
use crate::commands::bench::multi_turn::preset::Preset;
use crate::commands::cli::confirm;
use crate::commands::cli::error::Failure;
use crate::commands::cli::output;
use crate::commands::cli::runtime;
use crate::engine::load::plan::{
    CacheChange, Measurement, MeasurementKind, OfferedLoad, PlanError, PlannedRun, ProfileCalls,
};
use crate::engine::load::session::LoadEndpoint;
use crate::engine::load::sweep::Sweep;
use crate::engine::load::workload::LoadWorkload;
use crate::engine::load::{Rules, Seed};

impl Args {
    /// Plans the run that the flags describe.
    ///
    /// # Errors
    /// Flags conflict, an endpoint is unreachable, or the user does not confirm.
    pub(super) fn planned_run(&mut self) -> Result<(PlannedRun, Option<ComparisonPlan>), Failure> {
        self.check_kind()?;
        let mut measurement = self.measurement()?;
        let is_default = self.endpoint.is_default();
        if let Some(side) = measurement.sides.first().filter(|_| is_default && !self.output.quiet) {
            output::say(format!(
                "server: {} (default; --url selects another one)",
                self.endpoint.base_of(&side.target)
            ));
        }
        let (reached, silent) = runtime::block_on(0, async {
            let reached = measurement.check_reachable(&env()).await;
            let silent = if reached.is_ok() { measurement.silent_server(&env()).await } else { None };
            Ok((reached, silent))
        })?;
        reached.map_err(|error| unreachable(error, is_default))?;
        silent.map_or(Ok(()), |error| Err(silent_server(&error, is_default)))?;
        self.confirm_cache_changes(&measurement)?;
        let compares = matches!(measurement.kind, MeasurementKind::Comparison { .. });
        let plan = if compares { Some(self.plan_comparison(&mut measurement)?) } else { None };
        let planned = runtime::block_on(0, async { Ok(measurement.plan(&env()).await) })?;
        let mut planned = planned.map_err(|error| match error {
            PlanError::StorageReuse => {
                Failure::usage("--self-compare with --against requires L3 to be cleared before each block")
                    .found(error.to_string())
                    .next("use --phases flush,clear,first")
            }
        })?;
        let plan = plan.map(|(plan, caveats)| {
            planned.caveats.extend(caveats);
            plan
        });
        Ok((planned, plan))
    }

    /// Rejects combinations of a sweep, a comparison, the preset kep74 and phases.
    fn check_kind(&self) -> Result<(), Failure> {
        let compares = self.compare.against.is_some() || self.compare.self_compare;
        let kep74 = self.preset.preset == Some(Preset::Kep74);
        let sweeps = self.sweep.sweep().is_some();
        if sweeps && (compares || kep74) {
            return Err(Failure::usage("a sweep cannot be combined with a comparison or --preset kep74")
                .next("drop --against, --self-compare and --preset kep74, or drop the sweep flags"));
        }
        self.check_labels()?;
        let is_single = !compares && !sweeps && !kep74 && self.recorded_blocks.is_none();
        let is_dataset = self.workload.dataset.dataset_name.is_some();
        self.workload.sessions.check(is_dataset, is_single, self.output.resume.is_some())?;
        let is_open = self.compare.blocks.is_none()
            || self.load.request_rate.is_none()
            || (self.workload.num_clients.is_none() && self.workload.dataset.dataset_name.is_none());
        if compares && self.output.resume.is_some() && is_open {
            return Err(Failure::usage("--resume of a comparison needs the flags of its plan")
                .next("add the flags that the interrupted run printed after 'Same plan:'"));
        }
        if (sweeps || kep74) && !self.phases.phases.is_empty() {
            return Err(
                Failure::usage("--phases cannot be combined with a sweep or --preset kep74").next("drop --phases")
            );
        }
        if kep74 && self.compare.self_compare {
            return Err(
                Failure::usage("--self-compare cannot be combined with --preset kep74").next("drop --self-compare")
            );
        }
        Ok(())
    }

    /// Rejects equal names for both endpoints.
    ///
    /// # Errors
    /// The names are equal.
    pub(super) fn check_labels(&self) -> Result<(), Failure> {
        let [label_a, label_b] = self.compare.labels();
        if label_a != label_b {
            return Ok(());
        }
        Err(Failure::usage(format!("both endpoints have the name '{label_a}'"))
            .next("use different names for --label-a and --label-b"))
    }

    /// Returns what the flags measure.
    ///
    /// # Errors
    /// The endpoints, the workload or the phases are invalid.
    pub(super) fn measurement(&self) -> Result<Measurement, Failure> {
        let kind = if self.preset.preset == Some(Preset::Kep74) {
            MeasurementKind::Kep74
        } else if let Some(sweep) = self.sweep.sweep() {
            MeasurementKind::Sweep(sweep)
        } else if self.compare.against.is_some() || self.compare.self_compare {
            MeasurementKind::Comparison { blocks: self.compare.blocks() }
        } else if let Some(blocks) = self.recorded_blocks {
            MeasurementKind::OneSide { blocks }
        } else {
            MeasurementKind::Single
        };
        let (sides, is_recorded) = match &kind {
            MeasurementKind::Single | MeasurementKind::OneSide { .. } => {
                self.side(&self.compare.label_a, None, self.seed()).map(|(side, recorded)| (vec![side], recorded))
            }
            MeasurementKind::Comparison { .. } => self.compared_sides(),
            MeasurementKind::Sweep(sweep) => self.swept_sides(sweep),
            MeasurementKind::Kep74 => self.kep74_sides().map(|sides| (sides, false)),
        }?;
        let (before, after) = self.profile.calls();
        Ok(Measurement {
            load: self.offered_load(),
            phases: self.phases.plan()?,
            profile: ProfileCalls { before, after },
            is_recorded,
            is_dataset: self.workload.dataset.dataset_name.is_some(),
            ..Measurement::new(kind, sides)
        })
    }

    /// Returns the endpoint at `url` (if `None`, at `--url`) with conversations generated from
    /// `seed`, and whether the conversations have recorded send times.
    fn side(&self, name: &str, url: Option<&str>, seed: Seed) -> Result<(LoadEndpoint, bool), Failure> {
        let mut target = match url {
            None => self.endpoint.target()?,
            Some(url) => self.endpoint.target_of(url)?,
        };
        self.request.apply(&mut target);
        let workload = self.workload.workload(self.endpoint.api, seed)?;
        if url.is_none() && seed == self.seed() {
            workload.notes().iter().for_each(output::say);
        }
        let recorded = workload.is_recorded();
        let timeout = self.phases.flush_cache_timeout.map(Duration::from_secs_f64);
        let server = self.server.server(&self.endpoint, &target, url.is_none())?;
        let server = server.map(|server| server.with_flush_timeout(timeout));
        let workload = self.request.with_adapters(Box::new(workload), target.dialect, seed);
        let mut side = LoadEndpoint::new(name, target, workload);
        side.server = server;
        side.vocabulary = self.workload.vocab_size;
        Ok((side, recorded))
    }

    fn compared_sides(&self) -> Result<(Vec<LoadEndpoint>, bool), Failure> {
        let [label_a, label_b] = self.compare.labels();
        let (first, recorded) = self.side(label_a, None, self.seed())?;
        let mut sides = vec![first];
        if self.compare.self_compare {
            let url = self.endpoint.base_of(&sides[0].target);
            sides.push(self.side(&format!("{label_a} again"), Some(&url), self.seed())?.0);
        }
        if let Some(url) = &self.compare.against {
            sides.push(self.side(label_b, Some(url), self.seed())?.0);
        }
        Ok((sides, recorded))
    }

    fn swept_sides(&self, sweep: &Sweep) -> Result<(Vec<LoadEndpoint>, bool), Failure> {
        // Each load has different prompts, so that it does not hit cache entries from the previous
        // load.
        let seeds = (0..sweep.loads().len() as u64).map(|index| Seed(self.load.seed().wrapping_add(index)));
        let sides =
            seeds.map(|seed| self.side(&self.compare.label_a, None, seed)).collect::<Result<Vec<_>, Failure>>()?;
        let recorded = sides.iter().any(|(_, recorded)| *recorded);
        Ok((sides.into_iter().map(|(side, _)| side).collect(), recorded))
    }

    fn kep74_sides(&self) -> Result<Vec<LoadEndpoint>, Failure> {
        let seed = self.seed();
        let mut one_turn = self.clone();
        one_turn.workload.first_turns();
        let mut sides = Vec::new();
        let [label_a, label_b] = self.compare.labels();
        let b = self.compare.against.as_deref().map(|url| (label_b, Some(url)));
        for (name, url) in std::iter::once((label_a, None)).chain(b) {
            sides.push(one_turn.side(name, url, seed)?.0);
            // Use different synthetic conversations, because L3 keeps the previous ones even after
            // a flush.
            sides.push(self.side(name, url, Seed(seed.0.wrapping_add(1)))?.0);
        }
        Ok(sides)
    }

    /// Returns the rate, the limits and the duration of a pass.
    pub(super) fn offered_load(&self) -> OfferedLoad {
        OfferedLoad {
            rate: self.load.rate(),
            gaps: self.load.gaps(),
            seed: self.seed(),
            rules: Rules {
                // A conversation of a live session may wait for another one, which needs a slot.
                whole_conversations: self.serving && self.workload.sessions.live_sessions.is_none(),
                ..self.workload.dataset.rules(self.load.rules())
            },
            duration: self.load.duration,
            sessions: self.workload.sessions.plan(),
        }
    }

    fn seed(&self) -> Seed {
        Seed(self.load.seed())
    }

    /// Asks for confirmation before flushing or filling caches. `--flush-cache` counts as
    /// confirmation.
    ///
    /// # Errors
    /// Same as [`confirm::destruction`].
    fn confirm_cache_changes(&self, measurement: &Measurement) -> Result<(), Failure> {
        let tiers = match measurement.cache_change() {
            None => return Ok(()),
            Some(CacheChange::AllTiers) => "L1, L2 and L3",
            Some(CacheChange::DeviceAndHost) => "L1 and L2",
        };
        let mut urls: Vec<String> = measurement.sides.iter().map(|side| self.endpoint.base_of(&side.target)).collect();
        urls.sort_unstable();
        urls.dedup();
        confirm::destruction(self.confirm.yes, &format!("flushes the caches ({tiers}) of {}", urls.join(" and ")))
    }
}
