//! The processes that lend memory: there, not standing still, and known to the metadata service?

use std::collections::BTreeSet;

use crate::engine::check::{Finding, Severity, Status};
use crate::engine::doctor::cluster::facts::{Dial, Facts, Node, Records};
use crate::engine::doctor::cluster::judge::{undetailed, unlisted};
use crate::engine::doctor::{finding, listed, plural, shown, status};

fn named(node: &Node) -> String {
    match node.names.first() {
        Some(name) if *name != node.endpoint => format!("{name} ({})", node.endpoint),
        _ => node.endpoint.clone(),
    }
}

/// Every node accepts connections at its announced endpoint.
pub fn answer(facts: &Facts) -> Status {
    // Without details the endpoint is only a name, which P2PHANDSHAKE's nodes do not listen on.
    let skipped = if facts.metadata.url.is_none() { undetailed(facts) } else { unlisted(facts) };
    if let Some(skipped) = skipped {
        return skipped;
    }
    let of = |wanted: &dyn Fn(&Dial) -> Option<String>| -> Vec<String> {
        let said = facts.nodes.iter().filter_map(|node| Some((named(node), wanted(&node.dial)?)));
        said.map(|(name, why)| if why.is_empty() { name } else { format!("{name}: {why}") }).collect()
    };
    let mut findings: Vec<Finding> = Vec::new();
    let mut add = |what: String, seen: &[String], remedy: &str| {
        if !seen.is_empty() {
            findings.push(finding("nodes-answer", Severity::Error, what, listed(seen), remedy));
        }
    };
    let dead = of(&|dial| match dial {
        Dial::Refused(why) => Some(why.clone()),
        _ => None,
    });
    // A node that sends heartbeats lives: its name is not an address where P2PHANDSHAKE was only assumed.
    let is_elsewhere = facts.metadata.url.is_none() && facts.metadata.is_assumed && sends_heartbeats(facts);
    if is_elsewhere && !dead.is_empty() {
        return Status::Found(vec![finding(
            "nodes-answer",
            Severity::Warning,
            format!("{} not found by name: the nodes may use an HTTP metadata service", are(dead.len())),
            listed(&dead),
            "give --metadata-server http://HOST:PORT/metadata, the one of the nodes; with P2PHANDSHAKE these nodes are dead",
        )]);
    }
    add(
        format!(
            "{} listed by the master and dead: each get and put there costs 0.7 to 1 s and fails (-800) until client_ttl is over",
            are(dead.len())
        ),
        &dead,
        "wait for client_ttl (10 s after the last heartbeat) before new clients start, and roll nodes slower than that; \
         if it stays, clients and nodes use different --metadata-server",
    );
    let hung = of(&|dial| match dial {
        Dial::Hung(limit) => Some(format!("took the connection and said nothing for {}", shown(*limit))),
        _ => None,
    });
    add(
        format!(
            "{} standing still: upstream's clients wait 60 s for each batch there, and that wait has no knob",
            are(hung.len())
        ),
        &hung,
        "kill -9 the process (a stopped one shows T in ps, one in uninterruptible sleep D): a dead node is forgotten after \
         client_ttl, one that hangs and still sends heartbeats never",
    );
    let lost = of(&|dial| match dial {
        Dial::Unreachable(why) | Dial::Unresolved(why) => Some(why.clone()),
        _ => None,
    });
    add(
        format!("{} not reachable from this host", are(lost.len())),
        &lost,
        "run this on a host of the cluster; open the ports 15000-17000 (MC_MIN_RPC_PORT to MC_MAX_RPC_PORT) between its hosts, or \
         set MOONCAKE_LOCAL_HOSTNAME of that node to an address that others reach",
    );
    let foreign = of(&|dial| match dial {
        Dial::Foreign(why) => Some(why.clone()),
        _ => None,
    });
    add(
        format!("{} another program's by now", are(foreign.len())),
        &foreign,
        "the node has ended and its port went to somebody else: wait for client_ttl, or see the node's log",
    );
    let unknown = of(&|dial| match dial {
        Dial::Unknown(why) => Some(why.clone()),
        _ => None,
    });
    if findings.is_empty() && !unknown.is_empty() {
        return Status::Skipped(listed(&unknown));
    }
    let slowest = facts.nodes.iter().map(|node| node.took).max().unwrap_or_default();
    status(findings, || format!("{} in {}", plural(facts.nodes.len(), "node"), shown(slowest)))
}

/// Does the master count at least as many clients as there are owners of segments?
fn sends_heartbeats(facts: &Facts) -> bool {
    let owners: BTreeSet<&str> =
        facts.mounted().iter().map(|segment| &*segment.client).filter(|client| !client.is_empty()).collect();
    !owners.is_empty() && facts.metric("master_active_clients").is_some_and(|active| active >= owners.len() as f64)
}

fn are(n: usize) -> String {
    format!("{} {}", plural(n, "node"), if n == 1 { "is" } else { "are" })
}

