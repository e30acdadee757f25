//! Files of monitoring systems, which start no processes.

use crate::lint::yaml::YamlNode;

/// A description of the documents, if they configure Prometheus or are a dashboard of Grafana.
pub(crate) fn monitoring_kind(nodes: &[YamlNode]) -> Option<&'static str> {
    let node = nodes.first()?;
    let has = |key: &str| node.get(key).is_some();
    if has("scrape_configs") || has("rule_files") {
        return Some("a configuration of Prometheus; promtool check config checks it");
    }
    let first_rule = node.get("groups").and_then(|groups| groups.items().first()?.get("rules")?.items().first());
    if first_rule.is_some_and(|rule| rule.get("expr").is_some()) {
        return Some("rules of Prometheus; promtool check rules checks them");
    }
    (has("panels") && has("schemaVersion")).then_some("a dashboard of Grafana")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn monitoring_files_are_recognized_by_their_keys() {
        let kind = |text: &str| monitoring_kind(&YamlNode::yaml(text).expect("YAML"));
        assert!(kind("scrape_configs: []\n").is_some());
        assert!(kind("groups:\n- name: a\n  rules:\n  - alert: x\n    expr: up == 0\n").is_some());
        assert!(kind("{\"panels\": [], \"schemaVersion\": 39}").is_some());
        assert_eq!(kind("groups: [a]\nname: x\n"), None);
    }
}
