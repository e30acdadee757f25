//! One plot: axes, a legend, and series of marks.

use crate::commands::cli::svg::escaped;
use crate::commands::cli::svg::scale::{AxisScale, label};

/// Width of a plot in a page, in CSS pixels. It fits a phone, and three plots fit side by side on a
/// screen.
const NARROW: f64 = 372.0;
/// Enlargement of a standalone image. It has the layout of a plot in a page, so that its text is
/// readable when a phone shrinks it.
const ENLARGED: f64 = 1.35;
/// Colors of a standalone image. A viewer in dark mode gets the second set; the background is
/// always opaque.
const STANDALONE: &str = "<style>@media(prefers-color-scheme:dark){svg{--ground:#15181c;--ink:#e6e8eb;--soft:#9aa4af;\
     --grid:#2a3038;--axis:#7b8590;--s1:#5aa6ff;--s2:#ff9d4d;--s3:#4fcf93;--s4:#d584dd;--s5:#d0bc3e;--s6:#ff7a8c}}</style>\n\
     <rect width=\"100%\" height=\"100%\" fill=\"var(--ground,#fff)\"/>\n";
/// Maximum width of a plot with categories.
const WIDEST: f64 = 1160.0;
/// Width of one category.
const CATEGORY: f64 = 74.0;
/// Height of the area between the axes.
const AREA: f64 = 186.0;
const LEFT: f64 = 48.0;
const RIGHT: f64 = 14.0;
const BOTTOM: f64 = 44.0;
/// Height of a line of text.
const TEXT: f64 = 16.0;
/// Estimated width of a character, as a share of the font size.
const CHARACTER: f64 = 0.6;

/// Colors for a light background, distinguishable with color vision deficiency. A page may override
/// them with `--s1` to `--s6`.
const COLOURS: [&str; 6] = ["#0b62c4", "#d1660a", "#1a8a5a", "#a03fa8", "#7a6a00", "#b3263a"];

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Axis {
    /// The quantity and its unit, as text for the axis.
    pub label: String,
    pub log: bool,
    /// Whether the axis includes zero.
    pub from_zero: bool,
    /// Category names instead of numbers; the value n refers to the name at index n.
    pub names: Vec<String>,
    /// Whether only whole numbers are labelled.
    pub whole: bool,
    /// Values to label instead of round numbers; those without room are left out.
    pub marked: Vec<f64>,
}

impl Axis {
    /// Returns a linear axis that includes zero.
    pub fn even(label: &str) -> Axis {
        Axis { label: label.to_owned(), from_zero: true, ..Axis::default() }
    }

    /// Returns a linear axis that covers the values and need not include zero.
    pub fn close(label: &str) -> Axis {
        Axis { label: label.to_owned(), ..Axis::default() }
    }

    /// Returns a linear axis for whole numbers, such as turns. It covers the values and need not
    /// include zero.
    pub fn whole(label: &str) -> Axis {
        Axis { label: label.to_owned(), whole: true, ..Axis::default() }
    }

    /// Returns a logarithmic axis.
    pub fn log(label: &str) -> Axis {
        Axis { label: label.to_owned(), log: true, ..Axis::default() }
    }

    /// Returns the same axis with labels at these values, such as the measured ones.
    #[must_use]
    pub fn marked(self, values: impl IntoIterator<Item = f64>) -> Axis {
        Axis { marked: values.into_iter().collect(), ..self }
    }

    /// Returns a category axis.
    pub fn named(label: &str, names: Vec<String>) -> Axis {
        Axis { label: label.to_owned(), names, ..Axis::default() }
    }
}

/// The values of a series and how they are drawn.
#[derive(Clone, Debug, PartialEq)]
pub enum Mark {
    /// Points joined by a line; a non-finite point leaves a gap.
    Line(Vec<(f64, f64)>),
    /// The area between two y values at each x.
    Area(Vec<(f64, f64, f64)>),
    /// A semi-transparent area, for use behind lines.
    Band(Vec<(f64, f64, f64)>),
    /// Points with intervals; each item contains x, low, value and high.
    Whisker(Vec<(f64, f64, f64, f64)>),
}

