//! Tables. A [`ReportTable`] belongs to a report section (text, tables and plots), which is
//! rendered as text for a terminal or as HTML. A [`ListTable`] lists objects or nodes on a
//! terminal.
//!
//! Text fits the terminal: long lines are wrapped. In a table that is too wide, headers are wrapped
//! first, then text columns. If that is not enough, the table is split into several tables that
//! repeat the first column.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use crate::commands::cli::output;
use crate::commands::cli::svg::{Plot, escaped};
use crate::engine::base::text::printable;

/// Text width in columns when stdout is not a terminal.
pub const DEFAULT_WIDTH: usize = 100;
/// Minimum width. A narrower terminal is treated as having this width.
const MIN_WIDTH: usize = 40;
/// Maximum length of text lines, even on a wider terminal.
const MAX_TEXT_WIDTH: usize = 120;
/// Number of spaces between table columns.
const GAP: usize = 2;
/// Minimum width of a wrapped text column.
const MIN_TEXT_COLUMN: usize = 16;
/// Words up to this length are not split to make a text column narrower.
const MAX_UNBROKEN_WORD: usize = 40;

/// Returns the width for reports, in columns: [`output::terminal_width`], but at least
/// [`MIN_WIDTH`], or [`DEFAULT_WIDTH`] if it is unknown.
pub fn width() -> usize {
    output::terminal_width().map_or(DEFAULT_WIDTH, |columns| columns.max(MIN_WIDTH))
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReportSection {
    /// Heading, shown only in HTML.
    pub title: String,
    pub text: Vec<String>,
    pub tables: Vec<ReportTable>,
    /// Rendered only in HTML, without the empty ones.
    pub plots: Vec<Plot>,
}

impl ReportSection {
    /// Returns an empty section.
    pub fn new(title: impl Into<String>) -> ReportSection {
        ReportSection { title: title.into(), ..ReportSection::default() }
    }

    /// Renders the text and the tables with at most `width` columns.
    pub fn render(&self, width: usize) -> String {
        let mut text = String::new();
        for line in &self.text {
            text.push_str(&wrapped_line(line, width));
        }
        for table in self.tables.iter().filter(|table| !table.rows.is_empty()) {
            if !text.is_empty() {
                text.push('\n');
            }
            text.push_str(&table.render(width));
        }
        text
    }

    /// Renders the section as an HTML `<section>`. Returns an empty string if it has no content.
    pub fn html(&self) -> String {
        let has_table = self.tables.iter().any(|table| !table.rows.is_empty());
        if self.text.is_empty() && !has_table && self.plots.iter().all(Plot::is_empty) {
            return String::new();
        }
        let mut html = String::from("<section>\n");
        if !self.title.is_empty() {
            html.push_str(&format!("<h2>{}</h2>\n", escaped(&self.title)));
        }
        for line in &self.text {
            html.push_str(&format!("<p>{}</p>\n", escaped(line)));
        }
        let plots: Vec<&Plot> = self.plots.iter().filter(|plot| !plot.is_empty()).collect();
        if !plots.is_empty() {
            html.push_str("<div class=\"plots\">\n");
            for plot in plots {
                html.push_str(&format!("<figure>{}</figure>\n", plot.svg()));
            }
            html.push_str("</div>\n");
        }
        for table in self.tables.iter().filter(|table| !table.rows.is_empty()) {
            // A caption that repeats the heading is for the text report.
            html.push_str(&table.html_under(&self.title));
        }
        html + "</section>\n"
    }
}

/// A table with one header row. The first column contains text and is left-aligned. The others
/// contain numbers and are right-aligned, except columns marked with [`ReportTable::text_column`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReportTable {
    /// Caption above the table; may be empty.
    pub title: String,
    /// Column headers, with units.
    pub head: Vec<String>,
    text_columns: Vec<usize>,
    pub rows: Vec<Vec<String>>,
    /// Lines below the table.
    pub notes: Vec<String>,
}

impl ReportTable {
    /// Returns a table without rows.
    pub fn new(title: &str, head: &[&str]) -> ReportTable {
        ReportTable {
            title: title.to_owned(),
            head: head.iter().map(|name| (*name).to_owned()).collect(),
            ..ReportTable::default()
        }
    }

    /// Marks `column` (counted from 0) as text: left-aligned, and wrapped if the table is too wide.
    pub fn text_column(mut self, column: usize) -> ReportTable {
        self.text_columns.push(column);
        self
    }

