//! Judges the nodes that contribute memory: running, responsive, and registered with the metadata
//! service.

use std::collections::BTreeSet;

use crate::cluster::facts::{ClusterFacts, DialResult, MetadataRecords, NodeFacts};
use crate::cluster::judge::{undetailed, unlisted};
use crate::{finding, listed, status};
use mcctl_base::check::{CheckStatus, Finding, Severity};
use mcctl_base::text::counted;
use mcctl_base::time::RoundedDuration;

fn named(node: &NodeFacts) -> String {
    match node.names.first() {
        Some(name) if *name != node.endpoint => format!("{name} ({})", node.endpoint),
        _ => node.endpoint.clone(),
    }
}

/// Every node accepts connections at its announced endpoint.
pub(super) fn answer(facts: &ClusterFacts) -> CheckStatus {
    // Without details the endpoint is only a name, and nodes with P2PHANDSHAKE do not listen on it.
    let skipped = if facts.metadata.url.is_none() { undetailed(facts) } else { unlisted(facts) };
    if let Some(skipped) = skipped {
        return skipped;
    }
    let of = |wanted: &dyn Fn(&DialResult) -> Option<String>| -> Vec<String> {
        let failed = facts.nodes.iter().filter_map(|node| Some((named(node), wanted(&node.dial)?)));
        failed.map(|(name, why)| if why.is_empty() { name } else { format!("{name}: {why}") }).collect()
    };
    let mut findings: Vec<Finding> = Vec::new();
    let mut add = |what: String, seen: &[String], remedy: &str| {
        if !seen.is_empty() {
            findings.push(finding("nodes-answer", Severity::Error, what, listed(seen), remedy));
        }
    };
    let unreachable = of(&|dial| match dial {
        DialResult::Refused(why) => Some(why.clone()),
        _ => None,
    });
    // A node that sends heartbeats is alive. Its name is not an address if P2PHANDSHAKE was only
    // assumed.
    let is_elsewhere = facts.metadata.url.is_none() && facts.metadata.is_assumed && sends_heartbeats(facts);
    if is_elsewhere && !unreachable.is_empty() {
        return CheckStatus::Found(vec![finding(
            "nodes-answer",
            Severity::Warning,
            format!("{} not reachable by name: the nodes may use an HTTP metadata service", are(unreachable.len())),
            listed(&unreachable),
            "set --metadata-server to the nodes' http://HOST:PORT/metadata; if they use P2PHANDSHAKE, they are dead",
        )]);
    }
    add(
        format!(
            "{} listed by the master but dead: each get or put on a dead node takes 0.7 to 1 s and fails (-800) until client_ttl expires",
            are(unreachable.len())
        ),
        &unreachable,
        "wait for client_ttl (10 s after the last heartbeat) before starting new clients, and restart nodes at longer intervals; \
         if this persists, check that clients and nodes use the same --metadata-server",
    );
    let hung = of(&|dial| match dial {
        DialResult::Hung(limit) => {
            Some(format!("accepted the connection but did not respond for {}", RoundedDuration(*limit)))
        }
        _ => None,
    });
    add(
        format!(
            "{} stalled: upstream's clients wait 60 s for each batch on a stalled node, and that timeout is not configurable",
            are(hung.len())
        ),
        &hung,
        "kill -9 the process (a stopped one shows T in ps, one in uninterruptible sleep D): a dead node is removed after \
         client_ttl, but a hung node that still sends heartbeats is never removed",
    );
    let lost = of(&|dial| match dial {
        DialResult::Unreachable(why) | DialResult::Unresolved(why) => Some(why.clone()),
        _ => None,
    });
    add(
        format!("{} not reachable from this host", are(lost.len())),
        &lost,
        "run this command on a cluster host; open ports 15000-17000 (MC_MIN_RPC_PORT to MC_MAX_RPC_PORT) between its hosts, or \
         set MOONCAKE_LOCAL_HOSTNAME on that node to an address that other hosts can reach",
    );
    let foreign = of(&|dial| match dial {
        DialResult::Foreign(why) => Some(why.clone()),
        _ => None,
    });
    add(
        format!("{} gone, and another program uses the port", are(foreign.len())),
        &foreign,
        "the node has exited and its port was reused: wait for client_ttl to expire, or check the node's log",
    );
    let unknown = of(&|dial| match dial {
        DialResult::Unknown(why) => Some(why.clone()),
        _ => None,
    });
    if findings.is_empty() && !unknown.is_empty() {
        return CheckStatus::Skipped(listed(&unknown));
    }
    let slowest = facts.nodes.iter().map(|node| node.took).max().unwrap_or_default();
    status(findings, || format!("{} responded within {}", counted(facts.nodes.len(), "node"), RoundedDuration(slowest)))
}

