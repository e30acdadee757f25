//! Values of words. A word has one value in each world: an assumption about every branch that its
//! variables depend on.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::lint::model::{LocatedValue, Variable};
use crate::lint::shell::choice::BranchPath;
use crate::lint::shell::evaluator::Evaluator;
use crate::lint::shell::field::{ShellField, joined};
use crate::lint::shell::syntax::RawWord;
use crate::lint::shell::variables::{GuardedPart, ShellValue};
use crate::lint::shell::word::{WordPiece, pieces};
use mcctl_base::check::SourceLocation;

/// Limit on the worlds of a command.
pub(super) const WORLDS_MAX: usize = 24;
/// Limit on the other worlds that one command leads to.
const OTHERS_MAX: usize = 64;
/// Limit on the choices of a world, and on those that the arms of one command add.
pub(super) const CHOICES_MAX: usize = 128;
/// Limit on the length of a value, in bytes.
const TEXT_MAX: usize = 1 << 16;
/// Limit on the fields of a command.
const FIELDS_MAX: usize = 8192;

/// An assumption about the branches that a command's values depend on.
#[derive(Clone, Debug, Default)]
pub(super) struct BranchWorld {
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

    /// Whether the values so far are the same in all worlds, whatever the caller sets.
    pub(super) fn is_certain(&self) -> bool {
        self.others.is_empty() && !self.uses_default
    }
}

/// Joins pieces into fields.
struct FieldBuilder {
    done: Vec<ShellField>,
    current: Option<ShellField>,
}

impl FieldBuilder {
    /// Appends to the current field, or begins the next one.
    fn push(&mut self, added: ShellField) {
        let Some(field) = &mut self.current else {
            self.current = Some(added);
            return;
        };
        if field.text().len() + added.text().len() <= TEXT_MAX {
            field.located.text.push_str(added.text());
        }
        field.may_split = false;
    }

    fn end(&mut self) {
        if let Some(field) = self.current.take().filter(|_| self.done.len() < FIELDS_MAX) {
            self.done.push(field);
        }
    }

    /// A value without quotes: white space separates fields.
    fn split(&mut self, text: &str, place: &SourceLocation) {
        for (at, word) in text.split(char::is_whitespace).enumerate() {
            if at > 0 {
                self.end();
            }
            if !word.is_empty() {
                let may_split = word.starts_with('$') && !word.starts_with("$!");
                self.push(ShellField { may_split, ..ShellField::new(word, place.clone()) });
            }
        }
    }

    /// The elements of a list, each a field of its own.
    fn list(&mut self, items: Vec<ShellField>, quoted: bool) {
        for (at, item) in items.into_iter().enumerate() {
            if at > 0 {
                self.end();
            }
            match quoted {
                true => self.push(item),
                false => self.split(item.text(), &item.located.place),
            }
        }
    }
}

/// The value of an expansion.
pub(super) enum ExpandedValue {
    /// Parts of one text. An unset variable has none.
    Text(Vec<ShellField>),
    List(Vec<ShellField>),
    /// The text stands for the value, and contains `$`.
    Unknown(String),
}

impl ExpandedValue {
    /// A text of one part.
    pub(super) fn text(text: impl Into<String>, place: &SourceLocation) -> ExpandedValue {
        ExpandedValue::Text(vec![ShellField::new(text, place.clone())])
    }

    /// The value as one text, if it is known.
    pub(super) fn known(&self) -> Option<String> {
        match self {
            ExpandedValue::Text(parts) => Some(joined(parts, "")).filter(|text| !text.contains('$')),
            _ => None,
        }
    }
}

