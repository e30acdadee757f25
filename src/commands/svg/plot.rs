//! One plot: axes, a legend, and series of marks.

use crate::commands::svg::escaped;
use crate::commands::svg::scale::{AxisScale, label};

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 46.0;

/// Colors for a light background, distinguishable with color vision deficiency. A page may override them with `--s1` to `--s6`.
const COLOURS: [&str; 6] = ["#0b62c4", "#d1660a", "#1a8a5a", "#a03fa8", "#7a6a00", "#b3263a"];

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Axis {
    /// Quantity and unit.
    pub label: String,
    pub log: bool,
    /// Whether the axis includes zero.
    pub from_zero: bool,
    /// Category names instead of numbers; the value n refers to the name at index n.
    pub names: Vec<String>,
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

    /// Returns a logarithmic axis.
    pub fn log(label: &str) -> Axis {
        Axis { label: label.to_owned(), log: true, ..Axis::default() }
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

    fn xs(&self) -> Vec<f64> {
        match &self.mark {
            Mark::Line(points) => points.iter().map(|point| point.0).collect(),
            Mark::Area(points) | Mark::Band(points) => points.iter().map(|point| point.0).collect(),
            Mark::Whisker(points) => points.iter().map(|point| point.0).collect(),
        }
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

    /// Returns whether no series has a finite value.
    pub fn is_empty(&self) -> bool {
        self.series.iter().all(|series| series.ys().iter().all(|value| !value.is_finite()))
    }

    /// Renders the plot as SVG for embedding in a page.
    pub fn svg(&self) -> String {
        self.picture("")
    }

    /// Renders the plot as a standalone SVG document with a white background.
    pub fn document(&self) -> String {
        self.picture("<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n")
    }

    fn picture(&self, ground: &str) -> String {
        let xs = self.series.iter().flat_map(PlotSeries::xs);
        let x = match self.x.names.len() {
            0 => AxisScale::of(xs, self.x.log, self.x.from_zero),
            names => AxisScale::of([-0.5, names as f64 - 0.5].into_iter(), false, false),
        };
        let y = AxisScale::of(self.series.iter().flat_map(PlotSeries::ys), self.y.log, self.y.from_zero).rounded();
        let right = WIDTH - RIGHT;
        let foot = HEIGHT - BOTTOM;
        let at = PlotArea { x, y };
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
             role=\"img\" aria-label=\"{title}\" font-family=\"system-ui,sans-serif\" font-size=\"12\" fill=\"var(--ink,#222)\">\n{ground}\
             <title>{title}</title>\n\
             <text x=\"{LEFT}\" y=\"15\" font-weight=\"600\">{title}</text>\n",
            title = escaped(&self.title)
        );
        for tick in y.ticks() {
            svg.push_str(&format!(
                "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{0:.1}\" y2=\"{0:.1}\" stroke=\"var(--grid,#ddd)\"/>\
                 <text x=\"{1}\" y=\"{2:.1}\" text-anchor=\"end\">{3}</text>\n",
                at.y(tick),
                LEFT - 6.0,
                at.y(tick) + 4.0,
                label(tick)
            ));
        }
        let ticks: Vec<(f64, String)> = match self.x.names.len() {
            0 => x.ticks().into_iter().map(|tick| (tick, label(tick))).collect(),
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
                 <text x=\"{0:.1}\" y=\"{2}\" text-anchor=\"middle\">{3}</text>\n",
                at.x(tick),
                foot + 4.0,
                foot + 17.0,
                escaped(&text)
            ));
        }
        for series in &self.series {
            svg.push_str(&at.draw(series));
        }
        svg.push_str(&format!(
            "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{foot}\" y2=\"{foot}\" stroke=\"var(--axis,#888)\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n\
             <text x=\"14\" y=\"{:.1}\" text-anchor=\"middle\" transform=\"rotate(-90 14 {:.1})\">{}</text>\n",
            (LEFT + right) / 2.0,
            HEIGHT - 8.0,
            escaped(&self.x.label),
            (TOP + foot) / 2.0,
            (TOP + foot) / 2.0,
            escaped(&self.y.label)
        ));
        svg + &self.legend() + "</svg>\n"
    }

    /// Renders the series names below the title.
    fn legend(&self) -> String {
        let named: Vec<&PlotSeries> = self.series.iter().filter(|series| !series.name.is_empty()).collect();
        let areas = named.iter().any(|series| matches!(series.mark, Mark::Area(_)));
        if named.len() < 2 && !areas {
            return String::new();
        }
        let mut x = LEFT;
        let mut text = String::new();
        for series in named {
            let colour = colour(series.colour);
            let swatch = match series.mark {
                _ if series.dashed => {
                    format!("<path d=\"M{x:.1} 25h4m2 0h4\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"3\"/>")
                }
                Mark::Area(_) => rectangle(x, &colour, " fill-opacity=\"0.6\""),
                Mark::Band(_) => rectangle(x, &colour, " fill-opacity=\"0.2\""),
                _ => rectangle(x, &colour, ""),
            };
            text.push_str(&format!(
                "{swatch}<text x=\"{:.1}\" y=\"29\" font-size=\"11\">{}</text>\n",
                x + 14.0,
                escaped(&series.name)
            ));
            x += 14.0 + 6.3 * series.name.chars().count() as f64 + 14.0;
        }
        text
    }
}

/// Renders the color sample before a name in the legend.
fn rectangle(x: f64, colour: &str, more: &str) -> String {
    format!("<rect x=\"{x:.1}\" y=\"21\" width=\"10\" height=\"8\" fill=\"{colour}\"{more}/>")
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
}

impl PlotArea {
    fn x(&self, value: f64) -> f64 {
        LEFT + self.x.place(value) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        TOP + (1.0 - self.y.place(value)) * (HEIGHT - TOP - BOTTOM)
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
                            if series.dashed { 1.5 } else { 2.6 },
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
                    let (x, low, value, high) = (self.x(*x), self.y(*low), self.y(*value), self.y(*high));
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
        let plot = Plot::new("t", Axis::even("x"), Axis::even("y")).with(PlotSeries::line("", 0, vec![(0.0, 1.0)]));
        assert!(!plot.is_empty() && Plot::new("t", Axis::even("x"), Axis::even("y")).is_empty());
    }
}
