//! Dashboards in the format of Grafana with `schemaVersion` 39 (Grafana 10.2 to 11). The types are
//! the schema of what is rendered: an unknown or missing field, or a value of another type, is an
//! error.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::all_fixtures;
use super::written::files;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[expect(dead_code, reason = "some fields are only checked for their types")]
struct Dashboard {
    uid: String,
    title: String,
    description: String,
    tags: Vec<String>,
    schema_version: u32,
    version: u32,
    editable: bool,
    refresh: String,
    time: TimeRange,
    templating: Templating,
    panels: Vec<Panel>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "only the types are checked")]
struct TimeRange {
    from: String,
    to: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Templating {
    list: Vec<Variable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "lowercase", tag = "type")]
#[expect(dead_code, reason = "some fields are only checked for their types")]
enum Variable {
    Datasource {
        name: String,
        label: String,
        query: String,
    },
    #[serde(rename_all = "camelCase")]
    Query {
        name: String,
        label: String,
        query: String,
        datasource: DataSource,
        refresh: u8,
        sort: u8,
        multi: bool,
        include_all: bool,
        all_value: String,
        current: CurrentValue,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "only the types are checked")]
struct CurrentValue {
    text: OneOrMany,
    value: OneOrMany,
}

#[derive(Deserialize)]
#[serde(untagged)]
#[expect(dead_code, reason = "only the types are checked")]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", tag = "type")]
enum Panel {
    #[serde(rename_all = "camelCase")]
    Row { id: u64, title: String, collapsed: bool, grid_pos: GridPos, panels: Vec<Panel> },
    #[serde(rename_all = "camelCase")]
    Timeseries {
        id: u64,
        title: String,
        datasource: DataSource,
        grid_pos: GridPos,
        field_config: FieldConfig,
        targets: Vec<Target>,
    },
    #[serde(rename_all = "camelCase")]
    Stat {
        id: u64,
        title: String,
        datasource: DataSource,
        grid_pos: GridPos,
        field_config: FieldConfig,
        options: StatOptions,
        targets: Vec<Target>,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[expect(dead_code, reason = "only the types are checked")]
struct StatOptions {
    reduce_options: ReduceOptions,
    color_mode: String,
    graph_mode: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "only the types are checked")]
struct ReduceOptions {
    calcs: Vec<String>,
    fields: String,
    values: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Thresholds {
    mode: String,
    steps: Vec<ThresholdStep>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "the type of color is checked")]
struct ThresholdStep {
    color: String,
    value: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GridPos {
    x: u32,
    y: u32,
    w: u32,
    h: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DataSource {
    r#type: String,
    uid: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FieldConfig {
    defaults: FieldDefaults,
    overrides: Vec<serde_json::Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[expect(dead_code, reason = "only the types of some fields are checked")]
struct FieldDefaults {
    unit: String,
    min: f64,
    no_value: Option<String>,
    thresholds: Option<Thresholds>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Target {
    ref_id: String,
    datasource: DataSource,
    expr: String,
    legend_format: String,
    #[serde(default)]
    instant: bool,
    #[serde(default)]
    range: Option<bool>,
}

/// The identifiers of Grafana's units that are used.
const UNITS: [&str; 9] = ["short", "bytes", "Bps", "ops", "s", "percentunit", "none", "cps", "reqps"];

#[test]
fn dashboards_have_the_form_of_schema_version_39() {
    for fixture in all_fixtures() {
        for (name, text) in files("grafana", &fixture) {
            let board: Dashboard = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(board.schema_version, 39);
            assert!((1..=40).contains(&board.uid.len()), "{}", board.uid);
            check_variables(&board.templating.list);
            let mut ids = BTreeSet::new();
            let mut cells = BTreeSet::new();
            for panel in &board.panels {
                check_panel(panel, &mut ids);
                let grid = panel.grid();
                for cell in (grid.x..grid.x + grid.w).flat_map(|x| (grid.y..grid.y + grid.h).map(move |y| (x, y))) {
                    assert!(cells.insert(cell), "{name}: panels do not overlap");
                }
            }
            assert!(ids.len() > 10, "{name}");
        }
    }
}

impl Panel {
    fn grid(&self) -> &GridPos {
        match self {
            Panel::Row { grid_pos, .. } | Panel::Timeseries { grid_pos, .. } | Panel::Stat { grid_pos, .. } => grid_pos,
        }
    }
}

/// The data source, then variables whose values Prometheus has.
fn check_variables(variables: &[Variable]) {
    let [Variable::Datasource { query, .. }, others @ ..] = variables else { panic!("the first is the data source") };
    assert_eq!(query, "prometheus");
    assert!(!others.is_empty());
    for variable in others {
        let Variable::Query { query, datasource, refresh, include_all, all_value, .. } = variable else {
            panic!("a variable with values of Prometheus")
        };
        assert!(query.starts_with("label_values(") && datasource.uid == "${datasource}", "{query}");
        // A series without the label matches, too.
        assert!((1..=2).contains(refresh) && *include_all && all_value == ".*", "{query}");
    }
}

fn check_panel(panel: &Panel, ids: &mut BTreeSet<u64>) {
    let grid = panel.grid();
    let (id, title) = match panel {
        Panel::Row { id, title, collapsed, panels, .. } => {
            assert!(*collapsed || panels.is_empty(), "{title}: the panels of an open row follow it");
            panels.iter().for_each(|panel| check_panel(panel, ids));
            (id, title)
        }
        Panel::Timeseries { id, title, datasource, field_config, targets, .. } => {
            check_targets(title, datasource, field_config, targets);
            assert!(targets.iter().all(|target| !target.instant), "{title}");
            (id, title)
        }
        Panel::Stat { id, title, datasource, field_config, options, targets, .. } => {
            check_targets(title, datasource, field_config, targets);
            assert!(targets.iter().all(|target| target.instant && target.range == Some(false)), "{title}");
            let thresholds = field_config.defaults.thresholds.as_ref().expect("thresholds");
            assert_eq!((&*thresholds.mode, &*options.graph_mode), ("absolute", "none"));
            assert_eq!(options.reduce_options.calcs, ["lastNotNull"]);
            assert!(thresholds.steps.first().is_some_and(|step| step.value.is_none()), "{title}");
            (id, title)
        }
    };
    assert!(!title.is_empty() && ids.insert(*id), "{title}: ids are unique");
    assert!(grid.x + grid.w <= 24 && grid.h > 0, "{title}: the grid has 24 columns");
}

fn check_targets(title: &str, datasource: &DataSource, field_config: &FieldConfig, targets: &[Target]) {
    assert!(UNITS.contains(&field_config.defaults.unit.as_str()), "{title}");
    assert!(field_config.overrides.is_empty());
    let letters: BTreeSet<&str> = targets.iter().map(|target| target.ref_id.as_str()).collect();
    assert!(!targets.is_empty() && letters.len() == targets.len(), "{title}: refIds are unique");
    let sources = targets.iter().map(|target| &target.datasource).chain([datasource]);
    assert!(sources.into_iter().all(|from| from.r#type == "prometheus" && from.uid == "${datasource}"));
    assert!(targets.iter().all(|t| !t.expr.is_empty() && !t.legend_format.is_empty()), "{title}");
}
