//! Files that are written while the run goes.

pub(in crate::commands::bench) mod record;
mod resume;
mod sample;
mod serving;
mod writer;

use std::sync::Arc;

use crate::commands::bench::multi_turn::args::{Backend, Sweep};
use crate::commands::bench::multi_turn::files::record::{Begins, Ends, Header, Line, SCHEMA};
use crate::commands::bench::multi_turn::files::serving::{Flags, Lengths, Serving};
use crate::commands::bench::multi_turn::files::writer::{Manner, Opened, Which, Writer};
use crate::commands::bench::multi_turn::live::Screen;
use crate::commands::bench::multi_turn::report::{Identity, utc};
use crate::commands::bench::multi_turn::{Api, Args};
use crate::commands::error::Failure;
use crate::engine::env::{Env, RealEnv};
use crate::engine::load::session::{Next, Observer, Pass, PassId};
use crate::engine::load::{Live, Record};

pub(super) use resume::Resumed;
pub(in crate::commands::bench) use writer::Manner as OpenManner;
pub(in crate::commands::bench) use writer::open;

/// The observer.
pub(super) struct Files {
    writer: Writer,
    records: Option<Which>,
    csv: Option<Which>,
    serving: Option<Which>,
    rounds: Option<Which>,
    flags: Flags,
    /// Are the figures of bench_serving wanted beside its file, and what they are.
    keep: bool,
    figures: Option<serde_json::Value>,
    sweep: Option<Sweep>,
    /// The pass in hand, by its number, and what the last two files need of it.
    pass: u32,
    sums: Serving,
    csv_begun: bool,
    /// What is gone on with; so many of its passes are over.
    resumed: Option<Resumed>,
    over: u32,
}

impl Files {
    /// Open what `args` name, and write the head of the records.
    ///
    /// # Errors
    /// One cannot be written.
    pub(super) fn open(args: &Args, identity: &Identity, work: &str, screen: &Screen) -> Result<Files, Failure> {
        let output = &args.output;
        let mut opened = Opened::default();
        let new = if output.overwrite { Manner::Over } else { Manner::New };
        let mut add = |path: Option<&std::path::PathBuf>, manner| path.map(|path| opened.add(path, manner)).transpose();
        let records = add(output.records.as_ref(), new)?;
        // Read before it grows.
        let earlier = output.resume.as_deref().map(|path| resume::read(path, work)).transpose()?;
        let resumed = add(output.resume.as_ref(), Manner::Append)?;
        let csv = add(output.csv.as_ref(), new)?;
        let serving = add(output.output_file.as_ref(), Manner::Append)?;
        let rounds = add(output.log_file.as_ref(), Manner::Append)?;
        let mut writer = opened.start(screen.clone())?;
        if let Some(which) = records {
            writer.json(which, &Header { schema: SCHEMA.to_owned(), run: identity.clone(), work: work.to_owned() });
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
        let flags = Flags {
            tag: output.tag.clone(),
            backend,
            dataset: args.dataset(),
            request_rate: (!args.follows_trace()).then_some(args.load.request_rate),
            max_concurrency: args.load.max_parallel,
            goodput: args.goals.goodput.clone(),
            details: output.output_details,
            cache_report: !args.serving || output.cache_report,
            lengths: args.serving.then_some(Lengths {
                sharegpt_output: dataset.sharegpt_output_len,
                input: dataset.random_input_len,
                output: dataset.random_output_len,
                range_ratio: dataset.random_range_ratio,
            }),
            tokenizer: if args.serving { dataset.tokenizer()? } else { None },
        };
        Ok(Files {
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
            sums: Serving::default(),
            csv_begun: false,
            over: earlier.as_ref().map_or(0, Resumed::over),
            resumed: earlier,
        })
    }

    /// What is gone on with.
    pub(super) fn resumed(&mut self) -> Option<Resumed> {
        self.resumed.take()
    }

    /// The flags, with the load of the pass in hand: a sweep has a pass per load.
    fn flags_of_pass(&self) -> Flags {
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

    /// The figures of the last pass, where they are wanted.
    pub(super) fn figures(&mut self) -> Option<serde_json::Value> {
        self.figures.take()
    }

    /// Close them; what is wrong with them, a sentence each.
    pub(super) fn finish(&mut self) -> Vec<String> {
        self.writer.finish()
    }

    fn now() -> String {
        utc(RealEnv::new().unix())
    }
}

impl Observer for Files {
    fn begins(&mut self, pass: &PassId, conversations: u64, requests: u64, live: &Arc<Live>) {
        self.sums = Serving::begins(live, &self.flags);
        if self.pass < self.over {
            return;
        }
        if let Some(which) = self.records {
            let begins = Begins {
                pass: self.pass,
                side: pass.side_name.clone(),
                name: pass.name.clone(),
                block: pass.block,
                conversations,
                requests,
                started: Files::now(),
            };
            self.writer.json(which, &serde_json::json!({ "begins": begins }));
        }
    }

    fn before(&mut self, _: &PassId, record: &Record) {
        self.sums.add(record, self.flags.details && self.serving.is_some());
    }

    fn record(&mut self, pass: &PassId, record: &Record) {
        if self.records.is_some() || self.csv.is_some() {
            let line = Line::of(self.pass, pass, record);
            if let Some(which) = self.records {
                self.writer.json(which, &line);
            }
            if let Some(which) = self.csv {
                let headers = !std::mem::replace(&mut self.csv_begun, true);
                let mut csv = csv::WriterBuilder::new().has_headers(headers).from_writer(Vec::with_capacity(512));
                csv.serialize(&line).expect("a flat row into memory");
                self.writer.line(which, csv.into_inner().expect("memory takes all"));
            }
        }
        if self.serving.is_some() || self.rounds.is_some() || self.keep {
            self.sums.add(record, self.flags.details && self.serving.is_some());
        }
    }

    fn ended(&mut self, pass: &Pass) -> Next {
        if self.pass < self.over {
            self.pass += 1;
            return Next::GoOn;
        }
        if let Some(which) = self.records {
            let ends = Ends {
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
                // The document has each request elsewhere.
                Serving::without_details(&mut line);
                self.figures = Some(line);
            }
        }
        if let Some(which) = self.rounds {
            let line = self.sums.rounds(&flags, pass, &Files::now());
            self.writer.json(which, &line);
        }
        self.pass += 1;
        Next::GoOn
    }
}
