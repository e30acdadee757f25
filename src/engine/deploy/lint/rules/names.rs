//! Names that no program reads: variables, flags, keys.

use crate::lint::connectors::{LMCACHE_KEYS, LMCACHE_OWN_KEYS, LMCACHE_PREFIX, VLLM_KEYS};
use crate::lint::findings::Findings;
use crate::lint::flags::is_true;
use crate::lint::model::{Implementation, ProcessRole, SettingsFileKind, Variable};
use crate::lint::nearest::nearest;
use crate::lint::programs::{MCCTL_ALIASES, MCCTL_FLAGS};
use crate::lint::rules::data_dir::{is_sync_mode, mcctl_flag};
use crate::lint::settings::ProcessView;
use crate::lint::view::DeploymentView;
use crate::lint::yaml::{ScalarKind, YamlEntry, YamlValue};
use mcctl_base::check::SourceLocation;
use mcctl_base::upstream::{
    CLIENT_FLAGS, CLIENT_RELEASES, DeployedRelease, FlagKind, FlagPresence, FlagReleases, LIBRARY_FLAGS, MASTER_FLAGS,
    MASTER_RELEASES, SERIES, STORE_KEYS, UpstreamFlag, VARIABLE_PREFIXES, find, known_variables, master_flag,
    python_client, sglang,
};

/// The only flag whose key in a settings file has another name.
const CLIENT_TTL: &UpstreamFlag = find(MASTER_FLAGS, "client_ttl");

/// Limit on the edit distance between a variable and its likely intended name: scripts have similar
/// variables of their own.
const VARIABLE_TYPO_MAX: usize = 2;

/// A variable that only mcctl's nodes and clients read.
const MCCTL_HOST: &str = "MOONCAKE_HOST_ID";

/// A variable that no program reads has no effect and causes no error.
pub(super) fn variables(view: &DeploymentView<'_>, out: &mut Findings) {
    for member in &view.member {
        for (name, value) in &member.process.env {
            let ours = name.starts_with("MC_") || name.starts_with("MOONCAKE_") || name.starts_with("SGLANG_HICACHE_");
            let is_known = name == MCCTL_HOST
                || known_variables().any(|known| known == name)
                || VARIABLE_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
            if !ours || is_known {
                continue;
            }
            let near = nearest(name, known_variables())
                .filter(|near| strsim::damerau_levenshtein(near, name) <= VARIABLE_TYPO_MAX);
            let Some(near) = near else {
                // Wrapper scripts have their own variables. Only a near match of a known name is
                // definitely a mistake.
                let who = format!("neither Mooncake {SERIES} nor SGLang {}", sglang::RELEASE);
                out.info(
                    value.place(),
                    format!("{name} is not read by any known program"),
                    format!("{who} reads it"),
                    "remove it, unless one of your scripts reads it",
                );
                continue;
            };
            out.warning(
                value.place(),
                format!("{name} has no effect: no program reads a variable with that name"),
                format!("the most similar known variable is {near}"),
                format!("use {near}"),
            );
        }
    }
}

/// SGLang and the store service use different variables to enable the SSD tier.
pub(super) fn ssd_variables(view: &DeploymentView<'_>, out: &mut Findings) {
    for member in &view.member {
        let (wrong, right, who) = match member.process.role {
            ProcessRole::Sglang(_) => ("MOONCAKE_OFFLOAD_ENABLED", "MOONCAKE_ENABLE_SSD_OFFLOAD", "SGLang"),
            ProcessRole::Store if member.process.implementation == Implementation::Upstream => {
                ("MOONCAKE_ENABLE_SSD_OFFLOAD", "MOONCAKE_OFFLOAD_ENABLED", "the store service")
            }
            _ => continue,
        };
        let Some(variable) = member.process.env.get(wrong) else { continue };
        if member.process.env.contains_key(right) {
            continue;
        }
        out.warning(
            variable.place(),
            format!("{} writes nothing to SSD: {who} does not read {wrong}", member.process.describe()),
            format!("{wrong} is set, but {right} is not"),
            format!("set {right}=true"),
        );
    }
}

