//! Commands against running services: a switch on memory links, which need no privileges, and a controller. Readiness is
//! waited for by reading what the services print; nothing here sleeps.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command as Process, Stdio};
use std::time::Instant;

use assert_cmd::Command;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use crate::cli::NOBODY;
use crate::fabric::PATIENCE;

const RULES: &str = include_str!("../../../../rules/examples/star.toml");

pub(crate) fn castnet() -> Command {
    let mut command = Command::cargo_bin("castnet").expect("the binary");
    // What a developer has set must not decide what is tested.
    for name in [
        "CASTNET_AGENT",
        "CASTNET_CONTROLLER",
        "CASTNET_TLS_CA",
        "CASTNET_TLS_CERT",
        "CASTNET_TLS_KEY",
        "RUST_LOG",
        "NOTIFY_SOCKET",
    ] {
        command.env_remove(name);
    }
    command
}

/// A command line whose words have no blanks.
pub(crate) fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

/// A service that runs until it is told to stop.
pub(crate) struct Service {
    pub(crate) child: Child,
    out: BufReader<ChildStdout>,
    pub(crate) address: String,
}

impl Service {
    pub(crate) fn start(args: &[&str]) -> Self {
        let mut child = Process::new(castnet().get_program())
            .args(args)
            .args(["--output", "json"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it runs");
        let mut out = BufReader::new(child.stdout.take().expect("stdout"));
        let mut line = String::new();
        out.read_line(&mut line).expect("a ready line");
        let ready: Value = serde_json::from_str(&line).unwrap_or_else(|_| {
            let mut text = String::new();
            let _ = child.stderr.take().expect("stderr").read_to_string(&mut text);
            panic!("not ready: {line}{text}")
        });
        let address = ready["listening"].as_str().expect("an address").to_owned();
        Self { child, out, address }
    }

    /// A switch of six memory ports with the example's rules.
    pub(crate) fn switch(folder: &Path) -> Self {
        let rules = folder.join("rules.toml");
        std::fs::write(&rules, RULES).expect("written");
        let (folder, rules) = (folder.display(), rules.display());
        let line = format!(
            "switch --name sw --listen unix:{folder}/switch.sock --ready-file {folder}/switch.ready --rules {rules}"
        );
        let mut args = words(&line);
        let ports: Vec<String> = ["a", "b", "c", "d", "up1", "up2"]
            .map(|p| format!("{p}=memory:{p}"))
            .into();
        args.extend(ports.iter().flat_map(|p| ["--port", p.as_str()]));
        Self::start(&args)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).expect("it is there");
    }

    /// Asks it to stop; its last words, and its exit code.
    pub(crate) fn stop(mut self, signal: Signal) -> (String, Option<i32>) {
        self.signal(signal);
        let mut last = String::new();
        self.out.read_to_string(&mut last).expect("UTF-8");
        (last, self.child.wait().expect("it ends").code())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether a process catches a signal (`SigCgt:`), or ignores it (`SigIgn:`).
fn has_signal(pid: u32, mask: &str, signal: Signal) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix(mask));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & (1 << (signal as u32 - 1)) != 0)
}

