//! The command line of SGLang: flags, their values, lists of devices.

use crate::engine::check::listed;
use crate::engine::lint::names::{SGLANG_FLAGS, SGLANG_VALUES, nearest};
use crate::engine::lint::rules::{Findings, View};
use crate::engine::lint::scene::{Make, Process, Role, Said};
use crate::engine::lint::settings::{Seen, Setting};

/// The release whose flags are known.
const RELEASE: &str = "0.5.23";
/// Unknown flags of a process that are compared with all known ones.
const UNKNOWN_MAX: usize = 32;
/// The most letters in which a misspelt flag differs from the one that is meant.
const TYPO_MAX: usize = 2;

/// The release in the tag of an image of SGLang, if it is another one.
fn other_release(process: &Process) -> Option<&str> {
    let (path, tag) = process.image.as_ref()?.text.rsplit_once(':')?;
    let tag = tag.trim_start_matches('v').split('-').next()?;
    let is_release = path.contains("sglang") && tag.starts_with(|c: char| c.is_ascii_digit());
    (is_release && tag != RELEASE).then_some(tag)
}

/// A flag that SGLang does not have ends it at once.
pub fn flags(view: &View<'_>, out: &mut Findings) {
    for seen in view.sglang() {
        let known = |name: &str| SGLANG_FLAGS.binary_search(&name).is_ok();
        // argparse takes the beginning of a name.
        let begins = |name: &str| {
            let at = SGLANG_FLAGS.partition_point(|known| *known < name);
            SGLANG_FLAGS.get(at).is_some_and(|known| known.starts_with(name))
        };
        let unknown = seen.flags.iter().filter(|f| f.spelled.starts_with("--") && !f.spelled.contains('$'));
        for flag in unknown.filter(|f| !known(&f.name) && !begins(&f.name)).take(UNKNOWN_MAX) {
            let near = nearest(&flag.name, SGLANG_FLAGS.iter().copied());
            let is_typo = near.is_some_and(|near| strsim::damerau_levenshtein(near, &flag.name) <= TYPO_MAX);
            let hicache = flag.name.starts_with("hicache") || flag.name.starts_with("enable_hi");
            let why = format!("SGLang {RELEASE} has no flag of that name");
            let remedy =
                near.map_or_else(|| "remove it".to_owned(), |near| format!("write --{}", near.replace('_', "-")));
            let ends = format!("SGLang ends at once: it has no flag {}", flag.spelled);
            match other_release(seen.process) {
                None if is_typo || hicache => out.error(&flag.place, ends, why, remedy),
                Some(release) if is_typo => {
                    let what = format!("SGLang {release} may end at once: {} is not a known flag", flag.spelled);
                    out.warning(&flag.place, what, why, remedy);
                }
                _ => out.info(
                    &flag.place,
                    format!("{} is not a flag of SGLang {RELEASE}", flag.spelled),
                    why,
                    "check it against the release that runs: sglang.launch_server --help",
                ),
            }
        }
        if let Some((said, reason)) = &seen.extra_error {
            out.error(
                &said.place,
                "SGLang ends at once: the extra config is not JSON",
                reason.clone(),
                "write one JSON object in single quotes, or @FILE",
            );
        }
    }
}

/// A value that is not among those of its flag ends SGLang at once.
pub fn values(view: &View<'_>, out: &mut Findings) {
    for seen in view.sglang() {
        for (name, values) in SGLANG_VALUES {
            let Some(said) = seen.value(&[name]).filter(|said| !values.contains(&said.text.as_str())) else { continue };
            let flag = format!("--{}", name.replace('_', "-"));
            let near = nearest(&said.text, values.iter().copied());
            let remedy = match near {
                Some(near) => format!("write {flag} {near}"),
                None => format!("write one of {}", values.join(", ")),
            };
            let why = format!("the values are {}", listed(values));
            match other_release(seen.process).filter(|_| near.is_none()) {
                None => {
                    out.error(
                        &said.place,
                        format!("SGLang ends at once: {flag} cannot be '{}'", said.text),
                        why,
                        remedy,
                    );
                }
                Some(release) => out.warning(
                    &said.place,
                    format!("SGLang {release} may end at once: {flag} {} is not a known value", said.text),
                    why,
                    remedy,
                ),
            }
        }
        ratio(seen, out);
    }
}

/// The size of L2 as a multiple of the device's pool.
fn ratio(seen: &Seen<'_>, out: &mut Findings) {
    let Some(said) = seen.value(&["hicache_ratio"]) else { return };
    let has_size = seen.value(&["hicache_size"]).is_some_and(|size| size.text.trim() != "0");
    match said.text.trim().parse::<f64>() {
        Err(_) => out.error(
            &said.place,
            format!("SGLang ends at once: --hicache-ratio cannot be '{}'", said.text),
            "it is a number",
            "write --hicache-ratio 2",
        ),
        Ok(_) if has_size => out.info(
            &said.place,
            "--hicache-ratio has no effect: --hicache-size is given",
            format!("--hicache-ratio {}", said.text),
            "remove one of them",
        ),
        // SGLang logs the same and starts.
        Ok(ratio) if ratio.is_nan() || ratio <= 1.0 => out.warning(
            &said.place,
            "the L2 cache is not larger than the GPU's own pool, so it holds hardly anything else",
            format!("--hicache-ratio {}", said.text),
            "write --hicache-ratio 2 or more, or --hicache-size",
        ),
        Ok(_) => {}
    }
}

/// A list of devices is separated by commas alone.
pub fn devices(view: &View<'_>, out: &mut Findings) {
    for seen in view.seen.iter().filter(|seen| seen.process.make == Make::Upstream) {
        let has_devices = seen.process.role.is_client() || seen.process.role == Role::Environment;
        if let (true, Setting::Is(said)) = (has_devices, seen.client("device_name")) {
            device_list("the device list", &said, out);
        }
        if seen.process.role.is_sglang()
            && let Some(said) = seen.value(&["disaggregation_ib_device"])
        {
            device_list("--disaggregation-ib-device", said, out);
        }
    }
}

fn device_list(what: &str, said: &Said, out: &mut Findings) {
    let text = said.text.trim();
    // A mapping from ranks or GPUs to lists, or a file with one.
    if text.starts_with(['{', '[']) || text.ends_with(".json") {
        return;
    }
    let names: Vec<&str> = text.split(',').collect();
    let has_blank = names.iter().any(|name| name.contains(char::is_whitespace));
    let joined = names.iter().flat_map(|name| name.split_whitespace()).collect::<Vec<_>>().join(",");
    if has_blank {
        out.warning(
            &said.place,
            format!("{what} has a space: a release that does not remove it looks for a device of that name"),
            format!("'{text}'"),
            format!("write {joined}"),
        );
    } else if names.len() > 1 && names.iter().any(|name| name.is_empty()) {
        out.warning(
            &said.place,
            format!("{what} has an empty name: a space behind a comma ends an unquoted list"),
            format!("'{text}'"),
            "write the names with commas and without spaces",
        );
    }
}
