//! What commands show to protected HTTP ports: flags and environment variables.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::commands::cli::error::Failure;
use crate::commands::cli::settings::read_text;
use crate::engine::http::access::ACCESS_FILE_BYTES_MAX;
use crate::engine::http::tls::{ClientConfig, PemIdentity, client_config};
use crate::engine::http::{HttpCredentials, SecretToken};

/// The variable that contains a token. Its value is never printed.
pub const TOKEN: &str = "MCCTL_TOKEN";
const CA: &str = "MCCTL_CA";
const CLIENT_CERT: &str = "MCCTL_CLIENT_CERT";
const CLIENT_KEY: &str = "MCCTL_CLIENT_KEY";

/// Flags for HTTP ports that require a token or TLS.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct CredentialArgs {
    /// File with the token for HTTP ports that require one [environment: MCCTL_TOKEN, which
    /// contains the token itself]
    ///
    /// The file contains only the token, or is the --token-file of the server. From that, the first
    /// token with the role write is used, or the first token.
    #[arg(long, value_name = "PATH")]
    pub token_file: Option<PathBuf>,
    /// Use HTTPS for the HTTP ports, and trust the CA certificates in this PEM file [environment:
    /// MCCTL_CA]
    #[arg(long, value_name = "PATH")]
    pub ca: Option<PathBuf>,
    /// Client certificate for HTTPS, in PEM [environment: MCCTL_CLIENT_CERT]
    #[arg(long, value_name = "PATH")]
    pub client_cert: Option<PathBuf>,
    /// Key of the client certificate, in PEM [environment: MCCTL_CLIENT_KEY]
    #[arg(long, value_name = "PATH")]
    pub client_key: Option<PathBuf>,
}

impl CredentialArgs {
    /// The credentials that these flags and the environment select.
    ///
    /// # Errors
    /// A file cannot be read or is invalid, or a value that belongs to another one is missing.
    pub fn credentials(&self) -> Result<HttpCredentials, Failure> {
        self.credentials_with(|name| std::env::var(name).ok().filter(|text| !text.is_empty()))
    }

    /// Like [`credentials`](CredentialArgs::credentials), with the environment `env`.
    ///
    /// # Errors
    /// The same as [`credentials`](CredentialArgs::credentials).
    pub fn credentials_with(&self, env: impl Fn(&str) -> Option<String>) -> Result<HttpCredentials, Failure> {
        let token = match (&self.token_file, env(TOKEN)) {
            (Some(path), _) => {
                let text = read_text(path, "--token-file", ACCESS_FILE_BYTES_MAX)?;
                let token = SecretToken::from_file(&text);
                Some(token.map_err(|error| invalid_token("--token-file", error.to_string()))?)
            }
            (None, Some(text)) => {
                Some(SecretToken::new(&text).map_err(|error| invalid_token(TOKEN, error.to_string()))?)
            }
            (None, None) => None,
        };
        let path = |flag: &Option<PathBuf>, spelled: &'static str, name: &'static str| match flag {
            Some(path) => Some((path.clone(), spelled)),
            None => env(name).map(|path| (PathBuf::from(path), name)),
        };
        let ca = path(&self.ca, "--ca", CA);
        let certificate = path(&self.client_cert, "--client-cert", CLIENT_CERT);
        let key = path(&self.client_key, "--client-key", CLIENT_KEY);
        Ok(HttpCredentials { token, tls: tls(ca, certificate, key)?.map(Arc::new) })
    }
}

/// A file and the flag or variable that names it.
type NamedFile = (PathBuf, &'static str);

fn tls(
    ca: Option<NamedFile>,
    certificate: Option<NamedFile>,
    key: Option<NamedFile>,
) -> Result<Option<ClientConfig>, Failure> {
    let read = |(path, origin): &NamedFile| read_text(path, origin, ACCESS_FILE_BYTES_MAX);
    let identity = match (&certificate, &key) {
        (Some(certificate), Some(key)) => Some((read(certificate)?, read(key)?)),
        (None, None) => None,
        (Some((_, set)), None) => return Err(half_set(set, "--client-key or MCCTL_CLIENT_KEY")),
        (None, Some((_, set))) => return Err(half_set(set, "--client-cert or MCCTL_CLIENT_CERT")),
    };
    let Some(ca) = &ca else {
        return match certificate {
            Some((_, set)) => Err(half_set(set, "--ca or MCCTL_CA")),
            None => Ok(None),
        };
    };
    let pem = identity
        .as_ref()
        .map(|(certificate, key)| PemIdentity { certificates: certificate.as_bytes(), key: key.as_bytes() });
    let config = client_config(read(ca)?.as_bytes(), pem).map_err(|error| {
        let files: Vec<String> =
            [Some(ca), certificate.as_ref(), key.as_ref()].into_iter().flatten().map(named).collect();
        Failure::usage("the certificates for HTTPS are not valid")
            .tried(files.join(", "))
            .found(error.to_string())
            .next("use PEM files: the CA of the server, and a client certificate with its key")
    })?;
    Ok(Some(config))
}

fn named((path, origin): &NamedFile) -> String {
    format!("{origin} {}", Path::display(path))
}

fn half_set(set: &str, missing: &str) -> Failure {
    Failure::usage(format!("{set} needs {missing}")).next(format!("set {missing}, too, or remove {set}"))
}

fn invalid_token(origin: &str, found: String) -> Failure {
    Failure::usage(format!("{origin} does not contain a valid token"))
        .found(found)
        .next("use the token from the server's --token-file; openssl rand -hex 32 makes one")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::cli::error::Exit;

    fn credentials(args: &CredentialArgs, variables: &[(&str, &str)]) -> Result<HttpCredentials, Failure> {
        args.credentials_with(|name| variables.iter().find(|(n, _)| *n == name).map(|(_, text)| (*text).to_owned()))
    }

    #[test]
    fn a_token_file_overrides_the_variable() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("token");
        std::fs::write(&path, "file-0123456789abcdef\n").expect("written");
        let token = |args: &CredentialArgs, variables: &[(&str, &str)]| {
            credentials(args, variables).map(|found| found.token.map(|token| token.reveal().to_owned()))
        };
        let none = CredentialArgs::default();
        let file = CredentialArgs { token_file: Some(path), ..Default::default() };
        let variable = [(TOKEN, "variable-0123456789abcdef")];
        assert_eq!(token(&none, &[]), Ok(None));
        assert_eq!(token(&none, &variable), Ok(Some("variable-0123456789abcdef".to_owned())));
        assert_eq!(token(&file, &variable), Ok(Some("file-0123456789abcdef".to_owned())));
    }

    #[test]
    fn an_error_does_not_contain_the_token() {
        let failure =
            credentials(&CredentialArgs::default(), &[(TOKEN, "se cret-0123456789abcdef")]).expect_err("a space");
        assert!(failure.exit == Exit::Usage && !failure.line().contains("cret"), "{failure}");
    }

    #[test]
    fn certificates_that_belong_together_are_required() {
        for variables in [
            &[(CLIENT_CERT, "/c")][..],
            &[(CLIENT_KEY, "/k"), (CA, "/c")],
            &[(CA, "/does/not/exist")],
            &[(CA, "/dev/null")],
        ] {
            let failure = credentials(&CredentialArgs::default(), variables).expect_err("incomplete or invalid");
            assert_eq!(failure.exit, Exit::Usage, "{variables:?}: {failure}");
        }
    }
}
