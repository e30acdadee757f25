//! Names that nobody reads: variables, flags, keys.

use crate::engine::check::Place;
use crate::engine::lint::connectors::{LMCACHE_KEYS, LMCACHE_OWN_KEYS, LMCACHE_PREFIX, VLLM_KEYS};
use crate::engine::lint::flags::is_true;
use crate::engine::lint::names::{
    CLIENT_TTL_KEY, ENGINE_VARIABLES, FlagKind, HICACHE_VARIABLES, LIBRARY_FLAGS, MASTER_FLAGS, MCCTL_FLAGS,
    MORE_VARIABLES, NOT_A_KEY, SERVICE_KEYS, SERVICE_VARIABLES, SGLANG_KEYS, SGLANG_VARIABLES, VARIABLE_PREFIXES,
    master_flag, nearest,
};
use crate::engine::lint::node::{Entry, ScalarKind, Value};
use crate::engine::lint::rules::{Findings, View};
use crate::engine::lint::scene::{DocumentKind, Make, Role, Variable};
use crate::engine::lint::settings::Seen;

fn known_variables() -> impl Iterator<Item = &'static str> {
    [ENGINE_VARIABLES, SERVICE_VARIABLES, SGLANG_VARIABLES, MORE_VARIABLES, HICACHE_VARIABLES]
        .into_iter()
        .flatten()
        .copied()
}

/// A variable that is read by nothing has no effect, and nobody says so.
pub fn variables(view: &View<'_>, out: &mut Findings) {
    for seen in &view.seen {
        for (name, value) in &seen.process.env {
            let ours = name.starts_with("MC_") || name.starts_with("MOONCAKE_") || name.starts_with("SGLANG_HICACHE_");
            let is_known = known_variables().any(|known| known == name)
                || VARIABLE_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
            if !ours || is_known {
                continue;
            }
            let Some(near) = nearest(name, known_variables()) else {
                // Wrappers have variables of their own; only what is nearly a known one is a mistake for sure.
                let who = "no program of Mooncake 0.3.13 or SGLang 0.5.23";
                out.info(
                    value.place(),
                    format!("{name} is not read by anything known"),
                    format!("{who} reads it"),
                    "take it away, unless a script of yours reads it",
                );
                continue;
            };
            out.warning(
                value.place(),
                format!("{name} has no effect: nothing reads a variable of that name"),
                format!("the nearest that is read is {near}"),
                format!("write {near}"),
            );
        }
    }
}

/// SGLang and the store service call the SSD switch by different names.
pub fn ssd_variables(view: &View<'_>, out: &mut Findings) {
    for seen in &view.seen {
        let (wrong, right, who) = match seen.process.role {
            Role::Sglang(_) => ("MOONCAKE_OFFLOAD_ENABLED", "MOONCAKE_ENABLE_SSD_OFFLOAD", "SGLang"),
            Role::Store if seen.process.make == Make::Upstream => {
                ("MOONCAKE_ENABLE_SSD_OFFLOAD", "MOONCAKE_OFFLOAD_ENABLED", "the store service")
            }
            _ => continue,
        };
        let Some(variable) = seen.process.env.get(wrong) else { continue };
        if seen.process.env.contains_key(right) {
            continue;
        }
        out.warning(
            variable.place(),
            format!("{} keeps nothing on SSD: {who} does not read {wrong}", seen.process.called()),
            format!("{wrong} is set and {right} is not"),
            format!("write {right}=true"),
        );
    }
}

/// The words for off that are not one where a variable counts by being there, and the words for on that are none in SGLang.
pub fn boolean_words(view: &View<'_>, out: &mut Findings) {
    let in_sglang = ["MOONCAKE_CHECK_SERVER", "MOONCAKE_STANDALONE_STORAGE", "MOONCAKE_ENABLE_SSD_OFFLOAD"];
    for seen in &view.seen {
        if !seen.process.role.is_sglang() && seen.process.role != Role::Environment {
            continue;
        }
        for name in in_sglang {
            let Some(said) = seen.process.var(name) else { continue };
            let word = said.text.trim().to_ascii_lowercase();
            if !matches!(word.as_str(), "1" | "true" | "yes" | "0" | "false" | "no" | "") {
                out.warning(
                    &said.place,
                    format!("SGLang takes {name}={} for false", said.text),
                    "true are 1, true and yes; every other word is false",
                    format!("write {name}=true"),
                );
            }
        }
    }
}

