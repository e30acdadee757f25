//! From a command line to processes: wrappers are taken off, `sh -c` and `docker run` are looked into, programs get their role.

use std::collections::BTreeMap;

use crate::engine::check::Place;
use crate::engine::lint::flags;
use crate::engine::lint::read::{PROCESSES_MAX, script};
use crate::engine::lint::scene::{
    DeclaredPort, Habitat, Make, Mode, Mount, MountSource, Process, Role, Said, Variable,
};
use crate::engine::lint::words::{expand, is_name};

/// How often a command may hold another.
pub const DEPTH_MAX: usize = 4;

/// Programs that only start the one behind them; their own words begin with `-`, or look like nothing that is started.
const WRAPPERS: &[&str] = &[
    "exec",
    "nohup",
    "sudo",
    "time",
    "nice",
    "ionice",
    "setsid",
    "stdbuf",
    "tini",
    "dumb-init",
    "catatonit",
    "numactl",
    "taskset",
    "timeout",
    "command",
    "builtin",
    "env",
    "chrt",
    "gosu",
    "prlimit",
    "unshare",
];

/// Short options of a wrapper that take a word.
const WRAPPER_VALUES: &[&str] = &["-n", "-c", "-N", "-m", "-u", "-g", "-k", "-s", "-i", "-o", "-e", "-C", "-l", "-p"];

/// Add what `words` start to `out`: a copy of `base` with role, words and variables each. What is not known starts nothing.
pub fn start(base: &Process, words: &[Said], depth: usize, out: &mut Vec<Process>) {
    let mut words = words;
    let mut given = Vec::new();
    if depth > DEPTH_MAX || out.len() > PROCESSES_MAX {
        return;
    }
    loop {
        let Some(first) = words.first() else { return };
        if let Some((name, value)) = assignment(&first.text) {
            let value = Variable::Text(Said::new(value, first.place.clone()));
            given.push((name.to_owned(), value));
            words = &words[1..];
            continue;
        }
        let name = program(&first.text);
        if !WRAPPERS.contains(&name) {
            break;
        }
        words = past_wrapper(name, words);
    }
    let Some((first, rest)) = words.split_first() else { return };
    // Most commands of a script start nothing of ours, and need no copy of all variables.
    let started = || {
        let mut process = base.clone();
        process.env.extend(given);
        process.place = first.place.clone();
        process
    };
    let name = program(&first.text);
    match name {
        "sh" | "bash" | "dash" | "ash" | "zsh" => {
            let at =
                rest.iter().position(|w| w.text.starts_with('-') && !w.text.starts_with("--") && w.text.ends_with('c'));
            let Some(text) = at.and_then(|at| rest.get(at + 1)) else { return };
            // What stands behind the text is `$0`, `$1` and so on, for `exec "$@"` at its end.
            let behind = at.and_then(|at| rest.get(at + 3..)).unwrap_or_default();
            script::run(&started(), &text.text, &text.place, behind, depth + 1, out);
        }
        "docker" | "podman" | "nerdctl" => {
            if let Some(at) = rest.iter().position(|w| w.text == "run") {
                container(&started(), &rest[at + 1..], depth, out);
            }
        }
        _ => {
            if let Some((role, make, args)) = role_of(name, rest) {
                let mut process = started();
                process.role = role;
                process.make = make;
                process.args = args.to_vec();
                out.push(with_mode(process));
            }
        }
    }
}

/// What `words` begin with, as the name of a program.
pub fn program(text: &str) -> &str {
    text.rsplit('/').next().unwrap_or(text)
}

/// `NAME=value` before a command.
pub fn assignment(text: &str) -> Option<(&str, &str)> {
    text.split_once('=').filter(|(name, _)| is_name(name))
}

