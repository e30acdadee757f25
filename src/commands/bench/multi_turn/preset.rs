//! Presets: published runs by name. A preset expands to flags placed before the user's flags, so
//! the user's flags take precedence.

use clap::ValueEnum;

use crate::commands::cli::error::Failure;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Preset {
    /// SGLang's KEP-74 table: 300 first turns at 10 requests/s, the same turns again, and a
    /// multi-turn run
    Kep74,
    /// Mooncake's published HiCache run on 8 x H800 (bench_multiturn.py): 80 conversations with
    /// 10 turns of 2048 tokens
    HicacheBlog,
    /// Mooncake's published HiCache run on 3 x 2 A10: 20 conversations with an output length of
    /// 16 tokens
    HicacheBlogA10,
    /// AgentX: recorded sessions of agents (--dataset-path), with --live-sessions N and --seed.
    /// The report lists the rules and whether the run followed them
    Agentx,
}

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Presets")]
pub struct PresetArgs {
    /// Run a published configuration; explicit flags override it
    #[arg(long, alias = "scenario", value_enum, value_name = "NAME")]
    pub preset: Option<Preset>,
    /// Multiply the preset's token lengths by FACTOR, e.g. for a smaller server
    #[arg(long, value_name = "FACTOR", default_value = "1", requires = "preset")]
    pub scale: String,
}

/// Scales a length to at least one token.
fn tokens(tokens: u32, scale: f64) -> u64 {
    ((f64::from(tokens) * scale).round() as u64).max(1)
}

impl Preset {
    /// Returns the preset's flags.
    fn flags(self, scale: f64) -> Vec<String> {
        let line = match self {
            // KEP-74 used the backend sglang-oai, so --api is completions. Without a dataset,
            // lengths approximate ShareGPT's first turns. The published run has no concurrency
            // limit; 300 is the number of conversations.
            Preset::Kep74 => format!(
                "--num-clients 300 --num-prompts 300 --request-rate 10 --distribution poisson --seed 43 --api completions --max-parallel 300 \
                 --min-rounds 2 --max-rounds 6 --request-length lognormal:{},1.2 --output-length lognormal:{},0.8",
                tokens(220, scale),
                tokens(200, scale)
            ),
            // Also in the report of a run whose flags differ.
            Preset::Agentx => {
                "--dataset-name trace --session-start random --repeat-sessions --unique-prefix run --idle-max 10s \
                               --duration 30m --api chat"
                    .to_owned()
            }
            Preset::HicacheBlog | Preset::HicacheBlogA10 => {
                let common = format!(
                    "--disable-random-sample --output-length 1 --request-length {} --num-clients 80 --num-rounds 10 --max-parallel 4 \
                     --request-rate 16 --ready-queue-policy random --disable-auto-run --enable-round-barrier",
                    tokens(2048, scale)
                );
                match self {
                    Preset::HicacheBlogA10 => {
                        format!(
                            "{common} --num-clients 20 --output-length {} --request-rate 20 --seed 42",
                            tokens(16, scale)
                        )
                    }
                    _ => common,
                }
            }
        };
        line.split_whitespace().map(str::to_owned).collect()
    }
}

/// Inserts a preset's flags into `args` after `bench multi-turn` or `bench compare`. The first
/// element of `args` is the program name.
///
/// # Errors
/// `--scale` is not a positive number.
pub fn expand(mut args: Vec<String>) -> Result<Vec<String>, Failure> {
    let Some(at) =
        args.windows(2).position(|two| two[0] == "bench" && ["multi-turn", "compare"].contains(&two[1].as_str()))
    else {
        return Ok(args);
    };
    // `--scenario agentx` is aiperf's spelling.
    let value = |flag: &str| {
        let with = format!("{flag}=");
        args.iter().enumerate().skip(at + 2).rev().find_map(|(i, word)| match word.strip_prefix(&with) {
            Some(value) => Some(value.to_owned()),
            None => args.get(i + 1).filter(|_| word == flag).cloned(),
        })
    };
    // The argument parser reports an unknown preset.
    let Some(preset) =
        value("--preset").or_else(|| value("--scenario")).and_then(|name| Preset::from_str(&name, false).ok())
    else {
        return Ok(args);
    };
    let scale = value("--scale").unwrap_or_else(|| "1".to_owned());
    let factor = scale.parse::<f64>().ok().filter(|factor| *factor > 0.0 && *factor <= 1_000.0);
    let factor = factor.ok_or_else(|| {
        Failure::usage(format!("'{scale}' is not a valid factor for --scale")).next("use a number above 0, e.g. 0.1")
    })?;
    args.splice(at + 2..at + 2, preset.flags(factor));
    Ok(args)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(line: &str) -> String {
        expand(line.split(' ').map(str::to_owned).collect()).expect("a factor").join(" ")
    }

    #[test]
    fn a_preset_expands_before_the_flags_of_the_user() {
        let line = expanded("mcctl bench multi-turn --preset=hicache-blog --scale 0.05 --num-clients 3");
        assert!(line.starts_with("mcctl bench multi-turn --disable-random-sample"), "{line}");
        assert!(line.contains(" --request-length 102 --num-clients 80"), "{line}");
        assert!(line.ends_with(" --preset=hicache-blog --scale 0.05 --num-clients 3"), "{line}");
        for other in [
            "mcctl bench multi-turn --num-clients 3",
            "mcctl bench transfer --preset kep74",
            "mcctl",
            "mcctl bench multi-turn --preset no",
        ] {
            assert_eq!(expanded(other), other);
        }
        assert!(expanded("mcctl bench compare A B --preset kep74").contains("compare --num-clients 300"));
        let bad = ["mcctl", "bench", "multi-turn", "--preset", "kep74", "--scale", "0"].map(str::to_owned).to_vec();
        assert!(expand(bad).is_err());
    }
}
