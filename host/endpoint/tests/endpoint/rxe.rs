//! Replays scripts that were played to Linux rxe. The endpoint must send the same frames as rxe.
//!
//! `tests/data/NAME.script` contains the events and `NAME.pcap` the frames of both sides, in the order in which they
//! were captured with the rxe of Linux 6.1. `cargo test -p castnet-softroce-tests -- habits` plays the scripts to a
//! running rxe. With `CASTNET_RECORD=1` it rewrites the captures.

#[path = "common/script.rs"]
mod script;

use castnet_wire::{MacAddr, Parsed, Qpn, RoceHeader, parse_frame};
use script::{Ends, Script, Step, Twin, line, read_pcap, settled, with_key};

fn header(frame: &[u8]) -> RoceHeader {
    let Ok(Parsed::Roce(header)) = parse_frame(frame, frame.len()) else {
        panic!("no RoCE: {frame:02x?}")
    };
    header
}

fn mac_at(frame: &[u8], at: usize) -> MacAddr {
    MacAddr(frame[at..at + 6].try_into().expect("six bytes"))
}

fn replay(name: &str) {
    let at = |end: &str| format!("{}/tests/data/{name}.{end}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(at("script")).expect("a script");
    let script = Script::parse(&text).expect("a script");
    let frames = read_pcap(&std::fs::read(at("pcap")).expect("a capture"));
    // The script's Ethernet address distinguishes the two sides.
    let script_mac = MacAddr([2, 0, 0, 0, 0, 0x55]);
    let is_from_script = |frame: &&Vec<u8>| mac_at(frame, 6) == script_mac;
    let to_rxe = frames.iter().find(is_from_script).expect("a frame to rxe");
    let from_rxe = frames
        .iter()
        .find(|f| !is_from_script(f))
        .expect("a frame from rxe");
    let h = header(to_rxe);
    let (script_ip, ip) = h.ip.v4().expect("IPv4");
    let va = frames
        .iter()
        .filter(is_from_script)
        .filter_map(|f| header(f).reth)
        .map(|r| r.va)
        .min();
    let ends = Ends {
        mac: mac_at(to_rxe, 0),
        ip,
        qpn: h.bth.dest_qp,
        va: va.unwrap_or(1 << 32),
        rkey: 0,
        script_mac,
        script_ip,
        script_qpn: Qpn::new(header(from_rxe).bth.dest_qp.value()),
    };
    let mut twin = Twin::new(&script, &ends);
    let mut frames = frames.iter();
    for (number, step) in script.steps.iter().enumerate() {
        let there = format!("{name}, step {number}, {step:?}");
        let frame = match step {
            Step::Post { .. } | Step::Receive { .. } | Step::Timer => None,
            Step::Response { .. } | Step::Request(_) => {
                let frame = frames
                    .next()
                    .unwrap_or_else(|| panic!("{there}: the recording ends"));
                assert!(is_from_script(&frame), "{there}: rxe also sent {}", line(frame));
                match step {
                    Step::Request(request) if !request.bad_key => Some(with_key(frame, twin.rkey())),
                    _ => Some(frame.clone()),
                }
            }
        };
        for ours in twin.step(step, frame.as_deref()) {
            let rxe = frames
                .next()
                .unwrap_or_else(|| panic!("{there}: rxe did not send {}", line(&ours)));
            assert_eq!(line(&ours), line(rxe), "{there}");
            assert_eq!(settled(&ours), settled(rxe), "{there}");
        }
    }
    assert!(frames.next().is_none(), "{name}: rxe sent more");
}

#[test]
fn every_script_is_sent_as_rxe_sent_it() {
    let folder = format!("{}/tests/data", env!("CARGO_MANIFEST_DIR"));
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .expect("the folder of scripts")
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter_map(|name| Some(name.strip_suffix(".script")?.to_owned()))
        .collect();
    names.sort();
    assert!(names.len() > 10, "{names:?}");
    for name in names {
        replay(&name);
    }
}
