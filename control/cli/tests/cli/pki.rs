//! Services with the certificates of `castnet pki`: what a host may do, and what only an operator may.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;

use nix::sys::signal::Signal;

use crate::fabric::PATIENCE;
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
    let controller = controller(folder.path(), &pki);
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

/// A controller with the certificate `c1`, of a switch that is not there.
fn controller(folder: &Path, pki: &Path) -> Service {
    let known = format!("sw=unix:{}", folder.join("nobody.sock").display());
    let fixed = [
        "controller",
        "--listen",
        "https://127.0.0.1:0",
        "--operators",
        "ops",
        "--switch",
        &known,
    ];
    let tls = flags("c1", pki);
    let args: Vec<&str> = fixed.into_iter().chain(tls.iter().map(String::as_str)).collect();
    Service::start(&args)
}

/// A record of TLS with a ClientHello for a server of this name.
fn client_hello(name: &[u8]) -> Vec<u8> {
    let sized = |bytes: &[u8]| {
        let length = u16::try_from(bytes.len()).expect("a short one");
        [&length.to_be_bytes()[..], bytes].concat()
    };
    let extension = |kind: u8, bytes: &[u8]| [&[0, kind][..], &sized(bytes)[..]].concat();
    let names = sized(&[&[0][..], &sized(name)[..]].concat());
    let key = [&[0_u8, 36, 0, 0x1d, 0, 32][..], &[9; 32][..]].concat();
    let extensions = [
        extension(0, &names),
        // The groups and algorithms: x25519, and ECDSA with P-256 and SHA-256. The version: 1.3.
        extension(10, &[0, 2, 0, 0x1d]),
        extension(13, &[0, 2, 4, 3]),
        extension(43, &[2, 3, 4]),
        extension(51, &key),
    ]
    .concat();
    let cipher = [0, 0, 2, 0x13, 1, 1, 0];
    let hello = [&[3, 3][..], &[7; 32][..], &cipher[..], &sized(&extensions)[..]].concat();
    let handshake = [&[1, 0][..], &sized(&hello)[..]].concat();
    [&[0x16, 3, 1][..], &sized(&handshake)[..]].concat()
}

/// A frame of HTTP/2 about the connection.
fn h2_frame(kind: u8, flags: u8, bytes: &[u8]) -> Vec<u8> {
    let length = u8::try_from(bytes.len()).expect("a short one");
    [&[0, 0, length, kind, flags, 0, 0, 0, 0][..], bytes].concat()
}

/// Anybody filled the disk: rustls warned of each wrong name of a server, with all of it, and h2 of each PING ACK.
#[test]
fn what_libraries_think_of_a_client_is_not_logged() {
    let folder = folder();
    let pki = folder.path().join("pki");
    let shown = pki.display().to_string();
    castnet().args(["pki", "init", &shown]).assert().success();
    castnet().args(["pki", "issue", &shown, "c1"]).assert().success();
    let controller = controller(folder.path(), &pki);
    let address = controller.address.strip_prefix("https://").expect("TLS");
    let mut socket = TcpStream::connect(address).expect("it accepts");
    socket.set_read_timeout(Some(PATIENCE)).expect("set");
    socket.write_all(&client_hello(&[1; 300])).expect("sent");
    // An alert and the end, once it has read the name.
    let _ = socket.read_to_end(&mut Vec::new());

    let switch = Service::switch(folder.path());
    let path = switch.address.strip_prefix("unix:").expect("a Unix socket");
    let mut socket = UnixStream::connect(path).expect("it accepts");
    socket.set_read_timeout(Some(PATIENCE)).expect("set");
    let begin = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let (settings, ping) = (h2_frame(4, 0, &[]), h2_frame(6, 0, &[9; 8]));
    let unasked = h2_frame(6, 1, &[7; 8]).repeat(100);
    let all = [&begin[..], &settings[..], &unasked[..], &ping[..]].concat();
    socket.write_all(&all).expect("sent");
    let answered = loop {
        let mut head = [0; 9];
        socket.read_exact(&mut head).expect("a frame");
        let mut bytes = vec![0; usize::from(u16::from_be_bytes([head[1], head[2]]))];
        socket.read_exact(&mut bytes).expect("all of it");
        if (head[3], head[4]) == (6, 1) {
            break bytes;
        }
    };
    assert_eq!(answered, [9_u8; 8]);
    for mut service in [controller, switch] {
        let mut log = service.child.stderr.take().expect("stderr");
        service.stop(Signal::SIGINT);
        let mut text = String::new();
        log.read_to_string(&mut text).expect("UTF-8");
        assert!(!text.contains("SNI") && !text.contains("PING"), "{text}");
    }
}
