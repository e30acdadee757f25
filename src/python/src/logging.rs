//! Log output of the module: to stderr, with the level from `MCCTL_LOG` or `MC_LOG_LEVEL`.

use tracing::level_filters::LevelFilter;

/// Starts the log output. A program that embeds another Rust module may already have one, which is
/// kept.
pub(crate) fn start() {
    let variable = |name| std::env::var(name).ok().filter(|text| !text.trim().is_empty()).map(|text| (name, text));
    let given = variable("MCCTL_LOG").or_else(|| variable("MC_LOG_LEVEL"));
    let level = given.as_ref().map(|(_, text)| level(text));
    let shown = level.flatten().unwrap_or(LevelFilter::INFO);
    let _ = tracing_subscriber::fmt().with_max_level(shown).with_ansi(false).with_writer(std::io::stderr).try_init();
    if let (Some((name, text)), Some(None)) = (given, level) {
        tracing::warn!("{name}={text} is not a log level (off, error, warn, info, debug or trace); using info");
    }
}

/// Returns a log level by its name in mcctl or in Mooncake.
fn level(text: &str) -> Option<LevelFilter> {
    match &*text.trim().to_ascii_lowercase() {
        "off" => Some(LevelFilter::OFF),
        "error" | "fatal" => Some(LevelFilter::ERROR),
        "warn" | "warning" => Some(LevelFilter::WARN),
        "info" => Some(LevelFilter::INFO),
        "debug" => Some(LevelFilter::DEBUG),
        "trace" => Some(LevelFilter::TRACE),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_have_the_names_of_mcctl_and_of_mooncake() {
        for (text, expected) in [
            ("off", Some(LevelFilter::OFF)),
            ("WARNING", Some(LevelFilter::WARN)),
            (" debug ", Some(LevelFilter::DEBUG)),
        ] {
            assert_eq!(level(text), expected, "{text}");
        }
        for text in ["verbose", "0", "warn,info", ""] {
            assert_eq!(level(text), None, "{text}");
        }
    }
}
