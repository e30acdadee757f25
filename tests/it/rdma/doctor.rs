//! The checks and tables that open devices.

use std::os::unix::process::CommandExt;
use std::process::Command;

use serde_json::Value;

const DOCTOR: &[&str] =
    &["doctor", "--only", "verbs-registration", "--protocol", "rdma", "--mr-test-size", "4mb", "--verbose", "--json"];

/// stdout of the program with a locked-memory limit, as a user without CAP_IPC_LOCK.
fn limited(args: &[&str], limit: &str) -> String {
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(format!("ulimit -l {limit}; exec \"$0\" \"$@\"")).arg(env!("CARGO_BIN_EXE_mcctl")).args(args);
    String::from_utf8(command.uid(65534).gid(65534).output().unwrap().stdout).unwrap()
}

#[test]
#[ignore = "needs two RDMA devices: tests/rdma-vm/run-tests"]
fn a_test_registration_succeeds_or_names_the_limit() {
    let run = crate::cli::mcctl(DOCTOR);
    let document: Value = serde_json::from_str(run.succeeds()).unwrap();
    assert_eq!(document["checks"][0]["status"], "passed", "{document}");
    assert!(document.to_string().contains("rxe1 registered 4 MiB"), "{document}");
    let document: Value = serde_json::from_str(&limited(DOCTOR, "1024")).unwrap();
    let findings = document["findings"].as_array().unwrap();
    assert_eq!(findings.len(), 2, "{document}");
    for (finding, device) in findings.iter().zip(["rxe0", "rxe1"]) {
        let text = |key: &str| finding[key].as_str().unwrap();
        assert_eq!(text("severity"), "error");
        assert!(text("evidence").starts_with(&format!("ibv_reg_mr failed on {device}")), "{finding}");
        assert!(text("remedy").contains("RLIMIT_MEMLOCK"), "{finding}");
    }
}

#[test]
#[ignore = "needs two RDMA devices: tests/rdma-vm/run-tests"]
fn devices_shows_the_limits_from_libibverbs() {
    let table = crate::cli::mcctl(&["devices"]);
    let table = table.succeeds();
    assert!(table.contains("Device limits, from libibverbs"), "{table}");
    let document: Value = serde_json::from_str(crate::cli::mcctl(&["devices", "--json"]).succeeds()).unwrap();
    let verbs = &document["verbs"];
    assert_eq!((&verbs["missing"], &verbs["devices"][1]["ports"][0]["active_mtu"]), (&Value::Null, &Value::from(4096)));
    assert_eq!(document["unknown_without_verbs"], serde_json::json!([]));
}
