//! `softroce ps`.

use std::process::ExitCode;

use castnet_softroce::{Host, LabError, LabState, hosts_of, labs};
use serde_json::{Value, json};

use crate::{Format, Ps};

pub(crate) fn ps(ask: &Ps) -> Result<ExitCode, LabError> {
    crate::as_root()?;
    let labs = labs();
    match ask.output {
        Format::Json => {
            let labs: Vec<Value> = labs.iter().map(as_json).collect();
            println!("{}", Value::from(labs));
        }
        Format::Table if labs.is_empty() => println!("No lab is up."),
        Format::Table => println!("{}", table(&labs)),
    }
    Ok(ExitCode::SUCCESS)
}

fn state(lab: &LabState) -> &'static str {
    match (lab.owner_lives(), lab.ready) {
        (true, true) => "up",
        (true, false) => "booting",
        (false, _) => "left over",
    }
}

fn hosts(lab: &LabState) -> Vec<Host> {
    // A lab that boots, or goes, has not all of them.
    hosts_of(lab).unwrap_or_default()
}

fn table(labs: &[LabState]) -> comfy_table::Table {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header([
        "lab",
        "state",
        "hosts up",
        "MTU",
        "joined by",
        "held by",
        "folder",
    ]);
    for lab in labs {
        let up = hosts(lab).iter().filter(|host| host.is_up()).count();
        table.add_row([
            lab.name.clone(),
            state(lab).to_owned(),
            format!("{up} of {}", lab.hosts),
            lab.mtu.to_string(),
            if lab.bridge {
                "a bridge"
            } else {
                "the switch under test"
            }
            .to_owned(),
            format!("{} {}", lab.owner_program(), lab.owner_pid()),
            lab.directory.display().to_string(),
        ]);
    }
    table
}

fn as_json(lab: &LabState) -> Value {
    let hosts: Vec<Value> = hosts(lab)
        .iter()
        .map(|host| {
            json!({
                "name": host.name(),
                "ip": host.ip(),
                "management_ip": host.management_ip(),
                "mac": host.mac().map(|byte| format!("{byte:02x}")).join(":"),
                "tap": host.tap(),
                "up": host.is_up(),
            })
        })
        .collect();
    json!({
        "name": lab.name,
        "netns": lab.name,
        "state": state(lab),
        "mtu": lab.mtu,
        "bridge": lab.bridge,
        "directory": lab.directory,
        "owner_pid": lab.owner_pid(),
        "owner_program": lab.owner_program(),
        "hosts": hosts,
    })
}
