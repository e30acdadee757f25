//! Environment variables and flags for clients of a store, ready to paste.

use crate::commands::target::master_target::RPC_PORT;
use crate::engine::admin;
use crate::engine::base::HostPort;
use crate::engine::deploy::render::shell_quoted;
use crate::engine::upstream::python_client;

/// A store's addresses and the settings for its clients.
#[derive(Clone, Debug)]
pub(super) struct StoreAddresses {
    pub master: HostPort,
    pub admin: HostPort,
    /// Metadata service URL, or `P2PHANDSHAKE`.
    pub metadata: String,
    /// `tcp` or `rdma`.
    pub protocol: &'static str,
    /// RDMA devices, comma-separated; empty means all.
    pub devices: String,
    /// Host name for a client on this host.
    pub client_host: String,
}

/// The environment for a Mooncake client, most important variables first. SGLang and the store
/// service use the same names.
pub(super) fn environment(addresses: &StoreAddresses) -> Vec<(&'static str, String)> {
    let mut lines = vec![
        ("MOONCAKE_MASTER", addresses.master.to_string()),
        ("MOONCAKE_TE_META_DATA_SERVER", addresses.metadata.clone()),
        ("MOONCAKE_PROTOCOL", addresses.protocol.to_owned()),
        // This store's node contributes the memory. A pure client contributes none, so no objects
        // are lost when the client stops.
        ("MOONCAKE_GLOBAL_SEGMENT_SIZE", "0".to_owned()),
        ("MOONCAKE_LOCAL_HOSTNAME", addresses.client_host.clone()),
        ("MOONCAKE_MASTER_METRICS_PORT", addresses.admin.port.to_string()),
    ];
    if addresses.protocol == "rdma" && !addresses.devices.is_empty() {
        lines.insert(3, ("MOONCAKE_DEVICE", addresses.devices.clone()));
    }
    lines
}

/// The flags for connecting to the store from this host; empty for the default addresses. The
/// client discovers the metadata mode.
pub(super) fn connect_flags(addresses: &StoreAddresses) -> String {
    let is_local = addresses.master.host == "127.0.0.1" && addresses.admin.host == "127.0.0.1";
    match (is_local, addresses.master.port, addresses.admin.port) {
        (true, RPC_PORT, admin::PORT) => String::new(),
        (_, _, admin::PORT) => format!(" --master {}", addresses.master),
        _ => format!(" --master {} --admin {}", addresses.master, addresses.admin),
    }
}

/// The SGLang 0.5.23 flags for using a Mooncake store as the L3 cache. This layout and I/O backend
/// do not require GPU kernels. With a GPU, `page_first` and `kernel` also work.
pub(super) const SGLANG_FLAGS: &[&str] = &[
    "--enable-hierarchical-cache",
    "--hicache-ratio",
    "2",
    "--hicache-io-backend",
    "direct",
    "--hicache-mem-layout",
    "page_first_direct",
    "--hicache-storage-backend",
    "mooncake",
    "--hicache-storage-prefetch-policy",
    "wait_complete",
];

/// The flags that make SGLang load mcctl's client as a dynamic backend, in place of
/// `--hicache-storage-backend mooncake`.
pub(super) fn dynamic_flags() -> [String; 4] {
    [
        "--hicache-storage-backend".to_owned(),
        "dynamic".to_owned(),
        "--hicache-storage-backend-extra-config".to_owned(),
        python_client::dynamic_config(""),
    ]
}