    /// Appends a row of cells. Control characters in them are escaped.
    pub fn row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.rows.push(cells.into_iter().map(|cell| printable(&cell.into()).into_owned()).collect());
    }

    fn is_text(&self, column: usize) -> bool {
        column == 0 || self.text_columns.contains(&column)
    }

    /// Renders the table with at most `width` columns, unless a single number or word is wider.
    pub fn render(&self, width: usize) -> String {
        let mut text = if self.title.is_empty() { String::new() } else { wrapped_line(&self.title, width) };
        let mut rest: Vec<usize> = (1..self.head.len()).collect();
        let mut is_first = true;
        while is_first || !rest.is_empty() {
            let (columns, widths) = self.next_group(&mut rest, width);
            if !is_first {
                text.push('\n');
            }
            is_first = false;
            self.render_row(&self.head, &columns, &widths, true, &mut text);
            for row in &self.rows {
                self.render_row(row, &columns, &widths, false, &mut text);
            }
        }
        for note in &self.notes {
            text.push_str(&wrapped_line(note, width));
        }
        text
    }

    /// Removes from `rest` the columns that fit next to the first column (at least one), and
    /// returns them with their widths.
    fn next_group(&self, rest: &mut Vec<usize>, width: usize) -> (Vec<usize>, Vec<usize>) {
        let mut columns = vec![0];
        let mut widths = self.widths(&columns, width).0;
        while let Some(next) = rest.first().copied() {
            columns.push(next);
            let (more, fits) = self.widths(&columns, width);
            if !fits && columns.len() > 2 {
                columns.pop();
                break;
            }
            widths = more;
            rest.remove(0);
        }
        (columns, widths)
    }

    /// Returns the widths of `columns`, and whether their sum fits into `width`.
    fn widths(&self, columns: &[usize], width: usize) -> (Vec<usize>, bool) {
        let total = |widths: &[usize]| widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1);
        let head = |column: usize| self.head.get(column).map_or("", String::as_str);
        let cells = |column: usize| self.rows.iter().filter_map(move |row| row.get(column));
        let widest = |column: usize| cells(column).map(|cell| length(cell)).max().unwrap_or(0);
        let natural: Vec<usize> = columns.iter().map(|column| widest(*column).max(length(head(*column)))).collect();
        if total(&natural) <= width {
            return (natural, true);
        }
        let word = |text: &str| text.split(' ').map(length).max().unwrap_or(0);
        let wrapped_heads: Vec<usize> = columns.iter().map(|column| widest(*column).max(word(head(*column)))).collect();
        let least: Vec<usize> = columns
            .iter()
            .zip(&wrapped_heads)
            .map(|(column, width)| match self.is_text(*column) {
                true => {
                    let words = cells(*column).map(|cell| word(cell)).max().unwrap_or(0).min(MAX_UNBROKEN_WORD);
                    words.max(word(head(*column))).max(MIN_TEXT_COLUMN).min(*width)
                }
                false => *width,
            })
            .collect();
        // Wrap headers no more than necessary, then text columns, the widest first.
        let mut widths = natural;
        while total(&widths) > width {
            let heads = (0..widths.len()).filter(|at| widths[*at] > wrapped_heads[*at]);
            let texts = (0..widths.len()).filter(|at| widths[*at] > least[*at]);
            let widest_head = heads.max_by_key(|at| widths[*at] - wrapped_heads[*at]);
            let Some(at) = widest_head.or_else(|| texts.max_by_key(|at| widths[*at])) else { return (widths, false) };
            widths[at] -= 1;
        }
        (widths, true)
    }

    fn render_row(&self, row: &[String], columns: &[usize], widths: &[usize], is_head: bool, text: &mut String) {
        let cells: Vec<Vec<String>> = columns
            .iter()
            .zip(widths)
            .map(|(column, width)| wrap(row.get(*column).map_or("", String::as_str), *width))
            .collect();
        let height = cells.iter().map(Vec::len).max().unwrap_or(0);
        for at in 0..height {
            let mut line = String::new();
            for ((column, width), cell) in columns.iter().zip(widths).zip(&cells) {
                if !line.is_empty() || *column != 0 {
                    line.push_str(&" ".repeat(GAP));
                }
                // Headers are bottom-aligned, directly above the numbers.
                let at = if is_head { (at + cell.len()).checked_sub(height) } else { Some(at) };
                let part = at.and_then(|at| cell.get(at)).map_or("", String::as_str);
                let padding = " ".repeat(width.saturating_sub(length(part)));
                match self.is_text(*column) {
                    true => line.extend([part, &padding]),
                    false => line.extend([&padding, part]),
                }
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
    }

    /// Renders the head and the rows as an HTML table without classes. The last cell of a short row
    /// spans the remaining columns.
    pub fn plain_html(&self) -> String {
        let row = |tag: &str, cells: &[String]| {
            let cells = cells.iter().enumerate().map(|(at, cell)| {
                let columns = if at + 1 == cells.len() { self.head.len().saturating_sub(at) } else { 1 };
                let span = if columns > 1 { format!(" colspan=\"{columns}\"") } else { String::new() };
                format!("<{tag}{span}>{}</{tag}>", escaped(cell))
            });
            format!("<tr>{}</tr>\n", cells.collect::<String>())
        };
        let rows: String = self.rows.iter().map(|cells| row("td", cells)).collect();
        format!("<table>\n{}{rows}</table>\n", row("th", &self.head))
    }

    /// Renders the table as HTML.
    pub fn html(&self) -> String {
        self.html_under("")
    }

    /// Renders the table as HTML below `heading`, without a caption if it is the same.
    fn html_under(&self, heading: &str) -> String {
        let class = |column: usize| if self.is_text(column) { " class=\"t\"" } else { "" };
        let mut html = String::from("<div class=\"table\"><table>\n");
        if !self.title.is_empty() && self.title != heading {
            html.push_str(&format!("<caption>{}</caption>\n", escaped(&self.title)));
        }
        let heads = self.head.iter().enumerate();
        let heads: String = heads.map(|(at, head)| format!("<th{}>{}</th>", class(at), escaped(head))).collect();
        html.push_str(&format!("<thead><tr>{heads}</tr></thead>\n<tbody>\n"));
        for row in &self.rows {
            let cells = row.iter().enumerate();
            let cells: String = cells.map(|(at, cell)| format!("<td{}>{}</td>", class(at), escaped(cell))).collect();
            html.push_str(&format!("<tr>{cells}</tr>\n"));
        }
        html.push_str("</tbody></table></div>\n");
        for note in &self.notes {
            html.push_str(&format!("<p class=\"note\">{}</p>\n", escaped(note)));
        }
        html
    }
}

/// A list without borders that fits the terminal.
#[derive(Debug)]
pub struct ListTable(Table);

impl ListTable {
    /// Returns a list without rows. The columns in `right` are right-aligned.
    pub fn new<const N: usize>(header: [&str; N], right: &[usize]) -> ListTable {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        if let Some(columns) = output::terminal_width() {
            table.set_content_arrangement(ContentArrangement::Dynamic);
            table.set_width(u16::try_from(columns).unwrap_or(u16::MAX));
        }
        table.set_header(header);
        for column in right {
            if let Some(column) = table.column_mut(*column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        ListTable(table)
    }

    /// Appends a row of cells.
    pub fn row<T: Into<String>, const N: usize>(&mut self, cells: [T; N]) {
        self.0.add_row(cells.map(Into::into));
    }

    /// The lines without trailing spaces and with control characters escaped.
    pub fn text(&self) -> String {
        self.0.lines().map(|line| format!("{}\n", printable(line.trim_end()))).collect()
    }
}

fn length(text: &str) -> usize {
    text.chars().count()
}

/// Splits `text` at spaces into lines of at most `width` characters. A longer word is split.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    if length(text) <= width {
        return vec![text.to_owned()];
    }
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let mut word: Vec<char> = word.chars().collect();
        let free = lines.last().map_or(0, |line| width.saturating_sub(length(line)));
        let is_empty = lines.last().is_none_or(String::is_empty);
        if !is_empty && word.len() + 1 > free {
            lines.push(String::new());
        } else if !is_empty {
            word.insert(0, ' ');
        }
        while word.len() > width {
            let rest = word.split_off(width);
            if let Some(line) = lines.last_mut() {
                line.extend(word);
            }
            lines.push(String::new());
            word = rest;
        }
        if let Some(line) = lines.last_mut() {
            line.extend(word);
        }
    }
    lines
}

