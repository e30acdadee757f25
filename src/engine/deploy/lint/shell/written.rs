//! Redirections and here-documents: text that a script writes to a file, or passes to another
//! program.

use crate::lint::model::LocatedValue;
use crate::lint::shell::choice::ScriptSpan;
use crate::lint::shell::effects::StreamText;
use crate::lint::shell::evaluator::{ControlFlow, Evaluator};
use crate::lint::shell::expansion::BranchWorld;
use crate::lint::shell::places::{WrittenFile, WrittenText};
use crate::lint::shell::syntax::{HereDocument, RawWord, Redirect, ShellCommand, ShellNode};
use crate::lint::shell::word::base_name;

/// Limit on the variants of one text.
const VARIANTS_MAX: usize = 8;
/// Limit on the total length of the texts that one script writes.
const WRITTEN_BYTES_MAX: usize = 1 << 20;
/// Commands that may change the files they name. Some do so only with an option.
const CHANGING: &[&str] = &[
    "sed", "perl", "yq", "awk", "gawk", "mv", "cp", "install", "tee", "sponge", "patch", "ed", "ex", "crudini",
    "truncate", "dos2unix",
];

impl Evaluator<'_> {
    /// The variants of a text, the first one without optional branches.
    pub(super) fn streams(
        &mut self,
        output: impl FnMut(&mut Self, &mut BranchWorld) -> Option<LocatedValue>,
    ) -> Vec<StreamText> {
        let mut out: Vec<StreamText> = Vec::new();
        for (world, located) in self.in_worlds(VARIANTS_MAX, output) {
            let Some(located) = located else { continue };
            if !out.iter().any(|known| known.located.text == located.text) {
                out.push(StreamText { located, path: world.path });
            }
        }
        out
    }

    /// Runs a command with redirections.
    pub(super) fn redirected(&mut self, body: &ShellNode, redirects: &[Redirect]) -> ControlFlow {
        let name = base_name(first_word(body)).to_owned();
        let here = here_document(redirects);
        let target = output_file(redirects);
        if let Some((target, append)) =
            target.filter(|_| matches!(name.as_str(), "cat" | "echo" | "printf" | "envsubst"))
        {
            let texts = self.streams(|this, world| this.output_with(body, here, world));
            if texts.is_empty() {
                self.lose(target, "is replaced by text that is not known");
            }
            let file = self.target(target);
            texts.iter().for_each(|text| self.write(&file, text, append));
            return ControlFlow::Next;
        }
        let input = match here {
            Some(here) => self.streams(|this, world| Some(this.document(here, world))).into_iter().next(),
            None => self.input.clone(),
        };
        let saved = std::mem::replace(&mut self.input, input);
        let flow = self.run(body);
        self.input = saved;
        if let Some((target, _)) = target {
            let name = if name.is_empty() { "other commands" } else { &name };
            self.lose(target, &format!("is changed by {name}"));
        }
        flow
    }

    /// Adds a text to what the script writes.
    fn add_text(&mut self, name: &str, text: &StreamText) {
        let span = ScriptSpan {
            script: self.script,
            path: text.path.clone(),
            variants: self.variants.clone(),
            start: self.out.tick(),
            uncertain: self.is_uncertain,
            ..ScriptSpan::default()
        };
        let LocatedValue { text, place } = text.located.clone();
        self.out.written.push(WrittenText {
            name: name.to_owned(),
            text,
            place,
            span,
            is_followed: false,
            changed: None,
        });
    }

    /// The path of the file `target`.
    fn target(&mut self, target: &RawWord) -> String {
        let mut world = self.world();
        self.text_of(target, &mut world)
    }

    fn write(&mut self, name: &str, text: &StreamText, append: bool) {
        if name.starts_with("/dev/") || name.is_empty() {
            return;
        }
        let base = base_name(name).to_owned();
        let known = self.files.get(&base).copied().filter(|_| append);
        if append && known.is_none() && self.last_of(&base).is_some_and(|written| written.changed.is_some()) {
            return;
        }
        let LocatedValue { text: added, place } = &text.located;
        let gap = known.map_or(0, |known| place.line.saturating_sub(known.end).min(10_000));
        let gap = usize::try_from(gap).unwrap_or_default();
        self.out.written_bytes = self.out.written_bytes.saturating_add(added.len() + gap);
        if self.out.written_bytes > WRITTEN_BYTES_MAX {
            self.out.not_read(place.clone(), 1, "the script writes more than 1 MiB");
            self.lose_file(&base, "is longer than what is read");
            return;
        }
        let mut file = WrittenFile { index: self.out.written.len(), end: place.line };
        match known.and_then(|known| Some((known, self.out.written.get_mut(known.index)?))) {
            None => self.add_text(name, text),
            Some((known, written))
                if written.place.file == place.file && written.span.path == text.path && written.changed.is_none() =>
            {
                // Blank lines keep the line numbers of the appended text.
                written.text.push_str(&"\n".repeat(gap));
                written.text.push_str(added);
                file = WrittenFile { end: place.line.max(known.end), ..known };
            }
            Some(_) => {
                self.lose_file(&base, "is appended to in other branches");
                return;
            }
        }
        let lines = u32::try_from(added.matches('\n').count()).unwrap_or(u32::MAX);
        file.end = file.end.saturating_add(lines);
        self.files.insert(base, file);
    }

    /// The last text of this script for the file `base`.
    fn last_of(&self, base: &str) -> Option<&WrittenText> {
        let is_it = |written: &&WrittenText| written.span.script == self.script && base_name(&written.name) == base;
        self.out.written.iter().rev().find(is_it)
    }

    /// The text of the file `target` is no longer known.
    fn lose(&mut self, target: &RawWord, reason: &str) {
        let name = self.target(target);
        self.lose_file(base_name(&name), reason);
    }

    fn lose_file(&mut self, base: &str, reason: &str) {
        if self.files.remove(base).is_none() {
            return;
        }
        let script = self.script;
        let is_it = |written: &&mut WrittenText| written.span.script == script && base_name(&written.name) == base;
        for written in self.out.written.iter_mut().filter(is_it) {
            written.changed.get_or_insert_with(|| reason.to_owned());
        }
    }

    /// Commands that change files which the script has written: `sed -i`, `mv`, `tee` with unknown
    /// input.
    pub(super) fn change_files(&mut self, words: &[RawWord]) {
        if self.files.is_empty() {
            return;
        }
        let mut names = words.iter().map(|word| base_name(&word.raw));
        let is_wrapped = matches!(base_name(&words[0].raw), "sudo" | "find" | "xargs");
        let editor = names.by_ref().take(if is_wrapped { usize::MAX } else { 1 }).find(|name| CHANGING.contains(name));
        let Some(editor) = editor else { return };
        let edits = |word: &RawWord| word.raw == "inplace" || word.raw.starts_with('-') && word.raw.contains('i');
        if matches!(editor, "sed" | "perl" | "yq" | "awk" | "gawk") && !words.iter().any(edits) {
            return;
        }
        let mut world = self.world();
        let fields = self.fields(words, &mut world);
        let mut named: Vec<String> = fields.iter().map(|field| base_name(field.text()).to_owned()).collect();
        let last = named.last().cloned().unwrap_or_default();
        if matches!(editor, "mv" | "cp" | "install") {
            // The text of the source stays as it is, and so does a copy under the same name.
            let is_same = named.iter().rev().nth(1) == Some(&last);
            named = if is_same { Vec::new() } else { vec![last] };
        } else if is_wrapped && words[0].raw != "sudo" || last.contains(['$', '*', '?', '[']) {
            // Which files the name stands for is not known.
            named = self.files.keys().cloned().collect();
        }
        for file in named {
            self.lose_file(&file, &format!("is changed by {editor}"));
        }
    }

    /// Passes standard input to a command that is known to use it. Returns true if the command is
    /// fully handled.
    pub(super) fn use_input(&mut self, name: &str, words: &[RawWord]) -> bool {
        let Some(text) = self.input.clone() else { return false };
        let raw: Vec<&str> = words.iter().map(|word| word.raw.as_str()).collect();
        match if name == "sudo" { raw.get(1).copied().unwrap_or_default() } else { name } {
            "tee" => {
                let is_target =
                    |word: &&RawWord| !word.raw.starts_with('-') && !matches!(word.raw.as_str(), "tee" | "sudo");
                for target in words.iter().filter(is_target) {
                    let file = self.target(target);
                    self.write(&file, &text, raw.contains(&"-a"));
                }
                true
            }
            "kubectl" | "oc" => {
                if raw.iter().any(|word| matches!(*word, "apply" | "create" | "replace")) {
                    self.add_text("", &text);
                }
                true
            }
            _ => false,
        }
    }

    /// The script that `bash FILE` or `./FILE` runs, if this script has written it.
    pub(super) fn written_script(&mut self, path: &str) -> Option<LocatedValue> {
        let known = self.files.get(base_name(path))?;
        let written = self.out.written.get_mut(known.index)?;
        written.is_followed = true;
        Some(LocatedValue::new(written.text.clone(), written.place.clone()))
    }
}

/// The first word of a command. Empty for other commands.
pub(super) fn first_word(node: &ShellNode) -> &str {
    match &node.command {
        ShellCommand::Simple { words, .. } => words.first().map_or("", |word| word.raw.as_str()),
        ShellCommand::Redirected(body, _) | ShellCommand::Not(body) => first_word(body),
        _ => "",
    }
}

/// The here-document among the redirections.
pub(super) fn here_document(redirects: &[Redirect]) -> Option<&HereDocument> {
    redirects.iter().find_map(|redirect| match redirect {
        Redirect::Here(here) => Some(here),
        _ => None,
    })
}

/// The file that standard output goes to, and whether the output is appended.
pub(super) fn output_file(redirects: &[Redirect]) -> Option<(&RawWord, bool)> {
    redirects.iter().rev().find_map(|redirect| match redirect {
        Redirect::Output { target, append } => Some((target, *append)),
        _ => None,
    })
}
