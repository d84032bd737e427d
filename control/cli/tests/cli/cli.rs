//! The binary as its users meet it: help, wrong flags, exit codes, output, broken pipes.

use std::io::Read;
use std::process::{Command as Process, Stdio};

use assert_cmd::Command;
use serde_json::Value;

use crate::live::{castnet, words};

/// Those of `castnet --help`.
const COMMANDS: [&str; 22] = [
    "demo",
    "switch",
    "controller",
    "host",
    "group",
    "port",
    "counters",
    "drops",
    "runtime",
    "fdb",
    "route",
    "neighbours",
    "trace",
    "capture",
    "rules",
    "doctor",
    "completions",
    "topology",
    "events",
    "log-level",
    "job",
    "store",
];

pub(crate) fn stdout(command: &mut Command) -> String {
    String::from_utf8(command.assert().success().get_output().stdout.clone()).expect("UTF-8")
}

pub(crate) fn number(value: &Value, path: &[&str]) -> u64 {
    let found = path.iter().fold(value, |v, key| &v[key]);
    found
        .as_u64()
        .unwrap_or_else(|| panic!("no number at {path:?} in {value}"))
}

/// Exit code and stderr.
fn failure(args: &[&str]) -> (i32, String) {
    let output = castnet().args(args).output().expect("it runs");
    (
        output.status.code().unwrap_or(-1),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

#[test]
fn help_names_every_command_and_the_exit_codes() {
    let help = stdout(castnet().arg("--help"));
    for word in COMMANDS
        .into_iter()
        .chain(["Exit codes", "refused", "unreachable"])
    {
        assert!(help.contains(word), "no {word} in --help");
    }
}

#[test]
fn the_version_names_commit_and_features() {
    let text = stdout(castnet().arg("--version"));
    let rest = text.strip_prefix(concat!("castnet ", env!("CARGO_PKG_VERSION"), " ("));
    let rest = rest
        .and_then(|rest| rest.strip_suffix(")\n"))
        .expect("what is in the binary");
    let parts: Vec<&str> = rest.split("; ").collect();
    let features = match cfg!(feature = "dpdk") {
        true => "features: dpdk",
        false => "no features",
    };
    assert_eq!(parts.last(), Some(&features), "{text}");
    // Sources from an archive have no commit.
    let commits = parts.iter().filter_map(|part| part.strip_prefix("commit "));
    for commit in commits {
        let hash = commit.strip_suffix(" with changes").unwrap_or(commit);
        assert!(
            hash.len() >= 12 && hash.bytes().all(|b| b.is_ascii_hexdigit()),
            "{text}"
        );
    }
}

#[test]
fn every_command_has_help_with_examples() {
    for command in COMMANDS {
        let help = stdout(castnet().args([command, "--help"]));
        assert!(
            help.contains("Examples:"),
            "castnet {command} --help has no examples"
        );
    }
}

#[test]
fn wrong_flags_and_values_end_with_2_and_say_what_would_be_right() {
    let refused = |args: &[&str], word: &str| {
        let (code, text) = failure(args);
        assert_eq!(code, 2, "{args:?}: {text}");
        assert!(text.contains(word), "{args:?}: no '{word}' in: {text}");
    };
    for (line, word) in [
        ("fly", "unrecognized subcommand"),
        ("port --colour", "unexpected argument"),
        ("demo --loss 150%", "outside"),
        ("port --agent localhost:7471", "http://127.0.0.1:PORT"),
        ("group create g", "--source"),
        ("group create g --source h1 --members h2 --pmtu 1500", "path MTU"),
        (
            "group create g --source h1 --members h2 --repair-slots 64",
            "--repair",
        ),
        ("switch --port a=af_packet:a,ecn=9:8:1%", "KMIN not above KMAX"),
        ("host replicate write --name h1 --servers h2", "--group"),
        ("trace --hex 00", "--port"),
        ("trace --drops=gremlins", "there is no reason"),
        ("switch", "needs ports"),
        ("switch --port h1=carrier:pigeon", "unknown kind"),
        ("switch --port h1=eth0 --fault loss=2", "probability"),
        ("switch --config /nonexistent/switch.toml", "cannot read"),
        ("controller", "needs switches"),
        ("controller --switch l@1=unix:/x", "1 to 63 letters"),
        (
            "controller --switch l=unix:/x --mcst-pool 0.0.0.0/0",
            "mcst_pool: 0.0.0.0/0 cannot be a pool",
        ),
        ("group create g --source h1 --members h@2", "1 to 63 letters"),
        ("job create g --ranks h1,h2 --window 1", "1 is not in 2.."),
        (
            "job create g --ranks h1,h2 --ack-timeout-us 50000",
            "33554 and 67108",
        ),
        (
            "job create g --ranks h1,h2 --description two\nlines",
            "at most 200 characters",
        ),
        (
            "group create g --source h1 --members h2 --stall-timeout-ms 0",
            "0 is not in 1..",
        ),
        ("rules check /nonexistent/rules.toml", "cannot read"),
    ] {
        refused(&words(line), word);
    }
    // Values with blanks.
    for (args, word) in [
        (&["demo", "--size", "12 parsecs"][..], "no size"),
        (&["switch", "--name", "leaf 1"], "1 to 63 letters"),
        (
            &["group", "create", "no blanks", "--source", "h1"],
            "1 to 63 letters",
        ),
    ] {
        refused(args, word);
    }
}

#[test]
fn a_wrong_command_line_is_json_if_json_was_asked_for() {
    for args in [
        &["port", "--colour", "--output", "json"][..],
        &["-O", "json", "fly"],
        &["group", "create", "g", "-Ojson"],
        &["sim", "--output=json"],
    ] {
        let (code, text) = failure(args);
        assert_eq!(code, 2, "{args:?}: {text}");
        let error: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{args:?}: {e}: {text}"));
        assert_eq!(error["kind"], "usage");
        assert_eq!(error["exit_code"], 2);
        assert!(error["next"].is_string(), "{args:?}: {error}");
    }
    // Help is no error.
    let help = stdout(castnet().args(["port", "--help", "-O", "json"]));
    assert!(help.contains("Examples:"), "{help}");
}

/// An address at which nobody listens: a socket file that does not exist.
pub(crate) const NOBODY: &str = "unix:/nonexistent/castnet.sock";

#[test]
fn turns_that_could_not_be_taken_are_refused_before_joining() {
    for (order, file, out, word) in [
        ("h1,h2", Some("/nonexistent"), "/tmp", "cannot read /nonexistent"),
        ("h1,h2", Some("/tmp"), "/tmp", "it is a folder"),
        ("h1,h2", Some("/dev/null"), "/nonexistent", "mkdir /nonexistent"),
        ("h1,,h2", Some("/dev/null"), "/tmp", "empty name"),
        ("h1,h2,h1", Some("-"), "/tmp", "h1 sends 2 times"),
        ("h1,h2", None, "/tmp", "--file is missing"),
        ("h2", Some("/dev/null"), "/tmp", "not in --order"),
    ] {
        let mut args = vec!["host", "turns", "--name", "h1", "--group", "g", "--order", order];
        args.extend(["--out", out]);
        args.extend(file.iter().flat_map(|file| ["--file", file]));
        let (code, text) = failure(&args);
        assert!(
            code == 2 && text.contains(word),
            "{order} {file:?}: {code} {text}"
        );
    }
}

#[test]
fn nobody_there_ends_with_4_and_says_what_to_do() {
    for args in [
        &["port", "--agent", NOBODY][..],
        &["counters", "--agent", NOBODY],
        &["group", "list", "--controller", NOBODY],
        &["group", "list", "--agent", NOBODY],
        &["topology", "--controller", NOBODY],
        &["trace", "--drops", "--agent", NOBODY],
    ] {
        let (code, text) = failure(args);
        assert_eq!(code, 4, "{args:?}: {text}");
        assert!(text.contains(" next: start the "), "{args:?}: {text}");
    }
    let (code, text) = failure(&["port", "--agent", NOBODY, "--output", "json"]);
    let error: Value = serde_json::from_str(&text).expect("JSON on stderr");
    assert_eq!(
        (code, &error["exit_code"], &error["kind"]),
        (4, &Value::from(4), &Value::from("unreachable"))
    );
}

/// The default address is asked. It does not matter whether a controller listens there: the command line is right.
#[test]
fn an_empty_variable_is_as_one_that_is_not_set() {
    for args in [&["group", "list"][..], &["log-level", "--controller"]] {
        let output = castnet()
            .env("CASTNET_CONTROLLER", "")
            .args(args)
            .output()
            .expect("it runs");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_ne!(output.status.code(), Some(2), "{text}");
    }
}

#[test]
fn plaintext_beyond_this_machine_is_refused_before_it_is_tried() {
    let (code, text) = failure(&["port", "--agent", "http://192.0.2.1:1"]);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("--insecure"), "{text}");
}

#[test]
fn the_rules_example_is_right_and_each_fault_has_its_place() {
    let folder = tempfile::tempdir().expect("a folder");
    let (good, bad) = (folder.path().join("good.toml"), folder.path().join("bad.toml"));
    let example = stdout(castnet().args(["rules", "example"]));
    std::fs::write(&good, &example).expect("written");
    stdout(castnet().args(["rules", "check"]).arg(&good));

    std::fs::write(
        &bad,
        example
            .replace("pmtu = 1024", "pmtu = 1500")
            .replace("0x11", "0x1000000"),
    )
    .expect("written");
    let output = castnet()
        .args(["rules", "check", "--output", "json"])
        .arg(&good)
        .arg(&bad)
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["files"][0]["faults"], Value::Array(vec![]));
    let faults = report["files"][1]["faults"].as_array().expect("faults");
    let fields: Vec<_> = faults
        .iter()
        .map(|f| f["field"].as_str().unwrap_or_default())
        .collect();
    assert_eq!(fields, ["groups[0].pmtu", "groups[0].endpoints[0].host.qpn"]);
    assert!(
        faults
            .iter()
            .all(|f| f["line"].as_u64().is_some_and(|line| line > 1))
    );

    let output = castnet()
        .args(["rules", "check"])
        .arg(&bad)
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("bad.toml:12:8: groups[0].pmtu: "), "{text}");
}

