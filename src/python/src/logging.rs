//! Log output of the module: to stderr, with the level from `MCCTL_LOG` or `MC_LOG_LEVEL`.

use tracing_subscriber::EnvFilter;

/// Starts the log output. A program that embeds another Rust module may already have one, which is kept.
pub fn start() {
    let variable = |name: &str| std::env::var(name).ok().filter(|text| !text.trim().is_empty());
    let level = variable("MCCTL_LOG").or_else(|| variable("MC_LOG_LEVEL").map(|level| level.to_ascii_lowercase()));
    let level = level.unwrap_or_else(|| "info".to_owned());
    let filter = EnvFilter::try_new(level.replace("warning", "warn")).unwrap_or_else(|_| EnvFilter::new("info"));
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(std::io::stderr).try_init();
}
