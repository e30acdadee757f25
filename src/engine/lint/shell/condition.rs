//! Conditions: what is known of their result, and the choices that their branches add.

use crate::engine::lint::shell::choice::BranchChoice;
use crate::engine::lint::shell::evaluator::Evaluator;
use crate::engine::lint::shell::syntax::{RawWord, ShellBlock, ShellCommand, ShellNode};
use crate::engine::lint::shell::word::{WordPiece, is_name, pieces};

/// The result of a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConditionResult {
    Known(bool),
    /// Not known. The choices hold if the condition is true, and if it is false.
    Choice {
        yes: Vec<BranchChoice>,
        no: Vec<BranchChoice>,
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
        BranchChoice { subject: self.out.fresh_subject(), text: "true".into(), is: true }
    }

    /// A choice of the subject with the key `key`.
    pub(super) fn keyed_choice(&mut self, key: &str, text: &str) -> BranchChoice {
        // Nested shells have variables of their own.
        let key = format!("{} {} {key}", self.depth, self.place);
        BranchChoice { subject: self.out.subject(&key), text: text.into(), is: true }
    }

    fn either_way(choice: BranchChoice) -> ConditionResult {
        ConditionResult::Choice { no: vec![choice.negated()], yes: vec![choice] }
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
            ShellCommand::Arithmetic(word) => {
                let mut world = self.world();
                let number = self.arithmetic(&word.raw, &mut world);
                match number.filter(|_| !world.uses_default && world.others.is_empty()) {
                    Some(number) => ConditionResult::Known(number != 0),
                    None => {
                        self.run(node);
                        // Its variables may change between two evaluations.
                        let choice = self.fresh_choice();
                        Self::either_way(choice)
                    }
                }
            }
            ShellCommand::Both(left, right) => {
                let left = self.decide(left);
                if left == ConditionResult::Known(false) {
                    return left;
                }
                let right = self.decide(right);
                self.combined(left, right, true)
            }
            ShellCommand::Either(left, right) => {
                let left = self.decide(left);
                if left == ConditionResult::Known(true) {
                    return left;
                }
                let right = self.decide(right);
                self.combined(left, right, false)
            }
            ShellCommand::Simple { assignments, words } if assignments.is_empty() => {
                let all: Vec<&str> = words.iter().map(|word| word.raw.as_str()).collect();
                match all.as_slice() {
                    ["true" | ":"] => ConditionResult::Known(true),
                    ["false"] => ConditionResult::Known(false),
                    ["test", ..] => {
                        let raw = all[1..].join(" ");
                        self.test(&RawWord { raw, line: node.line })
                    }
                    ["command", "-v" | "-V", ..] | ["which" | "type" | "hash", ..] => {
                        let choice = self.choice_of(&all.join(" "));
                        Self::either_way(choice)
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

    fn combined(&mut self, left: ConditionResult, right: ConditionResult, is_and: bool) -> ConditionResult {
        if left == ConditionResult::Known(is_and) {
            return right;
        }
        if right == ConditionResult::Known(!is_and) {
            return right;
        }
        let (left, right) = (self.as_choice(left), self.as_choice(right));
        let choice = self.fresh_choice();
        let (mut yes, mut no) = (vec![choice.clone()], vec![choice.negated()]);
        for result in [left, right] {
            let ConditionResult::Choice { yes: theirs, no: against } = result else { continue };
            // All parts of `a && b` hold if it is true. If it is false, one of them does not hold.
            if is_and {
                yes.extend(theirs);
            } else {
                no.extend(against);
            }
        }
        ConditionResult::Choice { yes, no }
    }

    /// A choice for the text `raw`. Equal texts with unchanged variables are one subject.
    pub(super) fn choice_of(&mut self, raw: &str) -> BranchChoice {
        match self.key_of(raw) {
            Some(key) => self.keyed_choice(&key, "true"),
            None => self.fresh_choice(),
        }
    }

    /// `raw` with the version of each variable. `None` if a command computes a part of it.
    pub(super) fn key_of(&self, raw: &str) -> Option<String> {
        let mut key = String::new();
        for piece in pieces(raw, false) {
            match piece {
                WordPiece::Text { text, .. } => key.push_str(&text),
                WordPiece::Parameter(used) => {
                    let version = match is_name(&used.name) {
                        true => self.variables.version(&used.name),
                        false => self.shifts,
                    };
                    key.push_str(&format!("${{{}@{version}{}}}", used.name, used.operator));
                }
                WordPiece::Arithmetic { .. } | WordPiece::Command { .. } | WordPiece::Opaque => return None,
            }
        }
        Some(key.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    /// The subject of comparisons with the single variable in `raw`, and its name.
    pub(super) fn compared_variable(&self, raw: &str) -> Option<(String, String)> {
        let all: Vec<WordPiece> = pieces(raw, false)
            .into_iter()
            .filter(|piece| !matches!(piece, WordPiece::Text { text, .. } if text.is_empty()))
            .collect();
        let [WordPiece::Parameter(used)] = all.as_slice() else { return None };
        if used.index.is_some() || used.length || used.indirect {
            return None;
        }
        let plain = used.operator.is_empty() || used.operator.starts_with(":-") || used.operator.starts_with('-');
        let version = match is_name(&used.name) {
            true => self.variables.version(&used.name),
            false => self.shifts,
        };
        plain.then(|| (format!("value of {}@{version}", used.name), used.name.clone()))
    }

    /// The value of `raw`, if no caller and no branch can change it.
    pub(super) fn certain_text(&mut self, raw: &str, line: u32) -> Option<String> {
        let mut world = self.world();
        let text = self.text_of(&RawWord { raw: raw.to_owned(), line }, &mut world);
        (!text.contains('$') && !world.uses_default && world.others.is_empty()).then_some(text)
    }

    fn test(&mut self, word: &RawWord) -> ConditionResult {
        let tokens = tokens(&word.raw);
        let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
        match tokens.as_slice() {
            ["!", rest @ ..] => {
                let raw = rest.join(" ");
                self.test(&RawWord { raw, line: word.line }).negated()
            }
            all if all.iter().any(|token| matches!(*token, "&&" | "||" | "-a" | "-o" | "(")) => {
                Self::either_way(self.choice_of(&word.raw))
            }
            ["-z", text] => self.nonempty(text, word.line).negated(),
            ["-n", text] | [text] => self.nonempty(text, word.line),
            [left, operator @ ("=" | "==" | "-eq" | "!=" | "-ne"), right] => {
                let result = self.equal(left, right, word.line, operator.starts_with('-'));
                if matches!(*operator, "!=" | "-ne") { result.negated() } else { result }
            }
            [left, operator @ ("-lt" | "-le" | "-gt" | "-ge"), right] => {
                let sign = match *operator {
                    "-lt" => "<",
                    "-le" => "<=",
                    "-gt" => ">",
                    _ => ">=",
                };
                let sides = self.certain_text(left, word.line).zip(self.certain_text(right, word.line));
                let mut world = self.world();
                let number =
                    sides.and_then(|(left, right)| self.arithmetic(&format!("{left}{sign}{right}"), &mut world));
                match number.filter(|_| !world.uses_default && world.others.is_empty()) {
                    Some(value) => ConditionResult::Known(value != 0),
                    None => Self::either_way(self.choice_of(&word.raw)),
                }
            }
            // A file may appear between two tests.
            [flag, _] if flag.starts_with('-') => Self::either_way(self.fresh_choice()),
            _ => Self::either_way(self.choice_of(&word.raw)),
        }
    }

    fn nonempty(&mut self, raw: &str, line: u32) -> ConditionResult {
        if let Some(text) = self.certain_text(raw, line) {
            return ConditionResult::Known(!text.is_empty());
        }
        let raw = raw.replace(":-}", "}").replace('"', "");
        let choice = self.choice_of(&format!("-n {raw}"));
        Self::either_way(choice)
    }

    fn equal(&mut self, left: &str, right: &str, line: u32, is_number: bool) -> ConditionResult {
        let is_glob = |piece: &WordPiece| matches!(piece, WordPiece::Text { text, quoted: false } if text.contains(['*', '?', '[']));
        let is_pattern = !is_number && pieces(right, false).iter().any(is_glob);
        let theirs = self.certain_text(right, line);
        if let (Some(ours), Some(theirs), false) = (self.certain_text(left, line), &theirs, is_pattern) {
            if !is_number {
                return ConditionResult::Known(ours == *theirs);
            }
            // A side may also be the name of a variable, or an expression.
            let mut world = self.world();
            let mut number = |text: &str| match text.trim().parse::<i64>() {
                Ok(number) => Some(number),
                Err(_) => self.arithmetic(text, &mut world),
            };
            let sides = number(&ours).zip(number(theirs));
            return match sides.filter(|_| !world.uses_default && world.others.is_empty()) {
                Some((ours, theirs)) => ConditionResult::Known(ours == theirs),
                None => Self::either_way(self.fresh_choice()),
            };
        }
        // A number has several texts. The variable is compared with the usual one.
        let is_usual = |text: &String| !is_number || text.parse::<i64>().is_ok_and(|n| n.to_string() == *text);
        let theirs = theirs.filter(is_usual);
        let choice = match (self.compared_variable(left), theirs) {
            (Some((key, name)), Some(text)) if !is_pattern => {
                let choice = self.keyed_choice(&key, &text);
                let path = self.path.with(&choice);
                let value = super::variables::ShellValue::text(text, self.at(line));
                self.variables.learn(&name, &path, value);
                let mut yes = self.implied_arms(&key, &choice.text);
                yes.push(choice.clone());
                self.note_compared(&key, &choice.text);
                return ConditionResult::Choice { no: vec![choice.negated()], yes };
            }
            _ => self.choice_of(&format!("{left} == {right}")),
        };
        Self::either_way(choice)
    }
}

fn is_question(node: &ShellNode) -> bool {
    match &node.command {
        ShellCommand::Simple { words, .. } => words
            .first()
            .is_some_and(|word| matches!(word.raw.as_str(), "command" | "which" | "type" | "hash" | "test" | "[")),
        ShellCommand::Not(inner) => is_question(inner),
        ShellCommand::Test(_) => true,
        _ => false,
    }
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
