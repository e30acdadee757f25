//! One measured server as rows of the section.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::engine::base::ByteSize;
use crate::engine::load::server::{CacheCapacity, ServerDescription};

/// A server as the report describes it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::commands::bench) struct MeasuredServer {
    /// Name in the report, such as `A`.
    pub label: String,
    /// URL, or the path to a recorded run.
    pub target: String,
    /// Whether the management routes of the server were used to describe it.
    pub queried: bool,
    #[serde(flatten)]
    pub description: ServerDescription,
}

/// The value of a row for a server whose management routes were not used.
pub(super) const NOT_KNOWN: &str = "not known";

/// A row: its name, and its value for a server. An empty value means that the row does not apply to
/// the server.
type ServerRow = (&'static str, fn(&MeasuredServer) -> String);

/// The rows, in order.
pub(super) const ROWS: [ServerRow; 9] = [
    ("server", |server| server.target.clone()),
    ("model", |server| server.reported(server.description.model.as_ref())),
    ("engine", MeasuredServer::engine),
    ("hardware", MeasuredServer::hardware),
    ("page size", |server| {
        server.reported(server.description.page_size.map(|tokens| format!("{} tokens", grouped(tokens))).as_ref())
    }),
    ("L1 (device memory)", |server| server.tier(Some(&server.description.device))),
    ("L2 (host memory)", |server| server.tier(server.description.host.as_ref())),
    ("L3 (store)", MeasuredServer::storage),
    ("settings", MeasuredServer::settings),
];

impl MeasuredServer {
    /// Returns a server of which only a recorded run is known.
    pub(crate) fn recorded(label: &str, path: &str) -> MeasuredServer {
        let label = label.to_owned();
        let target = path.to_owned();
        MeasuredServer { label, target, queried: false, description: ServerDescription::default() }
    }

    /// Returns the server of a run recorded at `path`, as endpoint `label`.
    pub(crate) fn of_record(self, label: &str, path: &str) -> MeasuredServer {
        MeasuredServer { label: label.to_owned(), target: format!("{path} ({})", self.target), ..self }
    }

    /// Returns `value`, or why it is not known.
    fn reported(&self, value: Option<&String>) -> String {
        match (value, self.queried) {
            (Some(value), _) => value.clone(),
            (None, true) => "not reported".to_owned(),
            (None, false) => NOT_KNOWN.to_owned(),
        }
    }

    fn engine(&self) -> String {
        let found = &self.description;
        let named = found.engine.map(|engine| match &found.version {
            // The version of a simulator includes its name.
            Some(version) if self.is_simulated() => version.clone(),
            Some(version) => format!("{engine} {version}"),
            None => format!("{engine}, version not reported"),
        });
        self.reported(named.as_ref())
    }

    fn hardware(&self) -> String {
        let found = &self.description;
        if self.is_simulated() {
            return "none (simulated: latencies follow a cost model)".to_owned();
        }
        let named = found.accelerator.as_ref().map(|name| match (found.accelerators, found.size_of("dp_size")) {
            (None, _) => name.clone(),
            (Some(count), 1) => format!("{count} x {name}"),
            (Some(count), _) => format!("{count} x {name} per data-parallel rank"),
        });
        self.reported(named.as_ref())
    }

    fn is_simulated(&self) -> bool {
        self.description.engine == Some("mcctl simulator")
    }

    /// Returns the size of a tier. A server that is described and does not have the tier has none.
    fn tier(&self, tier: Option<&CacheCapacity>) -> String {
        let Some(tier) = tier else {
            return if self.description.engine == Some("vLLM") { String::new() } else { self.absent() };
        };
        let ranks = self.ranks();
        let data = self.description.size_of("dp_size");
        let tokens = tier.tokens.map(|tokens| {
            let per = if data > 1 { " per data-parallel rank" } else { "" };
            format!("{} tokens{per}", grouped(tokens))
        });
        let bytes = tier.bytes.map(|bytes| {
            let per = if ranks > 1 { " per GPU" } else { "" };
            format!("{}{per}", ByteSize(bytes))
        });
        let parts: Vec<String> = tokens.into_iter().chain(bytes).collect();
        self.reported(Some(parts.join(", ")).filter(|text| !text.is_empty()).as_ref())
    }

    /// Returns the number of ranks that share one copy of the model.
    fn ranks(&self) -> u64 {
        self.description.size_of("tp_size").saturating_mul(self.description.size_of("pp_size"))
    }

    fn absent(&self) -> String {
        if self.description.engine.is_some() { "none".to_owned() } else { self.reported(None) }
    }

    fn storage(&self) -> String {
        let found = &self.description;
        let Some(storage) = &found.storage else {
            return if found.engine == Some("vLLM") { String::new() } else { self.absent() };
        };
        let mut text = storage.backend.clone();
        match (storage.capacity_bytes, storage.used_bytes) {
            (Some(capacity), used) => {
                text.push_str(&format!(", {}", ByteSize(capacity)));
                // With one rank, every token is stored once, with as many bytes as in L1.
                let per_token =
                    found.device.bytes.zip(found.device.tokens).filter(|(_, tokens)| *tokens > 0 && self.ranks() == 1);
                if let Some((bytes, tokens)) = per_token.filter(|(bytes, _)| *bytes > 0) {
                    let tokens = (capacity as f64 / bytes as f64 * tokens as f64) as u64;
                    text.push_str(&format!(" (about {} tokens)", grouped(tokens)));
                }
                text.extend(used.map(|used| format!(", {} in use before the run", ByteSize(used))));
            }
            (None, _) if storage.backend == "mooncake" => {
                text.push_str(", size not known (set --master-metrics HOST:PORT)");
            }
            (None, _) => text.push_str(", size not known"),
        }
        text
    }

    fn settings(&self) -> String {
        // Degrees of parallelism of one are the default.
        let is_default = |(name, value): &&(&str, Value)| name.ends_with("p_size") && value.as_u64() == Some(1);
        let settings = self.description.settings.iter().filter(|setting| !is_default(setting));
        let text = |(name, value): &(&str, Value)| match value {
            Value::String(text) => format!("{name}={text}"),
            other => format!("{name}={other}"),
        };
        settings.map(text).collect::<Vec<_>>().join(" ")
    }
}

/// Formats a count with thousands separators.
pub(super) fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::load::server::StorageTier;
    use serde_json::json;

    fn server(description: ServerDescription) -> MeasuredServer {
        MeasuredServer { label: "A".to_owned(), target: "http://h:1".to_owned(), queried: true, description }
    }

    fn row(server: &MeasuredServer, name: &str) -> String {
        ROWS.iter().find(|(row, _)| *row == name).map(|(_, value)| value(server)).expect("a row")
    }

    #[test]
    fn sizes_name_their_scope_when_ranks_share_a_model() {
        let one = ServerDescription {
            engine: Some("SGLang"),
            device: CacheCapacity { tokens: Some(16_384), bytes: Some(1 << 30) },
            storage: Some(StorageTier {
                backend: "mooncake".to_owned(),
                capacity_bytes: Some(4 << 30),
                used_bytes: Some(0),
            }),
            ..ServerDescription::default()
        };
        assert_eq!(row(&server(one.clone()), "L1 (device memory)"), "16,384 tokens, 1 GiB");
        assert_eq!(row(&server(one.clone()), "L2 (host memory)"), "none");
        let stored = row(&server(one.clone()), "L3 (store)");
        assert!(stored.contains("4 GiB (about 65,536 tokens)"), "{stored}");
        let many = ServerDescription { settings: vec![("tp_size", json!(8)), ("dp_size", json!(2))], ..one };
        let text = row(&server(many.clone()), "L1 (device memory)");
        assert_eq!(text, "16,384 tokens per data-parallel rank, 1 GiB per GPU");
        assert!(!row(&server(many), "L3 (store)").contains("tokens"));
    }

    #[test]
    fn unknown_values_state_whether_the_server_queried() {
        let unknown = server(ServerDescription::default());
        assert_eq!(
            (row(&unknown, "model"), row(&unknown, "L3 (store)")),
            ("not reported".to_owned(), "not reported".to_owned())
        );
        let silent = MeasuredServer { queried: false, ..unknown };
        assert_eq!((row(&silent, "engine"), row(&silent, "settings")), ("not known".to_owned(), String::new()));
        let vllm = server(ServerDescription { engine: Some("vLLM"), ..ServerDescription::default() });
        assert_eq!(
            (row(&vllm, "L2 (host memory)"), row(&vllm, "engine")),
            (String::new(), "vLLM, version not reported".to_owned())
        );
    }

    #[test]
    fn thousands_are_separated() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }
}
