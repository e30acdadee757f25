//! Quoting for shells, environment files and systemd units.

/// Quotes `text` as one shell word.
pub fn shell(text: &str) -> String {
    if is_plain(text) { text.to_owned() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

/// Quotes `text` as a value in an environment file that shells and systemd read.
pub(super) fn env_value(text: &str) -> String {
    // systemd does not read `'\''` as a shell does. Both read these escapes in double quotes.
    if is_plain(text) || !text.contains('\'') {
        return shell(text);
    }
    let mut quoted = String::from("\"");
    for c in text.chars() {
        if matches!(c, '\\' | '"' | '$' | '`') {
            quoted.push('\\');
        }
        quoted.push(c);
    }
    quoted + "\""
}

fn is_plain(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+,=".contains(c);
    !text.is_empty() && text.chars().all(plain)
}

/// A shell command line.
pub(crate) fn shell_line(argv: &[String]) -> String {
    argv.iter().map(|word| shell(word)).collect::<Vec<_>>().join(" ")
}

/// A shell command line with one flag per line.
pub(crate) fn shell_lines(argv: &[String]) -> String {
    let mut text = String::new();
    for (at, word) in argv.iter().enumerate() {
        if at > 0 {
            text.push_str(if word.starts_with("--") { " \\\n  " } else { " " });
        }
        text.push_str(&shell(word));
    }
    text
}

/// Quotes `text` as one word of a command line in a unit. `%` and `$` are doubled, because they
/// begin specifiers and variables.
pub(crate) fn unit(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@+,=".contains(c);
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%").replace('$', "$$");
    if !text.is_empty() && text.chars().all(plain) { escaped } else { format!("\"{escaped}\"") }
}

/// Quotes `text` as a path in a setting that is not a command line, such as `RequiresMountsFor=`.
/// `$` has no meaning there.
pub(crate) fn unit_path(text: &str) -> String {
    unit(text).replace("$$", "$")
}

/// A command line in a unit. `env` resolves a program without a path.
pub(crate) fn unit_line(argv: &[String]) -> String {
    let env = match argv.first() {
        Some(program) if !program.starts_with('/') => "/usr/bin/env ",
        _ => "",
    };
    format!("{env}{}", argv.iter().map(|word| unit(word)).collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn special_characters_are_quoted_for_each_reader() {
        assert_eq!(shell("etcd://a:1;b:2"), "'etcd://a:1;b:2'");
        assert_eq!(shell(r#"{"a":1}"#), r#"'{"a":1}'"#);
        assert_eq!(env_value(r#"it's "$5\"#), r#""it's \"\$5\\""#);
        assert_eq!(unit(r#"{"a":1}"#), r#""{\"a\":1}""#);
        assert_eq!(unit("50%$x"), "\"50%%$$x\"");
        assert_eq!([unit_path("/50%/$x$$"), unit_path("/a b")], ["\"/50%%/$x$$\"", "\"/a b\""]);
        assert_eq!(unit_line(&["a".to_owned(), "b c".to_owned()]), "/usr/bin/env a \"b c\"");
    }

    proptest! {
        #[test]
        fn a_shell_parses_the_original_words(words in proptest::collection::vec("[ -~]{0,12}", 1..5)) {
            prop_assert_eq!(shlex::split(&shell_line(&words)).unwrap(), words.clone());
            let values: Vec<String> = words.iter().map(|word| env_value(word)).collect();
            prop_assert_eq!(shlex::split(&values.join(" ")).unwrap(), words);
        }
    }
}
