//! Conditions: what is known of their result, and the choices that their branches add.

use crate::lint::shell::choice::{BranchChoice, BranchPath, matches_glob};
use crate::lint::shell::evaluator::Evaluator;
use crate::lint::shell::syntax::{RawWord, ShellBlock, ShellCommand, ShellNode};
use crate::lint::shell::variables::ShellValue;
use crate::lint::shell::word::{ParameterUse, WordPiece, is_name, pieces};
use crate::lint::shell::written::first_word;

/// Limit on the length of a pattern, in bytes.
const PATTERN_MAX: usize = 256;
/// Limit on the texts of one pattern.
const ALTERNATIVES_MAX: usize = 32;

/// The operators of tests that compare two sides, their sign in expressions, and whether the sides
/// are numbers.
const COMPARISONS: &[(&str, &str, bool)] = &[
    ("=", "==", false),
    ("==", "==", false),
    ("!=", "!=", false),
    ("-eq", "==", true),
    ("-ne", "!=", true),
    ("-lt", "<", true),
    ("-le", "<=", true),
    ("-gt", ">", true),
    ("-ge", ">=", true),
];

/// The result of a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ConditionResult {
    Known(bool),
    /// Not known. The choices hold if the condition is true, and if it is false.
    Choice {
        yes: BranchPath,
        no: BranchPath,
    },
    /// A command that usually succeeds.
    Command,
}

impl ConditionResult {
    fn negated(self) -> ConditionResult {
        match self {
            ConditionResult::Known(value) => ConditionResult::Known(!value),
            ConditionResult::Choice { yes, no } => ConditionResult::Choice { yes: no, no: yes },
            ConditionResult::Command => ConditionResult::Command,
        }
    }
}

