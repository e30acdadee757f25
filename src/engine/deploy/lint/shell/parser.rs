//! Parses a script with the grammar `tree-sitter-bash` into the tree of `syntax.rs`.
//!
//! Text that the grammar does not accept becomes [`ShellCommand::Unreadable`]; the parser continues
//! after it.

use std::ops::ControlFlow;
use std::sync::Arc;

use tree_sitter::{Node, ParseOptions, Parser};

use crate::lint::shell::syntax::{
    AssignedText, HereDocument, RawWord, Redirect, ShellAssignment, ShellBlock, ShellCommand, ShellNode,
};

/// Limit on the nesting of commands.
const DEPTH_MAX: u32 = 60;
/// Limit on the parser's steps (of 100 operations each) per 1000 bytes of text. Scripts need up to
/// 10; error recovery in hostile text takes quadratic time.
const STEPS_PER_KB_MAX: usize = 16;
/// Steps that a short text may take.
const STEPS_MIN: usize = 100;
/// Limit on the steps of error recovery. Scripts need up to 10.
const RECOVERY_STEPS_MAX: u32 = 40;
/// Limit on the length of a line: the grammar reads ahead in it.
const LINE_BYTES_MAX: usize = 64 << 10;
/// Limit on the number of `|`: a broken pipeline takes quadratic memory.
const PIPES_MAX: usize = 2048;

