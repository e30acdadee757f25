//! From rows to conversations: what is malformed, left out, passed over, and in which order the rest comes.

use std::collections::BTreeMap;
use std::io::BufRead;

use rand::Rng;
use rand::seq::SliceRandom;

use crate::engine::load::workload::Conversation;
use crate::engine::load::workload::dataset::{BadRow, Dataset, DatasetError, Layout, Reading, Rows};

/// With a limit, so many times as many rows are kept to choose from: some are left out by their lengths.
const CHOICE: usize = 8;
/// And at least so many.
const CHOICE_MIN: usize = 4096;

/// Calls `each` with every row of `input` until it says that it has enough. A malformed row ends it, or is counted.
pub(super) fn rows(
    input: impl BufRead,
    file: &str,
    layout: Layout,
    reading: &Reading,
    dataset: &mut Dataset,
    mut each: impl FnMut(&str, u64) -> Result<bool, String>,
) -> Result<(), DatasetError> {
    let mut rows = Rows::new(input, layout);
    loop {
        let row = rows.next_row();
        let row = row.map_err(|error| DatasetError::Unreadable { file: file.to_owned(), reason: error.to_string() })?;
        let Some(row) = row else { return Ok(()) };
        dataset.rows += 1;
        match row.text.and_then(|text| each(&text, row.line)) {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(reason) => {
                let bad = BadRow { line: row.line, reason: placed(reason, row.line) };
                if !reading.skip_bad {
                    return Err(DatasetError::Row { file: file.to_owned(), bad });
                }
                dataset.skipped += 1;
                dataset.first_bad.get_or_insert(bad);
            }
        }
    }
}

/// The parser counts lines from the beginning of the row, which is `line` of the file.
fn placed(reason: String, line: u64) -> String {
    let place = || {
        let (text, place) = reason.rsplit_once(" at line ")?;
        let (within, column) = place.split_once(" column ")?;
        let (within, column): (u64, u64) = (within.parse().ok()?, column.parse().ok()?);
        Some(match within {
            0 | 1 => format!("{text} at column {column}"),
            _ => format!("{text} at line {}, column {column}", line + within - 1),
        })
    };
    place().unwrap_or(reason)
}

/// Conversations of the rows of `input`: `parse` takes a row apart, `plan` makes a conversation of it, or leaves it out.
///
/// In the order of the file nothing is read beyond the last one that is wanted. In random order the whole file is read, and with a
/// limit a sample of its rows is kept.
pub(super) fn gather<T>(
    input: impl BufRead,
    file: &str,
    layout: Layout,
    reading: &Reading,
    parse: impl Fn(&str) -> Result<T, String>,
    plan: impl Fn(T) -> Result<Option<Conversation>, String>,
) -> Result<Dataset, DatasetError> {
    let mut dataset = Dataset::default();
    let mut taken = Taken::new(reading);
    if !reading.shuffle {
        let mut found = Vec::new();
        let mut left_out = 0;
        rows(input, file, layout, reading, &mut dataset, |text, _| {
            match plan(parse(text)?)? {
                Some(conversation) if taken.take() => found.push(conversation),
                Some(_) => {}
                None => left_out += 1,
            }
            Ok(!taken.is_full())
        })?;
        (dataset.conversations, dataset.left_out) = (found, left_out);
        dataset.passed_over = reading.offset - taken.pass_over;
        return Ok(dataset);
    }
    let mut sample = Sample::new(reading);
    rows(input, file, layout, reading, &mut dataset, |text, line| {
        sample.offer((line, parse(text)?));
        Ok(true)
    })?;
    for (line, parsed) in sample.shuffled() {
        if taken.is_full() {
            break;
        }
        match plan(parsed) {
            Ok(Some(conversation)) if taken.take() => dataset.conversations.push(conversation),
            Ok(Some(_)) => {}
            Ok(None) => dataset.left_out += 1,
            Err(reason) if reading.skip_bad => {
                dataset.skipped += 1;
                dataset.first_bad.get_or_insert(BadRow { line, reason });
            }
            Err(reason) => {
                return Err(DatasetError::Row { file: file.to_owned(), bad: BadRow { line, reason } });
            }
        }
    }
    dataset.passed_over = reading.offset - taken.pass_over;
    Ok(dataset)
}

/// Counts the conversations that are passed over and taken.
struct Taken {
    pass_over: usize,
    left: Option<usize>,
}

impl Taken {
    fn new(reading: &Reading) -> Taken {
        Taken { pass_over: reading.offset, left: (reading.limit > 0).then_some(reading.limit) }
    }

    /// Is the next one taken?
    fn take(&mut self) -> bool {
        if self.pass_over > 0 {
            self.pass_over -= 1;
            return false;
        }
        if let Some(left) = &mut self.left {
            *left = left.saturating_sub(1);
        }
        true
    }

    fn is_full(&self) -> bool {
        self.left == Some(0)
    }
}

/// A random choice of rows in random order: those with the least random numbers.
struct Sample<T> {
    rng: rand_chacha::ChaCha8Rng,
    most: usize,
    kept: BTreeMap<(u64, u64), T>,
    seen: u64,
}

impl<T> Sample<T> {
    fn new(reading: &Reading) -> Sample<T> {
        let most = match reading.limit {
            0 => usize::MAX,
            limit => (limit.saturating_add(reading.offset)).saturating_mul(CHOICE).max(CHOICE_MIN),
        };
        Sample { rng: reading.seed.generator("dataset", 0), most, kept: BTreeMap::new(), seen: 0 }
    }

    fn offer(&mut self, row: T) {
        self.seen += 1;
        self.kept.insert((self.rng.random(), self.seen), row);
        if self.kept.len() > self.most {
            self.kept.pop_last();
        }
    }

    fn shuffled(self) -> impl Iterator<Item = T> {
        self.kept.into_values()
    }
}

/// `items` in an order that comes from `reading`, cut to what it wants.
pub(super) fn choose<T>(mut items: Vec<T>, reading: &Reading) -> Vec<T> {
    if reading.shuffle {
        items.shuffle(&mut reading.seed.generator("dataset", 0));
    }
    let limit = if reading.limit == 0 { usize::MAX } else { reading.limit };
    items.into_iter().skip(reading.offset).take(limit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_those_of_the_file() {
        let placed = |reason: &str| placed(reason.to_owned(), 10);
        assert_eq!(placed("oops at line 1 column 7"), "oops at column 7");
        assert_eq!(placed("oops at line 3 column 7"), "oops at line 12, column 7");
        assert_eq!(placed("oops at line x column 7"), "oops at line x column 7");
        assert_eq!(placed("no text"), "no text");
    }
}