impl Evaluator<'_> {
    /// Runs the commands of a condition, and returns the result of the last one.
    pub(super) fn decide_block(&mut self, block: &ShellBlock) -> ConditionResult {
        let Some((last, before)) = block.split_last() else { return ConditionResult::Known(true) };
        self.run_block(before);
        self.decide(last)
    }

    /// A choice of a subject that no other condition has.
    pub(super) fn fresh_choice(&mut self) -> BranchChoice {
        BranchChoice { subject: self.out.fresh_subject(), pattern: "true".into(), is: true }
    }

    /// A choice of the subject with the key `key`.
    fn keyed_choice(&mut self, key: &str, pattern: &str) -> BranchChoice {
        // Nested shells have variables of their own.
        let key = format!("{} {} {key}", self.depth, self.place);
        BranchChoice { subject: self.out.subject(&key), pattern: pattern.into(), is: true }
    }

    fn either_way(choice: BranchChoice) -> ConditionResult {
        ConditionResult::Choice { no: choice.negated().into(), yes: choice.into() }
    }

    /// A result with a choice, for a command whose result is not known.
    pub(super) fn as_choice(&mut self, result: ConditionResult) -> ConditionResult {
        match result {
            ConditionResult::Command => Self::either_way(self.fresh_choice()),
            other => other,
        }
    }

    /// Runs `node` as a condition.
    pub(super) fn decide(&mut self, node: &ShellNode) -> ConditionResult {
        match &node.command {
            ShellCommand::Not(inner) => {
                let result = self.decide(inner);
                self.as_choice(result).negated()
            }
            ShellCommand::Test(word) => self.test(word),
            ShellCommand::Arithmetic(word) => match self.certain_number(&word.raw) {
                Some(number) => ConditionResult::Known(number != 0),
                None => {
                    self.run(node);
                    // Its variables may change between two evaluations.
                    Self::either_way(self.fresh_choice())
                }
            },
            ShellCommand::Both(left, right) => self.decide_pair(left, right, true),
            ShellCommand::Either(left, right) => self.decide_pair(left, right, false),
            ShellCommand::Simple { assignments, words } if assignments.is_empty() => {
                let all: Vec<&str> = words.iter().map(|word| word.raw.as_str()).collect();
                match all.as_slice() {
                    ["true" | ":"] => ConditionResult::Known(true),
                    ["false"] => ConditionResult::Known(false),
                    ["test", rest @ ..] => self.test(&RawWord { raw: rest.join(" "), line: node.line }),
                    ["command", "-v" | "-V", ..] | ["which" | "type" | "hash", ..] => {
                        Self::either_way(self.choice_of(&all.join(" ")))
                    }
                    _ => {
                        self.run(node);
                        ConditionResult::Command
                    }
                }
            }
            ShellCommand::Redirected(body, _) if is_question(body) => self.decide(body),
            _ => {
                self.run(node);
                ConditionResult::Command
            }
        }
    }

    /// The result of `left && right`, or of `left || right`.
    fn decide_pair(&mut self, left: &ShellNode, right: &ShellNode, is_and: bool) -> ConditionResult {
        let left = self.decide(left);
        if left == ConditionResult::Known(!is_and) {
            return left;
        }
        let right = self.decide(right);
        if left == ConditionResult::Known(is_and) || right == ConditionResult::Known(!is_and) {
            return right;
        }
        let choice = self.fresh_choice();
        let (mut yes, mut no) = (BranchPath::from(choice.clone()), BranchPath::from(choice.negated()));
        for result in [left, right] {
            let ConditionResult::Choice { yes: theirs, no: against } = self.as_choice(result) else { continue };
            // All parts of `a && b` hold if it is true. If it is false, one of them does not hold.
            if is_and {
                yes.extend(&theirs);
            } else {
                no.extend(&against);
            }
        }
        ConditionResult::Choice { yes, no }
    }

    /// A choice for the text `raw`. Equal texts with unchanged variables are one subject.
    fn choice_of(&mut self, raw: &str) -> BranchChoice {
        match self.key_of(raw) {
            Some(key) => self.keyed_choice(&key, "true"),
            None => self.fresh_choice(),
        }
    }

    /// `raw` with the version of each variable. `None` if a command computes a part of it, or may
    /// change it.
    fn key_of(&self, raw: &str) -> Option<String> {
        let mut key = String::new();
        for piece in pieces(raw, false) {
            match piece {
                WordPiece::Text { text, .. } => key.push_str(&text),
                WordPiece::Parameter(used) => {
                    let version = match used.name.as_str() {
                        // Each command sets these, or they name another variable.
                        "?" | "!" | "_" => return None,
                        _ if used.indirect => return None,
                        name if is_name(name) => self.variables.version(name),
                        _ => self.shifts,
                    };
                    let (length, index) =
                        (if used.length { "#" } else { "" }, used.index.as_deref().unwrap_or_default());
                    // Without a default, the value is the same as that of the plain variable.
                    let operator = if is_plain(&used) { "" } else { &used.operator };
                    key.push_str(&format!("${{{length}{}@{version}[{index}]{operator}}}", used.name));
                }
                WordPiece::Arithmetic { .. } | WordPiece::Command { .. } | WordPiece::Opaque => return None,
            }
        }
        Some(key.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    /// The value of `word`, if no caller and no branch can change it.
    fn certain_text(&mut self, word: &RawWord) -> Option<String> {
        let mut world = self.world();
        let text = self.text_of(word, &mut world);
        (!text.contains('$') && world.is_certain()).then_some(text)
    }

    /// The shell pattern `word` as the pattern of a choice. `None` if it has a value or a form that
    /// is not followed.
    fn pattern_of(&mut self, word: &RawWord) -> Option<String> {
        let special = |text: &str| text.matches(['*', '[', ']']).count();
        let unquoted = |piece: &WordPiece| match piece {
            WordPiece::Text { text, quoted: false } => special(text),
            _ => 0,
        };
        let all: usize = pieces(&word.raw, false).iter().map(unquoted).sum();
        let text = self.certain_text(word)?;
        let is_followed = text.len() <= PATTERN_MAX && !text.contains(['?', '(', '|']) && special(&text) == all;
        if is_followed { without_sets(&text) } else { None }
    }

    /// Whether `subject` matches one of `patterns`: an arm of `case`, or a comparison.
    pub(super) fn matched(&mut self, subject: &RawWord, patterns: &[RawWord]) -> ConditionResult {
        let all: Vec<Option<String>> = patterns.iter().map(|word| self.pattern_of(word)).collect();
        let known = self.certain_text(subject);
        let is_one = |own: &str| own == "*" || known.as_ref().is_some_and(|text| matches_glob(own, text));
        let is_match = |pattern: &String| pattern.split('|').any(is_one);
        if all.iter().flatten().any(is_match) {
            return ConditionResult::Known(true);
        }
        let pattern = all.into_iter().collect::<Option<Vec<_>>>().map(|all| all.join("|"));
        if pattern.is_some() && known.is_some() {
            return ConditionResult::Known(false);
        }
        let pattern = pattern.filter(|pattern| pattern.matches('|').count() < ALTERNATIVES_MAX);
        let (Some(key), Some(pattern)) = (self.key_of(&subject.raw), pattern) else {
            let raw: Vec<&str> = patterns.iter().map(|word| word.raw.as_str()).collect();
            return Self::either_way(self.choice_of(&format!("{} in {}", subject.raw, raw.join("|"))));
        };
        let choice = self.keyed_choice(&format!("value of {key}"), &pattern);
        if let ([WordPiece::Parameter(used)], false) =
            (significant(&subject.raw).as_slice(), pattern.contains(['|', '*']))
            && is_plain(used)
        {
            let value = ShellValue::text(pattern, self.at(subject.line));
            self.variables.learn(&used.name, &self.path.with(&choice), value);
        }
        Self::either_way(choice)
    }

    /// Runs `[ .. ]` or `[[ .. ]]`.
    fn test(&mut self, word: &RawWord) -> ConditionResult {
        let tokens = tokens(&word.raw);
        let part = |raw: &str| RawWord { raw: raw.to_owned(), line: word.line };
        match tokens.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
            ["!", rest @ ..] if !rest.iter().any(|token| matches!(*token, "&&" | "||" | "-a" | "-o")) => {
                self.test(&part(&rest.join(" "))).negated()
            }
            ["-z", text] => self.nonempty(&part(text)).negated(),
            ["-n", text] | [text] => self.nonempty(&part(text)),
            // A file may appear between two tests.
            [flag, _] if flag.starts_with('-') => Self::either_way(self.fresh_choice()),
            [left, operator, right] => match COMPARISONS.iter().find(|(name, ..)| name == operator) {
                Some((_, sign, is_number)) => self.compare(&part(left), sign, *is_number, &part(right)),
                None => Self::either_way(self.choice_of(&word.raw)),
            },
            _ => Self::either_way(self.choice_of(&word.raw)),
        }
    }

    fn nonempty(&mut self, word: &RawWord) -> ConditionResult {
        if let Some(text) = self.certain_text(word) {
            return ConditionResult::Known(!text.is_empty());
        }
        Self::either_way(self.choice_of(&format!("-n {}", word.raw)))
    }

    fn compare(&mut self, left: &RawWord, sign: &str, is_number: bool, right: &RawWord) -> ConditionResult {
        let mut is_usual = true;
        if is_number {
            let sides = (self.certain_text(left), self.certain_text(right));
            // A number has several texts. A variable is compared with the usual one.
            is_usual = sides.1.as_ref().is_some_and(|text| text.parse::<i64>().is_ok_and(|n| n.to_string() == *text));
            if let (Some(left), Some(right)) = sides {
                return match self.certain_number(&format!("({left}){sign}({right})")) {
                    Some(number) => ConditionResult::Known(number != 0),
                    None => Self::either_way(self.fresh_choice()),
                };
            }
        }
        let is_equality = matches!(sign, "==" | "!=");
        let result = match is_equality && is_usual {
            true => self.matched(left, std::slice::from_ref(right)),
            false => {
                let sign = if is_equality { "==" } else { sign };
                Self::either_way(self.choice_of(&format!("{} {sign} {}", left.raw, right.raw)))
            }
        };
        if sign == "!=" { result.negated() } else { result }
    }
}

