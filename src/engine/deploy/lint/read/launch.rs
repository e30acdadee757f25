//! Turns a command line into processes: strips wrappers, descends into `sh -c` and `docker run`,
//! and assigns each program its role.

use std::collections::BTreeMap;

use crate::lint::flags;
use crate::lint::model::{
    ContainerMount, DeclaredPort, Implementation, LocatedValue, MountSource, Process, ProcessRole, RuntimeKind,
    SglangMode, Variable,
};
use crate::lint::read::session::{self, SessionCommand, SessionLine};
use crate::lint::read::{PROCESSES_MAX, continuation, script};
use crate::lint::shell::effects::ScriptEffects;
use crate::lint::shell::word::{base_name, is_name};
use crate::lint::shell_lexer::expand;
use mcctl_base::check::SourceLocation;
use mcctl_base::upstream::python_client;

/// Limit on the length of a wrapper's command line.
const WRAPPER_WORDS_MAX: usize = 64;
/// Limit on how deeply commands may nest.
pub(crate) const DEPTH_MAX: usize = 4;

/// Programs that only execute the command that follows. Their own arguments begin with `-` or do
/// not look like a known program.
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
    "srun",
    "mpirun",
    "mpiexec",
    "nsys",
    "unbuffer",
    "catchsegv",
    "strace",
    "gdb",
    "perf",
    "flock",
    "systemd-run",
    "systemd-cat",
    "script",
    "uv",
    "poetry",
    "conda",
    "micromamba",
    "pipenv",
    "pixi",
    "xargs",
    "parallel",
    "watch",
    "runuser",
    "su",
    "coproc",
    "daemonize",
    "faketime",
    "cgexec",
    "firejail",
    "proxychains",
    "proxychains4",
    "ray",
    "torchrun",
    "accelerate",
    "apptainer",
    "singularity",
    "enroot",
    "chroot",
    "rlwrap",
];

/// Short wrapper options that take a value.
const WRAPPER_VALUES: &[&str] = &["-n", "-c", "-N", "-m", "-u", "-g", "-k", "-s", "-i", "-o", "-e", "-C", "-l", "-p"];