/// Whether the master reports at least one active client per segment owner.
fn sends_heartbeats(facts: &ClusterFacts) -> bool {
    let owners: BTreeSet<&str> =
        facts.mounted().iter().map(|segment| &*segment.client).filter(|client| !client.is_empty()).collect();
    !owners.is_empty() && facts.metric("master_active_clients").is_some_and(|active| active >= owners.len() as f64)
}

fn are(n: usize) -> String {
    format!("{} {}", counted(n, "node"), if n == 1 { "is" } else { "are" })
}

/// No node uses TCP although its host has RDMA devices.
pub(super) fn silent_tcp(facts: &ClusterFacts) -> CheckStatus {
    if let Some(skipped) = undetailed(facts) {
        return skipped;
    }
    let is_fallen = |node: &&NodeFacts| {
        node.described.as_deref().is_some_and(|really| really == "tcp" && !matches!(node.protocol.as_str(), "" | "tcp"))
    };
    let failures: Vec<String> = facts
        .nodes
        .iter()
        .filter(is_fallen)
        .map(|node| {
            format!("{}: {} according to the master, tcp according to its own descriptor", named(node), node.protocol)
        })
        .collect();
    if !failures.is_empty() {
        return CheckStatus::Found(vec![finding(
            "silent-tcp",
            Severity::Error,
            "nodes started for RDMA use TCP: they work, but slowly",
            listed(&failures),
            "run mcctl devices on those hosts (a device or its provider library may be missing), set MOONCAKE_DEVICE, and restart the nodes",
        )]);
    }
    let described = facts.nodes.iter().filter(|node| node.described.is_some()).count();
    match described {
        0 => CheckStatus::Skipped("no node returned its descriptor".to_owned()),
        n => CheckStatus::Passed(format!("{} as registered", counted(n, "transport"))),
    }
}

/// Each node has a record in the metadata service, and each record belongs to a node.
pub(super) fn records(facts: &ClusterFacts) -> CheckStatus {
    let Some(url) = &facts.metadata.url else {
        return CheckStatus::Skipped("P2PHANDSHAKE: no metadata service is used".to_owned());
    };
    if let Err(why) = &facts.metadata.reached {
        return CheckStatus::Found(vec![finding(
            "metadata-records",
            Severity::Error,
            "the metadata service is not responding: nodes cannot join, and clients cannot resolve new segments",
            format!("{url}: {why}"),
            "restart it (mcctl serve metadata, or the master with --enable_http_metadata_server), then restart the nodes; the URL \
             must end in /metadata",
        )]);
    }
    if let Some(skipped) = unlisted(facts) {
        return skipped;
    }
    let missing = facts.nodes.iter().filter_map(|node| {
        let MetadataRecords { ram, rpc_meta } = node.records.as_ref()?;
        let mut gone = Vec::new();
        for (what, is_there) in
            [("ram", ram.as_ref().map(Option::is_some)), ("rpc_meta", rpc_meta.as_ref().map(Option::is_some))]
        {
            match is_there {
                Ok(true) => {}
                Ok(false) => gone.push(format!("{what}/{}", node.endpoint)),
                Err(why) => gone.push(format!("{what}/{} ({why})", node.endpoint)),
            }
        }
        (!gone.is_empty()).then_some((node, gone))
    });
    // A node without records that responds at the address the master reports was started with
    // P2PHANDSHAKE.
    let (p2p, lost): (Vec<_>, Vec<_>) =
        missing.partition(|(node, gone)| gone.len() == 2 && node.dial == DialResult::Answers);
    let mut findings = Vec::new();
    if !lost.is_empty() {
        let keys: Vec<String> = lost.into_iter().flat_map(|(_, gone)| gone).collect();
        findings.push(finding(
            "metadata-records",
            Severity::Error,
            "the metadata service lost records of mounted segments: new clients cannot reach them (404)",
            listed(&keys),
            "restart those nodes (upstream nodes publish them only once, and an in-memory metadata service loses all records when it restarts), or use \
             P2PHANDSHAKE everywhere",
        ));
    }
    if !p2p.is_empty() {
        let names: Vec<String> = p2p.iter().map(|(node, _)| named(node)).collect();
        findings.push(finding(
            "metadata-records",
            Severity::Error,
            "nodes use P2PHANDSHAKE, but this metadata service was configured: clients that use it cannot reach them",
            format!("no record at {url}, but an engine responds: {}", listed(&names)),
            "use the same MOONCAKE_TE_META_DATA_SERVER for nodes, SGLang and this command",
        ));
    }
    status(findings, || format!("both records found for {}", counted(facts.nodes.len(), "node")))
}