/// The commands that start SGLang with this store.
pub(super) fn sglang_text(environment: &[(&'static str, String)]) -> String {
    format!(
        "# SGLang with this store as its L3 cache; mcctl serve store and other engines read the same variables\n{}\
         python -m sglang.launch_server --model-path MODEL {}\n\n",
        shell(environment),
        flag_lines()
    )
}

/// Commands that use the store, for another shell.
pub(super) fn try_text(program: &str, addresses: &StoreAddresses) -> String {
    let link = connect_flags(addresses);
    let protocol = if addresses.protocol == "rdma" { " --protocol rdma" } else { "" };
    format!(
        "# in another shell\n\
         {program} store put greeting --value hello{link}{protocol}\n\
         {program} store get greeting{link}{protocol}\n\
         {program} status{link}\n\n"
    )
}

/// The flags on lines of at most [`LINE_MAX`] characters, which the shell joins.
fn flag_lines() -> String {
    let mut lines = vec![String::new()];
    for flag in SGLANG_FLAGS.chunk_by(|_, next| !next.starts_with("--")) {
        let flag = flag.join(" ");
        match lines.last_mut() {
            Some(line) if line.len() + flag.len() < LINE_MAX => {
                line.push_str(if line.is_empty() { "" } else { " " });
                line.push_str(&flag);
            }
            _ => lines.push(flag),
        }
    }
    format!("\\\n  {}", lines.join(" \\\n  "))
}

/// Maximum length of a line of flags, so that it fits a terminal of 80 columns.
const LINE_MAX: usize = 74;

/// The environment as shell commands.
pub(super) fn shell(environment: &[(&'static str, String)]) -> String {
    environment.iter().map(|(name, value)| format!("export {name}={}\n", shell_quoted(value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_is_valid_shell() {
        let tcp = StoreAddresses {
            master: HostPort::new("127.0.0.1", 50051),
            admin: HostPort::new("127.0.0.1", 9003),
            metadata: "http://127.0.0.1:8080/metadata".to_owned(),
            protocol: "tcp",
            devices: String::new(),
            client_host: "127.0.0.1".to_owned(),
        };
        insta::assert_snapshot!(shell(&environment(&tcp)), @r"
        export MOONCAKE_MASTER=127.0.0.1:50051
        export MOONCAKE_TE_META_DATA_SERVER=http://127.0.0.1:8080/metadata
        export MOONCAKE_PROTOCOL=tcp
        export MOONCAKE_GLOBAL_SEGMENT_SIZE=0
        export MOONCAKE_LOCAL_HOSTNAME=127.0.0.1
        export MOONCAKE_MASTER_METRICS_PORT=9003
        ");
        let rdma = StoreAddresses { protocol: "rdma", devices: "rxe0,rxe1".to_owned(), ..tcp };
        let lines = shell(&environment(&rdma));
        assert!(lines.contains("MOONCAKE_PROTOCOL=rdma\nexport MOONCAKE_DEVICE=rxe0,rxe1\n"), "{lines}");
    }

    #[test]
    fn a_store_at_the_default_addresses_needs_no_flags() {
        let addresses = |rpc: u16, admin: u16| StoreAddresses {
            master: HostPort::new("127.0.0.1", rpc),
            admin: HostPort::new("127.0.0.1", admin),
            metadata: "http://127.0.0.1:8081/metadata".to_owned(),
            protocol: "tcp",
            devices: String::new(),
            client_host: "127.0.0.1".to_owned(),
        };
        assert_eq!(connect_flags(&addresses(50051, 9003)), "");
        assert_eq!(connect_flags(&addresses(50052, 9003)), " --master 127.0.0.1:50052");
        assert_eq!(connect_flags(&addresses(50051, 9004)), " --master 127.0.0.1:50051 --admin 127.0.0.1:9004");
    }

    #[test]
    fn flags_are_on_lines_that_fit_a_terminal() {
        let text = flag_lines();
        assert!(text.lines().all(|line| line.len() < 80), "{text}");
        let words: Vec<&str> = text.split_whitespace().filter(|word| *word != "\\").collect();
        assert_eq!(words, SGLANG_FLAGS);
    }

    #[test]
    fn shell_metacharacters_are_quoted() {
        assert_eq!(shell_quoted("[::1]:50051"), "'[::1]:50051'");
        assert_eq!(shell_quoted("it's"), r"'it'\''s'");
        assert_eq!(shell_quoted(""), "''");
    }
}