/// Adds the processes that `words` start to `out`, each as a copy of `base` with its role,
/// arguments and variables. An unknown program adds nothing.
pub(crate) fn start(base: &Process, words: &[LocatedValue], depth: usize, out: &mut ScriptEffects) {
    let mut words = words;
    let mut given = Vec::new();
    let mut is_spread = false;
    if depth > DEPTH_MAX || out.processes.len() > PROCESSES_MAX {
        return;
    }
    loop {
        let Some(first) = words.first() else { return };
        if let Some((name, value)) = assignment(&first.text) {
            let value = Variable::Text(LocatedValue::new(value, first.place.clone()));
            given.push((name.to_owned(), value));
            words = &words[1..];
            continue;
        }
        let name = base_name(&first.text);
        if !WRAPPERS.contains(&name) {
            break;
        }
        if name == "command" && words.get(1).is_some_and(|word| matches!(word.text.as_str(), "-v" | "-V")) {
            return;
        }
        // These start the program on nodes that the scheduler chooses.
        is_spread |= matches!(name, "srun" | "mpirun" | "mpiexec");
        words = past_wrapper(name, words);
    }
    let Some((first, rest)) = words.split_first() else { return };
    // Most commands in a script start no known program. Clone the variables only for those that do.
    let started = || {
        let mut process = base.clone();
        process.env.extend(given);
        process.place = first.place.clone();
        if is_spread {
            let start = process.span.as_ref().map_or(0, |span| span.start);
            process.network = format!("nodes of {} {start}", first.place);
        }
        process
    };
    let name = base_name(&first.text);
    match name {
        "sh" | "bash" | "dash" | "ash" | "zsh" => {
            let at =
                rest.iter().position(|w| w.text.starts_with('-') && !w.text.starts_with("--") && w.text.ends_with('c'));
            let Some(text) = at.and_then(|at| rest.get(at + 1)) else { return };
            if text.text.starts_with('$') && is_name(&text.text[1..]) {
                out.not_read(text.place.clone(), 1, format!("{name} -c runs text that is only known at run time"));
                return;
            }
            // Arguments after the script text are `$0`, `$1` and so on, for `exec "$@"` at its end.
            let behind = at.and_then(|at| rest.get(at + 3..)).unwrap_or_default();
            script::run(&started(), &text.text, &text.place, Some(behind), depth + 1, out);
        }
        "docker" | "podman" | "nerdctl" => match rest.iter().position(|w| matches!(w.text.as_str(), "run" | "exec")) {
            Some(at) if rest[at].text == "run" => container(&started(), &rest[at + 1..], depth, out),
            Some(at) => in_container(&started(), &rest[at + 1..], depth, out),
            None => {}
        },
        "kubectl" | "oc" if rest.first().is_some_and(|word| word.text == "exec") => {
            if let Some(at) = rest.iter().position(|word| word.text == "--") {
                let mut process = elsewhere(&started(), &first.place);
                process.runtime = RuntimeKind::Shell;
                start(&process, &rest[at + 1..], depth + 1, out);
            }
        }
        "ssh" => remote(&started(), rest, depth, out),
        name if session::PROGRAMS.contains(&name) => {
            in_sessions(&session::commands(name, &started(), rest), depth, out)
        }
        _ => {
            if let Some((role, implementation, args)) = role_of(name, rest).filter(|(.., args)| !is_question(args)) {
                if continuation::is_usage(args.iter().map(|word| word.text.as_str())) {
                    out.not_read(first.place.clone(), 1, continuation::USAGE_SYNTAX);
                    return;
                }
                let mut process = started();
                process.role = role;
                process.implementation = implementation;
                process.is_launched = rest.iter().any(|word| word.text == python_client::LAUNCHER);
                process.args = args.to_vec();
                out.processes.push(with_mode(process));
            }
        }
    }
}

/// A `NAME=value` assignment before a command.
pub(crate) fn assignment(text: &str) -> Option<(&str, &str)> {
    text.split_once('=').filter(|(name, _)| is_name(name))
}

/// Whether the program only prints its version or its help, and exits.
fn is_question(args: &[LocatedValue]) -> bool {
    const QUESTIONS: &[&str] =
        &["--version", "-version", "--help", "-help", "-h", "-V", "--helpfull", "--helpshort", "--help-all"];
    args.iter().any(|word| QUESTIONS.contains(&word.text.as_str()))
}

/// A copy of `base` in another network namespace, with an environment of its own.
fn elsewhere(base: &Process, place: &SourceLocation) -> Process {
    let network = format!("namespace of {place}");
    Process { env: BTreeMap::new(), env_whole: false, network, ..base.clone() }
}

/// Parses `docker exec`: options, the container, a command.
fn in_container(base: &Process, words: &[LocatedValue], depth: usize, out: &mut ScriptEffects) {
    let mut rest = words.iter();
    let mut process = elsewhere(base, &base.place);
    process.runtime = RuntimeKind::Docker;
    while let Some(word) = rest.next() {
        let takes = ["-e", "--env", "--env-file", "-w", "--workdir", "-u", "--user", "--detach-keys"];
        if takes.contains(&word.text.as_str()) {
            let value = rest.next();
            if let Some((name, text)) = value.and_then(|value| assignment(&value.text)) {
                let located = LocatedValue::new(text, word.place.clone());
                process.env.insert(name.to_owned(), Variable::Text(located));
            }
            continue;
        }
        if let Some(span) =
            process.span.as_mut().filter(|_| matches!(word.text.as_str(), "-d" | "--detach" | "-itd" | "-dit"))
        {
            span.foreground = false;
        }
        if !word.text.starts_with('-') {
            process.network = format!("container {}", word.text);
            break;
        }
    }
    start(&process, rest.as_slice(), depth + 1, out);
}