impl Evaluator<'_> {
    /// The world of the current branch.
    pub(super) fn world(&self) -> BranchWorld {
        BranchWorld { path: self.path.clone(), ..BranchWorld::default() }
    }

    /// Calls `evaluate` in each world, at most `most`, beginning with the one in which no optional
    /// branch is taken.
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
        let is_fixed = variable.entries.len() == 1 && variable.entries[0].path == BranchPath::default();
        if !is_fixed && world.path.count() > CHOICES_MAX {
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
                    // An empty text that another branch replaces by an unknown value only reserves
                    // the name.
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
    fn present(parts: &[GuardedPart], world: &mut BranchWorld) -> Vec<ShellField> {
        let mut out = Vec::with_capacity(parts.len());
        for part in parts {
            match world.path.missing(&part.guard) {
                _ if world.path.contradicts(&part.guard) => {}
                None => out.push(part.field.clone()),
                Some(_) => world.other(&part.guard),
            }
        }
        out
    }

    /// The value of `name`, with all elements if it is an array and `whole` is set.
    pub(super) fn value_of(&self, name: &str, whole: bool, world: &mut BranchWorld) -> ExpandedValue {
        let Some(value) = self.lookup(name, world) else { return ExpandedValue::Unknown(format!("${name}")) };
        let mut fields = Self::present(&value.parts, world);
        if value.is_outside {
            let source = fields.pop().map(|field| field.located.text).filter(|text| text.contains('$'));
            return ExpandedValue::Unknown(source.unwrap_or_else(|| format!("${name}")));
        }
        if whole && (value.is_array || fields.is_empty()) {
            return ExpandedValue::List(fields);
        }
        fields.truncate(if value.is_array { 1 } else { usize::MAX });
        ExpandedValue::Text(fields)
    }

    /// The fields of `words` in `world`.
    pub(super) fn fields(&mut self, words: &[RawWord], world: &mut BranchWorld) -> Vec<ShellField> {
        let mut out = Vec::new();
        for word in words {
            let place = self.at(word.line);
            let Some(all) = braces(&word.raw) else {
                out.push(ShellField { may_split: true, is_list: true, ..ShellField::new("$braces", place) });
                continue;
            };
            for raw in all {
                self.fields_of(&pieces(&raw, false), &place, world, &mut out);
                if out.len() > FIELDS_MAX {
                    break;
                }
            }
        }
        // Long lists count like several commands.
        self.out.steps = self.out.steps.saturating_add(u32::try_from(out.len() / 64).unwrap_or(0));
        out
    }

    fn fields_of(
        &mut self,
        pieces: &[WordPiece],
        place: &SourceLocation,
        world: &mut BranchWorld,
        out: &mut Vec<ShellField>,
    ) {
        let mut builder = FieldBuilder { done: std::mem::take(out), current: None };
        for piece in pieces {
            let (quoted, is_list) = match piece {
                WordPiece::Parameter(used) => (used.quoted, used.is_list()),
                WordPiece::Command { quoted, .. } => (*quoted, false),
                _ => (true, false),
            };
            match self.piece_value(piece, place, world) {
                ExpandedValue::Text(parts) if quoted => {
                    builder.push(ShellField::new(joined(&parts, ""), place.clone()))
                }
                ExpandedValue::Text(parts) => {
                    let is_joined = parts.len() > 1;
                    for part in parts {
                        builder.split(part.text(), if is_joined { &part.located.place } else { place });
                    }
                }
                ExpandedValue::List(items) if quoted && !is_list => {
                    builder.push(ShellField::new(joined(&items, " "), place.clone()));
                }
                // `"${EMPTY[@]}"` does not add an empty word.
                ExpandedValue::List(items) if items.is_empty() => {
                    builder.current.take_if(|field| field.text().is_empty());
                }
                ExpandedValue::List(items) => builder.list(items, quoted),
                ExpandedValue::Unknown(text) => {
                    let may_split = !quoted || is_list;
                    builder.push(ShellField { may_split, is_list, ..ShellField::new(text, place.clone()) });
                }
            }
        }
        builder.end();
        *out = builder.done;
    }

    fn piece_value(&mut self, piece: &WordPiece, place: &SourceLocation, world: &mut BranchWorld) -> ExpandedValue {
        match piece {
            WordPiece::Text { text, .. } => ExpandedValue::text(text, place),
            WordPiece::Parameter(used) => self.parameter(used, world, place),
            WordPiece::Command { text, line, .. } => {
                match self.substituted(text, place.line.saturating_add(*line), world) {
                    Some(text) => ExpandedValue::text(text, place),
                    None => ExpandedValue::Unknown(shown_command(text)),
                }
            }
            WordPiece::Arithmetic { text } => match self.arithmetic(text, world) {
                Some(number) => ExpandedValue::text(number.to_string(), place),
                None => ExpandedValue::Unknown("$number".to_owned()),
            },
            WordPiece::Opaque => ExpandedValue::Unknown("$".to_owned()),
        }
    }

    /// One text for `word`, as in an assignment: without splitting into fields.
    pub(super) fn text_of(&mut self, word: &RawWord, world: &mut BranchWorld) -> String {
        self.text_of_pieces(&pieces(&word.raw, false), &self.at(word.line), world, false)
    }

    /// The concatenation of all pieces. In a document, unknown values are short, so that they are
    /// valid in JSON strings and YAML.
    pub(super) fn text_of_pieces(
        &mut self,
        pieces: &[WordPiece],
        place: &SourceLocation,
        world: &mut BranchWorld,
        in_document: bool,
    ) -> String {
        let mut out = String::new();
        for piece in pieces {
            match self.piece_value(piece, place, world) {
                ExpandedValue::Text(parts) => out.push_str(&joined(&parts, "")),
                ExpandedValue::List(items) => out.push_str(&joined(&items, " ")),
                ExpandedValue::Unknown(text) if in_document => {
                    out.push('$');
                    out.extend(text.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '_'));
                }
                ExpandedValue::Unknown(text) => out.push_str(&text),
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
            let Some(value) = self.lookup(name, if matters(name) { &mut *world } else { &mut apart }) else {
                let place = variable.entries.last().and_then(|entry| entry.value.place()).unwrap_or(&self.place);
                let located = LocatedValue::new(format!("${name}"), place.clone());
                env.insert(name.clone(), Variable::Elsewhere(located));
                continue;
            };
            let Some(first) = value.parts.first().map(|part| part.field.located.clone()) else { continue };
            let variable = match value.is_outside {
                true => Variable::Elsewhere(first),
                false => {
                    let text = joined(&Self::present(&value.parts, world), "");
                    Variable::Text(LocatedValue::new(text, first.place))
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

/// A command substitution as one word, because the shell does not split an unknown text. Other
/// characters would change the syntax of a script or a document that contains the text.
fn shown_command(text: &str) -> String {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && !"_-.".contains(c)).filter(|word| !word.is_empty());
    format!("$({})", words.collect::<Vec<_>>().join("_"))
}

/// Limit on the number of words that the braces of one word expand to.
const BRACE_WORDS_MAX: usize = 256;

/// Expands `{0..3}` and `a{b,c}`, also several in one word. Other words stay unchanged. `None` if
/// there are too many results.
fn braces(raw: &str) -> Option<Vec<String>> {
    let mut words = vec![raw.to_owned()];
    loop {
        let all: Vec<Vec<String>> = words.iter().map(|word| first_braces(word)).collect::<Option<_>>()?;
        let next = all.concat();
        match next.len() {
            count if count > BRACE_WORDS_MAX => return None,
            _ if next == words => return Some(words),
            _ => words = next,
        }
    }
}

/// Expands the first braces of a word.
fn first_braces(raw: &str) -> Option<Vec<String>> {
    let same = || Some(vec![raw.to_owned()]);
    if raw.contains(['$', '\'', '"', '`', '\\']) {
        return same();
    }
    let Some((before, rest)) = raw.split_once('{') else { return same() };
    let Some((inner, after)) = rest.split_once('}') else { return same() };
    if let Some((first, last)) = inner.split_once("..")
        && let (Ok(from), Ok(to)) = (first.parse::<i64>(), last.parse::<i64>())
    {
        let count = i64::try_from(from.abs_diff(to)).ok().filter(|count| *count < 256)?;
        let step = if from <= to { 1 } else { -1 };
        // If one end has leading zeros, all numbers have the same length.
        let is_padded = |text: &str| text.len() > 1 && text.trim_start_matches(['-', '+']).starts_with('0');
        let width = if is_padded(first) || is_padded(last) { first.len().max(last.len()) } else { 0 };
        return Some((0..=count).map(|n| format!("{before}{:0width$}{after}", from + n * step)).collect());
    }
    if inner.contains(',') && !inner.contains(['{', ':']) {
        return Some(inner.split(',').map(|part| format!("{before}{part}{after}")).collect());
    }
    same()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_expand_to_lists_and_ranges() {
        let all = |raw: &str| braces(raw).unwrap_or_default();
        assert_eq!(all("a{b,c}d"), ["abd", "acd"]);
        assert_eq!(all("{2..0}"), ["2", "1", "0"]);
        assert_eq!(all("5{1,2}{3..4}"), ["513", "514", "523", "524"]);
        assert_eq!(all("{08..10}"), ["08", "09", "10"]);
        assert_eq!(all("{1..-01}"), ["001", "000", "-01"]);
        assert_eq!(all("{7..7}"), ["7"]);
        assert_eq!(all("'{1..2}'"), ["'{1..2}'"]);
    }

    #[test]
    fn braces_with_too_many_results_are_unknown() {
        assert_eq!(braces("{1..256}").map(|all| all.len()), Some(256));
        for raw in ["{a,b}{c,d}{e,f}{g,h}{i,j}{k,l}{m,n}{o,p}{q,r}", "{1..257}", "{1..20}{1..20}"] {
            assert_eq!(braces(raw), None, "{raw}");
        }
        assert_eq!(braces("{-9223372036854775808..9223372036854775807}"), None);
    }
}
