//! The checks and tables that open RDMA devices.

use std::os::unix::process::CommandExt;
use std::process::Command;

use serde_json::Value;

const DOCTOR: &[&str] =
    &["doctor", "--only", "verbs-registration", "--protocol", "rdma", "--trial", "4mb", "--verbose", "--json"];

/// Runs the program with an effective limit of locked memory and returns its stdout.
fn limited(args: &[&str], limit: &str) -> String {
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(format!("ulimit -l {limit}; exec \"$0\" \"$@\"")).arg(env!("CARGO_BIN_EXE_mcctl")).args(args);
    // A process with CAP_IPC_LOCK is not limited.
    String::from_utf8(command.uid(65534).gid(65534).output().unwrap().stdout).unwrap()
}

#[test]
#[ignore = "needs two RDMA devices: tests/rdma-vm/run-tests"]
fn a_test_registration_passes_or_reports_the_memlock_limit() {
    let run = crate::cli::mcctl(DOCTOR);
    let document: Value = serde_json::from_str(run.succeeds()).unwrap();
    assert_eq!(document["checks"][0]["status"], "passed", "{document}");
    assert!(document.to_string().contains("rxe0 took 4 MiB; rxe1 took 4 MiB"), "{document}");
    let document: Value = serde_json::from_str(&limited(DOCTOR, "1024")).unwrap();
    let findings = document["findings"].as_array().unwrap();
    assert_eq!(findings.len(), 2, "{document}");
    for (finding, device) in findings.iter().zip(["rxe0", "rxe1"]) {
        let text = |key: &str| finding[key].as_str().unwrap();
        assert_eq!(text("severity"), "error");
        assert!(
            text("evidence").starts_with(&format!("ibv_reg_mr failed on {device} with 4194304 bytes at 0x")),
            "{finding}"
        );
        assert!(text("remedy").contains("RLIMIT_MEMLOCK"), "{finding}");
    }
}

#[test]
#[ignore = "needs two RDMA devices: tests/rdma-vm/run-tests"]
fn devices_shows_libibverbs_limits() {
    let table = crate::cli::mcctl(&["devices"]);
    let table = table.succeeds();
    assert!(table.contains("Limits, as libibverbs tells them"), "{table}");
    let document: Value = serde_json::from_str(crate::cli::mcctl(&["devices", "--json"]).succeeds()).unwrap();
    let verbs = &document["verbs"];
    assert_eq!((&verbs["missing"], &verbs["devices"][1]["ports"][0]["active_mtu"]), (&Value::Null, &Value::from(4096)));
    assert_eq!(document["unknown_without_verbs"], serde_json::json!([]));
}
