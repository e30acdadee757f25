//! Files written during the run.

pub(in crate::commands::bench) mod record;
mod recorded_load;
mod resume;
mod serving;
mod thinned;
mod writer;

use std::sync::Arc;

use crate::commands::bench::env;
use crate::commands::bench::multi_turn::args::Backend;
use crate::commands::bench::multi_turn::files::record::{
    PassEnd, PassStart, RecordsHeader, RequestRecord, RunDescription, SCHEMA,
};
use crate::commands::bench::multi_turn::files::serving::{DatasetLengths, PassTotals, ResultSettings};
use crate::commands::bench::multi_turn::files::writer::{FileId, OutputFileSet, OutputWriter};
use crate::commands::bench::multi_turn::progress::Screen;
use crate::commands::bench::multi_turn::report::{Identity, utc};
use crate::commands::bench::multi_turn::{Api, Args};
use crate::commands::cli::error::Failure;
use crate::engine::env::wall_clock;
use crate::engine::load::session::{AfterPass, Observer, PassId, PassResult};
use crate::engine::load::sweep::Sweep;
use crate::engine::load::{LiveCounters, TimedRequest};

pub(super) use recorded_load::RecordedLoad;
pub(super) use resume::ResumedRun;
pub(super) use writer::OutputFileError;
pub(in crate::commands::bench) use writer::{OpenMode, open};

/// Observer that writes the output files.
pub(super) struct OutputFiles {
    writer: OutputWriter,
    records: Option<FileId>,
    csv: Option<FileId>,
    serving: Option<FileId>,
    rounds: Option<FileId>,
    flags: ResultSettings,
    /// Keep the result line for the `bench serving` report.
    keep: bool,
    figures: Option<serde_json::Value>,
    sweep: Option<Sweep>,
    /// Number of the current pass.
    pass: u32,
    sums: PassTotals,
    csv_begun: bool,
    resumed: Option<ResumedRun>,
    /// Number of passes that the resumed run has already completed.
    resumed_passes: u32,
}

impl OutputFiles {
    /// Opens the files that `args` specifies, and writes the records header, with the description
    /// of the run.
    ///
    /// # Errors
    /// A file cannot be opened, or the records to resume from are invalid.
    pub(super) fn open(
        args: &Args,
        identity: &Identity,
        described: RunDescription,
        screen: &Screen,
    ) -> Result<OutputFiles, Failure> {
        let output = &args.output;
        let mut opened = OutputFileSet::default();
        let new = if output.overwrite { OpenMode::Overwrite } else { OpenMode::New };
        let mut add = |path: Option<&std::path::PathBuf>, manner| path.map(|path| opened.add(path, manner)).transpose();
        let records = add(output.records.as_ref(), new)?;
        // Read the records before appending to the same file.
        let earlier = output.resume.as_deref().map(|path| resume::read(path, &described.work)).transpose()?;
        let resumed = add(output.resume.as_ref(), OpenMode::Append)?;
        let csv = add(output.csv.as_ref(), new)?;
        let serving = add(output.output_file.as_ref(), OpenMode::Append)?;
        let rounds = add(output.log_file.as_ref(), OpenMode::Append)?;
        let mut writer = opened.start(screen.clone())?;
        if let Some(which) = records {
            writer.json(which, &RecordsHeader { schema: SCHEMA.to_owned(), run: identity.clone(), described });
        }
        let by_route = || match args.endpoint.api {
            Api::Generate => "sglang".to_owned(),
            Api::Chat => "sglang-oai-chat".to_owned(),
            Api::Completions => "sglang-oai".to_owned(),
            Api::Truss => "truss".to_owned(),
            Api::TensorRt => "trt".to_owned(),
        };
        let backend = args.endpoint.backend.map_or_else(by_route, Backend::name);
        let dataset = &args.workload.dataset;
        let flags = ResultSettings {
            tag: output.tag.clone(),
            backend,
            dataset: args.dataset(),
            request_rate: (!args.follows_trace()).then_some(args.load.rate()),
            max_concurrency: args.load.max_parallel,
            goodput: args.goals.goodput.clone(),
            details: output.output_details,
            cache_report: !args.serving || output.cache_report,
            lengths: args.serving.then_some(DatasetLengths {
                sharegpt_output: dataset.sharegpt_output_len,
                input: dataset.random_input_len,
                output: dataset.random_output_len,
                range_ratio: dataset.random_range_ratio,
            }),
            tokenizer: if args.serving { dataset.tokenizer()? } else { None },
        };
        Ok(OutputFiles {
            writer,
            records: records.or(resumed),
            csv,
            serving,
            rounds,
            flags,
            keep: args.serving,
            figures: None,
            sweep: args.sweep.sweep(),
            pass: 0,
            sums: PassTotals::default(),
            csv_begun: false,
            resumed_passes: earlier.as_ref().map_or(0, ResumedRun::completed_passes),
            resumed: earlier,
        })
    }