/// Nobody opens the other end of the pipe.
#[test]
fn a_signal_ends_a_program_that_waits_for_the_other_end_of_a_pipe() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let pipe = at("pipe");
    let made = Process::new("mkfifo").arg(&pipe).status();
    assert!(made.expect("mkfifo").success());
    let (memif, unix) = (format!("memif:{}", at("h1")), format!("unix:{}", at("s")));
    let (none, port) = (format!("s=unix:{}", at("none")), format!("a=memif:{}", at("a")));
    let pcap = format!("b=pcap:{pipe},{}", at("out"));
    let group = ["--mcst-id", "10.255.0.1", "--qpn", "0x12", "--start-psn", "0"];
    let host = ["--interface", &memif, "--ip", "10.0.0.1/24", "--name", "h1"];
    let switch = ["switch", "--name", "s", "--port", &port, "--listen", &unix];
    let controller = ["controller", "--switch", &none, "--listen", &unix];
    // A closed terminal sends SIGHUP, which a service takes otherwise.
    let send = [&["host", "send", "--file", &pipe][..], &host, &group].concat();
    for (signal, args) in [
        (Signal::SIGTERM, send.clone()),
        (Signal::SIGHUP, send.clone()),
        (Signal::SIGQUIT, send),
        (Signal::SIGTERM, [&switch[..], &["--audit-log", &pipe]].concat()),
        (Signal::SIGTERM, [&switch[..], &["--ready-file", &pipe]].concat()),
        (Signal::SIGTERM, [&switch[..], &["--port", &pcap]].concat()),
        (
            Signal::SIGTERM,
            [&controller[..], &["--audit-log", &pipe]].concat(),
        ),
    ] {
        if signal == Signal::SIGHUP && has_signal(std::process::id(), "SigIgn:", signal) {
            // These tests run under nohup(1): it stays ignored.
            continue;
        }
        let mut child = Process::new(castnet().get_program())
            .args(&args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it runs");
        while !has_signal(child.id(), "SigCgt:", signal) {
            assert!(child.try_wait().expect("a child").is_none(), "{args:?}");
            std::thread::yield_now();
        }
        kill(Pid::from_raw(child.id() as i32), signal).expect("it is there");
        let (since, mut ended) = (Instant::now(), None);
        while ended.is_none() && since.elapsed() < PATIENCE {
            ended = child.try_wait().expect("a child");
            std::thread::yield_now();
        }
        let _ = child.kill();
        let output = child.wait_with_output().expect("its output");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            ended.and_then(|status| status.code()),
            Some(1),
            "{args:?}: {said}"
        );
        assert!(said.contains("stopped by a signal"), "{args:?}: {said}");
    }
}

/// No call waits for the reader of a pipe: it is opened before the switch is asked.
#[test]
fn a_capture_into_a_pipe_waits_for_its_reader_first() {
    let folder = folder();
    let pipe = folder.path().join("pipe").display().to_string();
    let made = Process::new("mkfifo").arg(&pipe).status();
    assert!(made.expect("mkfifo").success());
    let mut reader = Process::new("cat").arg(&pipe).spawn().expect("cat");
    let capture = ["capture", "-o", &pipe, "--agent", NOBODY];
    let captured = castnet().args(capture).output().expect("it runs");
    let (since, mut ended) = (Instant::now(), None);
    while ended.is_none() && since.elapsed() < PATIENCE {
        ended = reader.try_wait().expect("a child");
        std::thread::yield_now();
    }
    let _ = reader.kill();
    let _ = reader.wait();
    assert_eq!(captured.status.code(), Some(4));
    assert!(ended.is_some(), "the pipe was not opened");
}

/// Nothing is joined or asked: bytes that go nowhere are no success, and an empty file is not what was to be sent.
#[test]
fn a_closed_stdin_or_stdout_is_refused() {
    let host = "--interface memory:nowhere --ip 10.0.0.1/24 --name h1 --group g";
    for (line, closed) in [
        (format!("host receive {host} --out - >&-"), "stdout is closed"),
        (format!("host send {host} --file - <&-"), "stdin is closed"),
        (
            format!("capture --agent {NOBODY} --out - >&-"),
            "stdout is closed",
        ),
    ] {
        let run = format!("exec {} {line}", castnet().get_program().to_string_lossy());
        let output = Process::new("bash").args(["-c", &run]).output().expect("bash");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code() == Some(2) && said.contains(closed),
            "{line}: {said}"
        );
    }
}

/// A folder for sockets: their paths must be short.
pub(crate) fn folder() -> TempDir {
    tempfile::Builder::new()
        .prefix("cn")
        .tempdir_in("/tmp")
        .expect("a folder")
}

pub(crate) fn json(args: &[&str], service: &Service, flag: &str) -> Value {
    let output = castnet()
        .args(args)
        .args([flag, &service.address, "--output", "json"])
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "castnet {args:?}: {text}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| {
        panic!(
            "castnet {args:?}: {e} in {}",
            String::from_utf8_lossy(&output.stdout)
        )
    })
}