/// Starts the commands of tmux or screen.
fn in_sessions(commands: &[SessionCommand<'_>], depth: usize, out: &mut ScriptEffects) {
    for SessionCommand { process, line } in commands {
        let before = out.processes.len();
        match line {
            SessionLine::Words(words) => start(process, words, depth + 1, out),
            SessionLine::Text(text) => script::run(process, &text.text, &text.place, Some(&[]), depth + 1, out),
        }
        // The commands of one text may run one after the other.
        let started = out.processes.get_mut(before..).unwrap_or_default();
        if started.len() > 1 {
            started.iter_mut().filter_map(|process| process.span.as_mut()).for_each(|span| span.may_end = true);
        }
    }
}

/// Parses `ssh`: options, the host, a command or the text of one.
fn remote(base: &Process, words: &[LocatedValue], depth: usize, out: &mut ScriptEffects) {
    const TAKES: &[&str] = &["-i", "-p", "-o", "-l", "-F", "-J", "-L", "-R", "-D", "-b", "-c", "-E", "-m", "-W", "-w"];
    let mut at = 0;
    while let Some(word) = words.get(at).filter(|word| word.text.starts_with('-')) {
        at += if TAKES.contains(&word.text.as_str()) { 2 } else { 1 };
    }
    let Some((host, command)) = words.get(at..).and_then(<[LocatedValue]>::split_first) else { return };
    let mut process = elsewhere(base, &host.place);
    if host.is_known() {
        process.network = format!("host {}", host.text);
    }
    match command {
        [] => {}
        // The shell of the other host reads the text.
        [text] => script::run(&process, &text.text, &text.place, Some(&[]), depth + 1, out),
        words => start(&process, words, depth + 1, out),
    }
}

fn past_wrapper<'w>(name: &str, words: &'w [LocatedValue]) -> &'w [LocatedValue] {
    // Options of these programs take values that only their manuals list: continue at the first
    // word that starts a known program.
    let found = (1..words.len().min(WRAPPER_WORDS_MAX)).find(|at| is_start(&words[*at..]));
    if let Some(at) = found {
        return &words[at..];
    }
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
    // `timeout 60`, `taskset 0-3`, `gosu user`: these wrappers take one positional argument of
    // their own.
    let own = match name {
        "timeout" | "chrt" => rest.first().is_some_and(|w| w.text.starts_with(|c: char| c.is_ascii_digit())),
        "taskset" => rest.first().is_some_and(|w| w.text.chars().all(|c| c.is_ascii_hexdigit() || "x-,".contains(c))),
        "gosu" => true,
        _ => false,
    };
    if own && !rest.is_empty() { &rest[1..] } else { rest }
}

/// Whether the words begin a command line that starts a supported program, a shell or a container.
fn is_start(words: &[LocatedValue]) -> bool {
    let Some((first, rest)) = words.split_first() else { return false };
    let name = base_name(&first.text);
    let is_shell = matches!(name, "sh" | "bash" | "dash" | "ash" | "zsh") && !rest.is_empty();
    let is_container = matches!(name, "docker" | "podman" | "nerdctl") && rest.iter().any(|word| word.text == "run");
    is_shell
        || is_container
        || session::PROGRAMS.contains(&name) && !rest.is_empty()
        || WRAPPERS.contains(&name)
        || assignment(&first.text).is_some()
        || role_of(name, rest).is_some()
}