/// A series in a plot.
#[derive(Clone, Debug, PartialEq)]
pub struct PlotSeries {
    /// Name in the legend; a series with an empty name is not listed.
    pub name: String,
    /// Color index, starting at zero.
    pub colour: usize,
    pub mark: Mark,
    /// Whether the line is dashed.
    pub dashed: bool,
}

impl PlotSeries {
    /// Returns a series drawn as a line.
    pub fn line(name: &str, colour: usize, points: Vec<(f64, f64)>) -> PlotSeries {
        PlotSeries { name: name.to_owned(), colour, mark: Mark::Line(points), dashed: false }
    }

    /// Returns a series drawn as an area.
    pub fn area(name: &str, colour: usize, points: Vec<(f64, f64, f64)>) -> PlotSeries {
        PlotSeries { name: name.to_owned(), colour, mark: Mark::Area(points), dashed: false }
    }

    /// Returns a semi-transparent area.
    pub fn band(name: &str, colour: usize, points: Vec<(f64, f64, f64)>) -> PlotSeries {
        PlotSeries { name: name.to_owned(), colour, mark: Mark::Band(points), dashed: false }
    }

    /// Returns points with intervals.
    pub fn whiskers(name: &str, colour: usize, points: Vec<(f64, f64, f64, f64)>) -> PlotSeries {
        PlotSeries { name: name.to_owned(), colour, mark: Mark::Whisker(points), dashed: false }
    }

    /// Returns the same series as a dashed line, so that a line below it stays visible.
    #[must_use]
    pub fn dashed(self) -> PlotSeries {
        PlotSeries { dashed: true, ..self }
    }

    /// Returns the x values of the points with finite coordinates.
    fn xs(&self) -> Vec<f64> {
        let finite = |values: &[f64]| values.iter().all(|value| value.is_finite());
        match &self.mark {
            Mark::Line(points) => points.iter().filter(|(x, y)| finite(&[*x, *y])).map(|point| point.0).collect(),
            Mark::Area(points) | Mark::Band(points) => {
                points.iter().filter(|(x, low, high)| finite(&[*x, *low, *high])).map(|point| point.0).collect()
            }
            Mark::Whisker(points) => {
                points.iter().filter(|(x, low, y, high)| finite(&[*x, *low, *y, *high])).map(|point| point.0).collect()
            }
        }
    }

    /// Returns whether the series has a value other than zero.
    fn has_value(&self) -> bool {
        self.ys().iter().any(|value| value.is_finite() && *value != 0.0)
    }

    fn ys(&self) -> Vec<f64> {
        match &self.mark {
            Mark::Line(points) => points.iter().map(|point| point.1).collect(),
            Mark::Area(points) | Mark::Band(points) => points.iter().flat_map(|point| [point.1, point.2]).collect(),
            Mark::Whisker(points) => points.iter().flat_map(|point| [point.1, point.2, point.3]).collect(),
        }
    }
}

/// A plot with axes and series.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    pub title: String,
    pub x: Axis,
    pub y: Axis,
    /// Series in drawing order; the first is at the bottom.
    pub series: Vec<PlotSeries>,
}

impl Plot {
    /// Returns a plot without series.
    pub fn new(title: &str, x: Axis, y: Axis) -> Plot {
        Plot { title: title.to_owned(), x, y, series: Vec::new() }
    }

    /// Adds a series above the others.
    pub fn with(mut self, series: PlotSeries) -> Plot {
        self.series.push(series);
        self
    }

    /// Returns whether the plot shows nothing: no series has two different x values with finite y
    /// values, or all values are zero. Such a plot is left out of a page.
    pub fn is_empty(&self) -> bool {
        let has_points = |series: &&PlotSeries| {
            let mut xs = series.xs();
            xs.retain(|x| !self.x.log || *x > 0.0);
            xs.sort_by(f64::total_cmp);
            xs.dedup();
            xs.len() > 1
        };
        !self.shown().iter().any(has_points)
    }

