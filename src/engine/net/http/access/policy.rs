//! The decision about one request.

use hyper::StatusCode;

use crate::http::access::route_class::RouteClass;
use crate::http::access::token::{TokenRole, TokenTable};

/// The rules of an HTTP port. The default allows everything.
#[derive(Clone, Debug, Default)]
pub struct AccessPolicy {
    /// The tokens, one of which a request needs. If empty, no token is needed.
    pub tokens: TokenTable,
    /// A client certificate is needed. TLS has verified it.
    pub certificate_required: bool,
    /// From where requests that may change something are allowed.
    pub writes_from: WriteOrigin,
    /// `/health`, `/ready` and `/metrics` need the same as other requests that only read.
    pub protect_metrics: bool,
}

/// From where requests that may change something are allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteOrigin {
    #[default]
    Any,
    /// Loopback addresses, and the Unix socket.
    Loopback,
    /// The Unix socket, to which this policy does not apply.
    Socket,
}

/// What the rules need of the sender of a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Caller<'a> {
    /// The value of the header `Authorization`.
    pub authorization: Option<&'a str>,
    /// TLS has verified a certificate of the client.
    pub has_certificate: bool,
    /// The peer's address is a loopback address.
    pub is_local: bool,
}

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessDecision {
    Allow,
    NoCertificate,
    NoToken,
    /// The token is not in the table, or the header is malformed.
    UnknownToken,
    /// A token with the role read, for a request that may change something.
    ReadOnly,
    /// A request that may change something, from an address from which this is not allowed.
    NotLocal,
}

impl AccessPolicy {
    /// Whether `caller` may send a request of class `class`.
    pub fn decide(&self, class: RouteClass, caller: Caller<'_>) -> AccessDecision {
        if class == RouteClass::Open && !self.protect_metrics {
            return AccessDecision::Allow;
        }
        if self.certificate_required && !caller.has_certificate {
            return AccessDecision::NoCertificate;
        }
        if !self.tokens.is_empty() {
            let Some(authorization) = caller.authorization else { return AccessDecision::NoToken };
            match self.tokens.role_of(authorization) {
                None => return AccessDecision::UnknownToken,
                Some(TokenRole::Read) if class == RouteClass::Write => return AccessDecision::ReadOnly,
                Some(TokenRole::Read | TokenRole::Write) => {}
            }
        }
        let is_allowed = match self.writes_from {
            WriteOrigin::Any => true,
            WriteOrigin::Loopback => caller.is_local,
            WriteOrigin::Socket => false,
        };
        if class == RouteClass::Write && !is_allowed { AccessDecision::NotLocal } else { AccessDecision::Allow }
    }
}

impl AccessDecision {
    const REFUSALS: [AccessDecision; 5] = [
        AccessDecision::NoCertificate,
        AccessDecision::NoToken,
        AccessDecision::UnknownToken,
        AccessDecision::ReadOnly,
        AccessDecision::NotLocal,
    ];

    /// The refusal whose response is `body`; `None` for the text of another server.
    pub fn of_response(body: &str) -> Option<AccessDecision> {
        let is_text = |refusal: &AccessDecision| refusal.refusal().is_some_and(|(_, text)| text.trim() == body.trim());
        AccessDecision::REFUSALS.into_iter().find(is_text)
    }

