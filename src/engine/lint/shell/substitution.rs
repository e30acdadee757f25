//! `${..}` with its operators, and `$(..)`.

use crate::engine::check::SourceLocation;
use crate::engine::lint::model::LocatedValue;
use crate::engine::lint::shell::evaluator::{Evaluator, NESTING_MAX};
use crate::engine::lint::shell::expansion::{BranchWorld, ExpandedValue, ListItem};
use crate::engine::lint::shell::parser;
use crate::engine::lint::shell::syntax::{Redirect, ShellCommand, ShellNode};
use crate::engine::lint::shell::variables::ShellValue;
use crate::engine::lint::shell::word::{ParameterUse, is_name, pieces};

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
        let unknown = || ExpandedValue::Unknown(shown(used));
        if self.nesting > NESTING_MAX {
            return unknown();
        }
        self.nesting += 1;
        let value = self.parameter_value(used, world, place);
        self.nesting -= 1;
        value
    }

    fn parameter_value(
        &mut self,
        used: &ParameterUse,
        world: &mut BranchWorld,
        place: &SourceLocation,
    ) -> ExpandedValue {
        let unknown = || ExpandedValue::Unknown(shown(used));
        let name = match used.indirect {
            true => match self.value_of(&used.name, false, world).known() {
                Some(name) if !name.is_empty() => name,
                _ => return unknown(),
            },
            false => used.name.clone(),
        };
        let whole = matches!(used.index.as_deref(), Some("@" | "*"));
        let value = match (name.as_str(), used.index.as_deref()) {
            ("@" | "*", _) => match &self.positional {
                Some(all) => ExpandedValue::List(items(all)),
                None => ExpandedValue::UnknownList(format!("${name}")),
            },
            ("!", _) => match self.jobs.len().checked_sub(1) {
                Some(job) => ExpandedValue::Text(vec![LocatedValue::new(format!("$!{job}"), place.clone())]),
                None => return unknown(),
            },
            ("#", _) => match &self.positional {
                Some(all) => ExpandedValue::Text(vec![LocatedValue::new(all.len().to_string(), place.clone())]),
                None => return unknown(),
            },
            (digits, _) if digits.starts_with(|c: char| c.is_ascii_digit()) => {
                let at = digits.parse::<usize>().ok().and_then(|n| n.checked_sub(1));
                match (&self.positional, at) {
                    (Some(all), Some(at)) => match all.get(at) {
                        Some(located) => ExpandedValue::Text(vec![located.clone()]),
                        None => ExpandedValue::Unset,
                    },
                    _ => match self.lookup(digits, world) {
                        Some(ShellValue::Text(parts)) => {
                            ExpandedValue::Text(parts.into_iter().map(|part| part.located).collect())
                        }
                        _ => unknown(),
                    },
                }
            }
            (name, None | Some("@" | "*")) if is_name(name) => self.value_of(name, whole, world),
            (name, Some(index)) if is_name(name) => {
                let at = self.arithmetic(index, world).and_then(|at| usize::try_from(at).ok());
                match (self.value_of(name, true, world), at) {
                    (ExpandedValue::List(all), Some(at)) if all.iter().take(at + 1).all(|item| !item.is_open) => {
                        match all.get(at) {
                            Some(item) => ExpandedValue::Text(vec![item.located.clone()]),
                            None => ExpandedValue::Unset,
                        }
                    }
                    _ => return unknown(),
                }
            }
            _ => return unknown(),
        };
        if used.length {
            return match value {
                ExpandedValue::List(all) if all.iter().all(|item| !item.is_open) => {
                    ExpandedValue::Text(vec![LocatedValue::new(all.len().to_string(), place.clone())])
                }
                value => match value.known() {
                    Some(text) => {
                        ExpandedValue::Text(vec![LocatedValue::new(text.chars().count().to_string(), place.clone())])
                    }
                    None => unknown(),
                },
            };
        }
        self.operated(used, &name, value, world, place)
    }

    /// Applies the operator of `used`.
    fn operated(
        &mut self,
        used: &ParameterUse,
        name: &str,
        value: ExpandedValue,
        world: &mut BranchWorld,
        place: &SourceLocation,
    ) -> ExpandedValue {
        let operator = used.operator.as_str();
        if operator.is_empty() {
            return value;
        }
        let with_colon = operator.strip_prefix(':').unwrap_or(operator);
        let is_missing = match &value {
            ExpandedValue::Unset => true,
            ExpandedValue::List(all) => all.is_empty(),
            ExpandedValue::Text(parts) => operator.starts_with(':') && parts.iter().all(|part| part.text.is_empty()),
            _ => false,
        };
        let is_unknown = matches!(value, ExpandedValue::Unknown(_) | ExpandedValue::UnknownList(_));
        match with_colon.chars().next() {
            Some(sign @ ('-' | '=')) => {
                if !is_missing && !is_unknown {
                    return value;
                }
                world.uses_default |= is_unknown;
                let text = self.text_of_pieces(&pieces(&with_colon[1..], false), place, world, false);
                if sign == '=' && is_name(name) {
                    let path = self.path.clone();
                    let assigned = ShellValue::text(text.clone(), place.clone());
                    self.variables.assign(name, &path, assigned, is_unknown);
                }
                ExpandedValue::Text(vec![LocatedValue::new(text, place.clone())])
            }
            Some('+') if is_missing => ExpandedValue::Unset,
            Some('+') if is_unknown => match used.quoted {
                true => ExpandedValue::Unknown(shown(used)),
                false => ExpandedValue::UnknownList(shown(used)),
            },
            Some('+') => {
                let inner = &with_colon[1..];
                // `${A[@]+"${A[@]}"}` is the array itself, without an error if it is empty.
                if inner.trim_matches('"') == format!("${{{name}[@]}}") {
                    return value;
                }
                let text = self.text_of_pieces(&pieces(inner, false), place, world, false);
                ExpandedValue::Text(vec![LocatedValue::new(text, place.clone())])
            }
            Some('?') => value,
            _ => match (value, operator.split_once(':')) {
                (ExpandedValue::List(all), Some(("", offset))) => {
                    let mut parts = offset.splitn(2, ':');
                    let start = parts.next().and_then(|text| self.arithmetic(text, world));
                    let count = parts.next().map(|text| self.arithmetic(text, world));
                    // Positions of `$@` begin at 1.
                    let first = i64::from(matches!(name, "@" | "*"));
                    let start = start.and_then(|start| usize::try_from(start.checked_sub(first)?).ok());
                    match (start, count) {
                        (Some(start), None) => ExpandedValue::List(all.into_iter().skip(start).collect()),
                        (Some(start), Some(Some(count))) => {
                            let count = usize::try_from(count).unwrap_or(0);
                            ExpandedValue::List(all.into_iter().skip(start).take(count).collect())
                        }
                        _ => ExpandedValue::UnknownList(shown(used)),
                    }
                }
                (value, _) => match value.known().and_then(|text| changed(&text, operator)) {
                    Some(text) => ExpandedValue::Text(vec![LocatedValue::new(text, place.clone())]),
                    None => ExpandedValue::Unknown(shown(used)),
                },
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
        output.map(|text| text.trim_end_matches('\n').to_owned())
    }

    fn output_of(&mut self, node: &ShellNode, world: &mut BranchWorld) -> Option<String> {
        match &node.command {
            ShellCommand::Either(left, _) | ShellCommand::Both(left, _) => self.output_of(left, world),
            ShellCommand::Redirected(body, redirects) => {
                let here = redirects.iter().find_map(|redirect| match redirect {
                    Redirect::Here(here) => Some(here),
                    _ => None,
                });
                match (&body.command, here) {
                    (ShellCommand::Simple { words, .. }, Some(here))
                        if words.first().is_some_and(|w| w.raw == "cat") =>
                    {
                        let place = self.at(here.line);
                        Some(match here.literal {
                            true => here.body.clone(),
                            false => self.document_text(&here.body, &place, world),
                        })
                    }
                    _ => self.output_of(body, world),
                }
            }
            ShellCommand::Simple { assignments, words } if assignments.is_empty() => {
                let fields = self.fields(words, world);
                let all: Vec<&str> = fields.iter().map(|field| field.text.as_str()).collect();
                if all.iter().any(|text| text.contains('$')) {
                    return None;
                }
                match all.as_slice() {
                    ["echo", rest @ ..] if rest.first().is_none_or(|first| !first.starts_with('-')) => {
                        Some(rest.join(" "))
                    }
                    ["printf", "%s" | "%s\\n", text] => Some((*text).to_owned()),
                    ["command", "-v", name] | ["which", name] | ["type", "-p" | "-P", name] => Some((*name).to_owned()),
                    ["basename", path] => path.trim_end_matches('/').rsplit('/').next().map(str::to_owned),
                    ["seq", numbers @ ..] => sequence(numbers),
                    _ => None,
                }
            }
            _ => None,
        }
    }
}

fn items(all: &[LocatedValue]) -> Vec<ListItem> {
    let item = |located: &LocatedValue| ListItem { located: located.clone(), is_open: false };
    all.iter().map(item).collect()
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

/// Applies a text operator of `${name..}`. `None` if it is not supported: patterns with brackets, quotes or escapes are not.
fn changed(text: &str, operator: &str) -> Option<String> {
    if operator.contains(['$', '`', '[', '(', '\\', '"', '\'', '&']) {
        return None;
    }
    match operator {
        "^^" => return Some(text.to_uppercase()),
        ",," => return Some(text.to_lowercase()),
        _ => {}
    }
    let ends = |pattern: &str, longest: bool, at_end: bool| {
        let cuts: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
        let matching = cuts.into_iter().filter(|at| {
            let (before, behind) = text.split_at(*at);
            matches_glob(pattern, if at_end { behind } else { before })
        });
        let at = if longest == at_end { matching.min() } else { matching.max() };
        match at {
            Some(at) if at_end => text[..at].to_owned(),
            Some(at) => text[at..].to_owned(),
            None => text.to_owned(),
        }
    };
    if let Some(pattern) = operator.strip_prefix("%%") {
        return Some(ends(pattern, true, true));
    }
    if let Some(pattern) = operator.strip_prefix('%') {
        return Some(ends(pattern, false, true));
    }
    if let Some(pattern) = operator.strip_prefix("##") {
        return Some(ends(pattern, true, false));
    }
    if let Some(pattern) = operator.strip_prefix('#') {
        let shortest = (0..=text.len()).filter(|at| text.is_char_boundary(*at));
        let at = shortest.filter(|at| matches_glob(pattern, &text[..*at])).min();
        return Some(at.map_or(text, |at| &text[at..]).to_owned());
    }
    if let Some(rest) = operator.strip_prefix("//") {
        let (from, to) = rest.split_once('/').unwrap_or((rest, ""));
        return (!from.is_empty() && !from.contains(['*', '?', '['])).then(|| text.replace(from, to));
    }
    if let Some(rest) = operator.strip_prefix('/') {
        let (from, to) = rest.split_once('/').unwrap_or((rest, ""));
        return (!from.is_empty() && !from.contains(['*', '?', '[', '#', '%'])).then(|| text.replacen(from, to, 1));
    }
    None
}

/// A part of a glob that stands for one character, or for any text.
enum GlobPart {
    Any,
    One,
    Char(char),
    Set { negated: bool, ranges: Vec<(char, char)> },
}

fn glob_parts(pattern: &str) -> Vec<GlobPart> {
    let chars: Vec<char> = pattern.chars().collect();
    let last = chars.iter().rposition(|c| *c == ']').unwrap_or_default();
    let (mut out, mut at) = (Vec::new(), 0);
    while let Some(c) = chars.get(at) {
        at += 1;
        let part = match c {
            '*' => GlobPart::Any,
            '?' => GlobPart::One,
            '[' => {
                let negated = matches!(chars.get(at), Some('!' | '^'));
                let first = at + usize::from(negated);
                // A bracket in the first place is a character of the set.
                match (first + 1..=last).find(|end| chars[*end] == ']') {
                    Some(end) => {
                        at = end + 1;
                        GlobPart::Set { negated, ranges: ranges(&chars[first..end]) }
                    }
                    None => GlobPart::Char('['),
                }
            }
            c => GlobPart::Char(*c),
        };
        out.push(part);
    }
    out
}

fn ranges(mut set: &[char]) -> Vec<(char, char)> {
    let mut out = Vec::new();
    loop {
        let (range, rest) = match set {
            [from, '-', to, rest @ ..] => ((*from, *to), rest),
            [one, rest @ ..] => ((*one, *one), rest),
            [] => return out,
        };
        out.push(range);
        set = rest;
    }
}

/// Whether the glob `pattern` matches all of `text`. Supports `*`, `?` and sets without classes.
pub fn matches_glob(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<GlobPart>, Vec<char>) = (glob_parts(pattern), text.chars().collect());
    let (mut p, mut t, mut star) = (0, 0, None);
    while t < text.len() {
        let is_match = match pattern.get(p) {
            Some(GlobPart::Any) => {
                star = Some((p, t));
                p += 1;
                continue;
            }
            Some(GlobPart::One) => true,
            Some(GlobPart::Char(c)) => *c == text[t],
            Some(GlobPart::Set { negated, ranges }) => {
                ranges.iter().any(|(from, to)| (*from..=*to).contains(&text[t])) != *negated
            }
            None => false,
        };
        match (is_match, star) {
            (true, _) => {
                p += 1;
                t += 1;
            }
            (false, Some((at, from))) => {
                p = at + 1;
                t = from + 1;
                star = Some((at, from + 1));
            }
            (false, None) => return false,
        }
    }
    pattern[p..].iter().all(|part| matches!(part, GlobPart::Any))
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