    /// Returns the series to draw. A line that is zero everywhere is left out: it would cover the
    /// axis and repeat it.
    fn shown(&self) -> Vec<&PlotSeries> {
        self.series.iter().filter(|series| !matches!(series.mark, Mark::Line(_)) || series.has_value()).collect()
    }

    /// Renders the plot as SVG for embedding in a page. It has a fixed size: a page must not
    /// stretch it, so that all text has the same size.
    pub fn svg(&self) -> String {
        self.picture("", 1.0)
    }

    /// Renders the plot as a standalone SVG document for a light or dark viewer.
    pub fn document(&self) -> String {
        self.picture(STANDALONE, ENLARGED)
    }

    fn picture(&self, ground: &str, enlarged: f64) -> String {
        let series = self.shown();
        let xs = series.iter().flat_map(|series| series.xs());
        let (x, width) = match self.x.names.len() {
            0 => (AxisScale::of(xs, self.x.log, self.x.from_zero), NARROW),
            names => (
                AxisScale::of([-0.5, names as f64 - 0.5].into_iter(), false, false),
                (LEFT + RIGHT + CATEGORY * names as f64).clamp(NARROW, WIDEST),
            ),
        };
        let y = AxisScale::of(series.iter().flat_map(|series| series.ys()), self.y.log, self.y.from_zero).rounded();
        let right = width - RIGHT;
        let title = lines(&self.title, 12.5, width - 8.0);
        let names = legend_rows(&series, width);
        // Title, unit of the y axis, names of the series.
        let top = TEXT * (title.len() + 1 + names.len()) as f64 + 12.0;
        let foot = top + AREA;
        let height = foot + BOTTOM;
        let at = PlotArea { x, y, right, top, foot };
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{:.0}\" height=\"{:.0}\" \
             role=\"img\" aria-label=\"{title}\" font-family=\"system-ui,sans-serif\" font-size=\"12\" fill=\"var(--ink,#222)\">\n{ground}\
             <title>{title}</title>\n",
            width * enlarged,
            height * enlarged,
            title = escaped(&self.title)
        );
        for (row, text) in title.iter().enumerate() {
            svg.push_str(&format!(
                "<text x=\"4\" y=\"{:.0}\" font-weight=\"600\">{}</text>\n",
                TEXT * (row + 1) as f64 - 2.0,
                escaped(text)
            ));
        }
        for (row, names) in names.iter().enumerate() {
            svg.push_str(&legend(names, TEXT * (title.len() + row) as f64));
        }
        // The unit of the y axis is above it, because text along the axis is hard to read.
        svg.push_str(&format!(
            "<text x=\"4\" y=\"{:.0}\" font-size=\"11\" fill=\"var(--soft,#5b6570)\">{}</text>\n",
            top - 10.0,
            escaped(&self.y.label)
        ));
        for tick in y.ticks() {
            svg.push_str(&format!(
                "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{0:.1}\" y2=\"{0:.1}\" stroke=\"var(--grid,#ddd)\"/>\
                 <text x=\"{1}\" y=\"{2:.1}\" text-anchor=\"end\" font-size=\"11\">{3}</text>\n",
                at.y(tick),
                LEFT - 6.0,
                at.y(tick) + 4.0,
                label(tick)
            ));
        }
        let ticks: Vec<(f64, String)> = match self.x.names.len() {
            0 if !self.x.marked.is_empty() => at.marks(&self.x.marked),
            0 => x
                .ticks()
                .into_iter()
                .filter(|tick| !self.x.whole || tick.fract() == 0.0)
                .map(|tick| (tick, label(tick)))
                .collect(),
            names => {
                // Show at most 16 names, to keep them readable.
                let every = names.div_ceil(16);
                let shown = self.x.names.iter().enumerate().filter(|(place, _)| place % every == 0);
                shown.map(|(place, name)| (place as f64, short(name))).collect()
            }
        };
        for (tick, text) in ticks {
            svg.push_str(&format!(
                "<line x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{foot}\" y2=\"{1}\" stroke=\"var(--axis,#888)\"/>\
                 <text x=\"{4:.1}\" y=\"{2}\" text-anchor=\"middle\" font-size=\"11\">{3}</text>\n",
                at.x(tick),
                foot + 4.0,
                foot + 17.0,
                escaped(&text),
                at.x(tick).min(width - text_width(&text, 11.0) / 2.0)
            ));
        }
        for series in &series {
            svg.push_str(&at.draw(series));
        }
        svg.push_str(&format!(
            "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{foot}\" y2=\"{foot}\" stroke=\"var(--axis,#888)\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" font-size=\"11\" fill=\"var(--soft,#5b6570)\">{}</text>\n",
            (LEFT + right) / 2.0,
            height - 8.0,
            escaped(&self.x.label)
        ));
        svg + "</svg>\n"
    }
}

