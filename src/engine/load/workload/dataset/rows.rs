//! The rows of a dataset file: the lines of a JSONL file, or the elements of a JSON array. One row at a time is held.

use std::io::{self, BufRead};

/// The most bytes of a row.
pub const ROW_BYTES_MAX: usize = 64 << 20;
/// Bytes that are passed over at most where a row is longer than that; after them the file is given up.
const OVER_MAX: usize = 16 * ROW_BYTES_MAX;
/// The deepest nesting of a row. The JSON parser's own limit is below it.
const DEPTH_MAX: usize = 256;

/// A row: its line, counted from one, and its text or why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Where it begins.
    pub line: u64,
    /// The text of one JSON value.
    pub text: Result<String, String>,
}

/// How rows are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One per line.
    Lines,
    /// The elements of one array.
    Array,
    /// The elements of the array that this member of one object has.
    Member(&'static str),
    /// An array if the file begins with a bracket, lines otherwise.
    ArrayOrLines,
}

/// Reads the rows of `R`.
#[derive(Debug)]
pub struct Rows<R> {
    input: R,
    layout: Layout,
    /// The line of the next byte.
    line: u64,
    /// Is the next byte the first of its line?
    at_line_start: bool,
    begun: bool,
    over: bool,
    /// The last element was not understood: the next one is looked for at the beginning of a line.
    lost: bool,
}

impl<R: BufRead> Rows<R> {
    /// The rows of `input`.
    pub fn new(input: R, layout: Layout) -> Rows<R> {
        Rows { input, layout, line: 1, at_line_start: true, begun: false, over: false, lost: false }
    }

    /// The next row; `None` at the end.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn next_row(&mut self) -> io::Result<Option<Row>> {
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
            Layout::Lines => self.line_row(),
            _ => self.element(),
        }
    }

    /// Up to the first row; a row says that there is none.
    fn begin(&mut self) -> io::Result<Option<Row>> {
        if self.input.fill_buf()?.starts_with(b"\xef\xbb\xbf") {
            self.input.consume(3);
        }
        let wrong = |line, why: &str| Ok(Some(Row { line, text: Err(why.to_owned()) }));
        if self.layout == Layout::Lines {
            return Ok(None);
        }
        let first = self.skip_blanks()?;
        match (self.layout, first) {
            (Layout::ArrayOrLines, Some(first)) if first != b'[' => self.layout = Layout::Lines,
            (_, None) => self.over = true,
            (Layout::Member(name), Some(b'{')) => {
                if let Err(why) = self.find(name)? {
                    return wrong(self.line, &why);
                }
            }
            (Layout::Member(_), _) => return wrong(self.line, "the file is no JSON object"),
            (_, Some(b'[')) => drop(self.bump()?),
            _ => return wrong(self.line, "the file is no JSON array"),
        }
        Ok(None)
    }

    /// Into the array of the member `name` of the object that begins here.
    fn find(&mut self, name: &str) -> io::Result<Result<(), String>> {
        let missing = Ok(Err(format!("the object has no array \"{name}\"")));
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

    /// The next byte that is no blank, not taken.
    fn skip_blanks(&mut self) -> io::Result<Option<u8>> {
        while let Some(byte) = self.peek()? {
            if !byte.is_ascii_whitespace() {
                return Ok(Some(byte));
            }
            self.bump()?;
        }
        Ok(None)
    }

    fn line_row(&mut self) -> io::Result<Option<Row>> {
        loop {
            let (line, mut bytes, mut length) = (self.line, Vec::new(), 0_usize);
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
                return Ok(Some(Row { line, text: Err(too_long()) }));
            }
            if bytes.iter().all(u8::is_ascii_whitespace) {
                if self.over {
                    return Ok(None);
                }
                continue;
            }
            return Ok(Some(Row { line, text: text(bytes) }));
        }
    }

    fn element(&mut self) -> io::Result<Option<Row>> {
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
                return Ok(Some(Row { line, text: Err("the array does not end".to_owned()) }));
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
        Ok(Some(Row { line, text }))
    }

    /// To the next line that begins with an object.
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

    /// One value, put into `keep`. It is not parsed here: brackets and strings tell where it ends. `depth` is that of the place.
    fn value(&mut self, mut keep: Option<&mut Vec<u8>>, depth: usize) -> io::Result<Result<(), String>> {
        let mut open: Vec<u8> = Vec::new();
        let (mut string, mut escaped, mut length) = (false, false, 0_usize);
        let from_line_start = self.at_line_start;
        loop {
            let Some(byte) = self.peek()? else {
                let done = open.is_empty() && !string && length > 0;
                return Ok(if done { Ok(()) } else { Err("the file ends in the middle of it".to_owned()) });
            };
            if string {
                if byte == b'\n' {
                    return Ok(Err("a string does not end on its line".to_owned()));
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
                        // Elements that begin at the margin have nothing else there: this is the next one.
                        return Ok(Err("it does not end before the next one begins".to_owned()));
                    }
                    b'"' => string = true,
                    b'{' => open.push(b'}'),
                    b'[' => open.push(b']'),
                    b'}' | b']' if open.is_empty() => {
                        return Ok(if length > 0 { Ok(()) } else { Err("a bracket that nothing opened".to_owned()) });
                    }
                    b'}' | b']' if open.pop() != Some(byte) => {
                        return Ok(Err(format!("a '{}' that closes something else", char::from(byte))));
                    }
                    b',' if open.is_empty() => return Ok(Ok(())),
                    b':' if open.is_empty() && depth > 0 => return Ok(Ok(())),
                    _ => {}
                }
                if open.len() > DEPTH_MAX {
                    return Ok(Err(format!("more than {DEPTH_MAX} brackets deep")));
                }
            }
            length += 1;
            if length > ROW_BYTES_MAX && keep.is_some() || length > OVER_MAX {
                return Ok(Err(too_long()));
            }
            if let Some(keep) = keep.as_deref_mut() {
                keep.push(byte);
            }
            self.bump()?;
            // A closed value is complete; a bare word goes on to the comma.
            if open.is_empty() && !string && matches!(byte, b'}' | b']' | b'"') {
                return Ok(Ok(()));
            }
        }
    }
}