/// The commands of `text`, whose first line is `line`.
pub(super) fn parse(text: &str, line: u32) -> ShellBlock {
    let text = joined(text);
    let mut parser = Parser::new();
    if parser.set_language(&tree_sitter_bash::LANGUAGE.into()).is_err() {
        return Vec::new();
    }
    let most = STEPS_MIN + text.len() * STEPS_PER_KB_MAX / 1000;
    let mut steps = 0;
    let mut recovery = 0;
    let mut progress = |state: &tree_sitter::ParseState| {
        steps += 1;
        recovery += u32::from(state.has_error());
        if steps > most || recovery > RECOVERY_STEPS_MAX { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let options = ParseOptions::new().progress_callback(&mut progress);
    let bytes = text.as_bytes();
    let is_long = text.matches('|').nth(PIPES_MAX).is_some() || text.lines().any(|line| line.len() > LINE_BYTES_MAX);
    let tree = match is_long {
        true => None,
        false => parser.parse_with_options(&mut |at, _| bytes.get(at..).unwrap_or_default(), None, Some(options)),
    };
    let reader = SyntaxReader { text: &text, first_line: line };
    match tree {
        Some(tree) => reader.block(tree.root_node(), 0),
        None => {
            let lines = u32::try_from(text.lines().count()).unwrap_or(u32::MAX).max(1);
            vec![ShellNode { command: ShellCommand::Unreadable, line, lines }]
        }
    }
}

/// `text` without what the grammar misreads: carriage returns before line ends, and comments in
/// backquotes, which scripts put between the lines of a command.
fn joined(text: &str) -> String {
    let text = text.replace("\r\n", "\n");
    let mut out = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(at) = rest.find(" `#") {
        let (before, behind) = rest.split_at(at + 1);
        out.push_str(before);
        match behind[1..].find(['`', '\n']).filter(|end| behind.as_bytes().get(end + 1) == Some(&b'`')) {
            Some(end) => {
                out.extend(std::iter::repeat_n(' ', end + 2));
                rest = &behind[end + 2..];
            }
            None => {
                out.push_str(&behind[..1]);
                rest = &behind[1..];
            }
        }
    }
    out + rest
}

struct SyntaxReader<'t> {
    text: &'t str,
    first_line: u32,
}

impl SyntaxReader<'_> {
    fn raw(&self, node: Node<'_>) -> &str {
        self.text.get(node.byte_range()).unwrap_or_default()
    }

    fn line(&self, node: Node<'_>) -> u32 {
        self.first_line.saturating_add(u32::try_from(node.start_position().row).unwrap_or(u32::MAX))
    }

    fn word(&self, node: Node<'_>) -> RawWord {
        RawWord { raw: self.raw(node).to_owned(), line: self.line(node) }
    }

    fn node(&self, node: Node<'_>, command: ShellCommand) -> ShellNode {
        let end = self.text.get(..node.end_byte()).unwrap_or_default();
        // A block ends after its last line feed.
        let rows = node.end_position().row - usize::from(end.ends_with('\n') && node.end_position().row > 0);
        let lines = u32::try_from(rows.saturating_sub(node.start_position().row)).unwrap_or(u32::MAX);
        ShellNode { command, line: self.line(node), lines: lines.saturating_add(1) }
    }

    /// The statements among the children of `node`.
    fn block(&self, node: Node<'_>, depth: u32) -> ShellBlock {
        let mut out = ShellBlock::new();
        let mut cursor = node.walk();
        for child in node.children(&mut cursor) {
            self.statement_into(child, depth, &mut out);
        }
        out
    }

    fn statement_into(&self, child: Node<'_>, depth: u32, out: &mut ShellBlock) {
        if child.kind() == "&" {
            if let Some(last) = out.pop() {
                let (line, lines) = (last.line, last.lines);
                out.push(ShellNode { command: ShellCommand::Background(Box::new(last)), line, lines });
            }
        } else if child.is_named() && child.kind() != "comment" {
            out.extend(self.statement(child, depth));
        } else if child.is_error() {
            out.push(self.node(child, ShellCommand::Unreadable));
        }
    }

    fn statement(&self, node: Node<'_>, depth: u32) -> Option<ShellNode> {
        if depth > DEPTH_MAX || node.is_error() {
            return Some(self.node(node, ShellCommand::Unreadable));
        }
        let deeper = depth + 1;
        let command = match node.kind() {
            "command" => self.simple(node)?,
            "variable_assignment" => {
                ShellCommand::Simple { assignments: vec![self.assignment(node)], words: Vec::new() }
            }
            "variable_assignments" => {
                let mut cursor = node.walk();
                let all = node.named_children(&mut cursor).filter(|n| n.kind() == "variable_assignment");
                ShellCommand::Simple { assignments: all.map(|n| self.assignment(n)).collect(), words: Vec::new() }
            }
            "declaration_command" => self.declaration(node),
            "unset_command" => {
                let mut cursor = node.walk();
                let words = node.children(&mut cursor).map(|n| self.word(n)).collect();
                ShellCommand::Simple { assignments: Vec::new(), words }
            }
            "test_command" => self.test(node),
            "negated_command" => {
                let inner = node.named_child(0).and_then(|n| self.statement(n, deeper))?;
                ShellCommand::Not(Box::new(inner))
            }
            "pipeline" => ShellCommand::Pipeline(self.block(node, deeper)),
            "list" => return self.list(node, deeper),
            "compound_statement" if self.raw(node).starts_with("((") => {
                let raw = self.raw(node).trim_start_matches('(').trim_end_matches(')');
                ShellCommand::Arithmetic(RawWord { raw: raw.to_owned(), line: self.line(node) })
            }
            "compound_statement" | "do_group" => ShellCommand::Group(self.block(node, deeper)),
            "subshell" => ShellCommand::Subshell(self.block(node, deeper)),
            "if_statement" => self.branches(node, deeper),
            "case_statement" => self.case(node, deeper),
            "for_statement" => {
                let name = node.child_by_field_name("variable").map(|n| self.raw(n).to_owned()).unwrap_or_default();
                let mut cursor = node.walk();
                let words: Vec<RawWord> =
                    node.children_by_field_name("value", &mut cursor).map(|n| self.word(n)).collect();
                let has_in = node.children(&mut cursor).any(|n| n.kind() == "in");
                let body = node.child_by_field_name("body").map(|n| self.block(n, deeper)).unwrap_or_default();
                ShellCommand::For { name, words: has_in.then_some(words), body }
            }
            "c_style_for_statement" => {
                let raw = self.raw(node);
                let header = raw.split_once("((").and_then(|(_, rest)| rest.split_once("))")).map_or("", |(h, _)| h);
                let body = node.child_by_field_name("body").map(|n| self.block(n, deeper)).unwrap_or_default();
                ShellCommand::CountedFor { header: header.to_owned(), body }
            }
            "while_statement" => {
                let mut cursor = node.walk();
                let condition = node.children_by_field_name("condition", &mut cursor);
                let condition = condition.filter_map(|n| self.statement(n, deeper)).collect();
                let body = node.child_by_field_name("body").map(|n| self.block(n, deeper)).unwrap_or_default();
                ShellCommand::While { until: self.raw(node).starts_with("until"), condition, body }
            }
            "function_definition" => {
                let name = node.child_by_field_name("name").map(|n| self.raw(n).to_owned()).unwrap_or_default();
                let body = node.child_by_field_name("body").and_then(|n| self.statement(n, deeper));
                ShellCommand::Function(name, Arc::new(body.into_iter().collect()))
            }
            "redirected_statement" => return self.redirected(node, deeper),
            "file_redirect" | "herestring_redirect" | "heredoc_redirect" => {
                let nothing = ShellCommand::Simple { assignments: Vec::new(), words: Vec::new() };
                ShellCommand::Redirected(Box::new(self.node(node, nothing)), self.redirects(node))
            }
            _ => return None,
        };
        Some(self.node(node, command))
    }

    fn simple(&self, node: Node<'_>) -> Option<ShellCommand> {
        let (mut assignments, mut words, mut redirects) = (Vec::new(), Vec::new(), Vec::new());
        let mut cursor = node.walk();
        for child in node.children(&mut cursor) {
            match child.kind() {
                "variable_assignment" => assignments.push(self.assignment(child)),
                "comment" => {}
                "file_redirect" | "herestring_redirect" | "heredoc_redirect" => redirects.extend(self.redirects(child)),
                "ERROR" => return Some(ShellCommand::Unreadable),
                // `==` and `=~` are tokens of their own.
                _ => words.push(self.word(child)),
            }
        }
        let command = ShellCommand::Simple { assignments, words };
        Some(if redirects.is_empty() {
            command
        } else {
            ShellCommand::Redirected(Box::new(self.node(node, command)), redirects)
        })
    }

    fn assignment(&self, node: Node<'_>) -> ShellAssignment {
        let line = self.line(node);
        let named = node.child_by_field_name("name");
        let (name, index) = match named.map(|n| self.raw(n)) {
            Some(text) => match text.split_once('[') {
                Some((name, index)) => (name.to_owned(), Some(index.trim_end_matches(']').to_owned())),
                None => (text.to_owned(), None),
            },
            None => (String::new(), None),
        };
        let mut cursor = node.walk();
        let append = node.children(&mut cursor).any(|n| n.kind() == "+=");
        let value = match node.child_by_field_name("value") {
            Some(array) if array.kind() == "array" => {
                let mut cursor = array.walk();
                let items = array.named_children(&mut cursor).filter(|n| n.kind() != "comment");
                AssignedText::Array(items.map(|n| self.word(n)).collect())
            }
            Some(value) => AssignedText::Word(self.word(value)),
            None => AssignedText::Word(RawWord { raw: String::new(), line }),
        };
        ShellAssignment { name, index, append, value, line }
    }

    fn declaration(&self, node: Node<'_>) -> ShellCommand {
        let (mut keyword, mut options, mut assignments) = (String::new(), Vec::new(), Vec::new());
        let mut cursor = node.walk();
        for child in node.children(&mut cursor) {
            match child.kind() {
                "variable_assignment" => assignments.push(self.assignment(child)),
                "variable_name" => assignments.push(ShellAssignment {
                    name: self.raw(child).to_owned(),
                    index: None,
                    append: false,
                    value: AssignedText::Kept,
                    line: self.line(child),
                }),
                _ if keyword.is_empty() => keyword = self.raw(child).to_owned(),
                _ => options.push(self.word(child)),
            }
        }
        ShellCommand::Declaration { keyword, options, assignments }
    }

    fn test(&self, node: Node<'_>) -> ShellCommand {
        let raw = self.raw(node);
        let line = self.line(node);
        for (open, close) in [("[[", "]]"), ("((", "))"), ("[", "]")] {
            if let Some(inner) = raw.strip_prefix(open).and_then(|rest| rest.strip_suffix(close)) {
                let word = RawWord { raw: inner.trim().to_owned(), line };
                return if open == "((" { ShellCommand::Arithmetic(word) } else { ShellCommand::Test(word) };
            }
        }
        ShellCommand::Test(RawWord { raw: raw.to_owned(), line })
    }

    fn list(&self, node: Node<'_>, depth: u32) -> Option<ShellNode> {
        let mut out: Option<ShellNode> = None;
        let mut is_and = true;
        let mut cursor = node.walk();
        for child in node.children(&mut cursor) {
            match child.kind() {
                "&&" => is_and = true,
                "||" => is_and = false,
                _ => {
                    let Some(next) = self.statement(child, depth) else { continue };
                    out = Some(match out {
                        None => next,
                        Some(left) => self.joined_by(node, is_and, left, next),
                    });
                }
            }
        }
        out
    }

    fn joined_by(&self, node: Node<'_>, is_and: bool, left: ShellNode, right: ShellNode) -> ShellNode {
        let (left, right) = (Box::new(left), Box::new(right));
        self.node(node, if is_and { ShellCommand::Both(left, right) } else { ShellCommand::Either(left, right) })
    }

    fn branches(&self, node: Node<'_>, depth: u32) -> ShellCommand {
        let (mut arms, mut otherwise) = (Vec::new(), ShellBlock::new());
        let (mut condition, mut body, mut in_body) = (ShellBlock::new(), ShellBlock::new(), false);
        let mut cursor = node.walk();
        for child in node.children(&mut cursor) {
            match child.kind() {
                "then" => in_body = true,
                "elif_clause" => {
                    let ShellCommand::If(mut inner, _) = self.branches(child, depth) else { continue };
                    arms.append(&mut inner);
                }
                "else_clause" => otherwise = self.block(child, depth),
                _ if in_body => self.statement_into(child, depth, &mut body),
                _ => self.statement_into(child, depth, &mut condition),
            }
        }
        arms.insert(0, (condition, body));
        ShellCommand::If(arms, otherwise)
    }

    fn case(&self, node: Node<'_>, depth: u32) -> ShellCommand {
        let subject = node.child_by_field_name("value").map(|n| self.word(n));
        let mut arms = Vec::new();
        let mut cursor = node.walk();
        for item in node.children(&mut cursor).filter(|n| n.kind() == "case_item") {
            let (mut patterns, mut body, mut in_body) = (Vec::new(), ShellBlock::new(), false);
            let mut inner = item.walk();
            for child in item.children(&mut inner) {
                match child.kind() {
                    ")" if !in_body => in_body = true,
                    _ if in_body => self.statement_into(child, depth, &mut body),
                    "(" | "|" | "comment" => {}
                    _ => patterns.push(self.word(child)),
                }
            }
            arms.push((patterns, body));
        }
        ShellCommand::Case(subject.unwrap_or(RawWord { raw: String::new(), line: self.line(node) }), arms)
    }

    fn redirected(&self, node: Node<'_>, depth: u32) -> Option<ShellNode> {
        let body = node.child_by_field_name("body").and_then(|n| self.statement(n, depth));
        let nothing = ShellCommand::Simple { assignments: Vec::new(), words: Vec::new() };
        let mut body = body.unwrap_or_else(|| self.node(node, nothing));
        let (mut redirects, mut pipeline, mut rest) = (Vec::new(), ShellBlock::new(), None);
        let mut cursor = node.walk();
        for child in node.children_by_field_name("redirect", &mut cursor) {
            redirects.extend(self.redirects(child));
            if child.kind() != "heredoc_redirect" {
                continue;
            }
            // The rest of the line that contains `<<EOF` is part of the here-document's node.
            let mut is_and = true;
            for at in 0..child.child_count() {
                let Some(part) = child.child(at) else { continue };
                let field = child.field_name_for_child(at);
                match part.kind() {
                    "&&" => is_and = true,
                    "||" => is_and = false,
                    "pipeline" => pipeline.extend(self.block(part, depth)),
                    "heredoc_start" | "heredoc_body" | "heredoc_end" | "file_redirect" | "herestring_redirect" => {}
                    _ if field == Some("right") => {
                        rest = self.statement(part, depth).map(|right| (is_and, right));
                    }
                    _ if field == Some("argument") => {
                        if let ShellCommand::Simple { words, .. } = &mut body.command {
                            words.push(self.word(part));
                        }
                    }
                    _ => {}
                }
            }
        }
        let mut out = self.node(node, ShellCommand::Redirected(Box::new(body), redirects));
        if !pipeline.is_empty() {
            pipeline.insert(0, out);
            out = self.node(node, ShellCommand::Pipeline(pipeline));
        }
        Some(match rest {
            Some((is_and, right)) => self.joined_by(node, is_and, out, right),
            None => out,
        })
    }

    fn redirects(&self, node: Node<'_>) -> Vec<Redirect> {
        match node.kind() {
            "herestring_redirect" => {
                node.named_child(0).map(|n| Redirect::HereString(self.word(n))).into_iter().collect()
            }
            "file_redirect" => self.file_redirect(node).into_iter().collect(),
            _ => {
                let mut out = Vec::new();
                let start = node.named_children(&mut node.walk()).find(|n| n.kind() == "heredoc_start");
                let literal = start.is_some_and(|n| self.raw(n).contains(['\'', '"', '\\']));
                let tabs = self.raw(node).starts_with("<<-");
                let body = node.named_children(&mut node.walk()).find(|n| n.kind() == "heredoc_body");
                if let Some(body) = body {
                    let text = self.raw(body);
                    let body_text = match tabs {
                        true => text.split('\n').map(|l| l.trim_start_matches('\t')).collect::<Vec<_>>().join("\n"),
                        false => text.to_owned(),
                    };
                    out.push(Redirect::Here(HereDocument { body: body_text, line: self.line(body), literal }));
                }
                let mut cursor = node.walk();
                out.extend(
                    node.named_children(&mut cursor)
                        .filter(|n| n.kind() == "file_redirect")
                        .filter_map(|n| self.file_redirect(n)),
                );
                out
            }
        }
    }

    fn file_redirect(&self, node: Node<'_>) -> Option<Redirect> {
        let target = node.child_by_field_name("destination").map(|n| self.word(n))?;
        let raw = self.raw(node);
        if raw.starts_with(['2', '3', '4', '5', '6', '7', '8', '9', '0']) {
            return None;
        }
        match raw.trim_start_matches('1').trim_start_matches('&') {
            text if text.starts_with(">>") => Some(Redirect::Output { target, append: true }),
            text if text.starts_with(">&") => None,
            text if text.starts_with('>') => Some(Redirect::Output { target, append: false }),
            _ => Some(Redirect::Input),
        }
    }
}
