//! Lists the RDMA devices of this machine and runs the conformance checks on the first. With arguments it
//! sends messages to a group, or receives them, if the group's address, QPNs and PSN are known:
//!
//! ```text
//! verbs                                                   list and try out
//! verbs send    McstID PSN PMTU send|write SIZE COUNT SLOTS VA
//! verbs receive McstID PSN PMTU send|write SIZE COUNT SLOTS     prints "QPN VA RKEY LENGTH" first
//! ```

use std::error::Error;
use std::time::{Duration, Instant};

use castnet_rnic::conformance::{self, OneDevice};
use castnet_rnic::messages::{self, MessageReceiver, Messages};
use castnet_rnic::stream::{Flow, RemoteRing, Transfer};
use castnet_rnic::verbs::{self, VerbsConfig, VerbsRnic};
use castnet_rnic::{QpOptions, QpRemote, Rnic};
use castnet_wire::{Pmtu, Psn, Qpn};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => try_out(),
        [verb, mcst_id, psn, pmtu, op, size, count, slots, rest @ ..] => {
            let mut rnic = VerbsRnic::open(VerbsConfig::default())?;
            let psn = Psn::new(psn.parse()?);
            let remote = QpRemote {
                sq_psn: psn,
                rq_psn: psn,
                pmtu: Pmtu::from_bytes(pmtu.parse()?).ok_or("no path MTU")?,
                timeout: 18,
                ..QpRemote::new(mcst_id.parse()?, Qpn::VIRTUAL)
            };
            let what = Messages {
                size: size.parse()?,
                count: count.parse()?,
            };
            let (by_write, slots) = (*op == "write", slots.parse()?);
            let qpn = rnic.create_qp(&QpOptions::default())?;
            let start;
            let summary = if *verb == "send" {
                let va = rest.first().map_or(Ok(0), |va| va.parse())?;
                let transfer = if by_write {
                    Transfer::Write(RemoteRing { va, rkey: 0, slots })
                } else {
                    Transfer::Send
                };
                println!("{}", qpn.value());
                rnic.connect_qp(qpn, &remote, Duration::from_secs(60))?;
                println!("connected");
                start = Instant::now();
                messages::send(&mut rnic, &[qpn], transfer, what, 4, &mut |_, _| Flow::Continue)?
            } else {
                let mut receiver = MessageReceiver::new(&mut rnic, &[qpn], by_write, what, slots)?;
                let ring = receiver.rings()[0];
                println!("{} {} {} {}", qpn.value(), ring.va, ring.rkey, ring.length);
                rnic.connect_qp(qpn, &remote, Duration::from_secs(60))?;
                println!("connected");
                start = Instant::now();
                let summary = receiver.receive(&mut rnic, &mut |_| Flow::Continue)?;
                // The device replies to duplicates by itself.
                let until = Instant::now() + Duration::from_secs(3);
                while Instant::now() < until {
                    rnic.wait(Duration::from_millis(100))?;
                }
                summary
            };
            println!(
                "{} bytes, SHA-256 {}, {:?} since connected, last after {:?}",
                summary.bytes,
                summary.digest,
                start.elapsed(),
                summary.times.last()
            );
            Ok(())
        }
        _ => Err("verbs [send|receive McstID PSN PMTU send|write SIZE COUNT SLOTS [VA]]".into()),
    }
}

fn try_out() -> Result<(), Box<dyn Error>> {
    for device in verbs::devices().map_err(|e| format!("{e}\n{}", e.advice().unwrap_or_default()))? {
        println!("{}: {:?}", device.name, device.state);
    }
    let mut rnic = VerbsRnic::open(VerbsConfig::default())?;
    let reports = conformance::run(&mut OneDevice(&mut rnic), &mut |report| {
        println!(
            "{:13} {:>8.1?}  {:?}",
            report.name, report.elapsed, report.outcome
        );
    });
    let failed = reports.iter().filter(|r| r.outcome.is_err()).count();
    println!("{failed} of {} failed", reports.len());
    for (name, value) in rnic.counters() {
        println!("{name} {value}");
    }
    if failed == 0 {
        Ok(())
    } else {
        Err("not fit".into())
    }
}
