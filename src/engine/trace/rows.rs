//! Reads rows: one JSON object per line, or objects that extend over several lines.

use std::io::{self, BufRead};

use crate::error::RowError;

/// Maximum length of a row, in bytes.
pub const ROW_BYTES_MAX: usize = 256 << 20;

/// Number of lines of an array to search for ShareGPT's members.
const SHARE_GPT_LINES: usize = 10;

/// Reads the rows of a trace. Blank lines are not rows.
#[derive(Debug)]
pub struct RowReader<R> {
    input: R,
    buffer: Vec<u8>,
    /// Lines read so far.
    lines: u64,
    bytes: u64,
    max: usize,
    layout: RowLayout,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum RowLayout {
    /// Depends on the first row.
    Unknown,
    /// Each line is a row.
    Lines,
    /// A row ends with the bracket that closes its object. Several files may follow each other.
    Objects,
}

/// A row, and the line at which it starts.
#[derive(Debug)]
pub struct Row<'a> {
    pub line: u64,
    pub text: Result<&'a str, RowError>,
}

impl<R: BufRead> RowReader<R> {
    /// Creates a reader for `input`.
    pub fn new(input: R) -> RowReader<R> {
        RowReader::with_max(input, ROW_BYTES_MAX)
    }

    pub(crate) fn with_max(input: R, max: usize) -> RowReader<R> {
        RowReader { input, buffer: Vec::new(), lines: 0, bytes: 0, max, layout: RowLayout::Unknown }
    }

    /// Returns the number of bytes read so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of the next line to read, from 1.
    pub fn next_line_number(&self) -> u64 {
        self.lines + 1
    }

    /// Returns the next bytes, at least one unless the input has ended.
    ///
    /// # Errors
    /// The input cannot be read.
    pub fn peek(&mut self) -> io::Result<&[u8]> {
        fill(&mut self.input)
    }

