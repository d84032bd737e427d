//! What operators do beside groups: exit codes, the log, versions, stores, plans, events of a controller.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command as Process, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use castnet_controller::store::redb::RedbStore;
use castnet_controller::store::{Key, Store as _, Table, Write};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::live::{Service, ask, castnet, folder, json, refusal};

#[test]
fn an_address_in_a_variable_that_is_none_is_no_fault_of_the_flag() {
    let run = |args: &[&str]| {
        let output = castnet().env("CASTNET_AGENT", "nonsense").args(args).output();
        String::from_utf8_lossy(&output.expect("it runs").stderr).into_owned()
    };
    let text = run(&["port"]);
    assert!(text.contains("'CASTNET_AGENT (environment)'"), "{text}");
    let text = run(&["port", "--agent", "nonsense"]);
    assert!(text.contains("'--agent <URL>'"), "{text}");
}

#[test]
fn a_mistyped_filter_of_the_log_is_refused_at_start() {
    let run = |filter: &str| {
        let mut command = castnet();
        let output = command
            .env("RUST_LOG", filter)
            .args(["rules", "example"])
            .output();
        let output = output.expect("it runs");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), text)
    };
    for (filter, fault) in [
        ("debgu", "debgu"),
        ("info,castnet_worker=loud", "castnet_worker=loud"),
    ] {
        let (code, text) = run(filter);
        assert_eq!(code, Some(2), "{text}");
        let said = format!("error: RUST_LOG: {fault:?} is no filter of the log");
        assert!(text.contains(&said), "{text}");
    }
    assert_eq!(run(""), (Some(0), String::new()));
}

/// The table of `castnet --help`, row by row.
#[test]
fn exit_codes_are_those_of_the_table() {
    let folder = folder();
    let switch = Service::switch(folder.path());
    let nobody = format!("unix:{}", folder.path().join("nobody.sock").display());
    let help = castnet().arg("--help").output().expect("it runs").stdout;
    let help = String::from_utf8(help).expect("UTF-8");
    let rows = help.lines().skip_while(|line| *line != "Exit codes:").skip(1);
    let rows: Vec<&str> = rows.take_while(|line| !line.is_empty()).collect();
    let cases: [(&[&str], &str); 5] = [
        (&["port"], &switch.address),
        (&["trace", "--drops", "--wait", "50ms"], &switch.address),
        (&["port", "--colour"], &switch.address),
        (&["group", "show", "nobody"], &switch.address),
        (&["port"], &nobody),
    ];
    assert_eq!(rows.len(), cases.len(), "{rows:?}");
    for (row, (args, address)) in rows.iter().zip(cases) {
        let code: i32 = row
            .split_whitespace()
            .next()
            .and_then(|c| c.parse().ok())
            .expect("a code");
        let output = castnet()
            .args(args)
            .args(["--agent", address])
            .output()
            .expect("it runs");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            output.status.code(),
            Some(code),
            "castnet {args:?} by '{row}': {text}"
        );
    }
}

#[test]
fn the_log_filter_of_a_service_is_shown_and_set() {
    const DEFAULT: &str = "error,rustls=off,castnet=warn,castnet_comm=error";
    let folder = folder();
    let mut switch = Service::switch(folder.path());
    let listen = format!("unix:{}", folder.path().join("c.sock").display());
    let known = format!("sw={}", switch.address);
    let controller = Service::start(&["controller", "--listen", &listen, "--switch", &known]);
    let shown = ask(&["log-level"], &switch);
    assert_eq!(
        (&shown["filter"], &shown["then"]),
        (&DEFAULT.into(), &Value::Null)
    );
    let debug = json(
        &["log-level", "debug", "--for", "10m"],
        &controller,
        "--controller",
    );
    assert_eq!(
        (&debug["filter"], &debug["then"]),
        (&"debug".into(), &DEFAULT.into())
    );
    assert!(
        debug["then_in_ms"]
            .as_u64()
            .is_some_and(|ms| ms > 0 && ms <= 600_000),
        "{debug}"
    );
    for bad in ["debgu", "castnet_agent", "info,castnet_agent=loud"] {
        let (code, error) = refusal(&["log-level", bad], &switch, "--agent");
        let why = error["error"].as_str().unwrap_or_default();
        assert!(code == 3 && why.contains("is no filter of the log"), "{error}");
    }
    for filter in ["off", "warn"] {
        assert_eq!(ask(&["log-level", filter], &switch)["filter"], filter);
    }
    let mut log = switch.child.stderr.take().expect("stderr");
    switch.stop(Signal::SIGINT);
    let mut text = String::new();
    log.read_to_string(&mut text).expect("UTF-8");
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("log filter set"))
        .collect();
    assert!(
        lines.len() == 1 && lines[0].contains("warn"),
        "nothing is logged while it is off: {text}"
    );
}

