//! What to paste so that others use a store: environment and flags, exact.

use crate::commands::admin;
use crate::commands::target::RPC_PORT;
use crate::engine::base::HostPort;

/// Where a store is.
#[derive(Clone, Debug)]
pub struct Place {
    /// The master's RPC.
    pub master: HostPort,
    /// Its admin HTTP.
    pub admin: HostPort,
    /// The metadata service's URL, or `P2PHANDSHAKE`.
    pub metadata: String,
    /// What bytes are moved over.
    pub protocol: &'static str,
    /// RDMA devices, separated by ','; empty = all.
    pub devices: String,
    /// The name that a client on this host takes.
    pub client_host: String,
}

/// The environment of a Mooncake client, in the order of importance. SGLang and the store service read the same names.
pub fn environment(place: &Place) -> Vec<(&'static str, String)> {
    let mut lines = vec![
        ("MOONCAKE_MASTER", place.master.to_string()),
        ("MOONCAKE_TE_META_DATA_SERVER", place.metadata.clone()),
        ("MOONCAKE_PROTOCOL", place.protocol.to_owned()),
        // The node of this store lends the memory; a client that lends none loses nothing when it ends.
        ("MOONCAKE_GLOBAL_SEGMENT_SIZE", "0".to_owned()),
        ("MOONCAKE_LOCAL_HOSTNAME", place.client_host.clone()),
        ("MOONCAKE_MASTER_METRICS_PORT", place.admin.port.to_string()),
    ];
    if place.protocol == "rdma" && !place.devices.is_empty() {
        lines.insert(3, ("MOONCAKE_DEVICE", place.devices.clone()));
    }
    lines
}

/// Flags by which a client of this host finds the store: none where it has the default addresses. The metadata mode is found.
pub fn link(place: &Place) -> String {
    let is_here = place.master.host == "127.0.0.1" && place.admin.host == "127.0.0.1";
    match (is_here, place.master.port, place.admin.port) {
        (true, RPC_PORT, admin::PORT) => String::new(),
        (_, _, admin::PORT) => format!(" --master {}", place.master),
        _ => format!(" --master {} --admin {}", place.master, place.admin),
    }
}

/// The flags with which SGLang 0.5.23 uses a Mooncake store as the third tier of its cache. Layout and I/O backend are the pair that
/// needs no GPU kernels; with a GPU `page_first` and `kernel` do, too.
pub const SGLANG_FLAGS: &[&str] = &[
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

/// The flags, one with its value a line.
pub fn flag_lines() -> String {
    let mut text = String::new();
    for word in SGLANG_FLAGS {
        let before = match (text.is_empty(), word.starts_with("--")) {
            (true, _) => "",
            (_, true) => " \\\n  ",
            (_, false) => " ",
        };
        text.push_str(before);
        text.push_str(word);
    }
    text
}

/// As lines of a shell.
pub fn shell(environment: &[(&'static str, String)]) -> String {
    environment.iter().map(|(name, value)| format!("export {name}={}\n", quoted(value))).collect()
}

/// `text` as one word of a shell.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+,=".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_is_one_that_a_shell_takes() {
        let place = Place {
            master: HostPort::new("127.0.0.1", 50051),
            admin: HostPort::new("127.0.0.1", 9003),
            metadata: "http://127.0.0.1:8080/metadata".to_owned(),
            protocol: "tcp",
            devices: String::new(),
            client_host: "127.0.0.1".to_owned(),
        };
        insta::assert_snapshot!(shell(&environment(&place)), @r"
        export MOONCAKE_MASTER=127.0.0.1:50051
        export MOONCAKE_TE_META_DATA_SERVER=http://127.0.0.1:8080/metadata
        export MOONCAKE_PROTOCOL=tcp
        export MOONCAKE_GLOBAL_SEGMENT_SIZE=0
        export MOONCAKE_LOCAL_HOSTNAME=127.0.0.1
        export MOONCAKE_MASTER_METRICS_PORT=9003
        ");
        let rdma = Place { protocol: "rdma", devices: "rxe0,rxe1".to_owned(), ..place };
        let lines = shell(&environment(&rdma));
        assert!(lines.contains("MOONCAKE_PROTOCOL=rdma\nexport MOONCAKE_DEVICE=rxe0,rxe1\n"), "{lines}");
    }

    #[test]
    fn a_store_at_the_default_addresses_needs_no_flags() {
        let place = |rpc: u16, admin: u16| Place {
            master: HostPort::new("127.0.0.1", rpc),
            admin: HostPort::new("127.0.0.1", admin),
            metadata: "http://127.0.0.1:8081/metadata".to_owned(),
            protocol: "tcp",
            devices: String::new(),
            client_host: "127.0.0.1".to_owned(),
        };
        assert_eq!(link(&place(50051, 9003)), "");
        assert_eq!(link(&place(50052, 9003)), " --master 127.0.0.1:50052");
        assert_eq!(link(&place(50051, 9004)), " --master 127.0.0.1:50051 --admin 127.0.0.1:9004");
    }

    #[test]
    fn a_value_that_a_shell_would_read_otherwise_is_quoted() {
        assert_eq!(quoted("[::1]:50051"), "'[::1]:50051'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }
}
