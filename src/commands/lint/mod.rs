//! `mcctl lint FILE...`: what is wrong with manifests, units, environment files, command lines and settings files.
//!
//! Only reads and prints; what is wrong is decided by [`crate::engine::lint`].

pub(in crate::commands) mod inputs;
mod report;

use crate::commands::error::{Exit, Failure, Outcome};
use crate::commands::output;
use crate::engine::check::{Finding, Severity};
use crate::engine::lint::{CHECKS, Kind, ReadError, Source, check_scene, read_each};

/// What to read, and what to say.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Kinds are told apart by content and name: Kubernetes YAML (RoleBasedGroups, too), compose files, systemd \
    units, environment files, shell scripts and command lines, the store's JSON, SGLang's extra config, the master's \
    --config_path file, vLLM's MOONCAKE_CONFIG_PATH file, LMCache's YAML. Give all files of one deployment together: rules look across \
    them. Of a folder, files ending in .yaml, .yml, .json, .service, .env, .sh and .bash are read, subfolders included.\n\
    Exit codes: 0 nothing at or above --fail-on, 1 something, 2 an input that cannot be read (the others are judged)."
)]
pub struct Args {
    /// Files of one deployment, or folders of them; - is stdin
    #[arg(value_name = "FILE|DIR", required_unless_present = "list")]
    files: Vec<String>,
    /// What all files are, instead of telling by content and name
    #[arg(long, value_enum, value_name = "KIND")]
    kind: Option<Word>,
    /// The release of Mooncake that is deployed, for flags that only newer ones have, e.g. 0.3.12
    #[arg(long, value_name = "RELEASE")]
    release: Option<String>,
    /// Only these rules
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    only: Vec<String>,
    /// Not these rules
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    skip: Vec<String>,
    /// The least severity that makes the exit code 1
    #[arg(long, value_enum, value_name = "SEVERITY", default_value = "warning")]
    fail_on: FailOn,
    /// One JSON document on stdout
    #[arg(long)]
    json: bool,
    /// List the rules, and read nothing
    #[arg(long, conflicts_with = "files")]
    list: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Word {
    Kubernetes,
    Compose,
    Unit,
    Env,
    Shell,
    StoreConfig,
    ExtraConfig,
    MasterConfig,
    VllmConfig,
    LmcacheConfig,
}

impl From<Word> for Kind {
    fn from(word: Word) -> Kind {
        match word {
            Word::Kubernetes => Kind::Kubernetes,
            Word::Compose => Kind::Compose,
            Word::Unit => Kind::Unit,
            Word::Env => Kind::Env,
            Word::Shell => Kind::Shell,
            Word::StoreConfig => Kind::StoreConfig,
            Word::ExtraConfig => Kind::ExtraConfig,
            Word::MasterConfig => Kind::MasterConfig,
            Word::VllmConfig => Kind::VllmConfig,
            Word::LmcacheConfig => Kind::LmcacheConfig,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum FailOn {
    Info,
    Warning,
    Error,
    /// Only what cannot be read
    Never,
}

impl FailOn {
    fn least(self) -> Option<Severity> {
        match self {
            FailOn::Info => Some(Severity::Info),
            FailOn::Warning => Some(Severity::Warning),
            FailOn::Error => Some(Severity::Error),
            FailOn::Never => None,
        }
    }
}

impl Args {
    /// Read, judge, print.
    ///
    /// # Errors
    /// A rule that there is not, or a release that is none; what cannot be read is said, and the rest is judged.
    pub fn run(self) -> Outcome {
        if self.list {
            output::data(if self.json { report::list_json() } else { report::list() })?;
            return Ok(Exit::Done);
        }
        for id in self.only.iter().chain(&self.skip) {
            known_rule(id)?;
        }
        if let Some(text) = &self.release {
            known_release(text)?;
        }
        let (inputs, mut unread) = inputs::load(&self.files);
        let kind = self.kind.map(Kind::from);
        let sources: Vec<Source<'_>> =
            inputs.iter().map(|input| Source { name: &input.name, bytes: &input.bytes, kind }).collect();
        let (mut scene, left) = read_each(&sources);
        let mut names: Vec<&str> = sources.iter().map(|source| source.name).collect();
        for (name, error) in &left {
            let is_passed_over = inputs.iter().any(|input| input.name == *name && input.is_passed_over(error));
            if is_passed_over || matches!(error, ReadError::NothingToCheck { .. }) {
                output::say(format!("{name}: {error}"));
            } else {
                unread.push((name.clone(), unreadable(name, error)));
            }
            if !matches!(error, ReadError::NothingToCheck { .. }) {
                names.retain(|known| **known != **name);
            }
        }
        if names.is_empty() && unread.is_empty() {
            unread.push((self.files.join(", "), inputs::nothing_in(&self.files)));
        }
        for (_, failure) in &unread {
            output::say(failure.line().trim_end());
        }
        scene.release = self.release.clone().map(|text| text.trim_start_matches('v').to_owned());
        let wanted = |finding: &Finding| {
            (self.only.is_empty() || self.only.iter().any(|id| id == finding.id))
                && !self.skip.iter().any(|id| id == finding.id)
        };
        let findings: Vec<Finding> = check_scene(&scene).into_iter().filter(wanted).collect();
        if self.json {
            output::json(&report::Document::new(&names, &unread, &scene, &findings))?;
        } else if !names.is_empty() {
            output::data(report::text(&scene, &names, &findings))?;
        }
        if !unread.is_empty() {
            return Ok(Exit::Usage);
        }
        let fails = self.fail_on.least().is_some_and(|least| findings.iter().any(|f| f.severity >= least));
        Ok(if fails { Exit::No } else { Exit::Done })
    }
}

fn known_rule(id: &str) -> Result<(), Failure> {
    if CHECKS.iter().any(|check| check.id == id) {
        return Ok(());
    }
    let nearest = CHECKS.iter().map(|check| check.id).min_by_key(|known| strsim::damerau_levenshtein(id, known));
    Err(Failure::usage(format!("there is no rule '{id}'"))
        .next(format!("the nearest is {}; mcctl lint --list shows all", nearest.unwrap_or_default())))
}

/// A release is numbers with dots between them, and perhaps words behind: `0.3.13.post1`.
fn known_release(text: &str) -> Result<(), Failure> {
    let mut parts = text.trim_start_matches('v').split('.');
    let number = |part: Option<&str>| part.is_some_and(|part| part.parse::<u32>().is_ok());
    if number(parts.next()) && number(parts.next()) {
        return Ok(());
    }
    Err(Failure::usage(format!("'{text}' is no release of Mooncake"))
        .next("write numbers with dots, e.g. 0.3.13.post1"))
}

/// Why a file is nothing that can be judged, in the user's words.
pub(in crate::commands) fn unreadable(name: &str, error: &ReadError) -> Failure {
    let at = error.line().map_or_else(|| name.to_owned(), |line| format!("{name}:{line}"));
    let next = match error {
        ReadError::Yaml { templated: true, .. } => {
            "it is a template: give what it renders (helm template, kustomize build)"
        }
        ReadError::Unknown => "give its kind with --kind",
        ReadError::Empty => "give a file with something in it",
        _ => "fix the file, or give its kind with --kind",
    };
    Failure::usage(format!("cannot read {at}")).found(error.to_string()).next(next)
}