#[test]
fn collective_rules_are_checked_like_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let (good, bad) = (folder.path().join("good.toml"), folder.path().join("bad.toml"));
    let example = stdout(castnet().args(["rules", "example", "--collective"]));
    std::fs::write(&good, &example).expect("written");
    let text = stdout(castnet().args(["rules", "check", "--ports", "3"]).arg(&good));
    assert!(
        text.contains("good: 0 multicast groups, 1 collective group, 0 routes"),
        "{text}"
    );

    let faulty = example
        .replace("slots = 256", "slots = 100")
        .replace("qpn = 0x22", "qpn = 1")
        .replace("rank = 2,", "rank = 1,");
    std::fs::write(&bad, &faulty).expect("written");
    let output = castnet()
        .args(["rules", "check", "--output", "json"])
        .arg(&bad)
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let faults = report["files"][0]["faults"].as_array().expect("faults");
    let line_of = |text: &str| faulty.lines().position(|l| l.contains(text)).expect("a line") + 1;
    let told: Vec<_> = faults
        .iter()
        .map(|f| {
            (
                f["field"].as_str().unwrap_or_default(),
                f["line"].as_u64().unwrap_or(0) as usize,
            )
        })
        .collect();
    let expected = [
        ("groups[0].slots", line_of("slots = 100")),
        ("groups[0].endpoints[1].host.qpn", line_of("qpn = 1,")),
        ("groups[0].endpoints[2].host.rank", line_of("name = \"c\"")),
    ];
    assert_eq!(told, expected, "{report}");

    let output = castnet()
        .args(["rules", "check", "--ports", "2"])
        .arg(&good)
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.code() == Some(1) && text.contains("groups[0].endpoints[2].port: "),
        "{text}"
    );
}

