//! Parses the samples on a page in the Prometheus text format, as exported by masters and SGLang.
//! Pure.

/// One sample on the page.
#[derive(Clone, Debug, PartialEq)]
struct PageSample {
    name: String,
    labels: Vec<(String, String)>,
    value: f64,
}

/// All samples on a page, in order. Comments and invalid lines are skipped.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Samples(Vec<PageSample>);

impl Samples {
    /// Parses a page in the Prometheus text format.
    pub fn parse(page: &str) -> Samples {
        Samples(page.lines().filter_map(sample).collect())
    }

    /// Returns the sum of all samples of `name`; `None` if there are none.
    pub fn sum(&self, name: &str) -> Option<f64> {
        total(self.of(name))
    }

    /// Returns the sum of the samples of `name` whose `label` has the value `value`.
    pub fn sum_where(&self, name: &str, label: &str, value: &str) -> Option<f64> {
        total(self.of(name).filter(|sample| sample.label(label) == Some(value)))
    }

    /// Returns each value of `label` with the sum of its samples of `name`, in page order.
    pub fn by(&self, name: &str, label: &str) -> Vec<(&str, f64)> {
        let mut sums: Vec<(&str, f64)> = Vec::new();
        for sample in self.of(name) {
            let Some(value) = sample.label(label) else { continue };
            match sums.iter_mut().find(|(known, _)| *known == value) {
                Some((_, sum)) => *sum += sample.value,
                None => sums.push((value, sample.value)),
            }
        }
        sums
    }

    /// Iterates over the names and values of the samples without labels.
    pub fn plain(&self) -> impl Iterator<Item = (&str, f64)> {
        self.0.iter().filter(|sample| sample.labels.is_empty()).map(|sample| (&*sample.name, sample.value))
    }

    /// Iterates over the labels and values of the samples of `name`, in page order.
    pub fn samples(&self, name: &str) -> impl Iterator<Item = (&[(String, String)], f64)> {
        self.of(name).map(|sample| (&*sample.labels, sample.value))
    }

    /// Iterates over the names of all samples.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|sample| &*sample.name)
    }

    /// Returns true if the page has no samples.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn of(&self, name: &str) -> impl Iterator<Item = &PageSample> {
        self.0.iter().filter(move |sample| sample.name == name)
    }
}

impl PageSample {
    fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(label, _)| label == name).map(|(_, value)| &**value)
    }
}

fn total<'a>(samples: impl Iterator<Item = &'a PageSample>) -> Option<f64> {
    samples.map(|sample| sample.value).reduce(|sum, value| sum + value)
}

fn sample(line: &str) -> Option<PageSample> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    let (name, rest) = line.split_at(line.find(['{', ' '])?);
    let (labels, value) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (Vec::new(), rest),
    };
    // A timestamp may follow the value.
    let value = value.split_whitespace().next()?.parse().ok()?;
    Some(PageSample { name: name.to_owned(), labels, value })
}

/// Parses `a="b",c="d"} 5` into the labels and the text after the brace.
fn labels(text: &str) -> Option<(Vec<(String, String)>, &str)> {
    let mut labels = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(after) = rest.strip_prefix('}') {
            return Some((labels, after));
        }
        let (name, after) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut chars = after.char_indices();
        let end = loop {
            match chars.next()? {
                (at, '"') => break at,
                (_, '\\') => match chars.next()?.1 {
                    'n' => value.push('\n'),
                    other => value.push(other),
                },
                (_, other) => value.push(other),
            }
        };
        labels.push((name.to_owned(), value));
        rest = &after[end + 1..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# HELP a b\n# TYPE a gauge\na 5\nb{segment=\"x\"} 7\nb{segment=\"y\",to=\"a \\\"}, b\"} 2\nc_total 1.5e3 17\nodd\nd{x=\"1\n";

    #[test]
    fn samples_are_summed_over_labels_and_invalid_lines_are_skipped() {
        let page = Samples::parse(PAGE);
        assert_eq!(page.sum("a"), Some(5.0));
        assert_eq!(page.sum("b"), Some(9.0));
        assert_eq!(page.sum("c_total"), Some(1500.0));
        assert_eq!((page.sum("odd"), page.sum("d")), (None, None));
        assert_eq!(page.sum_where("b", "to", "a \"}, b"), Some(2.0));
        assert_eq!(page.by("b", "segment"), [("x", 7.0), ("y", 2.0)]);
        assert_eq!(page.plain().collect::<Vec<_>>(), [("a", 5.0), ("c_total", 1500.0)]);
    }
}
