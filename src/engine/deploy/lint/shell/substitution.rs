//! `${..}` with its operators, and `$(..)`.

use crate::lint::model::LocatedValue;
use crate::lint::shell::choice::matches_glob;
use crate::lint::shell::evaluator::{Evaluator, NESTING_MAX};
use crate::lint::shell::expansion::{BranchWorld, ExpandedValue};
use crate::lint::shell::field::{ShellField, joined};
use crate::lint::shell::parser;
use crate::lint::shell::syntax::{HereDocument, ShellCommand, ShellNode};
use crate::lint::shell::variables::ShellValue;
use crate::lint::shell::word::{ParameterUse, is_name, pieces};
use crate::lint::shell::written::{first_word, here_document, output_file};
use mcctl_base::check::SourceLocation;

/// Limit on the numbers that `seq` prints.
const SEQUENCE_MAX: i64 = 256;

impl Evaluator<'_> {
    /// The value of `$name` or `${name..}`.
    pub(super) fn parameter(
        &mut self,
        used: &ParameterUse,
        world: &mut BranchWorld,
        place: &SourceLocation,
    ) -> ExpandedValue {
        let mut value = None;
        if self.nesting <= NESTING_MAX {
            self.nesting += 1;
            value = self.plain_value(used, world, place).and_then(|value| self.operated(used, value, world, place));
            self.nesting -= 1;
        }
        value.unwrap_or_else(|| ExpandedValue::Unknown(shown(used)))
    }

    /// The value before its operator. `None` if it is not known.
    fn plain_value(
        &mut self,
        used: &ParameterUse,
        world: &mut BranchWorld,
        place: &SourceLocation,
    ) -> Option<ExpandedValue> {
        let name = used.name.as_str();
        let number = |number: usize| ExpandedValue::text(number.to_string(), place);
        let is_argument = name.starts_with(|c: char| c.is_ascii_digit());
        let value = match (name, used.index.as_deref()) {
            _ if used.indirect => return None,
            ("@" | "*", _) => match &self.positional {
                Some(all) => ExpandedValue::List(all.clone()),
                None => ExpandedValue::Unknown(format!("${name}")),
            },
            ("#", _) => number(self.positional.as_ref()?.len()),
            ("!", _) => ExpandedValue::text(format!("$!{}", self.jobs.len().checked_sub(1)?), place),
            (name, _) if is_argument && self.positional.is_some() => {
                let at = name.parse::<usize>().ok()?.checked_sub(1)?;
                ExpandedValue::Text(self.positional.iter().flatten().skip(at).take(1).cloned().collect())
            }
            (name, index @ (None | Some("@" | "*"))) if is_name(name) || is_argument => {
                self.value_of(name, index.is_some(), world)
            }
            (name, Some(index)) if is_name(name) => {
                let at = usize::try_from(self.arithmetic(index, world)?).ok()?;
                let ExpandedValue::List(all) = self.value_of(name, true, world) else { return None };
                if all.iter().take(at.saturating_add(1)).any(|item| item.may_split) {
                    return None;
                }
                ExpandedValue::Text(all.into_iter().skip(at).take(1).collect())
            }
            _ => return None,
        };
        match value {
            value if !used.length => Some(value),
            ExpandedValue::List(all) if !all.iter().any(|item| item.may_split) => Some(number(all.len())),
            value => Some(number(value.known()?.chars().count())),
        }
    }

    /// Applies the operator of `used`. `None` if the result is not known.
    fn operated(
        &mut self,
        used: &ParameterUse,
        value: ExpandedValue,
        world: &mut BranchWorld,
        place: &SourceLocation,
    ) -> Option<ExpandedValue> {
        let (name, operator) = (&used.name, used.operator.as_str());
        let without_colon = operator.strip_prefix(':').unwrap_or(operator);
        let inner = without_colon.get(1..).unwrap_or_default();
        let is_unknown = matches!(value, ExpandedValue::Unknown(_));
        let is_missing = match &value {
            ExpandedValue::Text(parts) => parts.is_empty() || operator.starts_with(':') && joined(parts, "").is_empty(),
            ExpandedValue::List(all) => all.is_empty(),
            ExpandedValue::Unknown(_) => false,
        };
        match without_colon.chars().next() {
            None | Some('?') => Some(value),
            Some('-' | '=') if !is_missing && !is_unknown => Some(value),
            Some('+') if is_missing => Some(ExpandedValue::Text(Vec::new())),
            Some('+') if is_unknown => None,
            // `${A[@]+"${A[@]}"}` is the array itself, without an error if it is empty.
            Some('+') if inner.trim_matches('"') == format!("${{{name}[@]}}") => Some(value),
            Some(sign @ ('-' | '=' | '+')) => {
                world.uses_default |= is_unknown;
                let text = self.text_of_pieces(&pieces(inner, false), place, world, false);
                if sign == '=' && is_name(name) {
                    let assigned = ShellValue::text(&text, place.clone());
                    self.variables.assign(name, &self.path, assigned, is_unknown);
                }
                Some(ExpandedValue::text(text, place))
            }
            _ => match (value, operator.strip_prefix(':')) {
                (ExpandedValue::List(all), Some(offset)) => {
                    // Positions of `$@` begin at 1.
                    let first = i64::from(used.index.is_none());
                    let start = usize::try_from(self.arithmetic(offset, world)?.checked_sub(first)?).ok()?;
                    Some(ExpandedValue::List(all.into_iter().skip(start).collect()))
                }
                (value, _) => Some(ExpandedValue::text(changed(&value.known()?, operator)?, place)),
            },
        }
    }

    /// The output of `$(text)`, if it is known.
    pub(super) fn substituted(&mut self, text: &str, line: u32, world: &mut BranchWorld) -> Option<String> {
        let without_comment = text.trim();
        if without_comment.is_empty() || without_comment.starts_with('#') && !without_comment.contains('\n') {
            // Scripts put comments between the lines of a command in backquotes.
            return Some(String::new());
        }
        if self.nesting > NESTING_MAX {
            return None;
        }
        let block = parser::parse(text, line);
        let [node] = block.as_slice() else { return None };
        self.nesting += 1;
        let output = self.output_of(node, world);
        self.nesting -= 1;
        output.map(|printed| printed.text.trim_end_matches('\n').to_owned())
    }

    /// Standard output of a command that prints known text.
    pub(super) fn output_of(&mut self, node: &ShellNode, world: &mut BranchWorld) -> Option<LocatedValue> {
        let (assignments, words) = match &node.command {
            ShellCommand::Either(left, _) | ShellCommand::Both(left, _) => return self.output_of(left, world),
            ShellCommand::Redirected(_, redirects) if output_file(redirects).is_some() => return None,
            ShellCommand::Redirected(body, redirects) => {
                return self.output_with(body, here_document(redirects), world);
            }
            ShellCommand::Simple { assignments, words } => (assignments, words),
            _ => return None,
        };
        let fields = self.fields(words, world);
        let all: Vec<&str> = fields.iter().map(ShellField::text).collect();
        let place = fields.last()?.located.place.clone();
        let text = match all.as_slice() {
            _ if !assignments.is_empty() => return None,
            ["cat"] | ["cat", "-"] | ["envsubst", ..] | ["tee", _] => {
                return self.input.as_ref().map(|input| input.located.clone());
            }
            ["echo", rest @ ..] => {
                let options = rest.iter().take_while(|word| matches!(**word, "-n" | "-E")).count();
                // Escapes are not followed.
                let flags = rest.get(options).and_then(|word| word.strip_prefix('-'));
                if flags.is_some_and(|flags| flags.chars().all(|c| "neE".contains(c))) {
                    return None;
                }
                let printed = rest[options..].join(" ");
                let place = fields.get(options + 1).map_or(place, |field| field.located.place.clone());
                let end = if rest[..options].contains(&"-n") { "" } else { "\n" };
                return Some(LocatedValue::new(printed + end, place));
            }
            ["printf", "%s\\n", rest @ ..] => rest.join("\n") + "\n",
            ["printf", "%s", rest @ ..] => rest.concat(),
            ["command", "-v", name] | ["which", name] | ["type", "-p" | "-P", name] => (*name).to_owned(),
            ["basename", path] if !path.contains('$') => path.trim_end_matches('/').rsplit('/').next()?.to_owned(),
            ["seq", numbers @ ..] => sequence(numbers)?,
            _ => return None,
        };
        Some(LocatedValue::new(text, place))
    }

    /// Standard output of `body`, whose standard input is `here`.
    pub(super) fn output_with(
        &mut self,
        body: &ShellNode,
        here: Option<&HereDocument>,
        world: &mut BranchWorld,
    ) -> Option<LocatedValue> {
        match here.filter(|_| matches!(first_word(body), "cat" | "envsubst" | "tee" | "sudo")) {
            Some(here) => Some(self.document(here, world)),
            None => self.output_of(body, world),
        }
    }

    /// The text of a here-document.
    pub(super) fn document(&mut self, here: &HereDocument, world: &mut BranchWorld) -> LocatedValue {
        let place = self.at(here.line);
        let text = match here.literal {
            true => here.body.clone(),
            false => self.text_of_pieces(&pieces(&here.body, true), &place, world, true),
        };
        LocatedValue::new(text, place)
    }
}