/// The role of a program, and the arguments that belong to it.
fn role_of<'w>(name: &str, rest: &'w [LocatedValue]) -> Option<(ProcessRole, Implementation, &'w [LocatedValue])> {
    let upstream = |role| Some((role, Implementation::Upstream, rest));
    match name {
        "mooncake_master" => return upstream(ProcessRole::Master),
        "mooncake_http_metadata_server" => return upstream(ProcessRole::Metadata),
        "mc_store_rest_server" | "mooncake_store_service" => return upstream(ProcessRole::Store),
        "mooncake_client" => return upstream(ProcessRole::RealClient),
        "sglang-router" | "sglang_router" => return upstream(ProcessRole::Router),
        _ => {}
    }
    let word = |at: usize| rest.get(at).map_or("", |w| w.text.as_str());
    if name == "smg" && word(0) == "launch" {
        return upstream(ProcessRole::Router);
    }
    if name == "sglang" && word(0) == "serve" {
        return Some((ProcessRole::Sglang(SglangMode::Whole), Implementation::Upstream, &rest[1..]));
    }
    if name == "vllm" && word(0) == "serve" {
        return Some((ProcessRole::Vllm, Implementation::Upstream, &rest[1..]));
    }
    if name == "mcctl" {
        return mcctl(rest);
    }
    if name.starts_with("python") {
        let at = rest.iter().position(|w| w.text == "-m" || !w.text.starts_with('-'))?;
        let (module, args) = match rest[at].text.as_str() {
            "-m" => (rest.get(at + 1)?.text.as_str(), &rest[at + 2..]),
            script => (base_name(script).strip_suffix(".py")?, &rest[at + 1..]),
        };
        if module == python_client::LAUNCHER {
            return launched(args);
        }
        let role = match module {
            "mooncake.mooncake_store_service" | "mooncake_store_service" => ProcessRole::Store,
            "mooncake.http_metadata_server" | "http_metadata_server" => ProcessRole::Metadata,
            "mooncake.cli" => ProcessRole::Master,
            "mooncake.cli_client" => ProcessRole::RealClient,
            "sglang.launch_server" | "launch_server" => ProcessRole::Sglang(SglangMode::Whole),
            "vllm.entrypoints.openai.api_server" => ProcessRole::Vllm,
            module if module.starts_with("sglang_router") => ProcessRole::Router,
            module if module.starts_with("sglang.srt.disaggregation.") => ProcessRole::Router,
            _ => return None,
        };
        return Some((role, Implementation::Upstream, args));
    }
    None
}

/// The role of the command that mcctl's launcher for Python programs starts.
fn launched(args: &[LocatedValue]) -> Option<(ProcessRole, Implementation, &[LocatedValue])> {
    let at = args.iter().position(|w| w.text == "--" || !w.text.starts_with('-'))?;
    let command = if args[at].text == "--" { &args[at + 1..] } else { &args[at..] };
    let first = command.first()?.text.as_str();
    match first.starts_with('-') || first.ends_with(".py") {
        true => role_of("python", command),
        false => role_of(base_name(first), &command[1..]),
    }
}

/// The role of an mcctl invocation, from the arguments after the program name.
fn mcctl(rest: &[LocatedValue]) -> Option<(ProcessRole, Implementation, &[LocatedValue])> {
    let at = rest.iter().position(|w| w.text == "serve" || w.text == "up")?;
    let role = match (rest[at].text.as_str(), rest.get(at + 1).map(|w| w.text.as_str())) {
        ("up", _) => return Some((ProcessRole::Up, Implementation::Mcctl, &rest[at + 1..])),
        (_, Some("master")) => ProcessRole::Master,
        (_, Some("store")) => ProcessRole::Store,
        (_, Some("metadata")) => ProcessRole::Metadata,
        _ => return None,
    };
    Some((role, Implementation::Mcctl, &rest[at + 2..]))
}

/// Sets the serving mode of an SGLang server from its flags.
pub(crate) fn with_mode(mut process: Process) -> Process {
    if process.role.is_sglang() {
        let given = flags::parse(&process);
        let mode = flags::last(&given, &["disaggregation_mode"]).and_then(|f| f.value.clone());
        process.role = ProcessRole::Sglang(match mode.as_ref().map(|m| m.text.as_str()) {
            Some("prefill") => SglangMode::Prefill,
            Some("decode") => SglangMode::Decode,
            _ => SglangMode::Whole,
        });
    }
    process
}

