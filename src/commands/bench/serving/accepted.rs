//! Flags of `bench_serving` without a field of their own: those that have no effect here, and those that are refused.

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::commands::bench::serving::flags::{Effect, Flag, SERVING, Takes};
use crate::commands::error::Failure;

/// The ones that were given.
#[derive(Clone, Debug, Default)]
pub struct Accepted {
    given: Vec<&'static Flag>,
}

/// The flags that are parsed here, and what each takes.
fn all() -> impl Iterator<Item = (&'static Flag, Takes)> {
    SERVING.iter().filter_map(|flag| match flag.effect {
        Effect::Without(takes, _) | Effect::Refused(takes, _) => Some((flag, takes)),
        _ => None,
    })
}

impl clap::Args for Accepted {
    fn augment_args(command: Command) -> Command {
        let arg = |(flag, takes): (&'static Flag, Takes)| {
            let action = if takes == Takes::Nothing { ArgAction::SetTrue } else { ArgAction::Set };
            Arg::new(flag.name).long(flag.name).hide(true).action(action)
        };
        command.args(all().map(arg))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Accepted::augment_args(command)
    }
}

impl clap::FromArgMatches for Accepted {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Accepted, clap::Error> {
        let is_given = |flag: &&'static Flag| matches.value_source(flag.name) == Some(ValueSource::CommandLine);
        Ok(Accepted { given: all().map(|(flag, _)| flag).filter(is_given).collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Accepted::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Accepted {
    /// Is one of them refused?
    ///
    /// # Errors
    /// It is; with the reason.
    pub fn refuse(&self) -> Result<(), Failure> {
        let refused = self.given.iter().find_map(|flag| match flag.effect {
            Effect::Refused(_, why) => Some((flag, why)),
            _ => None,
        });
        match refused {
            Some((flag, why)) => Err(Failure::usage(format!("--{} is not supported", flag.name))
                .found(why)
                .next("leave it out, and choose a dataset of texts")),
            None => Ok(()),
        }
    }

    /// The warning about those that have no effect; none where there are none.
    pub fn warning(&self) -> Option<String> {
        let without: Vec<String> = self
            .given
            .iter()
            .filter_map(|flag| match flag.effect {
                Effect::Without(_, why) => Some(format!("--{} ({why})", flag.name)),
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
    struct Line {
        #[command(flatten)]
        accepted: Accepted,
    }

    fn line(line: &str) -> Accepted {
        Line::parse_from(std::iter::once("x").chain(line.split_whitespace())).accepted
    }

    #[test]
    fn flags_without_effect_are_named_in_one_line_and_images_are_refused() {
        let accepted = line("--rust-client --rust-worker-threads 4 --gsp-fast-prepare");
        let warning = accepted.warning().expect("three of them");
        assert_eq!(warning.lines().count(), 1);
        assert!(
            ["--rust-client", "--rust-worker-threads", "--gsp-fast-prepare"].iter().all(|flag| warning.contains(flag))
        );
        assert!(accepted.refuse().is_ok());
        assert!(line("").warning().is_none());
        for bad in ["--image-count 2", "--image-resolution 720p", "--random-image-count", "--image-format png"] {
            assert!(line(bad).refuse().is_err(), "{bad}");
        }
    }
}