pub(crate) fn ask(args: &[&str], switch: &Service) -> Value {
    json(args, switch, "--agent")
}

/// The exit code and the machine's form of the error.
pub(crate) fn refusal(args: &[&str], switch: &Service, flag: &str) -> (i32, Value) {
    let output = castnet()
        .args(args)
        .args([flag, &switch.address, "--output", "json"])
        .output()
        .expect("it runs");
    (
        output.status.code().unwrap_or(-1),
        serde_json::from_slice(&output.stderr).unwrap_or_default(),
    )
}

/// An ARP request for 10.255.0.1, the McstID of the example, from 10.0.0.9.
const ARP: &str =
    "ffffffffffff 020000000009 0806 0001 0800 06 04 0001 020000000009 0a000009 000000000000 0aff0001";

#[test]
fn a_switch_answers_every_question_and_ends_with_a_summary() {
    let folder = folder();
    let switch = Service::switch(folder.path());
    assert!(folder.path().join("switch.ready").exists());

    let ports = ask(&["port"], &switch);
    let names: Vec<_> = ports
        .as_array()
        .expect("ports")
        .iter()
        .map(|p| p["name"].as_str().unwrap_or(""))
        .collect();
    assert_eq!(names, ["a", "b", "c", "d", "up1", "up2"]);
    assert_eq!(ask(&["port", "d"], &switch)[0]["port"], 3);
    assert_eq!(refusal(&["port", "z"], &switch, "--agent").0, 3);

    let counters = ask(&["counters"], &switch);
    assert_eq!(counters["groups"][0]["group"], "weights");
    assert_eq!(counters["ports"].as_array().map(Vec::len), Some(6));
    assert!(
        ask(&["drops", "--all"], &switch)
            .as_array()
            .is_some_and(|d| d.len() == castnet_wire::DropReason::COUNT)
    );
    assert_eq!(ask(&["fdb"], &switch), Value::Array(vec![]));
    ask(&["neighbours"], &switch);

    let groups = ask(&["group", "list"], &switch);
    assert_eq!(
        (&groups[0]["group"], &groups[0]["mcst_id"]),
        (&"weights".into(), &"10.255.0.1".into())
    );
    let group = ask(&["group", "show", "weights"], &switch);
    assert_eq!(group["paths"].as_array().map(Vec::len), Some(4));
    assert_eq!(group["switch"], "sw");
    assert_eq!(
        ask(&["group", "members", "10.255.0.1"], &switch)[0]["next_hop"],
        "a"
    );

    // Two signals at once, as `timeout` sends them to a program and to its group, are one.
    for signal in [Signal::SIGSTOP, Signal::SIGTERM, Signal::SIGINT] {
        switch.signal(signal);
    }
    let (last, code) = switch.stop(Signal::SIGCONT);
    let summary: Value = serde_json::from_str(&last).expect("a summary");
    assert_eq!(
        (code, &summary["name"], &summary["groups"]),
        (Some(0), &"sw".into(), &1.into())
    );
    assert!(!folder.path().join("switch.ready").exists() && !folder.path().join("switch.sock").exists());
}

/// Two switches on the same interfaces would forward each frame twice.
#[test]
fn a_switch_that_cannot_listen_opens_no_port() {
    let folder = folder();
    let switch = Service::switch(folder.path());
    let out = folder.path().join("out.pcap");
    let (port, listen) = (out.display(), &switch.address);
    let second = format!("switch --name s2 --port a=pcap:,{port} --listen {listen}");
    let output = castnet().args(words(&second)).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(1) && said.contains("cannot listen"),
        "{said}"
    );
    assert!(!out.exists(), "{said}");
}

