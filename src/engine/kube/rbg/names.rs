//! The names that the controller makes from those of a group and a role.

use crate::engine::kube::text::LABEL_MAX;

/// The workload of a role: `<group>-<role>`.
pub fn workload_name(group: &str, role: &str) -> String {
    format!("{group}-{role}")
}

/// The headless service of a role: `s-<group>-<role>`, cut to 63 characters, without `-` at the end.
pub fn service_name(group: &str, role: &str) -> String {
    let mut name = format!("s-{}", workload_name(group, role));
    while name.len() > LABEL_MAX {
        name.pop();
    }
    name.trim_end_matches('-').to_owned()
}

/// Where a pod of a role is found within its namespace: `<group>-<role>-<ordinal>.s-<group>-<role>`.
pub fn pod_address(group: &str, role: &str, ordinal: u32) -> String {
    format!("{}-{ordinal}.{}", workload_name(group, role), service_name(group, role))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_named_after_group_and_role_and_cut() {
        assert_eq!(service_name("demo", "mooncake-master"), "s-demo-mooncake-master");
        assert_eq!(pod_address("demo", "prefill", 1), "demo-prefill-1.s-demo-prefill");
        let group = "g".repeat(60);
        assert_eq!(service_name(&group, "master"), format!("s-{group}"));
        assert_eq!(service_name(&"g".repeat(57), "master"), format!("s-{}-mas", "g".repeat(57)));
    }
}
