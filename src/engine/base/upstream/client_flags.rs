//! The flags of `mooncake_client`, the standalone client, without those of its libraries
//! (`library_flags.rs`).

use crate::upstream::flags::FlagKind::{Int32, Port, Size, Switch, Text, Uint64};
use crate::upstream::flags::{UpstreamFlag, flag};

/// All flags, sorted. The key of a flag is the setting of a store service (`config_keys.rs`) with
/// the same meaning.
#[rustfmt::skip]
pub const CLIENT_FLAGS: &[UpstreamFlag] = &[
    flag("device_names", Text, "").key("device_name"),
    flag("enable_http_server", Switch, "false").key("enable_client_http_server"),
    flag("enable_offload", Switch, "false").key("enable_ssd_offload"),
    flag("global_segment_size", Size, "4 GB"),
    flag("host", Text, "0.0.0.0").key("local_hostname"),
    flag("http_port", Port, "9300").key("client_http_port"),
    flag("local_buffer_size", Size, "0"),
    flag("master_server_address", Text, "127.0.0.1:50051"),
    flag("metadata_server", Text, "http://127.0.0.1:8080/metadata"),
    flag("mmap_arena_pool_size", Uint64, "8589934592").not_a_key(),
    flag("port", Port, "50052").not_a_key(),
    flag("protocol", Text, "tcp"),
    flag("start_offload_rpc_server", Switch, "true").not_a_key(),
    flag("tenant_id", Text, "default"),
    flag("threads", Int32, "1").not_a_key(),
    flag("use_mmap_arena_allocator", Switch, "false").not_a_key(),
];

/// The flag that stands for the setting `key`, if there is one.
pub fn client_flag_for(key: &str) -> Option<&'static UpstreamFlag> {
    CLIENT_FLAGS.iter().find(|flag| flag.key == Some(key))
}