/// Values that SGLang parses as false although they look like true.
pub(super) fn boolean_words(view: &DeploymentView<'_>, out: &mut Findings) {
    let in_sglang = ["MOONCAKE_CHECK_SERVER", "MOONCAKE_STANDALONE_STORAGE", "MOONCAKE_ENABLE_SSD_OFFLOAD"];
    for member in &view.member {
        if !member.process.role.is_sglang() && member.process.role != ProcessRole::Environment {
            continue;
        }
        for name in in_sglang {
            let Some(located) = member.process.var(name) else { continue };
            let word = located.text.trim().to_ascii_lowercase();
            if !matches!(word.as_str(), "1" | "true" | "yes" | "0" | "false" | "no" | "") {
                out.warning(
                    &located.place,
                    format!("SGLang parses {name}={} as false", located.text),
                    "true values are 1, true and yes; all other values are false",
                    format!("set {name}=true"),
                );
            }
        }
    }
}

/// The master exits at startup on an unknown flag.
pub(super) fn master_flags(view: &DeploymentView<'_>, out: &mut Findings) {
    for member in view.masters() {
        if member.flags.iter().any(|flag| flag.name == "undefok") {
            continue;
        }
        let release = view.release(member);
        let program = match member.process.implementation {
            Implementation::Mcctl => "mcctl serve master".to_owned(),
            Implementation::Upstream => {
                format!("mooncake_master {}", release.as_deref().unwrap_or(DeployedRelease::TESTED.text()))
            }
        };
        for flag in &member.flags {
            let own = member.process.implementation == Implementation::Mcctl
                && MCCTL_FLAGS.iter().chain(MCCTL_ALIASES).any(|name| *name == flag.name);
            if own || flag.spelled.contains('$') {
                continue;
            }
            let is_upstream = member.process.implementation == Implementation::Upstream;
            let problem = match (is_upstream, &release) {
                // mcctl has the flags of the release that it is tested with.
                (false, _) => presence(&MASTER_RELEASES, &flag.name, Some(DeployedRelease::TESTED.text())),
                (true, release) => presence(&MASTER_RELEASES, &flag.name, release.as_deref()),
            };
            match problem {
                FlagPresence::Present | FlagPresence::Unknown => {}
                FlagPresence::Absent { last: None, first: None } => {
                    let names = MASTER_FLAGS.iter().chain(LIBRARY_FLAGS).map(|known| known.name);
                    let negated = flag.name.strip_prefix("no");
                    let near = nearest(&flag.name, names.clone()).or_else(|| negated.and_then(|n| nearest(n, names)));
                    out.error(
                        &flag.place,
                        format!("the master exits at startup: unknown flag {}", flag.spelled),
                        format!("{program} does not have a flag with that name"),
                        match (near, is_upstream) {
                            (Some(near), _) => format!("use --{near}"),
                            (None, false) => "remove it; mcctl serve master --help lists all flags".to_owned(),
                            (None, true) => "remove it; mooncake_master --help lists all flags".to_owned(),
                        },
                    );
                }
                FlagPresence::Absent { last, first } => out.error(
                    &flag.place,
                    match (is_upstream, &release) {
                        (true, Some(release)) => {
                            format!("the master exits at startup: release {release} does not support {}", flag.spelled)
                        }
                        _ => format!("the master exits at startup: {program} does not support {}", flag.spelled),
                    },
                    match (last, first) {
                        (_, Some(first)) => format!("the flag was added in {first}"),
                        (last, None) => format!("the flag was removed after {}", last.unwrap_or_default()),
                    },
                    match first {
                        Some(_) => "remove it, or use a newer release",
                        None => "remove it",
                    },
                ),
            }
        }
    }
}

/// `mooncake_client` exits at startup on an unknown flag.
pub(super) fn client_flags(view: &DeploymentView<'_>, out: &mut Findings) {
    let is_client = |member: &&ProcessView<'_>| {
        member.process.role == ProcessRole::RealClient && !member.flags.iter().any(|flag| flag.name == "undefok")
    };
    for member in view.member.iter().filter(is_client) {
        let release = view.release(member);
        for flag in member.flags.iter().filter(|flag| !flag.spelled.contains('$')) {
            let FlagPresence::Absent { last, first } = presence(&CLIENT_RELEASES, &flag.name, release.as_deref())
            else {
                continue;
            };
            let near = nearest(&flag.name, CLIENT_FLAGS.iter().map(|known| known.name));
            let what = format!("the real client exits at startup: unknown flag {}", flag.spelled);
            let (why, remedy) = match (last, first) {
                (_, Some(first)) => {
                    (format!("the flag was added in {first}"), "remove it, or use a newer release".to_owned())
                }
                (Some(last), None) => (format!("the flag was removed after {last}"), "remove it".to_owned()),
                (None, None) => (
                    "no release of mooncake_client has a flag with that name".to_owned(),
                    near.map_or_else(|| "remove it".to_owned(), |near| format!("use --{near}")),
                ),
            };
            out.error(&flag.place, what, why, remedy);
        }
    }
}

