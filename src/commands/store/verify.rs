//! `mcctl store verify`: compares every replica of objects with the object's checksum.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::commands::cli::args::ValueError;
use crate::commands::cli::error::{Exit, Failure, Outcome};
use crate::commands::cli::output;
use crate::commands::cli::progress_bar::{WorkProgress, WorkUnit};
use crate::commands::cli::table;
use crate::commands::store::key;
use crate::commands::store::session::StoreSession;
use crate::commands::store::verify_report::VerifyReport;
use crate::commands::target::connect::ClientArgs;
use crate::commands::target::master_target::MasterTarget;
use crate::engine::admin::AdminError;
use crate::engine::base::text::escaped;
use crate::engine::base::{ByteSize, ObjectKey};
use crate::engine::store::{StoreClient, VerifyPace};

/// Flags of `mcctl store verify`.
#[derive(Debug, clap::Args)]
#[command(before_help = "all rate json master admin")]
#[command(before_long_help = "mcctl store verify a b  # compare all replicas of two objects with their checksums\n\
    mcctl store verify --all --rate 100mb  # verify the whole store at no more than 100 MiB/s")]
#[command(
    after_help = "The objects are read, and get the read leases of a read. Nothing is removed. Objects without a checksum are counted: their \
    writers sent none. An object that is removed or rewritten in the meantime is not damaged.\n\
    Exit codes:\n\
    \x20 0   no replica is damaged, and every replica with a checksum was read\n\
    \x20 1   a replica is damaged, a KEY could not be verified, or a signal ended the run\n\
    \x20 2   invalid command line\n\
    \x20 3   the master or the node of a replica is unreachable\n\
    \x20 4   this host does not have enough memory for an object"
)]
pub struct Args {
    /// Object keys
    #[arg(value_name = "KEY", value_parser = key::parse, required_unless_present = "all")]
    keys: Vec<String>,
    /// Verify all objects in the store
    #[arg(long, conflicts_with = "keys")]
    all: bool,
    /// Read at most this many bytes per second, e.g. 100mb [default: no limit]
    #[arg(long, value_name = "BYTES/s", value_parser = rate)]
    rate: Option<NonZeroU64>,
    /// Print one JSON document to stdout
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    link: ClientArgs,
}

/// What the command does, in errors.
const WHAT: &str = "verify the objects";

impl Args {
    pub(super) async fn run(self) -> Outcome {
        let mut link = StoreSession::open(&self.link).await?;
        let mut report = VerifyReport::default();
        let mut failure = self.verify(&mut link, &mut report).await.err();
        if failure.is_none()
            && let Some(error) = report.cannot_read()
        {
            failure = Some(link.explained("read every replica", error).await);
        }
        link.close().await;
        if failure.is_none() || !report.is_empty() {
            let written = match self.json {
                true => output::json(&report.document()),
                false => output::data(report.text(table::width())),
            };
            // The exit code does not depend on whether the report was read.
            if let Err(error) = written
                && !error.is_closed_pipe()
            {
                return Err(error);
            }
            if !self.json && !self.all {
                report.skipped().for_each(|(key, reason)| output::say(format!("{}: {reason}", escaped(key))));
            }
        }
        match failure {
            Some(failure) => Err(failure),
            None if report.is_damaged() || (!self.all && report.skipped().len() > 0) => Ok(Exit::No),
            None => Ok(Exit::Done),
        }
    }

    /// Verifies the objects and adds them to `report`, which contains what was verified before a
    /// failure.
    async fn verify(&self, link: &mut StoreSession, report: &mut VerifyReport) -> Result<(), Failure> {
        let keys = match self.all {
            true => link.query("list the keys", async |master| all_keys(master).await).await?,
            false => self.keys.iter().map(|key| ObjectKey::from(key.as_str())).collect(),
        };
        report.expect(keys.len());
        let done = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&done);
        let unit = WorkUnit::Items("objects", Some(keys.len() as u64));
        let _progress = WorkProgress::start("verifying", unit, move || counter.load(Ordering::Relaxed));
        let mut rest = &keys[..];
        let mut pace = VerifyPace::new(self.rate);
        while !rest.is_empty() {
            let next = async |client: &StoreClient<_>| client.verify(rest, &mut pace).await;
            let objects = link.attempt(WHAT, next).await?;
            done.fetch_add(objects.len() as u64, Ordering::Relaxed);
            let (now, later) = rest.split_at(objects.len());
            now.iter().zip(objects).for_each(|(key, object)| report.add(key, object));
            rest = later;
        }
        Ok(())
    }
}

/// Returns the keys of all objects. All are read first: verifying objects in between would leave
/// the response partly read.
async fn all_keys(master: &MasterTarget) -> Result<Vec<ObjectKey>, Failure> {
    let admin = master.admin_required().await?;
    let failed = |error: AdminError| master.admin_failure(&error);
    let mut list = admin.keys().await.map_err(failed)?;
    let mut keys = Vec::new();
    while let Some(key) = list.next_bytes().await.map_err(failed)? {
        keys.push(ObjectKey::from(&key[..]));
    }
    Ok(keys)
}

/// Parses a number of bytes per second.
fn rate(text: &str) -> Result<NonZeroU64, ValueError> {
    NonZeroU64::new(text.parse::<ByteSize>()?.0).ok_or(ValueError::NotPositive)
}