/// Returns `line` with a newline, wrapped at `width` columns. Continuation lines are indented by
/// two more spaces. Control characters are escaped.
pub fn wrapped_line(line: &str, width: usize) -> String {
    let line = &*printable(line);
    let width = width.min(MAX_TEXT_WIDTH);
    if length(line) <= width {
        return format!("{line}\n");
    }
    let indent = line.len() - line.trim_start_matches(' ').len();
    let mut text = String::new();
    let mut current = " ".repeat(indent);
    let mut is_start = true;
    for word in line.trim_start_matches(' ').split(' ') {
        if !is_start && length(&current) + 1 + length(word) > width {
            text.push_str(current.trim_end());
            text.push('\n');
            current = " ".repeat(indent + 2);
            is_start = true;
        }
        if !is_start {
            current.push(' ');
        }
        current.push_str(word);
        is_start = false;
    }
    text + current.trim_end() + "\n"
}

/// Returns `part` as a percentage of `whole`, without the percent sign; `-` if `whole` is 0.
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".to_owned() } else { format!("{:.1}", 100.0 * part as f64 / whole as f64) }
}

/// Returns `text` truncated to `most` characters. If truncated, the last character is `…`.
pub fn truncated(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_owned(),
        Some(_) => {
            let end = text.char_indices().nth(most.saturating_sub(1)).map_or(0, |(end, _)| end);
            format!("{}…", &text[..end])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_html_show_the_same_table() {
        let mut table = ReportTable::new("Turns", &["turn", "TTFT, ms", "why"]).text_column(2);
        table.row(["1", "12.5", "<slow>"]);
        table.row(["10", "2.5", "-"]);
        assert_eq!(
            table.render(80).lines().collect::<Vec<_>>(),
            ["Turns", "turn  TTFT, ms  why", "1         12.5  <slow>", "10         2.5  -"]
        );
        let html = table.html();
        assert!(html.contains("<td>12.5</td><td class=\"t\">&lt;slow&gt;</td>"), "{html}");
        table.row(["11", "none"]);
        let html = table.plain_html();
        assert!(
            html.starts_with("<table>\n<tr><th>turn</th><th>TTFT, ms</th><th>why</th></tr>\n<tr><td>1</td>"),
            "{html}"
        );
        assert!(html.ends_with("<tr><td>11</td><td colspan=\"2\">none</td></tr>\n</table>\n"), "{html}");
    }

    #[test]
    fn headers_wrap_before_columns_move() {
        let mut table = ReportTable::new("", &["pass", "TTFT mean, ms", "ITL mean, ms"]);
        table.row(["A load", "12.5", "2.5"]);
        assert_eq!(
            table.render(20).lines().collect::<Vec<_>>(),
            ["         TTFT    ITL", "        mean,  mean,", "pass       ms     ms", "A load   12.5    2.5"]
        );
    }

    #[test]
    fn text_columns_wrap_to_the_width() {
        let mut table = ReportTable::new("", &["node", "message"]).text_column(1);
        table.row(["a", "the connection was refused by the remote host"]);
        let text = table.render(40);
        assert!(text.lines().all(|line| length(line) <= 40), "{text}");
        assert_eq!(text.split_whitespace().count(), 2 + 9);
    }

    #[test]
    fn columns_that_do_not_fit_move_to_further_tables() {
        let head = ["latency, ms", "count", "mean", "std", "min", "p50", "p90", "p95", "p99", "p99.9", "max"];
        let mut table = ReportTable::new("", &head);
        let mut cells = vec!["TTFT (scheduled)"];
        cells.extend(["12345.6"; 10]);
        table.row(cells);
        let text = table.render(60);
        assert!(text.lines().all(|line| length(line) <= 60), "{text}");
        assert_eq!(text.matches("TTFT (scheduled)").count(), 3, "{text}");
        assert_eq!(text.matches("12345.6").count(), 10, "{text}");
    }

    #[test]
    fn lines_wrap_at_spaces_and_keep_their_indent() {
        assert_eq!(wrapped_line("caveat: one two three", 14), "caveat: one\n  two three\n");
        assert_eq!(wrapped_line("  http://host:1/a/long/path", 10), "  http://host:1/a/long/path\n");
        assert_eq!(wrap("abcdefgh ij", 4), ["abcd", "efgh", "ij"]);
    }

    #[test]
    fn control_characters_are_escaped() {
        let mut table = ReportTable::new("t\u{1b}", &["node"]);
        table.row(["a\u{1b}[31m"]);
        assert_eq!(table.render(80), "t\\u{1b}\nnode\na\\u{1b}[31m\n");
    }

    #[test]
    fn percent_and_truncated_handle_empty_input() {
        assert_eq!((percent(1, 3), percent(0, 0)), ("33.3".to_owned(), "-".to_owned()));
        assert_eq!(
            (truncated("äöüß", 4), truncated("äöüß", 3), truncated("", 0)),
            ("äöüß".to_owned(), "äö…".to_owned(), String::new())
        );
    }
}
