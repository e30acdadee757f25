//! `mcctl store get`.

use std::fs;
use std::io::{self, IsTerminal};
use std::path::PathBuf;

use crate::commands::error::{Exit, Failure, Outcome};
use crate::commands::output;
use crate::commands::store::link::LinkArgs;
use crate::engine::base::{ByteSize, ObjectKey};
use crate::engine::env::RealEnv;
use crate::engine::store::StoreClient;

/// What to read, and where to.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Key of the object
    key: String,
    /// File for its bytes; '-' or nothing for stdout
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    link: LinkArgs,
}

impl Args {
    pub(super) async fn run(self) -> Outcome {
        let mut link = self.link.connect().await?;
        let key = ObjectKey::from(self.key.as_str());
        let get = async |client: &StoreClient<RealEnv>| client.get(&key).await;
        let bytes = link.attempt(&format!("get '{}'", self.key), get).await;
        link.close().await;
        let bytes = bytes?;
        if let Some(path) = self.output.as_ref().filter(|path| path.as_os_str() != "-") {
            fs::write(path, &bytes)
                .map_err(|error| Failure::host(format!("cannot write {}", path.display())).found(error.to_string()))?;
            output::say(format!("wrote {} to {}", ByteSize(bytes.len() as u64), path.display()));
            return Ok(Exit::Done);
        }
        if io::stdout().is_terminal() && std::str::from_utf8(&bytes).is_err() {
            return Err(Failure::usage(format!("'{}' is no text, and would spoil this terminal", self.key))
                .next("give --output FILE, or pipe it"));
        }
        output::data(bytes)?;
        Ok(Exit::Done)
    }
}
