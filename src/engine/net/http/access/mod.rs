//! Which clients may send which requests to an HTTP port: tokens, client certificates, and the
//! peer's address.
//!
//! Start with [`AccessPolicy::decide`], which has no sockets. The server calls it before it reads a
//! request's body. The routes come from
//! [`Handler::route_class`](crate::http::Handler::route_class).

mod files;
mod policy;
mod route_class;
mod token;

pub use files::{ACCESS_FILE_BYTES_MAX, AccessFileError, AccessFileKind, AccessFiles, AccessTexts};
pub use policy::{AccessDecision, AccessPolicy, Caller, WriteOrigin};
pub use route_class::{OTHER_ROUTE, RouteClass};
pub use token::{SecretToken, TOKEN_BYTES_MIN, TokenError, TokenRole, TokenTable};

use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::ServerConfig;

/// The access rules of one or more HTTP ports. The default allows everything, without TLS. Clones
/// share the rules, so that [`replace`](HttpAccess::replace) changes them for all ports.
#[derive(Clone, Debug, Default)]
pub struct HttpAccess {
    rules: Arc<RwLock<Arc<AccessRules>>>,
    socket: Option<Arc<Path>>,
}

/// The rules that all clones of an [`HttpAccess`] share.
#[derive(Clone, Debug, Default)]
pub struct AccessRules {
    pub policy: AccessPolicy,
    /// The certificate of the port, and whose certificates it accepts; `None` for plain HTTP.
    pub tls: Option<Arc<ServerConfig>>,
}

impl HttpAccess {
    /// Access by these rules.
    pub fn new(rules: AccessRules) -> HttpAccess {
        HttpAccess { rules: Arc::new(RwLock::new(Arc::new(rules))), socket: None }
    }

    /// The same access, for a server that also listens on a Unix socket at `path`. On it,
    /// everything is allowed: only processes of the server's user can connect.
    #[must_use]
    pub fn with_socket(self, path: Option<&Path>) -> HttpAccess {
        HttpAccess { socket: path.map(Arc::from), ..self }
    }

    /// The path of the Unix socket on which everything is allowed.
    pub fn socket(&self) -> Option<&Path> {
        self.socket.as_deref()
    }

    /// The rules that apply now.
    pub fn rules(&self) -> Arc<AccessRules> {
        self.rules.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Applies other rules to the requests and connections that follow. Whether the port speaks TLS
    /// must not change.
    pub fn replace(&self, rules: AccessRules) {
        *self.rules.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(rules);
    }

    /// The scheme of the port's URLs.
    pub fn scheme(&self) -> &'static str {
        if self.rules().tls.is_some() { "https" } else { "http" }
    }
}
