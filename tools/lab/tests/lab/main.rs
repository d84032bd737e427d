//! The experiments as a user runs them: one program.

mod bench;
mod epic;
mod shufflecast;
mod sim;

use assert_cmd::Command;

#[test]
fn the_version_names_the_commit_as_that_of_castnet_does() {
    let mut program = Command::new(assert_cmd::cargo::cargo_bin!("castnet-lab"));
    let output = program.arg("--version").output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let begin = concat!("castnet-lab ", env!("CARGO_PKG_VERSION"), " (");
    assert!(
        text.starts_with(begin) && text.ends_with("no features)\n"),
        "{text}"
    );
    // Sources from an archive have no commit.
    if text.contains("; ") {
        assert!(text.starts_with(&format!("{begin}commit ")), "{text}");
    }
}
