//! How commands reach etcd: the servers from an address, and certificates and login from etcdctl's
//! environment variables.

use std::path::Path;
use std::time::Duration;

use crate::commands::cli::error::Failure;
use crate::commands::cli::settings::read_text;
use crate::engine::etcd::{EtcdClient, EtcdOptions, EtcdUser};
use crate::engine::http::tls::{PemIdentity, client_config};

/// Maximum size of a file with certificates or a key, in bytes.
const PEM_BYTES_MAX: u64 = 1 << 20;

const CACERT: &str = "ETCDCTL_CACERT";
const CERT: &str = "ETCDCTL_CERT";
const KEY: &str = "ETCDCTL_KEY";
const USER: &str = "ETCDCTL_USER";
const PASSWORD: &str = "ETCDCTL_PASSWORD";

/// A client of these servers, with the certificates and the login that the environment names.
///
/// # Errors
/// A file cannot be read or is invalid, variables contradict each other, or TLS cannot be set up on
/// this host.
pub fn client(servers: EtcdOptions) -> Result<EtcdClient, Failure> {
    EtcdClient::new(with_environment(servers)?)
        .map_err(|error| Failure::host("cannot create a client of etcd").found(error.to_string()))
}

/// The servers with the certificates and the login that the environment names.
///
/// # Errors
/// A file cannot be read or is invalid, or variables contradict each other.
pub fn with_environment(servers: EtcdOptions) -> Result<EtcdOptions, Failure> {
    with_access(servers, |name| std::env::var(name).ok().filter(|text| !text.is_empty()))
}

/// Parses a list of servers. `origin` is its flag and value.
///
/// # Errors
/// The list is not valid.
pub fn servers(list: &str, origin: &str, timeout: Duration) -> Result<EtcdOptions, Failure> {
    EtcdOptions::parse(list, timeout)
        .map_err(|error| Failure::usage(format!("{origin} is not a valid address")).found(error.to_string()))
}

fn with_access(mut options: EtcdOptions, env: impl Fn(&str) -> Option<String>) -> Result<EtcdOptions, Failure> {
    options.user = user(&env)?;
    let authority = env(CACERT);
    let identity = match (env(CERT), env(KEY)) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        (Some(_), None) => return Err(half_set(CERT, KEY)),
        (None, Some(_)) => return Err(half_set(KEY, CERT)),
    };
    let Some(authority) = authority else {
        return match identity {
            None => Ok(options),
            Some(_) => Err(half_set(CERT, CACERT)),
        };
    };
    let read = |path: &str, name: &str| read_text(Path::new(path), name, PEM_BYTES_MAX);
    let roots = read(&authority, CACERT)?;
    let identity = match &identity {
        Some((certificate, key)) => Some((read(certificate, CERT)?, read(key, KEY)?)),
        None => None,
    };
    let pair = identity
        .as_ref()
        .map(|(certificate, key)| PemIdentity { certificates: certificate.as_bytes(), key: key.as_bytes() });
    let tls = client_config(roots.as_bytes(), pair).map_err(|error| {
        Failure::usage("the certificates for etcd are not valid")
            .tried(format!("{CACERT}={authority}, {CERT} and {KEY}"))
            .found(error.to_string())
            .next("set these variables to PEM files, as for etcdctl")
    })?;
    options.tls = Some(Box::new(tls));
    Ok(options)
}

fn half_set(set: &str, missing: &str) -> Failure {
    Failure::usage(format!("{set} is set, and {missing} is not")).next(format!("set {missing}, too, or unset {set}"))
}

/// The user from `ETCDCTL_USER`, which is `NAME:PASSWORD`, or `NAME` with `ETCDCTL_PASSWORD`.
fn user(env: &impl Fn(&str) -> Option<String>) -> Result<Option<EtcdUser>, Failure> {
    let Some(user) = env(USER) else { return Ok(None) };
    let (name, password) = match (env(PASSWORD), user.split_once(':')) {
        (Some(password), _) => (user.as_str(), password),
        (None, Some((name, password))) => (name, password.to_owned()),
        (None, None) => {
            return Err(half_set(USER, PASSWORD).next(format!("set {PASSWORD}, or {USER}=NAME:PASSWORD")));
        }
    };
    Ok(Some(EtcdUser { name: name.to_owned(), password }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::cli::error::Exit;

    fn access(variables: &[(&str, &str)]) -> Result<EtcdOptions, Failure> {
        let lookup = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, text)| (*text).to_owned());
        with_access(EtcdOptions::parse("a:1", Duration::from_secs(1)).expect("an address"), lookup)
    }

    #[test]
    fn a_user_has_a_password_in_the_same_or_in_another_variable() {
        let user = |variables: &[(&str, &str)]| access(variables).map(|options| options.user);
        let me = |password: &str| Some(EtcdUser { name: "me".to_owned(), password: password.to_owned() });
        assert_eq!(user(&[]).expect("none is needed"), None);
        assert_eq!(user(&[(USER, "me:a:b")]).expect("a user"), me("a:b"));
        assert_eq!(user(&[(USER, "me"), (PASSWORD, "x")]).expect("a user"), me("x"));
        assert_eq!(user(&[(USER, "me")]).expect_err("no password").exit, Exit::Usage);
    }

    #[test]
    fn certificates_and_keys_belong_together_and_are_checked() {
        for variables in [
            &[(CERT, "/c")][..],
            &[(KEY, "/k")],
            &[(CERT, "/c"), (KEY, "/k")],
            &[(CACERT, "/does/not/exist")],
            &[(CACERT, "/dev/null")],
        ] {
            let failure = access(variables).expect_err("incomplete or invalid");
            assert_eq!(failure.exit, Exit::Usage, "{variables:?}: {failure}");
        }
    }
}
