//! Labs on a plain bridge, from nothing to nothing: by the library, and by the command.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use castnet_softroce::{Lab, LabConfig, LabError, MANAGEMENT_IP};
use castnet_wrap_up::skip;

const SOON: Duration = Duration::from_secs(60);

/// Whether a test cannot run here; then it is reported as skipped.
fn skipped(test: &str) -> bool {
    match castnet_softroce::available() {
        Ok(()) => false,
        Err(why) => {
            skip(test, &why.to_string());
            true
        }
    }
}

fn namespaces() -> String {
    let out = Command::new("ip").args(["netns", "list"]).output().expect("ip");
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// Whether any process has `text` on its command line.
fn runs(text: &str) -> bool {
    std::fs::read_dir("/proc")
        .expect("/proc")
        .flatten()
        .filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok())
        .any(|line| {
            let line = String::from_utf8_lossy(&line).into_owned();
            line.contains("qemu-system") && line.contains(text)
        })
}

#[test]
fn a_lab_runs_what_it_is_told_and_leaves_nothing_behind() {
    if skipped("a_lab_runs_what_it_is_told_and_leaves_nothing_behind") {
        return;
    }
    let config = LabConfig {
        bridge: true,
        ..LabConfig::default()
    };
    let lab = Lab::start(&config).unwrap_or_else(|e| panic!("{e}"));
    println!("two machines were up after {:?}", lab.boot_time());
    let (name, directory) = (lab.netns().to_owned(), lab.directory().to_owned());
    assert!(namespaces().contains(&name));

    devices_are_active(&lab);
    scripts_give_back_what_they_say(&lab);
    scripts_run_side_by_side(&lab);
    scripts_are_killed(&lab);
    programs_and_the_host_are_reached(&lab);
    packets_and_messages_pass(&lab);
    a_machine_vanishes(&lab);

    lab.stop().unwrap_or_else(|e| panic!("{e}"));
    assert!(!namespaces().contains(&name), "the namespace is still there");
    assert!(!directory.exists(), "{} is still there", directory.display());
    assert!(!runs(&directory.to_string_lossy()), "a QEMU is still there");
}

#[test]
fn the_command_holds_a_lab_that_goes_even_when_it_is_killed() {
    if skipped("the_command_holds_a_lab_that_goes_even_when_it_is_killed") {
        return;
    }
    let name = format!("crn-{}-command", std::process::id());
    let softroce = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_softroce"));
        command.args(words);
        command
    };
    let mut up = softroce(&["up", "--hosts", "1", "--mtu", "4200", "--name", &name])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    let said = BufReader::new(up.stdout.take().expect("piped"));
    let before_ready: Vec<String> = said
        .lines()
        .map(|line| line.expect("a line"))
        .take_while(|line| !line.contains("Ctrl-C takes all of it away"))
        .collect();
    let before_ready = before_ready.join("\n");
    assert!(before_ready.contains("castnet switch --name"), "{before_ready}");
    assert!(before_ready.contains("--port h1=af_packet:h1"), "{before_ready}");

    let shown = softroce(&["ps", "--output", "json"]).output().expect("ps");
    let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).expect("JSON");
    let mine = shown
        .as_array()
        .expect("an array")
        .iter()
        .find(|lab| lab["name"] == *name)
        .expect("the lab");
    assert_eq!((&mine["state"], &mine["mtu"]), (&"up".into(), &4200.into()));
    assert_eq!(mine["hosts"][0]["ip"], "10.0.0.1");
    let directory = mine["directory"].as_str().expect("a path").to_owned();

    let run = |words: &[&str]| {
        let out = softroce(&["run", "--lab", &name, "h1", "--"])
            .args(words)
            .output()
            .expect("run");
        (
            String::from_utf8_lossy(&out.stdout).into_owned(),
            out.status.code(),
        )
    };
    assert_eq!(
        run(&["ibv_devinfo -v | grep -c 'active_mtu:.*4096'; exit 9"]),
        ("1\n".into(), Some(9))
    );
    assert_eq!(run(&["echo", "a  b", "$HOME"]), ("a  b $HOME\n".into(), Some(0)));
    let refused = softroce(&["up", "--name", &name]).output().expect("up");
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("already"),
        "{refused:?}"
    );

    up.kill().expect("killed");
    up.wait().expect("waited");
    let deadline = Instant::now() + SOON;
    while namespaces().contains(&name) || Path::new(&directory).exists() || runs(&directory) {
        assert!(
            Instant::now() < deadline,
            "the lab outlives the process that held it"
        );
    }
}

fn devices_are_active(lab: &Lab) {
    for host in lab.hosts() {
        let out = host
            .run("ibv_devinfo -v; ip -o addr show eth0", SOON)
            .expect("run");
        assert!(out.stdout.contains("hca_id:\trxe0"), "{out}");
        assert!(out.stdout.contains("PORT_ACTIVE"), "{out}");
        assert!(out.stdout.contains("active_mtu:\t\t1024"), "{out}");
        let gid = format!("GID[  1]:\t\t::ffff:{}, RoCE v2", host.ip());
        assert!(out.stdout.contains(&gid), "{gid}: {out}");
        assert!(!out.stdout.contains("inet6"), "{out}");
    }
}