#[test]
fn switches_report_the_version_of_the_binary() {
    let folder = folder();
    let switch = Service::switch(folder.path());
    let listen = format!("unix:{}", folder.path().join("c.sock").display());
    let known = format!("sw={}", switch.address);
    let controller = Service::start(&["controller", "--listen", &listen, "--switch", &known]);
    let version = castnet().arg("--version").output().expect("it runs").stdout;
    let version = String::from_utf8(version).expect("UTF-8");
    let reported = loop {
        let known = json(&["topology"], &controller, "--controller");
        if known["switches"][0]["reachable"] == true {
            break known["switches"][0]["version"].clone();
        }
    };
    assert_eq!(version.trim().strip_prefix("castnet "), reported.as_str());
}

/// Exit code, stdout and stderr.
fn run(args: &[&str]) -> (i32, String, String) {
    let output = castnet().args(args).output().expect("it runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    (
        output.status.code().unwrap_or(-1),
        text(output.stdout),
        text(output.stderr),
    )
}

#[test]
fn a_store_is_checked_exported_and_imported() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (store, other, backup) = (path("c.redb"), path("other.redb"), path("backup.json"));
    let listen = format!("unix:{}", path("c.sock"));
    let known = format!("sw=unix:{}", path("nobody.sock"));
    let args = ["controller", "--listen", &listen, "--switch", &known, "--store"];
    let controller = Service::start(&[&args[..], &[&store]].concat());
    let create = ["group", "create", "g", "--source", "h1", "--members", "h2,h3"];
    let created = json(&create, &controller, "--controller");
    let (code, _, why) = run(&["store", "check", &store]);
    assert!(
        code == 1 && why.contains("c.redb") && why.contains("no controller has it open"),
        "{why}"
    );
    controller.stop(Signal::SIGINT);

    let (code, text, why) = run(&["store", "check", &store]);
    assert_eq!((code, why.as_str()), (0, ""));
    assert!(text.contains("is sound: 1 group(s), 0 host(s)"), "{text}");
    let (code, document, why) = run(&["store", "export", &store]);
    assert_eq!((code, why.as_str()), (0, ""));
    std::fs::write(&backup, &document).expect("written");
    for (file, flags, expected, word) in [
        (&other, &[][..], 0, "has 1 group(s), 0 host(s) of"),
        (&other, &[], 3, "has 1 group(s) and 0 host(s) already"),
        (&other, &["--force"], 0, "has 1 group(s)"),
    ] {
        let before = std::fs::read(file).unwrap_or_default();
        let (code, out, err) = run(&[&["store", "import", file, &backup], flags].concat());
        assert!(
            code == expected && [out, err.clone()].concat().contains(word),
            "{err}"
        );
        let after = std::fs::read(file).expect("a store");
        assert!(expected == 0 || after == before, "a refusal writes nothing");
    }
    assert_eq!(run(&["store", "export", &other]).1, document);
    let controller = Service::start(&[&args[..], &[&other]].concat());
    let shown = json(&["group", "show", "g"], &controller, "--controller");
    assert_eq!(shown["mcst_id"], created["mcst_id"]);
    drop(controller);

    let config = path("controller.toml");
    std::fs::write(&config, "store = \"other.redb\"").expect("written");
    assert_eq!(
        run(&["store", "export", &config]).1,
        document,
        "the store that it names"
    );
    let nowhere = path("nowhere.redb");
    for (args, expected, word) in [
        (&["check", &nowhere][..], 1, "nowhere.redb"),
        (&["export", &backup], 1, "it is no store"),
        (
            &["import", &nowhere, "/nonexistent.json"],
            2,
            "cannot read /nonexistent.json",
        ),
        (
            &["import", &nowhere, "Cargo.toml"],
            2,
            "Cargo.toml: the document does not read",
        ),
    ] {
        let (code, _, err) = run(&[&["store"], args].concat());
        assert!(
            code == expected && err.contains(word),
            "castnet store {args:?}: {err}"
        );
    }
    std::fs::write(&backup, document.replace("\"schema\": 3", "\"schema\": 77")).expect("written");
    let (code, _, err) = run(&["store", "import", &nowhere, &backup]);
    assert!(
        code == 2 && err.contains("schema 77; this version reads 3"),
        "{err}"
    );
    let bad = document.replace("\"name\": \"g\"", "\"name\": \"other\"");
    std::fs::write(&backup, bad).expect("written");
    let (code, _, err) = run(&["store", "import", &nowhere, &backup]);
    assert!(
        code == 2 && err.contains("groups/g: its record is that of \"other\""),
        "{err}"
    );
    assert!(
        !Path::new(&nowhere).exists(),
        "a document with faults creates no store"
    );
}

