//! The flags that decide which clients may do what. All services have them.

use crate::commands::cli::flags::{FlagSpec, ValueKind, flag};

/// The group's heading in `--help`.
pub(crate) const HEADING: &str = "Access";

/// The flags of the group.
pub(crate) const ACCESS: &[FlagSpec] = &[
    flag(
        "bind",
        ValueKind::Text,
        "",
        "IP address that all ports of this process listen on, unless a flag sets the address of a port; if empty, the default of each port",
    ).value("ADDRESS"),
    flag(
        "allow_cidr",
        ValueKind::Text,
        "",
        "Networks whose hosts may connect to any port of this process, separated by commas, for example 10.0.0.0/8,127.0.0.1; other \
         connections are closed at once. If empty, all hosts. Loopback addresses must be in the list, too",
    ).value("NETWORKS"),
    flag(
        "token_file",
        ValueKind::Text,
        "",
        "File with the tokens for the HTTP ports, one 'read TOKEN' or 'write TOKEN' per line; if empty, no token is needed. A request that \
         may change something needs a token with the role write. The file is read again when it changes",
    ).value("FILE"),
    flag(
        "tls_cert",
        ValueKind::Text,
        "",
        "PEM file with the certificate of the HTTP ports, which then accept only HTTPS. The file is read again when it changes",
    ).value("FILE"),
    flag("tls_key", ValueKind::Text, "", "PEM file with the key of --tls-cert").value("FILE"),
    flag(
        "client_ca",
        ValueKind::Text,
        "",
        "PEM file with the CAs of client certificates; the HTTP ports then need one (mTLS), and a token if --token-file is set, too",
    ).value("FILE"),
    flag(
        "http_socket",
        ValueKind::Text,
        "",
        "Also serve HTTP on a Unix socket at this path. Only the user of this process can connect; no token is needed",
    ).value("PATH"),
    flag(
        "writes_from",
        ValueKind::Word(&["any", "loopback", "socket"]),
        "any",
        "From where HTTP requests that may change something are accepted: any allowed address, loopback addresses and --http-socket, or only \
         --http-socket",
    ),
    flag(
        "protect_metrics",
        ValueKind::Bool,
        "false",
        "Also require the token or the client certificate for /health, /ready and /metrics",
    ),
];