fn past_wrapper<'w>(name: &str, words: &'w [Said]) -> &'w [Said] {
    let mut rest = &words[1..];
    while let Some(word) = rest.first() {
        let text = word.text.as_str();
        let takes = WRAPPER_VALUES.contains(&text) && rest.len() > 1;
        if text == "--" {
            return &rest[1..];
        }
        if !text.starts_with('-') {
            break;
        }
        rest = &rest[if takes { 2 } else { 1 }..];
    }
    // `timeout 60`, `taskset 0-3`, `gosu user`: one word of their own.
    let own = match name {
        "timeout" | "chrt" => rest.first().is_some_and(|w| w.text.starts_with(|c: char| c.is_ascii_digit())),
        "taskset" => rest.first().is_some_and(|w| w.text.chars().all(|c| c.is_ascii_hexdigit() || "x-,".contains(c))),
        "gosu" => true,
        _ => false,
    };
    if own && !rest.is_empty() { &rest[1..] } else { rest }
}

/// The role of a program, and the words that are its own.
fn role_of<'w>(name: &str, rest: &'w [Said]) -> Option<(Role, Make, &'w [Said])> {
    let upstream = |role| Some((role, Make::Upstream, rest));
    match name {
        "mooncake_master" => return upstream(Role::Master),
        "mooncake_http_metadata_server" => return upstream(Role::Metadata),
        "mc_store_rest_server" | "mooncake_store_service" => return upstream(Role::Store),
        "mooncake_client" => return upstream(Role::RealClient),
        "sglang-router" | "sglang_router" => return upstream(Role::Router),
        _ => {}
    }
    let word = |at: usize| rest.get(at).map_or("", |w| w.text.as_str());
    if name == "smg" && word(0) == "launch" {
        return upstream(Role::Router);
    }
    if name == "sglang" && word(0) == "serve" {
        return Some((Role::Sglang(Mode::Whole), Make::Upstream, &rest[1..]));
    }
    if name == "vllm" && word(0) == "serve" {
        return Some((Role::Vllm, Make::Upstream, &rest[1..]));
    }
    if name == "mcctl" {
        return mcctl(rest);
    }
    if name.starts_with("python") {
        let at = rest.iter().position(|w| w.text == "-m" || !w.text.starts_with('-'))?;
        let (module, args) = match rest[at].text.as_str() {
            "-m" => (rest.get(at + 1)?.text.as_str(), &rest[at + 2..]),
            script => (program(script).strip_suffix(".py")?, &rest[at + 1..]),
        };
        let role = match module {
            "mooncake.mooncake_store_service" | "mooncake_store_service" => Role::Store,
            "mooncake.http_metadata_server" | "http_metadata_server" => Role::Metadata,
            "mooncake.cli" => Role::Master,
            "mooncake.cli_client" => Role::RealClient,
            "sglang.launch_server" | "launch_server" => Role::Sglang(Mode::Whole),
            "vllm.entrypoints.openai.api_server" => Role::Vllm,
            module if module.starts_with("sglang_router") => Role::Router,
            module if module.starts_with("sglang.srt.disaggregation.") => Role::Router,
            _ => return None,
        };
        return Some((role, Make::Upstream, args));
    }
    None
}

/// The words of mcctl after its name.
fn mcctl(rest: &[Said]) -> Option<(Role, Make, &[Said])> {
    let at = rest.iter().position(|w| w.text == "serve" || w.text == "up")?;
    let role = match (rest[at].text.as_str(), rest.get(at + 1).map(|w| w.text.as_str())) {
        ("up", _) => return Some((Role::Up, Make::Mcctl, &rest[at + 1..])),
        (_, Some("master")) => Role::Master,
        (_, Some("store")) => Role::Store,
        (_, Some("metadata")) => Role::Metadata,
        _ => return None,
    };
    Some((role, Make::Mcctl, &rest[at + 2..]))
}

/// A SGLang server's mode is one of its flags.
pub fn with_mode(mut process: Process) -> Process {
    if process.role.is_sglang() {
        let given = flags::of(&process);
        let mode = flags::last(&given, &["disaggregation_mode"]).and_then(|f| f.value.clone());
        process.role = Role::Sglang(match mode.as_ref().map(|m| m.text.as_str()) {
            Some("prefill") => Mode::Prefill,
            Some("decode") => Mode::Decode,
            _ => Mode::Whole,
        });
    }
    process
}

