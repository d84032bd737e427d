//! `softroce down`.

use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use castnet_softroce::{LabError, LabState, labs, take_down};

use crate::Down;

const END_WITHIN: Duration = Duration::from_secs(20);

pub(crate) fn down(ask: &Down) -> Result<ExitCode, LabError> {
    crate::as_root()?;
    let mut all = labs();
    if let Some(name) = &ask.name {
        all.retain(|lab| &lab.name == name);
        if all.is_empty() {
            return Err(LabError::Config(format!("there is no lab {name}")));
        }
    } else if !ask.all && all.len() > 1 {
        let names: Vec<&str> = all.iter().map(|lab| lab.name.as_str()).collect();
        let names = names.join(", ");
        return Err(LabError::Config(format!(
            "several labs are there, name one, or --all: {names}"
        )));
    }
    if all.is_empty() {
        println!("No lab is up.");
    }
    for lab in all {
        match end(&lab, ask.force)? {
            true => println!("{} is gone.", lab.name),
            false if ask.all => println!("{} is left to {}.", lab.name, owner(&lab)),
            false => {
                let owner = owner(&lab);
                return Err(LabError::Config(format!(
                    "{} is held by {owner}; --force takes it from under it",
                    lab.name
                )));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn owner(lab: &LabState) -> String {
    format!("process {} ({})", lab.owner_pid(), lab.owner_program())
}

/// False if the lab is another program's.
fn end(lab: &LabState, force: bool) -> Result<bool, LabError> {
    if lab.owner_lives() && !force {
        if lab.owner_program() != "softroce" {
            return Ok(false);
        }
        lab.end_owner();
        let deadline = Instant::now() + END_WITHIN;
        while lab.directory.exists() && Instant::now() < deadline {
            sleep(Duration::from_millis(20));
        }
    }
    take_down(lab)?;
    Ok(true)
}
