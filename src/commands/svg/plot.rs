//! One plot: axes, a legend, and series of marks.

use crate::commands::svg::marked;
use crate::commands::svg::scale::{Scale, label};

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 46.0;

/// Colours for a light ground, told apart by those who see colours otherwise, too. A page may set `--s1` and so on.
const COLOURS: [&str; 6] = ["#0b62c4", "#d1660a", "#1a8a5a", "#a03fa8", "#7a6a00", "#b3263a"];

/// An axis.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Axis {
    /// What it shows, with its unit.
    pub label: String,
    /// Equal steps are equal factors.
    pub log: bool,
    /// It reaches down to zero.
    pub from_zero: bool,
    /// Names in place of numbers: the value n stands under the n-th, from zero.
    pub names: Vec<String>,
}

impl Axis {
    /// Even steps, from zero.
    pub fn even(label: &str) -> Axis {
        Axis { label: label.to_owned(), from_zero: true, ..Axis::default() }
    }

    /// Even steps about the values.
    pub fn close(label: &str) -> Axis {
        Axis { label: label.to_owned(), ..Axis::default() }
    }

    /// Equal steps are equal factors.
    pub fn log(label: &str) -> Axis {
        Axis { label: label.to_owned(), log: true, ..Axis::default() }
    }

    /// A name for each value.
    pub fn named(label: &str, names: Vec<String>) -> Axis {
        Axis { label: label.to_owned(), names, ..Axis::default() }
    }
}

/// How the values of a series are drawn.
#[derive(Clone, Debug, PartialEq)]
pub enum Mark {
    /// Points joined by a line; one that is no number is a gap in it.
    Line(Vec<(f64, f64)>),
    /// The area between two values at each x.
    Area(Vec<(f64, f64, f64)>),
    /// The same, so faint that lines are seen on it.
    Band(Vec<(f64, f64, f64)>),
    /// A point with its interval: x, low, value, high.
    Whisker(Vec<(f64, f64, f64, f64)>),
}

/// A series.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Its name in the legend; none without one.
    pub name: String,
    /// Which colour, from zero.
    pub colour: usize,
    /// Its values.
    pub mark: Mark,
    /// Is a line of dashes, so that what lies under it is seen?
    pub dashed: bool,
}

impl Series {
    /// A line.
    pub fn line(name: &str, colour: usize, points: Vec<(f64, f64)>) -> Series {
        Series { name: name.to_owned(), colour, mark: Mark::Line(points), dashed: false }
    }

    /// An area.
    pub fn area(name: &str, colour: usize, points: Vec<(f64, f64, f64)>) -> Series {
        Series { name: name.to_owned(), colour, mark: Mark::Area(points), dashed: false }
    }

    /// A faint area.
    pub fn band(name: &str, colour: usize, points: Vec<(f64, f64, f64)>) -> Series {
        Series { name: name.to_owned(), colour, mark: Mark::Band(points), dashed: false }
    }

    /// Points with intervals.
    pub fn whiskers(name: &str, colour: usize, points: Vec<(f64, f64, f64, f64)>) -> Series {
        Series { name: name.to_owned(), colour, mark: Mark::Whisker(points), dashed: false }
    }

    /// The same line of dashes: what it covers is seen between them.
    #[must_use]
    pub fn dashed(self) -> Series {
        Series { dashed: true, ..self }
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

/// A plot.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    /// What it shows.
    pub title: String,
    /// Across.
    pub x: Axis,
    /// Up.
    pub y: Axis,
    /// What is drawn, the first at the bottom.
    pub series: Vec<Series>,
}

impl Plot {
    /// A plot without series yet.
    pub fn new(title: &str, x: Axis, y: Axis) -> Plot {
        Plot { title: title.to_owned(), x, y, series: Vec::new() }
    }

    /// One series more.
    pub fn with(mut self, series: Series) -> Plot {
        self.series.push(series);
        self
    }

    /// Is there anything to see?
    pub fn is_empty(&self) -> bool {
        self.series.iter().all(|series| series.ys().iter().all(|value| !value.is_finite()))
    }

    /// The picture, for within a page.
    pub fn svg(&self) -> String {
        self.picture("")
    }

    /// The picture as a document of its own, on a white ground.
    pub fn document(&self) -> String {
        self.picture("<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n")
    }