#[tokio::test]
async fn an_export_that_leaves_entries_out_says_if_the_rest_was_not_written_either() {
    let folder = folder();
    let path = folder.path().join("c.redb");
    let store = RedbStore::open(&path).expect("a store");
    let entry = (Key::new(Table::Groups, "g"), Write::put(0, b"{}".to_vec()));
    store
        .commit([entry].into_iter().collect())
        .await
        .expect("written");
    drop(store);
    let full = std::fs::File::options().write(true).open("/dev/full");
    let output = Process::new(castnet().get_program())
        .args(["store", "export"])
        .arg(&path)
        .stdout(full.expect("a device"))
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("left out: groups/g: "), "{said}");
    assert!(said.contains("No space left"), "{said}");
}

#[test]
fn a_plan_is_shown_and_says_what_is_missing() {
    let folder = folder();
    let switch = Service::switch(folder.path());
    let listen = format!("unix:{}", folder.path().join("c.sock").display());
    let known = format!("sw={}", switch.address);
    let controller = Service::start(&["controller", "--listen", &listen, "--switch", &known]);
    let args = ["g", "--source", "h1", "--members", "h2,h3"];
    let job = ["job", "plan", "j", "--ranks", "h1,h2,h3"];
    for asked in [[&["group", "plan"][..], &args].concat(), job.to_vec()] {
        let plan = json(&asked, &controller, "--controller");
        assert_eq!(
            (&plan["may_come"], &plan["switches"]),
            (&true.into(), &Value::Array(vec![]))
        );
        let why = plan["refusal"].as_str().unwrap_or_default();
        assert!(why.contains("host \"h1\" was not seen yet"), "{plan}");
    }
    assert_eq!(
        json(&["group", "list"], &controller, "--controller"),
        Value::Array(vec![])
    );
    let (code, error) = refusal(
        &["group", "plan", "g", "--source", "h1", "--members", "h2"],
        &switch,
        "--agent",
    );
    assert!(code == 2, "{error}");
    let (code, error) = refusal(
        &["group", "plan", "g", "--source", "h1", "--members", "h1"],
        &controller,
        "--controller",
    );
    assert!(
        code == 3 && error["error"].to_string().contains("at least one receiver"),
        "{error}"
    );
}

/// Lines of a command as they come.
struct Lines {
    child: Child,
    lines: Receiver<Value>,
}