/// Returns the width of `text` in a font of `size` pixels. An estimate, because the fonts of the
/// reader are not known.
fn text_width(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * CHARACTER
}

/// Splits `text` at spaces into lines of at most `width` pixels.
fn lines(text: &str, size: f64, width: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if text_width(line, size) + text_width(word, size) + size <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Width of a name in the legend with its color sample and the gap after it.
fn entry_width(series: &PlotSeries) -> f64 {
    14.0 + text_width(&series.name, 11.0) + 14.0
}

/// Groups the named series into rows that fit `width`. A single line needs no legend.
fn legend_rows<'a>(series: &[&'a PlotSeries], width: f64) -> Vec<Vec<&'a PlotSeries>> {
    let named: Vec<&PlotSeries> = series.iter().copied().filter(|series| !series.name.is_empty()).collect();
    let areas = named.iter().any(|series| matches!(series.mark, Mark::Area(_)));
    if named.len() < 2 && !areas {
        return Vec::new();
    }
    let mut rows: Vec<Vec<&PlotSeries>> = Vec::new();
    let mut used = f64::INFINITY;
    for series in named {
        let needed = entry_width(series);
        if used + needed > width {
            rows.push(Vec::new());
            used = 4.0;
        }
        used += needed;
        if let Some(row) = rows.last_mut() {
            row.push(series);
        }
    }
    rows
}

/// Renders a row of series names whose upper edge is at `top`.
fn legend(row: &[&PlotSeries], top: f64) -> String {
    let mut x = 4.0;
    let mut text = String::new();
    for series in row {
        let colour = colour(series.colour);
        let swatch = match series.mark {
            _ if series.dashed => {
                format!(
                    "<path d=\"M{x:.1} {:.0}h4m2 0h4\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"3\"/>",
                    top + 9.0
                )
            }
            Mark::Area(_) => rectangle(x, top, &colour, " fill-opacity=\"0.6\""),
            Mark::Band(_) => rectangle(x, top, &colour, " fill-opacity=\"0.2\""),
            _ => rectangle(x, top, &colour, ""),
        };
        text.push_str(&format!(
            "{swatch}<text x=\"{:.1}\" y=\"{:.0}\" font-size=\"11\">{}</text>\n",
            x + 14.0,
            top + 13.0,
            escaped(&series.name)
        ));
        x += entry_width(series);
    }
    text
}

/// Renders the color sample before a name in the legend.
fn rectangle(x: f64, top: f64, colour: &str, more: &str) -> String {
    format!("<rect x=\"{x:.1}\" y=\"{:.0}\" width=\"10\" height=\"8\" fill=\"{colour}\"{more}/>", top + 5.0)
}