#[test]
fn doctor_looks_at_a_switchs_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("switch.toml");
    let examine = |text: &str| {
        std::fs::write(&file, text).expect("written");
        let output = castnet()
            .args(["doctor", "-O", "json", "--for", "demo", "--config"])
            .arg(&file)
            .output()
            .expect("it runs");
        let json = serde_json::from_slice::<Value>(&output.stdout).unwrap_or_default();
        (output.status.code(), json["missing"].clone())
    };
    let capture = folder.path().join("in.pcap");
    std::fs::write(&capture, "").expect("written");
    let good = format!("[[ports]]\nname = \"a\"\nspec = \"pcap:{}\"\n", capture.display());
    assert_eq!(examine(&good), (Some(0), serde_json::json!([])));
    let bad = format!(
        "workers = [{{ core = 4095 }}]\n{good}[[ports]]\nname = \"b\"\nspec = \"af_packet:no-such-if\"\n"
    );
    assert_eq!(
        examine(&bad),
        (Some(1), serde_json::json!(["worker 0", "port b"]))
    );
    // A file that is wrong in itself is a fault of usage.
    assert_eq!(examine("colour = \"red\"").0, Some(2));
}

/// The set-up script on files in place of the kernel's.
#[test]
fn the_script_for_dpdk_reserves_pages_and_hands_nics_over() {
    let root = tempfile::tempdir().expect("a folder");
    let path = |path: &str| root.path().join(path);
    let put = |at: &str, text: &str| {
        std::fs::create_dir_all(path(at).parent().expect("a folder")).expect("folders");
        std::fs::write(path(at), text).expect("written");
    };
    let pages = "kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
    let nic = "bus/pci/devices/0000:3b:00.0";
    put(pages, "0");
    put(
        "devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages",
        "0",
    );
    let other = "bus/pci/devices/0000:3b:00.1";
    for driver in ["vfio-pci", "ice"] {
        put(&format!("bus/pci/drivers/{driver}/unbind"), "");
    }
    put(&format!("{other}/driver_override"), "");
    put(&format!("{nic}/net/eth3/flags"), "0x1003\n");
    let script = |args: &[&str]| {
        let output = Process::new("sh")
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/dpdk.sh"))
            .args(args)
            .env("CASTNET_SYS", root.path())
            .output()
            .expect("a shell");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), text)
    };
    let drive = |driver: &str| {
        let _ = std::fs::remove_file(path(nic).join("driver"));
        let driver = path("bus/pci/drivers").join(driver);
        std::os::unix::fs::symlink(driver, path(nic).join("driver")).expect("a link");
    };
    let read = |at: &str| {
        std::fs::read_to_string(path(at))
            .unwrap_or_default()
            .trim()
            .to_owned()
    };
    assert_eq!(script(&["hugepages", "12"]).0, Some(0));
    assert_eq!(read(pages), "12");
    assert_eq!(script(&["hugepages", "7", "1"]).0, Some(0));
    assert!(script(&["hugepages", "7", "2"]).1.contains("no such NUMA node"));
    drive("ice");
    // One in use: nothing is done to the others.
    let (code, text) = script(&["bind", "0000:3b:00.1", "0000:3b:00.0"]);
    assert!(
        code == Some(1) && text.contains("ip link set eth3 down"),
        "{text}"
    );
    assert_eq!(read(&format!("{other}/driver_override")), "");
    // What the kernel has stays with it: the machine may be reached by this interface.
    assert_eq!(script(&["release", "0000:3b:00.0"]).0, Some(0));
    assert_eq!(read("bus/pci/drivers/ice/unbind"), "");
    // No driver takes it over here, so it goes back.
    put(&format!("{nic}/net/eth3/flags"), "0x1002\n");
    // That of a virtio device is one folder deeper.
    let virtio = format!("{nic}/virtio2/net/eth4/flags");
    put(&virtio, "0x1003\n");
    let (code, text) = script(&["bind", "0000:3b:00.0"]);
    assert!(code == Some(1) && text.contains("eth4 is in use"), "{text}");
    put(&virtio, "0x1002\n");
    let (code, text) = script(&["bind", "0000:3b:00.0"]);
    assert!(code == Some(1) && text.contains("has not taken it"), "{text}");
    assert_eq!(read(&format!("{nic}/driver_override")), "");
    for told in ["bus/pci/drivers/ice/unbind", "bus/pci/drivers_probe"] {
        assert_eq!(read(told), "0000:3b:00.0");
    }
    drive("vfio-pci");
    assert_eq!(script(&["bind", "0000:3b:00.0"]).0, Some(0));
    assert_eq!(read("bus/pci/drivers/vfio-pci/unbind"), "", "a switch may use it");
    assert_eq!(script(&["release", "0000:3b:00.0"]).0, Some(0));
    assert_eq!(read("bus/pci/drivers/vfio-pci/unbind"), "0000:3b:00.0");
    assert!(
        script(&["bind", "0000:af:00.0"])
            .1
            .contains("no device 0000:af:00.0")
    );
    assert_eq!(script(&["bind"]), (Some(0), String::new()));
    assert_eq!(script(&["juggle"]).0, Some(2));
}