/// The nodes contribute the memory that the plan expects.
pub(super) fn planned(facts: &ClusterFacts) -> CheckStatus {
    if facts.metadata.url.is_none() {
        return CheckStatus::Skipped("P2PHANDSHAKE: names are not registered anywhere".to_owned());
    }
    if facts.metadata.planned.is_empty() {
        return CheckStatus::Skipped("no planned nodes were specified (--node-names)".to_owned());
    }
    if facts.metadata.reached.is_err() {
        return CheckStatus::Skipped("the metadata service is not responding".to_owned());
    }
    let mut findings = Vec::new();
    for planned in &facts.metadata.planned {
        let (Ok(Some(at)), Some(dial)) = (&planned.rpc_meta, &planned.dial) else { continue };
        let evidence = format!("rpc_meta/{} points to {at}", planned.name);
        findings.push(match dial {
            DialResult::Answers => finding(
                "planned-names",
                Severity::Warning,
                format!("the name {} is in use by a running process", planned.name),
                format!("{evidence}, where an engine responds"),
                "use a name with another port for the new node, or stop the running one",
            ),
            _ => finding(
                "planned-names",
                Severity::Error,
                format!("a stale record occupies the name {}: a node with that name fails to start with 'Duplicate rpc_meta key'", planned.name),
                format!("{evidence}, where no engine responds"),
                format!("remove it: curl -X DELETE '{}?key=mooncake%2Frpc_meta%2F{}'; \
                     mcctl's nodes and metadata service remove stale records automatically",
                    facts.metadata.url.as_deref().unwrap_or_default(), mcctl_net::http::escape(&planned.name)),
            ),
        });
    }
    status(findings, || format!("{} free", counted(facts.metadata.planned.len(), "name")))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cluster::facts::PlannedNode;
    use crate::cluster::facts::test_facts::healthy;
    use mcctl_base::HostPort;

    #[track_caller]
    fn assert_found(status: &CheckStatus, part: &str) {
        let CheckStatus::Found(findings) = status else { panic!("nothing found: {status:?}") };
        assert!(findings.iter().any(|f| f.severity >= Severity::Warning && f.finding.contains(part)), "{findings:?}");
    }

    #[test]
    fn dead_stalled_and_unreachable_nodes_are_distinguished() {
        let mut facts = healthy();
        assert!(matches!(answer(&facts), CheckStatus::Passed(_)));
        for (dial, part) in [
            (DialResult::Refused("Connection refused".to_owned()), "listed by the master but dead"),
            (DialResult::Hung(Duration::from_secs(3)), "1 node is stalled"),
            (DialResult::Unreachable("no route".to_owned()), "1 node is not reachable"),
            (DialResult::Unresolved("no name".to_owned()), "1 node is not reachable"),
            (DialResult::Foreign("no frame".to_owned()), "another program uses the port"),
        ] {
            facts.nodes[1].dial = dial;
            assert_found(&answer(&facts), part);
        }
        facts.nodes[1].dial = DialResult::Unknown("no service".to_owned());
        assert!(matches!(answer(&facts), CheckStatus::Skipped(_)));
    }

    #[test]
    fn rdma_nodes_that_describe_themselves_as_tcp_are_found() {
        let mut facts = healthy();
        assert!(matches!(silent_tcp(&facts), CheckStatus::Passed(_)));
        facts.nodes[0].protocol = "rdma".to_owned();
        assert_found(&silent_tcp(&facts), "use TCP");
        facts.nodes[0].described = Some("rdma".to_owned());
        assert!(matches!(silent_tcp(&facts), CheckStatus::Passed(_)));
        facts.nodes.iter_mut().for_each(|node| node.described = None);
        assert!(matches!(silent_tcp(&facts), CheckStatus::Skipped(_)));
    }

    fn with_service() -> ClusterFacts {
        let mut facts = healthy();
        facts.metadata.url = Some("http://10.0.0.9:8080/metadata".to_owned());
        for node in &mut facts.nodes {
            node.records = Some(MetadataRecords { ram: Ok(Some("tcp".to_owned())), rpc_meta: Ok(node.at.clone()) });
        }
        facts
    }

    #[test]
    fn live_nodes_are_not_called_dead_if_p2phandshake_is_assumed() {
        let mut facts = healthy();
        facts.nodes[0].dial = DialResult::Refused("Connection refused".to_owned());
        assert_found(&answer(&facts), "listed by the master but dead");
        facts.metadata.is_assumed = true;
        let CheckStatus::Found(findings) = answer(&facts) else { panic!("found") };
        assert!(findings.len() == 1 && findings[0].severity == Severity::Warning, "{findings:?}");
        assert!(findings[0].remedy.contains("--metadata-server"), "{findings:?}");
        // Without heartbeats it is dead, regardless of its metadata service.
        facts.after = None;
        facts.before = Some(mcctl_net::http::Samples::parse("master_active_clients 1\n"));
        assert_found(&answer(&facts), "listed by the master but dead");
    }

    #[test]
    fn records_lost_by_a_restarted_service_are_found() {
        let mut facts = with_service();
        assert!(matches!(records(&facts), CheckStatus::Passed(_)));
        facts.nodes[0].records = Some(MetadataRecords { ram: Ok(None), rpc_meta: Ok(None) });
        facts.nodes[0].dial = DialResult::Refused("refused".to_owned());
        assert_found(&records(&facts), "lost records");
        facts.nodes[0].dial = DialResult::Answers;
        assert_found(&records(&facts), "use P2PHANDSHAKE, but");
        facts.metadata.reached = Err("Connection refused".into());
        assert_found(&records(&facts), "is not responding");
        assert!(matches!(records(&healthy()), CheckStatus::Skipped(_)));
    }

    #[test]
    fn a_stale_record_of_a_planned_name_is_an_error() {
        let mut facts = with_service();
        let at = HostPort::new("10.0.0.1", 15_001);
        let with = |rpc_meta, dial| vec![PlannedNode { name: "10.0.0.1:12345".to_owned(), rpc_meta, dial }];
        facts.metadata.planned = with(Ok(None), None);
        assert!(matches!(planned(&facts), CheckStatus::Passed(_)));
        facts.metadata.planned = with(Ok(Some(at.clone())), Some(DialResult::Refused("refused".to_owned())));
        assert_found(&planned(&facts), "Duplicate rpc_meta key");
        let CheckStatus::Found(findings) = planned(&facts) else { panic!("found") };
        assert!(findings[0].remedy.contains("mooncake%2Frpc_meta%2F10.0.0.1%3A12345"), "{findings:?}");
        facts.metadata.planned = with(Ok(Some(at)), Some(DialResult::Answers));
        assert_found(&planned(&facts), "in use by a running process");
    }
}