/// A flag that the release does not know ends the master at once.
pub fn master_flags(view: &View<'_>, out: &mut Findings) {
    for seen in view.masters() {
        if seen.flags.iter().any(|flag| flag.name == "undefok") {
            continue;
        }
        let release = view.release(seen);
        let program = match seen.process.make {
            Make::Mcctl => "mcctl serve master".to_owned(),
            Make::Upstream => format!("mooncake_master {}", release.as_deref().unwrap_or("0.3.13.post1")),
        };
        for flag in &seen.flags {
            let own = seen.process.make == Make::Mcctl && MCCTL_FLAGS.contains(&flag.name.as_str());
            if own || flag.spelled.contains('$') {
                continue;
            }
            let Some(known) = master_flag(&flag.name) else {
                let names = MASTER_FLAGS.iter().chain(LIBRARY_FLAGS).map(|known| known.name);
                let negated = flag.name.strip_prefix("no");
                let near = nearest(&flag.name, names.clone()).or_else(|| negated.and_then(|n| nearest(n, names)));
                out.error(
                    &flag.place,
                    format!("the master ends at once: it has no flag {}", flag.spelled),
                    format!("{program} has no flag of that name"),
                    match (near, seen.process.make) {
                        (Some(near), _) => format!("the nearest is --{near}"),
                        (None, Make::Mcctl) => "remove it; mcctl serve master --help lists all".to_owned(),
                        (None, Make::Upstream) => "remove it; mooncake_master --help lists all".to_owned(),
                    },
                );
                continue;
            };
            if let (Some(since), Some(release)) = (known.since, &release)
                && seen.process.make == Make::Upstream
                && older(release, since)
            {
                out.error(
                    &flag.place,
                    format!("the master ends at once: release {release} has no flag {}", flag.spelled),
                    format!("it came with {since}"),
                    "take it away, or take a newer release",
                );
            }
        }
    }
}

/// Is `release` before `since`? Not known of a text without numbers.
pub fn older(release: &str, since: &str) -> bool {
    let numbers = |text: &str| text.split('.').map_while(|part| part.parse::<u32>().ok()).collect::<Vec<_>>();
    let (release, since) = (numbers(release), numbers(since));
    !release.is_empty()
        && release.iter().chain(std::iter::repeat(&0)).zip(&since).find(|(a, b)| a != b).is_some_and(|(a, b)| a < b)
}

/// Values that the master ends over, or reads otherwise than they look.
pub fn master_values(view: &View<'_>, out: &mut Findings) {
    for seen in view.masters() {
        for flag in &seen.flags {
            if let Some(stray) = &flag.stray {
                let off = !is_true(&stray.text);
                let what = format!("{} {}", flag.spelled, stray.text);
                if off {
                    out.error(
                        &flag.place,
                        format!("{} is on: a switch takes no word of its own", flag.spelled),
                        format!("'{what}' is read as {} and a stray word", flag.spelled),
                        format!("write {}=false", flag.spelled),
                    );
                }
            }
            let (Some(known), Some(value)) = (master_flag(&flag.name), flag.value.as_ref().filter(|v| v.is_known()))
            else {
                continue;
            };
            check_value(known.name, known.kind, &value.text, &value.place, out);
        }
        let Some(document) = seen.process.config.and_then(|at| view.scene.documents.get(at)) else { continue };
        for entry in document.node.entries() {
            let place = Place { file: document.file.clone(), line: entry.line };
            if let (Some(known), Some(text)) = (master_flag(&entry.key), entry.value.text()) {
                check_value(known.name, known.kind, text, &place, out);
                check_type(entry, known.kind, document.json, &place, out);
            } else if entry.key == CLIENT_TTL_KEY && entry.value.whole().is_none() {
                check_value(CLIENT_TTL_KEY, FlagKind::Whole, entry.value.text().unwrap_or("no number"), &place, out);
            }
        }
    }
}