    /// What the sender of a refused request must change. Names the flags of this program's clients.
    pub fn remedy(self) -> Option<&'static str> {
        Some(match self {
            AccessDecision::Allow => return None,
            AccessDecision::NoCertificate => {
                "pass a certificate that a CA of the server's --client-ca has signed, with --client-cert and --client-key"
            }
            AccessDecision::NoToken => {
                "pass a token of the server's --token-file with --token-file FILE or MCCTL_TOKEN"
            }
            AccessDecision::UnknownToken => {
                "correct the client's --token-file or MCCTL_TOKEN, or add the token to the server's --token-file"
            }
            AccessDecision::ReadOnly => "use a token that has the role write in the server's --token-file",
            AccessDecision::NotLocal => {
                "run the command on the server's host, or through its --http-socket, or change the server's --writes-from"
            }
        })
    }

    /// The status and the text of the response to a request that is not allowed; `None` if it is.
    pub fn refusal(self) -> Option<(StatusCode, &'static str)> {
        Some(match self {
            AccessDecision::Allow => return None,
            AccessDecision::NoCertificate => {
                (StatusCode::FORBIDDEN, "a client certificate is required (mcctl: --client-cert and --client-key)\n")
            }
            AccessDecision::NoToken => (
                StatusCode::UNAUTHORIZED,
                "a token is required: send 'Authorization: Bearer TOKEN' (mcctl: --token-file FILE or MCCTL_TOKEN)\n",
            ),
            AccessDecision::UnknownToken => (
                StatusCode::UNAUTHORIZED,
                "the token is not in the server's --token-file; check --token-file or MCCTL_TOKEN of the client\n",
            ),
            AccessDecision::ReadOnly => {
                (StatusCode::FORBIDDEN, "the token has the role read; this request needs the role write\n")
            }
            AccessDecision::NotLocal => {
                (StatusCode::FORBIDDEN, "the server does not accept changes from this address (--writes-from)\n")
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: &str = "Bearer reader-0123456789abcdef";
    const WRITE: &str = "Bearer writer-0123456789abcdef";

    fn policy(
        certificate_required: bool,
        writes_from: WriteOrigin,
        protect_metrics: bool,
        with_tokens: bool,
    ) -> AccessPolicy {
        let text = "read reader-0123456789abcdef\nwrite writer-0123456789abcdef\n";
        let tokens = if with_tokens { text.parse().unwrap() } else { TokenTable::default() };
        AccessPolicy { tokens, certificate_required, writes_from, protect_metrics }
    }

    fn from(authorization: Option<&str>) -> Caller<'_> {
        Caller { authorization, has_certificate: false, is_local: false }
    }

    #[test]
    fn the_default_policy_allows_everything() {
        let open = AccessPolicy::default();
        for class in [RouteClass::Open, RouteClass::Read, RouteClass::Write] {
            assert_eq!(open.decide(class, from(None)), AccessDecision::Allow);
        }
    }

    #[test]
    fn a_tokens_role_limits_the_requests() {
        use AccessDecision::{Allow, NoToken, ReadOnly, UnknownToken};
        let policy = policy(false, WriteOrigin::Any, false, true);
        for (authorization, expected) in [
            (None, [Allow, NoToken, NoToken]),
            (Some("Bearer wrong"), [Allow, UnknownToken, UnknownToken]),
            (Some(READ), [Allow, Allow, ReadOnly]),
            (Some(WRITE), [Allow, Allow, Allow]),
        ] {
            let classes = [RouteClass::Open, RouteClass::Read, RouteClass::Write];
            assert_eq!(classes.map(|class| policy.decide(class, from(authorization))), expected, "{authorization:?}");
        }
    }

    #[test]
    fn protected_metrics_need_a_token_or_certificate() {
        let tokens = policy(false, WriteOrigin::Any, true, true);
        assert_eq!(tokens.decide(RouteClass::Open, from(None)), AccessDecision::NoToken);
        assert_eq!(tokens.decide(RouteClass::Open, from(Some(READ))), AccessDecision::Allow);
        let certificates = policy(true, WriteOrigin::Any, true, false);
        assert_eq!(certificates.decide(RouteClass::Open, from(None)), AccessDecision::NoCertificate);
    }

    #[test]
    fn certificates_and_tokens_are_both_required() {
        let policy = policy(true, WriteOrigin::Any, false, true);
        assert_eq!(policy.decide(RouteClass::Write, from(Some(WRITE))), AccessDecision::NoCertificate);
        let caller = Caller { has_certificate: true, ..from(Some(WRITE)) };
        assert_eq!(policy.decide(RouteClass::Write, caller), AccessDecision::Allow);
        let caller = Caller { has_certificate: true, ..from(None) };
        assert_eq!(policy.decide(RouteClass::Read, caller), AccessDecision::NoToken);
    }

    #[test]
    fn changes_from_other_hosts_are_refused() {
        let policy = policy(false, WriteOrigin::Loopback, false, true);
        assert_eq!(policy.decide(RouteClass::Write, from(Some(WRITE))), AccessDecision::NotLocal);
        assert_eq!(policy.decide(RouteClass::Read, from(Some(READ))), AccessDecision::Allow);
        // A local client needs the token, too.
        let local = |authorization| Caller { is_local: true, ..from(authorization) };
        assert_eq!(policy.decide(RouteClass::Write, local(Some(WRITE))), AccessDecision::Allow);
        assert_eq!(policy.decide(RouteClass::Write, local(None)), AccessDecision::NoToken);
        let socket = AccessPolicy { writes_from: WriteOrigin::Socket, ..policy };
        assert_eq!(socket.decide(RouteClass::Write, local(Some(WRITE))), AccessDecision::NotLocal);
        assert_eq!(socket.decide(RouteClass::Read, local(Some(READ))), AccessDecision::Allow);
    }

    #[test]
    fn a_refusal_is_recognized_by_its_response() {
        for refusal in AccessDecision::REFUSALS {
            let (_, text) = refusal.refusal().unwrap();
            assert_eq!(AccessDecision::of_response(text.trim()), Some(refusal));
            assert!(refusal.remedy().is_some());
        }
        assert_eq!(AccessDecision::of_response("Unauthorized"), None);
    }

    #[test]
    fn only_a_missing_or_unknown_token_is_unauthorized() {
        let status = |decision: AccessDecision| decision.refusal().map(|(status, _)| status.as_u16());
        assert_eq!([AccessDecision::NoToken, AccessDecision::UnknownToken].map(status), [Some(401); 2]);
        let forbidden = [AccessDecision::ReadOnly, AccessDecision::NotLocal, AccessDecision::NoCertificate];
        assert_eq!(forbidden.map(status), [Some(403); 3]);
        assert_eq!(status(AccessDecision::Allow), None);
    }
}