    fn picture(&self, ground: &str) -> String {
        let xs = self.series.iter().flat_map(Series::xs);
        let x = match self.x.names.len() {
            0 => Scale::of(xs, self.x.log, self.x.from_zero),
            names => Scale::of([-0.5, names as f64 - 0.5].into_iter(), false, false),
        };
        let y = Scale::of(self.series.iter().flat_map(Series::ys), self.y.log, self.y.from_zero).rounded();
        let right = WIDTH - RIGHT;
        let foot = HEIGHT - BOTTOM;
        let at = Places { x, y };
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
             role=\"img\" aria-label=\"{title}\" font-family=\"system-ui,sans-serif\" font-size=\"12\" fill=\"var(--ink,#222)\">\n{ground}\
             <title>{title}</title>\n\
             <text x=\"{LEFT}\" y=\"15\" font-weight=\"600\">{title}</text>\n",
            title = marked(&self.title)
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
                // As many as can be read.
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
                marked(&text)
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
            marked(&self.x.label),
            (TOP + foot) / 2.0,
            (TOP + foot) / 2.0,
            marked(&self.y.label)
        ));
        svg + &self.legend() + "</svg>\n"
    }

    /// Names of the series, from the right end of the title's line or the line below it.
    fn legend(&self) -> String {
        let named: Vec<&Series> = self.series.iter().filter(|series| !series.name.is_empty()).collect();
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
                marked(&series.name)
            ));
            x += 14.0 + 6.3 * series.name.chars().count() as f64 + 14.0;
        }
        text
    }
}

/// What stands before a name in the legend.
fn rectangle(x: f64, colour: &str, more: &str) -> String {
    format!("<rect x=\"{x:.1}\" y=\"21\" width=\"10\" height=\"8\" fill=\"{colour}\"{more}/>")
}

/// A name that fits under an axis.
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

/// From values to places in the picture.
#[derive(Clone, Copy)]
struct Places {
    x: Scale,
    y: Scale,
}

impl Places {
    fn x(&self, value: f64) -> f64 {
        LEFT + self.x.place(value) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        TOP + (1.0 - self.y.place(value)) * (HEIGHT - TOP - BOTTOM)
    }

    fn draw(&self, series: &Series) -> String {
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
                // Few points are seen one by one.
                if points.len() <= 40 {
                    for (x, y) in points.iter().filter(|(x, y)| x.is_finite() && y.is_finite()) {
                        text.push_str(&format!(
                            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"{}\" fill=\"{colour}\"><title>{}: {} at {}</title></circle>\n",
                            self.x(*x),
                            self.y(*y),
                            if series.dashed { 1.5 } else { 2.6 },
                            marked(&series.name),
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
                // A single value has some width, too.
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
    fn a_plot_is_well_formed_whatever_it_is_given_and_names_nothing_outside() {
        let odd = [f64::NAN, f64::INFINITY, -1.0, 0.0, 1e300];
        let line = odd.iter().flat_map(|x| odd.iter().map(|y| (*x, *y))).collect();
        let area = odd.iter().map(|v| (*v, 0.0, *v)).collect();
        let whiskers = odd.iter().map(|v| (0.0, *v, *v, *v)).collect();
        for log in [false, true] {
            let axis = |label: &str| Axis { log, ..Axis::even(label) };
            let plot = Plot::new("<&>", axis("\"x\""), axis("y"))
                .with(Series::line("a", 0, Vec::clone(&line)))
                .with(Series::area("b", 1, Vec::clone(&area)))
                .with(Series::whiskers("c", 7, Vec::clone(&whiskers)));
            let svg = plot.svg();
            assert!(
                svg.starts_with("<svg ") && svg.ends_with("</svg>\n") && !svg.contains("NaN") && !svg.contains("inf")
            );
            assert!(svg.contains("&lt;&amp;&gt;") && !svg.contains("href"), "{svg}");
        }
        assert!(!Plot::new("", Axis::default(), Axis::default()).svg().contains("NaN"));
    }

    #[test]
    fn a_gap_in_a_line_parts_it_and_areas_stand_on_each_other() {
        let plot = Plot::new("t", Axis::even("x"), Axis::even("y"))
            .with(Series::line("", 0, vec![(0.0, 1.0), (1.0, f64::NAN), (2.0, 1.0), (3.0, 2.0)]))
            .with(Series::area("", 1, vec![(0.0, 0.0, 1.0), (3.0, 1.0, 2.0)]));
        let svg = plot.svg();
        assert_eq!((svg.matches("<polyline").count(), svg.matches("<polygon").count()), (2, 1));
        assert_eq!(svg.matches("dasharray").count(), 0);
        let over = |name: &str| Series::line(name, 2, vec![(0.0, 1.0), (3.0, 2.0)]);
        let dashed = plot.with(over("under")).with(over("over").dashed()).svg();
        assert!(dashed.contains("stroke-dasharray") && dashed.contains("h4m2 0h4"), "{dashed}");
        let plot = Plot::new("t", Axis::even("x"), Axis::even("y")).with(Series::line("", 0, vec![(0.0, 1.0)]));
        assert!(!plot.is_empty() && Plot::new("t", Axis::even("x"), Axis::even("y")).is_empty());
    }
}