/// Whether a program has the flag `name`, or `noNAME` for a switch. With an unknown release,
/// whether any known release has it.
fn presence(table: &FlagReleases, name: &str, release: Option<&str>) -> FlagPresence {
    let is_library = LIBRARY_FLAGS.iter().any(|flag| flag.name == name || name.strip_prefix("no") == Some(flag.name));
    let names = [Some(name), name.strip_prefix("no")];
    let listed = names.into_iter().flatten().find(|name| table.is_known(name));
    match (listed, release) {
        _ if is_library => FlagPresence::Present,
        (None, _) => FlagPresence::Absent { last: None, first: None },
        (Some(_), None) => FlagPresence::Present,
        (Some(name), Some(release)) => table.presence(release, name),
    }
}

/// Values that make the master exit, or that it parses in an unexpected way.
pub(super) fn master_values(view: &DeploymentView<'_>, out: &mut Findings) {
    for member in view.masters() {
        let is_mcctl = member.process.implementation == Implementation::Mcctl;
        for flag in &member.flags {
            if let Some(stray) = &flag.stray {
                let off = !is_true(&stray.text);
                let what = format!("{} {}", flag.spelled, stray.text);
                if off {
                    out.error(
                        &flag.place,
                        format!("{} is on: a switch does not take a separate value", flag.spelled),
                        format!("'{what}' is parsed as {} and a stray argument", flag.spelled),
                        format!("use {}=false", flag.spelled),
                    );
                }
            }
            let Some(value) = flag.value.as_ref().filter(|value| value.is_known()) else { continue };
            let own = || mcctl_flag(&flag.name).filter(|_| is_mcctl);
            if let Some(kind) = master_flag(&flag.name).map(|known| known.kind).or_else(own) {
                check_value(&flag.name, kind, &value.text, &value.place, out);
            }
        }
        let Some(document) = member.process.config.and_then(|at| view.deployment.documents.get(at)) else { continue };
        for entry in document.node.entries() {
            let place = SourceLocation { file: document.file.clone(), line: entry.line };
            if let (Some(known), Some(text)) = (master_flag(&entry.key), entry.value.text()) {
                check_value(known.name, known.kind, text, &place, out);
                check_type(entry, known.kind, document.json, &place, out);
            } else if let (Some(kind), Some(text)) = (mcctl_flag(&entry.key).filter(|_| is_mcctl), entry.value.text()) {
                check_value(&entry.key, kind, text, &place, out);
                check_type(entry, kind, document.json, &place, out);
            } else if Some(entry.key.as_str()) == CLIENT_TTL.key && entry.value.whole().is_none() {
                let text = entry.value.text().unwrap_or("a missing number");
                check_value(&entry.key, CLIENT_TTL.kind, text, &place, out);
            }
        }
    }
}

fn check_value(name: &str, kind: FlagKind, text: &str, place: &SourceLocation, out: &mut Findings) {
    let trimmed = text.trim();
    let wrong = match kind {
        // gflags also reads hexadecimal numbers.
        kind if kind.is_whole() => {
            let is_hex = trimmed.trim_start_matches('-').strip_prefix("0x");
            let is_hex = is_hex.is_some_and(|digits| i64::from_str_radix(digits, 16).is_ok());
            (!is_hex && trimmed.parse::<i64>().is_err()).then_some("a whole number".to_owned())
        }
        FlagKind::Number => trimmed.parse::<f64>().is_err().then_some("a number".to_owned()),
        FlagKind::Ratio => (!trimmed.parse::<f64>().is_ok_and(|n| (0.0..=1.0).contains(&n)))
            .then_some("a number from 0 to 1".to_owned()),
        FlagKind::Duration => {
            (!is_duration(trimmed)).then_some("milliseconds, or a whole number with ms, s, m or h".to_owned())
        }
        FlagKind::Switch => {
            let known = is_true(trimmed)
                || matches!(trimmed.to_ascii_lowercase().as_str(), "0" | "f" | "false" | "n" | "no" | "off");
            (!known).then_some("true or false".to_owned())
        }
        FlagKind::Text if name == "fsync" => (!is_sync_mode(trimmed))
            .then_some("always, never, interval, or interval=TIME such as interval=50ms".to_owned()),
        FlagKind::Word { words, fallback: None } => (!words.contains(&trimmed)).then(|| words.join(" or ")),
        _ => None,
    };
    if let Some(wanted) = wrong {
        out.error(
            place,
            format!("the master exits at startup: {name} cannot be '{text}'"),
            format!("{name} must be {wanted}"),
            format!("set {name} to {wanted}"),
        );
    }
    let is_zero = |text: &str| !text.is_empty() && text.bytes().all(|digit| digit == b'0');
    if name == "default_kv_lease_ttl" && is_zero(trimmed.trim_end_matches(|c: char| c.is_ascii_alphabetic())) {
        out.error(
            place,
            "every read fails with LEASE_EXPIRED: the lease duration is 0",
            format!("default_kv_lease_ttl is '{text}'; a client discards bytes that arrive after the lease expires"),
            "set default_kv_lease_ttl to 1000 (milliseconds) or more, or remove it for the default of 10 s",
        );
    }
    if let FlagKind::Word { words, fallback: Some(fallback) } = kind
        && !words.contains(&trimmed)
    {
        out.warning(
            place,
            format!("unknown {name} '{text}': the master uses {fallback}"),
            format!("valid strategies are {}", words.join(", ")),
            "use one of these strategies",
        );
    }
}

