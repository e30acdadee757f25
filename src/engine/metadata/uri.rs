//! The metadata connection string, which specifies where segment descriptors are exchanged.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use mcctl_base::text::{masked, masked_address};
use mcctl_net::etcd::EtcdOptions;

/// How engines find each other's segments.
#[derive(Clone, PartialEq, Eq)]
pub enum MetadataUri {
    /// No service: peers exchange descriptors over their handshake ports.
    P2p,
    /// A metadata service: the URL of one over HTTP, to which `?key=` is appended; several such
    /// URLs, separated by commas, for a service at several addresses; or
    /// `etcd://HOST:PORT;HOST:PORT`. Mooncake's own clients do not accept several URLs.
    Service(String),
}

/// The URLs in `text`, which are separated by commas. A comma belongs to a URL if no `http://` or
/// `https://` follows it.
pub(crate) fn http_urls(text: &str) -> Vec<&str> {
    let is_start = |rest: &str| rest.trim_start().starts_with("http://") || rest.trim_start().starts_with("https://");
    let mut urls = Vec::new();
    let mut from = 0;
    for (at, _) in text.match_indices(',') {
        if is_start(&text[at + 1..]) {
            urls.push(text[from..at].trim());
            from = at + 1;
        }
    }
    urls.push(text[from..].trim());
    urls
}

impl MetadataUri {
    /// Whether two connection strings cannot name the same service: one is P2PHANDSHAKE and the
    /// other is HTTP, or they name services on different ports or paths. Hosts are not compared,
    /// because one service may have several host names.
    pub fn differs_from(&self, other: &MetadataUri) -> bool {
        match (self, other) {
            (MetadataUri::P2p, MetadataUri::P2p) => false,
            (MetadataUri::Service(url), MetadataUri::Service(other)) => {
                let others = http_urls(other);
                let is_same = |url: &&str| others.iter().any(|other| without_host(url) == without_host(other));
                !http_urls(url).iter().any(is_same)
            }
            _ => true,
        }
    }
}

/// Port and path of `url`, or the whole string if it has no colon.
fn without_host(url: &str) -> &str {
    url.rsplit_once(':').map_or(url, |(_, rest)| rest).trim_end_matches('/')
}

/// Why a connection string is not supported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unsupported metadata server '{text}' ({what}); use P2PHANDSHAKE, http(s)://HOST:PORT/metadata or etcd://HOST:PORT"
)]
pub struct ParseMetadataUriError {
    text: String,
    what: &'static str,
}

impl FromStr for MetadataUri {
    type Err = ParseMetadataUriError;

    fn from_str(text: &str) -> Result<MetadataUri, ParseMetadataUriError> {
        let bad = |what| ParseMetadataUriError { text: masked_address(text).into_owned(), what };
        if text == "P2PHANDSHAKE" {
            return Ok(MetadataUri::P2p);
        }
        let scheme = text.split_once("://").map(|(scheme, _)| scheme);
        match scheme {
            Some("http" | "https") => {
                check_urls(&http_urls(text)).map_err(bad)?;
                Ok(MetadataUri::Service(text.to_owned()))
            }
            Some("etcd") => match EtcdOptions::parse(text, Duration::ZERO) {
                Ok(_) => Ok(MetadataUri::Service(text.to_owned())),
                Err(_) => Err(bad("not a list of etcd servers")),
            },
            Some("redis") => Err(bad("redis is not supported yet")),
            Some(_) => Err(bad("unknown scheme")),
            None if text.is_empty() => Err(bad("empty")),
            None if text.eq_ignore_ascii_case("P2PHANDSHAKE") => Err(bad("must be upper case")),
            // Upstream interprets a string without a scheme as an etcd address.
            None => Err(bad("an address without a scheme means etcd for Mooncake; write etcd:// before it")),
        }
    }
}

