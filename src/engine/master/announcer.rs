//! The announcement of a master's RPC port and of its nodes' metadata mode, for clients configured
//! with neither.

use mcctl_base::HostPort;
use mcctl_metadata::MetadataService;
use mcctl_metadata::admin::types::{AnnouncedMode, Announcement};
use mcctl_sys::env::Env;

/// Creates a master's [`Announcement`].
#[derive(Debug)]
pub struct Announcer<E> {
    /// RPC port of the master.
    pub rpc_port: u16,
    /// The embedded metadata service and its listen address.
    pub embedded: Option<(HostPort, MetadataService<E>)>,
    /// The scheme of the embedded service's URL: `http` or `https`.
    pub scheme: &'static str,
}

impl<E: Env> Announcer<E> {
    /// Returns the announcement of a master whose nodes have the names `nodes`. The embedded
    /// service is announced if it has a record for one of these nodes, or if there are no nodes
    /// yet. A running embedded service is not necessarily the one that the nodes use.
    pub fn announcement(&self, nodes: &[String]) -> Announcement {
        let used =
            |service: &MetadataService<E>| nodes.is_empty() || nodes.iter().any(|node| service.has_segment(node));
        let metadata = match &self.embedded {
            Some((at, service)) if used(service) => {
                AnnouncedMode::Http { url: format!("{}://{at}/metadata", self.scheme) }
            }
            _ => AnnouncedMode::Unknown,
        };
        Announcement { schema: Announcement::SCHEMA.to_owned(), rpc_port: self.rpc_port, metadata }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcctl_metadata::KeySpace;
    use mcctl_sys::env::RealEnv;

    #[test]
    fn an_embedded_service_that_no_node_uses_is_not_announced() {
        let service = MetadataService::new(RealEnv::new(), KeySpace::default());
        let embedded = Some((HostPort::new("0.0.0.0", 8080), service));
        let announcer = Announcer { rpc_port: 1, embedded, scheme: "http" };
        let http = AnnouncedMode::Http { url: "http://0.0.0.0:8080/metadata".to_owned() };
        assert_eq!(announcer.announcement(&[]).metadata, http);
        assert_eq!(announcer.announcement(&["node:1".to_owned()]).metadata, AnnouncedMode::Unknown);
        let without = Announcer::<RealEnv> { rpc_port: 1, embedded: None, scheme: "http" };
        assert_eq!(without.announcement(&[]).metadata, AnnouncedMode::Unknown);
    }
}
