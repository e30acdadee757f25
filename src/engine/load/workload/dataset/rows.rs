//! Reads the rows of a dataset file: lines of JSONL or elements of a JSON array. Only one row is
//! held in memory at a time.

use std::io::{self, BufRead};

use crate::workload::RowError;
use crate::workload::row_error::ROW_BYTES_MAX;

/// Maximum number of bytes to skip while searching for the end of an oversized row. Beyond this
/// limit, reading stops.
const OVER_MAX: usize = 16 * ROW_BYTES_MAX;
/// Maximum nesting depth of a row. The JSON parser has its own, lower limit.
const DEPTH_MAX: usize = 256;

/// A row and its line number, starting at 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatasetRow {
    pub line: u64,
    /// The text of one JSON value, or the reason why it is malformed.
    pub text: Result<String, RowError>,
}

/// How a file arranges its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowLayout {
    /// One row per line.
    Lines,
    /// Elements of a JSON array.
    Array,
    /// Elements of an array in the member of this name in a JSON object.
    Member(&'static str),
    /// A JSON array if the file starts with a bracket, otherwise lines.
    ArrayOrLines,
}

/// Reads rows from a source of type `R`.
#[derive(Debug)]
pub struct RowReader<R> {
    input: R,
    layout: RowLayout,
    /// Line number of the next byte.
    line: u64,
    /// Whether the next byte is the first one on its line.
    at_line_start: bool,
    begun: bool,
    over: bool,
    /// Whether the last element was malformed. If so, resynchronize at the next line that starts
    /// with an object.
    lost: bool,
}

impl<R: BufRead> RowReader<R> {
    /// Creates a reader for `input`.
    pub fn new(input: R, layout: RowLayout) -> RowReader<R> {
        RowReader { input, layout, line: 1, at_line_start: true, begun: false, over: false, lost: false }
    }

    /// Returns the next row, or `None` at the end.
    ///
    /// # Errors
    /// The input cannot be read.
    pub fn next_row(&mut self) -> io::Result<Option<DatasetRow>> {
        if self.over {
            return Ok(None);
        }
        if !std::mem::replace(&mut self.begun, true)
            && let Some(row) = self.begin()?
        {
            self.over = true;
            return Ok(Some(row));
        }
        match self.layout {
            _ if self.over => Ok(None),
            RowLayout::Lines => self.line_row(),
            _ => self.element(),
        }
    }

    /// Advances to the first row. Returns an error row if the file does not match the layout.
    fn begin(&mut self) -> io::Result<Option<DatasetRow>> {
        if self.input.fill_buf()?.starts_with(b"\xef\xbb\xbf") {
            self.input.consume(3);
        }
        let wrong = |line, error: RowError| Ok(Some(DatasetRow { line, text: Err(error) }));
        if self.layout == RowLayout::Lines {
            return Ok(None);
        }
        let first = self.skip_blanks()?;
        match (self.layout, first) {
            (RowLayout::ArrayOrLines, Some(first)) if first != b'[' => self.layout = RowLayout::Lines,
            (_, None) => self.over = true,
            (RowLayout::Member(name), Some(b'{')) => {
                if let Err(error) = self.find(name)? {
                    return wrong(self.line, error);
                }
            }
            (RowLayout::Member(_), _) => return wrong(self.line, RowError::FileNotAnObject),
            (_, Some(b'[')) => drop(self.bump()?),
            _ => return wrong(self.line, RowError::FileNotAnArray),
        }
        Ok(None)
    }

