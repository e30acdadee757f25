//! Log lines as JSON: one object per line with `time` (UTC), `level`, `target`, `message` and the
//! event's fields.

use std::fmt::{self, Write};

use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Field names that every line contains. An event field with one of these names gets a prefix.
const RESERVED: [&str; 3] = ["time", "level", "target"];

/// The `--log-format json` format.
pub(super) struct JsonFormat;

impl<S, N> FormatEvent<S, N> for JsonFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let about = event.metadata();
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let mut fields = EventFields::default();
        event.record(&mut fields);
        let level = about.level();
        let target = Value::from(about.target());
        let message = Value::from(fields.message);
        writeln!(
            writer,
            "{{\"time\":\"{time}\",\"level\":\"{level}\",\"target\":{target},\"message\":{message}{}}}",
            fields.rest
        )
    }
}

/// An event's message, and its other fields as JSON members.
#[derive(Default)]
struct EventFields {
    message: String,
    rest: String,
}

impl EventFields {
    fn add(&mut self, field: &Field, value: Value) {
        let name = field.name();
        let prefix = if RESERVED.contains(&name) { "field_" } else { "" };
        let _ = write!(self.rest, ",\"{prefix}{name}\":{value}");
    }
}

impl Visit for EventFields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            _ => self.add(field, format!("{value:?}").into()),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => value.clone_into(&mut self.message),
            _ => self.add(field, value.into()),
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.into());
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct LineBuffer(Arc<Mutex<Vec<u8>>>);

    impl io::Write for LineBuffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("not poisoned").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_event_is_one_line_of_json_with_its_fields() {
        let lines = LineBuffer::default();
        let writer = lines.clone();
        let subscriber =
            tracing_subscriber::fmt().event_format(JsonFormat).with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(bytes = 7_u64, peer = %"a\"b", level = true, "two\nlines {}", 1);
        });
        let text = String::from_utf8(lines.0.lock().expect("not poisoned").clone()).expect("text");
        assert_eq!(text.lines().count(), 1, "{text}");
        let value: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(value["level"], "WARN");
        assert_eq!(value["message"], "two\nlines 1");
        assert_eq!(value["target"], module_path!());
        assert_eq!((&value["bytes"], &value["peer"]), (&Value::from(7), &Value::from("a\"b")));
        assert_eq!(value["field_level"], true);
        assert!(value["time"].as_str().is_some_and(|time| time.ends_with('Z')), "{text}");
    }
}
