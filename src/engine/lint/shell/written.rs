//! Redirections and here-documents: text that a script writes to a file, or passes to another program.

use crate::engine::lint::model::LocatedValue;
use crate::engine::lint::shell::choice::{BranchPath, ScriptSpan};
use crate::engine::lint::shell::evaluator::{ControlFlow, Evaluator};
use crate::engine::lint::shell::places::{StreamText, WrittenText};
use crate::engine::lint::shell::syntax::{HereDocument, RawWord, Redirect, ShellCommand, ShellNode};

/// Limit on the variants of one text.
const VARIANTS_MAX: usize = 8;

impl Evaluator<'_> {
    /// The variants of a here-document.
    fn document(&mut self, here: &HereDocument) -> Vec<StreamText> {
        let place = self.at(here.line);
        if here.literal {
            let (text, path) = (here.body.clone(), self.path.clone());
            return vec![StreamText { text, place, path, index: None }];
        }
        let variants = self.in_worlds(VARIANTS_MAX, |this, world| this.document_text(&here.body, &place, world));
        let mut out: Vec<StreamText> = Vec::new();
        for (world, text) in variants {
            if !out.iter().any(|known| known.text == text) {
                out.push(StreamText { text, place: place.clone(), path: world.path, index: None });
            }
        }
        out
    }

    /// Standard output of a command that prints known text, for the next command of a pipeline.
    pub(super) fn stream_of(&mut self, node: &ShellNode) -> Option<StreamText> {
        match &node.command {
            ShellCommand::Redirected(body, redirects) => {
                if redirects.iter().any(|redirect| matches!(redirect, Redirect::Output { .. })) {
                    return None;
                }
                let is_cat = first_word(body).is_some_and(|word| matches!(word, "cat" | "envsubst" | "tee" | "sudo"));
                let here = redirects.iter().find_map(|redirect| match redirect {
                    Redirect::Here(here) if is_cat => Some(here.clone()),
                    _ => None,
                })?;
                self.document(&here).into_iter().next()
            }
            ShellCommand::Simple { words, .. } => match first_word(node)? {
                "envsubst" | "tee" | "cat" if words.len() <= 2 => self.input.clone(),
                "echo" | "printf" => self.printed(words),
                _ => None,
            },
            _ => None,
        }
    }

    /// The output of `echo` or `printf '%s'`.
    fn printed(&mut self, words: &[RawWord]) -> Option<StreamText> {
        let mut world = self.world();
        let fields = self.fields(&words[1..], &mut world);
        let first = words
            .iter()
            .skip(1)
            .find(|word| !word.raw.starts_with("-") && word.raw != "'%s\\n'" && word.raw != "'%s'")?;
        let place = self.at(first.line);
        let texts: Vec<String> = fields
            .into_iter()
            .map(|field| field.text)
            .filter(|text| !matches!(text.as_str(), "-e" | "-n" | "%s" | "%s\\n"))
            .collect();
        Some(StreamText { text: texts.join(" "), place, path: world.path, index: None })
    }

    /// Runs a command with redirections.
    pub(super) fn redirected(&mut self, body: &ShellNode, redirects: &[Redirect]) -> ControlFlow {
        let words: Vec<RawWord> = match &body.command {
            ShellCommand::Simple { words, .. } => words.clone(),
            _ => Vec::new(),
        };
        let name = first_word(body).unwrap_or_default().rsplit('/').next().unwrap_or_default().to_owned();
        let here = redirects.iter().find_map(|redirect| match redirect {
            Redirect::Here(here) => Some(here.clone()),
            _ => None,
        });
        let target = redirects.iter().rev().find_map(|redirect| match redirect {
            Redirect::Output { target, append } => Some((target.clone(), *append)),
            _ => None,
        });
        let texts = match &here {
            Some(here) => self.document(here),
            None if matches!(name.as_str(), "echo" | "printf") && target.is_some() => {
                self.printed(&words).into_iter().collect()
            }
            None => self.input.clone().into_iter().collect(),
        };
        if let Some((target, append)) = &target
            && matches!(name.as_str(), "cat" | "echo" | "printf" | "envsubst")
        {
            for text in &texts {
                self.write(target, text, *append);
            }
            return ControlFlow::Next;
        }
        let saved = std::mem::replace(&mut self.input, texts.into_iter().next());
        let flow = self.run(body);
        self.input = saved;
        flow
    }

    fn span_of(&mut self, path: &BranchPath) -> ScriptSpan {
        let start = self.out.tick();
        ScriptSpan {
            script: self.script,
            path: path.clone(),
            variants: self.variants.clone(),
            start,
            end: None,
            foreground: false,
            uncertain: self.is_uncertain,
            may_end: false,
        }
    }

    fn write(&mut self, target: &RawWord, text: &StreamText, append: bool) {
        let mut world = self.world();
        let name = self.text_of(target, &mut world);
        if name.starts_with("/dev/") || name.is_empty() {
            return;
        }
        let base = name.rsplit('/').next().unwrap_or_default().to_owned();
        if append
            && let Some(known) = self.files.get_mut(&base)
            && let Some(written) = known.index.and_then(|at| self.out.written.get_mut(at))
            && written.place.file == text.place.file
        {
            // Blank lines keep the line numbers of the appended text.
            let end = written.place.line + u32::try_from(written.text.matches('\n').count()).unwrap_or(u32::MAX);
            let gap = text.place.line.saturating_sub(end).min(10_000);
            written.text.push_str(&"\n".repeat(usize::try_from(gap).unwrap_or_default()));
            written.text.push_str(&text.text);
            known.text = written.text.clone();
            return;
        }
        let span = self.span_of(&text.path);
        let (body, place) = (text.text.clone(), text.place.clone());
        self.out.written.push(WrittenText { name, text: body, place, span, is_followed: false });
        let index = Some(self.out.written.len() - 1);
        self.files.insert(base, StreamText { index, ..text.clone() });
    }

    /// Passes standard input to a command that is known to use it. True if the command needs no further look.
    pub(super) fn use_input(&mut self, name: &str, words: &[RawWord]) -> bool {
        let Some(text) = self.input.clone() else { return false };
        let raw: Vec<&str> = words.iter().map(|word| word.raw.as_str()).collect();
        let command = if name == "sudo" { raw.get(1).copied().unwrap_or_default() } else { name };
        match command {
            "tee" => {
                let append = raw.contains(&"-a");
                let targets: Vec<RawWord> = words
                    .iter()
                    .filter(|word| !word.raw.starts_with('-') && !matches!(word.raw.as_str(), "tee" | "sudo"))
                    .cloned()
                    .collect();
                for target in targets {
                    self.write(&target, &text, append);
                }
                true
            }
            "kubectl" | "oc" => {
                if raw.iter().any(|word| matches!(*word, "apply" | "create" | "replace")) {
                    let span = self.span_of(&text.path);
                    let (body, place) = (text.text, text.place);
                    self.out.written.push(WrittenText {
                        name: String::new(),
                        text: body,
                        place,
                        span,
                        is_followed: false,
                    });
                }
                true
            }
            _ => false,
        }
    }

    /// The script that `bash FILE` or `./FILE` runs, if this script has written it.
    pub(super) fn written_script(&mut self, path: &str) -> Option<LocatedValue> {
        let base = path.rsplit('/').next()?;
        let text = self.files.get(base)?;
        let located = LocatedValue::new(text.text.clone(), text.place.clone());
        if let Some(written) = text.index.and_then(|at| self.out.written.get_mut(at)) {
            written.is_followed = true;
        }
        Some(located)
    }
}

fn first_word(node: &ShellNode) -> Option<&str> {
    match &node.command {
        ShellCommand::Simple { words, .. } => words.first().map(|word| word.raw.as_str()),
        ShellCommand::Redirected(body, _) => first_word(body),
        _ => None,
    }
}
