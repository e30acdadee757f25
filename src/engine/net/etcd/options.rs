//! Where etcd is, and how to log in.

use std::fmt;
use std::time::Duration;

use mcctl_base::HostPort;

/// The address of an etcd server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdEndpoint {
    pub at: HostPort,
    /// Whether the server expects TLS.
    pub tls: bool,
}

/// A user of etcd.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdUser {
    pub name: String,
    pub password: String,
}

impl fmt::Debug for EtcdUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EtcdUser({})", self.name)
    }
}

/// How to reach etcd.
#[derive(Clone, Debug)]
pub struct EtcdOptions {
    /// At least one. They are tried in this order.
    pub endpoints: Vec<EtcdEndpoint>,
    /// Certificates, if the servers' are not trusted by this host, or if they ask for one.
    pub tls: Option<Box<rustls::ClientConfig>>,
    pub user: Option<EtcdUser>,
    /// Total time for a request, over all servers.
    pub request_timeout: Duration,
}

/// A list of etcd servers is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseEndpointsError {
    #[error("the list of etcd servers is empty; write etcd://HOST:PORT, with ; or , between several")]
    Empty,
    #[error("'{found}' is not an etcd server ({why}); write HOST:PORT, for example 10.0.0.1:2379")]
    Invalid { found: String, why: String },
}

impl EtcdOptions {
    /// Parses a list of servers, for example `10.0.0.1:2379;10.0.0.2:2379`, with an optional
    /// `etcd://` before it. Each may begin with `http://` or `https://`. A slash at the end is
    /// ignored.
    ///
    /// # Errors
    /// The list is empty, or an entry is not an address.
    pub fn parse(list: &str, request_timeout: Duration) -> Result<EtcdOptions, ParseEndpointsError> {
        let list = list.strip_prefix("etcd://").unwrap_or(list);
        let parts = list.split([';', ',']).map(str::trim).filter(|part| !part.is_empty());
        let endpoints = parts.map(endpoint).collect::<Result<Vec<EtcdEndpoint>, _>>()?;
        if endpoints.is_empty() {
            return Err(ParseEndpointsError::Empty);
        }
        Ok(EtcdOptions { endpoints, tls: None, user: None, request_timeout })
    }
}

fn endpoint(text: &str) -> Result<EtcdEndpoint, ParseEndpointsError> {
    let (tls, rest) = match text.strip_prefix("https://") {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix("http://").unwrap_or(text)),
    };
    let at = rest.trim_end_matches('/').parse::<HostPort>();
    let invalid = |why: String| ParseEndpointsError::Invalid { found: text.to_owned(), why };
    let at = at.map_err(|error| invalid(error.to_string()))?;
    if !has_url_host(&at) {
        return Err(invalid(format!("'{}' cannot be a host in a URL", at.host)));
    }
    Ok(EtcdEndpoint { at, tls })
}

/// Whether the host can be in a URL. An IPv6 address with a zone cannot.
fn has_url_host(at: &HostPort) -> bool {
    let is_allowed = |c: char| c.is_alphanumeric() || "-._:".contains(c);
    at.host.chars().all(is_allowed) && reqwest::Url::parse(&format!("http://{at}")).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_servers_has_several_forms() {
        let parsed = |list: &str| EtcdOptions::parse(list, Duration::from_secs(1)).map(|options| options.endpoints);
        let plain = |port| EtcdEndpoint { at: HostPort::new("a", port), tls: false };
        assert_eq!(parsed("etcd://a:1;a:2"), Ok(vec![plain(1), plain(2)]));
        assert_eq!(parsed(" http://a:1/ , a:2 "), Ok(vec![plain(1), plain(2)]));
        assert_eq!(parsed("https://a:1"), Ok(vec![EtcdEndpoint { tls: true, ..plain(1) }]));
        assert_eq!(parsed("etcd://;"), Err(ParseEndpointsError::Empty));
        assert!(matches!(parsed("a:1;b"), Err(ParseEndpointsError::Invalid { found, .. }) if found == "b"));
        assert_eq!(parsed("[::1]:1").map(|found| found[0].at.host.clone()).as_deref(), Ok("::1"));
        let user = EtcdUser { name: "root".to_owned(), password: "secret".to_owned() };
        assert_eq!(format!("{user:?}"), "EtcdUser(root)");
    }

    #[test]
    fn a_host_that_cannot_be_in_a_url_is_refused() {
        for host in ["a b", "a\tb", "a/b", "me@a", "a?b", "a#b", "a%b", "1.2.3.999", "[fe80::1%eth0]"] {
            let parsed = EtcdOptions::parse(&format!("{host}:1"), Duration::from_secs(1));
            assert!(matches!(parsed, Err(ParseEndpointsError::Invalid { .. })), "{host}: {parsed:?}");
        }
    }
}
