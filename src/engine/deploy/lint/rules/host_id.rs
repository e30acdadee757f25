//! The hosts that nodes report, on which the placement of several copies depends.

use crate::lint::findings::Findings;
use crate::lint::model::{Implementation, LocatedValue, ProcessRole, RuntimeKind, Variable};
use crate::lint::settings::ProcessView;
use crate::lint::view::DeploymentView;

/// The variable with which a node of mcctl overrides the host in its name.
const VARIABLE: &str = "MOONCAKE_HOST_ID";

/// Nodes that report one host although they run on several, or several although they run on one.
/// The copies of an object may then be on a single host.
pub(super) fn host_ids(view: &DeploymentView<'_>, out: &mut Findings) {
    let nodes: Vec<(&ProcessView<'_>, &LocatedValue)> = view
        .member
        .iter()
        .filter(|member| member.process.role == ProcessRole::Store)
        .filter(|member| member.process.implementation == Implementation::Mcctl)
        .filter_map(|member| match member.process.env.get(VARIABLE) {
            Some(Variable::Text(id)) if id.is_known() && !id.text.trim().is_empty() => Some((member, id)),
            _ => None,
        })
        .collect();
    for (member, id) in &nodes {
        let replicas = member.process.replicas.as_ref().and_then(|count| count.text.parse::<u64>().ok());
        if let Some(count) = replicas.filter(|count| *count > 1)
            && member.process.runtime == RuntimeKind::Kubernetes
        {
            out.warning(
                &id.place,
                format!("{count} pods report the same host: copies of an object may be on a single one"),
                format!("{VARIABLE}={} in the template of {}", id.text, member.process.name),
                format!("remove {VARIABLE}, or set it from spec.nodeName"),
            );
        }
        let other = nodes.iter().find(|(other, theirs)| {
            theirs.place < id.place
                && other.process.network == member.process.network
                && theirs.text != id.text
                && other.process.surely_meets(member.process)
        });
        if let Some((_, theirs)) = other {
            out.warning(
                &id.place,
                "nodes of one host report different hosts: all copies of an object may be on it",
                format!("{VARIABLE} is {} here, {} at {}", id.text, theirs.text, theirs.place),
                format!("remove {VARIABLE}, or set the same value for all nodes of the host"),
            );
        }
    }
}
