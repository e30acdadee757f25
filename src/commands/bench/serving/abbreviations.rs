//! Shortened flags: argparse, which parses the command lines of SGLang's tools, accepts every unambiguous beginning of a flag.

use crate::commands::bench::serving::flags::{MULTI_TURN, SERVING};

/// `args` (the program's name first) with shortened flags of SGLang's tools written out behind `bench serving`, `bench multi-turn` and
/// `bench compare`. `own` gives a command's own flags, without dashes: they mean themselves.
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

/// The flag that `name` is the beginning of: in the tool that the command stands for, or else in the other one. Both have `--help`, too.
fn whole(command: &str, name: &str) -> Option<&'static str> {
    let serving: Vec<&'static str> = SERVING.iter().map(|flag| flag.name).collect();
    let tools = if command == "serving" { [&serving[..], &MULTI_TURN] } else { [&MULTI_TURN[..], &serving] };
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
    fn an_unambiguous_beginning_is_the_whole_flag() {
        assert_eq!(
            expanded("mcctl bench serving --num-prompt 10 --random-input=7 --random-range 0.5 --req 4"),
            "mcctl bench serving --num-prompts 10 --random-input-len=7 --random-range-ratio 0.5 --request-rate 4"
        );
        // Two flags of bench_multiturn.py begin so, one of bench_serving.
        assert_eq!(expanded("mcctl bench multi-turn --reques 4"), "mcctl bench multi-turn --request-rate 4");
        assert_eq!(expanded("mcctl bench multi-turn --request-l 4"), "mcctl bench multi-turn --request-length 4");
    }

    #[test]
    fn ambiguous_beginnings_own_flags_and_other_commands_are_left_alone() {
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
