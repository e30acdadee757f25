//! Checksums of whole objects, which clients send and verify.

use crate::lint::findings::Findings;
use crate::lint::model::{LocatedValue, ProcessRole, RuntimeKind};
use crate::lint::settings::{ProcessView, SettingValue};
use crate::lint::view::DeploymentView;
use mcctl_base::upstream::checksum::{COST, ChecksumSwitch, SINCE, VARIABLE, in_wheel, is_off_in_mcctl};
use mcctl_base::upstream::is_older;

/// The wheel's clients have no checksums unless a variable is set. mcctl's clients have them unless
/// it is 0.
pub(super) fn switch(view: &DeploymentView<'_>, out: &mut Findings) {
    for member in &view.member {
        let process = member.process;
        let value = process.var(VARIABLE);
        let is_client = is_client(member);
        if process.role == ProcessRole::Environment {
            environment(member, value, out);
        } else if is_client && member.has_mcctl_client() {
            mcctl_client(member, value, out);
        } else if is_client && view.release(member).is_none_or(|release| !is_older(&release, SINCE)) {
            wheel_client(member, value, out);
        }
    }
}

/// Whether the process definitely contains a client of the store.
fn is_client(member: &ProcessView<'_>) -> bool {
    match member.process.role {
        ProcessRole::Vllm => member.has_store_connector() == Some(true),
        // A settings file does not have variables.
        _ if member.process.runtime == RuntimeKind::File => false,
        // A server with the address of a real client has no client of its own.
        ProcessRole::Sglang(_) if matches!(member.client("client_server_address"), SettingValue::Is(_)) => false,
        role => role.is_client() && member.uses_mooncake() == Some(true),
    }
}

fn wheel_client(member: &ProcessView<'_>, value: Option<&LocatedValue>, out: &mut Findings) {
    let process = member.process;
    let who = process.describe();
    let finding = format!("{who} neither sends nor verifies checksums: it does not detect damaged objects");
    let remedy = format!("set {VARIABLE}=1 for all clients (cost: {COST})");
    let Some(value) = value else {
        // A script inherits variables from its caller. Only a file that it reads hides them.
        let is_complete = process.env_whole || process.runtime == RuntimeKind::Shell && process.env_files.is_empty();
        if is_complete && !process.env.contains_key(VARIABLE) {
            out.info(&process.place, finding, format!("{VARIABLE} is not set (default 0)"), remedy);
        }
        return;
    };
    let evidence = format!("{VARIABLE}={}", value.text);
    match in_wheel(&value.text) {
        ChecksumSwitch::On => {}
        ChecksumSwitch::Off => out.info(&value.place, finding, evidence, remedy),
        ChecksumSwitch::Invalid => {
            out.warning(&value.place, finding, format!("the client reads {evidence} as 0"), remedy);
        }
    }
}

fn mcctl_client(member: &ProcessView<'_>, value: Option<&LocatedValue>, out: &mut Findings) {
    if let Some(value) = value.filter(|value| is_off_in_mcctl(&value.text)) {
        out.info(
            &value.place,
            format!("{} sends no checksums, and its reads are not checked", member.process.describe()),
            format!("{VARIABLE}={}", value.text),
            format!("remove {VARIABLE}: mcctl's client has checksums by default"),
        );
    }
}

/// Variables that any client may read. Every client reads these values as off. An environment that
/// is in effect yields a warning.
fn environment(member: &ProcessView<'_>, value: Option<&LocatedValue>, out: &mut Findings) {
    let Some(value) = value.filter(|value| is_off_in_mcctl(&value.text)) else { return };
    let finding = "clients with this environment neither send nor verify checksums: they do not detect damaged objects";
    let evidence = format!("{VARIABLE}={}", value.text);
    let remedy = format!("set {VARIABLE}=1 (cost in the wheel's clients: {COST})");
    match member.process.runtime {
        RuntimeKind::Running => out.warning(&value.place, finding, evidence, remedy),
        _ => out.info(&value.place, finding, evidence, remedy),
    }
}