fn check_value(name: &str, kind: FlagKind, text: &str, place: &Place, out: &mut Findings) {
    let trimmed = text.trim();
    let words: Option<&[&str]> = match name {
        "memory_allocator" => Some(&["offset", "cachelib"]),
        "dynamic_replication_mode" => Some(&["off", "observe", "enforce"]),
        _ => None,
    };
    let wrong = match kind {
        FlagKind::Whole => trimmed.parse::<i64>().is_err().then_some("a whole number"),
        FlagKind::Number => trimmed.parse::<f64>().is_err().then_some("a number"),
        FlagKind::Ratio => {
            (!trimmed.parse::<f64>().is_ok_and(|n| (0.0..=1.0).contains(&n))).then_some("a share from 0 to 1")
        }
        FlagKind::Duration => (!is_duration(trimmed)).then_some("milliseconds, or a whole number with ms, s, m or h"),
        FlagKind::Switch => {
            let known = is_true(trimmed)
                || matches!(trimmed.to_ascii_lowercase().as_str(), "0" | "f" | "false" | "n" | "no" | "off");
            (!known).then_some("true or false")
        }
        FlagKind::Text => words.is_some_and(|words| !words.contains(&trimmed)).then_some("one of its words"),
    };
    if let Some(wanted) = wrong {
        let wanted = words.map_or_else(|| wanted.to_owned(), |words| words.join(" or "));
        out.error(
            place,
            format!("the master ends at once: {name} cannot be '{text}'"),
            format!("{name} is {wanted}"),
            format!("give {name} {wanted}"),
        );
    }
    let is_zero = |text: &str| !text.is_empty() && text.bytes().all(|digit| digit == b'0');
    if name == "default_kv_lease_ttl" && is_zero(trimmed.trim_end_matches(|c: char| c.is_ascii_alphabetic())) {
        out.error(
            place,
            "every read fails with LEASE_EXPIRED: read leases last no time",
            format!("default_kv_lease_ttl is '{text}'; a client drops bytes that arrive after the lease has ended"),
            "give default_kv_lease_ttl 1000 (milliseconds) or more, or leave it out for 10s",
        );
    }
    let strategies = ["random", "free_ratio_first", "cxl", "ssd_free_ratio_first", "local_first"];
    if name == "allocation_strategy" && !strategies.contains(&trimmed) {
        out.warning(
            place,
            format!("allocation_strategy '{text}' is unknown, and the master takes random"),
            format!("the strategies are {}", strategies.join(", ")),
            "write one of them",
        );
    }
}

/// `"false"` in JSON is a text, and a text is no boolean: the master aborts.
fn check_type(entry: &Entry, kind: FlagKind, json: bool, place: &Place, out: &mut Findings) {
    let quoted = matches!(&entry.value.value, Value::Scalar(text) if text.kind == ScalarKind::Text);
    if json && kind == FlagKind::Switch && quoted {
        out.error(
            place,
            format!("the master aborts: {} is a text and not a boolean", entry.key),
            format!("\"{}\" stands in quotes", entry.value.text().unwrap_or_default()),
            format!("write \"{}\": true or false without quotes", entry.key),
        );
    }
}

fn is_duration(text: &str) -> bool {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    digits > 0 && matches!(text[digits..].trim().to_ascii_lowercase().as_str(), "" | "ms" | "s" | "m" | "h")
}

/// Keys of settings files that nobody reads; nobody says so either.
pub fn config_keys(view: &View<'_>, out: &mut Findings) {
    for document in &view.scene.documents {
        let master = MASTER_FLAGS.iter().map(|flag| flag.name).filter(|name| !NOT_A_KEY.contains(name));
        let known: Vec<&str> = match document.kind {
            DocumentKind::Master => master.chain([CLIENT_TTL_KEY]).collect(),
            // MOONCAKE_CONFIG_PATH names the file of three readers: the store service, vLLM and LMCache.
            DocumentKind::Store | DocumentKind::Vllm => {
                let service = SERVICE_KEYS.iter().map(|(key, _)| *key);
                service.chain(VLLM_KEYS.iter().chain(LMCACHE_OWN_KEYS).copied()).collect()
            }
            DocumentKind::Extra => SGLANG_KEYS.iter().map(|(key, _)| *key).collect(),
            DocumentKind::Lmcache => LMCACHE_KEYS.to_vec(),
        };
        for entry in document.node.entries().iter().filter(|entry| !known.contains(&entry.key.as_str())) {
            let place = Place { file: document.file.clone(), line: entry.line };
            let of_lmcache = matches!(document.kind, DocumentKind::Store | DocumentKind::Vllm)
                && entry.key.starts_with(LMCACHE_PREFIX);
            if !of_lmcache {
                unknown_key(&entry.key, &known, document.kind, &place, out);
            }
        }
    }
    for seen in view.sglang() {
        inline_keys(seen, out);
    }
    for seen in &view.seen {
        let keys: Vec<&str> = SERVICE_KEYS.iter().map(|(key, _)| *key).collect();
        for flag in seen.flags.iter().filter(|flag| flag.name == "D" && seen.process.role == Role::Store) {
            let Some((key, said)) = flag.value.as_ref().and_then(|v| Some((v.text.split_once('=')?.0, v))) else {
                continue;
            };
            if !keys.contains(&key) {
                unknown_key(key, &keys, DocumentKind::Store, &said.place, out);
            }
        }
    }
}

