//! Names that the controller derives from group and role.

use crate::kube::grammar::LABEL_MAX;

/// The workload of a role: `<group>-<role>`.
pub fn workload_name(group: &str, role: &str) -> String {
    format!("{group}-{role}")
}

/// The headless Service of a role: `s-<group>-<role>`, truncated to 63 characters, without a
/// trailing `-`.
pub fn service_name(group: &str, role: &str) -> String {
    let mut name = format!("s-{}", workload_name(group, role));
    while name.len() > LABEL_MAX {
        name.pop();
    }
    name.trim_end_matches('-').to_owned()
}

/// The DNS name of a pod within its namespace: `<group>-<role>-<ordinal>.s-<group>-<role>`.
pub fn pod_address(group: &str, role: &str, ordinal: u32) -> String {
    format!("{}-{ordinal}.{}", workload_name(group, role), service_name(group, role))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_names_are_derived_and_truncated() {
        assert_eq!(service_name("demo", "mooncake-master"), "s-demo-mooncake-master");
        assert_eq!(pod_address("demo", "prefill", 1), "demo-prefill-1.s-demo-prefill");
        let group = "g".repeat(60);
        assert_eq!(service_name(&group, "master"), format!("s-{group}"));
        assert_eq!(service_name(&"g".repeat(57), "master"), format!("s-{}-mas", "g".repeat(57)));
    }
}
