//! Writes a deployment file with a comment for every key. Keys with default values are commented
//! out.

use serde_json::Value;

use crate::keys::KEYS;
use crate::plan::master_disk::VOLUME_BYTES_MIN;
use crate::{DeploySize, DeploymentSpec, FileFormat, HighAvailability};

/// Keys that are never commented out, because most users change or look for them.
const ALWAYS: &[(&str, &str)] = &[("", "version"), ("", "name"), ("", "programs"), ("model", "path"), ("model", "tp")];

/// A deployment with a value for every key, also for those that are unset by default.
pub(super) fn example(spec: &DeploymentSpec) -> DeploymentSpec {
    let mut example = DeploymentSpec::default();
    example.model.hicache_size_gb = Some(64);
    example.model.hicache_ratio = Some(2.0);
    example.model.device_tokens = Some(500_000);
    example.model.device_mamba_slots = Some(300);
    example.transfer.gid_index = Some(3);
    example.master.data_dir = Some(spec.default_data_dir());
    for servers in [&mut example.serving.prefill, &mut example.serving.decode] {
        servers.tp = Some(8);
        servers.pp = Some(1);
        servers.dp = Some(1);
        servers.dp_attention = Some(false);
        servers.hicache_size_gb = Some(64);
        servers.first_gpu = Some(0);
    }
    example.host.memory = Some(DeploySize(1 << 40));
    example.host.hugepages = Some(DeploySize(512 << 30));
    example.host.numa_nodes = Some(2);
    example.host.gpus = Some(8);
    example.kubernetes.master_storage = Some(DeploySize(VOLUME_BYTES_MIN));
    let etcd = vec!["10.0.0.9:2379".to_owned()];
    example.master.ha = Some(HighAvailability { etcd, ..HighAvailability::default() });
    example
}

/// `spec` as a commented file in `format`.
pub fn commented(spec: &DeploymentSpec, format: FileFormat) -> String {
    let tree = |of: &DeploymentSpec| serde_json::to_value(of).expect("the schema has only JSON types");
    let example = example(spec);
    let now = tree(spec);
    let plain = tree(&DeploymentSpec::default());
    let example = tree(&example);
    let mut writer = CommentedWriter { format, now, plain, example, text: String::new() };
    writer.text.push_str(
        "# A deployment of SGLang HiCache on a Mooncake store.\n\
         # Generate files with: mcctl render env|sglang|systemd|docker|compose|k8s|rbg FILE\n\
         # Sizes: 16GiB = 16Gi = 16gb = 16 x 1024^3 bytes. Keys that are commented out have their default values.\n",
    );
    let mut section = "";
    for (of, key, what) in KEYS {
        if *of != section {
            section = of;
            writer.section_header(section);
        }
        writer.key(section, key, what);
    }
    writer.text
}

struct CommentedWriter {
    format: FileFormat,
    now: Value,
    plain: Value,
    /// Example values for keys without a default.
    example: Value,
    text: String,
}

/// The value at `section.key`, if it is not null.
pub(super) fn at<'a>(tree: &'a Value, section: &str, key: &str) -> Option<&'a Value> {
    let parts = section.split('.').filter(|part| !part.is_empty()).chain(Some(key));
    let mut found = tree;
    for part in parts {
        found = found.get(part)?;
    }
    Some(found).filter(|value| !value.is_null())
}

impl CommentedWriter {
    fn is_set(&self, section: &str, key: &str) -> bool {
        let value = at(&self.now, section, key);
        ALWAYS.contains(&(section, key)) || (value.is_some() && value != at(&self.plain, section, key))
    }

    /// Whether any key of `section` or of its subsections is set.
    fn is_open(&self, section: &str) -> bool {
        let within = |of: &str| of == section || of.strip_prefix(section).is_some_and(|rest| rest.starts_with('.'));
        KEYS.iter().any(|(of, key, _)| within(of) && self.is_set(of, key))
    }

    fn section_header(&mut self, section: &str) {
        let mark = if self.is_open(section) { "" } else { "# " };
        let line = match self.format {
            FileFormat::Toml => format!("\n{mark}[{section}]\n"),
            FileFormat::Yaml => {
                let (indent, name) = match section.split_once('.') {
                    Some((_, name)) => ("  ", name),
                    None => ("", section),
                };
                let gap = if indent.is_empty() { "\n" } else { "" };
                format!("{gap}{indent}{mark}{name}:\n")
            }
        };
        self.text.push_str(&line);
    }

    fn key(&mut self, section: &str, key: &str, what: &str) {
        let depth = section.split('.').filter(|part| !part.is_empty()).count();
        let indent = if self.format == FileFormat::Yaml { "  ".repeat(depth) } else { String::new() };
        let value = at(&self.now, section, key).or(at(&self.example, section, key));
        let value = value.map_or_else(String::new, |value| literal(value, self.format));
        let mark = if self.is_set(section, key) { "" } else { "# " };
        let line = match self.format {
            FileFormat::Toml => format!("{indent}{mark}{key} = {value}"),
            FileFormat::Yaml => format!("{indent}{mark}{key}: {value}"),
        };
        self.text.push_str(&format!("{line}  # {what}\n"));
    }
}

/// A value as a literal. TOML and YAML both accept JSON, except for maps in TOML.
pub(super) fn literal(value: &Value, format: FileFormat) -> String {
    match value {
        Value::Object(map) if format == FileFormat::Toml => {
            let pair = |(name, value): (&String, &Value)| {
                format!("{} = {}", Value::from(name.as_str()), literal(value, format))
            };
            format!("{{{}}}", map.iter().map(pair).collect::<Vec<_>>().join(", "))
        }
        Value::Array(list) => format!("[{}]", list.iter().map(|v| literal(v, format)).collect::<Vec<_>>().join(", ")),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;
    use crate::plans::tests::deployments;
    use proptest::prelude::*;

    /// Collects the keys of `tree` that are not sections.
    fn keys(tree: &Value, section: &str, found: &mut Vec<(String, String)>) {
        for (key, value) in tree.as_object().into_iter().flatten() {
            let inner = if section.is_empty() { key.clone() } else { format!("{section}.{key}") };
            let is_map = ["env", "node_selector", "annotations"].contains(&key.as_str());
            if value.is_object() && !is_map {
                keys(value, &inner, found);
            } else {
                found.push((section.to_owned(), key.clone()));
            }
        }
    }

    #[test]
    fn every_schema_key_has_a_description() {
        let mut spec = DeploymentSpec::default();
        spec.master.ha = Some(HighAvailability::default());
        let mut all = Vec::new();
        keys(&serde_json::to_value(&spec).unwrap(), "", &mut all);
        let mut lines: Vec<_> = KEYS.iter().map(|(s, k, _)| ((*s).to_owned(), (*k).to_owned())).collect();
        all.sort();
        lines.sort();
        assert_eq!(all, lines);
    }

    proptest! {
        #[test]
        fn the_written_file_parses_to_the_same_deployment(mut spec in deployments()) {
            spec.model.env.insert("A".to_owned(), "x \"y\" # z".to_owned());
            spec.model.extra_args = vec!["--a".to_owned(), "b'c".to_owned()];
            for format in [FileFormat::Toml, FileFormat::Yaml] {
                let text = commented(&spec, format);
                prop_assert_eq!(parse(&text, format, &[]).map_err(|e| format!("{e}\n{text}")).unwrap(), spec.clone());
            }
        }
    }
}