/// The master aborts on `"false"` in JSON: a string is not a boolean.
fn check_type(entry: &YamlEntry, kind: FlagKind, json: bool, place: &SourceLocation, out: &mut Findings) {
    let quoted = matches!(&entry.value.value, YamlValue::Scalar(text) if text.kind == ScalarKind::Text);
    if json && kind == FlagKind::Switch && quoted {
        out.error(
            place,
            format!("the master aborts: {} is a string, not a boolean", entry.key),
            format!("the value is \"{}\", in quotes", entry.value.text().unwrap_or_default()),
            format!("use \"{}\": true or false, without quotes", entry.key),
        );
    }
}

fn is_duration(text: &str) -> bool {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    digits > 0 && matches!(text[digits..].trim().to_ascii_lowercase().as_str(), "" | "ms" | "s" | "m" | "h")
}

/// Keys of settings files that no program reads and that cause no error.
pub(super) fn config_keys(view: &DeploymentView<'_>, out: &mut Findings) {
    for (document, at) in view.deployment.documents.iter().zip(0..) {
        let known: Vec<&str> = match document.kind {
            SettingsFileKind::Master => {
                let is_ours = |member: &ProcessView<'_>| {
                    member.process.implementation == Implementation::Mcctl && member.process.config == Some(at)
                };
                let own = if view.masters().any(is_ours) { MCCTL_FLAGS } else { &[] };
                MASTER_FLAGS.iter().filter_map(|flag| flag.key).chain(own.iter().copied()).collect()
            }
            // Three programs read the file named by MOONCAKE_CONFIG_PATH: the store service, vLLM
            // and LMCache.
            SettingsFileKind::Store | SettingsFileKind::Vllm => {
                let service = STORE_KEYS.iter().map(|row| row.key);
                service.chain(VLLM_KEYS.iter().chain(LMCACHE_OWN_KEYS).copied()).collect()
            }
            SettingsFileKind::Extra => sglang::KEYS.iter().map(|(key, _)| *key).collect(),
            SettingsFileKind::Lmcache => LMCACHE_KEYS.to_vec(),
        };
        for entry in document.node.entries().iter().filter(|entry| !known.contains(&entry.key.as_str())) {
            let place = SourceLocation { file: document.file.clone(), line: entry.line };
            let of_lmcache = matches!(document.kind, SettingsFileKind::Store | SettingsFileKind::Vllm)
                && entry.key.starts_with(LMCACHE_PREFIX);
            if !of_lmcache {
                unknown_key(&entry.key, &known, document.kind, &place, out);
            }
        }
    }
    for member in view.sglang() {
        inline_keys(member, out);
    }
    for member in &view.member {
        let keys: Vec<&str> = STORE_KEYS.iter().map(|row| row.key).collect();
        for flag in member.flags.iter().filter(|flag| flag.name == "D" && member.process.role == ProcessRole::Store) {
            let Some((key, located)) = flag.value.as_ref().and_then(|v| Some((v.text.split_once('=')?.0, v))) else {
                continue;
            };
            if !keys.contains(&key) {
                unknown_key(key, &keys, SettingsFileKind::Store, &located.place, out);
            }
        }
    }
}