/// The script set the number of hugepages to that of its unit, or to 0, and a database beside the switch lost its own.
#[test]
fn the_script_for_dpdk_takes_no_hugepages_from_others() {
    let root = tempfile::tempdir().expect("a folder");
    let pages = root.path().join("kernel/mm/hugepages/hugepages-2048kB");
    std::fs::create_dir_all(&pages).expect("folders");
    let pages = pages.join("nr_hugepages");
    let set = |number: &str| std::fs::write(&pages, number).expect("written");
    let script = |args: &[&str]| {
        let mut command = Command::new("sh");
        command
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/dpdk.sh"))
            .args(args)
            .env("CASTNET_SYS", root.path())
            .env("RUNTIME_DIRECTORY", root.path());
        let text = stdout(&mut command);
        let there = std::fs::read_to_string(&pages).expect("read");
        (there.trim().to_owned(), text)
    };
    set("4096\n");
    let (there, text) = script(&["hugepages", "1024"]);
    assert!(there == "4096" && text.contains("they stay"), "{there}: {text}");
    assert_eq!(script(&["restore"]).0, "4096", "the unit has reserved none");
    set("512\n");
    assert_eq!(script(&["hugepages", "1024"]).0, "1024");
    assert_eq!(script(&["restore"]).0, "512");
    assert_eq!(script(&["restore"]).0, "512", "once");
    // Somebody reserves more while the unit runs.
    assert_eq!(script(&["hugepages", "1024"]).0, "1024");
    set("2048\n");
    let (there, text) = script(&["restore"]);
    assert!(there == "2048" && text.contains("they stay"), "{there}: {text}");
}

