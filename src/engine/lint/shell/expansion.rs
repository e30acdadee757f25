//! Values of words. A word has one value in each world: an assumption about every branch that its variables depend on.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::engine::check::SourceLocation;
use crate::engine::lint::model::{LocatedValue, Variable};
use crate::engine::lint::shell::choice::BranchPath;
use crate::engine::lint::shell::evaluator::Evaluator;
use crate::engine::lint::shell::syntax::RawWord;
use crate::engine::lint::shell::variables::ShellValue;
use crate::engine::lint::shell::word::{WordPiece, pieces};

/// Limit on the worlds of a command.
pub const WORLDS_MAX: usize = 24;
/// Limit on the other worlds that one command leads to, and on the choices of a world.
const OTHERS_MAX: usize = 64;
const CHOICES_MAX: usize = 128;
/// Limit on the length of a value, in bytes.
const TEXT_MAX: usize = 1 << 16;
/// Limit on the fields of a command.
const FIELDS_MAX: usize = 8192;

/// An assumption about the branches that a command's values depend on.
#[derive(Clone, Debug, Default)]
pub struct BranchWorld {
    pub path: BranchPath,
    /// Other worlds in which a value differs.
    pub others: Vec<BranchPath>,
    /// A value is a default that the caller may replace.
    pub uses_default: bool,
}

impl BranchWorld {
    fn other(&mut self, guard: &BranchPath) {
        if self.others.len() < OTHERS_MAX && !self.path.contradicts(guard) {
            let mut path = self.path.clone();
            path.extend(guard);
            self.others.push(path);
        }
    }
}

/// A word after expansion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShellField {
    pub text: String,
    pub place: SourceLocation,
    /// An unknown value without quotes: it may be several words, or none.
    pub is_open: bool,
    /// An unknown list: any number of words.
    pub is_list: bool,
}

impl ShellField {
    /// A word whose value is known.
    pub fn new(text: impl Into<String>, place: SourceLocation) -> ShellField {
        ShellField { text: text.into(), place, is_open: false, is_list: false }
    }
}

/// Joins pieces into fields.
struct FieldBuilder {
    done: Vec<ShellField>,
    current: Option<ShellField>,
    place: SourceLocation,
}

impl FieldBuilder {
    fn push(&mut self, text: &str) {
        let place = &self.place;
        let field = self.current.get_or_insert_with(|| ShellField::new("", place.clone()));
        if field.text.len() + text.len() <= TEXT_MAX {
            field.text.push_str(text);
        }
        field.is_open = false;
    }

    fn end(&mut self) {
        if let Some(field) = self.current.take().filter(|_| self.done.len() < FIELDS_MAX) {
            self.done.push(field);
        }
    }

    /// Adds a value that is only known at run time.
    fn unknown(&mut self, text: &str, quoted: bool, is_list: bool) {
        let fresh = self.current.is_none();
        self.push(text);
        if let Some(field) = self.current.as_mut().filter(|_| fresh) {
            field.is_open = !quoted || is_list;
            field.is_list = is_list;
        }
    }

    /// A value without quotes: white space separates fields.
    fn split(&mut self, text: &str, place: Option<&SourceLocation>) {
        for (at, line) in text.split(char::is_whitespace).enumerate() {
            if at > 0 {
                self.end();
            }
            if !line.is_empty() {
                let fresh = self.current.is_none();
                self.push(line);
                if let Some(field) = self.current.as_mut().filter(|_| fresh) {
                    field.is_open = line.starts_with('$') && !line.starts_with("$!");
                    field.place = place.cloned().unwrap_or_else(|| field.place.clone());
                }
            }
        }
    }

    /// The elements of a list, each a field of its own.
    fn list(&mut self, items: &[ListItem], quoted: bool) {
        for (at, item) in items.iter().enumerate() {
            if at > 0 {
                self.end();
            }
            if !quoted {
                self.split(&item.located.text, Some(&item.located.place));
                continue;
            }
            let fresh = self.current.is_none();
            self.push(&item.located.text);
            if let Some(field) = self.current.as_mut().filter(|_| fresh) {
                field.place = item.located.place.clone();
                field.is_open = item.is_open;
            }
        }
    }
}

/// An element of a list.
#[derive(Clone, Debug)]
pub struct ListItem {
    pub located: LocatedValue,
    pub is_open: bool,
}

/// The value of an expansion.
pub enum ExpandedValue {
    /// Parts of one text.
    Text(Vec<LocatedValue>),
    List(Vec<ListItem>),
    /// The text stands for the value, and contains `$`.
    Unknown(String),
    UnknownList(String),
    Unset,
}

