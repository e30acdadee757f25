//! The list of services to which a proxy forwards.

use std::str::FromStr;

use mcctl_base::HostPort;
use mcctl_base::text::masked_address;

/// Metadata services, at least one, none twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardTargets(Vec<ForwardTarget>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct ForwardTarget {
    /// `http` or `https`, if the list names it.
    scheme: Option<&'static str>,
    at: HostPort,
}

/// Why a list of services is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseForwardTargetsError {
    #[error("the list is empty")]
    Empty,
    #[error("'{text}' is not HOST:PORT or http(s)://HOST:PORT: {reason}")]
    Target { text: String, reason: String },
    #[error("{0} is in the list twice")]
    Twice(HostPort),
}

impl ForwardTargets {
    /// The addresses in the list.
    pub fn addresses(&self) -> impl Iterator<Item = &HostPort> {
        self.0.iter().map(|target| &target.at)
    }

    /// The base URLs of the services. `scheme` is that of the services without one of their own.
    pub(super) fn bases(&self, scheme: &str) -> Vec<String> {
        self.0.iter().map(|target| format!("{}://{}", target.scheme.unwrap_or(scheme), target.at)).collect()
    }
}

impl FromStr for ForwardTargets {
    type Err = ParseForwardTargetsError;

    fn from_str(text: &str) -> Result<ForwardTargets, ParseForwardTargetsError> {
        let mut targets: Vec<ForwardTarget> = Vec::new();
        if text.trim().is_empty() {
            return Err(ParseForwardTargetsError::Empty);
        }
        for text in text.split(',') {
            let target = target(text.trim())?;
            if targets.iter().any(|other| other.at == target.at) {
                return Err(ParseForwardTargetsError::Twice(target.at));
            }
            targets.push(target);
        }
        Ok(ForwardTargets(targets))
    }
}

fn target(text: &str) -> Result<ForwardTarget, ParseForwardTargetsError> {
    let invalid = |reason: &str| ParseForwardTargetsError::Target {
        text: masked_address(text).into_owned(),
        reason: reason.to_owned(),
    };
    let (scheme, authority) = match text.split_once("://") {
        Some(("http", authority)) => (Some("http"), authority),
        Some(("https", authority)) => (Some("https"), authority),
        Some(_) => return Err(invalid("the scheme is not http or https")),
        None => (None, text),
    };
    let authority = authority.strip_suffix('/').unwrap_or(authority);
    if authority.contains(['/', '?', '#']) {
        return Err(invalid("remove the path; the proxy forwards the path of each request"));
    }
    if authority.contains('@') {
        return Err(invalid("a password is not supported; use MCCTL_TOKEN for a token"));
    }
    match HostPort::split(authority) {
        Ok((_, None)) => Err(invalid("the port is missing")),
        Ok((_, Some(0))) => Err(invalid("the port is 0")),
        Ok((host, Some(_))) if host.contains(|c: char| c.is_whitespace() || c.is_control()) => {
            Err(invalid("the host contains a space or a control character"))
        }
        Ok((host, Some(port))) => Ok(ForwardTarget { scheme, at: HostPort::new(host, port) }),
        Err(error) => Err(invalid(error.reason())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_addresses_and_urls() {
        let targets: ForwardTargets = "a:1, http://b:2/,https://[::1]:3".parse().expect("a list");
        assert_eq!(targets.bases("http"), ["http://a:1", "http://b:2", "https://[::1]:3"]);
        assert_eq!(targets.bases("https"), ["https://a:1", "http://b:2", "https://[::1]:3"]);
        assert_eq!(targets.addresses().map(|at| at.port).collect::<Vec<_>>(), [1, 2, 3]);
    }

    #[test]
    fn an_invalid_list_is_refused() {
        for (text, part) in [
            ("", "empty"),
            (" ", "empty"),
            (",", "the host is empty"),
            ("a:1,", "the host is empty"),
            ("a", "the port is missing"),
            ("a:0", "the port is 0"),
            ("a:99999", "from 0 to 65535"),
            ("http://", "the host is empty"),
            ("http://a:1/metadata", "remove the path"),
            ("ftp://a:1", "the scheme"),
            ("http://me:secret@a:1", "password"),
            ("a b:1", "space"),
            ("a:1,http://a:1", "twice"),
        ] {
            let error = text.parse::<ForwardTargets>().expect_err(text).to_string();
            assert!(error.contains(part) && !error.contains("secret"), "{text}: {error}");
        }
    }
}
