//! `mcctl render`: the files that start what a deployment file describes.

pub mod write;

use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::commands::error::{Exit, Failure, Outcome};
use crate::commands::input;
use crate::commands::output;
use crate::commands::serve::master_flags;
use crate::engine::deploy::render::{File, Kind, render};
use crate::engine::deploy::{Deployment, Format, Programs, parse};
use crate::engine::lint::MCCTL_FLAGS;

/// What to write, from which file.
#[derive(Debug, clap::Args)]
#[command(after_help = "env      a file of variables for each process\n\
    sglang   a script with the command line of each serving process\n\
    systemd  units, environment files and sysctl.d, per host as below its root\n\
    docker   a script of docker run, per host\n\
    compose  a Compose file, per host\n\
    k8s      Deployments, StatefulSets, Services\n\
    rbg      a RoleBasedGroup\n\n\
    mcctl init writes a deployment file to begin with.")]
pub struct Args {
    /// What is written: env, sglang, systemd, docker, compose, k8s or rbg
    #[arg(value_name = "FORMAT", value_parser = kind)]
    kind: Kind,
    /// The deployment file, .toml or .yaml
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Write the files into this folder instead of to stdout
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Overwrite files that differ
    #[arg(long, requires = "out")]
    force: bool,
    /// Set a value of the file, e.g. model.tp=8; repeatable
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Version of the RoleBasedGroup API: v1alpha2, or v1alpha1 up to rbg 0.6
    #[arg(long, value_name = "VERSION", value_parser = ["v1alpha1", "v1alpha2"])]
    rbg_api: Option<String>,
    /// One JSON document with all files on stdout
    #[arg(long, conflicts_with = "out")]
    json: bool,
}

fn kind(text: &str) -> Result<Kind, String> {
    let found = Kind::ALL.iter().find(|(word, _)| *word == text).map(|(_, kind)| *kind);
    found.ok_or_else(|| format!("known are {}", Kind::ALL.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ")))
}

/// The longest file that is looked at: a little more than a deployment file may have.
const READ_MAX: u64 = 128 << 10;

impl Args {
    /// Write the files.
    ///
    /// # Errors
    /// The deployment file is wrong, or files cannot be written.
    pub fn run(mut self) -> Outcome {
        if let Some(version) = &self.rbg_api {
            self.set.push(format!("kubernetes.rbg_api={version}"));
        }
        let wanted = read(&self.file, &self.set)?;
        let source = self.file.file_name().unwrap_or(self.file.as_os_str()).to_string_lossy().into_owned();
        let files =
            render(&wanted, self.kind, &one_line(&source)).map_err(|error| wrong(&self.file, &error.to_string()))?;
        match &self.out {
            Some(dir) => {
                write::into(dir, &files, self.force)?;
                if let Some(next) = next(self.kind, &dir.display().to_string()) {
                    output::say(next);
                }
            }
            None if self.json => {
                let files: Vec<_> = files.iter().map(|f| json!({"name": f.name, "text": f.text})).collect();
                output::json(&json!({"schema": "mcctl.render/1", "files": files}))?;
            }
            None => output::data(joined(&files))?,
        }
        Ok(Exit::Done)
    }
}

/// What to do with the files below `dir`.
fn next(kind: Kind, dir: &str) -> Option<String> {
    Some(match kind {
        Kind::Env | Kind::Sglang => return None,
        Kind::Systemd => format!(
            "next, for each HOST: rsync -r {dir}/HOST/etc/ root@HOST:/etc/, and there as root: systemctl daemon-reload; sysctl --system; \
             systemd-tmpfiles --create; systemctl enable --now UNIT..."
        ),
        Kind::Docker => format!("next, on each HOST: sh {dir}/HOST/docker.sh"),
        Kind::Compose => format!("next, on each HOST: docker compose -f {dir}/HOST/compose.yaml up -d"),
        Kind::K8s | Kind::Rbg => format!("next: kubectl apply -f {dir}"),
    })
}

fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// All files, each below a line with its name; one alone is itself. The line begins another document where there are several of YAML.
fn joined(files: &[File]) -> String {
    if let [file] = files {
        return file.text.clone();
    }
    let mut text = String::new();
    for file in files {
        let is_yaml = file.name.ends_with(".yaml");
        let head = if is_yaml { format!("---\n# {}\n", file.name) } else { format!("# ---- {} ----\n", file.name) };
        text.push_str(&head);
        text.push_str(&file.text);
        if !is_yaml {
            text.push('\n');
        }
    }
    text
}

/// Characters of an error's words that are shown.
const WORDS_MAX: usize = 400;

fn wrong(path: &Path, what: &str) -> Failure {
    // What the parser quotes may be as long as the file.
    let short: String = what.chars().take(WORDS_MAX).collect();
    let more = if short.len() < what.len() { " ..." } else { "" };
    Failure::usage(format!("{}: {short}{more}", path.display()))
}

/// The deployment file at `path`, with `sets` in it.
fn read(path: &Path, sets: &[String]) -> Result<Deployment, Failure> {
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    let Some(format) = Format::of_ending(ending) else {
        return Err(wrong(path, "unknown kind of deployment file").next("name it .toml, .yaml or .yml"));
    };
    let mut text = String::new();
    let read = input::open(path).and_then(|file| file.take(READ_MAX).read_to_string(&mut text));
    read.map_err(|error| {
        Failure::usage(format!("cannot read {}", path.display()))
            .found(error.to_string())
            .next("mcctl init writes a deployment file")
    })?;
    let wanted = parse(&text, format, sets).map_err(|error| wrong(path, &error.to_string()))?;
    flags_exist(&wanted).map_err(|what| wrong(path, &what))?;
    Ok(wanted)
}

/// Flags that the file gives to the master are flags of one: an unknown one ends upstream's without a reason.
pub(super) fn flags_exist(wanted: &Deployment) -> Result<(), String> {
    for arg in &wanted.master.extra_flags {
        let name = arg.trim_start_matches('-').split('=').next().unwrap_or_default().replace('-', "_");
        let ours_alone = MCCTL_FLAGS.contains(&name.as_str()) && wanted.programs == Programs::Upstream;
        if arg.starts_with("--") && (master_flags::TABLE.find(&name).is_none() || ours_alone) {
            let near =
                master_flags::TABLE.nearest(&name).map(|near| format!("; nearest is {near}")).unwrap_or_default();
            return Err(format!("master.extra_flags: a master has no flag --{name}{near}"));
        }
    }
    Ok(())
}
