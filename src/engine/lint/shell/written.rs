//! Redirections and here-documents: text that a script writes to a file, or passes to another program.

use crate::engine::lint::model::LocatedValue;
use crate::engine::lint::shell::choice::{BranchPath, ScriptSpan};
use crate::engine::lint::shell::evaluator::{ControlFlow, Evaluator};
use crate::engine::lint::shell::places::{StreamText, WrittenFile, WrittenText};
use crate::engine::lint::shell::syntax::{HereDocument, RawWord, Redirect, ShellCommand, ShellNode};

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
    /// The variants of a here-document.
    fn document(&mut self, here: &HereDocument) -> Vec<StreamText> {
        let place = self.at(here.line);
        if here.literal {
            let (text, path) = (here.body.clone(), self.path.clone());
            return vec![StreamText { text, place, path }];
        }
        let variants = self.in_worlds(VARIANTS_MAX, |this, world| this.document_text(&here.body, &place, world));
        let mut out: Vec<StreamText> = Vec::new();
        for (world, text) in variants {
            if !out.iter().any(|known| known.text == text) {
                out.push(StreamText { text, place: place.clone(), path: world.path });
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

    /// The output of `echo` or `printf '%s'`. `None` if it contains escapes or another format, which are not followed.
    fn printed(&mut self, words: &[RawWord]) -> Option<StreamText> {
        let (name, arguments) = words.split_first()?;
        let mut world = self.world();
        let fields = self.fields(arguments, &mut world);
        let texts: Vec<&str> = fields.iter().map(|field| field.text.as_str()).collect();
        let (first, text) = match (name.raw.as_str(), texts.as_slice()) {
            ("echo", all) => {
                let is_option = |text: &&&str| {
                    text.strip_prefix('-')
                        .is_some_and(|flags| !flags.is_empty() && flags.chars().all(|c| "neE".contains(c)))
                };
                let options = all.iter().take_while(is_option).count();
                if all[..options].iter().any(|option| option.contains('e')) {
                    return None;
                }
                (options, all[options..].join(" "))
            }
            ("printf", ["%s\\n", rest @ ..]) => (1, rest.join("\n")),
            ("printf", ["%s", rest @ ..]) => (1, rest.concat()),
            _ => return None,
        };
        let place = fields.get(first)?.place.clone();
        Some(StreamText { text, place, path: world.path })
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
            if texts.is_empty() {
                self.lose(target, "is replaced by text that is not known");
            }
            for text in &texts {
                self.write(target, text, *append);
            }
            return ControlFlow::Next;
        }
        let saved = std::mem::replace(&mut self.input, texts.into_iter().next());
        let flow = self.run(body);
        self.input = saved;
        if let Some((target, _)) = &target {
            let name = if name.is_empty() { "other commands" } else { &name };
            self.lose(target, &format!("is changed by {name}"));
        }
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
        let base = base_name(&name).to_owned();
        let known = self.files.get(&base).copied().filter(|_| append);
        if append && known.is_none() && self.last_of(&base).is_some_and(|written| written.changed.is_some()) {
            return;
        }
        let gap = known.map_or(0, |known| text.place.line.saturating_sub(known.end).min(10_000));
        let gap = usize::try_from(gap).unwrap_or_default();
        self.out.written_bytes = self.out.written_bytes.saturating_add(text.text.len() + gap);
        if self.out.written_bytes > WRITTEN_BYTES_MAX {
            self.out.not_read(text.place.clone(), 1, "the script writes more than 1 MiB");
            self.lose_file(&base, "is longer than what is read");
            return;
        }
        let lines = u32::try_from(text.text.matches('\n').count()).unwrap_or(u32::MAX);
        if let Some(known) = known {
            let of_file = self.out.written.get_mut(known.index);
            let same = of_file.filter(|written| {
                written.place.file == text.place.file && written.span.path == text.path && written.changed.is_none()
            });
            let Some(written) = same else {
                self.lose_file(&base, "is appended to in other branches");
                return;
            };
            // Blank lines keep the line numbers of the appended text.
            written.text.push_str(&"\n".repeat(gap));
            written.text.push_str(&text.text);
            let end = text.place.line.max(known.end).saturating_add(lines);
            self.files.insert(base, WrittenFile { end, ..known });
            return;
        }
        let span = self.span_of(&text.path);
        let (body, place) = (text.text.clone(), text.place.clone());
        let file = WrittenFile { index: self.out.written.len(), end: place.line.saturating_add(lines) };
        self.out.written.push(WrittenText { name, text: body, place, span, is_followed: false, changed: None });
        self.files.insert(base, file);
    }

    /// The last text of this script for the file `base`.
    fn last_of(&self, base: &str) -> Option<&WrittenText> {
        let is_it = |written: &&WrittenText| written.span.script == self.script && base_name(&written.name) == base;
        self.out.written.iter().rev().find(is_it)
    }

    /// The text of the file `target` is no longer known.
    fn lose(&mut self, target: &RawWord, reason: &str) {
        let mut world = self.world();
        let name = self.text_of(target, &mut world);
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

    /// Commands that change files which the script has written: `sed -i`, `mv`, `tee` with unknown input.
    pub(super) fn change_files(&mut self, name: &str, words: &[RawWord]) {
        if self.files.is_empty() {
            return;
        }
        let all: Vec<&str> = words.iter().map(|word| word.raw.as_str()).collect();
        let base = |text: &str| base_name(text).to_owned();
        let is_wrapped = matches!(base(name).as_str(), "sudo" | "find" | "xargs");
        let is_editor = |word: &&&str| CHANGING.contains(&base(word).as_str());
        let editor = match is_wrapped {
            true => all.iter().find(is_editor).map(|word| base(word)),
            false => Some(base(name)).filter(|name| CHANGING.contains(&name.as_str())),
        };
        let Some(editor) = editor else { return };
        let in_place = |word: &&str| match word.strip_prefix("--") {
            Some(long) => long.starts_with("in-place") || long.starts_with("inplace"),
            None => *word == "inplace" || word.strip_prefix('-').is_some_and(|flags| flags.contains('i')),
        };
        if matches!(editor.as_str(), "sed" | "perl" | "yq" | "awk" | "gawk") && !all.iter().any(in_place) {
            return;
        }
        let mut world = self.world();
        let fields = self.fields(words, &mut world);
        let reason = format!("is changed by {editor}");
        let last = fields.last().map(|field| field.text.clone()).unwrap_or_default();
        if matches!(editor.as_str(), "mv" | "cp" | "install") {
            // The text of the source stays as it is, and so does a copy under the same name.
            let source = fields.iter().rev().nth(1).map(|field| base(&field.text)).unwrap_or_default();
            if source != base(&last) {
                self.lose_file(&base(&last), &reason);
            }
            return;
        }
        // Which files the name stands for is not known.
        let is_open = is_wrapped && name != "sudo" || base(&last).contains(['$', '*', '?', '[']);
        let named: Vec<String> = match is_open {
            true => self.files.keys().cloned().collect(),
            false => fields.iter().map(|field| base(&field.text)).collect(),
        };
        for file in named {
            self.lose_file(&file, &reason);
        }
    }

    /// Passes standard input to a command that is known to use it. Returns true if the command is fully handled.
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
                        changed: None,
                    });
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

/// The name of a file without its folder.
fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

fn first_word(node: &ShellNode) -> Option<&str> {
    match &node.command {
        ShellCommand::Simple { words, .. } => words.first().map(|word| word.raw.as_str()),
        ShellCommand::Redirected(body, _) => first_word(body),
        _ => None,
    }
}
