//! DPDK programs: their common arguments, and their counters from DPDK's telemetry.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use anyhow::{Context, Result};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, send, socket};
use nix::sys::socket::{setsockopt, sockopt::ReceiveTimeout};
use nix::sys::time::{TimeVal, TimeValLike};

use super::Shared;
use crate::count::{Count, device_stats, devices};
use crate::measure::{Ran, Running, threads};
use crate::process::{PATIENCE, Process, mortal};

/// Memory of a program without hugepages, in MiB. Open vSwitch takes half for one pool of buffers.
const MEMORY: &str = "1100";

pub(super) fn memory(hugepages: bool) -> &'static [&'static str] {
    if hugepages {
        &["--in-memory"]
    } else {
        // With --no-huge alone Open vSwitch would add --in-memory, and DPDK refuses both together.
        &["--no-huge", "--legacy-mem", "-m", MEMORY]
    }
}

pub(super) fn program(
    shared: &Shared,
    name: &str,
    program: impl AsRef<std::ffi::OsStr>,
    cores: &[String],
    devices: &[String],
    rest: &[&str],
) -> Result<Box<dyn Running>> {
    let folder = shared.fresh(name)?;
    let mut command = mortal(None, program);
    // For sockets such as that of telemetry.
    command
        .env("RUNTIME_DIRECTORY", &folder)
        .args(cores)
        .arg("--no-pci")
        .args(memory(shared.hugepages));
    for device in devices {
        command.args(["--vdev", device]);
    }
    command.arg("--").args(rest);
    let mut process = Process::start(name, &folder, command)?;
    let path = folder.join("dpdk/rte/dpdk_telemetry.v2");
    let telemetry = process.wait_for(|| Telemetry::connect(&path).ok())?;
    Ok(Box::new(Program { process, telemetry }))
}

struct Program {
    process: Process,
    telemetry: Telemetry,
}

impl Running for Program {
    fn ran(&mut self) -> Result<Ran> {
        threads(self.process.pid(), "")
    }

    fn count(&mut self) -> Result<Count> {
        self.process.lives()?;
        let mut sum = Count::default();
        for device in devices(&self.telemetry.ask("/ethdev/list")?)? {
            sum.add(device_stats(
                &self.telemetry.ask(&format!("/ethdev/stats,{device}"))?,
            )?);
        }
        Ok(sum)
    }
}

struct Telemetry(OwnedFd);

impl Telemetry {
    fn connect(path: &Path) -> Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC;
        let fd = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
        setsockopt(
            &fd,
            ReceiveTimeout,
            &TimeVal::seconds(PATIENCE.as_secs().cast_signed()),
        )?;
        connect(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
        let telemetry = Self(fd);
        telemetry.answer()?;
        Ok(telemetry)
    }

    fn ask(&self, question: &str) -> Result<Vec<u8>> {
        send(self.0.as_raw_fd(), question.as_bytes(), MsgFlags::empty())
            .context("asking DPDK's telemetry")?;
        self.answer()
    }

    fn answer(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; 1 << 16];
        let length = recv(self.0.as_raw_fd(), &mut bytes, MsgFlags::empty()).context("DPDK's telemetry")?;
        if length == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        bytes.truncate(length);
        Ok(bytes)
    }
}
