//! The section `[monitoring]`: settings of the rendered alerts.

use serde::{Deserialize, Serialize};

/// Settings of the files for Prometheus.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MonitoringSection {
    /// URL of a folder with the files of `docs/`, to which the alerts' `runbook_url` point. Empty:
    /// the alerts have the path of the installed documentation instead.
    pub runbook_base: String,
}
