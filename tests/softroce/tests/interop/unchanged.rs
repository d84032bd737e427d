//! Programs that know nothing of Castnet, between two machines: the switch is an Ethernet switch to them.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::scene::Scene;

/// How long one program may take.
const LONG: Duration = Duration::from_secs(90);

/// A program's two halves: what the first machine runs, and what the second does with its address. The server is ready
/// when it listens at the TCP port given; rping listens where nobody can see it, so there the client asks again.
const PROGRAMS: [(&str, &str, &str, u16); 4] = [
    (
        "ibv_rc_pingpong",
        "ibv_rc_pingpong -g 1 -e -n 200",
        "ibv_rc_pingpong -g 1 -e -n 200 @",
        18515,
    ),
    (
        "ib_send_bw",
        "ib_send_bw -x 1 -F -e -s 65536 -n 100",
        "ib_send_bw -x 1 -F -e -s 65536 -n 100 @",
        18515,
    ),
    (
        "ib_write_lat",
        "ib_write_lat -x 1 -F -n 200",
        "ib_write_lat -x 1 -F -n 200 @",
        18515,
    ),
    (
        "rping",
        "rping -s -a 0.0.0.0 -C 10 -v",
        "for turn in $(seq 120); do rping -c -a @ -C 10 -v && exit 0; sleep 0.5; done; exit 1",
        0,
    ),
];

/// All of them, one after the other.
pub(crate) fn programs(scene: &mut Scene) -> Result<String> {
    scene.fabric(&[])?;
    let (server, client) = (scene.lab.host(1), scene.lab.host(2));
    let at = server.ip().to_string();
    let out = client.run(&format!("ping -c 3 -W 10 {at}"), LONG)?;
    ensure!(
        out.code == 0 && out.stdout.contains("0% packet loss"),
        "ping: {out}"
    );
    let mut done = vec!["ping"];
    for (name, serve, ask, port) in PROGRAMS {
        let mut job = server.spawn(serve)?;
        if port != 0 {
            // Listening sockets have state 0A there.
            let listening = format!(
                "until grep -q ':{port:04X} .* 0A ' /proc/net/tcp /proc/net/tcp6; do sleep 0.1; done"
            );
            let waited = server.run(&listening, LONG)?;
            ensure!(waited.code == 0, "{name} does not listen: {waited}");
        }
        let asked = client.run(&ask.replace('@', &at), LONG)?;
        if asked.code != 0 {
            // It would wait for another client.
            job.kill()?;
        }
        let served = job.wait(LONG)?;
        ensure!(asked.code == 0, "{name}: {asked}; the server: {served}");
        ensure!(served.code == 0, "{name}, the server: {served}");
        done.push(name);
    }
    Ok(done.join(", "))
}