/// The words of a container without a command line: its image's program gets them.
pub fn guess(image: Option<&str>, words: &[Said]) -> Option<(Role, Make, Vec<Said>)> {
    let base = image.map(|image| program(image).split([':', '@']).next().unwrap_or_default());
    if base.is_some_and(|base| base.contains("mcctl"))
        && let Some((role, make, args)) = mcctl(words)
    {
        return Some((role, make, args.to_vec()));
    }
    if words.first().is_none_or(|word| !word.text.starts_with('-')) {
        return None;
    }
    let given = |names: &[&str]| {
        let spelled = |text: &str| text.trim_start_matches('-').split('=').next().unwrap_or_default().replace('-', "_");
        words.iter().any(|w| w.text.starts_with('-') && names.contains(&spelled(&w.text).as_str()))
    };
    if base.is_some_and(|base| base.contains("mooncake") && base.contains("master"))
        || given(&["rpc_port", "enable_http_metadata_server", "eviction_high_watermark_ratio", "default_kv_lease_ttl"])
    {
        return Some((Role::Master, Make::Upstream, words.to_vec()));
    }
    given(&["model_path", "enable_hierarchical_cache", "hicache_size"])
        .then(|| (Role::Sglang(Mode::Whole), Make::Upstream, words.to_vec()))
}

/// `docker run`: options, an image, words.
fn container(base: &Process, words: &[Said], depth: usize, out: &mut Vec<Process>) {
    const SWITCHES: &[&str] = &[
        "-d",
        "--detach",
        "-i",
        "-t",
        "-it",
        "-ti",
        "-dit",
        "-itd",
        "--rm",
        "--init",
        "--privileged",
        "--read-only",
        "-P",
        "--interactive",
        "--tty",
        "--no-healthcheck",
        "--publish-all",
        "-id",
        "-td",
    ];
    let mut process = Process { env: BTreeMap::new(), habitat: Habitat::Docker, env_whole: true, ..base.clone() };
    process.network = format!("container {}", base.place);
    let mut entrypoint = None;
    let mut rest = words.iter();
    let image = loop {
        let Some(word) = rest.next() else { return };
        if !word.text.starts_with('-') {
            break word;
        }
        if SWITCHES.contains(&word.text.as_str()) {
            if word.text == "--privileged" {
                process.limits.privileged = Some(word.place.clone());
            }
            continue;
        }
        let (name, value) = match word.text.split_once('=') {
            Some((name, value)) if name.starts_with("--") => (name, Said::new(value, word.place.clone())),
            _ if word.text.len() > 2 && !word.text.starts_with("--") => {
                let Some((name, value)) = word.text.split_at_checked(2) else { continue };
                (name, Said::new(value, word.place.clone()))
            }
            _ => match rest.next() {
                Some(value) => (word.text.as_str(), value.clone()),
                None => return,
            },
        };
        option(&mut process, base, name, value, &mut entrypoint);
    };
    process.image = Some(image.clone());
    if process.name == base.name && base.habitat == Habitat::Shell {
        process.name = format!("container of {}", image.text);
    }
    let mut behind: &[Said] = rest.as_slice();
    while let Some(word) = behind.first().filter(|word| is_run_option(&word.text)) {
        process.misplaced.push(word.clone());
        let has_value = !word.text.contains('=') && !SWITCHES.contains(&word.text.as_str());
        if has_value && let Some(value) = behind.get(1) {
            process.misplaced.push(value.clone());
        }
        behind = behind.get(if has_value { 2 } else { 1 }..).unwrap_or_default();
    }
    let mut line: Vec<Said> = entrypoint.into_iter().collect();
    line.extend(behind.iter().cloned());
    let before = out.len();
    start(&process, &line, depth + 1, out);
    if out.len() == before
        && let Some((role, make, args)) = guess(Some(&image.text), &line)
    {
        process.role = role;
        process.make = make;
        process.args = args;
        out.push(with_mode(process));
    } else if out.len() == before && process.misplaced.iter().any(|word| sets_one_of_ours(&word.text)) {
        out.push(process);
    }
}