/// Keys of an extra config that stands in the command line, for the backend that reads those of [`SGLANG_KEYS`].
fn inline_keys(seen: &Seen<'_>, out: &mut Findings) {
    let said = seen.flag(&["hicache_storage_backend_extra_config"]).and_then(|flag| flag.value.as_ref());
    let (Some(said), Some(node)) = (said.filter(|said| !said.text.starts_with('@')), &seen.extra) else { return };
    if seen.value(&["hicache_storage_backend"]).is_none_or(|backend| backend.text != "mooncake") {
        return;
    }
    let known: Vec<&str> = SGLANG_KEYS.iter().map(|(key, _)| *key).collect();
    for entry in node.entries().iter().filter(|entry| !known.contains(&entry.key.as_str())) {
        let line = if said.place.line == 0 { 0 } else { entry.line };
        unknown_key(&entry.key, &known, DocumentKind::Extra, &Place { file: said.place.file.clone(), line }, out);
    }
}

fn unknown_key(key: &str, known: &[&str], kind: DocumentKind, place: &Place, out: &mut Findings) {
    let reader = match kind {
        DocumentKind::Master => "mooncake_master",
        DocumentKind::Store => "mooncake_store_service",
        DocumentKind::Vllm => "vLLM",
        DocumentKind::Lmcache => "LMCache",
        DocumentKind::Extra => "SGLang",
    };
    let (near, why) = match (kind, key) {
        (DocumentKind::Master, "client_ttl") => {
            (Some(CLIENT_TTL_KEY), "the flag --client_ttl is another name than the key")
        }
        (DocumentKind::Master, "port") => {
            (Some("rpc_port"), "with a settings file the flag --port and its key do not count")
        }
        (DocumentKind::Master, "max_threads") => {
            (Some("rpc_thread_num"), "with a settings file max_threads does not count")
        }
        _ => (nearest(key, known.iter().copied()), "unknown keys are ignored without a word"),
    };
    let remedy = near.map_or_else(|| "remove it".to_owned(), |near| format!("write {near}"));
    let what = format!("{key} has no effect: {reader} has no such key");
    match near {
        Some(_) => out.warning(place, what, why, remedy),
        None => out.info(place, what, why, remedy),
    }
}

/// Variables of a process that are set although a file or an extra config is read instead of them.
pub fn hidden_variables(view: &View<'_>, out: &mut Findings) {
    use crate::engine::lint::settings::Origin;
    for seen in view.seen.iter().filter(|seen| matches!(seen.process.role, Role::Store | Role::Sglang(_))) {
        let (table, instead) = match (&seen.process.role, &seen.origin) {
            (_, Origin::Environment) => continue,
            (Role::Sglang(_), Origin::Inline(..)) => (SGLANG_KEYS, "the extra config names a master".to_owned()),
            (Role::Sglang(_), _) => (SGLANG_KEYS, "a settings file is read".to_owned()),
            (_, _) => {
                let by_variable = seen.flag(&["config"]).is_none();
                let why = if by_variable { "MOONCAKE_CONFIG_PATH names a file" } else { "--config names a file" };
                (SERVICE_KEYS, why.to_owned())
            }
        };
        if matches!(seen.origin, Origin::Unread(_))
            && seen.process.role.is_sglang()
            && seen.flag(&["hicache_storage_backend_extra_config"]).is_some()
        {
            // Whether that file names a master, and so counts, is not known.
            continue;
        }
        for (key, name) in table.iter().filter(|(_, name)| !name.is_empty()) {
            // These two count whatever is read.
            if seen.process.role.is_sglang() && (*key == "local_hostname" || *key == "protocol") {
                continue;
            }
            let Some(Variable::Text(said)) = seen.process.env.get(*name) else { continue };
            out.warning(
                &said.place,
                format!("{name} has no effect on {}: sources are not merged", seen.process.called()),
                format!("{instead}, and so no {name} is read"),
                format!("write {key} there, or set everything by variables"),
            );
        }
    }
}