    /// Advances into the array in member `name` of the object that starts here.
    fn find(&mut self, name: &'static str) -> io::Result<Result<(), RowError>> {
        let missing = Ok(Err(RowError::NoSuchArray(name)));
        self.bump()?;
        loop {
            match self.skip_blanks()? {
                Some(b'"') => {}
                Some(b',') => {
                    self.bump()?;
                    continue;
                }
                _ => return missing,
            }
            let mut key = Vec::new();
            if let Err(why) = self.value(Some(&mut key), 1)? {
                return Ok(Err(why));
            }
            if self.skip_blanks()? != Some(b':') {
                return missing;
            }
            self.bump()?;
            let value = self.skip_blanks()?;
            if serde_json::from_slice::<String>(&key).is_ok_and(|key| key == name) {
                if value != Some(b'[') {
                    return missing;
                }
                self.bump()?;
                return Ok(Ok(()));
            }
            if let Err(why) = self.value(None, 1)? {
                return Ok(Err(why));
            }
        }
    }

    fn peek(&mut self) -> io::Result<Option<u8>> {
        Ok(self.input.fill_buf()?.first().copied())
    }

    fn bump(&mut self) -> io::Result<Option<u8>> {
        let byte = self.peek()?;
        if let Some(byte) = byte {
            self.input.consume(1);
            self.line += u64::from(byte == b'\n');
            self.at_line_start = byte == b'\n';
        }
        Ok(byte)
    }

    /// Skips whitespace and returns the next byte without consuming it.
    fn skip_blanks(&mut self) -> io::Result<Option<u8>> {
        while let Some(byte) = self.peek()? {
            if !byte.is_ascii_whitespace() {
                return Ok(Some(byte));
            }
            self.bump()?;
        }
        Ok(None)
    }

    fn line_row(&mut self) -> io::Result<Option<DatasetRow>> {
        loop {
            let line = self.line;
            let mut bytes = Vec::new();
            let mut length = 0_usize;
            loop {
                let piece = self.input.fill_buf()?;
                if piece.is_empty() {
                    self.over = true;
                    break;
                }
                let end = memchr::memchr(b'\n', piece);
                let taken = end.map_or(piece.len(), |end| end + 1);
                length += taken;
                if length <= ROW_BYTES_MAX + 1 {
                    bytes.extend_from_slice(&piece[..end.unwrap_or(taken)]);
                }
                self.input.consume(taken);
                if end.is_some() {
                    self.line += 1;
                    break;
                }
                if length > OVER_MAX {
                    self.over = true;
                    break;
                }
            }
            if length > ROW_BYTES_MAX + 1 {
                return Ok(Some(DatasetRow { line, text: Err(RowError::TooLong) }));
            }
            if bytes.iter().all(u8::is_ascii_whitespace) {
                if self.over {
                    return Ok(None);
                }
                continue;
            }
            return Ok(Some(DatasetRow { line, text: text(bytes) }));
        }
    }

    fn element(&mut self) -> io::Result<Option<DatasetRow>> {
        if std::mem::take(&mut self.lost) && !self.find_line()? {
            self.over = true;
            return Ok(None);
        }
        while self.skip_blanks()? == Some(b',') {
            self.bump()?;
        }
        let line = self.line;
        match self.skip_blanks()? {
            Some(b']') => {
                self.over = true;
                return Ok(None);
            }
            None => {
                self.over = true;
                return Ok(Some(DatasetRow { line, text: Err(RowError::UnterminatedArray) }));
            }
            Some(_) => {}
        }
        let mut bytes = Vec::new();
        let text = match self.value(Some(&mut bytes), 0)? {
            Ok(()) => text(bytes),
            Err(why) => {
                self.lost = true;
                Err(why)
            }
        };
        Ok(Some(DatasetRow { line, text }))
    }

    /// Advances to the next line that starts with an object.
    fn find_line(&mut self) -> io::Result<bool> {
        loop {
            if self.at_line_start && self.skip_blanks()? == Some(b'{') {
                return Ok(true);
            }
            if self.bump()?.is_none() {
                return Ok(false);
            }
        }
    }