/// Is it an option of `docker run` that no program of ours has?
fn is_run_option(text: &str) -> bool {
    const OPTIONS: &[&str] = &[
        "-e",
        "--env",
        "--env-file",
        "-v",
        "--volume",
        "--net",
        "--network",
        "--ipc",
        "--shm-size",
        "--ulimit",
        "--gpus",
        "--cap-add",
        "--privileged",
        "--rm",
        "-it",
        "--entrypoint",
    ];
    OPTIONS.contains(&text.split('=').next().unwrap_or(text))
}

fn sets_one_of_ours(text: &str) -> bool {
    let text = text.strip_prefix("--env=").unwrap_or(text);
    assignment(text).is_some_and(|(name, _)| super::is_ours(name))
}

fn option(process: &mut Process, base: &Process, name: &str, value: Said, entrypoint: &mut Option<Said>) {
    let limits = &mut process.limits;
    match name {
        "-e" | "--env" => match assignment(&value.text) {
            Some((key, text)) => {
                process.env.insert(key.to_owned(), Variable::Text(Said::new(text, value.place.clone())));
            }
            None => {
                let from_outside = base.env.get(&value.text).cloned();
                let elsewhere = Variable::Elsewhere(Said::new(format!("${}", value.text), value.place.clone()));
                process.env.insert(value.text.clone(), from_outside.unwrap_or(elsewhere));
            }
        },
        "--env-file" => {
            process.env_files.push(value);
            process.env_whole = false;
        }
        "--net" | "--network" => {
            limits.host_network = value.text == "host";
            if limits.host_network {
                process.network = base.network.clone();
            } else if let Some(other) = value.text.strip_prefix("container:") {
                process.network = format!("container {other}");
            }
        }
        "--ipc" => limits.host_ipc = value.text == "host",
        "--shm-size" => limits.shm_size = Some(value),
        "--ulimit" => {
            if let Some(text) = value.text.strip_prefix("memlock=") {
                limits.memlock = Some(Said::new(text, value.place.clone()));
            }
        }
        "--device" => limits.devices.push(value),
        "--cap-add" => limits.capabilities.push(value),
        "--privileged" if value.text == "true" => limits.privileged = Some(value.place),
        "-u" | "--user" => limits.user = Some(value),
        "-m" | "--memory" => limits.resources.entry("memory".into()).or_default().limit = Some(value),
        "--cpus" => limits.resources.entry("cpu".into()).or_default().limit = Some(value),
        "--name" => process.name = format!("container {}", value.text),
        "--entrypoint" => *entrypoint = Some(value),
        "--stop-timeout" => limits.grace = Some(value),
        "-v" | "--volume" => {
            if let Some((from, to)) = value.text.split_once(':') {
                let to = to.split(':').next().unwrap_or(to).to_owned();
                let source = match from.starts_with(['/', '.', '~', '$']) {
                    true => MountSource::Host(from.to_owned()),
                    false => MountSource::Volume(from.to_owned()),
                };
                limits.mounts.push(Mount { path: to, source, place: value.place });
            }
        }
        "-p" | "--publish" => {
            let inner = value.text.rsplit(':').next().and_then(|p| p.split('/').next()?.parse().ok());
            process.ports.extend(inner.map(|number: u16| DeclaredPort { number, name: None, place: value.place }));
        }
        _ => {}
    }
}

/// `words` with what is known of `env` put in, as a shell (or, for `$(NAME)`, Kubernetes) does.
pub fn expanded(words: &[Said], env: &BTreeMap<String, Variable>) -> Vec<Said> {
    let value = |name: &str| match env.get(name)? {
        Variable::Text(said) if said.is_known() => Some(said.text.clone()),
        _ => None,
    };
    words.iter().map(|word| Said::new(expand(&word.text, &value), word.place.clone())).collect()
}

/// The place `lines` below `place`.
pub fn below(place: &Place, line: u32) -> Place {
    Place { file: place.file.clone(), line }
}
