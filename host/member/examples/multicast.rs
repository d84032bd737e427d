//! Sends a file to a multicast group, or receives it, with the software RNIC:
//!
//! ```text
//! multicast receive PORT IP HOST GROUP FILE [CONTROLLER]     at each receiver
//! multicast send    PORT IP HOST GROUP FILE [CONTROLLER]     at the source
//! ```
//!
//! For example `multicast send af_packet:eth0 10.0.0.1 h1 weights data.bin`, after
//! `castnet group create weights --source h1 --members h2,h3`.

use std::error::Error;
use std::fs::File;
use std::time::Duration;

use castnet_member::{Group, MemberConfig, StreamHeader};
use castnet_rnic::{SoftRnic, SoftRnicConfig};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [verb, port, ip, host, group, path, rest @ ..] = args.as_slice() else {
        return Err("multicast send|receive PORT IP HOST GROUP FILE [CONTROLLER]".into());
    };
    let controller = rest.first().map_or("http://127.0.0.1:7470", String::as_str);
    let group = Group::Named {
        name: group.clone(),
        controller: controller.parse()?,
        security: Default::default(),
        wait: Duration::from_secs(60),
    };
    let config = MemberConfig::new(host, group);
    let mut rnic = SoftRnic::open(&port.parse()?, SoftRnicConfig::new(ip.parse()?))?;
    let transferred = match verb.as_str() {
        "send" => {
            let mut file = File::open(path)?;
            let header = StreamHeader {
                name: path.clone(),
                length: Some(file.metadata()?.len()),
            };
            let mut source = castnet_member::source(config, &mut rnic)?.join()?;
            let transferred = source.send(&header, &mut file, &mut |_, _| {})?;
            source.leave()?;
            transferred
        }
        "receive" => {
            let mut receiver = castnet_member::receiver(config, &mut rnic)?.join()?;
            let (transferred, _) = receiver.receive(&mut |_| File::create(path), &mut |_, _| {})?;
            receiver.leave()?;
            transferred
        }
        other => return Err(format!("'{other}' is neither send nor receive").into()),
    };
    let summary = transferred.summary;
    println!(
        "{}: {} bytes in {:?}, SHA-256 {}",
        summary.name, summary.bytes, transferred.elapsed, summary.digest
    );
    Ok(())
}