    /// Copies one value to `keep` without parsing it: brackets and quotes determine where it ends.
    /// `depth` is the current nesting depth.
    fn value(&mut self, mut keep: Option<&mut Vec<u8>>, depth: usize) -> io::Result<Result<(), RowError>> {
        let mut open: Vec<u8> = Vec::new();
        let mut string = false;
        let mut escaped = false;
        let mut length = 0_usize;
        let from_line_start = self.at_line_start;
        loop {
            let Some(byte) = self.peek()? else {
                let done = open.is_empty() && !string && length > 0;
                return Ok(if done { Ok(()) } else { Err(RowError::UnexpectedEnd) });
            };
            if string {
                if byte == b'\n' {
                    return Ok(Err(RowError::UnterminatedString));
                }
                match byte {
                    _ if escaped => escaped = false,
                    b'\\' => escaped = true,
                    b'"' => string = false,
                    _ => {}
                }
            } else {
                match byte {
                    b'{' if from_line_start && self.at_line_start && length > 0 && depth == 0 => {
                        // In files whose elements start at the beginning of a line, nothing else
                        // starts there, so this is the next element.
                        return Ok(Err(RowError::UnterminatedRow));
                    }
                    b'"' => string = true,
                    b'{' => open.push(b'}'),
                    b'[' => open.push(b']'),
                    b'}' | b']' if open.is_empty() => {
                        return Ok(if length > 0 { Ok(()) } else { Err(RowError::UnmatchedBracket(char::from(byte))) });
                    }
                    b'}' | b']' if open.pop() != Some(byte) => {
                        return Ok(Err(RowError::UnmatchedBracket(char::from(byte))));
                    }
                    b',' if open.is_empty() => return Ok(Ok(())),
                    b':' if open.is_empty() && depth > 0 => return Ok(Ok(())),
                    _ => {}
                }
                if open.len() > DEPTH_MAX {
                    return Ok(Err(RowError::TooDeep(DEPTH_MAX)));
                }
            }
            length += 1;
            if length > ROW_BYTES_MAX && keep.is_some() || length > OVER_MAX {
                return Ok(Err(RowError::TooLong));
            }
            if let Some(keep) = keep.as_deref_mut() {
                keep.push(byte);
            }
            self.bump()?;
            // A closing bracket or quote completes the value. A bare word extends to the comma.
            if open.is_empty() && !string && matches!(byte, b'}' | b']' | b'"') {
                return Ok(Ok(()));
            }
        }
    }
}

