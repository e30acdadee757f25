//! Record keys in the metadata service.
//!
//! In Mooncake 0.3.13 (and 0.3.6, which has no cluster id), a key is `mooncake/`, then the cluster
//! id and a `/` if an id is set, then `ram/<segment>` or `rpc_meta/<server>`. If the segment name
//! contains `/`, the key has no `ram/`.

/// One cluster's record keys.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeySpace {
    prefix: String,
}

impl Default for KeySpace {
    fn default() -> KeySpace {
        KeySpace::new(None)
    }
}

impl KeySpace {
    /// Creates the key space for `cluster_id`, the value of `MC_METADATA_CLUSTER_ID`. Without an
    /// id, the prefix is `mooncake/`.
    pub fn new(cluster_id: Option<&str>) -> KeySpace {
        let mut prefix = String::from("mooncake/");
        if let Some(id) = cluster_id.filter(|id| !id.is_empty()) {
            prefix.push_str(id);
            if !id.ends_with('/') {
                prefix.push('/');
            }
        }
        KeySpace { prefix }
    }

    /// Returns the key of the segment descriptor for `segment`.
    pub fn ram_key(&self, segment: &str) -> String {
        if segment.contains('/') {
            format!("{}{segment}", self.prefix)
        } else {
            format!("{}ram/{segment}", self.prefix)
        }
    }

    /// Returns the key of the record that contains the address of `server`'s handshake port.
    pub fn rpc_meta_key(&self, server: &str) -> String {
        format!("{}rpc_meta/{server}", self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcctl_net::http::escape;

    #[test]
    fn keys_match_those_requested_by_a_real_engine() {
        let plain = KeySpace::default();
        assert_eq!(plain.ram_key("tgt:12345"), "mooncake/ram/tgt:12345");
        assert_eq!(plain.rpc_meta_key("tgt:12345"), "mooncake/rpc_meta/tgt:12345");
        assert_eq!(escape(&plain.ram_key("tgt:12345")), "mooncake%2Fram%2Ftgt%3A12345");
    }

    #[test]
    fn a_cluster_id_is_a_path_segment() {
        assert_eq!(KeySpace::new(Some("blue")).ram_key("a"), "mooncake/blue/ram/a");
        assert_eq!(KeySpace::new(Some("blue/")).rpc_meta_key("a"), "mooncake/blue/rpc_meta/a");
        assert_eq!(KeySpace::new(Some("")), KeySpace::default());
    }

    #[test]
    fn a_segment_name_with_a_slash_has_no_ram_prefix() {
        assert_eq!(KeySpace::default().ram_key("nvmeof/x"), "mooncake/nvmeof/x");
    }
}
