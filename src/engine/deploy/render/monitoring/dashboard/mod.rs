//! The Grafana dashboard: rows of panels, each of which draws a few queries.
//!
//! Its variables select a deployment and its jobs, so that one dashboard shows all deployments. It
//! depends on the programs only, because upstream's have fewer metrics. Rows for what the rendered
//! deployment does not have are collapsed.

mod clients;
mod masters;
mod nodes;
mod overview;
mod panel;
mod servers;

use serde_json::{Value, json};

use self::panel::{DashboardRow, grid};
use super::MonitoringScope;

/// Version of the dashboard format, which Grafana 10 writes and later releases read.
const SCHEMA_VERSION: u32 = 39;

/// The contents of the dashboard file. `head` becomes its description.
pub(super) fn document(scope: &MonitoringScope, head: &str) -> Value {
    let (uid, title) = match scope.is_mcctl {
        true => ("mcctl-stores", "Mooncake stores"),
        false => ("mcctl-upstream-stores", "Mooncake stores (upstream's programs)"),
    };
    json!({
        "uid": uid,
        "title": title,
        "description": head,
        "tags": ["mcctl", "mooncake"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": true,
        "refresh": "30s",
        "time": { "from": "now-6h", "to": "now" },
        "templating": { "list": variables(scope) },
        "panels": grid(scope, &rows(scope)),
    })
}

/// The data source, the deployment and its jobs. `All` of a variable also matches series without
/// its label.
fn variables(scope: &MonitoringScope) -> [Value; 3] {
    let query = |name: &str, label: &str, query: &str, is_multiple: bool, current: Value| {
        json!({
            "name": name,
            "label": label,
            "type": "query",
            "datasource": { "type": "prometheus", "uid": "${datasource}" },
            "query": query,
            "refresh": ON_TIME_RANGE_CHANGE,
            "sort": ALPHABETICAL,
            "multi": is_multiple,
            "includeAll": true,
            "allValue": ".*",
            "current": current,
        })
    };
    [
        json!({ "name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus" }),
        query(
            "deployment",
            "Deployment",
            "label_values(master_key_count, deployment)",
            false,
            json!({ "text": scope.name, "value": scope.name }),
        ),
        query(
            "job",
            "Job",
            "label_values(up{deployment=~\"$deployment\"}, job)",
            true,
            json!({ "text": ["All"], "value": ["$__all"] }),
        ),
    ]
}

/// Grafana's numbers for the options of a variable: when its values are read, and their order.
const ON_TIME_RANGE_CHANGE: u32 = 2;
const ALPHABETICAL: u32 = 1;

fn rows(scope: &MonitoringScope) -> Vec<DashboardRow> {
    let row = |title, panels| DashboardRow { title, is_collapsed: false, panels };
    let mut rows = vec![row("State", overview::stats(scope)), row("Overview", overview::panels())];
    if scope.is_mcctl {
        rows.push(row("RPC latency", masters::latency_panels()));
    }
    rows.push(row("Masters", masters::process_panels(scope)));
    if scope.is_mcctl {
        let title = "Data directory";
        let is_collapsed = !scope.has_data;
        rows.push(DashboardRow { title, is_collapsed, panels: masters::disk_panels() });
        let title = "Election and standbys";
        let is_collapsed = !scope.is_elected();
        rows.push(DashboardRow { title, is_collapsed, panels: masters::election_panels() });
    }
    rows.push(row("Nodes", nodes::panels(scope)));
    if scope.has_mcctl_clients {
        rows.push(row("Clients", clients::panels()));
    }
    let checksums = clients::checksum_panels(scope);
    if !checksums.is_empty() {
        rows.push(row("Checksums", checksums));
    }
    let title = "SGLang servers";
    let is_collapsed = scope.servers.is_empty();
    rows.push(DashboardRow { title, is_collapsed, panels: servers::panels() });
    rows
}
