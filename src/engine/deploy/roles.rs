//! Settings that follow from several sections: where the metadata service runs, and the settings of
//! prefill and decode servers, in place of the general ones.

use std::borrow::Cow;

use crate::{ComponentRole, DeploymentSpec, MetadataKind, PdServersSection, ServingMode};

impl DeploymentSpec {
    /// Whether the metadata service runs inside the masters.
    pub(crate) fn embeds_metadata(&self) -> bool {
        self.metadata.kind == MetadataKind::Http && self.metadata.url.is_empty()
    }

    /// Whether several masters have the records of one metadata service. Each of them serves
    /// requests.
    pub(crate) fn replicates_metadata(&self) -> bool {
        self.embeds_metadata() && self.master.ha.is_some()
    }

    /// The section of the prefill or decode servers. `None` for other roles and modes.
    pub fn servers_of(&self, role: ComponentRole) -> Option<&PdServersSection> {
        match (self.serving.mode, role) {
            (ServingMode::Pd, ComponentRole::Prefill) => Some(&self.serving.prefill),
            (ServingMode::Pd, ComponentRole::Decode) => Some(&self.serving.decode),
            _ => None,
        }
    }

    /// Whether the servers with `role` use the store. Decode servers receive the KV cache from
    /// prefill servers, and use the store only to keep what they generate.
    pub fn uses_store(&self, role: ComponentRole) -> bool {
        role.is_engine() && (role != ComponentRole::Decode || self.serving.decode.offload)
    }

    /// The deployment with the settings of the servers with `role` in place of the general ones.
    pub(crate) fn for_role(&self, role: ComponentRole) -> Cow<'_, DeploymentSpec> {
        let Some(servers) = self.servers_of(role) else { return Cow::Borrowed(self) };
        let mut spec = self.clone();
        let model = &mut spec.model;
        model.tp = servers.tp.unwrap_or(model.tp);
        model.pp = servers.pp.unwrap_or(model.pp);
        model.dp = servers.dp.unwrap_or(model.dp);
        model.dp_attention = servers.dp_attention.unwrap_or(model.dp_attention);
        if servers.hicache_size_gb.is_some() {
            model.hicache_size_gb = servers.hicache_size_gb;
            model.hicache_ratio = None;
        }
        model.extra_args.extend(servers.extra_args.iter().cloned());
        model.env.extend(servers.env.iter().map(|(name, value)| (name.clone(), value.clone())));
        if !servers.devices.is_empty() {
            spec.transfer.devices.clone_from(&servers.devices);
            spec.serving.ib_devices.clone_from(&servers.devices);
        }
        Cow::Owned(spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_a_role_replace_the_general_ones_only_for_it() {
        let mut spec = DeploymentSpec::default();
        spec.serving.mode = ServingMode::Pd;
        spec.model.tp = 4;
        spec.model.hicache_ratio = Some(2.0);
        spec.model.extra_args = vec!["--a".to_owned()];
        spec.model.env.insert("X".to_owned(), "1".to_owned());
        spec.serving.decode.tp = Some(8);
        spec.serving.decode.extra_args = vec!["--b".to_owned()];
        spec.serving.decode.env.insert("X".to_owned(), "2".to_owned());
        spec.serving.prefill.hicache_size_gb = Some(32);
        let prefill = spec.for_role(ComponentRole::Prefill);
        let decode = spec.for_role(ComponentRole::Decode);
        assert_eq!((prefill.model.tp, decode.model.tp), (4, 8));
        assert_eq!((prefill.model.hicache_size_gb, prefill.model.hicache_ratio), (Some(32), None));
        assert_eq!((decode.model.hicache_size_gb, decode.model.hicache_ratio), (None, Some(2.0)));
        assert_eq!(decode.model.extra_args, ["--a", "--b"]);
        assert_eq!((prefill.model.env["X"].as_str(), decode.model.env["X"].as_str()), ("1", "2"));
        spec.serving.mode = ServingMode::Single;
        assert_eq!(spec.for_role(ComponentRole::Server).as_ref(), &spec);
    }

    #[test]
    fn decode_servers_use_the_store_only_with_offload() {
        let mut spec = DeploymentSpec::default();
        assert!(spec.uses_store(ComponentRole::Prefill) && !spec.uses_store(ComponentRole::Decode));
        spec.serving.decode.offload = true;
        assert!(spec.uses_store(ComponentRole::Decode) && !spec.uses_store(ComponentRole::Router));
    }
}
