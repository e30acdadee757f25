//! The log lines for effects.

use crate::engine::base::text::escaped;
use crate::engine::master::effect::{StateEffect, UnmountReason};
use crate::engine::wire::TextBuf;

/// Logs an effect of a call from `peer`, or of the ticker. Segment names come from clients and may contain any bytes.
pub(super) fn log_effect(effect: &StateEffect, peer: Option<&str>) {
    let shown = |name: &TextBuf| escaped(&name.to_string_lossy());
    let peer = peer.unwrap_or("this process");
    match effect {
        StateEffect::Mounted { segment, name, client, bytes, held_for } if held_for.is_zero() => {
            tracing::info!(%segment, name = %shown(name), %client, %peer, bytes, "segment mounted");
        }
        StateEffect::Mounted { segment, name, client, bytes, held_for } => tracing::info!(
            %segment,
            name = %shown(name),
            %client,
            %peer,
            bytes,
            ?held_for,
            "segment mounted again; it accepts new objects after this time, when no transfer to its earlier objects is left"
        ),
        StateEffect::Unmounted { segment, name, client, reason, .. } => {
            let name = shown(name);
            match reason {
                UnmountReason::Requested => tracing::info!(%segment, %name, %client, %peer, "segment unmounted"),
                UnmountReason::GraceElapsed => {
                    tracing::info!(%segment, %name, %client, "segment unmounted: grace period ended")
                }
                UnmountReason::ClientExpired => {
                    tracing::warn!(%segment, %name, %client, "segment lost: its client expired")
                }
                UnmountReason::Unconfirmed => {
                    tracing::warn!(%segment, %name, %client, "restored segment lost: its client did not confirm it")
                }
                UnmountReason::Superseded { by } => tracing::warn!(
                    %segment,
                    %name,
                    %client,
                    new_client = %by,
                    %peer,
                    "segment replaced by a new mount, its objects are lost: its process restarted, or two processes have the \
                     same name"
                ),
            }
        }
        StateEffect::ClientExpired { client } => {
            tracing::warn!(%client, "client expired: no ping within its time to live")
        }
        StateEffect::SuspiciousEnd { client, total } => tracing::warn!(
            %client,
            total,
            "a client started a key again and ended the write over another connection: if the end belongs to the earlier start, the \
             object may have wrong bytes"
        ),
        StateEffect::Evicted { objects, bytes } => tracing::info!(objects, bytes, "evicted"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use super::*;
    use crate::engine::base::{ClientId, SegmentId};

    /// Returns the log lines for an effect.
    fn logged(effect: &StateEffect, peer: Option<&str>) -> String {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let writer = {
            let lines = lines.clone();
            move || LogBuffer(lines.clone())
        };
        let log = tracing_subscriber::fmt().with_ansi(false).with_writer(writer).finish();
        tracing::subscriber::with_default(log, || log_effect(effect, peer));
        String::from_utf8(lines.lock().unwrap().clone()).unwrap()
    }

    struct LogBuffer(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for LogBuffer {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    const OLD: ClientId = ClientId(1, 1);
    const NEW: ClientId = ClientId(2, 2);

    #[test]
    fn a_superseded_segment_is_a_warning_with_the_new_clients_address() {
        let reason = UnmountReason::Superseded { by: NEW };
        let name = TextBuf::from("node:1");
        let effect =
            StateEffect::Unmounted { segment: SegmentId(1, 1), name, client: OLD, reason, last_of_name: false };
        let line = logged(&effect, Some("10.0.0.9:4711"));
        for part in [" WARN ", "node:1", &OLD.to_string(), &NEW.to_string(), "10.0.0.9:4711"] {
            assert!(line.contains(part), "{part}: {line}");
        }
    }

    #[test]
    fn a_client_name_cannot_forge_log_lines_or_control_a_terminal() {
        let name = TextBuf::from("a\n2026-01-01 WARN forged\u{1b}]0;title\u{7}\u{1b}[2J");
        let effect =
            StateEffect::Mounted { segment: SegmentId(1, 1), name, client: OLD, bytes: 1, held_for: Duration::ZERO };
        let text = logged(&effect, None);
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(!text.trim_end().contains(|c: char| c.is_control()), "{text:?}");
    }
}