#[test]
fn groups_and_routes_of_a_switch_can_be_changed() {
    let folder = folder();
    let switch = Service::switch(folder.path());
    assert_eq!(ask(&["group", "destroy", "weights"], &switch)["complete"], true);
    assert_eq!(refusal(&["group", "show", "weights"], &switch, "--agent").0, 3);
    let rules = folder.path().join("rules.toml").display().to_string();
    assert_eq!(
        ask(&["group", "install", &rules], &switch)["installed"][0],
        "weights"
    );
    let (code, error) = refusal(&["group", "install", &rules, "nobody"], &switch, "--agent");
    assert_eq!((code, &error["exit_code"]), (2, &2.into()));

    assert_eq!(
        ask(&["route", "list"], &switch)[0]["next_hops"][1]["port_name"],
        "up2"
    );
    let add = words("route add 10.9.0.0/16 --via up1=02:00:00:00:00:11 --via 5=02:00:00:00:00:12");
    assert_eq!(ask(&add, &switch)["replaced"], false);
    assert_eq!(ask(&add, &switch)["replaced"], true);
    assert_eq!(ask(&["route", "list"], &switch).as_array().map(Vec::len), Some(2));
    assert_eq!(ask(&["route", "remove", "10.9.0.0/16"], &switch)["removed"], true);
    assert_eq!(
        refusal(&["route", "remove", "10.9.0.0/16"], &switch, "--agent").0,
        3
    );
    assert_eq!(
        refusal(
            &["route", "add", "10.9.0.0/16", "--via", "z=02:00:00:00:00:11"],
            &switch,
            "--agent"
        )
        .0,
        3
    );
    let odd = ["route", "add", "10.9.0.1/16", "--via", "a=02:00:00:00:00:11"];
    let (code, error) = refusal(&odd, &switch, "--agent");
    assert!(
        code == 3 && error["error"].as_str().is_some_and(|e| e.contains("bits set")),
        "{error}"
    );

    let replicate = |prefix: &'static str| {
        let via = ["--via", "up1=02:00:00:00:00:11", "--via", "5=02:00:00:00:00:12"];
        [&["route", "add", prefix, "--replicate"], &via[..]].concat()
    };
    ask(&replicate("239.1.0.0/16"), &switch);
    let listed = ask(&["route", "list"], &switch);
    let rule = listed
        .as_array()
        .and_then(|all| all.iter().find(|r| r["prefix"] == "239.1.0.0/16"));
    assert!(rule.is_some_and(|r| r["replicate"] == true), "{listed}");
    let (code, error) = refusal(&replicate("10.9.0.0/16"), &switch, "--agent");
    assert!(
        code == 3
            && error["error"]
                .as_str()
                .is_some_and(|e| e.contains("multicast addresses")),
        "{error}"
    );
}

#[test]
fn a_collective_group_of_a_rule_file_is_installed_shown_counted_and_removed() {
    let folder = folder();
    let switch = Service::switch(folder.path());
    let rules = folder.path().join("collective.toml");
    std::fs::write(&rules, castnet_rules::COLLECTIVE_EXAMPLE).expect("written");
    let rules = rules.display().to_string();
    let create = ["group", "install", &rules];
    assert_eq!(
        ask(&create, &switch)["installed"],
        serde_json::json!(["gradients"])
    );

    let groups = ask(&["group", "list"], &switch);
    let kinds: Vec<_> = groups
        .as_array()
        .expect("groups")
        .iter()
        .map(|g| &g["kind"])
        .collect();
    assert_eq!(kinds, ["multicast", "collective"]);
    assert!(groups[1]["memory_bytes"].as_u64() > Some(256 * 1024), "{groups}");
    let shown = ask(&["group", "show", "gradients"], &switch);
    assert_eq!(
        (&shown["kind"], &shown["progress"]["slots"], &shown["parent_port"]),
        (&"collective".into(), &256.into(), &Value::Null)
    );
    assert_eq!(shown["endpoints"][2]["next_hop"], "c");
    let members = ask(&["group", "members", "10.255.1.1"], &switch);
    assert_eq!(members[1]["ranks"], serde_json::json!([1]));

    let counters = ask(&["counters"], &switch);
    assert_eq!(counters["groups"][0]["group"], "weights");
    let group = &counters["collectives"][0];
    assert_eq!(
        (&group["group"], &group["contributions"]),
        (&"gradients".into(), &0.into())
    );
    let towards: Vec<_> = (0..3).map(|i| &group["endpoints"][i]["next_hop"]).collect();
    assert_eq!(towards, ["a", "b", "c"]);
    let page = castnet()
        .args(["counters", "--agent", &switch.address])
        .output()
        .expect("it runs");
    let page = String::from_utf8_lossy(&page.stdout);
    assert!(page.contains("Endpoints of collective groups"), "{page}");

    // Twice is once; another rule of the same generation is refused, and says which group.
    ask(&create, &switch);
    let other = castnet_rules::COLLECTIVE_EXAMPLE.replace("slots = 256", "slots = 64");
    std::fs::write(&rules, other).expect("written");
    let (code, error) = refusal(&create, &switch, "--agent");
    assert!(
        code == 3
            && error["error"]
                .as_str()
                .is_some_and(|e| e.starts_with("group gradients: ")),
        "{error}"
    );
    assert_eq!(ask(&["group", "destroy", "gradients"], &switch)["complete"], true);
    assert_eq!(ask(&["counters"], &switch)["collectives"], Value::Array(vec![]));
}

