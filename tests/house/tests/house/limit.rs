//! A test that hangs ends with an error (`.ci/limit`).

use std::process::Command;

use castnet_house::commands::root;

/// Set for the test program that this test runs.
const HANG: &str = "CASTNET_HANG";

#[test]
fn hangs_if_asked() {
    if std::env::var_os(HANG).is_none() {
        return;
    }
    // It has the output of this program, as a process that a lab starts.
    let mut child = Command::new("sh")
        .args(["-c", "sleep 20; echo survived"])
        .spawn()
        .expect("sh");
    loop {
        std::thread::park();
        assert!(child.try_wait().expect("a child").is_none());
    }
}

#[test]
fn a_test_that_hangs_is_killed_and_named() {
    let program = std::env::current_exe().expect("this program");
    let run = |hangs: bool| {
        let mut command = Command::new(root().join(".ci/limit"));
        command.arg(&program).args(["limit::hangs_if_asked", "--exact"]);
        command.env("CASTNET_TEST_LIMIT_S", "1").env_remove(HANG);
        if hangs {
            command.env(HANG, "1");
        }
        command.output().expect("bash")
    };
    let hung = run(true);
    let said = String::from_utf8_lossy(&hung.stderr);
    assert!(!hung.status.success(), "{said}");
    // Names of threads have 15 characters.
    assert!(said.contains("HANGS: limit::hangs_if,"), "{said}");
    assert!(said.contains("killed after 1 s"), "{said}");
    assert!(
        !String::from_utf8_lossy(&hung.stdout).contains("survived"),
        "its child lives on"
    );
    assert!(run(false).status.success());
}
