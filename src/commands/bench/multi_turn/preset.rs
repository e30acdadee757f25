//! Presets: published runs by name. A preset stands for words of the command line, put in front of the user's; what the user
//! writes wins.

use clap::ValueEnum;

use crate::commands::error::Failure;

/// A published run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Preset {
    /// The table of SGLang's KEP-74: 300 first turns at 10/s, the same again, and the true multi-turn run beside them
    Kep74,
    /// Mooncake's published HiCache run on 8 x H800 (bench_multiturn.py): 80 clients, 10 rounds of 2,048 tokens
    HicacheBlog,
    /// The same on 3 x 2 A10: 20 clients, answers of 16 tokens
    HicacheBlogA10,
}

/// Presets.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Presets")]
pub struct PresetArgs {
    /// A published run; flags that are given beside it win
    #[arg(long, value_enum, value_name = "NAME")]
    pub preset: Option<Preset>,
    /// Multiply the preset's lengths in tokens by this, for servers that hold less
    #[arg(long, value_name = "FACTOR", default_value = "1", requires = "preset")]
    pub scale: String,
}

/// A length of `tokens` at `scale`: at least one token.
fn tokens(tokens: u32, scale: f64) -> u64 {
    ((f64::from(tokens) * scale).round() as u64).max(1)
}

impl Preset {
    /// The words it stands for.
    fn words(self, scale: f64) -> Vec<String> {
        let line = match self {
            // Its backend was sglang-oai: completions, no chat. Lengths are those of a stand-in, where no dataset is given: about ShareGPT's first questions and answers. The run has no
            // cap on what is in flight.
            Preset::Kep74 => format!(
                "--num-clients 300 --num-prompts 300 --request-rate 10 --distribution poisson --seed 43 --api completions --max-parallel 300 \
                 --min-rounds 2 --max-rounds 6 --request-length lognormal:{},1.2 --output-length lognormal:{},0.8",
                tokens(220, scale),
                tokens(200, scale)
            ),
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

/// `args` (the program's name first) with the words of its preset, if it names one, behind `bench multi-turn` or `bench compare`.
///
/// # Errors
/// `--scale` is no factor.
pub fn expand(mut args: Vec<String>) -> Result<Vec<String>, Failure> {
    let Some(at) =
        args.windows(2).position(|two| two[0] == "bench" && ["multi-turn", "compare"].contains(&two[1].as_str()))
    else {
        return Ok(args);
    };
    let value = |flag: &str| {
        let with = format!("{flag}=");
        args.iter().enumerate().skip(at + 2).rev().find_map(|(i, word)| match word.strip_prefix(&with) {
            Some(value) => Some(value.to_owned()),
            None => args.get(i + 1).filter(|_| word == flag).cloned(),
        })
    };
    // A name that is none is told by the parser.
    let Some(preset) = value("--preset").and_then(|name| Preset::from_str(&name, false).ok()) else { return Ok(args) };
    let scale = value("--scale").unwrap_or_else(|| "1".to_owned());
    let factor = scale.parse::<f64>().ok().filter(|factor| *factor > 0.0 && *factor <= 1_000.0);
    let factor = factor.ok_or_else(|| {
        Failure::usage(format!("--scale '{scale}' is no factor")).next("write a number above 0, 0.1 for a tenth")
    })?;
    args.splice(at + 2..at + 2, preset.words(factor));
    Ok(args)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(line: &str) -> String {
        expand(line.split(' ').map(str::to_owned).collect()).expect("a factor").join(" ")
    }

    #[test]
    fn a_preset_is_its_words_in_front_of_the_users_and_nothing_else_is_touched() {
        let line = expanded("mcctl bench multi-turn --preset=hicache-blog --scale 0.05 --num-clients 3");
        assert!(line.starts_with(
            "mcctl bench multi-turn --disable-random-sample --output-length 1 --request-length 102 --num-clients 80"
        ));
        assert!(line.ends_with("--enable-round-barrier --preset=hicache-blog --scale 0.05 --num-clients 3"), "{line}");
        for other in [
            "mcctl bench multi-turn --num-clients 3",
            "mcctl bench transfer --preset kep74",
            "mcctl",
            "mcctl bench multi-turn --preset no",
        ] {
            assert_eq!(expanded(other), other);
        }
        assert!(
            expanded("mcctl bench compare A B --preset kep74")
                .contains("compare --num-clients 300 --num-prompts 300 --request-rate 10")
        );
        let bad = ["mcctl", "bench", "multi-turn", "--preset", "kep74", "--scale", "0"].map(str::to_owned).to_vec();
        assert!(expand(bad).is_err());
    }
}
