//! The files with a service's tokens and certificates: from flags to the engine's type, and the
//! messages for its errors.

use std::path::PathBuf;

use crate::commands::cli::error::Failure;
use crate::commands::cli::settings::Settings;
use crate::engine::http::access::{AccessFileError, AccessFiles, WriteOrigin};

/// The files that the access flags name.
///
/// # Errors
/// A flag needs another one that is not set.
pub fn of(settings: &Settings) -> Result<AccessFiles, Failure> {
    let path = |name: &str| Some(settings.text(name)).filter(|text| !text.is_empty()).map(PathBuf::from);
    let tls = match (path("tls_cert"), path("tls_key")) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        (Some(_), None) => return Err(needs(settings, "tls_cert", "--tls-key")),
        (None, Some(_)) => return Err(needs(settings, "tls_key", "--tls-cert")),
    };
    let writes_from = match settings.text("writes_from") {
        "socket" if path("http_socket").is_none() => return Err(needs(settings, "writes_from", "--http-socket")),
        "socket" => WriteOrigin::Socket,
        "loopback" => WriteOrigin::Loopback,
        _ => WriteOrigin::Any,
    };
    let files = AccessFiles {
        tokens: path("token_file"),
        client_ca: path("client_ca"),
        writes_from,
        protect_metrics: settings.bool("protect_metrics"),
        tls,
    };
    if files.client_ca.is_some() && files.tls.is_none() {
        return Err(needs(settings, "client_ca", "--tls-cert and --tls-key"));
    }
    if files.protect_metrics && !files.restrict() {
        return Err(needs(settings, "protect_metrics", "--token-file or --client-ca"));
    }
    Ok(files)
}

/// The message for files that cannot be used.
pub fn failure(error: &AccessFileError) -> Failure {
    match error {
        AccessFileError::NotAFile { .. } => {
            Failure::usage(error.to_string()).next("use a regular file, which the service can read again")
        }
        AccessFileError::Read { kind, path, source } => Failure::usage(format!("cannot read {}", path.display()))
            .tried(format!("open the file specified by {kind}"))
            .found(source.to_string())
            .next("pass the path of a readable text file"),
        AccessFileError::TooLarge { .. } => {
            Failure::usage(error.to_string()).next("pass the path of a readable text file")
        }
        AccessFileError::Tokens { path, source } => Failure::usage("--token-file is not valid")
            .tried(path.display().to_string())
            .found(source.to_string())
            .next("write one 'read TOKEN' or 'write TOKEN' per line; openssl rand -hex 32 makes a token"),
        AccessFileError::Tls { paths, source } => {
            let paths: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
            Failure::usage("--tls-cert, --tls-key or --client-ca is not valid")
                .tried(paths.join(", "))
                .found(source.to_string())
                .next("use PEM files: a certificate with its key, and the CAs of the clients")
        }
    }
}

fn needs(settings: &Settings, flag: &str, missing: &str) -> Failure {
    Failure::usage(format!("{} needs {missing}", settings.describe(flag))).next(format!("set {missing}"))
}