fn scripts_give_back_what_they_say(lab: &Lab) {
    let host = lab.host(1);
    let out = host
        .run("echo to the one; echo to the other >&2; hostname; exit 7", SOON)
        .expect("run");
    assert_eq!(out.stdout, "to the one\nh1\n");
    assert_eq!(out.stderr, "to the other\n");
    assert_eq!(out.code, 7);
    let large = host
        .run("head -c 3000000 /dev/zero | tr '\\0' x", SOON)
        .expect("run");
    assert_eq!(large.stdout.len(), 3_000_000);
    assert_eq!(host.run("kill -TERM $$", SOON).expect("run").code, 128 + 15);
    let late = host
        .run("echo before; sleep 1000", Duration::from_millis(300))
        .expect_err("too late");
    assert!(matches!(late, LabError::Timeout { .. }), "{late}");
}

fn scripts_run_side_by_side(lab: &Lab) {
    let host = lab.host(2);
    let mut server = host
        .spawn("mkfifo /tmp/ask; echo listening; read -r line </tmp/ask; echo \"got $line\"; exit 3")
        .expect("spawned");
    let so_far = server.wait_for_output("listening", SOON).expect("listening");
    assert_eq!(so_far.code, -1, "it runs");
    assert_eq!(host.run("echo hello >/tmp/ask", SOON).expect("run").code, 0);
    let out = server.wait(SOON).expect("ended");
    assert_eq!((out.stdout.as_str(), out.code), ("listening\ngot hello\n", 3));
    // Eight at once, each with its own answer.
    let mut jobs: Vec<_> = (0..8)
        .map(|n| host.spawn(&format!("exit {n}")).expect("spawned"))
        .collect();
    for (n, job) in jobs.iter_mut().enumerate() {
        assert_eq!(job.wait(SOON).expect("ended").code, n as i32);
    }
    let error = host
        .spawn("echo something else")
        .and_then(|mut job| job.wait_for_output("never", SOON))
        .expect_err("not said");
    assert!(matches!(error, LabError::NoSuchOutput { .. }), "{error}");
}

fn scripts_are_killed(lab: &Lab) {
    let host = lab.host(1);
    // Finds the sleeper's command line, and not its own.
    let find = "grep -las 'sleep[^x]4321' /proc/[0-9]*/cmdline";
    let mut job = host
        .spawn("sleep 4321 & until grep -qs sleep /proc/$!/cmdline; do :; done; echo begun; wait")
        .expect("spawned");
    job.wait_for_output("begun", SOON).expect("begun");
    let there = host.run(find, SOON).expect("run");
    assert_ne!(there.stdout, "", "{there}");
    job.kill().expect("killed");
    assert_eq!(job.wait(SOON).expect("ended").code, 128 + 9);
    let left = host.run(find, SOON).expect("run");
    assert_eq!(left.stdout, "", "its child lives");
    // Killed just as it starts, and killed when it has ended.
    let mut job = host.spawn("sleep 1000").expect("spawned");
    job.kill().expect("killed");
    assert_eq!(job.wait(SOON).expect("ended").code, 128 + 9);
    job.kill().expect("nothing to kill");
}

fn programs_and_the_host_are_reached(lab: &Lab) {
    let program = lab.share(Path::new("/bin/true")).expect("shared");
    assert_eq!(lab.host(2).run(&program, SOON).expect("run").code, 0);
    // One that links a library which no guest has.
    let program = lab.share(Path::new("/usr/bin/perl")).expect("shared");
    assert!(lab.directory().join("share/lib/libcrypt.so.1").exists());
    let out = lab
        .host(2)
        .run(&format!("{program} -e 'exit 7'"), SOON)
        .expect("run");
    assert_eq!(out.code, 7, "{out}");
    assert_eq!(lab.management_ip(), MANAGEMENT_IP);
    let out = lab.host(1).run(
        "ping -c 1 -w 20 192.168.100.254 && ping -c 1 -w 20 192.168.100.2",
        SOON,
    );
    assert_eq!(out.expect("run").code, 0);
    let out = lab
        .command("ping")
        .args(["-c", "1", "-w", "20", &lab.host(2).management_ip().to_string()])
        .output();
    assert!(out.expect("run").status.success());
}

fn packets_and_messages_pass(lab: &Lab) {
    let (one, two) = (lab.host(1), lab.host(2));
    let out = one.run("ping -c 3 -i 0.2 -w 20 10.0.0.2", SOON).expect("run");
    assert!(out.stdout.contains("3 received"), "{out}");
    let mut server = one
        .spawn("stdbuf -oL ibv_rc_pingpong -d rxe0 -g 1 -e -n 200")
        .expect("spawned");
    server.wait_for_output("local address", SOON).expect("listening");
    let client = two
        .run("ibv_rc_pingpong -d rxe0 -g 1 -e -n 200 10.0.0.1", SOON)
        .expect("run");
    assert_eq!(client.code, 0, "{client}");
    assert!(client.stdout.contains("200 iters"), "{client}");
    assert_eq!(server.wait(SOON).expect("ended").code, 0);
}

fn a_machine_vanishes(lab: &Lab) {
    let host = lab.host(2);
    let mut job = host.spawn("echo begun; sleep 1000").expect("spawned");
    job.wait_for_output("begun", SOON).expect("begun");
    host.kill_power();
    let error = job.wait(SOON).expect_err("gone");
    assert!(error.to_string().contains("h2: the machine is gone"), "{error}");
    assert!(!host.is_up());
    assert!(host.run("true", SOON).is_err());
    assert_eq!(lab.host(1).run("true", SOON).expect("run").code, 0);
}
