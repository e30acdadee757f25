//! What a report shows, before it is known where: sections of tables and plots, as text for a terminal or as HTML for a page.

use comfy_table::{CellAlignment, Table, presets};

use crate::commands::svg::{Plot, marked};

/// Most characters of a line on a terminal.
pub const LINE_MAX: usize = 120;

/// A part of a report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Section {
    /// Its heading; on a page only.
    pub title: String,
    /// Sentences.
    pub text: Vec<String>,
    /// Tables.
    pub sheets: Vec<Sheet>,
    /// Plots; on a page only.
    pub plots: Vec<Plot>,
}

impl Section {
    /// An empty one.
    pub fn new(title: impl Into<String>) -> Section {
        Section { title: title.into(), ..Section::default() }
    }

    /// For a terminal.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for line in &self.text {
            text.push_str(&format!("{line}\n"));
        }
        for sheet in self.sheets.iter().filter(|sheet| !sheet.rows.is_empty()) {
            if !text.is_empty() {
                text.push('\n');
            }
            text.push_str(&sheet.text());
        }
        text
    }

    /// For a page.
    pub fn html(&self) -> String {
        let mut html = String::from("<section>\n");
        if !self.title.is_empty() {
            html.push_str(&format!("<h2>{}</h2>\n", marked(&self.title)));
        }
        for line in &self.text {
            html.push_str(&format!("<p>{}</p>\n", marked(line)));
        }
        let plots: Vec<&Plot> = self.plots.iter().filter(|plot| !plot.is_empty()).collect();
        if !plots.is_empty() {
            html.push_str("<div class=\"plots\">\n");
            for plot in plots {
                html.push_str(&format!("<figure>{}</figure>\n", plot.svg()));
            }
            html.push_str("</div>\n");
        }
        for sheet in self.sheets.iter().filter(|sheet| !sheet.rows.is_empty()) {
            html.push_str(&sheet.html());
        }
        html + "</section>\n"
    }
}

/// A table. The first column is text, the others are numbers, unless it is said otherwise.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sheet {
    /// What stands over it; on a page, and on a terminal where it is not clear by itself.
    pub title: String,
    /// Heads of the columns, with their units.
    pub head: Vec<String>,
    /// Columns of text beside the first.
    pub words: Vec<usize>,
    /// Cells.
    pub rows: Vec<Vec<String>>,
    /// What stands below it.
    pub notes: Vec<String>,
}

impl Sheet {
    /// A table without rows yet.
    pub fn new(title: &str, head: &[&str]) -> Sheet {
        Sheet {
            title: title.to_owned(),
            head: head.iter().map(|name| (*name).to_owned()).collect(),
            ..Sheet::default()
        }
    }

    /// This column is text.
    pub fn words(mut self, column: usize) -> Sheet {
        self.words.push(column);
        self
    }

    /// One row more.
    pub fn row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    fn is_text(&self, column: usize) -> bool {
        column == 0 || self.words.contains(&column)
    }

    /// For a terminal.
    pub fn text(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(&self.head);
        let words: Vec<bool> = (0..self.head.len()).map(|column| self.is_text(column)).collect();
        for (column, text) in table.column_iter_mut().zip(words) {
            column.set_cell_alignment(if text { CellAlignment::Left } else { CellAlignment::Right });
        }
        for row in &self.rows {
            table.add_row(row);
        }
        let mut text = String::new();
        if !self.title.is_empty() {
            text.push_str(&format!("{}\n", self.title));
        }
        for line in table.lines() {
            text.push_str(&format!("{}\n", line.trim_end()));
        }
        for note in &self.notes {
            text.push_str(&format!("{note}\n"));
        }
        text
    }

    /// For a page.
    pub fn html(&self) -> String {
        let class = |column: usize| if self.is_text(column) { " class=\"t\"" } else { "" };
        let mut html = String::from("<div class=\"table\"><table>\n");
        if !self.title.is_empty() {
            html.push_str(&format!("<caption>{}</caption>\n", marked(&self.title)));
        }
        let heads = self.head.iter().enumerate();
        let heads: String = heads.map(|(at, head)| format!("<th{}>{}</th>", class(at), marked(head))).collect();
        html.push_str(&format!("<thead><tr>{heads}</tr></thead>\n<tbody>\n"));
        for row in &self.rows {
            let cells = row.iter().enumerate();
            let cells: String = cells.map(|(at, cell)| format!("<td{}>{}</td>", class(at), marked(cell))).collect();
            html.push_str(&format!("<tr>{cells}</tr>\n"));
        }
        html.push_str("</tbody></table></div>\n");
        for note in &self.notes {
            html.push_str(&format!("<p class=\"note\">{}</p>\n", marked(note)));
        }
        html
    }
}

/// A share of a whole, in per cent without the sign; a dash where there is no whole.
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".to_owned() } else { format!("{:.1}", 100.0 * part as f64 / whole as f64) }
}

/// Text cut to `most` characters.
pub fn cut(text: &str, most: usize) -> String {
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
    fn a_sheet_is_the_same_table_as_text_and_as_a_page() {
        let mut sheet = Sheet::new("Turns", &["turn", "TTFT, ms", "why"]).words(2);
        sheet.row(["1", "12.5", "<slow>"]);
        sheet.row(["10", "2.5", "-"]);
        assert_eq!(sheet.text(), "Turns\n turn  TTFT, ms  why\n 1         12.5  <slow>\n 10         2.5  -\n");
        let html = sheet.html();
        assert!(html.contains("<td>12.5</td><td class=\"t\">&lt;slow&gt;</td>"), "{html}");
    }

    #[test]
    fn shares_of_nothing_and_long_words_have_a_form() {
        assert_eq!((percent(1, 3), percent(0, 0)), ("33.3".to_owned(), "-".to_owned()));
        assert_eq!((cut("äöüß", 4), cut("äöüß", 3), cut("", 0)), ("äöüß".to_owned(), "äö…".to_owned(), String::new()));
    }
}
