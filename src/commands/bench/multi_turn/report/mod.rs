//! What a run tells, as a document (schema `mcctl.bench.multi-turn/1`, `fixtures/load/schema`).
//!
//! A part of the document is a struct in a file of its own here (or with what computes it), an `Option` where it is not always
//! there, and a function that gives its [`Section`]s; the terminal's report and the page both show these.

mod caches;
mod identity;
mod pass;
mod view;

use std::time::Duration;

use serde::Serialize;

use crate::commands::bench::multi_turn::Args;
use crate::commands::bench::multi_turn::measure::Measured;
use crate::commands::bench::sheet::Section;
use crate::commands::error::Exit;

pub(in crate::commands::bench) use identity::{Identity, utc};
pub(in crate::commands::bench) use pass::PassReport;

/// The document. Latencies are in milliseconds.
#[derive(Debug, Serialize)]
pub(in crate::commands::bench) struct Report {
    pub schema: &'static str,
    /// What was run.
    pub run: Identity,
    pub passes: Vec<PassReport>,
    /// Why all of it may be doubted.
    pub doubts: Vec<String>,
}

impl Report {
    pub fn of(args: &Args, identity: Identity, measured: &Measured) -> Report {
        let executed = &measured.executed;
        let mut doubts = measured.doubts.clone();
        if let Some(signal) = measured.signal {
            doubts.push(format!("{signal} ended the run early"));
        }
        if let Some(broke) = &executed.broke {
            doubts.push(format!("not all was done: {broke}"));
        }
        Report {
            schema: "mcctl.bench.multi-turn/1",
            run: identity,
            passes: executed.passes.iter().map(|pass| PassReport::of(args, &measured.sides, pass)).collect(),
            doubts,
        }
    }

    /// How the run ends: 0 all went well, 1 some failed, 3 none went well.
    pub fn exit(&self) -> Exit {
        let sums = self.passes.iter().fold((0, 0), |sum, pass| (sum.0 + pass.completed, sum.1 + pass.failed));
        match sums {
            (0, 1..) => Exit::Unreachable,
            (_, 1..) => Exit::No,
            _ => Exit::Done,
        }
    }

    /// All doubts, with the pass that each is about where there are several.
    pub fn all_doubts(&self) -> Vec<String> {
        let of_passes = self.passes.iter().flat_map(|pass| {
            let name = if self.passes.len() > 1 { format!("{}: ", pass.label()) } else { String::new() };
            pass.doubts.iter().map(move |doubt| format!("{name}{doubt}"))
        });
        self.doubts.iter().cloned().chain(of_passes).collect()
    }

    /// What is shown, in order.
    pub fn sections(&self) -> Vec<Section> {
        let mut sections = Vec::new();
        if self.passes.len() > 1 {
            sections.push(view::overview(&self.passes));
        }
        for pass in &self.passes {
            sections.extend(view::pass(pass, self.run.seed));
            sections.extend(pass.server.as_ref().map(caches::section));
        }
        sections
    }
}

/// A duration in milliseconds.
pub(in crate::commands::bench) fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