/// The role of a container without a command line, whose image runs a program with the arguments
/// `words`.
pub(crate) fn guess_role(
    image: Option<&str>,
    words: &[LocatedValue],
) -> Option<(ProcessRole, Implementation, Vec<LocatedValue>)> {
    let base = image.map(|image| base_name(image).split([':', '@']).next().unwrap_or_default());
    if base.is_some_and(|base| base.contains("mcctl"))
        && let Some((role, implementation, args)) = mcctl(words)
    {
        return Some((role, implementation, args.to_vec()));
    }
    // The image's program is `vllm serve`, which also takes the model as its first argument.
    if base.is_some_and(|base| base == "vllm-openai") && words.first().is_some_and(|word| !is_program(&word.text)) {
        return Some((ProcessRole::Vllm, Implementation::Upstream, words.to_vec()));
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
        return Some((ProcessRole::Master, Implementation::Upstream, words.to_vec()));
    }
    given(&["model_path", "enable_hierarchical_cache", "hicache_size"])
        .then(|| (ProcessRole::Sglang(SglangMode::Whole), Implementation::Upstream, words.to_vec()))
}

/// Whether the first argument of a container is a program rather than a model: a model has a slash
/// or begins with a hyphen.
fn is_program(text: &str) -> bool {
    !text.starts_with('-') && (text.starts_with(['/', '.']) && !text.contains("model") || !text.contains('/'))
}

/// Parses `docker run`: options, image, arguments.
fn container(base: &Process, words: &[LocatedValue], depth: usize, out: &mut ScriptEffects) {
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
    let mut process = Process { env: BTreeMap::new(), runtime: RuntimeKind::Docker, env_whole: true, ..base.clone() };
    // A loop starts a container in each run.
    let number = process.span.as_ref().map_or(0, |span| span.start);
    process.network = format!("container {} {number}", base.place);
    let is_detached = |text: &str| {
        text == "--detach"
            || text.starts_with('-') && !text.starts_with("--") && text.contains('d') && SWITCHES.contains(&text)
    };
    if let Some(span) = process.span.as_mut().filter(|_| words.iter().any(|word| is_detached(&word.text))) {
        span.foreground = false;
    }
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
            Some((name, value)) if name.starts_with("--") => (name, LocatedValue::new(value, word.place.clone())),
            _ if word.text.len() > 2 && !word.text.starts_with("--") => {
                let Some((name, value)) = word.text.split_at_checked(2) else { continue };
                (name, LocatedValue::new(value, word.place.clone()))
            }
            _ => match rest.next() {
                Some(value) => (word.text.as_str(), value.clone()),
                None => return,
            },
        };
        option(&mut process, base, name, value, &mut entrypoint);
    };
    process.image = Some(image.clone());
    if process.name == base.name && base.runtime == RuntimeKind::Shell {
        process.name = format!("container of {}", image.text);
    }
    let mut behind: &[LocatedValue] = rest.as_slice();
    while let Some(word) = behind.first().filter(|word| is_run_option(&word.text)) {
        process.misplaced.push(word.clone());
        let has_value = !word.text.contains('=') && !SWITCHES.contains(&word.text.as_str());
        if has_value && let Some(value) = behind.get(1) {
            process.misplaced.push(value.clone());
        }
        behind = behind.get(if has_value { 2 } else { 1 }..).unwrap_or_default();
    }
    if !process.misplaced.is_empty() && may_be_options(&image.text) {
        out.not_read(image.place.clone(), 1, "the options of docker run are only known at run time");
        return;
    }
    let mut line: Vec<LocatedValue> = entrypoint.into_iter().collect();
    line.extend(behind.iter().cloned());
    let before = out.processes.len();
    start(&process, &line, depth + 1, out);
    if out.processes.len() == before
        && let Some((role, implementation, args)) = guess_role(Some(&image.text), &line)
    {
        process.role = role;
        process.implementation = implementation;
        process.args = args;
        out.processes.push(with_mode(process));
    } else if out.processes.len() == before && process.misplaced.iter().any(|word| sets_known_variable(&word.text)) {
        out.processes.push(process);
    }
}