#[test]
fn a_forwarding_group_of_a_rule_file_is_checked_installed_shown_and_counted() {
    let folder = folder();
    let switch = Service::switch(folder.path());
    let rules = folder.path().join("forwarding.toml");
    std::fs::write(&rules, castnet_rules::FORWARDING_EXAMPLE).expect("written");
    let rules = rules.display().to_string();
    let checked = castnet()
        .args(["rules", "check", &rules])
        .output()
        .expect("it runs");
    let checked = String::from_utf8_lossy(&checked.stdout);
    assert!(
        checked.contains("good: 0 multicast groups, 0 collective groups, 1 forwarding group, 0 routes"),
        "{checked}"
    );
    let created = ask(&["group", "install", &rules], &switch);
    assert_eq!(created["installed"], serde_json::json!(["pair"]));

    let groups = ask(&["group", "list"], &switch);
    let (kind, memory) = (&groups[1]["kind"], &groups[1]["memory_bytes"]);
    assert!(kind == "forwarding" && memory.as_u64() > Some(0), "{groups}");
    let shown = ask(&["group", "show", "pair"], &switch);
    assert_eq!(
        (&shown["kind"], &shown["forwarded"]),
        (&"forwarding".into(), &0.into())
    );
    assert_eq!(shown["endpoints"][1]["next_hop"], "b");
    let members = ask(&["group", "members", "pair"], &switch);
    assert_eq!(members, shown["endpoints"]);
    let counters = ask(&["counters"], &switch);
    assert_eq!(counters["forwarding"][0]["group"], "pair");
    for command in [&["group", "show", "pair"][..], &["counters"]] {
        let page = castnet()
            .args(command)
            .args(["--agent", &switch.address])
            .output()
            .expect("it runs");
        let page = String::from_utf8_lossy(&page.stdout);
        assert!(page.contains("Forwarding group"), "{page}");
    }
}

#[test]
fn routes_of_a_rule_file_are_not_passed_over_in_silence() {
    let folder = folder();
    let switch = Service::switch(folder.path());
    let file = folder.path().join("rules.toml");
    let path = file.display().to_string();
    let create = ["group", "install", &path];
    let route =
        "\n[[routes]]\nprefix = \"10.9.0.0/16\"\nnext_hops = [{ port = 1, mac = \"02:00:00:00:00:11\" }]\n";
    std::fs::write(&file, route).expect("written");
    let (code, error) = refusal(&create, &switch, "--agent");
    assert_eq!(
        (code, &error["error"], &error["next"]),
        (
            2,
            &format!("{path} has no groups").into(),
            &"castnet route add installs routes".into()
        )
    );
    std::fs::write(&file, castnet_rules::FORWARDING_EXAMPLE.to_owned() + route).expect("written");
    let created = ask(&create, &switch);
    assert_eq!(
        created,
        serde_json::json!({ "installed": ["pair"], "routes_not_installed": 1 })
    );
    let (code, error) = refusal(&["group", "install", &path, "other"], &switch, "--agent");
    assert_eq!(
        (code, &error["error"]),
        (2, &format!("{path} has no group 'other'").into())
    );
}

