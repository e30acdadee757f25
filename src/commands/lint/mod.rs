//! `mcctl lint FILE...`: checks manifests, units, environment files, command lines and settings
//! files.
//!
//! This module reads the inputs and prints the report. [`crate::engine::lint`] contains the rules.

pub mod inputs;
mod report;
mod sarif;

use std::io::{self, IsTerminal};

use clap::builder::{PossibleValuesParser, TypedValueParser};

use crate::commands::cli::error::{Exit, Failure, Outcome};
use crate::commands::cli::output;
use crate::commands::cli::table;
use crate::commands::lint::inputs as lint_inputs;
use crate::commands::lint::report::LintVerdict;
use crate::engine::base::text::escaped;
use crate::engine::check::{Finding, Severity};
use crate::engine::lint::{CHECKS, FileKind, ReadError, SourceFile, check_deployment, read_each};
use crate::engine::upstream::DeployedRelease;

/// Check deployment files, manifests, units, environment files, scripts and settings files for
/// mistakes
#[derive(Debug, clap::Args)]
#[command(before_help = "only skip fail-on list json")]
#[command(before_long_help = "mcctl lint k8s/ start.sh store.json  # check all files of one deployment together\n\
    mcctl lint --list  # list all rules")]
#[command(
    after_help = "Pass all files of one deployment together: some rules compare several files. In a directory, files ending in .yaml, \
    .yml, .json, .toml, .service, .env, .sh and .bash are read, including files in subdirectories.\n\
    The type of each file is detected from its contents and name; --kind overrides the detection.\n\
    Parts of scripts that cannot be followed, such as eval, are listed as not read. They do not change the exit code.\n\
    Exit codes: 0 no finding at or above --fail-on, 1 at least one, 2 an input cannot be read (the others are still checked)."
)]
pub struct Args {
    /// Files or directories of a single deployment to check; - reads stdin
    #[arg(value_name = "FILE|DIR", required_unless_present = "list")]
    files: Vec<String>,
    /// Type of all files [default: detected from contents and name]
    #[arg(long, value_parser = kind_parser(), value_name = "KIND")]
    kind: Option<FileKind>,
    /// Mooncake release in use, e.g. 0.3.12, to find flags that it does not support [default: from
    /// the image or pip install]
    #[arg(long, value_name = "RELEASE")]
    release: Option<String>,
    /// Run only these rules
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    only: Vec<String>,
    /// Do not run these rules
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    skip: Vec<String>,
    /// Lowest severity that causes exit code 1
    #[arg(long, value_enum, value_name = "SEVERITY", default_value = "warning")]
    fail_on: LintFailOn,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    /// Print the report in SARIF 2.1.0, which code hosts display at the lines of a change
    #[arg(long, conflicts_with_all = ["json", "list"])]
    sarif: bool,
    /// List the rules and exit
    #[arg(long, conflicts_with = "files")]
    list: bool,
}

/// Parses a name in [`FileKind::ALL`].
fn kind_parser() -> impl TypedValueParser<Value = FileKind> {
    PossibleValuesParser::new(FileKind::ALL.map(|(_, name)| name))
        .try_map(|word| FileKind::named(&word).ok_or("not a file type"))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum LintFailOn {
    Info,
    Warning,
    Error,
    /// Never exit with code 1
    Never,
}

impl LintFailOn {
    fn threshold(self) -> Option<Severity> {
        match self {
            LintFailOn::Info => Some(Severity::Info),
            LintFailOn::Warning => Some(Severity::Warning),
            LintFailOn::Error => Some(Severity::Error),
            LintFailOn::Never => None,
        }
    }
}

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// A rule is unknown, or the release is invalid. An unreadable input is reported, and the
    /// others are still checked.
    pub fn run(self) -> Outcome {
        if self.list {
            output::data(if self.json { report::list_json() } else { report::list(table::width()) })?;
            return Ok(Exit::Done);
        }
        for id in self.only.iter().chain(&self.skip) {
            known_rule(id)?;
        }
        if let Some(text) = &self.release {
            known_release(text)?;
        }
        let (inputs, mut unread) = lint_inputs::load(&self.files);
        let sources: Vec<SourceFile<'_>> =
            inputs.iter().map(|input| SourceFile { name: &input.name, bytes: &input.bytes, kind: self.kind }).collect();
        let (mut deployment, left) = read_each(&sources);
        let mut names: Vec<&str> = sources.iter().map(|source| source.name).collect();
        for (name, error) in &left {
            let is_skipped = inputs.iter().any(|input| input.name == *name && input.is_skipped(error));
            if is_skipped || matches!(error, ReadError::NothingToCheck { .. }) {
                output::say(format!("{}: {error}", escaped(name)));
            } else {
                unread.push((name.clone(), lint_inputs::unreadable(name, error)));
            }
            if !matches!(error, ReadError::NothingToCheck { .. }) {
                names.retain(|known| **known != **name);
            }
        }
        if names.is_empty() && unread.is_empty() {
            unread.push((self.files.join(", "), lint_inputs::nothing_in(&self.files)));
        }
        for (_, failure) in &unread {
            output::say(failure.line().trim_end());
        }
        if let Some(text) = &self.release {
            deployment.release = Some(text.trim_start_matches('v').to_owned());
        }
        let wanted = |finding: &Finding| {
            (self.only.is_empty() || self.only.iter().any(|id| id == finding.id))
                && !self.skip.iter().any(|id| id == finding.id)
        };
        let findings: Vec<Finding> = check_deployment(&deployment).into_iter().filter(wanted).collect();
        let fails = self.fail_on.threshold().is_some_and(|threshold| findings.iter().any(|f| f.severity >= threshold));
        let verdict = match (unread.len(), deployment.unread.len()) {
            (0, _) if fails => LintVerdict::Failed,
            (0, 0) => LintVerdict::Passed,
            (0, count) => LintVerdict::PartlyRead(count),
            (count, _) => LintVerdict::Incomplete(count),
        };
        if self.json {
            output::json(&report::LintReport::new(&names, &unread, &deployment, &findings, verdict))?;
        } else if self.sarif {
            output::json(&sarif::document(&unread, &deployment, &findings, verdict))?;
        } else if !names.is_empty() {
            // Editors and scripts parse unwrapped lines.
            let width = io::stdout().is_terminal().then(table::width);
            output::data(report::text(&deployment, &names, &findings, verdict, width, output::is_fancy()))?;
        }
        if !unread.is_empty() {
            return Ok(Exit::Usage);
        }
        Ok(if fails { Exit::No } else { Exit::Done })
    }
}

fn known_rule(id: &str) -> Result<(), Failure> {
    if CHECKS.iter().any(|check| check.id == id) {
        return Ok(());
    }
    let nearest = CHECKS.iter().map(|check| check.id).min_by_key(|known| strsim::damerau_levenshtein(id, known));
    Err(Failure::usage(format!("unknown rule '{id}'"))
        .next(format!("did you mean '{}'? mcctl lint --list lists all rules", nearest.unwrap_or_default())))
}

/// A release is at least two numbers separated by dots, optionally with a suffix: `0.3.13.post1`.
fn known_release(text: &str) -> Result<(), Failure> {
    let mut parts = text.trim_start_matches('v').split('.');
    let number = |part: Option<&str>| part.is_some_and(|part| part.parse::<u32>().is_ok());
    if number(parts.next()) && number(parts.next()) {
        return Ok(());
    }
    Err(Failure::usage(format!("invalid Mooncake release '{text}'"))
        .next(format!("use numbers separated by dots, e.g. {}", DeployedRelease::TESTED.text())))
}