impl ExpandedValue {
    /// The value as one text, if it is known.
    pub fn known(&self) -> Option<String> {
        match self {
            ExpandedValue::Text(parts) => {
                let text: String = parts.iter().map(|part| part.text.as_str()).collect();
                (!text.contains('$')).then_some(text)
            }
            ExpandedValue::Unset => Some(String::new()),
            _ => None,
        }
    }
}

impl Evaluator<'_> {
    /// The world of the current branch.
    pub(super) fn world(&self) -> BranchWorld {
        BranchWorld { path: self.path.clone(), ..BranchWorld::default() }
    }

    /// Calls `evaluate` in each world, at most `most`, beginning with the one in which no optional branch is taken.
    pub(super) fn in_worlds<T>(
        &mut self,
        most: usize,
        mut evaluate: impl FnMut(&mut Self, &mut BranchWorld) -> T,
    ) -> Vec<(BranchWorld, T)> {
        let mut queue = VecDeque::from([self.path.clone()]);
        let (mut visited, mut out) = (BTreeSet::new(), Vec::new());
        while let Some(path) = queue.pop_front().filter(|_| out.len() < most) {
            let mut world = BranchWorld { path, ..BranchWorld::default() };
            let value = evaluate(self, &mut world);
            for other in world.others.drain(..) {
                if visited.len() < 8 * most && visited.insert(other.clone()) {
                    queue.push_back(other);
                }
            }
            out.push((world, value));
        }
        out
    }

    /// The value that `name` has in `world`.
    pub(super) fn lookup(&self, name: &str, world: &mut BranchWorld) -> Option<ShellValue> {
        let variable = self.variables.get(name)?;
        let is_certain = variable.entries.len() == 1 && variable.entries[0].path.choices().is_empty();
        if !is_certain && world.path.choices().len() > CHOICES_MAX {
            return None;
        }
        let may_be_set = variable.entries.iter().any(|entry| entry.value.is_unknown());
        for entry in variable.entries.iter().rev() {
            if world.path.contradicts(&entry.path) {
                continue;
            }
            match world.path.missing(&entry.path) {
                None => {
                    world.path.extend(&entry.path);
                    world.uses_default |= entry.is_default;
                    // An empty text that another branch replaces by an unknown value only reserves the name.
                    if may_be_set && entry.value.is_empty() {
                        return None;
                    }
                    return Some(entry.value.clone());
                }
                Some(choice) => {
                    let avoided = choice.negated();
                    if !entry.value.is_unknown() {
                        world.other(&entry.path);
                    }
                    world.path.push(avoided);
                }
            }
        }
        None
    }

    /// The parts of a value that exist in `world`.
    fn present(parts: &[super::variables::GuardedPart], world: &mut BranchWorld) -> Vec<ListItem> {
        let mut out = Vec::with_capacity(parts.len());
        for part in parts {
            if world.path.contradicts(&part.guard) {
                continue;
            }
            match world.path.missing(&part.guard) {
                None => out.push(ListItem { located: part.located.clone(), is_open: part.is_open }),
                Some(_) => world.other(&part.guard),
            }
        }
        out
    }

    /// The value of `name`, with all elements if it is an array and `whole` is set.
    pub(super) fn value_of(&self, name: &str, whole: bool, world: &mut BranchWorld) -> ExpandedValue {
        match self.lookup(name, world) {
            None => ExpandedValue::Unknown(format!("${name}")),
            Some(ShellValue::Unknown(located)) if whole => {
                ExpandedValue::UnknownList(unknown_text(&located.text, name))
            }
            Some(ShellValue::Unknown(located)) => ExpandedValue::Unknown(unknown_text(&located.text, name)),
            Some(ShellValue::Unset) => ExpandedValue::Unset,
            Some(ShellValue::Text(parts)) => {
                let parts = Self::present(&parts, world);
                ExpandedValue::Text(parts.into_iter().map(|item| item.located).collect())
            }
            Some(ShellValue::Array(parts)) => {
                let items = Self::present(&parts, world);
                match whole {
                    true => ExpandedValue::List(items),
                    false => match items.into_iter().next() {
                        Some(item) => ExpandedValue::Text(vec![item.located]),
                        None => ExpandedValue::Unset,
                    },
                }
            }
        }
    }

    /// The fields of `words` in `world`.
    pub(super) fn fields(&mut self, words: &[RawWord], world: &mut BranchWorld) -> Vec<ShellField> {
        let mut out = Vec::new();
        for word in words {
            let place = self.at(word.line);
            for raw in braces(&word.raw) {
                out.extend(self.fields_of(&pieces(&raw, false), &place, world));
                if out.len() > FIELDS_MAX {
                    break;
                }
            }
        }
        // Long lists count like several commands.
        self.out.steps = self.out.steps.saturating_add(u32::try_from(out.len() / 64).unwrap_or(0));
        out
    }

    fn fields_of(&mut self, pieces: &[WordPiece], place: &SourceLocation, world: &mut BranchWorld) -> Vec<ShellField> {
        let mut builder = FieldBuilder { done: Vec::new(), current: None, place: place.clone() };
        for piece in pieces {
            match piece {
                WordPiece::Text { text, .. } => builder.push(text),
                WordPiece::Parameter(used) => {
                    let is_list = used.index.as_deref() == Some("@") || used.name == "@";
                    match self.parameter(used, world, place) {
                        ExpandedValue::Text(parts) if used.quoted => parts.iter().for_each(|p| builder.push(&p.text)),
                        ExpandedValue::Text(parts) => {
                            let only = parts.len() > 1;
                            parts.iter().for_each(|p| builder.split(&p.text, only.then_some(&p.place)));
                        }
                        ExpandedValue::List(items) if used.quoted && !is_list => {
                            let all: Vec<&str> = items.iter().map(|item| item.located.text.as_str()).collect();
                            builder.push(&all.join(" "));
                        }
                        // `"${EMPTY[@]}"` does not add an empty word.
                        ExpandedValue::List(items) if items.is_empty() => {
                            builder.current.take_if(|field| field.text.is_empty());
                        }
                        ExpandedValue::List(items) => builder.list(&items, used.quoted),
                        ExpandedValue::Unknown(text) => builder.unknown(&text, used.quoted, false),
                        ExpandedValue::UnknownList(text) => builder.unknown(&text, used.quoted, is_list),
                        ExpandedValue::Unset if used.quoted && !is_list => builder.push(""),
                        ExpandedValue::Unset => {}
                    }
                }
                WordPiece::Command { text, quoted, line } => {
                    match self.substituted(text, place.line.saturating_add(*line), world) {
                        Some(text) if *quoted => builder.push(&text),
                        Some(text) => builder.split(&text, None),
                        None => builder.unknown(&shown_command(text), *quoted, false),
                    }
                }
                WordPiece::Arithmetic { text } => match self.arithmetic(text, world) {
                    Some(number) => builder.push(&number.to_string()),
                    None => builder.push(&format!("$(({text}))")),
                },
                WordPiece::Opaque => builder.unknown("$", true, false),
            }
        }
        builder.end();
        builder.done
    }

    /// One text for `word`, as in an assignment: without splitting into fields.
    pub(super) fn text_of(&mut self, word: &RawWord, world: &mut BranchWorld) -> String {
        let place = self.at(word.line);
        self.text_of_pieces(&pieces(&word.raw, false), &place, world, false)
    }

    /// The text of a here-document. Unknown values are short, so that they are valid in JSON strings and YAML.
    pub(super) fn document_text(&mut self, body: &str, place: &SourceLocation, world: &mut BranchWorld) -> String {
        self.text_of_pieces(&pieces(body, true), place, world, true)
    }

    pub(super) fn text_of_pieces(
        &mut self,
        pieces: &[WordPiece],
        place: &SourceLocation,
        world: &mut BranchWorld,
        in_document: bool,
    ) -> String {
        let mut out = String::new();
        for piece in pieces {
            match piece {
                WordPiece::Text { text, .. } => out.push_str(text),
                WordPiece::Parameter(used) => match self.parameter(used, world, place) {
                    ExpandedValue::Text(parts) => parts.iter().for_each(|part| out.push_str(&part.text)),
                    ExpandedValue::List(items) => {
                        let all: Vec<&str> = items.iter().map(|item| item.located.text.as_str()).collect();
                        out.push_str(&all.join(" "));
                    }
                    ExpandedValue::Unknown(_) | ExpandedValue::UnknownList(_) if in_document => {
                        out.push('$');
                        out.extend(used.name.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '_'));
                    }
                    ExpandedValue::Unknown(text) | ExpandedValue::UnknownList(text) => out.push_str(&text),
                    ExpandedValue::Unset => {}
                },
                WordPiece::Command { text, line, .. } => {
                    match self.substituted(text, place.line.saturating_add(*line), world) {
                        Some(text) => out.push_str(&text),
                        None if in_document => out.push_str("$command"),
                        None => out.push_str(&shown_command(text)),
                    }
                }
                WordPiece::Arithmetic { text } => match self.arithmetic(text, world) {
                    Some(number) => out.push_str(&number.to_string()),
                    None => out.push_str("$number"),
                },
                WordPiece::Opaque => out.push('$'),
            }
            if out.len() > TEXT_MAX * 4 {
                break;
            }
        }
        out
    }

    /// The environment of a process in `world`. `whole` includes variables that are not exported.
    pub(super) fn environment(&self, world: &mut BranchWorld, whole: bool) -> BTreeMap<String, Variable> {
        let mut env = BTreeMap::new();
        // Only the variables of the supported programs are worth a world of their own.
        let mut apart = BranchWorld { path: world.path.clone(), ..BranchWorld::default() };
        for (name, variable) in self.variables.iter().filter(|(_, variable)| variable.is_exported || whole) {
            let value = self.lookup(name, if matters(name) { &mut *world } else { &mut apart });
            let variable = match value {
                Some(ShellValue::Text(parts) | ShellValue::Array(parts)) => {
                    let place = parts.first().map_or_else(|| self.place.clone(), |part| part.located.place.clone());
                    let parts = Self::present(&parts, world);
                    let text: String = parts.iter().map(|part| part.located.text.as_str()).collect();
                    Variable::Text(LocatedValue::new(text, place))
                }
                Some(ShellValue::Unknown(located)) => Variable::Elsewhere(located),
                Some(ShellValue::Unset) => continue,
                None => {
                    let place = variable.entries.last().and_then(|entry| entry.value.place()).unwrap_or(&self.place);
                    Variable::Elsewhere(LocatedValue::new(format!("${name}"), place.clone()))
                }
            };
            env.insert(name.clone(), variable);
        }
        env
    }
}

