//! How SGLang and other Python programs load mcctl's client, the package `mcctl-mooncake-client`.
//! `tests/python` tests the Python side.

/// The commands that install the client, in a clone of mcctl.
pub const INSTALL: &str = "packaging/client-wheel && pip install target/packages/mcctl_mooncake_client-*.whl";

/// The module that starts a program in which `mooncake.store` is mcctl's client.
pub const LAUNCHER: &str = "mcctl_mooncake.run";

/// The module and the class for `--hicache-storage-backend dynamic`.
pub const BACKEND_MODULE: &str = "mcctl_mooncake.sglang";
pub const BACKEND_CLASS: &str = "McctlHiCacheStorage";

/// The keys of SGLang's extra config that select a dynamic backend. Other backends ignore them.
pub const DYNAMIC_KEYS: &[&str] = &["backend_name", "module_path", "class_name", "interface_v1", "allocator"];

/// The extra config that selects mcctl's client as a dynamic backend. `more` is appended to the
/// members of the JSON object.
pub fn dynamic_config(more: &str) -> String {
    format!(
        "{{\"backend_name\":\"mcctl\",\"module_path\":\"{BACKEND_MODULE}\",\"class_name\":\"{BACKEND_CLASS}\",\"interface_v1\":1{more}}}"
    )
}
