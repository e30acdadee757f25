//! NetworkPolicies for masters and store nodes: only pods of the deployment and the allowed
//! networks reach them.

use std::net::IpAddr;

use serde_yaml_ng::Value;

use crate::ComponentRole;
use crate::render::RenderContext;
use crate::render::pod::PodWorkload;
use crate::render::yaml::{CommentedDocument, map};

/// The comment above a policy.
const COMMENT: &str = "Takes effect if the network plugin supports NetworkPolicies. Other clients, such as Prometheus, need an entry in access.allow_cidr.";

/// The policy of a workload, if `kubernetes.network_policy` is set.
pub(super) fn policy(context: &RenderContext<'_>, workload: &PodWorkload<'_>) -> Option<CommentedDocument> {
    let spec = context.spec;
    let is_protected = matches!(workload.role, ComponentRole::Master | ComponentRole::Store);
    if !spec.kubernetes.network_policy || !is_protected {
        return None;
    }
    let pods = map! { "matchLabels": [("app.kubernetes.io/part-of", spec.name.as_str())] };
    let blocks = spec.access.allow_cidr.iter().filter_map(|text| block(text));
    let blocks = blocks.map(|cidr| map! { "ipBlock": map! { "cidr": cidr } });
    let from: Vec<Value> = std::iter::once(map! { "podSelector": pods }).chain(blocks).collect();
    let document = map! {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": map! { "name": workload.name, "namespace": &spec.kubernetes.namespace },
        "spec": map! {
            "podSelector": map! { "matchLabels": workload.selector() },
            "policyTypes": vec!["Ingress"],
            "ingress": vec![map! { "from": from }],
        },
    };
    Some((COMMENT.to_owned(), document))
}

/// A network in the notation of Kubernetes, which requires a prefix length. `None` for loopback
/// addresses, which never leave a pod.
fn block(text: &str) -> Option<String> {
    let text = text.trim();
    let (address, length) = text.split_once('/').map_or((text, None), |(address, length)| (address, Some(length)));
    let address: IpAddr = address.parse().ok()?;
    let whole = if address.is_ipv4() { "32" } else { "128" };
    (!address.is_loopback()).then(|| format!("{address}/{}", length.unwrap_or(whole)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_get_a_prefix_length_and_loopback_is_omitted() {
        let blocks = ["10.0.0.0/8", "10.1.2.3", "fd00::/8", "fd00::1", "127.0.0.1", "::1"].map(block);
        let text: Vec<String> = blocks.into_iter().flatten().collect();
        assert_eq!(text, ["10.0.0.0/8", "10.1.2.3/32", "fd00::/8", "fd00::1/128"]);
    }
}
