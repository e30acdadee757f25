//! Commands that tmux and screen start in a session of their own.

use crate::lint::model::{LocatedValue, Process, Variable};
use crate::lint::shell::word::is_name;

/// The programs that start sessions.
pub(crate) const PROGRAMS: &[&str] = &["tmux", "screen"];

/// Options of `tmux new-session`, `new-window`, `split-window` and `respawn-pane` that take a
/// value. All others take none.
const TMUX_VALUES: &[char] = &['c', 'e', 'F', 'f', 'l', 'n', 'p', 's', 't', 'x', 'y'];
/// Options of tmux itself that take a value.
const TMUX_GLOBAL_VALUES: &[char] = &['c', 'f', 'L', 'S', 'T'];
/// Options of screen that take a value.
const SCREEN_VALUES: &[char] = &['S', 'c', 'e', 'h', 'p', 's', 't', 'T'];

/// Whether the text of a script ends sessions, and with them their processes.
pub(crate) fn may_be_ended(text: &str) -> bool {
    ["kill-session", "kill-server", "kill-pane", "kill-window", "-X quit", " C-c"]
        .iter()
        .any(|part| text.contains(part))
}

/// A command that runs in a session.
#[derive(Clone, Debug)]
pub(crate) struct SessionCommand<'w> {
    /// The process that runs it.
    pub process: Process,
    pub line: SessionLine<'w>,
}

/// The command line in a session.
#[derive(Clone, Debug)]
pub(crate) enum SessionLine<'w> {
    /// Text that a shell reads.
    Text(LocatedValue),
    Words(&'w [LocatedValue]),
}

/// The commands of `tmux WORDS` or `screen WORDS`, which `base` runs.
pub(crate) fn commands<'w>(name: &str, base: &Process, words: &'w [LocatedValue]) -> Vec<SessionCommand<'w>> {
    if name == "screen" {
        return screen(base, words).into_iter().collect();
    }
    let words = past_options(words, TMUX_GLOBAL_VALUES, &mut |_, _| {});
    // Several commands of tmux are separated by `\;`.
    words.split(|word| word.text == ";").flat_map(|command| tmux(base, command)).collect()
}

fn tmux<'w>(base: &Process, words: &'w [LocatedValue]) -> Vec<SessionCommand<'w>> {
    let Some((command, rest)) = words.split_first() else { return Vec::new() };
    let mut process = base.clone();
    let (is_session, mut is_certain) = match command.text.as_str() {
        "new-session" | "new" => (true, true),
        "new-window" | "neww" | "split-window" | "splitw" => (false, true),
        // The process that the pane had may be the same program.
        "respawn-pane" | "respawnp" | "respawn-window" | "respawnw" => (false, false),
        "send-keys" | "send" => return keys(base, rest),
        _ => return Vec::new(),
    };
    let mut is_detached = !is_session;
    let command = past_options(rest, TMUX_VALUES, &mut |option, value| match (option, value) {
        ('d', _) => is_detached = true,
        // With -A, tmux attaches to the session if it exists.
        ('A', _) => is_certain = false,
        ('e', Some(value)) => set_variable(&mut process, value),
        _ => {}
    });
    run_in_background(&mut process, is_detached);
    if let Some(span) = process.span.as_mut().filter(|_| !is_certain) {
        span.uncertain = true;
    }
    match command {
        [] => Vec::new(),
        // A shell reads a single argument.
        [text] => vec![SessionCommand { process, line: SessionLine::Text(text.clone()) }],
        words => vec![SessionCommand { process, line: SessionLine::Words(words) }],
    }
}

/// Keys are typed into whatever runs in the pane: usually a shell, which then starts the command.
fn keys<'w>(base: &Process, words: &[LocatedValue]) -> Vec<SessionCommand<'w>> {
    let mut process = base.clone();
    run_in_background(&mut process, true);
    if let Some(span) = process.span.as_mut() {
        span.uncertain = true;
    }
    let lines = past_options(words, &['t', 'N'], &mut |_, _| {}).split(|word| is_enter(&word.text));
    let typed = lines.filter_map(|line| {
        let text: String = line.iter().map(|word| word.text.as_str()).collect();
        let line = SessionLine::Text(LocatedValue::new(text, line.first()?.place.clone()));
        Some(SessionCommand { process: process.clone(), line })
    });
    typed.collect()
}

fn is_enter(key: &str) -> bool {
    matches!(key, "Enter" | "C-m" | "KPEnter" | "C-j")
}

