//! Builds conversations from rows: skips malformed and unsuitable rows, and applies offset, limit
//! and order.

use std::collections::BTreeMap;
use std::io::BufRead;

use rand::Rng;
use rand::seq::SliceRandom;

use crate::python::PythonRandom;
use crate::workload::dataset::{BadRow, Dataset, DatasetError, DatasetOptions, RowLayout, RowReader};
use crate::workload::{Conversation, RowError};

/// Number of rows to sample, as a multiple of the limit (if one is set). More rows than the limit
/// are sampled, because some are later skipped due to their length.
const CHOICE: usize = 8;
/// Minimum number of sampled rows.
const CHOICE_MIN: usize = 4096;

/// Calls `each` with every row of `input` until it returns false. A malformed row either ends the
/// read or is counted, depending on the options.
pub(super) fn rows(
    input: impl BufRead,
    file: &str,
    layout: RowLayout,
    reading: &DatasetOptions,
    dataset: &mut Dataset,
    mut each: impl FnMut(&str, u64) -> Result<bool, RowError>,
) -> Result<(), DatasetError> {
    let mut rows = RowReader::new(input, layout);
    loop {
        let row = rows.next_row();
        let row = row.map_err(|error| DatasetError::Unreadable { file: file.to_owned(), reason: error.to_string() })?;
        let Some(row) = row else { return Ok(()) };
        dataset.rows += 1;
        match row.text.and_then(|text| each(&text, row.line)) {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(reason) => {
                let bad = BadRow { line: row.line, reason: reason.located(row.line) };
                if !reading.skip_bad {
                    return Err(DatasetError::Row { file: file.to_owned(), bad });
                }
                dataset.skipped += 1;
                dataset.first_bad.get_or_insert(bad);
            }
        }
    }
}

/// Reads conversations from the rows of `input`. `parse` parses a row. `plan` builds a conversation
/// from it, or returns `None` to skip it. Rows that are not `usable` are skipped before the order
/// is changed.
///
/// In file order, reading stops after the last required row. In random order, the whole file is
/// read, but if a limit is set, only a sample of its rows is kept.
pub(super) fn gather<T>(
    input: impl BufRead,
    file: &str,
    layout: RowLayout,
    reading: &DatasetOptions,
    parse: impl Fn(&str) -> Result<T, RowError>,
    usable: impl Fn(&T) -> bool,
    plan: impl Fn(T) -> Result<Option<Conversation>, RowError>,
) -> Result<Dataset, DatasetError> {
    let mut dataset = Dataset::default();
    let mut taken = RowSelection::new(reading);
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
        dataset.conversations = found;
        dataset.left_out = left_out;
        dataset.passed_over = reading.offset - taken.pass_over;
        return Ok(dataset);
    }
    let mut sample = RowSample::new(reading);
    let mut left_out = 0;
    rows(input, file, layout, reading, &mut dataset, |text, line| {
        let row = parse(text)?;
        match usable(&row) {
            true => sample.offer((line, row)),
            false => left_out += 1,
        }
        Ok(true)
    })?;
    dataset.left_out = left_out;
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

/// Applies the offset and limit to conversations.
struct RowSelection {
    pass_over: usize,
    left: Option<usize>,
}

impl RowSelection {
    fn new(reading: &DatasetOptions) -> RowSelection {
        RowSelection { pass_over: reading.offset, left: (reading.limit > 0).then_some(reading.limit) }
    }

    /// Returns whether to use the next conversation.
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

/// A random sample of rows in random order: the rows with the smallest random keys.
struct RowSample<T> {
    rng: rand_chacha::ChaCha8Rng,
    most: usize,
    kept: BTreeMap<(u64, u64), T>,
    seen: u64,
    /// Shuffles all rows instead, as `sglang.bench_serving` does.
    python: Option<PythonRandom>,
}

impl<T> RowSample<T> {
    fn new(reading: &DatasetOptions) -> RowSample<T> {
        let most = match reading.limit {
            _ if reading.as_bench_serving => usize::MAX,
            0 => usize::MAX,
            limit => (limit.saturating_add(reading.offset)).saturating_mul(CHOICE).max(CHOICE_MIN),
        };
        let python = reading.as_bench_serving.then(|| PythonRandom::new(reading.seed));
        RowSample { rng: reading.seed.generator("dataset", 0), most, kept: BTreeMap::new(), seen: 0, python }
    }

    fn offer(&mut self, row: T) {
        self.seen += 1;
        let key = if self.python.is_some() { 0 } else { self.rng.random() };
        self.kept.insert((key, self.seen), row);
        if self.kept.len() > self.most {
            self.kept.pop_last();
        }
    }

    fn shuffled(self) -> impl Iterator<Item = T> {
        let mut rows: Vec<T> = self.kept.into_values().collect();
        if let Some(mut python) = self.python {
            python.shuffle(&mut rows);
        }
        rows.into_iter()
    }
}

/// Shuffles `items` if `reading` requires it, and applies its offset and limit.
pub(super) fn choose<T>(mut items: Vec<T>, reading: &DatasetOptions) -> Vec<T> {
    if reading.shuffle {
        items.shuffle(&mut reading.seed.generator("dataset", 0));
    }
    let limit = if reading.limit == 0 { usize::MAX } else { reading.limit };
    items.into_iter().skip(reading.offset).take(limit).collect()
}