/// Whether a word in the position of the image is a variable with options:
/// `$DOCKER_OPTS -e A=b IMAGE`.
fn may_be_options(text: &str) -> bool {
    let upper = text.to_ascii_uppercase();
    text.contains('$') && !upper.contains("IMAGE") && !upper.contains("IMG")
}

/// Whether this is an option of `docker run` that no supported program has.
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

/// Whether the variable belongs to one of the supported programs.
pub(crate) fn has_known_prefix(name: &str) -> bool {
    ["MC_", "MOONCAKE_", "SGLANG_", "MCCTL_"].iter().any(|prefix| name.starts_with(prefix))
}

fn sets_known_variable(text: &str) -> bool {
    let text = text.strip_prefix("--env=").unwrap_or(text);
    assignment(text).is_some_and(|(name, _)| has_known_prefix(name))
}

fn option(
    process: &mut Process,
    base: &Process,
    name: &str,
    value: LocatedValue,
    entrypoint: &mut Option<LocatedValue>,
) {
    let limits = &mut process.limits;
    match name {
        "-e" | "--env" => match assignment(&value.text) {
            Some((key, text)) => {
                process.env.insert(key.to_owned(), Variable::Text(LocatedValue::new(text, value.place.clone())));
            }
            None => {
                let from_outside = base.env.get(&value.text).cloned();
                let elsewhere = Variable::Elsewhere(LocatedValue::new(format!("${}", value.text), value.place.clone()));
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
                limits.memlock = Some(LocatedValue::new(text, value.place.clone()));
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
                limits.mounts.push(ContainerMount { path: to, source, place: value.place });
            }
        }
        "--tmpfs" => {
            let path = value.text.split(':').next().unwrap_or_default().to_owned();
            limits.mounts.push(ContainerMount { path, source: MountSource::Memory(None), place: value.place });
        }
        "--mount" => limits.mounts.extend(long_mount(value)),
        "-p" | "--publish" => {
            let inner = value.text.rsplit(':').next().and_then(|p| p.split('/').next()?.parse().ok());
            process.ports.extend(inner.map(|number: u16| DeclaredPort { number, name: None, place: value.place }));
        }
        _ => {}
    }
}

/// Parses `docker run --mount type=volume,source=NAME,target=PATH`.
fn long_mount(value: LocatedValue) -> Option<ContainerMount> {
    let part = |names: &[&str]| {
        let mut parts = value.text.split(',').filter_map(|part| part.split_once('='));
        parts.find(|(name, _)| names.contains(name)).map(|(_, text)| text.to_owned())
    };
    let path = part(&["target", "destination", "dst"])?;
    let from = part(&["source", "src"]).unwrap_or_default();
    let source = match part(&["type"]).as_deref() {
        Some("tmpfs") => MountSource::Memory(None),
        Some("bind") => MountSource::Host(from),
        _ => MountSource::Volume(from),
    };
    Some(ContainerMount { path, source, place: value.place })
}

/// `words` with the known variables from `env` substituted as a shell does (or Kubernetes, for
/// `$(NAME)`).
pub(crate) fn expanded(words: &[LocatedValue], env: &BTreeMap<String, Variable>) -> Vec<LocatedValue> {
    let value = |name: &str| match env.get(name)? {
        Variable::Text(located) if located.is_known() => Some(located.text.clone()),
        _ => None,
    };
    words.iter().map(|word| LocatedValue::new(expand(&word.text, &value), word.place.clone())).collect()
}