#[test]
fn doctor_tells_the_same_to_people_and_machines() {
    let text = stdout(castnet().arg("doctor"));
    let json: Value = serde_json::from_str(&stdout(castnet().args(["doctor", "-O", "json"]))).expect("JSON");
    let checks = json["checks"].as_array().expect("checks");
    assert!(checks.len() > 10);
    for check in checks {
        let what = check["what"].as_str().expect("a name");
        assert!(text.contains(what), "{what} is not in the table");
        assert!(
            ["OK", "WARN", "MISSING"].contains(&check["level"].as_str().unwrap_or_default()),
            "{check}"
        );
    }
}

#[test]
fn completions_know_the_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let text = stdout(castnet().args(["completions", shell]));
        assert!(text.contains("neighbours") && text.contains("doctor"), "{shell}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_fault() {
    let binary = castnet().get_program().to_owned();
    let mut child = Process::new(binary)
        .args(["completions", "zsh"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    // Closed before anything can have been read.
    drop(child.stdout.take());
    let mut text = String::new();
    child
        .stderr
        .take()
        .expect("stderr")
        .read_to_string(&mut text)
        .expect("UTF-8");
    assert!(child.wait().expect("it ends").success());
    assert_eq!(text, "");
}

/// Two leaves and two spines that are routers.
const ROUTED: &str = r#"# ours
[[switches]]
name = "leaf1"
ports = 4
mcst_prefix = "10.201.0.0/24"
[[switches]]
name = "leaf2"
ports = 4
mcst_prefix = "10.202.0.0/24"
[[switches]]
name = "spine1"
kind = "router"
ports = 2
[[switches]]
name = "spine2"
kind = "router"
ports = 2
[[links]]
a = "leaf1:2"
b = "spine1:0"
[[links]]
a = "leaf2:2"
b = "spine1:1"
[[links]]
a = "leaf1:3"
b = "spine2:0"
[[links]]
a = "leaf2:3"
b = "spine2:1"
"#;

#[test]
fn what_a_flag_names_by_mistake_is_not_written_over_and_found_before_a_member_joins() {
    let folder = tempfile::tempdir().expect("a folder");
    let (precious, qp) = (folder.path().join("precious"), folder.path().join("qp"));
    std::fs::write(&precious, "precious\n").expect("a file");
    let receive = |flag: &str, path: &std::path::Path| {
        let receive = "host receive --interface memory:nowhere --ip 10.0.0.2/24 --name b --out copy --mcst-id 10.255.0.1 \
                       --qpn 0x12 --start-psn 0 --connect-timeout 10ms";
        let path = path.display().to_string();
        let args: Vec<_> = receive.split(' ').chain([flag, &path]).collect();
        failure(&args)
    };
    for flag in ["--ready-file", "--qp-file"] {
        let (code, said) = receive(flag, &precious);
        assert!(code == 2 && said.contains("nothing is written over it"), "{said}");
    }
    assert_eq!(std::fs::read(&precious).expect("a file"), b"precious\n");
    // Nobody answers, but it has written its own file, and replaces that.
    for _ in 0..2 {
        let (code, said) = receive("--qp-file", &qp);
        assert_eq!(code, 4, "{said}");
        let line = std::fs::read(&qp).expect("a file");
        let line: Value = serde_json::from_slice(&line).expect("JSON");
        assert_eq!(line["qpn"], 0x12);
    }
}

#[test]
fn a_ready_file_that_cannot_be_written_is_found_before_anything_is_opened() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (socket, store) = (at("socket"), at("store"));
    for line in [
        format!("switch --port a=pcap:/nowhere/in.pcap --listen unix:{socket}"),
        format!("controller --switch a=unix:/nowhere/socket --store {store} --listen unix:{socket}"),
        "host receive --interface nowhere --ip 10.0.0.2/24 --name b --out copy --mcst-id 10.255.0.1 --qpn 0x12 --start-psn 0"
            .to_owned(),
        "host replicate serve --interface nowhere --ip 10.0.0.2/24 --name b --size 8KiB".to_owned(),
    ] {
        let args: Vec<_> = line.split(' ').chain(["--ready-file", "/nowhere/ready"]).collect();
        let (code, said) = failure(&args);
        assert!(code == 2 && said.contains("--ready-file"), "{line}: {said}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0);
}

/// A full disk takes an empty file, so this was found when the ports were open and the rules installed.
#[test]
fn a_ready_file_for_which_there_is_no_room_is_found_before_anything_is_opened() {
    struct Mounted(tempfile::TempDir);
    impl Drop for Mounted {
        fn drop(&mut self) {
            let _ = Process::new("umount").arg("-l").arg(self.0.path()).status();
        }
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut mount = Process::new("mount");
    mount
        .args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"])
        .arg(folder.path());
    if !mount.output().is_ok_and(|done| done.status.success()) {
        return castnet_wrap_up::skip(
            "cli::a_ready_file_for_which_there_is_no_room_is_found_before_anything_is_opened",
            "needs root, to mount a small tmpfs",
        );
    }
    let disk = Mounted(folder);
    let at = |name: &str| disk.0.path().join(name).display().to_string();
    std::fs::write(at("fill"), vec![0_u8; 1 << 17]).expect_err("the disk is smaller");
    let listen = format!("unix:{}", at("socket"));
    let (code, said) = failure(&[
        "switch",
        "--port",
        "a=pcap:/nowhere/in.pcap",
        "--listen",
        &listen,
        "--ready-file",
        &at("ready"),
    ]);
    assert!(
        code == 1 && said.contains("--ready-file") && said.contains("free space there"),
        "{code}: {said}"
    );
    let left = std::fs::read_dir(disk.0.path()).expect("a folder").count();
    assert_eq!(left, 1, "nothing but what fills it");
}

#[test]
fn the_routes_of_a_core_are_files_and_written_whole_or_not_at_all() {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, out) = (folder.path().join("topology.toml"), folder.path().join("core"));
    let run = |text: &str, more: &[&str]| {
        std::fs::write(&file, text).expect("a file");
        let mut command = castnet();
        command
            .args(["rules", "core"])
            .arg(&file)
            .arg("--out")
            .arg(&out)
            .args(more);
        command
    };
    let refused = |text: &str, more: &[&str], says: &str| {
        let output = run(text, more).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(says), "{says}: {said}");
    };
    refused(
        ROUTED,
        &["--addresses", "10.0.0.0/8"],
        "10.0.0.0/8 is no block of the addresses 224.0.1.0 to 239.255.255.255",
    );
    refused(
        ROUTED,
        &["--addresses", "239.1.0.0/32"],
        "239.1.0.0/32 is too small: 1 pods need a /30",
    );
    let plain = ROUTED.replace("router", "plain");
    refused(
        &plain,
        &[],
        "no router is next to two Castnet switches with an mcst_prefix",
    );
    let grouped = format!("group_addresses = \"239.0.0.0/16\"\n{ROUTED}");
    refused(
        &grouped,
        &[],
        "239.0.0.0 of 239.0.0.0/8 is one of the group_addresses 239.0.0.0/16",
    );
    let named = ROUTED.replace("spine1", "topology");
    refused(
        &named,
        &[],
        "the rules of switch \"topology\" would replace topology.toml",
    );
    assert!(!out.exists());
    let said = stdout(&mut run(ROUTED, &[]));
    assert!(
        said.contains("2 files: 1 route or fewer that replicate, 0 or fewer that do not"),
        "{said}"
    );
    let rules: Vec<_> = ["spine1.toml", "spine2.toml"].map(|name| out.join(name)).into();
    stdout(castnet().args(["rules", "check", "--ports", "2"]).args(&rules));
    let with = std::fs::read_to_string(out.join("topology.toml")).expect("a file");
    assert!(
        with.starts_with(ROUTED) && with.ends_with("switches = [\"leaf1\", \"leaf2\"]\n"),
        "{with}"
    );
    refused(ROUTED, &[], "core: File exists");
    refused(&with, &[], "has [[multicast_routes]] already");
}