fn text(bytes: Vec<u8>) -> Result<String, RowError> {
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        RowError::InvalidUtf8 { at: at + 1, byte: error.as_bytes()[at] }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rows(text: &[u8], layout: RowLayout) -> Vec<(u64, Result<String, RowError>)> {
        // Use a small buffer, so that rows cross its boundaries.
        let mut rows = RowReader::new(io::BufReader::with_capacity(7, text), layout);
        let mut found = Vec::new();
        while let Some(row) = rows.next_row().expect("reading memory succeeds") {
            found.push((row.line, row.text));
            assert!(found.len() < 100, "reading terminates");
        }
        found
    }

    fn ok(line: u64, text: &str) -> (u64, Result<String, RowError>) {
        (line, Ok(text.to_owned()))
    }

    fn why(rows: &[(u64, Result<String, RowError>)], at: usize) -> (u64, RowError) {
        (rows[at].0, rows[at].1.clone().expect_err("a bad row"))
    }

    #[test]
    fn lines_may_have_a_bom_blank_lines_and_any_line_ending() {
        let found = rows(b"\xef\xbb\xbf{\"a\": 1}\r\n\n \t\n{\"b\": 2}", RowLayout::Lines);
        assert_eq!(found, [ok(1, "{\"a\": 1}\r"), ok(4, "{\"b\": 2}")]);
        assert_eq!(rows(b"", RowLayout::Lines), []);
        assert_eq!(rows(b"\n\n", RowLayout::ArrayOrLines), []);
    }

    #[test]
    fn line_that_is_not_utf8_is_an_error_row() {
        let found = rows(b"1\nab\xff\n3\n", RowLayout::Lines);
        assert_eq!((&found[0], &found[2]), (&ok(1, "1"), &ok(3, "3")));
        assert_eq!(why(&found, 1), (2, RowError::InvalidUtf8 { at: 3, byte: 0xff }));
    }

    #[test]
    fn oversized_line_is_skipped() {
        let text = [vec![b'x'; ROW_BYTES_MAX + 10], b"\n2\n".to_vec()].concat();
        let mut rows = RowReader::new(&text[..], RowLayout::Lines);
        let first = rows.next_row().expect("memory").expect("a row");
        assert_eq!((first.line, first.text.expect_err("too long")), (1, RowError::TooLong));
        assert_eq!(rows.next_row().expect("memory"), Some(DatasetRow { line: 2, text: Ok("2".to_owned()) }));
    }

    #[test]
    fn array_elements_have_the_line_on_which_they_begin() {
        let text = b" [ {\"a\": \"],}\\\"\"},\n 7 , [1,\n2],\"s\",\nnull ] ";
        let found = rows(text, RowLayout::ArrayOrLines);
        let expected = [ok(1, "{\"a\": \"],}\\\"\"}"), ok(2, "7 "), ok(2, "[1,\n2]"), ok(3, "\"s\""), ok(4, "null ")];
        assert_eq!(found, expected);
        assert_eq!(rows(b"[]", RowLayout::Array), []);
    }

    #[test]
    fn member_is_found_after_others() {
        let text = b"{\"metadata\": {\"conversations\": [9]}, \"n\": 1.5, \"conversations\": [1, 2], \"z\": 0}";
        assert_eq!(rows(text, RowLayout::Member("conversations")), [ok(1, "1"), ok(1, "2")]);
        for bad in [&b"{\"a\": 1}"[..], b"{}", b"{\"conversations\": {}}", b"{\"conversations\"", b"[1]", b"{x}"] {
            let found = rows(bad, RowLayout::Member("conversations"));
            assert!(found.len() == 1 && found[0].1.is_err(), "{found:?}");
        }
    }

    #[test]
    fn reading_resumes_after_an_unterminated_element() {
        let found = rows(b"[\n{\"a\": [1},\n{\"b\": 2},\n{\"c\": \"x},\n{\"d\": {},\n{\"e\": 3}\n]", RowLayout::Array);
        assert_eq!(why(&found, 0), (2, RowError::UnmatchedBracket('}')));
        assert_eq!(found[1], ok(3, "{\"b\": 2}"));
        assert_eq!(why(&found, 2), (4, RowError::UnterminatedString));
        assert_eq!(why(&found, 3), (5, RowError::UnterminatedRow));
        assert_eq!(found[4], ok(6, "{\"e\": 3}"));
        assert_eq!(found.len(), 5);
    }

    #[test]
    fn truncated_array_and_wrong_layout_are_error_rows() {
        let cut = rows(b"[{\"a\": 1},\n{\"b\"", RowLayout::Array);
        assert_eq!((&cut[0], why(&cut, 1)), (&ok(1, "{\"a\": 1}"), (2, RowError::UnexpectedEnd)));
        assert_eq!(why(&rows(b"[1,", RowLayout::Array), 1), (1, RowError::UnterminatedArray));
        assert_eq!(why(&rows(b"{}", RowLayout::Array), 0), (1, RowError::FileNotAnArray));
        let deep = [b"[".repeat(300), b"]".repeat(300)].concat();
        assert_eq!(why(&rows(&deep, RowLayout::Array), 0), (1, RowError::TooDeep(256)));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_terminate(bytes in proptest::collection::vec(any::<u8>(), 0..60), which in 0..4) {
            let layout = [RowLayout::Lines, RowLayout::Array, RowLayout::Member("a"), RowLayout::ArrayOrLines][which as usize];
            rows(&bytes, layout);
        }

        #[test]
        fn brackets_and_quotes_terminate(text in "[\\[\\]{}\",:\\\\a\n ]{0,40}", which in 0..4) {
            let layout = [RowLayout::Lines, RowLayout::Array, RowLayout::Member("a"), RowLayout::ArrayOrLines][which as usize];
            rows(text.as_bytes(), layout);
        }
    }
}
