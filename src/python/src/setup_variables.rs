//! The environment variables of `setup`, apart from those of the transfer engine.

use std::time::Duration;

use mcctl_transfer::VariableReader;

/// Maximum number of seconds in a variable.
const SECONDS_MAX: u64 = 86_400;
/// The default of the master's `--put_start_release_timeout_sec`, in seconds.
const RELEASE_SECONDS: u64 = 600;

/// The settings in the environment.
#[derive(Debug, PartialEq)]
pub(crate) struct SetupVariables {
    /// Maximum time to wait for etcd, the metadata service and the master. Upstream's client tries
    /// for about 90 s.
    pub wait: Duration,
    /// Time limit for the transfers of a call.
    pub transfer_limit: Duration,
    /// Time limit for a request to the master.
    pub call_limit: Duration,
    /// The cluster of masters that share an etcd.
    pub cluster: Option<String>,
    pub has_metrics: bool,
    /// The first port to try for the client's HTTP server.
    pub http_port: Option<u16>,
}

impl SetupVariables {
    /// Reads the variables through `lookup`. Also returns a warning for each invalid value.
    pub(crate) fn read(lookup: &dyn Fn(&str) -> Option<String>) -> (SetupVariables, Vec<String>) {
        let lookup = |name: &str| lookup(name).filter(|text| !text.is_empty());
        let mut read = VariableReader::new(&lookup);
        let wait = read.seconds("MCCTL_SETUP_WAIT_SECONDS", 0..=SECONDS_MAX, Duration::from_secs(60));
        let transfer_limit = read.seconds("MC_TRANSFER_TIMEOUT", 1..=SECONDS_MAX, Duration::from_secs(30));
        if transfer_limit >= Duration::from_secs(RELEASE_SECONDS) {
            read.warnings.push(format!(
                "MC_TRANSFER_TIMEOUT is {} s: it must be shorter than the master's --put_start_release_timeout_sec ({RELEASE_SECONDS} by \
                 default), after which the memory of an unfinished put is used for other objects",
                transfer_limit.as_secs()
            ));
        }
        let call_limit = Duration::from_millis(read.number(&["MC_RPC_TIMEOUT_MS"], 1..=SECONDS_MAX * 1000, 10_000));
        let has_metrics = read.switch("MC_STORE_CLIENT_METRIC", true);
        let http_port = match read.number(&["MCCTL_CLIENT_HTTP_PORT"], 0..=65_535, 0) {
            0 => None,
            port => Some(port),
        };
        let cluster = lookup("MC_STORE_CLUSTER_ID");
        (SetupVariables { wait, transfer_limit, call_limit, cluster, has_metrics, http_port }, read.warnings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> (SetupVariables, Vec<String>) {
        SetupVariables::read(&|name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn valid_values_replace_the_defaults() {
        let (variables, warnings) = read(&[
            ("MCCTL_SETUP_WAIT_SECONDS", "3"),
            ("MC_TRANSFER_TIMEOUT", "5"),
            ("MC_RPC_TIMEOUT_MS", "250"),
            ("MC_STORE_CLUSTER_ID", "c"),
            ("MC_STORE_CLIENT_METRIC", "0"),
            ("MCCTL_CLIENT_HTTP_PORT", "9300"),
        ]);
        let expected = SetupVariables {
            wait: Duration::from_secs(3),
            transfer_limit: Duration::from_secs(5),
            call_limit: Duration::from_millis(250),
            cluster: Some("c".to_owned()),
            has_metrics: false,
            http_port: Some(9300),
        };
        assert_eq!((variables, warnings.len()), (expected, 0));
    }

    #[test]
    fn an_invalid_value_causes_a_warning_and_the_default_applies() {
        let names = ["MCCTL_SETUP_WAIT_SECONDS", "MC_TRANSFER_TIMEOUT", "MC_RPC_TIMEOUT_MS", "MCCTL_CLIENT_HTTP_PORT"];
        for name in names {
            for value in ["x", "-1", "1.5", "99999999999"] {
                let (variables, warnings) = read(&[(name, value)]);
                assert_eq!((variables, warnings.len()), (read(&[]).0, 1), "{name}={value}");
                assert!(warnings[0].starts_with(name), "{warnings:?}");
            }
        }
        assert_eq!(read(&names.map(|name| (name, ""))), read(&[]));
    }

    #[test]
    fn a_transfer_timeout_beyond_the_release_time_causes_a_warning() {
        for (seconds, warned) in [("599", false), ("600", true)] {
            assert_eq!(!read(&[("MC_TRANSFER_TIMEOUT", seconds)]).1.is_empty(), warned, "{seconds}");
        }
    }
}
