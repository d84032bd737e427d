//! Services with the certificates of `castnet pki`: what a host may do, and what only an operator may.

use std::path::Path;

use crate::live::{Service, castnet, folder};

/// Runs `castnet` with the certificate of `name`; exit code, stdout and stderr.
fn run_as(name: &str, args: &[&str], controller: &str, pki: &Path) -> (i32, String) {
    let output = castnet()
        .args(args)
        .args(["--output", "json", "--controller", controller])
        .args(flags(name, pki))
        .output()
        .expect("it runs");
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.code().unwrap_or(-1),
        String::from_utf8(text).expect("UTF-8"),
    )
}

fn flags(name: &str, pki: &Path) -> Vec<String> {
    let path = |file: String| pki.join(file).display().to_string();
    let flags = [
        ("--tls-ca", path("ca.pem".into())),
        ("--tls-cert", path(format!("{name}.pem"))),
        ("--tls-key", path(format!("{name}.key"))),
    ];
    flags
        .into_iter()
        .flat_map(|(flag, file)| [flag.to_owned(), file])
        .collect()
}

#[test]
fn the_certificate_of_a_host_joins_as_that_host_and_does_nothing_else() {
    let folder = folder();
    let pki = folder.path().join("pki");
    let shown = pki.display().to_string();
    castnet().args(["pki", "init", &shown]).assert().success();
    for name in ["c1", "ops", "h1", "h9"] {
        let issue = ["pki", "issue", &shown, name, "--san", "localhost"];
        castnet()
            .args(&issue[..if name == "c1" { 6 } else { 4 }])
            .assert()
            .success();
    }
    let known = format!("sw=unix:{}", folder.path().join("nobody.sock").display());
    let fixed = [
        "controller",
        "--listen",
        "https://127.0.0.1:0",
        "--operators",
        "ops",
        "--switch",
        &known,
    ];
    let tls = flags("c1", &pki);
    let args: Vec<&str> = fixed.into_iter().chain(tls.iter().map(String::as_str)).collect();
    let controller = Service::start(&args);
    let address = controller.address.replace("127.0.0.1", "localhost");
    let run = |name: &str, args: &[&str]| run_as(name, args, &address, &pki);

    let (code, text) = run(
        "ops",
        &["group", "create", "g", "--source", "h1", "--members", "h2"],
    );
    assert_eq!(code, 0, "{text}");
    // Its own group, without the switches.
    let (code, text) = run("h1", &["group", "show", "g"]);
    assert!(code == 0 && text.contains("registered"), "{text}");
    let denied: [&[&str]; 11] = [
        &["group", "show", "g"],
        &["group", "create", "x", "--source", "h9", "--members", "h2"],
        &["group", "destroy", "g"],
        &["group", "destroy", "g", "--force"],
        &["group", "evict", "g", "h1"],
        &["group", "list"],
        &["host", "forget", "h1"],
        &["group", "plan", "x", "--source", "h1", "--members", "h2"],
        &["topology"],
        &["events"],
        &["log-level", "debug"],
    ];
    for args in denied {
        let (code, text) = run("h9", args);
        let next = text.contains("give the certificate of a role that may");
        assert!(
            code == 3 && text.contains("h9 (") && next,
            "castnet {args:?}: {code} {text}"
        );
    }
    // One of another authority gets no answer.
    let others = folder.path().join("others");
    let shown = others.display().to_string();
    castnet().args(["pki", "init", &shown]).assert().success();
    castnet().args(["pki", "issue", &shown, "ops"]).assert().success();
    // A client that does not trust the controller learns why.
    for (address, pki, next) in [
        (&address, &others, "--tls-ca FILE"),
        (&controller.address, &pki, "--san HOST"),
    ] {
        let (code, text) = run_as("ops", &["group", "list"], address, pki);
        assert!(code == 4 && text.contains(next), "{code} {text}");
    }
    std::fs::copy(pki.join("ca.pem"), others.join("ca.pem")).expect("copied");
    let (code, text) = run_as("ops", &["group", "list"], &address, &others);
    assert!(
        code == 4 && text.contains("accepts the certificate"),
        "{code} {text}"
    );
}
