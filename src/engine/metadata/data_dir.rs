//! The start of a service with a data directory.

use mcctl_journal::{DataDir, DataDirPlan, JournalError, Uuid};
use mcctl_sys::env::{Env, wall_clock};
use mcctl_wire::json::file_name_of;

/// Opens the directory of a service, with the time and the randomness of `env`. Existing data is
/// kept, moved or removed, as planned.
///
/// # Errors
/// The errors of [`DataDirPlan::open`].
pub fn open_data_dir<E: Env>(plan: &DataDirPlan, env: &E) -> Result<DataDir, JournalError> {
    plan.open(&file_name_of(wall_clock(env)), Uuid(u128::from(env.rng()) << 64 | u128::from(env.rng())))
}
