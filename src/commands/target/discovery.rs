//! A store's metadata mode: discovered for clients without --metadata-server, and compared with the
//! client's mode when a transfer fails.

use crate::commands::cli::error::Failure;
use crate::commands::cli::output;
use crate::commands::target::key_space::key_space;
use crate::commands::target::master_target::MasterTarget;
use crate::engine::admin::{AdminClient, AdminErrorKind};
use crate::engine::base::HostPort;
use crate::engine::env::RealEnv;
use crate::engine::metadata::MetadataUri;
use crate::engine::metadata::discovery::{self, DiscoveredMode, DiscoveryQuery, Evidence};

/// The metadata mode that the nodes of `master` use; `None` if there is no evidence.
pub async fn find(master: &MasterTarget) -> Option<DiscoveredMode> {
    find_at(master.admin_at()?, master).await
}

/// The metadata mode that the nodes of `master` use, discovered through the admin endpoint `admin`;
/// `None` if there is no evidence.
pub async fn find_at(admin: &HostPort, master: &MasterTarget) -> Option<DiscoveredMode> {
    let keys = key_space();
    let limit = master.timeout;
    let credentials = &master.credentials;
    let question = DiscoveryQuery { admin, master_host: &master.at.host, keys: &keys, limit, credentials };
    let found = discovery::find(&RealEnv::new(), &question).await;
    if found.is_none()
        && let Ok(client) = AdminClient::with_credentials(admin.clone(), limit, credentials)
        && let Err(error) = client.announcement().await
        && let AdminErrorKind::Status { status: 401 | 403, .. } = error.kind
    {
        output::say(format!(
            "the nodes' metadata mode is unknown, because the admin port refused the request: {error}"
        ));
    }
    found
}

/// A one-line message for the log about the metadata mode that a client of `master` uses.
pub fn note(found: Option<&DiscoveredMode>, master: &MasterTarget) -> String {
    let (metadata, why) = match found {
        Some(DiscoveredMode { metadata, evidence }) => (metadata, reason(evidence)),
        None if master.is_admin_unknown() => {
            let why = "default: without --admin HOST:PORT, the nodes' mode cannot be discovered";
            (&MetadataUri::P2p, why.to_owned())
        }
        None => (&MetadataUri::P2p, "default: no node of this store could be checked".to_owned()),
    };
    format!("metadata: {metadata} ({why}); --metadata-server overrides")
}

/// The evidence for a metadata mode.
fn reason(evidence: &Evidence) -> String {
    match evidence {
        Evidence::Announced(admin) => format!("reported by the master at http://{admin}"),
        Evidence::Handshake(node) => format!("node {node} responds to a handshake at the address in its name"),
        Evidence::Record(node) => format!("the metadata service has a record for node {node}"),
    }
}

/// Adds the nodes' metadata mode to `failure` if it differs from `used`, which `origin` selected.
/// If the nodes cannot be checked because the admin port is unknown, the next step names `--admin`.
pub async fn explained(failure: Failure, master: &MasterTarget, used: &MetadataUri, origin: &str) -> Failure {
    match find(master).await {
        Some(found) if found.metadata.differs_from(used) => mismatch(failure, &found, used, origin),
        None if master.is_admin_unknown() => with_admin_hint(failure),
        _ => failure,
    }
}

/// `failure` with a next step that names the flag for a non-default admin port.
pub fn with_admin_hint(failure: Failure) -> Failure {
    const HINT: &str = "pass --admin HOST:PORT to check whether the nodes use another --metadata-server";
    let next = failure.next.as_ref().map_or(HINT.to_owned(), |next| format!("{next}; {HINT}"));
    failure.next(next)
}

fn mismatch(failure: Failure, found: &DiscoveredMode, used: &MetadataUri, origin: &str) -> Failure {
    let Failure { exit, kind, what, tried, found: cause, .. } = failure;
    let evidence = format!("{}; {what}", reason(&found.evidence));
    Failure {
        exit,
        kind,
        what: format!("the nodes use --metadata-server {}, but this client uses {used} ({origin})", found.metadata),
        tried,
        found: Some(cause.map_or(evidence.clone(), |cause| format!("{evidence} ({cause})"))),
        next: Some(format!("use --metadata-server {}, or remove the setting that selected {used}", found.metadata)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::cli::error::Exit;

    #[test]
    fn the_admin_hint_comes_after_the_other_advice() {
        let failure = with_admin_hint(Failure::unreachable("cannot get 'k'").next("check the node"));
        assert!(failure.next.is_some_and(|next| next.starts_with("check the node; pass --admin ")));
    }

    #[test]
    fn a_mismatch_is_the_first_line_and_keeps_exit_code_and_cause() {
        let found = DiscoveredMode { metadata: MetadataUri::P2p, evidence: Evidence::Handshake("n:1".to_owned()) };
        let used = MetadataUri::Service("http://m:8080/metadata".to_owned());
        let failure = Failure::unreachable("cannot get 'k'").found("Connection refused");
        let explained = mismatch(failure, &found, &used, "--metadata-server http://m:8080/metadata");
        assert_eq!(explained.exit, Exit::Unreachable);
        assert!(explained.what.contains("P2PHANDSHAKE") && explained.what.contains("http://m:8080/metadata"));
        let evidence = explained.found.expect("evidence");
        assert!(evidence.contains("n:1") && evidence.contains("cannot get 'k'") && evidence.contains("refused"));
    }
}