/// The second group of the file has a queue pair of a group that runs: neither is installed.
#[test]
fn a_file_of_groups_is_installed_whole_or_not_at_all() {
    let folder = folder();
    let switch = Service::switch(folder.path());
    let group = |name: &str, last: u8, qpn: u32| {
        let member = |port: u8| {
            format!(
                "{{ port = {port}, host = {{ name = \"m{port}\", ip = \"10.0.0.{}\", qpn = {qpn}, mac = \"02:00:00:00:00:01\" }} }}",
                port + 1
            )
        };
        let (first, second) = (member(0), member(1));
        format!(
            "[[groups]]\nname = \"{name}\"\nmcst_id = \"10.255.9.{last}\"\npmtu = 1024\nsource = 0\npaths = [{first}, {second}]\n"
        )
    };
    let file = folder.path().join("two.toml");
    std::fs::write(&file, group("good", 1, 0x99) + &group("bad", 2, 0x11)).expect("written");
    let create = ["group", "install", &file.display().to_string()];
    let (code, error) = refusal(&create, &switch, "--agent");
    let says =
        "group bad: rule.endpoints[0].host.qpn: the QP 0x11 of 10.0.0.1 belongs to group \"weights\" already";
    assert!(
        code == 3 && error["error"].as_str().is_some_and(|e| e.starts_with(says)),
        "{error}"
    );
    let groups = ask(&["group", "list"], &switch);
    let names: Vec<_> = groups
        .as_array()
        .expect("groups")
        .iter()
        .map(|g| &g["group"])
        .collect();
    assert_eq!(names, ["weights"]);

    // A new group is refused: those that run stay as they are.
    std::fs::write(&file, group("good", 1, 0x99) + &group("other", 3, 0x97)).expect("written");
    ask(&create, &switch);
    let newer = group("good", 1, 0x98).replace("pmtu", "generation = 5\npmtu");
    std::fs::write(&file, newer.clone() + &group("bad", 2, 0x11)).expect("written");
    let (code, error) = refusal(&create, &switch, "--agent");
    let said = error["error"].as_str().expect("an error");
    assert!(code == 3 && !said.contains("replaced"), "{said}");
    assert_eq!(ask(&["group", "show", "good"], &switch)["generation"], 0);

    // One that runs is refused: the new one is removed again, and what the file has replaced is named.
    let other = group("other", 3, 0x96);
    std::fs::write(&file, newer + &other + &group("new", 4, 0x95)).expect("written");
    let (code, error) = refusal(&create, &switch, "--agent");
    let said = error["error"].as_str().expect("an error");
    assert!(
        said.starts_with("group other: ") && said.ends_with("; replaced already, and not put back: good"),
        "{said}"
    );
    assert_eq!(code, 3);
    assert_eq!(refusal(&["group", "show", "new"], &switch, "--agent").0, 3);
}

