//! `softroce shell`: this terminal, at the other end of a machine's serial line.

use std::fs::File;
use std::io::{IsTerminal as _, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::process::{Command, ExitCode, Stdio};
use std::thread;

use castnet_softroce::LabError;
use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};

use crate::{Shell, find_host};

/// Ctrl-].
const LEAVE: u8 = 0x1d;

pub(crate) fn shell(ask: &Shell) -> Result<ExitCode, LabError> {
    let host = find_host(&ask.which)?;
    if !std::io::stdin().is_terminal() {
        return Err(LabError::Config(
            "a shell is for a terminal; use softroce run".into(),
        ));
    }
    let socket = host.shell_socket();
    let lock = File::create(socket.with_extension("lock")).map_err(LabError::io("locking the shell"))?;
    if lock.try_lock().is_err() {
        return Err(LabError::Config(format!(
            "somebody has the shell of {}",
            host.name()
        )));
    }
    let mut line = UnixStream::connect(&socket).map_err(LabError::io("connecting to the shell"))?;
    let mut from = line
        .try_clone()
        .map_err(LabError::io("connecting to the shell"))?;
    println!("{}: Ctrl-] leaves the shell.", host.name());
    let raw = Raw::new()?;
    let reader = thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(n @ 1..) = from.read(&mut bytes) {
            let mut out = std::io::stdout();
            if out.write_all(&bytes[..n]).and_then(|()| out.flush()).is_err() {
                break;
            }
        }
    });
    let _ = line.write_all(format!(" {}\n", resize()).as_bytes());
    let mut bytes = [0; 256];
    while let Ok(n @ 1..) = std::io::stdin().read(&mut bytes) {
        let typed = &bytes[..n];
        let leave = typed.iter().position(|byte| *byte == LEAVE);
        if line.write_all(&typed[..leave.unwrap_or(n)]).is_err() || leave.is_some() {
            break;
        }
    }
    let _ = line.shutdown(Shutdown::Both);
    let _ = reader.join();
    drop(raw);
    println!();
    Ok(ExitCode::SUCCESS)
}

fn resize() -> String {
    let out = Command::new("stty").arg("size").stdin(Stdio::inherit()).output();
    let text = out
        .map(|out| String::from_utf8_lossy(&out.stdout).into_owned())
        .unwrap_or_default();
    let mut numbers = text
        .split_whitespace()
        .filter_map(|word| word.parse::<u16>().ok())
        .filter(|n| *n > 0);
    match (numbers.next(), numbers.next()) {
        (Some(rows), Some(columns)) => format!("stty rows {rows} cols {columns}; clear"),
        _ => "clear".into(),
    }
}

/// Makes the terminal pass on each byte as it is typed, until this is dropped.
struct Raw(Termios);

impl Raw {
    fn new() -> Result<Self, LabError> {
        let before = tcgetattr(std::io::stdin()).map_err(LabError::io("setting the terminal"))?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        tcsetattr(std::io::stdin(), SetArg::TCSADRAIN, &raw).map_err(LabError::io("setting the terminal"))?;
        Ok(Self(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = tcsetattr(std::io::stdin(), SetArg::TCSADRAIN, &self.0);
    }
}
