//! Dashboards in the format of Grafana with `schemaVersion` 39 (Grafana 10.2 to 11). The types are the schema of what is rendered: an unknown
//! or missing field, or a value of another type, is an error.

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
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[expect(dead_code, reason = "only the type is checked")]
struct Variable {
    name: String,
    label: String,
    r#type: VariableType,
    query: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum VariableType {
    Datasource,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", tag = "type")]
enum Panel {
    #[serde(rename_all = "camelCase")]
    Row { id: u64, title: String, collapsed: bool, grid_pos: GridPos, panels: Vec<serde_json::Value> },
    #[serde(rename_all = "camelCase")]
    Timeseries {
        id: u64,
        title: String,
        datasource: DataSource,
        grid_pos: GridPos,
        field_config: FieldConfig,
        targets: Vec<Target>,
    },
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
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "only the type of min is checked")]
struct FieldDefaults {
    unit: String,
    min: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Target {
    ref_id: String,
    datasource: DataSource,
    expr: String,
    legend_format: String,
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
            assert_eq!(board.templating.list.len(), 1);
            let (mut ids, mut cells) = (BTreeSet::new(), BTreeSet::new());
            for panel in &board.panels {
                let (id, title, grid) = match panel {
                    Panel::Row { id, title, collapsed, grid_pos, panels } => {
                        assert!(!collapsed && panels.is_empty(), "{title}: its panels follow it");
                        (id, title, grid_pos)
                    }
                    Panel::Timeseries { id, title, datasource, grid_pos, field_config, targets } => {
                        assert!(UNITS.contains(&field_config.defaults.unit.as_str()), "{title}");
                        assert!(field_config.overrides.is_empty());
                        let letters: BTreeSet<&str> = targets.iter().map(|target| target.ref_id.as_str()).collect();
                        assert!(!targets.is_empty() && letters.len() == targets.len(), "{title}: refIds are unique");
                        let sources = targets.iter().map(|target| &target.datasource).chain([datasource]);
                        assert!(
                            sources.into_iter().all(|from| from.r#type == "prometheus" && from.uid == "${datasource}")
                        );
                        assert!(targets.iter().all(|t| !t.expr.is_empty() && !t.legend_format.is_empty()), "{title}");
                        (id, title, grid_pos)
                    }
                };
                assert!(!title.is_empty() && ids.insert(*id), "{title}: ids are unique");
                assert!(grid.x + grid.w <= 24 && grid.h > 0, "{title}: the grid has 24 columns");
                for cell in (grid.x..grid.x + grid.w).flat_map(|x| (grid.y..grid.y + grid.h).map(move |y| (x, y))) {
                    assert!(cells.insert(cell), "{title}: panels do not overlap");
                }
            }
            assert!(ids.len() > 10, "{name}");
        }
    }
}