/// Returns the radius of a point in a line of `count` points. A single point stands out from the
/// lines.
fn point_radius(series: &PlotSeries, count: usize) -> f64 {
    match count {
        1 => 5.0,
        _ if series.dashed => 1.5,
        _ => 2.6,
    }
}

/// Truncates a name to 16 characters.
fn short(name: &str) -> String {
    match name.char_indices().nth(16) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

fn colour(number: usize) -> String {
    let place = number % COLOURS.len();
    format!("var(--s{},{})", place + 1, COLOURS[place])
}

/// Converts values to image coordinates.
#[derive(Clone, Copy)]
struct PlotArea {
    x: AxisScale,
    y: AxisScale,
    right: f64,
    top: f64,
    foot: f64,
}

impl PlotArea {
    fn x(&self, value: f64) -> f64 {
        LEFT + self.x.place(value) * (self.right - LEFT)
    }

    fn y(&self, value: f64) -> f64 {
        self.top + (1.0 - self.y.place(value)) * (self.foot - self.top)
    }

    /// Returns the values to label at the x axis, with their texts: from the right, those with
    /// room. The last value is always among them.
    fn marks(&self, values: &[f64]) -> Vec<(f64, String)> {
        let mut values: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
        values.sort_by(|a, b| b.total_cmp(a));
        values.dedup();
        let mut free = f64::INFINITY;
        let mut marks = Vec::new();
        for value in values {
            let text = if value.abs() < 1e6 && value.fract() == 0.0 { format!("{value}") } else { label(value) };
            let half = text_width(&text, 11.0) / 2.0;
            if self.x(value) + half <= free {
                free = self.x(value) - half - 4.0;
                marks.push((value, text));
            }
        }
        marks
    }

    fn draw(&self, series: &PlotSeries) -> String {
        let colour = colour(series.colour);
        match &series.mark {
            Mark::Line(points) => {
                let mut text = String::new();
                for run in points.split(|(x, y)| !x.is_finite() || !y.is_finite()).filter(|run| !run.is_empty()) {
                    let places: Vec<String> =
                        run.iter().map(|(x, y)| format!("{:.1},{:.1}", self.x(*x), self.y(*y))).collect();
                    text.push_str(&format!(
                        "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\" stroke-linejoin=\"round\"{} points=\"{}\"/>\n",
                        if series.dashed { " stroke-dasharray=\"6 6\"" } else { "" },
                        places.join(" ")
                    ));
                }
                // Mark the points individually if there are only a few.
                if points.len() <= 40 {
                    for (x, y) in points.iter().filter(|(x, y)| x.is_finite() && y.is_finite()) {
                        text.push_str(&format!(
                            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"{}\" fill=\"{colour}\"><title>{}: {} at {}</title></circle>\n",
                            self.x(*x),
                            self.y(*y),
                            point_radius(series, points.len()),
                            escaped(&series.name),
                            label(*y),
                            label(*x)
                        ));
                    }
                }
                text
            }
            Mark::Area(points) | Mark::Band(points) => {
                let opacity = if matches!(series.mark, Mark::Area(_)) { 0.6 } else { 0.2 };
                let points: Vec<_> =
                    points.iter().filter(|(x, a, b)| x.is_finite() && a.is_finite() && b.is_finite()).collect();
                // Draw a single value with some width.
                let wide = if points.len() == 1 { 24.0 } else { 0.0 };
                let top = points.iter().flat_map(|(x, _, high)| {
                    [-wide, wide]
                        .into_iter()
                        .take(if wide > 0.0 { 2 } else { 1 })
                        .map(move |by| (self.x(*x) + by, self.y(*high)))
                });
                let back = points.iter().rev().flat_map(|(x, low, _)| {
                    [wide, -wide]
                        .into_iter()
                        .take(if wide > 0.0 { 2 } else { 1 })
                        .map(move |by| (self.x(*x) + by, self.y(*low)))
                });
                let places: Vec<String> = top.chain(back).map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
                if places.is_empty() {
                    return String::new();
                }
                format!(
                    "<polygon fill=\"{colour}\" fill-opacity=\"{opacity}\" stroke=\"none\" points=\"{}\"/>\n",
                    places.join(" ")
                )
            }
            Mark::Whisker(points) => {
                let seen =
                    points.iter().filter(|(x, low, value, high)| [x, low, value, high].iter().all(|v| v.is_finite()));
                let draw = |(x, low, value, high): &(f64, f64, f64, f64)| {
                    let x = self.x(*x);
                    let low = self.y(*low);
                    let value = self.y(*value);
                    let high = self.y(*high);
                    format!(
                        "<path fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" d=\"M{x:.1} {low:.1}V{high:.1}M{0:.1} {low:.1}H{1:.1}M{0:.1} {high:.1}H{1:.1}\"/>\
                         <circle cx=\"{x:.1}\" cy=\"{value:.1}\" r=\"4\" fill=\"{colour}\"/>\n",
                        x - 6.0,
                        x + 6.0
                    )
                };
                seen.map(draw).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn svg_is_well_formed_for_any_values() {
        let odd = [f64::NAN, f64::INFINITY, -1.0, 0.0, 1e300];
        let line = odd.iter().flat_map(|x| odd.iter().map(|y| (*x, *y))).collect();
        let area = odd.iter().map(|v| (*v, 0.0, *v)).collect();
        let whiskers = odd.iter().map(|v| (0.0, *v, *v, *v)).collect();
        for log in [false, true] {
            let axis = |label: &str| Axis { log, ..Axis::even(label) };
            let plot = Plot::new("<&>", axis("\"x\""), axis("y"))
                .with(PlotSeries::line("a", 0, Vec::clone(&line)))
                .with(PlotSeries::area("b", 1, Vec::clone(&area)))
                .with(PlotSeries::whiskers("c", 7, Vec::clone(&whiskers)));
            let svg = plot.svg();
            assert!(
                svg.starts_with("<svg ") && svg.ends_with("</svg>\n") && !svg.contains("NaN") && !svg.contains("inf")
            );
            assert!(svg.contains("&lt;&amp;&gt;") && !svg.contains("href"), "{svg}");
        }
        assert!(!Plot::new("", Axis::default(), Axis::default()).svg().contains("NaN"));
    }

    #[test]
    fn a_gap_splits_a_line() {
        let plot = Plot::new("t", Axis::even("x"), Axis::even("y"))
            .with(PlotSeries::line("", 0, vec![(0.0, 1.0), (1.0, f64::NAN), (2.0, 1.0), (3.0, 2.0)]))
            .with(PlotSeries::area("", 1, vec![(0.0, 0.0, 1.0), (3.0, 1.0, 2.0)]));
        let svg = plot.svg();
        assert_eq!((svg.matches("<polyline").count(), svg.matches("<polygon").count()), (2, 1));
        assert_eq!(svg.matches("dasharray").count(), 0);
        let over = |name: &str| PlotSeries::line(name, 2, vec![(0.0, 1.0), (3.0, 2.0)]);
        let dashed = plot.with(over("under")).with(over("over").dashed()).svg();
        assert!(dashed.contains("stroke-dasharray") && dashed.contains("h4m2 0h4"), "{dashed}");
    }

    #[test]
    fn a_plot_with_less_than_two_points_or_only_zeros_is_empty() {
        let of = |points: &[(f64, f64)]| {
            Plot::new("t", Axis::even("x"), Axis::even("y")).with(PlotSeries::line("", 0, points.to_vec())).is_empty()
        };
        for empty in [
            &[][..],
            &[(1.0, 5.0)],
            &[(1.0, 5.0), (1.0, 6.0)],
            &[(1.0, 5.0), (2.0, f64::NAN)],
            &[(1.0, 0.0), (2.0, 0.0), (3.0, 0.0)],
        ] {
            assert!(of(empty), "{empty:?}");
        }
        assert!(!of(&[(1.0, 5.0), (2.0, 5.0)]) && !of(&[(1.0, 0.0), (2.0, 1.0)]));
        let whiskers = |count: usize| {
            let names = (0..count).map(|n| format!("metric {n}")).collect();
            let points = (0..count).map(|n| (n as f64, -1.0, 0.0, 1.0)).collect();
            Plot::new("t", Axis::named("", names), Axis::close("%")).with(PlotSeries::whiskers("", 0, points))
        };
        assert_eq!([0, 1, 2].map(|count| whiskers(count).is_empty()), [true, true, false]);
    }

    #[test]
    fn a_plot_is_as_wide_as_its_content_and_long_names_wrap() {
        let width = |svg: &str| svg.split("width=\"").nth(1).and_then(|rest| rest.split('"').next()).map(str::to_owned);
        let line = |name: &str| PlotSeries::line(name, 0, vec![(0.0, 1.0), (1.0, 2.0)]);
        let plot = Plot::new(&"long title ".repeat(12), Axis::even("x"), Axis::even("y"));
        let svg = (0..6).fold(plot, |plot, n| plot.with(line(&format!("a rather long series name {n}")))).svg();
        assert_eq!(width(&svg).as_deref(), Some("372"));
        assert!(svg.matches("font-weight").count() > 1, "the title has several lines: {svg}");
        let xs = svg.matches("font-size=\"11\">a rather").count();
        assert_eq!(xs, 6);
        let names = (0..10).map(|n| n.to_string()).collect();
        let wide = Plot::new("t", Axis::named("", names), Axis::even("y")).with(line(""));
        assert_eq!(width(&wide.svg()).as_deref(), Some("802"));
    }

    #[test]
    fn marked_values_are_labelled_where_there_is_room() {
        let labelled = |values: &[f64]| {
            let points = values.iter().map(|x| (*x, *x)).collect();
            let x = Axis::log("tokens").marked(values.iter().copied());
            let svg = Plot::new("t", x, Axis::even("y")).with(PlotSeries::line("", 0, points)).svg();
            let texts = svg.split("text-anchor=\"middle\" font-size=\"11\">").skip(1);
            texts.filter_map(|rest| rest.split_once('<')).map(|(text, _)| text.to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(labelled(&[512.0, 1024.0, 8000.0]), ["8000", "1024", "512"]);
        assert_eq!(labelled(&[512.0, 7999.0, 8000.0, f64::NAN]), ["8000", "512"]);
        let many: Vec<f64> = (1..200).map(|n| f64::from(n) * 512.0).collect();
        let texts = labelled(&many);
        assert!(texts.len() > 3 && texts.len() < 12 && texts[0] == "101888", "{texts:?}");
    }

    #[test]
    fn a_standalone_image_has_its_own_colors_and_background() {
        let plot = Plot::new("t", Axis::even("x"), Axis::even("y")).with(PlotSeries::line(
            "",
            0,
            vec![(0.0, 1.0), (1.0, 2.0)],
        ));
        let alone = plot.document();
        let page = plot.svg();
        assert!(alone.contains("prefers-color-scheme:dark") && alone.contains("fill=\"var(--ground,#fff)\""));
        assert!(alone.matches("http:").count() == 1, "the namespace only: {alone}");
        assert!(!page.contains("<style>") && !page.contains("--ground"));
    }

    #[test]
    fn a_line_of_zeros_is_left_out_and_whole_axes_have_whole_ticks() {
        let plot = Plot::new("t", Axis::whole("turn"), Axis::even("y"))
            .with(PlotSeries::line("host", 0, vec![(1.0, 0.0), (2.0, 0.0)]))
            .with(PlotSeries::line("device", 1, vec![(1.0, 3.0), (2.0, 4.0)]));
        let svg = plot.svg();
        assert_eq!((svg.matches("<polyline").count(), svg.contains("host"), svg.contains(">1.5<")), (1, false, false));
    }
}
