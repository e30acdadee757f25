//! The log lines for effects.

use std::fmt;

use crate::engine::base::text::escaped;
use crate::engine::base::time::RoundedDuration;
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
        StateEffect::Mounted { segment, name, client, bytes, held_for } => {
            let time = RoundedDuration(*held_for);
            tracing::info!(
                %segment,
                name = %shown(name),
                %client,
                %peer,
                bytes,
                "segment mounted again: it accepts new objects in {time}, when no transfer to its earlier objects is left"
            );
        }
        StateEffect::Unmounted { segment, name, client, reason, replicas, .. } => {
            let (name, lost) = (shown(name), LostReplicas(*replicas));
            match reason {
                UnmountReason::Requested => {
                    tracing::info!(%segment, %client, %peer, "node {name} unmounted its segment, which had {lost}");
                }
                UnmountReason::GraceElapsed => {
                    tracing::info!(%segment, %client, "segment of node {name} unmounted after its grace period, with {lost}");
                }
                UnmountReason::ClientExpired => {
                    tracing::warn!(%segment, %client, "segment of node {name} lost, with {lost}: its client expired");
                }
                UnmountReason::Unconfirmed => tracing::warn!(
                    %segment,
                    %client,
                    "segment of node {name} lost, with {lost}: its client has not called since this master restored it"
                ),
                UnmountReason::Superseded { by } => tracing::warn!(
                    %segment,
                    %client,
                    new_client = %by,
                    %peer,
                    "segment of node {name} replaced, with {lost}: its process restarted, or two processes have the same name"
                ),
            }
        }
        StateEffect::ClientExpired { client, name, segments } => {
            let name = name.as_ref().map_or_else(|| "without segments".to_owned(), shown);
            tracing::warn!(%client, segments, "node {name} expired: it sent no heartbeat for --client-ttl");
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

/// The replicas that a segment had when it was removed.
struct LostReplicas(u32);

impl fmt::Display for LostReplicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => write!(f, "no replicas"),
            1 => write!(f, "1 replica"),
            n => write!(f, "{n} replicas"),
        }
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
        let effect = StateEffect::Unmounted {
            segment: SegmentId(1, 1),
            name,
            client: OLD,
            reason,
            last_of_name: false,
            replicas: 812,
        };
        let line = logged(&effect, Some("10.0.0.9:4711"));
        for part in [" WARN ", "node:1", "812", &OLD.to_string(), &NEW.to_string(), "10.0.0.9:4711"] {
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
