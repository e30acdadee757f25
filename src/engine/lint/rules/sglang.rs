//! SGLang's command line: flags, values, device lists.

use crate::engine::check::listed;
use crate::engine::lint::findings::Findings;
use crate::engine::lint::model::{Implementation, LocatedValue, Process, ProcessRole};
use crate::engine::lint::nearest::nearest;
use crate::engine::lint::settings::{ProcessView, SettingValue};
use crate::engine::lint::view::DeploymentView;
use crate::engine::upstream::sglang::{self, RELEASE};

/// Maximum number of unknown flags per process that are compared with all known flags.
const UNKNOWN_MAX: usize = 32;
/// Limit on the edit distance between a flag and its likely intended name.
const TYPO_MAX: usize = 2;

/// The release in the tag of an SGLang image, if it differs from [`RELEASE`].
fn other_release(process: &Process) -> Option<&str> {
    let (path, tag) = process.image.as_ref()?.text.rsplit_once(':')?;
    let tag = tag.trim_start_matches('v').split('-').next()?;
    let is_release = path.contains("sglang") && tag.starts_with(|c: char| c.is_ascii_digit());
    (is_release && tag != RELEASE).then_some(tag)
}

/// SGLang exits at startup on an unknown flag.
pub fn flags(view: &DeploymentView<'_>, out: &mut Findings) {
    for member in view.sglang() {
        let known = |name: &str| sglang::FLAGS.binary_search(&name).is_ok();
        // argparse accepts an unambiguous prefix of a name.
        let begins = |name: &str| {
            let at = sglang::FLAGS.partition_point(|known| *known < name);
            sglang::FLAGS.get(at).is_some_and(|known| known.starts_with(name))
        };
        let unknown = member.flags.iter().filter(|f| f.spelled.starts_with("--") && !f.spelled.contains('$'));
        for flag in unknown.filter(|f| !known(&f.name) && !begins(&f.name)).take(UNKNOWN_MAX) {
            let near = nearest(&flag.name, sglang::FLAGS.iter().copied());
            let is_typo = near.is_some_and(|near| strsim::damerau_levenshtein(near, &flag.name) <= TYPO_MAX);
            let hicache = flag.name.starts_with("hicache") || flag.name.starts_with("enable_hi");
            let why = format!("SGLang {RELEASE} does not have a flag with that name");
            let remedy =
                near.map_or_else(|| "remove it".to_owned(), |near| format!("use --{}", near.replace('_', "-")));
            let ends = format!("SGLang exits at startup: unknown flag {}", flag.spelled);
            match other_release(member.process) {
                None if is_typo || hicache => out.error(&flag.place, ends, why, remedy),
                Some(release) if is_typo => {
                    let what = format!("SGLang {release} may exit at startup: {} is not a known flag", flag.spelled);
                    out.warning(&flag.place, what, why, remedy);
                }
                _ => out.info(
                    &flag.place,
                    format!("{} is not a flag of SGLang {RELEASE}", flag.spelled),
                    why,
                    "check the flags of the release in use with sglang.launch_server --help",
                ),
            }
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

/// SGLang exits at startup if a flag has an invalid value.
pub fn values(view: &DeploymentView<'_>, out: &mut Findings) {
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
            match other_release(member.process).filter(|_| near.is_none()) {
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
pub fn devices(view: &DeploymentView<'_>, out: &mut Findings) {
    for member in view.member.iter().filter(|member| member.process.implementation == Implementation::Upstream) {
        let has_devices = member.process.role.is_client() || member.process.role == ProcessRole::Environment;
        if let (true, SettingValue::Is(located)) = (has_devices, member.client("device_name")) {
            device_list("the device list", &located, out);
        }
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