#[test]
fn a_given_frame_is_traced_and_nothing_changes() {
    let folder = folder();
    let switch = Service::switch(folder.path());
    let trace = ask(&["trace", "--port", "b", "--hex", ARP], &switch);
    assert_eq!(trace["ingress_name"], "b");
    assert!(
        trace["steps"]
            .as_array()
            .is_some_and(|s| s.iter().any(|s| s["stage"] == "arp")),
        "{trace}"
    );
    assert_eq!(
        trace["outputs"][0]["port_name"], "b",
        "the switch answers for the McstID: {trace}"
    );
    assert_eq!(trace["drop_reason"], Value::Null);
    let dropped = ask(&["trace", "--port", "0", "--hex", "020000000001"], &switch);
    assert_eq!(dropped["drop_reason"], "malformed");
    assert_eq!(ask(&["counters"], &switch)["totals"]["dropped"], 0);
    assert_eq!(
        ask(&["fdb"], &switch),
        Value::Array(vec![]),
        "a dry run teaches nothing"
    );

    let sample = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/rxe-sample.pcap");
    if Path::new(sample).exists() {
        let trace = ask(
            &["trace", "--port", "a", "--pcap", sample, "--frame", "3"],
            &switch,
        );
        assert!(trace["summary"].as_str().is_some_and(|s| !s.is_empty()));
    }
    let text = castnet()
        .args(["trace", "--port", "b", "--hex", ARP, "--agent", &switch.address])
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&text.stdout);
    assert!(
        text.starts_with("in at b: ") && text.contains("=> out at b: "),
        "{text}"
    );
}

#[test]
fn what_goes_on_is_watched_and_captured() {
    let folder = folder();
    let switch = Service::switch(folder.path());
    let output = castnet()
        .args(words("counters --watch 20ms --count 3 --output json --agent"))
        .arg(&switch.address)
        .output()
        .expect("it runs");
    let lines: Vec<Value> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).expect("one object a line"))
        .collect();
    assert_eq!(lines.len(), 3);
    assert!(lines[0].get("seconds").is_none() && lines[2]["seconds"].as_f64().is_some_and(|s| s > 0.0));
    assert_eq!(lines[2]["port_rates"].as_array().map(Vec::len), Some(6));

    let file = folder.path().join("c.pcapng");
    let capture = format!("capture --port a --seconds 50ms -o {}", file.display());
    let captured = ask(&words(&capture), &switch);
    assert_eq!(captured["lost"], 0);
    let bytes = std::fs::read(&file).expect("a file");
    assert_eq!(bytes.get(..4), Some(&[0x0A, 0x0D, 0x0D, 0x0A][..]));

    let (code, _) = refusal(&["trace", "--drops", "--wait", "50ms"], &switch, "--agent");
    assert_eq!(code, 1, "nothing is dropped here");
    castnet()
        .args(["events", "--wait", "50ms", "--agent", &switch.address])
        .assert()
        .success();
}

#[test]
fn the_controller_keeps_its_groups_over_a_restart() {
    let folder = folder();
    let switch = Service::switch(folder.path());
    let (at, known) = (folder.path().display(), &switch.address);
    let line = format!("controller --listen unix:{at}/c.sock --store {at}/c.redb --switch sw={known}");
    let args = words(&line);
    let controller = Service::start(&args);
    let create = words("group create g --source h1 --members h2,h3 --pmtu 4096");
    let created = json(&create, &controller, "--controller");
    assert_eq!(
        (&created["phase"], &created["pmtu"]),
        (&"registered".into(), &4096.into())
    );
    assert_eq!(
        refusal(&create, &controller, "--controller").0,
        3,
        "there is one already"
    );
    assert_eq!(
        refusal(&["group", "show", "nobody"], &controller, "--controller").0,
        3
    );
    let (_, code) = controller.stop(Signal::SIGINT);
    assert_eq!(code, Some(0));

    let controller = Service::start(&args);
    let shown = json(&["group", "show", "g"], &controller, "--controller");
    assert_eq!(
        (&shown["mcst_id"], &shown["tree"]),
        (&created["mcst_id"], &Value::Null)
    );
    let members = json(&["group", "members", "g"], &controller, "--controller");
    assert_eq!(
        (members.as_array().map(Vec::len), &members[0]["role"]),
        (Some(3), &"source".into())
    );
    assert_eq!(
        json(&["group", "list"], &controller, "--controller")[0]["members"],
        3
    );
    json(&["topology"], &controller, "--controller");
    assert_eq!(
        json(&["group", "destroy", "g"], &controller, "--controller")["complete"],
        true
    );
    assert_eq!(
        json(&["group", "list"], &controller, "--controller"),
        Value::Array(vec![])
    );
}
