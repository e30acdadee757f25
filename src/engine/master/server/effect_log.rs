//! The log lines for effects.

use std::fmt;

use crate::effect::{StateEffect, UnmountReason};
use crate::memory_shortage::{MemoryShortage, ShortageCause};
use crate::missing_clients::MissingClients;
use mcctl_base::ByteSize;
use mcctl_base::text::{counted, escaped};
use mcctl_base::time::RoundedDuration;
use mcctl_wire::TextBuf;

/// Logs an effect of a call from `peer`, or of the ticker. Segment names come from clients and may
/// contain any bytes.
pub(super) fn log_effect(effect: &StateEffect, peer: Option<&str>) {
    let shown = |name: &TextBuf| escaped(&name.to_string_lossy());
    let peer = peer.unwrap_or("this process");
    match effect {
        StateEffect::Mounted { segment, name, client, bytes, held_for, earlier_replicas } if held_for.is_zero() => {
            let name = shown(name);
            tracing::info!(%segment, %name, %client, %peer, bytes, "segment mounted");
            if *earlier_replicas > 0 {
                tracing::warn!(
                    %client,
                    "node {name} has restarted: {} of its earlier process cannot be read, and are removed after --client-ttl. Or two \
                     processes have this name",
                    counted(*earlier_replicas, "replica")
                );
            }
        }
        StateEffect::Mounted { segment, name, client, bytes, held_for, .. } => {
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
            let name = shown(name);
            let lost = LostReplicas(*replicas);
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
            tracing::warn!(%client, segments, "a process of node {name} expired: it sent no heartbeat for --client-ttl");
        }
        StateEffect::SuspiciousEnd { client, total } => tracing::warn!(
            %client,
            total,
            "a client started a key again and ended the write over another connection: if the end belongs to the earlier start, the \
             object may have wrong bytes"
        ),
        StateEffect::ClientsMissing(missing) => {
            tracing::warn!(segments = missing.segments, "{}", MissingText(missing));
        }
        StateEffect::NoClientMissing => tracing::info!("no restored segment waits for its node any longer"),
        StateEffect::MemoryShortage(shortage) => tracing::warn!("{}", ShortageText(shortage)),
        StateEffect::Evicted { objects, bytes } => tracing::info!(objects, bytes, "evicted"),
    }
}

/// What waits for missing clients.
pub(super) struct MissingText<'a>(pub &'a MissingClients);

impl fmt::Display for MissingText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MissingClients { names, segments, replicas, dropped_in } = self.0;
        let shown: Vec<String> = names.iter().map(|name| escaped(&name.to_string_lossy())).collect();
        let more = if (names.len() as u64) < *segments { " and others" } else { "" };
        write!(
            f,
            "{} of restored objects {} for a heartbeat of {}{more}: they cannot be read, and puts of their keys are refused. They are lost in \
             {} if no heartbeat arrives",
            LostReplicas(u32::try_from(*replicas).unwrap_or(u32::MAX)),
            if *replicas == 1 { "waits" } else { "wait" },
            shown.join(", "),
            RoundedDuration(*dropped_in)
        )
    }
}

/// Why puts failed, with the figures, and what helps.
struct ShortageText<'a>(&'a MemoryShortage);

impl fmt::Display for ShortageText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MemoryShortage { cause, puts, bytes, used_bytes, capacity_bytes, hard_pinned_bytes, soft_pinned_keys } =
            *self.0;
        let failed = if puts == 1 { "1 put failed".to_owned() } else { format!("{puts} puts failed") };
        let of_last = if puts == 1 { "its object has" } else { "the last object has" };
        write!(f, "{failed} for lack of memory ({of_last} {}): ", ByteSize(bytes))?;
        if cause == ShortageCause::NoSegment {
            return f.write_str("no node has mounted a segment");
        }
        let used = ByteSize(used_bytes);
        let capacity = ByteSize(capacity_bytes);
        let pinned = ByteSize(hard_pinned_bytes);
        write!(
            f,
            "{used} of {capacity} are used, {pinned} of it hard-pinned. {soft_pinned_keys} keys are soft-pinned. "
        )?;
        f.write_str(match cause {
            ShortageCause::NoSegment => "",
            ShortageCause::NoOpenSegment => {
                "No segment accepts new objects yet, because its node has come back or has not called: mcctl status shows for how long"
            }
            ShortageCause::NoFittingRegion => {
                "The free memory is in smaller pieces, or in segments that accept no new objects (mcctl status)"
            }
            ShortageCause::Evicting => {
                "Eviction frees memory, so later puts can succeed. If this continues, add a node, or lower --eviction-high-watermark-ratio"
            }
            ShortageCause::HardPins => {
                "Even without all other objects, it does not fit next to the hard-pinned ones: remove some of these, or add a node"
            }
            ShortageCause::NothingEvictable => {
                "Nothing can be evicted: all objects have a pin or a read lease, or are being written. Add a node, or remove pinned objects"
            }
        })
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
    use mcctl_base::{ClientId, SegmentId};

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
    fn a_shortage_and_missing_clients_are_logged_with_figures() {
        let shortage = MemoryShortage {
            cause: ShortageCause::NothingEvictable,
            puts: 3,
            bytes: 16 << 20,
            used_bytes: 60 << 20,
            capacity_bytes: 64 << 20,
            hard_pinned_bytes: 48 << 20,
            soft_pinned_keys: 2,
        };
        let causes = [
            ShortageCause::NoSegment,
            ShortageCause::NoOpenSegment,
            ShortageCause::NoFittingRegion,
            ShortageCause::Evicting,
            ShortageCause::HardPins,
            ShortageCause::NothingEvictable,
        ];
        let texts = causes.map(|cause| ShortageText(&MemoryShortage { cause, ..shortage }).to_string());
        assert!(texts[0].contains("no node") && !texts[0].contains("used"), "{}", texts[0]);
        for text in &texts[1..] {
            for part in ["3 puts failed", "16 MiB", "60 MiB of 64 MiB", "48 MiB of it hard-pinned", "2 keys"] {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
        let missing = MissingClients {
            names: vec![TextBuf::from("node-1:1"), TextBuf::from("node-2:1")],
            segments: 3,
            replicas: 812,
            dropped_in: Duration::from_secs(37),
        };
        let line = logged(&StateEffect::ClientsMissing(missing), None);
        for part in [" WARN ", "812 replicas", "node-1:1, node-2:1 and others", "lost in 37 s"] {
            assert!(line.contains(part), "{part}: {line}");
        }
    }

    #[test]
    fn a_client_name_cannot_forge_log_lines_or_control_a_terminal() {
        let name = TextBuf::from("a\n2026-01-01 WARN forged\u{1b}]0;title\u{7}\u{1b}[2J");
        let effect = StateEffect::Mounted {
            segment: SegmentId(1, 1),
            name,
            client: OLD,
            bytes: 1,
            held_for: Duration::ZERO,
            earlier_replicas: 0,
        };
        let text = logged(&effect, None);
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(!text.trim_end().contains(|c: char| c.is_control()), "{text:?}");
    }
}