/// The expansion as written, in a short form.
fn shown(used: &ParameterUse) -> String {
    match (&used.index, used.operator.is_empty()) {
        (None, true) => format!("${}", used.name),
        (Some(index), _) => format!("${{{}[{index}]}}", used.name),
        (None, false) => format!("${{{}}}", used.name),
    }
}

fn sequence(numbers: &[&str]) -> Option<String> {
    let numbers: Vec<i64> = numbers.iter().map(|text| text.parse().ok()).collect::<Option<_>>()?;
    let (from, step, to) = match numbers.as_slice() {
        [to] => (1, 1, *to),
        [from, to] => (*from, 1, *to),
        [from, step, to] if *step > 0 => (*from, *step, *to),
        _ => return None,
    };
    let count = to.checked_sub(from)?.checked_div(step)?;
    if count > SEQUENCE_MAX {
        return None;
    }
    let all: Vec<String> = (0..=count).map(|n| (from + n * step).to_string()).collect();
    Some(all.join("\n"))
}

/// Applies a text operator of `${name..}`. `None` if it is not supported: patterns with brackets,
/// quotes or escapes are not.
fn changed(text: &str, operator: &str) -> Option<String> {
    if operator.contains(['$', '`', '[', '(', '\\', '"', '\'', '&', '?']) {
        return None;
    }
    for (sign, longest, at_end) in [("%%", true, true), ("%", false, true), ("##", true, false), ("#", false, false)] {
        let Some(pattern) = operator.strip_prefix(sign) else { continue };
        let cuts = text.char_indices().map(|(at, _)| at).chain([text.len()]);
        let matching = cuts.filter(|at| matches_glob(pattern, if at_end { &text[*at..] } else { &text[..*at] }));
        let at = if longest == at_end { matching.min() } else { matching.max() };
        let kept = match at {
            Some(at) if at_end => &text[..at],
            Some(at) => &text[at..],
            None => text,
        };
        return Some(kept.to_owned());
    }
    let (rest, most) = match operator.strip_prefix("//") {
        Some(rest) => (rest, usize::MAX),
        None => (operator.strip_prefix('/')?, 1),
    };
    let (from, to) = rest.split_once('/').unwrap_or((rest, ""));
    (!from.is_empty() && !from.contains(['*', '#', '%'])).then(|| text.replacen(from, to, most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_operators_follow_bash() {
        let all = [("a.b.c", "%.*", "a.b"), ("a.b.c", "%%.*", "a"), ("a/b/c", "##*/", "c"), ("a/b/c", "#*/", "b/c")];
        for (text, operator, wanted) in all {
            assert_eq!(changed(text, operator).as_deref(), Some(wanted), "{operator}");
        }
        assert_eq!(changed("a:1", "%%:*").as_deref(), Some("a"));
        assert_eq!(changed("a-b-a", "//a/x").as_deref(), Some("x-b-x"));
        for operator in ["@Q", "%%[a-z]*", "%%[!0-9]*", "#*\":\"", "//\\//-", "//'/x", "%%+(a)", "/a/&&"] {
            assert_eq!(changed("a", operator), None, "{operator}");
        }
    }

    #[test]
    fn sequences_are_lists_of_numbers() {
        assert_eq!(sequence(&["3"]).as_deref(), Some("1\n2\n3"));
        assert_eq!(sequence(&["0", "2", "5"]).as_deref(), Some("0\n2\n4"));
        assert_eq!(sequence(&["1", "100000000"]), None);
    }
}