/// Keys of an inline extra config for a backend that reads [`sglang::KEYS`].
fn inline_keys(member: &ProcessView<'_>, out: &mut Findings) {
    let located = member.flag(&["hicache_storage_backend_extra_config"]).and_then(|flag| flag.value.as_ref());
    let (Some(located), Some(node)) = (located.filter(|located| !located.text.starts_with('@')), &member.extra) else {
        return;
    };
    if !member.has_mooncake_backend() {
        return;
    }
    let mut known: Vec<&str> = sglang::KEYS.iter().map(|(key, _)| *key).collect();
    if member.value(&["hicache_storage_backend"]).is_some_and(|backend| backend.text == "dynamic") {
        known.extend(python_client::DYNAMIC_KEYS);
    }
    for entry in node.entries().iter().filter(|entry| !known.contains(&entry.key.as_str())) {
        let line = if located.place.line == 0 { 0 } else { entry.line };
        unknown_key(
            &entry.key,
            &known,
            SettingsFileKind::Extra,
            &SourceLocation { file: located.place.file.clone(), line },
            out,
        );
    }
}

fn unknown_key(key: &str, known: &[&str], kind: SettingsFileKind, place: &SourceLocation, out: &mut Findings) {
    let reader = match kind {
        SettingsFileKind::Master => "mooncake_master",
        SettingsFileKind::Store => "mooncake_store_service",
        SettingsFileKind::Vllm => "vLLM",
        SettingsFileKind::Lmcache => "LMCache",
        SettingsFileKind::Extra => "SGLang",
    };
    let (near, why) = match (kind, key) {
        (SettingsFileKind::Master, "client_ttl") => {
            (CLIENT_TTL.key, "the key for the flag --client_ttl has a different name")
        }
        (SettingsFileKind::Master, "port") => {
            (Some("rpc_port"), "with a settings file, the flag --port and its key are ignored")
        }
        (SettingsFileKind::Master, "max_threads") => {
            (Some("rpc_thread_num"), "with a settings file, max_threads is ignored")
        }
        _ => (nearest(key, known.iter().copied()), "unknown keys are silently ignored"),
    };
    let remedy = near.map_or_else(|| "remove it".to_owned(), |near| format!("use {near}"));
    let what = format!("{key} has no effect: it is not a valid key for {reader}");
    match near {
        Some(_) => out.warning(place, what, why, remedy),
        None => out.info(place, what, why, remedy),
    }
}

/// Variables that are set although the process reads a file or an extra config instead.
pub(super) fn hidden_variables(view: &DeploymentView<'_>, out: &mut Findings) {
    use crate::lint::settings::SettingsOrigin;
    for member in
        view.member.iter().filter(|member| matches!(member.process.role, ProcessRole::Store | ProcessRole::Sglang(_)))
    {
        let (table, instead): (Vec<(&str, &str)>, String) = match (&member.process.role, &member.origin) {
            (_, SettingsOrigin::Environment) => continue,
            (ProcessRole::Sglang(_), SettingsOrigin::Inline(..)) => {
                (sglang::KEYS.to_vec(), "the extra config specifies a master".to_owned())
            }
            (ProcessRole::Sglang(_), _) => (sglang::KEYS.to_vec(), "a settings file is read".to_owned()),
            (_, _) => {
                let by_variable = member.flag(&["config"]).is_none();
                let why =
                    if by_variable { "MOONCAKE_CONFIG_PATH specifies a file" } else { "--config specifies a file" };
                (STORE_KEYS.iter().map(|row| (row.key, row.variable)).collect(), why.to_owned())
            }
        };
        if matches!(member.origin, SettingsOrigin::Unread(_))
            && member.process.role.is_sglang()
            && member.flag(&["hicache_storage_backend_extra_config"]).is_some()
        {
            // Whether that file specifies a master, and is therefore used, is unknown.
            continue;
        }
        for (key, name) in table.iter().filter(|(_, name)| !name.is_empty()) {
            // These two variables apply regardless of the source.
            if member.process.role.is_sglang() && (*key == "local_hostname" || *key == "protocol") {
                continue;
            }
            let Some(Variable::Text(located)) = member.process.env.get(*name) else { continue };
            out.warning(
                &located.place,
                format!("{name} has no effect on {}: settings sources are not merged", member.process.describe()),
                format!("{instead}, so {name} is not read"),
                format!("set {key} in that source, or use variables for all settings"),
            );
        }
    }
}