impl Lines {
    fn of(args: &[&str]) -> Self {
        let mut child = Process::new(castnet().get_program())
            .args(args)
            .args(["--output", "json"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("it runs");
        let out = BufReader::new(child.stdout.take().expect("stdout"));
        let (to, lines) = channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                let _ = to.send(serde_json::from_str(&line).expect("one object a line"));
            }
        });
        Self { child, lines }
    }

    /// The next line of this kind.
    fn next(&self, kind: &str) -> Value {
        loop {
            let line = self.lines.recv().expect("a line");
            if line["kind"] == kind {
                return line;
            }
        }
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn events_of_the_controller_are_followed_over_its_restart() {
    let folder = folder();
    let switch = Service::switch(folder.path());
    let listen = format!("unix:{}", folder.path().join("c.sock").display());
    let known = format!("sw={}", switch.address);
    let args = ["controller", "--listen", &listen, "--switch", &known];
    let controller = Service::start(&args);
    let events = Lines::of(&["events", "--controller", &controller.address, "--group", "last"]);
    let create = |name: &str, controller: &Service| {
        let create = ["group", "create", name, "--source", "h1", "--members", "h2,h3"];
        json(&create, controller, "--controller");
        json(&["group", "destroy", name], controller, "--controller");
    };
    let first = loop {
        // Events before the stream is open are not reported.
        create("other", &controller);
        create("last", &controller);
        if let Ok(line) = events.lines.recv_timeout(Duration::from_millis(50)) {
            break line;
        }
    };
    assert_eq!(first["group"], "last", "{first}");
    controller.stop(Signal::SIGINT);
    let lost = events.next("disconnected");
    assert!(
        lost["message"]
            .as_str()
            .is_some_and(|m| m.contains("trying again")),
        "{lost}"
    );
    let controller = Service::start(&args);
    events.next("connected");
    create("last", &controller);
    let group = events.next("group");
    assert_eq!(
        (&group["phase"], &group["members"]),
        (&"registered".into(), &3.into())
    );
    assert_eq!(events.next("group-gone")["group"], "last");

    let nobody = refusal(&["events"], &controller, "--agent").0;
    assert_eq!(nobody, 3, "a controller is no switch");
}

/// Each line of a log up to one that says `text`.
fn await_line(log: &mut impl BufRead, text: &str) {
    let mut line = String::new();
    while !line.contains(text) {
        line.clear();
        assert_ne!(
            log.read_line(&mut line).expect("UTF-8"),
            0,
            "it ended without {text:?}"
        );
    }
}

/// By default each of these ends a process, and SIGQUIT dumps its memory.
#[test]
fn a_service_stops_in_order_at_sigquit_and_not_at_signals_of_programs() {
    let folder = folder();
    let switch = Service::switch(folder.path());
    for signal in [Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGHUP] {
        switch.signal(signal);
        assert_eq!(ask(&["port"], &switch).as_array().map(Vec::len), Some(6));
    }
    let (last, code) = switch.stop(Signal::SIGQUIT);
    let summary: Value = serde_json::from_str(&last).expect("a summary");
    assert_eq!((code, &summary["groups"]), (Some(0), &1.into()));
    assert!(!folder.path().join("switch.ready").exists());
}

/// As after a restart, but for the connections. A file with a fault, or what takes a restart, changes nothing. No SIGHUP ends a service.
#[test]
fn services_take_over_their_configuration_at_sighup() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let mut switch = Service::switch(folder.path());
    let write = |socket: &str, switches: &[&str]| {
        let mut text = format!("listen = \"unix:{}\"\nstore = \"c.redb\"\n", at(socket));
        for name in switches {
            let agent = match *name {
                "sw" => switch.address.clone(),
                other => format!("unix:{}", at(other)),
            };
            text += &format!("[[switches]]\nname = \"{name}\"\nagent = \"{agent}\"\n");
        }
        std::fs::write(at("c.toml"), text).expect("written");
    };
    write("c.sock", &["away"]);
    let mut controller = Service::start(&["controller", "--config", &at("c.toml")]);
    let mut log = BufReader::new(controller.child.stderr.take().expect("stderr"));
    let create = ["group", "create", "g", "--source", "h1", "--members", "h2"];
    let created = json(&create, &controller, "--controller");

    write("c.sock", &["away", "sw"]);
    controller.signal(Signal::SIGHUP);
    await_line(&mut log, "its configuration was read again");
    let switches = || {
        let known = json(&["topology"], &controller, "--controller");
        let known = known["switches"].as_array().expect("switches");
        let state = |s: &Value| (s["name"].to_string(), s["reachable"] == true);
        known.iter().map(state).collect::<Vec<_>>()
    };
    while switches() != [("\"away\"".to_owned(), false), ("\"sw\"".to_owned(), true)] {}
    let shown = json(&["group", "show", "g"], &controller, "--controller");
    assert_eq!(shown["mcst_id"], created["mcst_id"]);

    for faulty in ["listen = 3\n", "[[switches]]\n"] {
        std::fs::write(at("c.toml"), faulty).expect("written");
        controller.signal(Signal::SIGHUP);
        await_line(&mut log, "the configuration stays as it is");
    }
    write("elsewhere.sock", &["sw"]);
    controller.signal(Signal::SIGHUP);
    await_line(&mut log, "listen is another one than at the start");
    assert_eq!(switches().len(), 2);
    assert_eq!(controller.stop(Signal::SIGTERM).1, Some(0));

    let mut log = BufReader::new(switch.child.stderr.take().expect("stderr"));
    switch.signal(Signal::SIGHUP);
    await_line(&mut log, "roles of certificates were read again");
    assert_eq!(ask(&["port"], &switch).as_array().map(Vec::len), Some(6));
    assert_eq!(switch.stop(Signal::SIGTERM).1, Some(0));
}