    /// Returns the run to resume. Later calls return `None`.
    pub(super) fn resumed(&mut self) -> Option<ResumedRun> {
        self.resumed.take()
    }

    /// Returns the settings with the current pass's load; a sweep has one pass per load.
    fn flags_of_pass(&self) -> ResultSettings {
        let mut flags = self.flags.clone();
        let at = |loads: &[f64]| loads.get(self.pass as usize).copied();
        match &self.sweep {
            None => {}
            Some(Sweep::Rate(rates)) => flags.request_rate = at(rates),
            Some(Sweep::Concurrency(numbers)) => {
                flags.request_rate = Some(f64::INFINITY);
                flags.max_concurrency = at(numbers).map_or(flags.max_concurrency, |number| Some(number as u32));
            }
        }
        flags
    }

    /// Returns the last pass's result line for `bench serving`.
    pub(super) fn figures(&mut self) -> Option<serde_json::Value> {
        self.figures.take()
    }

    /// Closes the files and returns any errors.
    pub(super) fn finish(&mut self) -> Vec<OutputFileError> {
        self.writer.finish()
    }

    fn now() -> String {
        utc(wall_clock(&env()))
    }
}

impl Observer for OutputFiles {
    fn pass_started(&mut self, pass: &PassId, conversations: u64, requests: u64, live: &Arc<LiveCounters>) {
        self.sums = PassTotals::begins(live, &self.flags);
        if self.pass < self.resumed_passes {
            return;
        }
        if let Some(which) = self.records {
            let begins = PassStart {
                pass: self.pass,
                side: pass.side_name.clone(),
                name: pass.name.clone(),
                block: pass.block,
                conversations,
                requests,
                started: OutputFiles::now(),
            };
            self.writer.json(which, &serde_json::json!({ "begins": begins }));
        }
    }

    fn resumed(&mut self, _: &PassId, record: &TimedRequest) {
        self.sums.add(record, self.flags.details && self.serving.is_some());
    }

    fn record(&mut self, pass: &PassId, record: &TimedRequest) {
        if self.records.is_some() || self.csv.is_some() {
            let line = RequestRecord::of(self.pass, pass, record);
            if let Some(which) = self.records {
                self.writer.json(which, &line);
            }
            if let Some(which) = self.csv {
                let headers = !std::mem::replace(&mut self.csv_begun, true);
                let mut csv = csv::WriterBuilder::new().has_headers(headers).from_writer(Vec::with_capacity(512));
                csv.serialize(&line).expect("a flat row");
                self.writer.line(which, csv.into_inner().expect("writing to memory cannot fail"));
            }
        }
        if self.serving.is_some() || self.rounds.is_some() || self.keep {
            self.sums.add(record, self.flags.details && self.serving.is_some());
        }
    }

    fn pass_ended(&mut self, pass: &PassResult) -> AfterPass {
        if self.pass < self.resumed_passes {
            self.pass += 1;
            return AfterPass::Continue;
        }
        if let Some(which) = self.records {
            let ends = PassEnd {
                pass: self.pass,
                completed: pass.tally.all.requests,
                failed: pass.tally.failed(),
                unfinished: pass.ran.unfinished,
                stopped: pass.ran.stopped,
                seconds: pass.tally.took().as_secs_f64(),
            };
            self.writer.json(which, &serde_json::json!({ "ends": ends }));
        }
        let flags = self.flags_of_pass();
        if self.serving.is_some() || self.keep {
            let mut line = self.sums.line(&flags, pass);
            if let Some(which) = self.serving {
                self.writer.json(which, &line);
            }
            if self.keep {
                // The report contains the per-request details elsewhere.
                PassTotals::without_details(&mut line);
                self.figures = Some(line);
            }
        }
        if let Some(which) = self.rounds {
            let line = self.sums.rounds(&flags, pass, &OutputFiles::now());
            self.writer.json(which, &line);
        }
        self.pass += 1;
        AfterPass::Continue
    }
}