fn screen<'w>(base: &Process, words: &'w [LocatedValue]) -> Option<SessionCommand<'w>> {
    let mut is_detached = false;
    let mut is_new = false;
    let mut is_control = false;
    let command = past_options(words, SCREEN_VALUES, &mut |option, _| match option {
        'd' => is_detached = true,
        'm' => is_new = true,
        'X' | 'r' | 'R' | 'x' | 'l' | 'w' => is_control = true,
        _ => {}
    });
    // Without -m, -d detaches a session that exists.
    if is_control || is_detached && !is_new || command.is_empty() {
        return None;
    }
    let mut process = base.clone();
    run_in_background(&mut process, is_detached);
    Some(SessionCommand { process, line: SessionLine::Words(command) })
}

/// The script goes on while a detached session runs.
fn run_in_background(process: &mut Process, is_detached: bool) {
    if let Some(span) = process.span.as_mut().filter(|_| is_detached) {
        span.foreground = false;
    }
}

fn set_variable(process: &mut Process, value: &LocatedValue) {
    if let Some((name, text)) = value.text.split_once('=').filter(|(name, _)| is_name(name)) {
        let located = LocatedValue::new(text, value.place.clone());
        process.env.insert(name.to_owned(), Variable::Text(located));
    }
}

/// The words after the options. An option is a letter after `-`, alone or in a group such as
/// `-dmS`; the last of a group may take the next word, or the rest of its own.
fn past_options<'w>(
    words: &'w [LocatedValue],
    values: &[char],
    visit: &mut dyn FnMut(char, Option<&LocatedValue>),
) -> &'w [LocatedValue] {
    let mut rest = words;
    while let Some((word, after)) = rest.split_first().filter(|(word, _)| word.text.starts_with('-')) {
        rest = after;
        if word.text == "--" {
            break;
        }
        // The option of screen that is a word.
        if word.text == "-Logfile" {
            rest = rest.get(1..).unwrap_or_default();
            continue;
        }
        let mut letters = word.text.chars().skip(1).peekable();
        while let Some(letter) = letters.next() {
            let takes = values.contains(&letter);
            let is_attached = letters.peek().is_some();
            let value = if takes && !is_attached { rest.first() } else { None };
            visit(letter, value);
            if takes {
                rest = if is_attached { rest } else { rest.get(1..).unwrap_or_default() };
                break;
            }
        }
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lint::model::{ProcessRole, RuntimeKind};
    use crate::lint::shell::choice::ScriptSpan;
    use mcctl_base::check::SourceLocation;

    /// The command lines, whether each is known to run in the background, and whether it may not
    /// run.
    fn started(line: &str) -> Vec<(String, bool, bool)> {
        let place = SourceLocation { file: "x".into(), line: 1 };
        let mut base = Process::new("x", ProcessRole::Other, place.clone(), RuntimeKind::Shell);
        base.span = Some(ScriptSpan { foreground: true, ..ScriptSpan::default() });
        let words: Vec<LocatedValue> =
            line.split(' ').map(|word| LocatedValue::new(word.replace('_', " "), place.clone())).collect();
        let (name, rest) = words.split_first().expect("a program");
        let of = |command: SessionCommand<'_>| {
            let span = command.process.span.expect("a span");
            let text = match command.line {
                SessionLine::Text(text) => text.text,
                SessionLine::Words(words) => words.iter().map(|word| word.text.as_str()).collect::<Vec<_>>().join("+"),
            };
            (text, !span.foreground, span.uncertain)
        };
        commands(&name.text, &base, rest).into_iter().map(of).collect()
    }

    #[test]
    fn options_are_not_part_of_the_command() {
        for (line, wanted) in [
            ("tmux new-session -d -s a run_x", ("run x", true, false)),
            ("tmux -L sock new -ds a -c /srv -e A=b -x 200 run x", ("run+x", true, false)),
            ("tmux new -s a run_x", ("run x", false, false)),
            ("tmux splitw -h -t a -l 20 run_x", ("run x", true, false)),
            ("tmux new -A -d -s a run_x", ("run x", true, true)),
            ("tmux respawn-pane -k -t a run_x", ("run x", true, true)),
            ("tmux send-keys -t a run_x Enter", ("run x", true, true)),
            ("screen -dmS a run x", ("run+x", true, false)),
            ("screen -S a -d -m -L -Logfile f run x", ("run+x", true, false)),
            ("screen -S a run x", ("run+x", false, false)),
        ] {
            let (text, is_background, is_uncertain) = wanted;
            assert_eq!(started(line), [(text.to_owned(), is_background, is_uncertain)], "{line}");
        }
    }

    #[test]
    fn commands_that_control_sessions_start_nothing() {
        for line in
            ["tmux attach -t a", "tmux new -d -s a", "screen -ls", "screen -S a -X quit", "screen -d a", "screen"]
        {
            assert_eq!(started(line), [], "{line}");
        }
        let two = started("tmux new -d -s a run_x ; split-window run_y");
        assert_eq!(two.iter().map(|(text, ..)| text.as_str()).collect::<Vec<_>>(), ["run x", "run y"]);
    }
}