/// Runs a switch named s in a shell that has done `before`, and returns it with its socket.
fn switch_after(before: &str, socket: &Path, more: &str) -> Child {
    let run = format!(
        "{before}; exec {} switch --name s --port a=memory:a --listen unix:{} {more} --output json",
        castnet().get_program().to_string_lossy(),
        socket.display()
    );
    let mut child = Process::new("bash")
        .args(["-c", &run])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("bash");
    let mut ready = String::new();
    let mut out = BufReader::new(child.stdout.take().expect("stdout"));
    out.read_line(&mut ready).expect("a ready line");
    child
}

/// As on a full disk: what does not fit is cut off again, so that the next line is one of its own.
#[test]
fn lines_of_the_audit_log_are_whole() {
    let folder = folder();
    let (socket, log) = (folder.path().join("s.sock"), folder.path().join("audit.jsonl"));
    let audit = format!("--audit-log {}", log.display());
    let mut child = switch_after("trap '' XFSZ; ulimit -f 2", &socket, &audit);
    let agent = format!("unix:{}", socket.display());
    for level in ["warn", "info"].repeat(8) {
        let done = castnet().args(["log-level", level, "--agent", &agent]).output();
        assert!(done.expect("it runs").status.success());
    }
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).expect("it is there");
    let mut said = String::new();
    let mut stderr = child.stderr.take().expect("stderr");
    stderr.read_to_string(&mut said).expect("UTF-8");
    let _ = child.wait();
    let text = std::fs::read_to_string(&log).expect("the log");
    assert!(
        (1500..=2048).contains(&text.len()) && text.ends_with('\n'),
        "{text}"
    );
    assert!(
        text.lines()
            .all(|line| serde_json::from_str::<Value>(line).is_ok()),
        "{text}"
    );
    assert!(said.contains("lines of the audit log are lost"), "{said}");
}

/// Many clients that stay: the service says why it takes no more, works on for those that it has, and takes the next when it can.
#[test]
fn a_service_without_descriptors_says_so_and_goes_on() {
    let folder = folder();
    let socket = folder.path().join("s.sock");
    let mut child = switch_after("ulimit -n 48", &socket, "");
    let mut log = BufReader::new(child.stderr.take().expect("stderr"));
    let clients: Vec<_> = (0..64)
        .map(|_| UnixStream::connect(&socket).expect("the backlog has room"))
        .collect();
    await_line(&mut log, "raise the limit of open files");
    drop(clients);
    let listen = format!("unix:{}", socket.display());
    let asked = castnet()
        .args(["port", "--agent", &listen])
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&asked.stderr).into_owned();
    let _ = child.kill();
    let _ = child.wait();
    assert!(asked.status.success(), "{said}");
    // Once at the begin, although it tries again every 500 ms, and once at the end.
    await_line(&mut log, "connections are accepted again");
}