/// `pattern` with all texts that its sets of characters stand for, separated by `|`. `None` for
/// ranges and classes.
fn without_sets(pattern: &str) -> Option<String> {
    let mut all = vec![pattern.to_owned()];
    while all[0].contains('[') {
        let mut next = Vec::new();
        for text in all {
            let (before, rest) = text.split_once('[')?;
            let (set, behind) = rest.split_once(']')?;
            if set.is_empty() || set.contains(['!', '^', '-', '[', '*']) {
                return None;
            }
            next.extend(set.chars().map(|c| format!("{before}{c}{behind}")));
        }
        all = Some(next).filter(|next| next.len() <= ALTERNATIVES_MAX)?;
    }
    Some(all.join("|"))
}

/// Whether the value is that of the plain variable. An unset variable counts as empty.
fn is_plain(used: &ParameterUse) -> bool {
    matches!(used.operator.as_str(), "" | "-" | ":-") && used.index.is_none() && !used.length && !used.indirect
}

/// The pieces of a word that are not empty quotes.
fn significant(raw: &str) -> Vec<WordPiece> {
    let is_empty = |piece: &WordPiece| matches!(piece, WordPiece::Text { text, .. } if text.is_empty());
    pieces(raw, false).into_iter().filter(|piece| !is_empty(piece)).collect()
}

/// Whether a command only tests something, so that its redirections do not matter.
fn is_question(node: &ShellNode) -> bool {
    matches!(first_word(node), "command" | "which" | "type" | "hash" | "test" | "[")
        || matches!(node.command, ShellCommand::Test(_))
}

/// Splits a test. White space inside quotes and expansions does not separate.
fn tokens(raw: &str) -> Vec<String> {
    let (mut out, mut current, mut quote, mut depth) = (Vec::new(), String::new(), None, 0u32);
    let mut escaped = false;
    for c in raw.chars() {
        let is_plain = quote.is_none() && !escaped;
        match c {
            _ if escaped => {}
            '"' | '\'' if quote == Some(c) => quote = None,
            '"' | '\'' if quote.is_none() => quote = Some(c),
            '(' | '{' if is_plain => depth += 1,
            ')' | '}' if is_plain => depth = depth.saturating_sub(1),
            _ => {}
        }
        escaped = c == '\\' && !escaped && quote != Some('\'');
        if c.is_whitespace() && quote.is_none() && depth == 0 {
            if !current.is_empty() {
                out.push(std::mem::take(&mut current));
            }
        } else {
            current.push(c);
        }
    }
    if !current.is_empty() {
        out.push(current);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_characters_stand_for_several_texts() {
        for (pattern, wanted) in [
            ("[Tt]cp", Some("Tcp|tcp")),
            ("[yY][eE]*", Some("ye*|yE*|Ye*|YE*")),
            ("a*", Some("a*")),
            ("[0-9]", None),
            ("[!a]", None),
            ("[[:alpha:]]", None),
            ("[a", None),
            (&"[ab]".repeat(6), None),
        ] {
            assert_eq!(without_sets(pattern).as_deref(), wanted, "{pattern}");
        }
    }
}
