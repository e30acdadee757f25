//! `bench_serving` flags that are accepted without effect, or rejected.

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::commands::bench::serving::flags::{FlagArgument, FlagEffect, SERVING, ServingFlag};
use crate::commands::cli::error::Failure;

/// The compatibility flags that were set on the command line.
#[derive(Clone, Debug, Default)]
pub struct CompatFlags {
    given: Vec<&'static ServingFlag>,
}

/// Returns the flags that this module parses, with their arguments.
fn all() -> impl Iterator<Item = (&'static ServingFlag, FlagArgument)> {
    SERVING.iter().filter_map(|flag| match flag.effect {
        FlagEffect::Without(takes, _) | FlagEffect::Rejected(takes, _) => Some((flag, takes)),
        _ => None,
    })
}

impl clap::Args for CompatFlags {
    fn augment_args(command: Command) -> Command {
        let arg = |(flag, takes): (&'static ServingFlag, FlagArgument)| {
            let action = if takes == FlagArgument::Nothing { ArgAction::SetTrue } else { ArgAction::Set };
            Arg::new(flag.name).long(flag.name).hide(true).action(action)
        };
        command.args(all().map(arg))
    }

    fn augment_args_for_update(command: Command) -> Command {
        CompatFlags::augment_args(command)
    }
}

impl clap::FromArgMatches for CompatFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<CompatFlags, clap::Error> {
        let is_given = |flag: &&'static ServingFlag| matches.value_source(flag.name) == Some(ValueSource::CommandLine);
        Ok(CompatFlags { given: all().map(|(flag, _)| flag).filter(is_given).collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = CompatFlags::from_arg_matches(matches)?;
        Ok(())
    }
}

impl CompatFlags {
    /// Checks for rejected flags.
    ///
    /// # Errors
    /// A flag that is set is rejected. The error includes the reason.
    pub fn reject(&self) -> Result<(), Failure> {
        let rejected = self.given.iter().find_map(|flag| match flag.effect {
            FlagEffect::Rejected(_, reason) => Some((flag, reason)),
            _ => None,
        });
        match rejected {
            Some((flag, reason)) => Err(Failure::usage(format!("--{} is not supported", flag.name))
                .found(reason)
                .next("drop this flag and choose a text dataset")),
            None => Ok(()),
        }
    }

    /// Returns a warning about flags without effect, if any are set.
    pub fn warning(&self) -> Option<String> {
        let without: Vec<String> = self
            .given
            .iter()
            .filter_map(|flag| match flag.effect {
                FlagEffect::Without(_, reason) => Some(format!("--{} ({reason})", flag.name)),
                _ => None,
            })
            .collect();
        (!without.is_empty()).then(|| format!("accepted without effect: {}", without.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct CompatCommandLine {
        #[command(flatten)]
        accepted: CompatFlags,
    }

    fn line(line: &str) -> CompatFlags {
        CompatCommandLine::parse_from(std::iter::once("x").chain(line.split_whitespace())).accepted
    }

    #[test]
    fn flags_without_effect_are_one_warning_and_images_rejected() {
        let accepted = line("--rust-client --rust-worker-threads 4 --gsp-fast-prepare");
        let warning = accepted.warning().expect("three of them");
        assert_eq!(warning.lines().count(), 1);
        assert!(
            ["--rust-client", "--rust-worker-threads", "--gsp-fast-prepare"].iter().all(|flag| warning.contains(flag))
        );
        assert!(accepted.reject().is_ok());
        assert!(line("").warning().is_none());
        for bad in ["--image-count 2", "--image-resolution 720p", "--random-image-count", "--image-format png"] {
            assert!(line(bad).reject().is_err(), "{bad}");
        }
    }
}