/// Whether a variable may be a setting of a supported program.
fn matters(name: &str) -> bool {
    ["MC_", "MOONCAKE_", "SGLANG_", "MCCTL_", "LMCACHE_", "VLLM_"].iter().any(|prefix| name.starts_with(prefix))
}

fn unknown_text(text: &str, name: &str) -> String {
    if text.contains('$') { text.to_owned() } else { format!("${name}") }
}

/// A command substitution in one word, because the shell does not split an unknown text.
fn shown_command(text: &str) -> String {
    let line: Vec<&str> = text.split_whitespace().collect();
    format!("$({})", line.join("_"))
}

/// Limit on the number of words that the braces of one word expand to.
const BRACE_WORDS_MAX: usize = 256;

/// Expands `{0..3}` and `a{b,c}`, also several in one word. Other words stay unchanged.
fn braces(raw: &str) -> Vec<String> {
    let mut words = first_braces(raw);
    while words.len() <= BRACE_WORDS_MAX {
        let next: Vec<String> = words.iter().flat_map(|word| first_braces(word)).collect();
        if next.len() == words.len() {
            break;
        }
        words = next;
    }
    words
}

/// Expands the first braces of a word.
fn first_braces(raw: &str) -> Vec<String> {
    let same = || vec![raw.to_owned()];
    if raw.contains(['$', '\'', '"', '`', '\\']) {
        return same();
    }
    let Some((before, rest)) = raw.split_once('{') else { return same() };
    let Some((inner, after)) = rest.split_once('}') else { return same() };
    if let Some((first, last)) = inner.split_once("..")
        && let (Ok(from), Ok(to)) = (first.parse::<i64>(), last.parse::<i64>())
    {
        let count = i64::try_from(from.abs_diff(to).min(255)).unwrap_or(255);
        let step = if from <= to { 1 } else { -1 };
        // If one end has leading zeros, all numbers have the same length.
        let is_padded = |text: &str| text.len() > 1 && text.trim_start_matches(['-', '+']).starts_with('0');
        let width = if is_padded(first) || is_padded(last) { first.len().max(last.len()) } else { 0 };
        return (0..=count).map(|n| format!("{before}{:0width$}{after}", from + n * step)).collect();
    }
    if inner.contains(',') && !inner.contains(['{', ':']) {
        return inner.split(',').map(|part| format!("{before}{part}{after}")).collect();
    }
    same()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_expand_to_lists_and_ranges() {
        assert_eq!(braces("a{b,c}d"), ["abd", "acd"]);
        assert_eq!(braces("{2..0}"), ["2", "1", "0"]);
        assert_eq!(braces("5{1,2}{3..4}"), ["513", "514", "523", "524"]);
        assert_eq!(braces("{a,b}{c,d}{e,f}{g,h}{i,j}{k,l}{m,n}{o,p}{q,r}{s,t}").len(), 512);
        assert_eq!(braces("{08..10}"), ["08", "09", "10"]);
        assert_eq!(braces("{1..-01}"), ["001", "000", "-01"]);
        assert_eq!(braces("{-9223372036854775808..9223372036854775807}").len(), 256);
        assert_eq!(braces("'{1..2}'"), ["'{1..2}'"]);
    }
}