/// No node uses TCP although its host has RDMA devices.
pub fn silent_tcp(facts: &Facts) -> Status {
    if let Some(skipped) = undetailed(facts) {
        return skipped;
    }
    let is_fallen = |node: &&Node| {
        node.described.as_deref().is_some_and(|really| really == "tcp" && !matches!(node.protocol.as_str(), "" | "tcp"))
    };
    let fallen: Vec<String> = facts
        .nodes
        .iter()
        .filter(is_fallen)
        .map(|node| format!("{}: the master says {}, its own descriptor tcp", named(node), node.protocol))
        .collect();
    if !fallen.is_empty() {
        return Status::Found(vec![finding(
            "silent-tcp",
            Severity::Error,
            "nodes that were started for RDMA move their bytes over TCP: everything works, slowly",
            listed(&fallen),
            "see mcctl devices on those hosts (no device, or its provider library is missing), set MOONCAKE_DEVICE, and restart them",
        )]);
    }
    let described = facts.nodes.iter().filter(|node| node.described.is_some()).count();
    match described {
        0 => Status::Skipped("no node told its descriptor".to_owned()),
        n => Status::Passed(format!("{} as registered", plural(n, "transport"))),
    }
}

/// Each node has a record in the metadata service, and each record has a node.
pub fn records(facts: &Facts) -> Status {
    let Some(url) = &facts.metadata.url else {
        return Status::Skipped(
            "P2PHANDSHAKE: there is no metadata service, so nothing can be missing there".to_owned(),
        );
    };
    if let Err(why) = &facts.metadata.reached {
        return Status::Found(vec![finding(
            "metadata-records",
            Severity::Error,
            "the metadata service does not answer: no node can join, and no client finds a segment it does not know yet",
            format!("{url}: {why}"),
            "start it again (mcctl serve metadata, or the master with --enable_http_metadata_server), then restart the nodes; the URL \
             ends in /metadata",
        )]);
    }
    if let Some(skipped) = unlisted(facts) {
        return skipped;
    }
    let missing = facts.nodes.iter().filter_map(|node| {
        let Records { ram, rpc_meta } = node.records.as_ref()?;
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
    // A node that has no record and answers where the master says that it is, was started with P2PHANDSHAKE.
    let (p2p, lost): (Vec<_>, Vec<_>) = missing.partition(|(node, gone)| gone.len() == 2 && node.dial == Dial::Answers);
    let mut findings = Vec::new();
    if !lost.is_empty() {
        let keys: Vec<String> = lost.into_iter().flat_map(|(_, gone)| gone).collect();
        findings.push(finding(
            "metadata-records",
            Severity::Error,
            "the metadata service has lost records of mounted segments: clients that start now cannot reach them (404)",
            listed(&keys),
            "restart those nodes (upstream's publish once only, and a metadata service in memory forgets all when it restarts), or use \
             P2PHANDSHAKE everywhere",
        ));
    }
    if !p2p.is_empty() {
        let names: Vec<String> = p2p.iter().map(|(node, _)| named(node)).collect();
        findings.push(finding(
            "metadata-records",
            Severity::Error,
            "nodes use P2PHANDSHAKE while this metadata service was named: clients that use it cannot reach them",
            format!("no record at {url}, but an engine answers: {}", listed(&names)),
            "give nodes, SGLang and this command one and the same MOONCAKE_TE_META_DATA_SERVER",
        ));
    }
    status(findings, || format!("both records of {}", plural(facts.nodes.len(), "node")))
}

/// The nodes contribute the memory that the plan expects.
pub fn planned(facts: &Facts) -> Status {
    if facts.metadata.url.is_none() {
        return Status::Skipped("P2PHANDSHAKE: names are not registered anywhere".to_owned());
    }
    if facts.metadata.planned.is_empty() {
        return Status::Skipped("no node that is to be started was named".to_owned());
    }
    if facts.metadata.reached.is_err() {
        return Status::Skipped("the metadata service does not answer".to_owned());
    }
    let mut findings = Vec::new();
    for planned in &facts.metadata.planned {
        let (Ok(Some(at)), Some(dial)) = (&planned.rpc_meta, &planned.dial) else { continue };
        let evidence = format!("rpc_meta/{} points to {at}", planned.name);
        findings.push(match dial {
            Dial::Answers => finding(
                "planned-names",
                Severity::Warning,
                format!("the name {} is in use by a running process", planned.name),
                format!("{evidence}, where an engine answers"),
                "give the new node another port in its name, or stop the other one",
            ),
            _ => finding(
                "planned-names",
                Severity::Error,
                format!("a record of a process that is gone holds the name {}: its next start fails with 'Duplicate rpc_meta key'", planned.name),
                format!("{evidence}, where no engine answers"),
                format!("remove it: curl -X DELETE '{}?key=mooncake%2Frpc_meta%2F{}'; mcctl's nodes and metadata service do that themselves",
                    facts.metadata.url.as_deref().unwrap_or_default(), crate::engine::metadata::escape(&planned.name)),
            ),
        });
    }
    status(findings, || format!("{} free", plural(facts.metadata.planned.len(), "name")))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::engine::base::HostPort;
    use crate::engine::doctor::cluster::facts::Planned;
    use crate::engine::doctor::cluster::facts::made_up::healthy;

    #[track_caller]
    fn says(status: &Status, part: &str) {
        let Status::Found(findings) = status else { panic!("nothing found: {status:?}") };
        assert!(findings.iter().any(|f| f.severity >= Severity::Warning && f.finding.contains(part)), "{findings:?}");
    }

    #[test]
    fn a_dead_node_is_told_from_one_that_stands_still_and_from_one_that_is_out_of_reach() {
        let mut facts = healthy();
        assert!(matches!(answer(&facts), Status::Passed(_)));
        for (dial, part) in [
            (Dial::Refused("Connection refused".to_owned()), "1 node is listed by the master and dead"),
            (Dial::Hung(Duration::from_secs(3)), "1 node is standing still"),
            (Dial::Unreachable("no route".to_owned()), "1 node is not reachable"),
            (Dial::Unresolved("no name".to_owned()), "1 node is not reachable"),
            (Dial::Foreign("no frame".to_owned()), "1 node is another program's"),
        ] {
            facts.nodes[1].dial = dial;
            says(&answer(&facts), part);
        }
        facts.nodes[1].dial = Dial::Unknown("no service".to_owned());
        assert!(matches!(answer(&facts), Status::Skipped(_)));
    }

    #[test]
    fn a_node_registered_as_rdma_that_describes_itself_as_tcp_has_fallen_back() {
        let mut facts = healthy();
        assert!(matches!(silent_tcp(&facts), Status::Passed(_)));
        facts.nodes[0].protocol = "rdma".to_owned();
        says(&silent_tcp(&facts), "move their bytes over TCP");
        facts.nodes[0].described = Some("rdma".to_owned());
        assert!(matches!(silent_tcp(&facts), Status::Passed(_)));
        facts.nodes.iter_mut().for_each(|node| node.described = None);
        assert!(matches!(silent_tcp(&facts), Status::Skipped(_)));
    }

    fn with_service() -> Facts {
        let mut facts = healthy();
        facts.metadata.url = Some("http://10.0.0.9:8080/metadata".to_owned());
        for node in &mut facts.nodes {
            node.records = Some(Records { ram: Ok(Some("tcp".to_owned())), rpc_meta: Ok(node.at.clone()) });
        }
        facts
    }

    #[test]
    fn a_live_node_is_not_called_dead_where_p2phandshake_is_only_assumed() {
        let mut facts = healthy();
        facts.nodes[0].dial = Dial::Refused("Connection refused".to_owned());
        says(&answer(&facts), "listed by the master and dead");
        facts.metadata.is_assumed = true;
        let Status::Found(findings) = answer(&facts) else { panic!("found") };
        assert!(findings.len() == 1 && findings[0].severity == Severity::Warning, "{findings:?}");
        assert!(findings[0].remedy.contains("--metadata-server"), "{findings:?}");
        // Without heartbeats it is dead, whatever it uses.
        facts.after = None;
        facts.before = Some(crate::engine::http::Samples::parse("master_active_clients 1\n"));
        says(&answer(&facts), "listed by the master and dead");
    }

    #[test]
    fn records_that_a_restarted_service_lost_are_named() {
        let mut facts = with_service();
        assert!(matches!(records(&facts), Status::Passed(_)));
        facts.nodes[0].records = Some(Records { ram: Ok(None), rpc_meta: Ok(None) });
        facts.nodes[0].dial = Dial::Refused("the name's port is nobody's".to_owned());
        says(&records(&facts), "has lost records");
        facts.nodes[0].dial = Dial::Answers;
        says(&records(&facts), "use P2PHANDSHAKE while");
        facts.metadata.reached = Err("Connection refused".to_owned());
        says(&records(&facts), "does not answer");
        assert!(matches!(records(&healthy()), Status::Skipped(_)));
    }

    #[test]
    fn a_stale_record_of_a_name_that_is_to_be_used_is_an_error_with_the_line_that_removes_it() {
        let mut facts = with_service();
        let at = HostPort::new("10.0.0.1", 15_001);
        let with = |rpc_meta, dial| vec![Planned { name: "10.0.0.1:12345".to_owned(), rpc_meta, dial }];
        facts.metadata.planned = with(Ok(None), None);
        assert!(matches!(planned(&facts), Status::Passed(_)));
        facts.metadata.planned = with(Ok(Some(at.clone())), Some(Dial::Refused("refused".to_owned())));
        says(&planned(&facts), "Duplicate rpc_meta key");
        let Status::Found(findings) = planned(&facts) else { panic!("found") };
        assert!(findings[0].remedy.contains("mooncake%2Frpc_meta%2F10.0.0.1%3A12345"), "{findings:?}");
        facts.metadata.planned = with(Ok(Some(at)), Some(Dial::Answers));
        says(&planned(&facts), "in use by a running process");
    }
}
