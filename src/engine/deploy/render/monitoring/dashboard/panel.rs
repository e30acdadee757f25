//! Panels and rows of a dashboard, and their form in Grafana's JSON.

use serde_json::{Value, json};

use crate::render::monitoring::MonitoringScope;

/// Width of the grid in grid units.
const GRID_WIDTH: usize = 24;

/// A panel: a title, the unit of its values as Grafana names it, and its queries with their
/// legends.
pub(super) struct DashboardPanel {
    pub title: &'static str,
    unit: &'static str,
    kind: PanelKind,
    queries: Vec<(&'static str, String)>,
}

/// How a panel shows its values.
enum PanelKind {
    TimeSeries,
    /// The current value, in the color of the highest step that it reaches. The first step has no
    /// value.
    Stat(Vec<(&'static str, Option<f64>)>),
}

/// A row of the dashboard.
pub(super) struct DashboardRow {
    pub title: &'static str,
    /// The panels are hidden, and do not query anything, until the row is opened.
    pub is_collapsed: bool,
    pub panels: Vec<DashboardPanel>,
}

/// A panel that draws `queries`, each with its legend.
pub(super) fn panel(title: &'static str, unit: &'static str, queries: &[(&'static str, &str)]) -> DashboardPanel {
    let queries = queries.iter().map(|(legend, query)| (*legend, (*query).to_owned())).collect();
    DashboardPanel { title, unit, kind: PanelKind::TimeSeries, queries }
}

/// A panel with the p50 and the p99 of a histogram: by `instance`, or of all if `by` is empty.
/// `selector` is the name of the buckets with their matchers.
pub(super) fn quantiles(title: &'static str, by: &str, selector: &str) -> DashboardPanel {
    let labels = if by.is_empty() { "le".to_owned() } else { format!("{by}, le") };
    let query = |q: f64| format!("histogram_quantile({q}, sum by ({labels}) (rate({selector}[$__rate_interval])))");
    let legends = if by == "instance" { ["p50 {{instance}}", "p99 {{instance}}"] } else { ["p50", "p99"] };
    let queries = vec![(legends[0], query(0.5)), (legends[1], query(0.99))];
    DashboardPanel { title, unit: "s", kind: PanelKind::TimeSeries, queries }
}

/// A panel with one current value.
pub(super) fn stat(title: &'static str, unit: &'static str, query: &str) -> DashboardPanel {
    stat_with(title, unit, query, vec![("green", None)])
}

/// A panel with one current value, and its color from each value on.
pub(super) fn stat_with(
    title: &'static str,
    unit: &'static str,
    query: &str,
    steps: Vec<(&'static str, Option<f64>)>,
) -> DashboardPanel {
    DashboardPanel { title, unit, kind: PanelKind::Stat(steps), queries: vec![(title, query.to_owned())] }
}

impl PanelKind {
    /// Width and height in grid units.
    fn size(&self) -> (usize, usize) {
        match self {
            PanelKind::TimeSeries => (8, 7),
            PanelKind::Stat(_) => (4, 4),
        }
    }
}

/// The rows and their panels in Grafana's form. Each panel below a row belongs to it.
pub(super) fn grid(scope: &MonitoringScope, rows: &[DashboardRow]) -> Vec<Value> {
    let mut all = Vec::new();
    let mut y = 0;
    let mut id = 0;
    let mut next_id = || {
        id += 1;
        id
    };
    for row in rows {
        let row_id = next_id();
        let row_y = y;
        y += 1;
        let mut panels = Vec::new();
        let mut x = 0;
        let mut line_height = 0;
        for panel in &row.panels {
            let (width, height) = panel.kind.size();
            if x + width > GRID_WIDTH {
                x = 0;
                y += line_height;
                line_height = 0;
            }
            let at = json!({ "x": x, "y": y, "w": width, "h": height });
            panels.push(panel.json(scope, next_id(), &at));
            x += width;
            line_height = line_height.max(height);
        }
        // The panels of a collapsed row take no space.
        y = if row.is_collapsed { row_y + 1 } else { y + line_height };
        let (inside, below) = if row.is_collapsed { (panels, Vec::new()) } else { (Vec::new(), panels) };
        all.push(json!({
            "id": row_id,
            "type": "row",
            "title": row.title,
            "collapsed": row.is_collapsed,
            "gridPos": { "x": 0, "y": row_y, "w": GRID_WIDTH, "h": 1 },
            "panels": inside,
        }));
        all.extend(below);
    }
    all
}

impl DashboardPanel {
    fn json(&self, scope: &MonitoringScope, id: usize, at: &Value) -> Value {
        let source = json!({ "type": "prometheus", "uid": "${datasource}" });
        let is_stat = matches!(self.kind, PanelKind::Stat(_));
        let target = |(query, letter): (&(&str, String), char)| {
            let mut target = json!({
                "refId": letter.to_string(),
                "datasource": source,
                "expr": scope.panel_query(&query.1),
                "legendFormat": query.0,
            });
            if is_stat {
                // Of a range, the last value would remain after its source has ended.
                target["instant"] = json!(true);
                target["range"] = json!(false);
            }
            target
        };
        let targets: Vec<Value> = self.queries.iter().zip('A'..='Z').map(target).collect();
        let mut json = json!({
            "id": id,
            "type": if is_stat { "stat" } else { "timeseries" },
            "title": self.title,
            "datasource": source,
            "gridPos": at,
            "fieldConfig": { "defaults": { "unit": self.unit, "min": 0 }, "overrides": [] },
            "targets": targets,
        });
        if let PanelKind::Stat(steps) = &self.kind {
            let steps: Vec<Value> =
                steps.iter().map(|(color, value)| json!({ "color": color, "value": value })).collect();
            json["fieldConfig"]["defaults"]["noValue"] = json!("none");
            json["fieldConfig"]["defaults"]["thresholds"] = json!({ "mode": "absolute", "steps": steps });
            json["options"] = json!({
                "reduceOptions": { "calcs": ["lastNotNull"], "fields": "", "values": false },
                "colorMode": "value",
                "graphMode": "none",
            });
        }
        json
    }
}
