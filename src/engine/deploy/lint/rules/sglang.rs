//! SGLang's command line: flags, values, device lists.

use crate::lint::findings::Findings;
use crate::lint::flags::CommandFlag;
use crate::lint::model::LocatedValue;
use crate::lint::nearest::nearest;
use crate::lint::release::{FoundRelease, sglang_release};
use crate::lint::settings::{ProcessView, SettingReader, SettingType, SettingValue, settings_of};
use crate::lint::view::DeploymentView;
use mcctl_base::check::listed;
use mcctl_base::upstream::sglang::{self, RELEASE};
use mcctl_base::upstream::{FlagPresence, SGLANG_RELEASES};

/// Maximum number of unknown flags per process that are compared with all known flags.
const UNKNOWN_MAX: usize = 32;
/// Limit on the edit distance between a flag and its likely intended name.
const TYPO_MAX: usize = 2;

/// SGLang exits at startup on an unknown flag.
pub(super) fn flags(view: &DeploymentView<'_>, out: &mut Findings) {
    for member in view.sglang() {
        let release = sglang_release(member.process);
        let unknown = member.flags.iter().filter(|f| f.spelled.starts_with("--") && !f.spelled.contains('$'));
        for (flag, problem) in
            unknown.filter_map(|f| Some((f, unknown_flag(&f.name, release.as_ref())?))).take(UNKNOWN_MAX)
        {
            report(flag, &problem, out);
        }
        if let Some((located, reason)) = &member.extra_error {
            out.error(
                &located.place,
                "SGLang exits at startup: the extra config is not valid JSON",
                reason.clone(),
                "use a JSON object in single quotes, or @FILE",
            );
        }
    }
}

/// Why SGLang may not have a flag.
enum FlagProblem {
    /// The release in use, which is known, does not have it.
    NotInRelease { release: FoundRelease, last: Option<&'static str>, first: Option<&'static str> },
    /// No known release has it, and it is not similar to a flag either. A newer release or a
    /// changed one may have it.
    Foreign,
    /// No known release has it, and its name is almost that of a flag.
    Misspelled,
}

/// Whether a release has a flag `name`, or, as argparse accepts them, one that begins with it.
fn exists(name: &str, has: impl Fn(&str) -> bool, mut names: impl Iterator<Item = &'static str>) -> bool {
    let positive = name.strip_prefix("no_").unwrap_or(name);
    has(name) || has(positive) || names.any(|known| known.starts_with(name) && has(known))
}

fn unknown_flag(name: &str, release: Option<&FoundRelease>) -> Option<FlagProblem> {
    let in_some = |name: &str| SGLANG_RELEASES.is_known(name) || sglang::FLAGS.binary_search(&name).is_ok();
    let is_known = exists(name, in_some, SGLANG_RELEASES.names());
    // Only for unknown names: the comparison with all flags takes most of the time of a check.
    let is_typo = || {
        nearest(name, SGLANG_RELEASES.names())
            .is_some_and(|near| strsim::damerau_levenshtein(near, name) <= TYPO_MAX && name.len() > 2 * TYPO_MAX)
    };
    let of_hicache = name.starts_with("hicache") || name.starts_with("enable_hi");
    if let Some(release) = release.filter(|release| release.is_published || is_known) {
        let presence = |name: &str| match release.text.as_str() {
            RELEASE if sglang::FLAGS.binary_search(&name).is_ok() => FlagPresence::Present,
            text => SGLANG_RELEASES.presence(text, name),
        };
        let has = |name: &str| !matches!(presence(name), FlagPresence::Absent { .. });
        if let FlagPresence::Absent { last, first } = presence(name) {
            let lacks = !exists(name, has, SGLANG_RELEASES.names());
            return lacks.then(|| FlagProblem::NotInRelease { release: release.clone(), last, first });
        }
    }
    match is_known {
        true => None,
        false if of_hicache || is_typo() => Some(FlagProblem::Misspelled),
        false => Some(FlagProblem::Foreign),
    }
}

fn report(flag: &CommandFlag, problem: &FlagProblem, out: &mut Findings) {
    let spelled = &flag.spelled;
    let near = nearest(&flag.name, sglang::FLAGS.iter().copied());
    let remedy = near.map_or_else(|| "remove it".to_owned(), |near| format!("use --{}", near.replace('_', "-")));
    match problem {
        FlagProblem::NotInRelease { release, last, first } => {
            let why = match (last, first) {
                (_, Some(first)) => format!("release {first} and later releases have it"),
                (Some(last), None) => format!("release {last} was the last known release that has it"),
                (None, None) => "no known release has it".to_owned(),
            };
            let remedy = match (last, first) {
                (_, Some(_)) => "remove it, or use a newer release".to_owned(),
                (Some(_), None) => "remove it; sglang.launch_server --help lists the flags that replace it".to_owned(),
                (None, None) => remedy,
            };
            match release.is_published {
                true => out.error(
                    &flag.place,
                    format!("SGLang {} exits at startup: unknown flag {spelled}", release.text),
                    why,
                    remedy,
                ),
                false => out.warning(
                    &flag.place,
                    format!(
                        "SGLang exits at startup if the image has the flags of {}: {spelled} is not one",
                        release.text
                    ),
                    why,
                    remedy,
                ),
            }
        }
        FlagProblem::Misspelled => out.error(
            &flag.place,
            format!("SGLang exits at startup: unknown flag {spelled}"),
            format!("no release up to SGLang {RELEASE} has a flag with that name"),
            remedy,
        ),
        FlagProblem::Foreign => out.info(
            &flag.place,
            format!("{spelled} is not a flag of any SGLang release up to {RELEASE}"),
            "a newer release, or a changed program, may have it",
            "check the flags of the release in use with sglang.launch_server --help",
        ),
    }
}

