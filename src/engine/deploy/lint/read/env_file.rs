//! Files of `NAME=value` lines: for `docker --env-file`, Compose's `env_file`, systemd's
//! `EnvironmentFile`, or the shell's `source`.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::lint::model::{LocatedValue, Variable};
use crate::lint::shell::word::is_name;
use mcctl_base::check::SourceLocation;

/// The variables in `text`.
pub(crate) fn variables(text: &str, file: &Arc<str>) -> BTreeMap<String, Variable> {
    let mut out = BTreeMap::new();
    for (line, number) in text.lines().zip(1u32..) {
        let line = line.trim();
        let line = line.strip_prefix("export ").unwrap_or(line).trim_start();
        let Some((name, value)) = line.split_once('=').filter(|_| !line.starts_with(['#', ';'])) else { continue };
        if is_name(name.trim_end()) {
            let place = SourceLocation { file: file.clone(), line: number };
            out.insert(name.trim_end().to_owned(), Variable::Text(LocatedValue::new(unquoted(value), place)));
        }
    }
    out
}

/// The value without quotes and without a trailing comment.
pub(crate) fn unquoted(value: &str) -> &str {
    let value = value.trim();
    for quote in ['"', '\''] {
        if let Some(inner) = value.strip_prefix(quote)
            && let Some(end) = inner.find(quote)
        {
            return &inner[..end];
        }
    }
    match value.find(" #") {
        Some(at) => value[..at].trim_end(),
        None => value,
    }
}

/// Whether `text` contains at least one `NAME=value` line and, except for comments, nothing else.
pub(crate) fn is_env_file(text: &str) -> bool {
    let mut any = false;
    for line in text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with(['#', ';'])) {
        let line = line.strip_prefix("export ").unwrap_or(line).trim_start();
        let Some((name, value)) = line.split_once('=') else { return false };
        if !is_name(name.trim_end()) || !is_alone(value) {
            return false;
        }
        any = true;
    }
    any
}

/// Whether the value extends to the end of its line. `A=b command` is a command.
fn is_alone(value: &str) -> bool {
    let bare = unquoted(value);
    let quoted = value.trim().starts_with(['"', '\'']);
    (quoted || !bare.contains([' ', ';', '&', '|'])) && !value.trim_end().ends_with('\\')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_carry_name_value_and_line() {
        let text = "# c\nA=1\nexport B=\"x y\" # z\n\nC='#' \nD=1#2 # 3\n2x=1\n";
        let member: Vec<(String, String, u32)> = variables(text, &"f".into())
            .into_iter()
            .map(|(name, v)| match v {
                Variable::Text(s) | Variable::Elsewhere(s) => (name, s.text, s.place.line),
            })
            .collect();
        let want = [("A", "1", 2), ("B", "x y", 3), ("C", "#", 5), ("D", "1#2", 6)];
        assert_eq!(member, want.map(|(a, b, c)| (a.to_owned(), b.to_owned(), c)));
    }

    #[test]
    fn a_script_is_not_an_environment_file() {
        assert!(is_env_file("A=1\nexport B='a b'\n# c\n"));
        assert!(!is_env_file("A=1 mooncake_master\n") && !is_env_file("mooncake_master\n") && !is_env_file("# only\n"));
    }
}