    /// Returns the next row; `None` at the end.
    ///
    /// # Errors
    /// The input cannot be read.
    pub fn next_row(&mut self) -> io::Result<Option<Row<'_>>> {
        match self.layout {
            RowLayout::Unknown => self.first_row(),
            RowLayout::Lines => self.next_line(),
            RowLayout::Objects => self.next_object(),
        }
    }

    /// Reads some lines of an array, and returns whether one of them has ShareGPT's member
    /// `conversations`.
    pub fn finds_conversations(&mut self) -> bool {
        (0..SHARE_GPT_LINES).any(|_| match self.next_row() {
            Ok(Some(row)) => row.text.is_ok_and(|text| text.contains("\"conversations\"")),
            _ => false,
        })
    }

    fn next_line(&mut self) -> io::Result<Option<Row<'_>>> {
        loop {
            self.buffer.clear();
            let Some(too_long) = self.append_line()? else { return Ok(None) };
            if too_long || !self.buffer.trim_ascii().is_empty() {
                let row = if too_long { Err(RowError::TooLong { max: self.max }) } else { text(&self.buffer) };
                return Ok(Some(Row { line: self.lines, text: row }));
            }
        }
    }

    /// Appends the next line to the buffer; `None` at the end, `true` if the line is too long.
    fn append_line(&mut self) -> io::Result<Option<bool>> {
        let mut read = 0;
        let mut too_long = false;
        loop {
            let available = fill(&mut self.input)?;
            if available.is_empty() {
                break;
            }
            let end = memchr::memchr(b'\n', available);
            let taken = end.map_or(available.len(), |end| end + 1);
            too_long |= self.buffer.len() + taken > self.max;
            if !too_long {
                self.buffer.extend_from_slice(&available[..taken]);
            }
            self.input.consume(taken);
            read += taken as u64;
            if end.is_some() {
                break;
            }
        }
        self.bytes += read;
        self.lines += u64::from(read > 0);
        Ok((read > 0).then_some(too_long))
    }

    /// Returns the first row, and chooses the layout: objects if the first one extends over several
    /// lines, or if another one follows on the same line.
    fn first_row(&mut self) -> io::Result<Option<Row<'_>>> {
        if fill(&mut self.input)?.starts_with(b"\xef\xbb\xbf") {
            self.input.consume(3);
            self.bytes += 3;
        }
        self.layout = RowLayout::Lines;
        self.skip_blanks()?;
        if fill(&mut self.input)?.first() != Some(&b'{') {
            return self.next_line();
        }
        let start = self.lines;
        let whole = self.append_object(true)?;
        if whole == Framed::Ended {
            if self.lines == start && self.rest_is_blank()? {
                self.lines += 1;
            } else {
                self.layout = RowLayout::Objects;
            }
        }
        let text = if whole == Framed::TooLong { Err(RowError::TooLong { max: self.max }) } else { text(&self.buffer) };
        Ok(Some(Row { line: start + 1, text }))
    }

    /// Consumes the rest of the line if it is blank.
    fn rest_is_blank(&mut self) -> io::Result<bool> {
        loop {
            let available = fill(&mut self.input)?;
            let end = match available.first() {
                None => return Ok(true),
                Some(byte @ (b'\n' | b' ' | b'\t' | b'\r')) => *byte == b'\n',
                Some(_) => return Ok(false),
            };
            self.input.consume(1);
            self.bytes += 1;
            if end {
                return Ok(true);
            }
        }
    }

    /// Skips white space, and counts lines.
    fn skip_blanks(&mut self) -> io::Result<()> {
        loop {
            let available = fill(&mut self.input)?;
            let blanks = available.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            if blanks == 0 {
                return Ok(());
            }
            self.lines += memchr::memchr_iter(b'\n', &available[..blanks]).count() as u64;
            self.bytes += blanks as u64;
            self.input.consume(blanks);
        }
    }

    fn next_object(&mut self) -> io::Result<Option<Row<'_>>> {
        self.skip_blanks()?;
        if fill(&mut self.input)?.is_empty() {
            return Ok(None);
        }
        let line = self.lines + 1;
        let row = match self.append_object(false)? {
            Framed::TooLong => Err(RowError::TooLong { max: self.max }),
            _ => text(&self.buffer),
        };
        Ok(Some(Row { line, text: row }))
    }

    /// Reads to the bracket that closes the object. The first row ends with its line, unless the
    /// line ends where an object can be continued.
    fn append_object(&mut self, first: bool) -> io::Result<Framed> {
        self.buffer.clear();
        let mut framing = Framing::default();
        let mut too_long = false;
        let mut lines = 0;
        loop {
            let available = fill(&mut self.input)?;
            if available.is_empty() {
                return Ok(Framed::Unfinished);
            }
            let end = available.iter().position(|byte| framing.is_end(*byte) || *byte == b'\n');
            let taken = end.map_or(available.len(), |end| end + 1);
            let newline = end.is_some_and(|end| available[end] == b'\n');
            too_long |= self.buffer.len() + taken > self.max;
            if !too_long {
                self.buffer.extend_from_slice(&available[..taken]);
            }
            self.input.consume(taken);
            self.bytes += taken as u64;
            self.lines += u64::from(newline);
            lines += u64::from(newline);
            if newline && first && lines == 1 && !matches!(self.buffer.trim_ascii().last(), Some(b'{' | b'[' | b',')) {
                return Ok(if too_long { Framed::TooLong } else { Framed::Unfinished });
            }
            if end.is_some() && !newline {
                return Ok(if too_long { Framed::TooLong } else { Framed::Ended });
            }
        }
    }
}

/// How the text of an object ended.
#[derive(Clone, Copy, PartialEq)]
enum Framed {
    /// With its closing bracket.
    Ended,
    /// With the input, or with the line.
    Unfinished,
    TooLong,
}

