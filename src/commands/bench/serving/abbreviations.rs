//! Expands abbreviated flags. SGLang's tools use argparse, which accepts any unambiguous prefix of
//! a flag.

use crate::commands::bench::serving::flags::{HICACHE, MULTI_TURN, SERVING};

/// Expands abbreviated flags of SGLang's tools after `bench serving`, `bench multi-turn` and
/// `bench compare`. The first element of `args` is the program name. `own` returns all flags of a
/// command, without dashes. These flags are never expanded.
pub fn expand(mut args: Vec<String>, own: impl FnOnce(&str) -> Vec<String>) -> Vec<String> {
    let is_ours = |two: &[String]| two[0] == "bench" && ["serving", "multi-turn", "compare"].contains(&two[1].as_str());
    let Some(at) = args.windows(2).position(is_ours) else { return args };
    let command = args[at + 1].clone();
    let own = own(&command);
    for word in args.iter_mut().skip(at + 2) {
        if word == "--" {
            break;
        }
        let Some(flag) = word.strip_prefix("--") else { continue };
        let (name, value) = flag.split_once('=').map_or((flag, None), |(name, value)| (name, Some(value)));
        if own.iter().any(|flag| flag == name) {
            continue;
        }
        if let Some(whole) = whole(&command, name) {
            *word = value.map_or_else(|| format!("--{whole}"), |value| format!("--{whole}={value}"));
        }
    }
    args
}

/// Returns the only flag that starts with `name`. Searches the flags of the tool that matches the
/// command first, then those of the other tool. Prefixes of `--help` are never expanded.
fn whole(command: &str, name: &str) -> Option<&'static str> {
    let serving: Vec<&'static str> = SERVING.iter().map(|flag| flag.name).collect();
    let tools = if command == "serving" {
        [&serving[..], &MULTI_TURN, &HICACHE]
    } else {
        [&MULTI_TURN[..], &serving, &HICACHE]
    };
    if "help".starts_with(name) {
        return None;
    }
    tools.into_iter().find_map(|flags| {
        let mut found = flags.iter().filter(|flag| flag.starts_with(name));
        let first = *found.next()?;
        found.next().is_none().then_some(first)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(line: &str) -> String {
        let own = |_: &str| ["num-prompts", "scale", "profile"].map(str::to_owned).to_vec();
        expand(line.split(' ').map(str::to_owned).collect(), own).join(" ")
    }

    #[test]
    fn an_unambiguous_prefix_is_expanded() {
        for (short, full) in [
            ("--num-prompt 10", "--num-prompts 10"),
            ("--random-input=7", "--random-input-len=7"),
            ("--enable-multi", "--enable-multiturn"),
            ("--random-range 0.5 --req 4", "--random-range-ratio 0.5 --request-rate 4"),
        ] {
            assert_eq!(expanded(&format!("mcctl bench serving {short}")), format!("mcctl bench serving {full}"));
        }
        // The prefix is ambiguous in bench_multiturn.py, but not in bench_serving.
        assert_eq!(expanded("mcctl bench multi-turn --reques 4"), "mcctl bench multi-turn --request-rate 4");
        assert_eq!(expanded("mcctl bench multi-turn --request-l 4"), "mcctl bench multi-turn --request-length 4");
    }

    #[test]
    fn ambiguous_prefixes_and_own_flags_are_not_expanded() {
        for line in [
            "mcctl bench serving --random 4",
            "mcctl bench serving --profile",
            "mcctl bench serving --he",
            "mcctl bench multi-turn --h",
            "mcctl bench serving --scale 1 --num-prompts 3",
            "mcctl bench serving --tag -- --num-prompt",
            "mcctl bench store --num-prompt 3",
            "mcctl serve store --num-prompt 3",
        ] {
            assert_eq!(expanded(line), line);
        }
    }
}