fn too_long() -> String {
    format!("it is longer than {} MiB", ROW_BYTES_MAX >> 20)
}

fn text(bytes: Vec<u8>) -> Result<String, String> {
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        format!("it is not UTF-8: byte {} is 0x{:02x}", at + 1, error.as_bytes()[at])
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rows(text: &[u8], layout: Layout) -> Vec<(u64, Result<String, String>)> {
        // A small buffer: rows lie across its ends.
        let mut rows = Rows::new(io::BufReader::with_capacity(7, text), layout);
        let mut found = Vec::new();
        while let Some(row) = rows.next_row().expect("memory can be read") {
            found.push((row.line, row.text));
            assert!(found.len() < 100, "it comes to an end");
        }
        found
    }

    fn ok(line: u64, text: &str) -> (u64, Result<String, String>) {
        (line, Ok(text.to_owned()))
    }

    fn why(rows: &[(u64, Result<String, String>)], at: usize) -> (u64, &str) {
        (rows[at].0, rows[at].1.as_ref().expect_err("a bad row"))
    }

    #[test]
    fn lines_may_have_a_mark_at_the_start_blanks_between_and_any_end() {
        let found = rows(b"\xef\xbb\xbf{\"a\": 1}\r\n\n \t\n{\"b\": 2}", Layout::Lines);
        assert_eq!(found, [ok(1, "{\"a\": 1}\r"), ok(4, "{\"b\": 2}")]);
        assert_eq!(rows(b"", Layout::Lines), []);
        assert_eq!(rows(b"\n\n", Layout::ArrayOrLines), []);
    }

    #[test]
    fn a_line_that_is_no_utf_8_is_told_and_the_others_are_read() {
        let found = rows(b"1\nab\xff\n3\n", Layout::Lines);
        assert_eq!((&found[0], &found[2]), (&ok(1, "1"), &ok(3, "3")));
        assert_eq!(why(&found, 1), (2, "it is not UTF-8: byte 3 is 0xff"));
    }

    #[test]
    fn a_line_without_end_is_given_up_and_the_next_one_is_read() {
        let text = [vec![b'x'; ROW_BYTES_MAX + 10], b"\n2\n".to_vec()].concat();
        let mut rows = Rows::new(&text[..], Layout::Lines);
        let first = rows.next_row().expect("memory").expect("a row");
        assert_eq!((first.line, first.text.expect_err("too long")), (1, "it is longer than 64 MiB".to_owned()));
        assert_eq!(rows.next_row().expect("memory"), Some(Row { line: 2, text: Ok("2".to_owned()) }));
    }

    #[test]
    fn elements_of_an_array_have_the_line_on_which_they_begin() {
        let text = b" [ {\"a\": \"],}\\\"\"},\n 7 , [1,\n2],\"s\",\nnull ] ";
        let found = rows(text, Layout::ArrayOrLines);
        let expected = [ok(1, "{\"a\": \"],}\\\"\"}"), ok(2, "7 "), ok(2, "[1,\n2]"), ok(3, "\"s\""), ok(4, "null ")];
        assert_eq!(found, expected);
        assert_eq!(rows(b"[]", Layout::Array), []);
    }

    #[test]
    fn a_member_is_found_behind_others() {
        let text = b"{\"metadata\": {\"conversations\": [9]}, \"n\": 1.5, \"conversations\": [1, 2], \"z\": 0}";
        assert_eq!(rows(text, Layout::Member("conversations")), [ok(1, "1"), ok(1, "2")]);
        for bad in [&b"{\"a\": 1}"[..], b"{}", b"{\"conversations\": {}}", b"{\"conversations\"", b"[1]", b"{x}"] {
            let found = rows(bad, Layout::Member("conversations"));
            assert!(found.len() == 1 && found[0].1.is_err(), "{found:?}");
        }
    }

    #[test]
    fn after_an_element_that_does_not_end_the_next_line_is_read() {
        let found = rows(b"[\n{\"a\": [1},\n{\"b\": 2},\n{\"c\": \"x},\n{\"d\": {},\n{\"e\": 3}\n]", Layout::Array);
        assert_eq!(why(&found, 0), (2, "a '}' that closes something else"));
        assert_eq!(found[1], ok(3, "{\"b\": 2}"));
        assert_eq!(why(&found, 2), (4, "a string does not end on its line"));
        assert_eq!(why(&found, 3), (5, "it does not end before the next one begins"));
        assert_eq!(found[4], ok(6, "{\"e\": 3}"));
        assert_eq!(found.len(), 5);
    }

    #[test]
    fn an_array_that_is_cut_off_and_what_is_none_are_told() {
        let cut = rows(b"[{\"a\": 1},\n{\"b\"", Layout::Array);
        assert_eq!((&cut[0], why(&cut, 1)), (&ok(1, "{\"a\": 1}"), (2, "the file ends in the middle of it")));
        assert_eq!(why(&rows(b"[1,", Layout::Array), 1), (1, "the array does not end"));
        assert_eq!(why(&rows(b"{}", Layout::Array), 0), (1, "the file is no JSON array"));
        let deep = [b"[".repeat(300), b"]".repeat(300)].concat();
        assert_eq!(why(&rows(&deep, Layout::Array), 0), (1, "more than 256 brackets deep"));
    }

    proptest! {
        #[test]
        fn any_bytes_come_to_an_end(bytes in proptest::collection::vec(any::<u8>(), 0..60), which in 0..4) {
            let layout = [Layout::Lines, Layout::Array, Layout::Member("a"), Layout::ArrayOrLines][which as usize];
            rows(&bytes, layout);
        }

        #[test]
        fn brackets_and_quotes_come_to_an_end(text in "[\\[\\]{}\",:\\\\a\n ]{0,40}", which in 0..4) {
            let layout = [Layout::Lines, Layout::Array, Layout::Member("a"), Layout::ArrayOrLines][which as usize];
            rows(text.as_bytes(), layout);
        }
    }
}