/// SGLang exits at startup if a flag has an invalid value.
pub(super) fn values(view: &DeploymentView<'_>, out: &mut Findings) {
    for member in view.sglang() {
        for (name, values) in sglang::VALUES {
            let Some(located) = member.value(&[name]).filter(|located| !values.contains(&located.text.as_str())) else {
                continue;
            };
            let flag = format!("--{}", name.replace('_', "-"));
            let near = nearest(&located.text, values.iter().copied());
            let remedy = match near {
                Some(near) => format!("use {flag} {near}"),
                None => format!("use one of {}", values.join(", ")),
            };
            let why = format!("valid values are {}", listed(values));
            // Releases differ in the values that they know.
            let other = sglang_release(member.process).filter(|release| release.text != RELEASE);
            match other.filter(|_| near.is_none()).map(|release| release.text) {
                None => {
                    out.error(
                        &located.place,
                        format!("SGLang exits at startup: {flag} cannot be '{}'", located.text),
                        why,
                        remedy,
                    );
                }
                Some(release) => out.warning(
                    &located.place,
                    format!("SGLang {release} may exit at startup: {flag} {} is not a known value", located.text),
                    why,
                    remedy,
                ),
            }
        }
        ratio(member, out);
    }
}

/// L2 size as a multiple of the device pool.
fn ratio(member: &ProcessView<'_>, out: &mut Findings) {
    let Some(located) = member.value(&["hicache_ratio"]) else { return };
    let has_size = member.value(&["hicache_size"]).is_some_and(|size| size.text.trim() != "0");
    match located.text.trim().parse::<f64>() {
        Err(_) => out.error(
            &located.place,
            format!("SGLang exits at startup: --hicache-ratio cannot be '{}'", located.text),
            "the value must be a number",
            "use --hicache-ratio 2",
        ),
        Ok(_) if has_size => out.info(
            &located.place,
            "--hicache-ratio has no effect: --hicache-size is set",
            format!("--hicache-ratio {}", located.text),
            "remove one of them",
        ),
        // SGLang logs a warning and starts.
        Ok(ratio) if ratio.is_nan() || ratio <= 1.0 => out.warning(
            &located.place,
            "the L2 cache is not larger than the GPU pool, so it adds almost no capacity",
            format!("--hicache-ratio {}", located.text),
            "set --hicache-ratio to 2 or more, or use --hicache-size",
        ),
        Ok(_) => {}
    }
}

/// Device lists may use only commas as separators.
pub(super) fn devices(view: &DeploymentView<'_>, out: &mut Findings) {
    for (member, _) in view.readers().filter(|(_, reader)| *reader != SettingReader::McctlNode) {
        for setting in settings_of(SettingType::Devices) {
            if let SettingValue::Is(located) = member.client(setting.key) {
                device_list("the device list", &located, out);
            }
        }
    }
    for member in &view.member {
        if member.process.role.is_sglang()
            && let Some(located) = member.value(&["disaggregation_ib_device"])
        {
            device_list("--disaggregation-ib-device", located, out);
        }
    }
}

fn device_list(what: &str, located: &LocatedValue, out: &mut Findings) {
    let text = located.text.trim();
    // A mapping from ranks or GPUs to device lists, or a file that contains this mapping.
    if text.starts_with(['{', '[']) || text.ends_with(".json") {
        return;
    }
    let names: Vec<&str> = text.split(',').collect();
    let has_space = names.iter().any(|name| name.contains(char::is_whitespace));
    let joined = names.iter().flat_map(|name| name.split_whitespace()).collect::<Vec<_>>().join(",");
    if has_space {
        out.warning(
            &located.place,
            format!(
                "{what} contains a space: some releases look up a device with exactly this name, including the space"
            ),
            format!("'{text}'"),
            format!("use {joined}"),
        );
    } else if names.len() > 1 && names.iter().any(|name| name.is_empty()) {
        out.warning(
            &located.place,
            format!("{what} has an empty name: a space after a comma ends an unquoted list"),
            format!("'{text}'"),
            "separate the names with commas, without spaces",
        );
    }
}