/// Checks the URLs of one service.
fn check_urls(urls: &[&str]) -> Result<(), &'static str> {
    let mut paths = Vec::new();
    for url in urls {
        let url = reqwest::Url::parse(url).map_err(|_| "invalid URL")?;
        if url.host_str().is_none_or(str::is_empty) {
            return Err("missing host");
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err("the URL must not contain '?' or '#'");
        }
        if url.path().contains(',') {
            return Err("in a list, each address must start with http:// or https://");
        }
        paths.push(url.path().trim_end_matches('/').to_owned());
    }
    paths.dedup();
    if paths.len() > 1 {
        return Err("all URLs in a list must have the same path");
    }
    Ok(())
}

/// The original string, with any password masked.
impl fmt::Display for MetadataUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MetadataUri::P2p => f.write_str("P2PHANDSHAKE"),
            MetadataUri::Service(url) => f.write_str(&masked(url)),
        }
    }
}

impl fmt::Debug for MetadataUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_port_is_a_mismatch_and_another_host_name_is_not() {
        let http = |url: &str| MetadataUri::Service(url.to_owned());
        let here = http("http://127.0.0.1:8080/metadata");
        assert!(!here.differs_from(&http("http://localhost:8080/metadata/")));
        assert!(here.differs_from(&http("http://127.0.0.1:8081/metadata")));
        let list = http("http://10.0.0.1:8081/metadata,http://10.0.0.2:8080/metadata");
        assert!(!here.differs_from(&list) && !list.differs_from(&here) && !list.differs_from(&list));
        assert!(list.differs_from(&http("http://10.0.0.1:8082/metadata")));
        assert!(here.differs_from(&MetadataUri::P2p) && !MetadataUri::P2p.differs_from(&MetadataUri::P2p));
    }

    #[test]
    fn supported_uris_round_trip_through_text() {
        for text in [
            "P2PHANDSHAKE",
            "http://127.0.0.1:8080/metadata",
            "https://[::1]:8443/metadata",
            "http://a:1/metadata,https://b:2/metadata/, http://c:3/metadata",
            "etcd://a:1;b:2",
        ] {
            assert_eq!(text.parse::<MetadataUri>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_list_is_split_where_a_url_starts() {
        assert_eq!(http_urls("http://a/m"), ["http://a/m"]);
        assert_eq!(http_urls("http://a/m, https://b/m"), ["http://a/m", "https://b/m"]);
        assert_eq!(http_urls("http://me:x,y@a/m,http://b/m"), ["http://me:x,y@a/m", "http://b/m"]);
    }

    #[test]
    fn a_password_is_masked_in_output() {
        let uri: MetadataUri = "http://me:secret@h:1/metadata".parse().expect("a URL");
        let refused = "redis://:secret@h:1".parse::<MetadataUri>().expect_err("redis").to_string();
        for shown in [uri.to_string(), format!("{uri:?}"), refused] {
            assert!(!shown.contains("secret") && shown.contains("h:1"), "{shown}");
        }
    }

    #[test]
    fn an_unsupported_uri_is_refused_with_the_supported_forms() {
        for (text, what) in [
            ("etcd://a", "not a list of etcd servers"),
            ("10.0.0.1:2379", "means etcd"),
            ("redis://a:1", "redis is not"),
            ("ftp://a", "unknown scheme"),
            ("p2phandshake", "upper case"),
            ("", "empty"),
            ("http://", "invalid URL"),
            ("http://a/metadata?x=1", "must not contain '?'"),
            ("http://a/metadata,http://b/metadata?x=1", "must not contain '?'"),
            ("http://a/metadata,b/metadata", "must start with http"),
            ("http://a/metadata,etcd://b:1", "must start with http"),
            ("http://a/metadata,", "must start with http"),
            ("http://a/metadata,http://b/other", "the same path"),
            ("http://a/metadata,http://", "invalid URL"),
        ] {
            let error = text.parse::<MetadataUri>().expect_err(text).to_string();
            assert!(error.contains(what) && error.contains("P2PHANDSHAKE"), "{text}: {error}");
        }
    }
}
