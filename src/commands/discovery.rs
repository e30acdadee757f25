//! The metadata mode of a store: found for a client that was not given one, and compared when bytes cannot be moved.

use crate::commands::error::Failure;
use crate::commands::serve::metadata::key_space;
use crate::commands::target::Master;
use crate::engine::base::HostPort;
use crate::engine::env::RealEnv;
use crate::engine::metadata::MetadataUri;
use crate::engine::metadata::discovery::{self, Discovered, Evidence, Question};

/// The metadata mode that the nodes of `master` use; `None` without evidence.
pub async fn find(master: &Master) -> Option<Discovered> {
    find_at(master.admin().ok()?.at(), master).await
}

/// The same, with the admin port of `master` at `admin`.
pub async fn find_at(admin: &HostPort, master: &Master) -> Option<Discovered> {
    let keys = key_space();
    let question = Question { admin, master_host: &master.at.host, keys: &keys, limit: master.timeout };
    discovery::find(&RealEnv::new(), &question).await
}

/// One line about what was found, for stderr.
pub fn note(found: Option<&Discovered>) -> String {
    let (metadata, why) = match found {
        Some(Discovered { metadata, evidence }) => (metadata, reason(evidence)),
        None => (&MetadataUri::P2p, "default: no node of this store could be checked".to_owned()),
    };
    format!("metadata: {metadata} ({why}); --metadata-server overrides")
}

/// Why a store is believed to use what was found.
fn reason(evidence: &Evidence) -> String {
    match evidence {
        Evidence::Announced(admin) => format!("reported by the master at http://{admin}"),
        Evidence::Handshake(node) => format!("node {node} answers a handshake at its name"),
        Evidence::Record(node) => format!("it has the record of node {node}"),
    }
}

/// `failure`, with the other metadata mode in its first line if the nodes of `master` use another one than `used`, which `origin` chose.
pub async fn explained(failure: Failure, master: &Master, used: &MetadataUri, origin: &str) -> Failure {
    match find(master).await {
        Some(found) if differ(&found.metadata, used) => mismatch(failure, &found, used, origin),
        _ => failure,
    }
}

/// Two modes, or two services on different ports or paths. The same service may have several names for its host.
fn differ(found: &MetadataUri, used: &MetadataUri) -> bool {
    match (found, used) {
        (MetadataUri::P2p, MetadataUri::P2p) => false,
        (MetadataUri::Http(found), MetadataUri::Http(used)) => without_host(found) != without_host(used),
        _ => true,
    }
}

/// What follows the last colon of `url`, the port and path, or all of it.
fn without_host(url: &str) -> &str {
    url.rsplit_once(':').map_or(url, |(_, rest)| rest).trim_end_matches('/')
}

fn mismatch(failure: Failure, found: &Discovered, used: &MetadataUri, origin: &str) -> Failure {
    let Failure { exit, what, tried, found: cause, .. } = failure;
    let evidence = format!("{}; {what}", reason(&found.evidence));
    Failure {
        exit,
        what: format!("the nodes use --metadata-server {}, and this client uses {used} ({origin})", found.metadata),
        tried,
        found: Some(cause.map_or(evidence.clone(), |cause| format!("{evidence} ({cause})"))),
        next: Some(format!("give --metadata-server {}, or unset what chose {used}", found.metadata)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::error::Exit;

    #[test]
    fn another_host_name_is_no_mismatch_and_another_port_is_one() {
        let http = |url: &str| MetadataUri::Http(url.to_owned());
        let here = http("http://127.0.0.1:8080/metadata");
        assert!(!differ(&here, &http("http://localhost:8080/metadata/")));
        assert!(differ(&here, &http("http://127.0.0.1:8081/metadata")));
        assert!(differ(&here, &MetadataUri::P2p) && !differ(&MetadataUri::P2p, &MetadataUri::P2p));
    }

    #[test]
    fn a_mismatch_is_the_first_line_and_keeps_exit_code_and_cause() {
        let found = Discovered { metadata: MetadataUri::P2p, evidence: Evidence::Handshake("n:1".to_owned()) };
        let used = MetadataUri::Http("http://m:8080/metadata".to_owned());
        let failure = Failure::unreachable("cannot get 'k'").found("Connection refused");
        let explained = mismatch(failure, &found, &used, "--metadata-server http://m:8080/metadata");
        assert_eq!(explained.exit, Exit::Unreachable);
        assert!(explained.what.contains("P2PHANDSHAKE") && explained.what.contains("http://m:8080/metadata"));
        let evidence = explained.found.expect("evidence");
        assert!(evidence.contains("n:1") && evidence.contains("cannot get 'k'") && evidence.contains("refused"));
    }
}