fn fill(input: &mut impl BufRead) -> io::Result<&[u8]> {
    loop {
        match input.fill_buf() {
            Ok(_) => return input.fill_buf(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Finds the end of an object.
#[derive(Default)]
struct Framing {
    depth: u64,
    string: bool,
    escaped: bool,
}

impl Framing {
    /// Returns whether `byte` closes the outermost bracket.
    fn is_end(&mut self, byte: u8) -> bool {
        if self.string {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.string = false,
                _ => {}
            }
            return false;
        }
        match byte {
            b'"' => self.string = true,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                return self.depth == 0;
            }
            _ => {}
        }
        false
    }
}

fn text(bytes: &[u8]) -> Result<&str, RowError> {
    std::str::from_utf8(bytes)
        .map(|text| text.trim_ascii())
        .map_err(|error| RowError::InvalidUtf8 { at: error.valid_up_to() + 1 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rows(text: &[u8]) -> Vec<(u64, Result<String, RowError>)> {
        // A small buffer, so that rows cross its boundaries.
        let mut reader = RowReader::with_max(io::BufReader::with_capacity(5, text), 40);
        let mut found = Vec::new();
        while let Some(row) = reader.next_row().expect("reading memory succeeds") {
            found.push((row.line, row.text.map(str::to_owned)));
            assert!(found.len() < 200, "reading terminates");
        }
        found
    }

    #[test]
    fn lines_may_have_a_bom_blank_lines_and_any_line_ending() {
        let found = rows(b"\xef\xbb\xbf{\"a\": 1}\r\n\n \t\n{\"b\": 2}");
        assert_eq!(found, [(1, Ok("{\"a\": 1}".to_owned())), (4, Ok("{\"b\": 2}".to_owned()))]);
        assert_eq!(rows(b""), []);
        assert_eq!(rows(b"\n \n"), []);
    }

    #[test]
    fn objects_may_extend_over_several_lines() {
        let found = rows(b"{\n \"a\": [\"}\", 1]\n}\n\n{\n}\n{\"b\":\n2}");
        let texts: Vec<_> = found.iter().map(|(line, text)| (*line, text.clone().expect("a row"))).collect();
        let expected = [(1, "{\n \"a\": [\"}\", 1]\n}"), (5, "{\n}"), (7, "{\"b\":\n2}")];
        assert_eq!(texts, expected.map(|(line, text)| (line, text.to_owned())));
    }

    #[test]
    fn objects_may_follow_each_other_on_a_line() {
        let found = rows(b"{\"a\": 1}{\"b\": 2} {}\n{}");
        let texts: Vec<_> = found.iter().map(|(line, text)| (*line, text.clone().expect("a row"))).collect();
        let expected = [(1, "{\"a\": 1}"), (1, "{\"b\": 2}"), (1, "{}"), (2, "{}")];
        assert_eq!(texts, expected.map(|(line, text)| (line, text.to_owned())));
    }

    #[test]
    fn truncated_first_line_is_one_row() {
        let found = rows(b"{\"a\": [1\n{\"b\": 2}\n");
        assert_eq!(found[1], (2, Ok("{\"b\": 2}".to_owned())));
    }

    #[test]
    fn invalid_utf8_and_long_lines_are_bad_rows() {
        let long = [vec![b'x'; 50], b"\n2\n".to_vec()].concat();
        let found = rows(&[b"1\nab\xff\n".to_vec(), long].concat());
        assert_eq!(found[1], (2, Err(RowError::InvalidUtf8 { at: 3 })));
        assert_eq!(found[2], (3, Err(RowError::TooLong { max: 40 })));
        assert_eq!(found[3], (4, Ok("2".to_owned())));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_terminate(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            rows(&bytes);
        }

        #[test]
        fn brackets_and_quotes_terminate(text in "[{][\\[\\]{}\",:\\\\a\n ]{0,60}") {
            rows(text.as_bytes());
        }
    }
}
